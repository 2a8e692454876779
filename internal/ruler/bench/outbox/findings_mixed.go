package outboxbench

import (
	"cmp"
	"fmt"
	"maps"
	"math"
	"slices"
	"strconv"

	"github.com/weirdb/weir/internal/ruler/bench"
)

// relayBehind is the share of the producers' rate that a relay must reach to keep up.
const relayBehind = 0.95

// mixedBound says what limits producers and relay when they run together. In a closed loop, n
// producers that each wait for a commit of length t cannot exceed n/t (J. Little, Operations
// Research 9(3), 1961), however fast the relay is.
func mixedBound(results []*bench.Result) []bench.Finding {
	var out []bench.Finding
	for _, r := range bench.Where(results, FactorPhase, "mixed") {
		for _, c := range r.Cases {
			rates := bench.KindRates(c)
			h := c.Latency()
			if r.Experiment.Loop != "closed" || rates["consume"] == 0 || h.Count() == 0 {
				continue
			}
			n := c.Samples[0].InFlight
			commit := h.Mean() / 1e6
			f := bench.Finding{Severity: bench.Info, Evidence: []string{
				fmt.Sprintf("%d producers / %s ms for a commit = %s msg/s; %s were enqueued and %s delivered in a second", n, bench.Figure(commit), bench.Count(float64(n)/commit*1e3), bench.Count(rates["enqueue"]), bench.Count(rates["consume"])),
			}}
			if alone := consumeRate(results, c.Name); alone > 0 {
				f.Evidence = append(f.Evidence, fmt.Sprintf("alone, %s delivers %s msg/s: here it works at %.2g %% of that", c.Name, bench.Count(alone), 100*rates["consume"]/alone))
			}
			if line, ok := flushLine(r, c); ok {
				f.Evidence = append(f.Evidence, line)
			}
			if rates["consume"] >= relayBehind*rates["enqueue"] {
				f.ID = "producers-bind"
				f.Claim = fmt.Sprintf("%s, %s: the producers are the limit, not the relay. %d of them that wait %s ms for each commit make %s msg/s, and the relay delivers all of these.", r.Experiment.Title, c.Name, n, bench.Figure(commit), bench.Count(rates["enqueue"]))
				f.Advice = "More concurrent producers share flushes; so do group enqueues. A faster relay changes nothing."
			} else {
				f.ID, f.Severity = "relay-binds", bench.Warn
				f.Claim = fmt.Sprintf("%s, %s: the relay falls behind. Of %s messages per second it delivers %s.", r.Experiment.Title, c.Name, bench.Count(rates["enqueue"]), bench.Count(rates["consume"]))
			}
			out = append(out, f)
		}
	}
	return out
}

// consumeRate is a relay's rate for a backlog, 0 if that was not measured.
func consumeRate(results []*bench.Result, name string) float64 {
	for _, phase := range []string{"focus", "screen"} {
		for _, r := range bench.Where(results, FactorPhase, phase) {
			if c := r.Find(name); c != nil {
				return c.Rate()
			}
		}
	}
	return 0
}

// flushLine is how many commits shared a flush, and the cost of a flush.
func flushLine(r *bench.Result, c *bench.Case) (string, bool) {
	s, ok := c.Summary["fsyncs"]
	if !ok || s.Median == 0 || len(c.Samples) == 0 {
		return "", false
	}
	cost, ok := bench.FlushCost(r, &c.Samples[0])
	if !ok {
		return "", false
	}
	line := fmt.Sprintf("%s messages share a flush, which costs %s on this disk", bench.Figure(1000/s.Median), bench.Micros(cost))
	if slower := r.Experiment.Factors["fsync_latency"]; slower != "" && slower != "0s" {
		line += " and " + slower + " more in the server"
	}
	return line, true
}

// relayCost is how much a relay slows the producers down.
func relayCost(results []*bench.Result) []bench.Finding {
	var out []bench.Finding
	for _, r := range bench.Where(results, FactorPhase, "mixed") {
		for _, c := range r.Cases {
			_, k := compared(r, c.Name, "rate")
			if r.Experiment.Loop != "closed" || k.Ratio.N == 0 {
				continue
			}
			f := bench.Finding{ID: "relay-cost", Severity: bench.Info, Evidence: []string{fmt.Sprintf("%s of the rate without a relay, %d pairs of rounds", bench.RatioText(k.Ratio), k.Ratio.N)}}
			switch cost := 100 * (1 - k.Ratio.Median); {
			case k.Verdict == bench.NoDifference:
				f.Claim = fmt.Sprintf("%s, %s: the relay has no measurable cost for the producers.", r.Experiment.Title, c.Name)
			case k.Verdict == bench.CannotTell && k.Ratio.Hi > 2:
				f.Claim = fmt.Sprintf("%s, %s: cannot tell what the relay costs the producers; the rounds differ too much.", r.Experiment.Title, c.Name)
			case k.Verdict == bench.CannotTell:
				f.Claim = fmt.Sprintf("%s, %s: cannot tell what the relay costs the producers; the median is %.0f %%, between %.0f and %.0f %%.", r.Experiment.Title, c.Name, cost, 100*(1-k.Ratio.Hi), 100*(1-k.Ratio.Lo))
			default:
				f.Claim = fmt.Sprintf("%s, %s: the relay costs the producers %.0f %% of their rate.", r.Experiment.Title, c.Name, cost)
			}
			out = append(out, f)
		}
	}
	return out
}

// openKnee is how many times its smallest value the p95 of deliveries may be before a rate is
// beyond the knee.
const openKnee = 5.0

// offeredRates states the time from commit to delivery over offered rates.
func offeredRates(results []*bench.Result) []bench.Finding {
	type point struct{ rate, p95 float64 }
	relays := make(map[string][]point)
	for _, r := range bench.Where(results, FactorPhase, "mixed") {
		rate, err := strconv.ParseFloat(r.Experiment.Factors["rate"], 64)
		if err != nil {
			continue
		}
		for _, c := range r.Cases {
			if s, ok := c.Summary["deliver_p95"]; ok {
				relays[c.Name] = append(relays[c.Name], point{rate, s.Median})
			}
		}
	}
	var out []bench.Finding
	for _, name := range slices.Sorted(maps.Keys(relays)) {
		pts := relays[name]
		slices.SortFunc(pts, func(a, b point) int { return cmp.Compare(a.rate, b.rate) })
		least := math.Inf(1)
		f := bench.Finding{ID: "open-loop", Severity: bench.Info}
		for _, p := range pts {
			least = min(least, p.p95)
			f.Evidence = append(f.Evidence, fmt.Sprintf("%g msg/s offered: commit to delivery p95 %s ms", p.rate, bench.Figure(p.p95)))
		}
		last := pts[len(pts)-1]
		f.Claim = fmt.Sprintf("%s: at %g messages a second offered, 95 %% are delivered within %s ms of their commit.", name, last.rate, bench.Figure(last.p95))
		for _, p := range pts {
			if p.p95 > openKnee*least && p.rate > pts[0].rate {
				f.Severity = bench.Warn
				f.Claim += fmt.Sprintf(" From %g on it is %.0f times the lowest: beyond the knee.", p.rate, p.p95/least)
				break
			}
		}
		out = append(out, f)
	}
	return out
}
