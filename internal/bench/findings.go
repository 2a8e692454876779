package bench

import (
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
)

// Severity is how much a finding matters to whoever reads the report.
type Severity string

// Info states a result; Warn says that a figure must not be taken at face value
// or that something went wrong.
const (
	Info Severity = "info"
	Warn Severity = "warn"
)

// Finding is a statement that a rule computed from the numbers.
type Finding struct {
	ID       string   `json:"id"`
	Severity Severity `json:"severity"`
	Claim    string   `json:"claim"`
	Evidence []string `json:"evidence,omitempty"`
	Advice   string   `json:"advice,omitempty"`
}

// Findings applies all rules to an evaluated result. Each rule is a pure
// function that says nothing when the numbers do not support its claim.
func Findings(r *Result) []Finding {
	var out []Finding
	for _, rule := range []func(*Result) []Finding{
		sweetSpot, adaptive, baselineRatio, saturation, grouping, windowCap, littlesLaw, confounded, failures, noise,
	} {
		out = append(out, rule(r)...)
	}
	return out
}

// level is a case at one value of the swept factor.
type level struct {
	*Case
	value float64
	rate  Interval
}

// sweeps groups the cases with a numeric level by their other factors, each
// group in ascending order of level. The first return value orders the groups.
func sweeps(r *Result) (order []string, groups map[string][]level) {
	groups = make(map[string][]level)
	for i := range r.Cases {
		c := &r.Cases[i]
		v, err := strconv.ParseFloat(c.Factors[r.Experiment.Sweep], 64)
		rate, ok := c.Summary["rate"]
		if r.Experiment.Sweep == "" || err != nil || !ok {
			continue
		}
		key := otherFactors(c, r.Experiment.Sweep)
		if groups[key] == nil {
			order = append(order, key)
		}
		groups[key] = append(groups[key], level{c, v, rate.Interval})
	}
	for _, g := range groups {
		slices.SortFunc(g, func(a, b level) int { return compareFloat(a.value, b.value) })
	}
	return order, groups
}

// otherFactors names the factors of a case other than one, sorted.
func otherFactors(c *Case, except string) string {
	var parts []string
	for k, v := range c.Factors {
		if k != except {
			parts = append(parts, k+"="+v)
		}
	}
	slices.Sort(parts)
	return strings.Join(parts, ", ")
}

// sweetSpot names the best level of the sweep, the plateau around it, and what
// is lost past it. A plateau is recommended by its smallest level, since a
// longer wait must earn its latency.
func sweetSpot(r *Result) []Finding {
	var out []Finding
	order, groups := sweeps(r)
	for _, key := range order {
		g := groups[key]
		if len(g) < 2 {
			continue
		}
		best := slices.MaxFunc(g, func(a, b level) int { return compareFloat(a.rate.Median, b.rate.Median) })
		var plateau []level
		for _, l := range g {
			if l.rate.Overlaps(best.rate) {
				plateau = append(plateau, l)
			}
		}
		where := ""
		if len(order) > 1 {
			where = " with " + key
		}
		name := func(l level) string { return formatLevel(l.value, r.Experiment.SweepUnit) }
		evidence := make([]string, 0, len(g))
		for _, l := range g {
			evidence = append(evidence, fmt.Sprintf("%s: %s ops/s [%s, %s], n=%d", name(l), count(l.rate.Median), count(l.rate.Lo), count(l.rate.Hi), l.rate.N))
		}
		switch {
		case len(plateau) == len(g):
			out = append(out, Finding{
				ID: "plateau", Severity: Info, Evidence: evidence,
				Claim:  fmt.Sprintf("The levels of %s cannot be told apart%s: all intervals overlap the best one's.", r.Experiment.Sweep, where),
				Advice: "Use the smallest, " + name(g[0]) + ", or measure more rounds.",
			})
		case len(plateau) > 1:
			out = append(out, Finding{
				ID: "sweet-spot", Severity: Info, Evidence: evidence,
				Claim: fmt.Sprintf("%s of %s is best%s, but %d levels are inside its interval; the smallest of them is %s.",
					name(best), r.Experiment.Sweep, where, len(plateau), name(plateau[0])),
			})
		default:
			out = append(out, Finding{
				ID: "sweet-spot", Severity: Info, Evidence: evidence,
				Claim: fmt.Sprintf("%s of %s is best%s: %s ops/s.", name(best), r.Experiment.Sweep, where, count(best.rate.Median)),
			})
		}
		for _, l := range g {
			if l.value > best.value && l.rate.Hi < best.rate.Lo {
				out = append(out, Finding{
					ID: "degradation", Severity: Warn, Evidence: evidence,
					Claim: fmt.Sprintf("%s of %s is past the best%s: %.0f %% less throughput than %s.",
						name(l), r.Experiment.Sweep, where, 100*(1-l.rate.Median/best.rate.Median), name(best)),
				})
			}
		}
	}
	return out
}

// adaptive sets the case that tunes itself against the best fixed level.
func adaptive(r *Result) []Finding {
	var out []Finding
	order, groups := sweeps(r)
	for i := range r.Cases {
		c := &r.Cases[i]
		if r.Experiment.Adaptive == "" || c.Factors[r.Experiment.Sweep] != r.Experiment.Adaptive {
			continue
		}
		key := otherFactors(c, r.Experiment.Sweep)
		if !slices.Contains(order, key) {
			continue
		}
		best := slices.MaxFunc(groups[key], func(a, b level) int { return compareFloat(a.rate.Median, b.rate.Median) })
		rate, errRate := Compare(best.Case, c, "rate")
		p50, errP50 := Compare(best.Case, c, "p50")
		if errRate != nil || errP50 != nil || rate.Ratio.N < 2 {
			continue
		}
		severity := Info
		if rate.Verdict == Worse {
			severity = Warn
		}
		out = append(out, Finding{
			ID: "adaptive", Severity: severity,
			Claim: fmt.Sprintf("%s reaches %s of the throughput of the best fixed level, %s, at %s of its p50.",
				c.Name, ratio(rate.Ratio), best.Name, ratio(p50.Ratio)),
			Evidence: []string{"throughput: " + string(rate.Verdict), "p50: " + string(p50.Verdict)},
		})
	}
	return out
}

// baselineRatio states the throughput of each case against the baseline.
func baselineRatio(r *Result) []Finding {
	var out []Finding
	for _, c := range r.Comparisons {
		if c.Metric != "rate" {
			continue
		}
		f := Finding{ID: "ratio", Severity: Info, Evidence: []string{
			fmt.Sprintf("%d pairs of rounds, %s, %.0f %% confidence", c.Ratio.N, c.Ratio.Method, 100*c.Ratio.Confidence),
		}}
		switch c.Verdict {
		case CannotTell:
			f.Claim = fmt.Sprintf("%s against %s: cannot tell, %s of the throughput.", c.B, c.A, ratio(c.Ratio))
			if c.Needed > 0 {
				f.Advice = fmt.Sprintf("About %d rounds would decide.", c.Needed)
			}
		case NoDifference:
			f.Claim = fmt.Sprintf("%s against %s: no difference, %s of the throughput.", c.B, c.A, ratio(c.Ratio))
		default:
			f.Claim = fmt.Sprintf("%s is %s than %s: %s of the throughput.", c.B, c.Verdict, c.A, ratio(c.Ratio))
		}
		out = append(out, f)
	}
	return out
}

const (
	saturatedShare = 0.90 // of all cores: nothing is left
	clientShare    = 0.50 // of the time used: the generator is then the largest consumer
)

// saturation names the processes that fill the machine.
func saturation(r *Result) []Finding {
	var full, client []string
	for i := range r.Cases {
		c := &r.Cases[i]
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
		if share >= saturatedShare {
			full = append(full, line)
		}
		if used[RoleClient]/total > clientShare {
			client = append(client, line)
		}
	}
	var out []Finding
	if len(full) > 0 {
		out = append(out, Finding{
			ID: "saturated", Severity: Info, Evidence: full,
			Claim:  "The processors are full: client, proxy and server compete, so throughput is the inverse of their CPU time per operation.",
			Advice: "Compare CPU per operation, which foreign load moves less.",
		})
	}
	if len(client) > 0 {
		out = append(out, Finding{
			ID: "client-bound", Severity: Warn, Evidence: client,
			Claim: "The load generator uses more than half of the CPU time spent: these rates are partly its own limit.",
		})
	}
	return out
}

// grouping states how large groups got and what they cost in flushes.
func grouping(r *Result) []Finding {
	var evidence []string
	for i := range r.Cases {
		c := &r.Cases[i]
		f, flushed := c.Summary["fsyncs"]
		g, grouped := c.Summary["group"]
		switch {
		case flushed && grouped:
			evidence = append(evidence, fmt.Sprintf("%s: %.3g fsyncs per 1000 operations, %.3g operations a group", c.Name, f.Median, g.Median))
		case flushed:
			evidence = append(evidence, fmt.Sprintf("%s: %.3g fsyncs per 1000 operations", c.Name, f.Median))
		case grouped:
			evidence = append(evidence, fmt.Sprintf("%s: %.3g operations a group", c.Name, g.Median))
		}
	}
	if len(evidence) == 0 {
		return nil
	}
	return []Finding{{ID: "grouping", Severity: Info, Evidence: evidence, Claim: "What the disk was asked to flush, and how large groups were."}}
}

// windowCap finds cases that their own window limits: c closed-loop clients that
// each wait w cannot exceed c/w, however fast everything else is.
func windowCap(r *Result) []Finding {
	unit := map[string]float64{"ms": 1e-3, "us": 1e-6}[r.Experiment.SweepUnit]
	if unit == 0 || r.Experiment.Loop != "closed" {
		return nil
	}
	var out []Finding
	_, groups := sweeps(r)
	for i := range r.Cases {
		for _, g := range groups {
			for _, l := range g {
				if l.Case != &r.Cases[i] || l.value <= 0 || l.Samples[0].InFlight == 0 {
					continue
				}
				limit := float64(l.Samples[0].InFlight) / (l.value * unit)
				if share := l.rate.Median / limit; share > 0.85 && share < 1.05 {
					out = append(out, Finding{
						ID: "window-cap", Severity: Warn,
						Claim: fmt.Sprintf("%s is limited by its own window: %d clients that wait %s cannot exceed %s ops/s, and it reaches %.0f %% of that.",
							l.Name, l.Samples[0].InFlight, formatLevel(l.value, r.Experiment.SweepUnit), count(limit), 100*share),
						Advice: "A window earns its wait only while more clients are waiting than it can drain; let the group size follow the load.",
					})
				}
			}
		}
	}
	return out
}

// littleTolerance is how far throughput times mean latency may be from the
// number in flight before the harness itself is suspect.
const littleTolerance = 0.05

// littlesLaw checks each closed-loop case: in flight = rate x mean latency (J.
// Little, Operations Research 9(3), 1961). Operations that fail take time, too,
// so a case with more than 1 % of errors is passed over.
func littlesLaw(r *Result) []Finding {
	if r.Experiment.Loop != "closed" {
		return nil
	}
	var off []string
	for i := range r.Cases {
		c := &r.Cases[i]
		for j := range c.Samples {
			s := &c.Samples[j]
			if s.InFlight == 0 || s.Latency == nil || s.Ops == 0 || s.Seconds == 0 || s.Failed()*100 > s.Ops {
				continue
			}
			found := float64(s.Ops) / s.Seconds * s.Latency.Mean() / 1e9
			if math.Abs(found/float64(s.InFlight)-1) > littleTolerance {
				off = append(off, fmt.Sprintf("%s, round %d: %.1f in flight by rate and latency, %d clients", c.Name, s.Round, found, s.InFlight))
			}
		}
	}
	if len(off) == 0 {
		return nil
	}
	return []Finding{{
		ID: "littles-law", Severity: Warn, Evidence: off,
		Claim:  "Throughput times mean latency is not the number of clients: part of the time is not measured, or clients were idle.",
		Advice: "Do not compare latencies of these cases.",
	}}
}

// confounded finds comparisons of apples with oranges: two factors changed at
// once, so the difference has no single cause.
func confounded(r *Result) []Finding {
	var evidence []string
	for _, c := range r.Comparisons {
		if c.Metric == "rate" && len(c.Differs) > 1 {
			evidence = append(evidence, fmt.Sprintf("%s against %s: %s", c.B, c.A, strings.Join(c.Differs, ", ")))
		}
	}
	// Within a sweep the number of clients is not always a factor of the case.
	_, groups := sweeps(r)
	for i := range r.Cases {
		for _, g := range groups {
			if g[0].Case != &r.Cases[i] {
				continue
			}
			for _, l := range g[1:] {
				if a, b := g[0].Samples[0].InFlight, l.Samples[0].InFlight; a != b {
					evidence = append(evidence, fmt.Sprintf("%s against %s: %s, and %d instead of %d in flight", l.Name, g[0].Name, r.Experiment.Sweep, b, a))
				}
			}
		}
	}
	if len(evidence) == 0 {
		return nil
	}
	return []Finding{{
		ID: "confounded", Severity: Warn, Evidence: evidence,
		Claim:  "Some cases differ in more than one factor; their difference has no single cause.",
		Advice: "Change one factor at a time.",
	}}
}

// failures reports operations that did not end as expected.
func failures(r *Result) []Finding {
	var evidence []string
	for i := range r.Cases {
		c := &r.Cases[i]
		by := make(map[string]int64)
		for j := range c.Samples {
			for class, n := range c.Samples[j].Errors {
				by[class] += n
			}
		}
		for _, class := range sortedKeys(by) {
			if by[class] > 0 {
				evidence = append(evidence, fmt.Sprintf("%s: %d x %s", c.Name, by[class], class))
			}
		}
	}
	if len(evidence) == 0 {
		return nil
	}
	return []Finding{{ID: "errors", Severity: Warn, Evidence: evidence, Claim: "Operations ended otherwise than expected."}}
}

// noiseLimit is the relative width of a throughput interval above which rounds
// differ too much to quote the figure without its range.
const noiseLimit = 0.25

func noise(r *Result) []Finding {
	var evidence []string
	for i := range r.Cases {
		c := &r.Cases[i]
		s, ok := c.Summary["rate"]
		if ok && s.N > 1 && (s.Hi-s.Lo)/s.Median > noiseLimit {
			evidence = append(evidence, fmt.Sprintf("%s: %s [%s, %s] ops/s over %d rounds", c.Name, count(s.Median), count(s.Lo), count(s.Hi), s.N))
		}
	}
	if len(evidence) == 0 {
		return nil
	}
	return []Finding{{
		ID: "noise", Severity: Warn, Evidence: evidence,
		Claim: fmt.Sprintf("Throughput moved by more than %.0f %% between rounds; trust the paired ratios, not the absolute figures.", 100*noiseLimit),
	}}
}

func sortedKeys(m map[string]int64) []string {
	keys := make([]string, 0, len(m))
	for k := range m {
		keys = append(keys, k)
	}
	slices.Sort(keys)
	return keys
}

func compareFloat(a, b float64) int {
	switch {
	case a < b:
		return -1
	case a > b:
		return 1
	default:
		return 0
	}
}

func formatLevel(v float64, unit string) string {
	return strings.TrimSpace(strconv.FormatFloat(v, 'g', -1, 64) + " " + unit)
}

// ratio writes a ratio with its interval: "1.52x [1.48, 1.57]".
func ratio(i Interval) string {
	if i.N < 2 || math.IsInf(i.Hi, 1) {
		return fmt.Sprintf("%.2fx (one pair)", i.Median)
	}
	return fmt.Sprintf("%.2fx [%.2f, %.2f]", i.Median, i.Lo, i.Hi)
}

// count writes a rate with its thousands set apart.
func count(v float64) string {
	s := strconv.FormatFloat(math.Round(v), 'f', 0, 64)
	for i := len(s) - 3; i > 0; i -= 3 {
		s = s[:i] + "," + s[i:]
	}
	return s
}
