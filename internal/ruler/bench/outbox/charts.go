package outboxbench

import (
	"fmt"
	"maps"
	"slices"
	"strconv"

	"github.com/weirdb/weir/internal/ruler/bench"
	"github.com/weirdb/weir/internal/ruler/bench/subject/messages"
	"github.com/weirdb/weir/internal/ruler/report"
)

// screenCharts draw throughput by workers and batch: the customary design as a heat map, and
// every case as a bar.
func (o *Outcome) screenCharts(results []*bench.Result) []report.Chart {
	var out []report.Chart
	for _, r := range results {
		out = append(out, heat(r, "rate", report.Chart{Title: "The customary design by workers and batch", YLabel: "messages per second", Unit: "msg/s"})...)
		out = append(out, bars(r, "Backlog by claim, workers and batch", "messages per second", "rate")...)
	}
	for _, r := range o.Of(FactorPhase, Focus) {
		out = append(out, bars(r, "The best of the customary design, and weir's claims", "messages per second", "rate")...)
	}
	return out
}

// heat draws a metric of the customary design as a heat map of workers and batch, with the best
// cell emphasised.
func heat(r *bench.Result, metric string, ch report.Chart) []report.Chart {
	ch.Kind, ch.XLabel, ch.SeriesLabel = report.Heat, "batch", "workers"
	m, _ := bench.MetricByKey(metric, messages.Subject)
	points := make(map[Combination]report.Point)
	workers, batches := make(map[int]bool), make(map[int]bool)
	best := Combination{}
	for _, c := range r.Cases {
		k, ok := combinationOf(c)
		p, measured := c.Point(metric, 0)
		if !ok || !measured {
			continue
		}
		points[k], workers[k.Workers], batches[k.Batch] = p, true, true
		was, some := points[best]
		if !some || m.Higher && p.Y > was.Y || !m.Higher && p.Y < was.Y {
			best = k
		}
	}
	for _, b := range slices.Sorted(maps.Keys(batches)) {
		ch.Categories = append(ch.Categories, strconv.Itoa(b))
	}
	for _, w := range slices.Sorted(maps.Keys(workers)) {
		s := report.Series{Name: strconv.Itoa(w)}
		for _, b := range slices.Sorted(maps.Keys(batches)) {
			p, ok := points[Combination{w, b}]
			p.None, p.Strong = !ok, best == Combination{w, b}
			s.Points = append(s.Points, p)
		}
		ch.Series = append(ch.Series, s)
	}
	return ch.When(len(points) > 1)
}

// gridCharts draw the throughput of producers and relay together by workers and batch, and the
// delay of deliveries.
func (o *Outcome) gridCharts(results []*bench.Result) []report.Chart {
	var out []report.Chart
	for _, r := range results {
		who := ", " + r.Experiment.Factors["producers"] + " producers"
		for _, c := range []struct {
			metric string
			chart  report.Chart
		}{
			{"rate", report.Chart{Title: "Enqueued" + who, YLabel: "messages per second", Unit: "msg/s"}},
			{"deliver_p95", report.Chart{Title: "Commit to delivery" + who, YLabel: "p95 in ms", Unit: "ms"}},
		} {
			out = append(out, heat(r, c.metric, c.chart)...)
		}
	}
	return out
}

// outOfBandCharts draw messages per second with payloads in the outbox and in another table.
func (o *Outcome) outOfBandCharts(results []*bench.Result) []report.Chart {
	var alone []*bench.Result
	var out []report.Chart
	for _, r := range results {
		if _, producers := r.Experiment.Factors["producers"]; producers || r.Experiment.Factors["payload"] == "" {
			out = append(out, bars(r, r.Experiment.Title, "messages per second", "rate")...)
		} else {
			alone = append(alone, r)
		}
	}
	ch := report.Chart{
		Title: "A backlog by where its payloads are", Kind: report.Lines, XLabel: "payload in bytes", YLabel: "messages per second", LogX: true, LogY: true,
		Series: bench.LinesOver(alone, "rate", "payload"),
	}
	return append(ch.When(len(ch.Series) > 0), out...)
}

// combinationOf parses workers and batch of a case of the customary design.
func combinationOf(c *bench.Case) (Combination, bool) {
	if len(c.Samples) == 0 || messages.Of(c.Samples[0].Parts) == nil || messages.Of(c.Samples[0].Parts).Settings["claim"] != "skip-locked" {
		return Combination{}, false
	}
	var k Combination
	_, err := fmt.Sscanf(messages.Of(c.Samples[0].Parts).Settings["publishers"]+" "+messages.Of(c.Samples[0].Parts).Settings["batch"], "%d %d", &k.Workers, &k.Batch)
	return k, err == nil
}

// payloadCharts draw messages and megabytes per second over the size of payloads.
func (o *Outcome) payloadCharts(results []*bench.Result) []report.Chart {
	messages, bytes := bench.LinesOver(results, "rate", "payload"), bench.LinesOver(results, "payload_rate", "payload")
	for _, line := range slices.Concat(messages, bytes) {
		for i := range line.Points {
			p := &line.Points[i]
			p.None = p.Y <= 0 // who delivered nothing has no place on a log axis
		}
	}
	note := "Large payloads are measured with fewer rows."
	return []report.Chart{
		{Title: "Messages by size of payload", Kind: report.Lines, XLabel: "payload in bytes", YLabel: "messages per second", LogX: true, LogY: true, Series: messages, Note: note},
		{Title: "Bytes by size of payload", Kind: report.Lines, XLabel: "payload in bytes", YLabel: "MB per second", LogX: true, LogY: true, Series: bytes, Note: note},
	}
}

// enqueueCharts draw the rate of producers by their number.
func (o *Outcome) enqueueCharts(results []*bench.Result) []report.Chart {
	flushes := report.Chart{Title: "Flushes by number of producers", Kind: report.Lines, XLabel: "producers", YLabel: "flushes for 1000 messages", LogX: true, Series: bench.LinesOver(results, "fsyncs", "producers")}
	return append([]report.Chart{{
		Title: "Enqueuing by number of producers", Kind: report.Lines, XLabel: "producers", YLabel: "messages per second", LogX: true, Series: bench.LinesOver(results, "rate", "producers"),
	}}, flushes.When(len(flushes.Series) > 0)...)
}

// mixedCharts draw latency against throughput, latency against the offered rate, and the lag
// over time.
func (o *Outcome) mixedCharts(results []*bench.Result) []report.Chart {
	var reached, offered bench.Lines
	var out []report.Chart
	for _, r := range results {
		rate, err := strconv.ParseFloat(r.Experiment.Factors["rate"], 64)
		open := err == nil
		for _, c := range r.Cases {
			p, ok := c.Point("deliver_p95", 0)
			if !ok {
				continue
			}
			p = atLeast(p, leastDelay)
			if p.X = c.Summary["rate"].Median; !open {
				reached.Add(c.Name, p)
			} else {
				p.X = rate
				offered.Add(c.Name, p)
			}
		}
		if !open {
			out = append(out, bars(r, r.Experiment.Title+": what is enqueued", "messages per second", "rate")...)
		}
		out = append(out, lagChart(r)...)
	}
	if len(offered.Series()) > 0 {
		out = append([]report.Chart{{
			Title: "Commit to delivery by offered rate", Kind: report.Lines, XLabel: "messages per second offered", YLabel: "p95 in ms", LogX: true, LogY: true, Series: offered.Series(),
		}}, out...)
	}
	if len(reached.Series()) > 0 {
		out = append([]report.Chart{{
			Title: "Commit to delivery by throughput, closed loop", Kind: report.Lines, XLabel: "messages per second", YLabel: "p95 in ms", LogY: true, Series: reached.Series(),
		}}, out...)
	}
	return out
}

// leastDelay is the delay in ms at which a delivery is drawn that came before its producer
// learned of the commit: its delay is 0, which a log axis does not have.
const leastDelay = 0.001

// atLeast raises a point and its range to a minimum.
func atLeast(p report.Point, least float64) report.Point {
	p.Y = max(p.Y, least)
	if p.Lo != 0 || p.Hi != 0 {
		p.Lo, p.Hi = max(p.Lo, least), max(p.Hi, least)
	}
	return p
}

// lagChart draws how many messages were committed and not yet delivered over the time of the
// last round.
func lagChart(r *bench.Result) []report.Chart {
	ch := report.Chart{Title: r.Experiment.Title + ": lag", Kind: report.TimeSeries, XLabel: "since the window opened", YLabel: "messages committed and not delivered"}
	for _, c := range r.Cases {
		if len(c.Samples) == 0 || messages.Of(c.Samples[len(c.Samples)-1].Parts) == nil {
			continue
		}
		s := report.Series{Name: c.Name}
		for _, p := range messages.Of(c.Samples[len(c.Samples)-1].Parts).Lag {
			s.Points = append(s.Points, report.Point{X: p.AtSeconds, Y: float64(max(0, p.Committed-p.Delivered))})
		}
		if len(s.Points) > 0 {
			ch.Series = append(ch.Series, s)
		}
	}
	return ch.When(len(ch.Series) > 0)
}

// partitionCharts draw the effect of window and partitions.
func (o *Outcome) partitionCharts(results []*bench.Result) []report.Chart {
	var out []report.Chart
	for _, r := range results {
		out = append(out, bars(r, r.Experiment.Title, "messages per second", "rate")...)
	}
	return out
}

// peerCharts compare weir with other outboxes.
func (o *Outcome) peerCharts(results []*bench.Result) []report.Chart {
	var out []report.Chart
	for _, r := range results {
		out = append(out, bars(r, r.Experiment.Title, "messages per second", "rate")...)
		out = append(out, bars(r, r.Experiment.Title+": commit to delivery", "p95 in ms", "deliver_p95")...)
	}
	return out
}

// resourceChart draws the largest share of the processors that each experiment used.
func (o *Outcome) resourceChart() []report.Chart {
	ch := report.Chart{Title: "Largest use of the processors", Kind: report.Bars, YLabel: "percent of all processors", Unit: "%"}
	roles := []struct{ role, name string }{{bench.RoleServer, "server"}, {bench.RoleClient, "producers, relay and ledger"}}
	for _, role := range roles {
		ch.Series = append(ch.Series, report.Series{Name: role.name})
	}
	for _, r := range o.Results {
		shares := make([]float64, len(roles))
		known := false
		for _, s := range r.Rounds() {
			if s.Seconds < 0.2 || r.Env.Cores == 0 { // the kernel counts in ticks of 10 ms
				continue
			}
			for k, role := range roles {
				u, ok := s.Processes[role.role]
				known = known || ok
				shares[k] = max(shares[k], 100*u.CPUSeconds()/s.Seconds/float64(r.Env.Cores))
			}
		}
		if !known {
			continue
		}
		ch.Categories = append(ch.Categories, r.Experiment.Name)
		for k := range roles {
			ch.Series[k].Points = append(ch.Series[k].Points, report.Point{Y: shares[k]})
		}
	}
	return ch.When(len(ch.Categories) > 0)
}
