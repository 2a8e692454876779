package bench

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/weirdb/weir/internal/measure"
)

const (
	// SaturatedShare is the share of all cores from which the machine counts as saturated.
	SaturatedShare = 0.90
	clientShare    = 0.50 // of the CPU time used: the generator is then the largest consumer
	// clientLeast is the share of one processor up to which a generator limits no rate, even if
	// nothing else uses any: the work may be waiting, or done on another machine.
	clientLeast = 0.20
)

// saturation names the processes that saturate the machine.
func saturation(r *Result) []Finding {
	var full, client []string
	for _, c := range r.Cases {
		var seconds float64
		used := make(map[string]float64)
		var total float64
		for j := range c.Samples {
			seconds += c.Samples[j].Seconds
			for role, u := range c.Samples[j].Processes {
				used[role] += u.CPUSeconds()
				total += u.CPUSeconds()
			}
		}
		share := total / (seconds * float64(r.Env.Cores))
		if total == 0 || seconds == 0 || r.Env.Cores == 0 {
			continue
		}
		var parts []string
		for _, role := range []string{RoleClient, RoleProxy, RoleServer} {
			if used[role] > 0 {
				parts = append(parts, fmt.Sprintf("%s %.0f %%", role, 100*used[role]/(seconds*float64(r.Env.Cores))))
			}
		}
		line := fmt.Sprintf("%s: %s of %d cores", c.Name, strings.Join(parts, ", "), r.Env.Cores)
		if share >= SaturatedShare {
			full = append(full, line)
		}
		clientWorks := slices.ContainsFunc(c.subjects(), func(s *Subject) bool { return s.ClientWorks })
		if used[RoleClient] > max(clientShare*total, clientLeast*seconds) && !clientWorks {
			client = append(client, line)
		}
	}
	return slices.Concat(
		Found(full, Finding{
			ID: "saturated", Severity: Info,
			Claim:  "All processors are busy: client, proxy and server compete, so throughput depends on their CPU time per operation.",
			Advice: "Compare CPU time per operation, which other load on the machine affects less.",
		}),
		Found(client, Finding{
			ID: "client-bound", Severity: Warn,
			Claim: "The load generator uses more than half of the CPU time: these rates are partly its own limit.",
		}))
}

// grouping states how large groups became and what they cost in flushes.
func grouping(r *Result) []Finding {
	var evidence []string
	for _, c := range r.Cases {
		f, flushed := c.Summary["fsyncs"]
		g, grouped := c.Summary["group"]
		switch {
		case flushed && grouped:
			evidence = append(evidence, fmt.Sprintf("%s: %s fsyncs per 1000 operations, %s operations a group", c.Name, brief(f.Median), brief(g.Median)))
		case flushed:
			evidence = append(evidence, fmt.Sprintf("%s: %s fsyncs per 1000 operations", c.Name, brief(f.Median)))
		case grouped:
			evidence = append(evidence, fmt.Sprintf("%s: %.3g operations a group", c.Name, g.Median))
		}
	}
	return Found(evidence, Finding{ID: "grouping", Severity: Info, Claim: "Flushes and group sizes."})
}

// serverBusy is the share of all processors from which a server counts as CPU-bound. It never
// gets all of them if it shares the machine with its clients.
const serverBusy = 0.60

// serverCPU finds servers that are limited by their own CPU time.
func serverCPU(r *Result) []Finding {
	var evidence []string
	for _, c := range r.Cases {
		var seconds, server, all float64
		var ops int64
		for j := range c.Samples {
			s := &c.Samples[j]
			seconds += s.Seconds
			ops += s.Ops
			server += s.Processes[RoleServer].CPUSeconds()
			for _, u := range s.Processes {
				all += u.CPUSeconds()
			}
		}
		have := seconds * float64(r.Env.Cores)
		if server == 0 || have == 0 || ops == 0 {
			continue
		}
		if server/have >= serverBusy && all/have >= SaturatedShare {
			evidence = append(evidence, fmt.Sprintf("%s: the server uses %.0f %% of %d cores, %.3g us an operation", c.Name, 100*server/have, r.Env.Cores, server/float64(ops)*1e6))
		}
	}
	return Found(evidence, Finding{
		ID: "server-cpu-bound", Severity: Info,
		Claim:  "All processors are busy, mostly with the server: it does as much as its CPU time per operation allows.",
		Advice: "Only less work per operation helps: prepared statements, fewer round trips, grouped writes.",
	})
}

// commitShare is the share of the time spent flushing the log from which commits count as bound
// by the disk.
const commitShare = 0.50

// commitBound finds cases whose disk does little else than flush the log: the flushes per
// second times the cost of one, by the calibrations around the round.
func commitBound(r *Result) []Finding {
	slower, _ := time.ParseDuration(r.Experiment.Factors["fsync_latency"])
	var evidence []string
	for _, c := range r.Cases {
		var shares, costs, rates []float64
		for j := range c.Samples {
			s := &c.Samples[j]
			cost, ok := FlushCost(r, s)
			if !ok || s.Server == nil || s.Server.Ops == 0 || s.Seconds == 0 {
				continue
			}
			cost += float64(slower)
			rate := float64(s.Server.Fsyncs) / float64(s.Server.Ops) * float64(s.Ops) / s.Seconds
			shares, costs, rates = append(shares, rate*cost/1e9), append(costs, cost), append(rates, rate)
		}
		if line, ok := flushesInside(c); ok && (len(shares) == 0 || Median(shares) < commitShare) {
			evidence = append(evidence, line)
			continue
		}
		if len(shares) == 0 || Median(shares) < commitShare {
			continue
		}
		evidence = append(evidence, fmt.Sprintf("%s: %s flushes a second of %s each, %.0f %% of the time", c.Name, Count(Median(rates)), Micros(Median(costs)), 100*min(Median(shares), 1)))
	}
	return Found(evidence, Finding{
		ID: "commit-bound", Severity: Info,
		Claim:  "The log is being flushed most of the time: throughput is the number of operations that share a flush times the flushes per second.",
		Advice: "Let more operations share a flush (group commit), or use a faster disk; more processors change nothing.",
	})
}

// flushesInside looks at the parts of the server's time for flushing, and for waiting for
// another session that flushes for both.
func flushesInside(c *Case) (line string, found bool) {
	b, mean := boundaryOf(c), c.Latency().Mean()
	if b == nil || mean == 0 {
		return "", false
	}
	flush, others := 0.0, 0.0
	for _, p := range b.Inside {
		switch {
		case strings.Contains(p.Name, "flush"):
			flush = max(flush, p.MeanNs) // sources overlap: take the largest
		case strings.Contains(p.Name, "another session"):
			others = max(others, p.MeanNs)
		}
	}
	if flush == 0 || (flush+others)/mean < commitShare {
		return "", false
	}
	return fmt.Sprintf("%s: flushing %s and waiting for another session %s of %s, %.0f %% of an operation's time",
		c.Name, Micros(flush), Micros(others), Micros(mean), 100*(flush+others)/mean), true
}

// FlushCost is the median cost of a flush around a sample, in nanoseconds: by its own
// calibrations, else by those around the run.
func FlushCost(r *Result, s *Sample) (float64, bool) {
	for _, pair := range [][]*measure.Flush{{s.FsyncBefore, s.FsyncAfter}, {r.Env.FsyncBefore, r.Env.FsyncAfter}} {
		var costs []float64
		for _, f := range pair {
			if f != nil {
				costs = append(costs, float64(f.P50Ns))
			}
		}
		if len(costs) > 0 {
			return Median(costs), true
		}
	}
	return 0, false
}

// brief formats a number with three digits, without an exponent.
func brief(v float64) string {
	if v >= 1000 {
		return Count(v)
	}
	return fmt.Sprintf("%.3g", v)
}
