package outboxbench

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/weirdb/weir/internal/ruler/bench"
	"github.com/weirdb/weir/internal/ruler/bench/subject/messages"
)

// findings are the conclusions from the experiments on an outbox. Each rule returns nothing if
// the figures that it needs were not measured.
func findings(results []*bench.Result) []bench.Finding {
	var out []bench.Finding
	for _, rule := range []func([]*bench.Result) []bench.Finding{
		bestCombination, ownDefaults, claimRatios, peerRatios, payloadKnee, enqueueWays, mixedBound, relayCost, offeredRates, mixedGrid, outOfBandPays, partitionEffect, pagesOfClaims, pageScatter, whoSaturates,
	} {
		out = append(out, rule(results)...)
	}
	return out
}

// setting is a setting that was in effect in a case of an outbox.
func setting(c *bench.Case, name string) string {
	if len(c.Samples) == 0 || messages.Of(c.Samples[0].Parts) == nil {
		return ""
	}
	return messages.Of(c.Samples[0].Parts).Settings[name]
}

func number(c *bench.Case, name string) int {
	n, err := strconv.Atoi(setting(c, name))
	if err != nil {
		return 0 // a default whose number is unknown
	}
	return n
}

// claiming returns the cases of a claim mode, the fastest first.
func claiming(r *bench.Result, claim string) []*bench.Case {
	var out []*bench.Case
	for _, c := range r.Cases {
		if setting(c, "claim") == claim && c.Rate() > 0 && !c.Invalid() {
			out = append(out, c)
		}
	}
	slices.SortStableFunc(out, func(a, b *bench.Case) int { return cmp.Compare(b.Rate(), a.Rate()) })
	return out
}

// kneeShare is the share of the best rate from which more workers or larger batches gain
// little.
const kneeShare = 0.9

// bestCombination names the best workers x batch of the customary design, and the knee: the
// fewest workers, and the smallest batch among those, that come close.
func bestCombination(results []*bench.Result) []bench.Finding {
	var out []bench.Finding
	for _, r := range bench.Where(results, FactorPhase, "screen") {
		cases := claiming(r, "skip-locked")
		if len(cases) < 2 {
			continue
		}
		best := cases[0]
		f := bench.Finding{ID: "best-combination", Severity: bench.Info, Claim: fmt.Sprintf("Of %d combinations of workers x batch of the customary design, %s is best: %s msg/s.", len(cases), best.Name, bench.Count(best.Rate()))}
		if second := cases[1]; !bench.Ahead(best, second) {
			why := fmt.Sprintf("%s and %s cannot be told apart", best.Name, second.Name)
			if best.Summary["rate"].N < 2 {
				why = "each had one round"
			}
			f.Claim = fmt.Sprintf("Cannot tell which of %d combinations of workers x batch of the customary design is best: %s. The highest rate is that of %s: %s msg/s.", len(cases), why, best.Name, bench.Count(best.Rate()))
			f.Advice = "Measure more rounds (--rounds)."
		}
		knee := best
		for _, c := range cases {
			less := cmp.Or(cmp.Compare(number(c, "publishers"), number(knee, "publishers")), cmp.Compare(number(c, "batch"), number(knee, "batch")))
			if c.Rate() >= kneeShare*best.Rate() && less < 0 {
				knee = c
			}
		}
		if knee != best {
			f.Claim += fmt.Sprintf(" The knee is %s, which reaches %.0f %% of that with less.", knee.Name, 100*knee.Rate()/best.Rate())
		}
		if more := moreWorkers(cases, best); more != nil {
			f.Claim += fmt.Sprintf(" More workers are slower: %s reaches %.0f %%.", more.Name, 100*more.Rate()/best.Rate())
		}
		for _, c := range cases[:min(5, len(cases))] {
			f.Evidence = append(f.Evidence, c.PerSecond("msg/s"))
		}
		out = append(out, f)
	}
	return out
}

// moreWorkers returns the fastest case with more workers than the best one and the same batch,
// if it is certainly slower.
func moreWorkers(cases []*bench.Case, best *bench.Case) *bench.Case {
	for _, c := range cases {
		if number(c, "publishers") > number(best, "publishers") && number(c, "batch") == number(best, "batch") && c.Summary["rate"].Hi < best.Summary["rate"].Lo {
			return c
		}
	}
	return nil
}

// ownDefaults compares the defaults of a claim mode with the best settings that were tried.
func ownDefaults(results []*bench.Result) []bench.Finding {
	var out []bench.Finding
	for _, r := range bench.Where(results, FactorPhase, "screen") {
		for _, claim := range []string{"poll", "log"} {
			cases := claiming(r, claim)
			i := slices.IndexFunc(cases, func(c *bench.Case) bool { return setting(c, "batch") == "default" })
			if i < 0 || len(cases) < 2 {
				continue
			}
			other := cases[0]
			if i == 0 {
				other = cases[1]
			}
			f := bench.Finding{ID: "own-defaults", Severity: bench.Info, Evidence: []string{cases[i].PerSecond("msg/s"), other.PerSecond("msg/s")}}
			switch share := cases[i].Rate() / cases[0].Rate(); {
			case cases[i].Summary["rate"].N < 2:
				f.Claim = fmt.Sprintf("Cannot tell the defaults of %s from the best setting that was tried: each had one round.", claim)
			case !bench.Ahead(cases[0], cases[max(i, 1)]):
				f.Claim = fmt.Sprintf("The defaults of %s cannot be told from the best other setting that was tried, %s.", claim, other.Name)
			case i == 0:
				f.Claim = fmt.Sprintf("The defaults of %s are the best of %d settings that were tried: %s msg/s.", claim, len(cases), bench.Count(cases[0].Rate()))
			default:
				f.Claim = fmt.Sprintf("The defaults of %s reach %.0f %% of the best setting that was tried, %s.", claim, 100*share, cases[0].Name)
			}
			out = append(out, f)
		}
	}
	return out
}

// compared describes the comparison of a case with the baseline in one metric; "" if there is
// none.
func compared(r *bench.Result, name, metric string) (text string, c bench.Comparison) {
	for _, c := range r.Comparisons {
		if c.B == name && c.Metric == metric {
			text = bench.RatioText(c.Ratio)
			if !strings.HasSuffix(text, "cannot tell)") {
				text = fmt.Sprintf("%s (%s)", text, c.Verdict)
			}
			return text, c
		}
	}
	return "", bench.Comparison{}
}

// claimRatios compares weir's claim modes with the customary design at its best.
func claimRatios(results []*bench.Result) []bench.Finding {
	return ratiosOf(bench.Where(results, FactorPhase, "focus"), "claim-ratio", func(c *bench.Case) bool {
		return setting(c, "claim") == "poll" || setting(c, "claim") == "log"
	})
}

// ratiosOf states the rate relative to the baseline, for the cases that want accepts.
func ratiosOf(results []*bench.Result, id string, want func(*bench.Case) bool) []bench.Finding {
	var out []bench.Finding
	for _, r := range results {
		for _, c := range r.Cases {
			text, _ := compared(r, c.Name, "rate")
			if text == "" || !want(c) || c.Invalid() {
				continue
			}
			f := bench.Finding{ID: id, Severity: bench.Info, Evidence: []string{c.PerSecond("msg/s")}}
			f.Claim = fmt.Sprintf("%s delivers a backlog at %s of the rate of %s.", c.Name, text, r.Experiment.Baseline)
			if base := r.Find(r.Experiment.Baseline); base != nil {
				f.Evidence = append(f.Evidence, base.PerSecond("msg/s"))
			}
			if acked, _ := compared(r, c.Name, "acked_rate"); acked != "" {
				f.Evidence = append(f.Evidence, "until everything is acknowledged: "+acked)
			}
			out = append(out, f)
		}
	}
	return out
}

// peerRatios compares weir's fastest claim mode with each other outbox.
func peerRatios(results []*bench.Result) []bench.Finding {
	var out []bench.Finding
	for _, r := range bench.Where(results, FactorPhase, "peers") {
		own := r.Best(func(c *bench.Case) bool {
			return setting(c, "outbox") == "weir" && setting(c, "claim") != "skip-locked" && !c.Invalid()
		})
		for _, c := range r.Cases {
			if own == nil || setting(c, "outbox") == "weir" || c.Invalid() {
				continue
			}
			k, err := bench.Compare(c, own, "rate")
			if err != nil || k.Ratio.N == 0 {
				continue
			}
			f := bench.Finding{
				ID: "peer", Severity: bench.Info, Evidence: []string{own.PerSecond("msg/s"), c.PerSecond("msg/s")},
				Claim: fmt.Sprintf("%s: weir (%s) reaches %s of the rate of %s (%s).", r.Experiment.Title, own.Name, bench.RatioText(k.Ratio), c.Name, k.Verdict),
			}
			if a, b := own.Summary["deliver_p95"], c.Summary["deliver_p95"]; a.N > 0 && b.N > 0 {
				f.Evidence = append(f.Evidence, fmt.Sprintf("commit to delivery p95: %s ms against %s ms", bench.Figure(a.Median), bench.Figure(b.Median)))
			}
			out = append(out, f)
		}
	}
	return out
}

// payloadKnee finds, for each relay, the payload size from which bytes limit it instead of
// messages: the first size from which the rate of messages is at most half of that of the
// smallest, and certainly lower than at the size before. It treats backlogs of different length
// separately.
func payloadKnee(results []*bench.Result) []bench.Finding {
	relays := make(map[string][]payloadPoint)
	for _, r := range bench.Where(results, FactorPhase, "payload") {
		size, err := strconv.ParseFloat(r.Experiment.Factors["payload"], 64)
		if err != nil {
			continue
		}
		for _, c := range r.Cases {
			if c.Rate() > 0 {
				key := fmt.Sprintf("%s, %s rows", c.Name, r.Experiment.Factors["records"])
				relays[key] = append(relays[key], payloadPoint{size, c.Rate(), c.Summary["rate"].Interval})
			}
		}
	}
	var out []bench.Finding
	for _, name := range slices.Sorted(maps.Keys(relays)) {
		pts := relays[name]
		slices.SortFunc(pts, func(a, b payloadPoint) int { return cmp.Compare(a.size, b.size) })
		i := len(pts)
		for i > 1 && pts[i-1].rate <= pts[0].rate/2 {
			i--
		}
		if i < len(pts) && pts[i].all.N >= 2 && pts[i-1].all.N >= 2 && pts[i].all.Hi < pts[i-1].all.Lo {
			out = append(out, kneeAt(name, pts, i))
		}
	}
	return out
}

// payloadPoint is a rate of messages at a payload size in bytes.
type payloadPoint struct {
	size, rate float64
	all        bench.Interval // of the rate
}

func kneeAt(name string, pts []payloadPoint, i int) bench.Finding {
	bytes := pts[i].rate * pts[i].size / (pts[i-1].rate * pts[i-1].size)
	f := bench.Finding{
		ID: "payload-knee", Severity: bench.Info,
		Claim: fmt.Sprintf("%s: from %g to %g bytes of payload the rate of messages falls to %.0f %%, that of bytes changes %.2g-fold.", name, pts[i-1].size, pts[i].size, 100*pts[i].rate/pts[i-1].rate, bytes),
	}
	if pts[i].all.Hi*pts[i].size < pts[i-1].all.Lo*pts[i-1].size {
		f.Severity, f.Claim = bench.Warn, f.Claim+" Larger payloads cost more than in proportion to their size."
		f.Advice = "Keep payloads small, or store them elsewhere and send a reference."
	} else if bytes >= 1 {
		f.Claim += " From there on the bytes are the main cost."
	}
	for _, p := range pts {
		f.Evidence = append(f.Evidence, fmt.Sprintf("%g B: %s msg/s, %s MB/s", p.size, bench.Count(p.rate), bench.Figure(p.rate*p.size/1e6)))
	}
	return f
}

// enqueueWays compares ways of enqueuing at the largest number of producers.
func enqueueWays(results []*bench.Result) []bench.Finding {
	all := bench.Where(results, FactorPhase, "enqueue")
	if len(all) == 0 {
		return nil
	}
	r := slices.MaxFunc(all, func(a, b *bench.Result) int { return cmp.Compare(producersOf(a), producersOf(b)) })
	var parts, evidence []string
	for _, c := range r.Cases {
		line := c.PerSecond("msg/s")
		if s, ok := c.Summary["fsyncs"]; ok {
			line += fmt.Sprintf(", %s flushes for 1000 messages", bench.Figure(s.Median))
		}
		evidence = append(evidence, line)
		if text, _ := compared(r, c.Name, "rate"); text != "" {
			parts = append(parts, fmt.Sprintf("%s %s", c.Name, text))
		}
	}
	if len(parts) == 0 {
		return nil
	}
	return []bench.Finding{{
		ID: "enqueue", Severity: bench.Info, Evidence: evidence,
		Claim: fmt.Sprintf("With %d producers, against a transaction for each message: %s.", producersOf(r), strings.Join(parts, ", ")),
	}}
}

func producersOf(r *bench.Result) int {
	n, err := strconv.Atoi(r.Experiment.Factors["producers"])
	if err != nil {
		return 0
	}
	return n
}

// partitionEffect states the effect of a window and of partitions, by the rounds in which they
// took turns.
func partitionEffect(results []*bench.Result) []bench.Finding {
	var out []bench.Finding
	for _, r := range bench.Where(results, FactorPhase, "partition") {
		flat, flatWindow := r.Find("flat, no window"), r.Find("flat, window")
		parts, partsWindow := r.Find("partitioned, no window"), r.Find("partitioned, window")
		four := []*bench.Case{flat, flatWindow, parts, partsWindow}
		if slices.ContainsFunc(four, func(c *bench.Case) bool { return c == nil || c.Rate() == 0 || c.Invalid() }) {
			continue
		}
		f := bench.Finding{ID: "partition-effect", Severity: bench.Info}
		for _, c := range r.Cases {
			f.Evidence = append(f.Evidence, c.PerSecond("msg/s"))
		}
		if slices.ContainsFunc(four, func(c *bench.Case) bool { return c.Summary["rate"].N < 2 }) {
			f.Claim = "Cannot tell the effect of a window and partitions on each other: a case had one round."
			out = append(out, f)
			continue
		}
		ratio := func(base, c *bench.Case) string {
			k, err := bench.Compare(base, c, "rate")
			if err != nil {
				return "not known"
			}
			return bench.RatioText(k.Ratio)
		}
		f.Claim = fmt.Sprintf("With a window, partitions change the customary design's rate to %s; without one, to %s.", ratio(flatWindow, partsWindow), ratio(flat, parts))
		if bench.Ahead(flat, flatWindow) {
			f.Claim += fmt.Sprintf(" On the flat table the window leaves %s of the rate: rows are read in the order of their numbers, so every read scans the whole history up to the first row inside.", ratio(flat, flatWindow))
		}
		if bench.Ahead(flat, parts) {
			f.Claim += " Without a window every read and every acknowledgement by number has to search each partition."
		}
		f.Advice = "Use a window and partitions together. A relay that remembers its position, or a table with only pending rows, needs neither."
		out = append(out, f)
	}
	return out
}

// whoSaturates names the largest use of processors by server and client, and whether they are
// saturated.
func whoSaturates(results []*bench.Result) []bench.Finding {
	type peak struct {
		share float64
		where string
	}
	peaks := make(map[string]peak)
	cores, used := 0, 0.0 // the largest use by all processes together
	hurt, rounds := 0, 0
	for _, r := range results {
		cores = r.Env.Cores
		for c, s := range r.Rounds() {
			if rounds++; len(s.Disturbed) > 0 {
				hurt++
			}
			if s.Seconds < 0.5 || cores == 0 { // the kernel counts in ticks of 10 ms
				continue
			}
			all := 0.0
			for role, u := range s.Processes {
				all += u.CPUSeconds() / s.Seconds / float64(cores)
				if share := u.CPUSeconds() / s.Seconds / float64(cores); share > peaks[role].share {
					peaks[role] = peak{share, r.Experiment.Name + ", " + c.Name}
				}
			}
			used = max(used, all)
		}
	}
	client, server := peaks[bench.RoleClient], peaks[bench.RoleServer]
	if client.share == 0 || server.share == 0 {
		return nil
	}
	f := bench.Finding{
		ID: "peak-cpu", Severity: bench.Info,
		Evidence: []string{fmt.Sprintf("server: %s", server.where), fmt.Sprintf("producers, relay and ledger: %s", client.where)},
		Claim:    fmt.Sprintf("At most, the server used %.0f %% of %d cores, and producers and relay together %.0f %%.", 100*server.share, cores, 100*client.share),
	}
	switch {
	case used < bench.SaturatedShare && hurt > 0:
		f.Claim += fmt.Sprintf(" This run's processes together never used more than %.0f %%. That does not include what other processes used in %d of %d rounds, which were disturbed: what would saturate without them is unknown.", 100*used, hurt, rounds)
	case used < bench.SaturatedShare:
		f.Claim += fmt.Sprintf(" Nothing saturates: all processes together never used more than %.0f %%.", 100*used)
	case server.share > client.share:
		f.Claim += fmt.Sprintf(" Together they saturate the machine (%.0f %%), and the server uses the larger part.", 100*used)
	default:
		f.Claim += fmt.Sprintf(" Together they saturate the machine (%.0f %%), and producers and relay use the larger part.", 100*used)
	}
	return []bench.Finding{f}
}
