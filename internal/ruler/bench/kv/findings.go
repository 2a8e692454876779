package kvbench

import (
	"cmp"
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"
	"time"

	"github.com/weirdb/weir/internal/ruler/bench"
	"github.com/weirdb/weir/internal/ruler/bench/subject/kvs"
)

// findings are the conclusions from the experiments on a key-value store. Each rule returns
// nothing if the figures that it needs were not measured.
func findings(results []*bench.Result) []bench.Finding {
	var out []bench.Finding
	valid := validCases(results)
	for _, rule := range []func([]*bench.Result) []bench.Finding{
		kvSpread, kvSame, kvKnee, kvLength, kvPresets, kvDistance, kvPeers, kvCells, kvDurability,
	} {
		out = append(out, rule(valid)...)
	}
	return append(out, kvChecked(results)...)
}

// validCases leaves out the cases with wrong answers: they are not compared with anything.
func validCases(results []*bench.Result) []*bench.Result {
	out := slices.Clone(results)
	for i, r := range out {
		if slices.ContainsFunc(r.Cases, func(c *bench.Case) bool { return c.Invalid() }) {
			k := *r
			k.Cases = slices.DeleteFunc(slices.Clone(r.Cases), func(c *bench.Case) bool { return c.Invalid() })
			out[i] = &k
		}
	}
	return out
}

// kvSpread states how much the rounds of one setting differ, as a measure for differences
// between settings.
func kvSpread(results []*bench.Result) []bench.Finding {
	var out []bench.Finding
	for _, r := range bench.Where(results, "scenario", "validate") {
		f := bench.Finding{ID: "kv-spread", Severity: bench.Info}
		worst := 0.0
		for _, c := range r.Cases {
			s := c.Summary["rate"]
			if s.N < 3 {
				continue
			}
			rates := c.Values(bench.MustMetric("rate"))
			low, high := slices.Min(rates), slices.Max(rates)
			spread := (high - low) / (sum(rates) / float64(len(rates)))
			worst = max(worst, spread)
			f.Evidence = append(f.Evidence, fmt.Sprintf("%s: %s to %s ops/s, %.0f %% of their average, n=%d", c.Name, bench.Count(low), bench.Count(high), 100*spread, s.N))
		}
		if len(f.Evidence) == 0 {
			continue
		}
		f.Claim = fmt.Sprintf("Rounds of one setting differ by up to %.0f %%: a smaller difference between single rounds of two settings means nothing.", 100*worst)
		out = append(out, f)
	}
	return out
}

func sum(xs []float64) float64 {
	t := 0.0
	for _, x := range xs {
		t += x
	}
	return t
}

// kvSame states how a delay of 0 differs from no delay, which are the same: a difference
// between them is due to the machine.
func kvSame(results []*bench.Result) []bench.Finding {
	var out []bench.Finding
	for _, r := range bench.Where(results, "scenario", "delay") {
		var zero, none *bench.Case
		for _, c := range r.Cases {
			switch c.Factors["delay"] {
			case "0":
				zero = c
			case r.Experiment.Adaptive:
				none = c
			}
		}
		if zero == nil || none == nil {
			continue
		}
		c, err := bench.Compare(zero, none, "rate")
		if err != nil || c.Ratio.N < 2 {
			continue
		}
		f := bench.Finding{
			ID: "kv-same", Severity: bench.Info, Evidence: []string{zero.PerSecond("ops/s"), none.PerSecond("ops/s")},
			Claim: fmt.Sprintf("A delay of 0 and none are the same, and measured %s apart: smaller differences between other delays are noise.", bench.RatioText(c.Ratio)),
		}
		if c.Verdict == bench.Better || c.Verdict == bench.Worse {
			f.Severity, f.Advice = bench.Warn, "Something other than the delay affected these rounds; do not trust small differences of this run."
		}
		out = append(out, f)
	}
	return out
}

// kneeShare is the share of the highest rate from which more pendings or sessions gain little.
const kneeShare = 0.9

// kvKnee names the fewest pendings or sessions that come close to the best rate, and what the
// best rate costs in latency.
func kvKnee(results []*bench.Result) []bench.Finding {
	var out []bench.Finding
	for _, scenario := range []string{"pendings", "threads"} {
		for _, r := range bench.Where(results, "scenario", scenario) {
			order, groups := bench.Sweeps(r)
			for _, key := range order {
				g := groups[key]
				if len(g) < 2 {
					continue
				}
				best := slices.MaxFunc(g, func(a, b bench.Level) int { return cmp.Compare(a.Rate(), b.Rate()) })
				knee := g[slices.IndexFunc(g, func(l bench.Level) bool { return l.Rate() >= kneeShare*best.Rate() })]
				last := g[len(g)-1]
				f := bench.Finding{ID: "kv-knee", Severity: bench.Info}
				f.Claim = fmt.Sprintf("The fewest that reach %.0f %% of the highest rate: %s. The highest is %s ops/s, with %s.", 100*kneeShare, knee.Name, bench.Count(best.Rate()), best.Name)
				if a, b := knee.Summary["p50"].Median, last.Summary["p50"].Median; last.Value > knee.Value && a > 0 {
					f.Claim += fmt.Sprintf(" With %s the median latency is %.3g times and the rate %.3g times as high as with that.", last.Name, b/a, last.Rate()/knee.Rate())
				}
				for _, l := range g {
					f.Evidence = append(f.Evidence, fmt.Sprintf("%s; p50 %s ms, p99 %s ms", l.PerSecond("ops/s"), bench.Figure(l.Summary["p50"].Median), bench.Figure(l.Summary["p99"].Median)))
				}
				out = append(out, f)
			}
		}
	}
	return out
}

// kvLength says whether a longer run is as fast as a short one, and how memory grows.
func kvLength(results []*bench.Result) []bench.Finding {
	var out []bench.Finding
	for _, r := range bench.Where(results, "scenario", "length") {
		if len(r.Cases) != 2 {
			continue
		}
		a, b := r.Cases[0], r.Cases[1]
		c, err := bench.Compare(a, b, "rate")
		if err != nil || c.Ratio.N == 0 {
			continue
		}
		f := bench.Finding{ID: "kv-length", Severity: bench.Info, Evidence: []string{a.PerSecond("ops/s"), b.PerSecond("ops/s")}}
		f.Claim = fmt.Sprintf("A run of %s per session has %s of the rate of one of %s.", b.Name, bench.RatioText(c.Ratio), a.Name)
		if c.Ratio.Hi < 0.95 {
			f.Severity = bench.Warn
			f.Claim += " It slows down."
		}
		if x, y := a.Summary["rss_replica"].Median, b.Summary["rss_replica"].Median; x > 0 && y > 0 {
			f.Claim += fmt.Sprintf(" The largest replica holds %s MB after it, and %s MB after the short one.", bench.Figure(y), bench.Figure(x))
		}
		out = append(out, f)
	}
	return out
}

// kvPresets names the fastest protocol on one machine, those that cannot be told from it, and
// the one with the shortest strong writes.
func kvPresets(results []*bench.Result) []bench.Finding {
	var out []bench.Finding
	for _, r := range bench.Where(results, "scenario", "presets") {
		if len(r.Cases) < 2 {
			continue
		}
		best := slices.MaxFunc(r.Cases, func(a, b *bench.Case) int { return cmp.Compare(a.Rate(), b.Rate()) })
		f := bench.Finding{ID: "kv-presets", Severity: bench.Info}
		var same []string
		for _, c := range r.Cases {
			f.Evidence = append(f.Evidence, fmt.Sprintf("%s; strong p50 %s ms, weak p50 %s ms", c.PerSecond("ops/s"), bench.Figure(c.Summary["strong_p50"].Median), bench.Figure(c.Summary["weak_p50"].Median)))
			if c.Name != best.Name && !bench.Ahead(best, c) {
				same = append(same, c.Name)
			}
		}
		f.Claim = fmt.Sprintf("On one machine %s is fastest: %s ops/s.", best.Name, bench.Count(best.Rate()))
		if len(same) > 0 {
			f.Claim = fmt.Sprintf("Cannot tell which is fastest on one machine: %s has the highest rate, %s ops/s, but cannot be told from %s.", best.Name, bench.Count(best.Rate()), strings.Join(same, ", "))
		}
		out = append(out, f)
	}
	return out
}

// kvDistance says from which round trip the fast path makes strong writes faster, and by how
// much at the largest one.
func kvDistance(results []*bench.Result) []bench.Finding {
	type pair struct {
		rtt         float64
		slow, quick bench.Summary
	}
	bySize := make(map[string][]pair)
	for _, r := range bench.Where(results, "scenario", "wan") {
		rtt, err := milliseconds(r.Experiment.Factors["rtt"])
		slow, quick := r.Find("raft"), r.Find("curp")
		if err != nil || slow == nil || quick == nil {
			continue
		}
		a, ok1 := slow.Summary["strong_write_p50"]
		b, ok2 := quick.Summary["strong_write_p50"]
		if ok1 && ok2 && a.Median > 0 {
			n := r.Experiment.Factors["replicas"]
			bySize[n] = append(bySize[n], pair{rtt, a, b})
		}
	}
	var out []bench.Finding
	for _, n := range slices.Sorted(maps.Keys(bySize)) {
		ps := bySize[n]
		slices.SortFunc(ps, func(a, b pair) int { return cmp.Compare(a.rtt, b.rtt) })
		f := bench.Finding{ID: "kv-distance", Severity: bench.Info}
		from := math.Inf(1)
		for _, p := range slices.Backward(ps) {
			if p.quick.Hi >= p.slow.Lo {
				break
			}
			from = p.rtt
		}
		for _, p := range ps {
			f.Evidence = append(f.Evidence, fmt.Sprintf("round trip %g ms: strong write p50 %s ms without the fast path, %s ms with it", p.rtt, bench.Figure(p.slow.Median), bench.Figure(p.quick.Median)))
		}
		last := ps[len(ps)-1]
		if math.IsInf(from, 1) {
			f.Claim = fmt.Sprintf("With %s replicas the fast path makes strong writes certainly faster at none of the measured distances.", n)
		} else {
			f.Claim = fmt.Sprintf("With %s replicas the fast path makes strong writes faster from a round trip of %g ms on; at %g ms they take %.0f %% of the time.", n, from, last.rtt, 100*last.quick.Median/last.slow.Median)
		}
		out = append(out, f)
	}
	return out
}

// milliseconds parses a duration.
func milliseconds(text string) (float64, error) {
	d, err := time.ParseDuration(text)
	return float64(d) / 1e6, err
}

// kvPeers compares weir with another store at each number of clients.
func kvPeers(results []*bench.Result) []bench.Finding {
	f := bench.Finding{ID: "kv-peers", Severity: bench.Info}
	var parts []string
	for _, r := range bench.Where(results, "scenario", "etcd") {
		a, b := r.Find("etcd"), r.Find("weir")
		if a == nil || b == nil {
			continue
		}
		rate, err1 := bench.Compare(a, b, "rate")
		p99, err2 := bench.Compare(a, b, "p99")
		if err1 != nil || err2 != nil || rate.Ratio.N == 0 || p99.Ratio.N == 0 {
			continue
		}
		parts = append(parts, fmt.Sprintf("%.2g times at %s", rate.Ratio.Median, r.Experiment.Factors["streams"]))
		f.Evidence = append(f.Evidence, fmt.Sprintf("%s in flight: %s ops/s against %s, %s; p99 %s ms against %s, %s", r.Experiment.Factors["streams"],
			bench.Count(b.Rate()), bench.Count(a.Rate()), bench.RatioText(rate.Ratio), bench.Figure(b.Summary["p99"].Median), bench.Figure(a.Summary["p99"].Median), bench.RatioText(p99.Ratio)))
		if rate.Ratio.Hi < 1 {
			f.Severity = bench.Warn
		}
	}
	if len(parts) == 0 {
		return nil
	}
	f.Claim = "At the same durability, weir reaches, relative to etcd's rate: " + strings.Join(parts, ", ") + " clients."
	return []bench.Finding{f}
}

// cellShare is the share of the best fixed delay's rate that self-clocked rounds must reach.
const cellShare = 0.97

// kvCells counts the cells in which no delay is as good as the best fixed one.
func kvCells(results []*bench.Result) []bench.Finding {
	var short, unsure []string
	cells := 0
	for _, r := range bench.Where(results, "scenario", "cells") {
		self := r.Find(r.Experiment.Adaptive)
		best := r.Best(func(c *bench.Case) bool { return c.Factors["delay"] != r.Experiment.Adaptive })
		if self == nil || best == nil {
			continue
		}
		c, err := bench.Compare(best, self, "rate")
		if err != nil || c.Ratio.N == 0 {
			continue
		}
		cells++
		line := fmt.Sprintf("%s: %s of %s", r.Experiment.Title, bench.RatioText(c.Ratio), best.Name)
		switch {
		case c.Ratio.Hi < cellShare:
			short = append(short, line)
		case c.Ratio.Lo < cellShare:
			unsure = append(unsure, line)
		}
	}
	if cells == 0 {
		return nil
	}
	f := bench.Finding{ID: "kv-cells", Severity: bench.Info, Evidence: append(slices.Clone(short), unsure...)}
	f.Claim = fmt.Sprintf("Without a delay, the rate certainly reaches %.0f %% of that with the best fixed one in %d of %d cells; %d fall short, %d cannot be told.", 100*cellShare, cells-len(short)-len(unsure), cells, len(short), len(unsure))
	if len(short) > 0 {
		f.Severity = bench.Warn
	}
	return []bench.Finding{f}
}

// kvDurability says what the disk costs a single client.
func kvDurability(results []*bench.Result) []bench.Finding {
	var out []bench.Finding
	for _, r := range bench.Where(results, "scenario", "single") {
		var disk, memory *bench.Case
		for _, c := range r.Cases {
			switch system := c.Factors["system"]; {
			case system != "" && system != "weir":
			case c.Factors["durability"] == "disk" && disk == nil: // the case with the usual client comes first
				disk = c
			case c.Factors["durability"] == "memory":
				memory = c
			}
		}
		if disk == nil || memory == nil || memory.Summary["p50"].Median == 0 {
			continue
		}
		a, b := disk.Summary["p50"], memory.Summary["p50"]
		f := bench.Finding{ID: "kv-durability", Severity: bench.Info}
		f.Claim = fmt.Sprintf("%s: p50 %s ms with a disk, %s ms without, so the disk is %.0f %% of it.", r.Experiment.Title, bench.Figure(a.Median), bench.Figure(b.Median), 100*(1-b.Median/a.Median))
		if a.Overlaps(b.Interval) || a.Median < b.Median {
			f.Claim = fmt.Sprintf("%s: p50 %s ms with a disk and %s ms without cannot be told apart.", r.Experiment.Title, bench.Figure(a.Median), bench.Figure(b.Median))
		}
		out = append(out, f)
	}
	return out
}

// kvChecked says how many answers were compared with what their session had written, and which
// reads found nothing.
func kvChecked(results []*bench.Result) []bench.Finding {
	var checked, wrong, missed, reads int64
	for _, r := range results {
		for _, s := range r.Rounds() {
			if k := kvs.Of(s.Parts); k != nil {
				checked, wrong, missed = checked+k.Checked, wrong+k.Wrong, missed+k.Missed
				reads += int64(kvs.Merged(k.StrongRead, k.WeakRead).Count())
			}
		}
	}
	if reads == 0 {
		return nil
	}
	f := bench.Finding{ID: "kv-checked", Severity: bench.Info}
	f.Claim = fmt.Sprintf("Each of %s answers to reads was checked to be of its key, and %s of them against the session's own earlier writes: %d were wrong.", bench.Count(float64(reads)), bench.Count(float64(checked)), wrong)
	if wrong > 0 {
		f.Severity = bench.Warn
	}
	if missed*100 > reads {
		f.Evidence = append(f.Evidence, fmt.Sprintf("%.0f %% of the reads found nothing, which costs less than finding something", 100*float64(missed)/float64(reads)))
	}
	return []bench.Finding{f}
}
