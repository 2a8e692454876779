package bench

import (
	"cmp"
	"fmt"
	"maps"
	"math"
	"slices"
	"strconv"
	"strings"
)

// Level is a case at one value of the swept factor.
type Level struct {
	*Case
	Value float64
	rate  Interval
}

// Sweeps groups the cases with a numeric level by their other factors, each group sorted by
// level. order is the order of the groups.
func Sweeps(r *Result) (order []string, groups map[string][]Level) {
	groups = make(map[string][]Level)
	for _, c := range r.Cases {
		v, err := strconv.ParseFloat(c.Factors[r.Experiment.Sweep], 64)
		rate, ok := c.Summary["rate"]
		if r.Experiment.Sweep == "" || err != nil || !ok {
			continue
		}
		key := otherFactors(c, r.Experiment.Sweep)
		if groups[key] == nil {
			order = append(order, key)
		}
		groups[key] = append(groups[key], Level{c, v, rate.Interval})
	}
	for _, g := range groups {
		slices.SortFunc(g, func(a, b Level) int { return cmp.Compare(a.Value, b.Value) })
	}
	return order, groups
}

// otherFactors names the factors of a case except one, sorted.
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

// sweetSpot names the best level of the sweep, the plateau around it, and what is lost beyond
// it. It recommends the smallest level of a plateau, since a longer wait must be worth its
// latency. Levels that break a constraint do not compete.
func sweetSpot(r *Result) []Finding {
	var out []Finding
	order, groups := Sweeps(r)
	for _, key := range order {
		g := groups[key]
		if len(g) < 2 {
			continue
		}
		barred := 0
		g = slices.DeleteFunc(slices.Clone(g), func(l Level) bool {
			bad := len(broken(r, l.Case)) > 0 || l.Invalid()
			barred += map[bool]int{true: 1}[bad]
			return bad
		})
		if len(g) < 2 {
			if barred > 0 {
				out = append(out, Finding{
					ID: "no-best", Severity: Warn,
					Claim: fmt.Sprintf("No level of %s is best: %d of %d break a constraint or a promise.", r.Experiment.Sweep, barred, barred+len(g)),
				})
			}
			continue
		}
		if raised := inFlightVaries(r, g); raised != "" {
			out = append(out, Finding{
				ID: "no-best", Severity: Warn, Evidence: []string{raised},
				Claim:  fmt.Sprintf("No level of %s is best: the number of operations in flight changed with it.", r.Experiment.Sweep),
				Advice: "Measure all levels with the same number of clients.",
			})
			continue
		}
		best := slices.MaxFunc(g, func(a, b Level) int { return cmp.Compare(a.rate.Median, b.rate.Median) })
		var plateau []Level
		for _, l := range g {
			if l.rate.Overlaps(best.rate) {
				plateau = append(plateau, l)
			}
		}
		where := ""
		if len(order) > 1 {
			where = " with " + key
		}
		name := func(l Level) string { return formatLevel(l.Value, r.Experiment.SweepUnit) }
		evidence := make([]string, 0, len(g))
		for _, l := range g {
			evidence = append(evidence, fmt.Sprintf("%s: %s ops/s %s", name(l), Count(l.rate.Median), l.rate.rounds(Count)))
		}
		switch {
		case best.rate.N < 2:
			out = append(out, Finding{
				ID: "no-best", Severity: Warn, Evidence: evidence,
				Claim: fmt.Sprintf("Cannot tell which level of %s is best%s: there is one figure per level. The highest is that of %s.", r.Experiment.Sweep, where, name(best)),
			})
			continue
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
				Claim: fmt.Sprintf("%s of %s is best%s: %s ops/s.", name(best), r.Experiment.Sweep, where, Count(best.rate.Median)),
			})
		}
		for _, l := range g {
			k, err := Compare(best.Case, l.Case, "rate")
			if err == nil && l.Value > best.Value && l.rate.Hi < best.rate.Lo && k.Ratio.Hi < 1 {
				out = append(out, Finding{
					ID: "degradation", Severity: Warn, Evidence: evidence,
					Claim: fmt.Sprintf("%s of %s is beyond the best%s: %s of the throughput of %s.",
						name(l), r.Experiment.Sweep, where, RatioText(k.Ratio), name(best)),
				})
			}
		}
	}
	return out
}

// adaptive compares the case that tunes itself with the best fixed level.
func adaptive(r *Result) []Finding {
	var out []Finding
	order, groups := Sweeps(r)
	for _, c := range r.Cases {
		if r.Experiment.Adaptive == "" || c.Factors[r.Experiment.Sweep] != r.Experiment.Adaptive || c.Invalid() {
			continue
		}
		key := otherFactors(c, r.Experiment.Sweep)
		if !slices.Contains(order, key) {
			continue
		}
		fixed := slices.DeleteFunc(slices.Clone(groups[key]), func(l Level) bool { return l.Invalid() })
		if len(fixed) == 0 {
			continue
		}
		best := slices.MaxFunc(fixed, func(a, b Level) int { return cmp.Compare(a.rate.Median, b.rate.Median) })
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
				c.Name, RatioText(rate.Ratio), best.Name, RatioText(p50.Ratio)),
			Evidence: []string{"throughput: " + string(rate.Verdict), "p50: " + string(p50.Verdict)},
		})
	}
	return out
}

// windowCap finds cases that are limited by their own window: c closed-loop clients that each
// wait w cannot exceed c/w, however fast everything else is.
func windowCap(r *Result) []Finding {
	unit := windowUnit(r)
	if unit == 0 || r.Experiment.Loop != "closed" {
		return nil
	}
	var out []Finding
	_, groups := Sweeps(r)
	for _, c := range r.Cases {
		for _, g := range groups {
			for _, l := range g {
				if l.Case != c || l.Value <= 0 || l.Samples[0].InFlight == 0 {
					continue
				}
				limit := float64(l.Samples[0].InFlight) / (l.Value * unit)
				if share := l.rate.Median / limit; share > 0.85 && share < 1.05 {
					out = append(out, Finding{
						ID: "window-cap", Severity: Warn,
						Claim: fmt.Sprintf("%s is limited by its own window: %d clients that wait %s cannot exceed %s ops/s, and it reaches %.0f %% of that.",
							l.Name, l.Samples[0].InFlight, formatLevel(l.Value, r.Experiment.SweepUnit), Count(limit), 100*share),
						Advice: "A window pays off only if more clients wait than it can drain; let the group size follow the load.",
					})
				}
			}
		}
	}
	return out
}

// broken describes the constraints that a case certainly breaks. Within its interval it gets
// the benefit of the doubt.
func broken(r *Result, c *Case) []string {
	var out []string
	for _, k := range r.Experiment.Constraints {
		m, known := MetricByKey(k.Metric, r.Subjects()...)
		s, has := c.Summary[k.Metric]
		if !known || !has {
			continue
		}
		if k.Max != nil && s.Lo > *k.Max {
			out = append(out, fmt.Sprintf("%s: %s %s %s %s, at most %s allowed", c.Name, m.Name, Figure(s.Median), m.Unit, s.Range(Figure), Figure(*k.Max)))
		}
		if k.Min != nil && s.Hi < *k.Min {
			out = append(out, fmt.Sprintf("%s: %s %s %s %s, at least %s wanted", c.Name, m.Name, Figure(s.Median), m.Unit, s.Range(Figure), Figure(*k.Min)))
		}
	}
	return out
}

// constraints names the cases that break a constraint.
func constraints(r *Result) []Finding {
	var evidence []string
	cases := 0
	for _, c := range r.Cases {
		b := broken(r, c)
		evidence = append(evidence, b...)
		cases += min(len(b), 1)
	}
	return Found(evidence, Finding{
		ID: "constraint", Severity: Warn,
		Claim: fmt.Sprintf("%d of %d cases break a constraint; they are not recommended, however fast they are.", cases, len(r.Cases)),
	})
}

const (
	// cliffFall is the smallest fall between two neighbouring levels that is a cliff.
	// cliffExcess is how much steeper than the step between the levels it must be: twice the
	// payload may well halve the rate.
	cliffFall   = 2.0
	cliffExcess = 1.5
)

// cliff finds neighbouring levels between which throughput falls much more than the step from
// one to the other explains.
func cliff(r *Result) []Finding {
	var out []Finding
	order, groups := Sweeps(r)
	for _, key := range order {
		g := groups[key]
		for i := 1; i < len(g); i++ {
			a, b := g[i-1], g[i]
			if a.rate.N < 2 || b.rate.N < 2 { // one round has no interval
				continue
			}
			if a.rate.Overlaps(b.rate) || a.rate.Median <= 0 || b.rate.Median <= 0 {
				continue
			}
			fall := a.rate.Median / b.rate.Median
			step := 1.0
			if a.Value > 0 {
				step = b.Value / a.Value
			}
			if fall < cliffFall || fall < cliffExcess*step {
				continue
			}
			unit := r.Experiment.SweepUnit
			out = append(out, Finding{
				ID: "cliff", Severity: Warn,
				Claim: fmt.Sprintf("Between %s and %s of %s throughput falls to %.2g %%: a cliff, not a slope.",
					formatLevel(a.Value, unit), formatLevel(b.Value, unit), r.Experiment.Sweep, 100/fall),
				Evidence: []string{
					fmt.Sprintf("%s: %s ops/s [%s, %s]", a.Name, Count(a.rate.Median), Count(a.rate.Lo), Count(a.rate.Hi)),
					fmt.Sprintf("%s: %s ops/s [%s, %s]", b.Name, Count(b.rate.Median), Count(b.rate.Lo), Count(b.rate.Hi)),
				},
				Advice: "Measure levels in between to find where it begins.",
			})
		}
	}
	return out
}

const (
	// collapseShare is the share of its rate alone that a kind of work must keep when it is mixed
	// with others; a fair share of a machine for two is a half.
	collapseShare = 0.25
	// followsRate is how close the rates of two kinds must be for one to count as limited by the other.
	followsRate = 0.10
)

// mixed finds work that collapses when it is mixed with other work, as opposed to work that
// only processes what the other produces and has no more to do.
func mixed(r *Result) []Finding {
	var out []Finding
	for _, c := range r.Cases {
		rates := KindRates(c)
		if len(rates) < 2 {
			continue
		}
		for _, kind := range slices.Sorted(maps.Keys(rates)) {
			alone, where := aloneRate(r, kind)
			if alone == 0 || rates[kind]/alone >= collapseShare {
				continue
			}
			f := Finding{
				ID: "mixed-collapse", Severity: Warn,
				Claim: fmt.Sprintf("In %s, %s falls to %s/s, %.2g %% of the %s/s that it reaches alone.",
					c.Name, kind, Figure(rates[kind]), 100*rates[kind]/alone, Figure(alone)),
				Evidence: []string{fmt.Sprintf("%s: %s %s/s", where, kind, Figure(alone))},
			}
			for _, other := range slices.Sorted(maps.Keys(rates)) {
				f.Evidence = append(f.Evidence, fmt.Sprintf("%s: %s %s/s", c.Name, other, Figure(rates[other])))
				if other != kind && math.Abs(rates[kind]/rates[other]-1) < followsRate {
					f.ID, f.Severity = "mixed-fed", Info
					f.Claim = fmt.Sprintf("In %s, %s keeps pace with %s, at %s/s: it has no more to do than what that supplies. Alone it reaches %s/s.",
						c.Name, kind, other, Figure(rates[kind]), Figure(alone))
					if most, _ := aloneRate(r, other); most > 0 && math.Abs(rates[other]/most-1) < followsRate {
						f.Claim += fmt.Sprintf(" The producers are the limit: %s alone does %s/s as well.", other, Figure(most))
					}
					f.Advice = fmt.Sprintf("Look for what limits %s.", other)
				}
			}
			out = append(out, f)
		}
	}
	return out
}

// KindRates is the median rate, over the rounds, of each kind of work that a case does.
func KindRates(c *Case) map[string]float64 {
	all := make(map[string][]float64)
	for i := range c.Samples {
		for kind, v := range c.Samples[i].Rates {
			all[kind] = append(all[kind], v)
		}
	}
	out := make(map[string]float64)
	for kind, vs := range all {
		out[kind] = Median(vs)
	}
	return out
}

// aloneRate returns the highest rate of a kind among the cases that do only that kind.
func aloneRate(r *Result, kind string) (rate float64, where string) {
	for _, c := range r.Cases {
		rates := KindRates(c)
		if v, ok := rates[kind]; ok && len(rates) == 1 && v > rate {
			rate, where = v, c.Name
		}
	}
	return rate, where
}
