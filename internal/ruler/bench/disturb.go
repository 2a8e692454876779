package bench

import (
	"fmt"
	"math"
	"time"

	"github.com/weirdb/weir/internal/measure"
)

// The limits past which a round does not stand for the machine any more.
const (
	// stealLimit is the share of the processors that a hypervisor may give away.
	stealLimit = 0.02
	// foreignLimit is the share of them that processes other than those of the
	// experiment may use. Kernel threads are in it, so it is not 0.
	foreignLimit = 0.10
	// flushLimit is how many times the median a flush may cost. Disks behind a
	// token bucket go from 60 us to 3 ms within minutes, by a factor of 50; a calm
	// one stays within 2.
	flushLimit = 3
	// pressureLimit is how many points above its fellows the waiting for
	// processors of a round may lie, which they cause themselves to a degree.
	pressureLimit = 0.30
	// memoryLimit is the share of the time in which memory may be waited for.
	memoryLimit = 0.10
)

// markDisturbed finds the rounds in which something foreign was at work. It looks
// only at witnesses that are not the result itself, so that leaving out such a
// round does not favour a side.
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
				note("a flush cost %s beside this round, %s in the median of all", Micros(float64(p)), Micros(usual))
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
				note("memory was waited for during %.0f %% of the time", 100*m.MemoryWait)
			}
			if len(waits) >= 4 && m.PressureKnown && m.CPUWait-Median(waits) > pressureLimit {
				note("processors were waited for during %.0f %% of the time, %.0f %% in the median round", 100*m.CPUWait, 100*Median(waits))
			}
		}
	}
}

// foreignShare is what processes outside the experiment used of the processors.
// Without the server's own usage it cannot be told.
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
	// The usage may have been read a little before or after the machine's.
	return (s.Machine.BusySeconds - own) / have, true
}

// usualFlush is the median cost of a flush over all calibrations, in nanoseconds,
// and 0 when there are too few to call anything usual.
func usualFlush(r *Result) float64 {
	var all []float64
	for _, c := range r.Cases {
		for j := range c.Samples {
			s := &c.Samples[j]
			for _, f := range []*measure.Flush{s.FsyncBefore, s.FsyncAfter} {
				if f != nil {
					all = append(all, float64(f.P50Ns))
				}
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

// needsDisk reports whether the sample's operations make the server flush, as far
// as that is known. A slow disk does not disturb reads.
func needsDisk(s *Sample) bool {
	return s.Server == nil || s.Server.Ops == 0 || float64(s.Server.Fsyncs)/float64(s.Server.Ops) > 0.001
}

// Micros writes a time of nanoseconds in the unit that suits it.
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
