package moves

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/weirdb/weir/internal/ruler/bench"
)

// rules replaces the core's rules, those about clients, pools and commits, by those for backups,
// restores and other moves of data.
func rules(r *bench.Result, rules *bench.Rules) {
	if ofSeveralSizes(r) {
		// A tool that moves less data ends sooner: only growth with the data says something.
		*rules = bench.Rules{
			Figures: []bench.Rule{growth},
			Trust:   []bench.Rule{unverified, bench.Partial, bench.Disturbed, bench.Failures},
		}
		return
	}
	*rules = bench.Rules{
		Figures: []bench.Rule{fastestMove, bench.BaselineRatio, paretoFront},
		Limits:  []bench.Rule{moveBound, stageBound},
		Trust:   []bench.Rule{tooCompressible, tooManyWorkers, bench.Confounded, unverified, bench.Partial, bench.Disturbed, bench.Failures, bench.Noise},
	}
}

// ofSeveralSizes reports whether the cases move different amounts of data.
func ofSeveralSizes(r *bench.Result) bool {
	return slices.ContainsFunc(r.Cases, func(c *bench.Case) bool {
		return c.Factors["bytes"] != r.Cases[0].Factors["bytes"]
	})
}

// fastestMove names the case that took the least time, and those that cannot be told from it.
func fastestMove(r *bench.Result) []bench.Finding {
	if len(r.Cases) < 2 {
		return nil
	}
	best := r.Best(func(c *bench.Case) bool { return !c.Invalid() })
	if best == nil {
		return nil
	}
	var alike []string
	for _, c := range r.Cases {
		if c.Name == best.Name {
			continue
		}
		k, err := bench.Compare(best, c, "rate")
		if err == nil && k.Ratio.N > 0 && (k.Verdict == bench.CannotTell || k.Verdict == bench.NoDifference) {
			alike = append(alike, fmt.Sprintf("%s cannot be told from it: %s of its throughput", c.Name, bench.RatioText(k.Ratio)))
		}
	}
	return []bench.Finding{{
		ID: "fastest", Severity: bench.Info, Evidence: alike,
		Claim: fmt.Sprintf("%s takes the least time: %s.", best.Name, pace(best)),
	}}
}

// pace formats how fast a case is, in a unit that suits what it moves.
func pace(c *bench.Case) string {
	if wall := c.Summary["wall"].Median; wall >= 0.1 {
		return fmt.Sprintf("%s s, %s MB/s", bench.Figure(wall), bench.Figure(c.Summary["plain_rate"].Median))
	}
	if mb := c.Summary["plain_rate"].Median; mb > 0 {
		return bench.Figure(mb) + " MB/s"
	}
	return bench.Count(c.Summary["rate"].Median) + " a second"
}

// paretoFront lists the cases that no other case beats in both time and size.
func paretoFront(r *bench.Result) []bench.Finding {
	type deal struct {
		name         string
		wall, stored float64
	}
	var all []deal
	for _, c := range r.Cases {
		if s, ok := c.Summary["stored"]; ok {
			all = append(all, deal{c.Name, c.Summary["wall"].Median, s.Median})
		}
	}
	beats := func(a, b deal) bool {
		return a.wall <= b.wall && a.stored <= b.stored && (a.wall < b.wall || a.stored < b.stored)
	}
	var evidence, names []string
	for _, d := range all {
		if !slices.ContainsFunc(all, func(o deal) bool { return beats(o, d) }) {
			names = append(names, d.name)
			evidence = append(evidence, fmt.Sprintf("%s: %s s for %s MB", d.name, bench.Figure(d.wall), bench.Figure(d.stored)))
		}
	}
	if len(all) < 3 {
		return nil
	}
	return []bench.Finding{{
		ID: "bargains", Severity: bench.Info, Evidence: evidence,
		Claim:  fmt.Sprintf("Nothing is both faster and smaller than %s.", strings.Join(names, ", ")),
		Advice: "By medians alone: look at the intervals where two are close.",
	}}
}

// growthLimit is how much more memory a move of more data may take and still count as bounded:
// garbage collection makes memory vary.
const growthLimit = 1.25

// growth reports whether memory grows with the data, if cases differ in their factor "bytes".
func growth(r *bench.Result) []bench.Finding {
	type point struct {
		c     *bench.Case
		bytes float64
	}
	byWay := make(map[string][]point)
	var ways []string
	for _, c := range r.Cases {
		n, err := strconv.ParseFloat(c.Factors["bytes"], 64)
		if err != nil || n <= 0 {
			continue
		}
		way := c.Factors["way"]
		if byWay[way] == nil {
			ways = append(ways, way)
		}
		byWay[way] = append(byWay[way], point{c, n})
	}
	var out []bench.Finding
	for _, way := range ways {
		pts := byWay[way]
		slices.SortFunc(pts, func(a, b point) int { return cmp.Compare(a.bytes, b.bytes) })
		small, large := pts[0], pts[len(pts)-1]
		if large.bytes < 2*small.bytes {
			continue
		}
		k, err := bench.Compare(small.c, large.c, "peak")
		if err != nil || k.Ratio.N == 0 {
			continue
		}
		f := bench.Finding{ID: "memory", Severity: bench.Info, Evidence: []string{
			fmt.Sprintf("%s: %s MB at its peak", small.c.Name, bench.Figure(small.c.Summary["peak"].Median)),
			fmt.Sprintf("%s: %s MB at its peak", large.c.Name, bench.Figure(large.c.Summary["peak"].Median)),
		}}
		times := bench.Figure(large.bytes / small.bytes)
		switch {
		case k.Ratio.Median <= growthLimit:
			f.Claim = fmt.Sprintf("%s: %s times the data take %s of the memory: it is bounded.", way, times, bench.RatioText(k.Ratio))
		case k.Ratio.Median >= large.bytes/small.bytes/2:
			f.Severity = bench.Warn
			f.Claim = fmt.Sprintf("%s: %s times the data take %s of the memory: it grows with the data.", way, times, bench.RatioText(k.Ratio))
		default:
			f.Claim = fmt.Sprintf("%s: %s times the data take %s of the memory: more, but less than the data.", way, times, bench.RatioText(k.Ratio))
		}
		out = append(out, f)
	}
	return out
}

// boundShare is the share of all processors from which the program, or the server, counts as
// the limit.
const boundShare = 0.5

// moveBound says what limits each case: the program's own CPU time, the server's, or neither.
func moveBound(r *bench.Result) []bench.Finding {
	by := make(map[string][]string)
	for _, c := range r.Cases {
		var seconds, client, server float64
		var cores int
		for j := range c.Samples {
			s := &c.Samples[j]
			if _, ok := s.Processes[bench.RoleServer]; !ok {
				continue
			}
			seconds += s.Seconds
			client += s.Processes[bench.RoleClient].CPUSeconds()
			server += s.Processes[bench.RoleServer].CPUSeconds()
			cores = r.Env.Cores
		}
		have := seconds * float64(cores)
		if have == 0 || client+server < bench.LeastCPUSeconds {
			continue
		}
		line := fmt.Sprintf("%s: itself %.0f %%, the server %.0f %% of %d processors", c.Name, 100*client/have, 100*server/have, cores)
		switch {
		case client/have >= boundShare && client > server:
			by["client"] = append(by["client"], line)
		case server/have >= boundShare:
			by["server"] = append(by["server"], line)
		case (client+server)/have < boundShare:
			by["neither"] = append(by["neither"], line)
		}
	}
	var out []bench.Finding
	for _, f := range []bench.Finding{
		{ID: "bound-by-client", Claim: "Most CPU time is the program's own: compression and row handling.", Advice: "Cheaper compression helps, a faster server does not."},
		{ID: "bound-by-server", Claim: "Most CPU time is the server's: it reads or stores rows and builds indexes as fast as it can.", Advice: "Only less work for the server helps; cheaper compression does not."},
		{ID: "bound-by-waiting", Claim: "At least half of the processors' time is unused: one side waits for the other, or both wait for the disk.", Advice: "More parallel jobs may help, up to the limit of the disk."},
	} {
		f.Severity = bench.Info
		f.Evidence = by[strings.TrimPrefix(strings.Replace(f.ID, "waiting", "neither", 1), "bound-by-")]
		if len(f.Evidence) > 0 {
			out = append(out, f)
		}
	}
	return out
}

// mainShare is the share of the readers' time from which one cause counts as the limit.
const mainShare = 0.5

// stageBound names the stage that limits a program, if the program reports how its stages wait
// for each other.
func stageBound(r *bench.Result) []bench.Finding {
	type cause struct{ key, id, claim, advice string }
	causes := []cause{
		{InsideServer, "limit-server", "The server is the limit: the readers wait for its rows most of their time.", "Cheaper compression or faster storage changes little; more jobs may help, as long as the server has idle processors."},
		{InsideOwn, "limit-reader", "The readers are the limit: they parse rows and compute checksums.", "More jobs use more processors for it; --checksums=false omits the checksums."},
		{InsideCompressor, "limit-compressor", "The compressor is the limit: the readers wait for it most of their time.", "Use cheaper compression, or more jobs if there are idle processors."},
		{InsideStorage, "limit-storage", "The storage is the limit: the readers wait most of their time for it to write or to make data durable.", "Use faster storage, or stronger compression."},
	}
	by := make(map[string][]string)
	for _, c := range r.Cases {
		var parts []string
		most := ""
		for _, k := range causes {
			s, ok := c.Summary[k.key]
			if !ok {
				continue
			}
			parts = append(parts, fmt.Sprintf("%s %.0f %%", bench.MustMetric(k.key, r.Subjects()...).Name, s.Median))
			if s.Median >= 100*mainShare && (most == "" || s.Median > c.Summary[most].Median) {
				most = k.key
			}
		}
		if len(parts) > 0 {
			by[most] = append(by[most], c.Name+": "+strings.Join(parts, ", "))
		}
	}
	var out []bench.Finding
	for _, k := range causes {
		out = append(out, bench.Found(by[k.key], bench.Finding{ID: k.id, Severity: bench.Info, Claim: k.claim, Advice: k.advice})...)
	}
	return append(out, bench.Found(by[""], bench.Finding{ID: "limit-none", Severity: bench.Info, Claim: "No stage alone is the limit: each of them waits less than half of the time for any other."})...)
}

// unverified warns about cases whose outcome was not compared with its source.
func unverified(r *bench.Result) []bench.Finding {
	var evidence []string
	for _, c := range r.Cases {
		n := 0
		for j := range c.Samples {
			if t := Of(c.Samples[j].Parts); t != nil && t.Verified == "" {
				n++
			}
		}
		if n > 0 {
			evidence = append(evidence, fmt.Sprintf("%s: %d of %d rounds", c.Name, n, len(c.Samples)))
		}
	}
	return bench.Found(evidence, bench.Finding{
		ID: "unverified", Severity: bench.Warn,
		Claim: "The outcome of these rounds was not compared with its source: they may be fast and wrong.",
	})
}
