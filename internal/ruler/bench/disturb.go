package bench

import (
	"fmt"
	"math"
	"time"

	"github.com/weirdb/weir/internal/measure"
)

// The limits above which a round is disturbed.
const (
	// stealLimit is the share of the processors that the hypervisor may take away.
	stealLimit = 0.02
	// foreignLimit is the share of the processors that processes outside the experiment may
	// use. Kernel threads count as such, so it is not 0.
	foreignLimit = 0.10
	// flushLimit is how many times the median a flush may cost. A disk with a token bucket can
	// go from 60 us to 3 ms, a factor of 50, within minutes; a calm disk stays within a factor
	// of 2.
	flushLimit = 3
	// pressureLimit is how far, in points, a round's share of time spent waiting for processors
	// may lie above the others': the experiment causes some of that waiting itself.
	pressureLimit = 0.30
	// memoryLimit is the share of the time that may be spent waiting for memory.
	memoryLimit = 0.10
)

// markDisturbed finds the rounds in which something outside the experiment interfered. It looks
// only at signs other than the result itself, so that leaving out such a round does not favour
// a side.
func markDisturbed(r *Result) {
	usual := usualFlush(r)
	for _, c := range r.Cases {
		var waits []float64
		for j := range c.Samples {
			if m := c.Samples[j].Machine; m != nil && m.PressureKnown {
				waits = append(waits, m.CPUWait)
			}
		}
		for j := range c.Samples {
			s := &c.Samples[j]
			s.Disturbed = nil
			note := func(format string, args ...any) { s.Disturbed = append(s.Disturbed, fmt.Sprintf(format, args...)) }
			if p := worstFlush(s); usual > 0 && needsDisk(s) && float64(p) > flushLimit*usual {
				note("a flush cost %s around this round; the median is %s", Micros(float64(p)), Micros(usual))
			}
			m := s.Machine
			if m == nil || m.Seconds < 0.5 || r.Env.Cores == 0 { // ticks are 10 ms: too coarse for less
				continue
			}
			have := m.Seconds * float64(r.Env.Cores)
			if share := m.StealSeconds / have; m.CPUKnown && share > stealLimit {
				note("the hypervisor gave %.0f %% of the processors to other machines", 100*share)
			}
			if share, ok := foreignShare(s, have); ok && share > foreignLimit {
				note("other processes used %.0f %% of the processors", 100*share)
			}
			if m.PressureKnown && m.MemoryWait > memoryLimit {
				note("processes waited for memory during %.0f %% of the time", 100*m.MemoryWait)
			}
			if len(waits) >= 4 && m.PressureKnown && m.CPUWait-Median(waits) > pressureLimit {
				note("processes waited for processors during %.0f %% of the time; in the median round, %.0f %%", 100*m.CPUWait, 100*Median(waits))
			}
		}
	}
}

// foreignShare is the share of the processors that processes outside the experiment used. It
// cannot be computed without the server's own usage.
func foreignShare(s *Sample, have float64) (float64, bool) {
	_, client := s.Processes[RoleClient]
	_, server := s.Processes[RoleServer]
	if !s.Machine.CPUKnown || !client || !server {
		return 0, false
	}
	own := 0.0
	for _, u := range s.Processes {
		own += u.CPUSeconds()
	}
	// The usage may have been read slightly before or after the machine's.
	return (s.Machine.BusySeconds - own) / have, true
}

// usualFlush is the median cost of a flush over all calibrations, in nanoseconds, and 0 if
// there are too few.
func usualFlush(r *Result) float64 {
	var all []float64
	for _, s := range r.Rounds() {
		for _, f := range []*measure.Flush{s.FsyncBefore, s.FsyncAfter} {
			if f != nil {
				all = append(all, float64(f.P50Ns))
			}
		}
	}
	if len(all) < 4 {
		return 0
	}
	return Median(all)
}

func worstFlush(s *Sample) int64 {
	var worst int64
	for _, f := range []*measure.Flush{s.FsyncBefore, s.FsyncAfter} {
		if f != nil {
			worst = max(worst, f.P50Ns)
		}
	}
	return worst
}

// needsDisk reports whether the sample's operations make the server flush, as far as that is
// known. A slow disk does not disturb reads.
func needsDisk(s *Sample) bool {
	return s.Server == nil || s.Server.Ops == 0 || float64(s.Server.Fsyncs)/float64(s.Server.Ops) > 0.001
}

// Micros formats nanoseconds in a suitable unit.
func Micros(ns float64) string {
	d := time.Duration(ns)
	switch {
	case d >= 10*time.Second:
		return d.Round(100 * time.Millisecond).String()
	case d >= time.Second:
		return d.Round(10 * time.Millisecond).String()
	case d >= time.Millisecond:
		return fmt.Sprintf("%.3g ms", ns/1e6)
	default:
		return fmt.Sprintf("%.3g us", math.Round(ns)/1e3)
	}
}
