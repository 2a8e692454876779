package reference

import (
	"fmt"
	"time"

	"github.com/weirdb/weir/internal/measure"
	"github.com/weirdb/weir/internal/ruler/bench"
	"github.com/weirdb/weir/internal/ruler/bench/subject/kvs"
	"github.com/weirdb/weir/internal/ruler/bench/subject/messages"
	"github.com/weirdb/weir/internal/ruler/bench/subject/moves"
)

// The figures of the documents as results of one round each, so that the rules for our results
// can judge them. What a document does not state is left out, and rules that need it do not
// apply.

// spread is a histogram with one value, since nothing else is known.
func spread(d time.Duration) *measure.Hist {
	h := &measure.Hist{}
	h.RecordN(int64(d), 1000)
	return h
}

func published(name, title string, cases ...*bench.Case) *bench.Result {
	r := &bench.Result{Experiment: bench.Description{Name: name, Title: title, Rounds: 1, Loop: "closed"}, Cases: cases}
	if len(cases) > 0 {
		r.Experiment.Baseline = cases[0].Name
	}
	return r
}

func oneRound(name string, factors map[string]string, s bench.Sample) *bench.Case {
	return &bench.Case{Name: name, Factors: factors, Samples: []bench.Sample{s}}
}

func millis(v float64) time.Duration { return time.Duration(v * float64(time.Millisecond)) }

// publishedProxyBatch are the two tables of report 000, of runs of 3 s.
func publishedProxyBatch() []*bench.Result {
	var out []*bench.Result
	for _, e := range []struct {
		name    string
		rates   [4]float64 // thousands per second
		latency [4]float64 // ms
	}{
		{"MySQL", [4]float64{42.6, 42.4, 82.6, 58.7}, [4]float64{2.35, 2.36, 12.08, 83.45}},
		{"PostgreSQL", [4]float64{44.5, 45.5, 66.9, 52.9}, [4]float64{2.24, 2.19, 14.71, 89.54}},
	} {
		r := published("published-"+e.name, e.name+" Performance")
		for i, window := range []string{"0", "1", "10", "100"} {
			r.Cases = append(r.Cases, oneRound(window+" ms", map[string]string{"window": window}, bench.Sample{
				Seconds: 3, Ops: int64(3000 * e.rates[i]), Latency: spread(millis(e.latency[i])),
			}))
		}
		r.Experiment.Baseline, r.Experiment.Sweep, r.Experiment.SweepUnit = "0 ms", "window", "ms"
		out = append(out, r)
	}
	return out
}

// publishedShares are the categories of its CPU profile.
func publishedShares() []bench.Share {
	return []bench.Share{
		{Name: "System Calls & I/O", Percent: 40.62},
		{Name: "Database Drivers", Percent: 23},
		{Name: "Runtime Scheduler", Percent: 27.65},
		{Name: "Database/SQL Package", Percent: 62.89},
		{Name: "Synchronization", Percent: 13.35},
	}
}

// publishedOps is how many operations a run of report 001 has.
const publishedOps = 10_000

// publishedNetworkBatching are the sweep, of which the averages of three runs are known, and
// the validation, run by run.
func publishedNetworkBatching() []*bench.Result {
	sweep := published("published-sweep", "Batch Delay Sweep")
	for _, l := range []struct {
		us           string
		rate         float64
		weak, strong float64 // ms
	}{
		{"0", 16_000, 2.06, 3.97},
		{"25", 19_496, 2.09, 2.98},
		{"50", 21_982, 1.66, 2.91},
		{"75", 22_350, 1.67, 2.64},
		{"100", 19_690, 1.71, 3.07},
		{"150", 22_811, 1.56, 2.76},
	} {
		sweep.Cases = append(sweep.Cases, oneRound(l.us+" us", map[string]string{"delay": l.us}, bench.Sample{
			Seconds: publishedOps / l.rate, Ops: publishedOps, InFlight: 60,
			Parts: []bench.Part{&kvs.KV{WeakRead: spread(millis(l.weak)), StrongRead: spread(millis(l.strong))}},
		}))
	}
	limit := 2.0
	sweep.Experiment.Baseline, sweep.Experiment.Sweep, sweep.Experiment.SweepUnit = "0 us", "delay", "us"
	sweep.Experiment.Constraints = []bench.Constraint{{Metric: "weak_p50", Max: &limit}}

	validation := published("published-validation", "Validation Test")
	c := &bench.Case{Name: "150 us"}
	for i, rate := range []float64{20_469, 22_984, 21_488, 18_828, 20_561} {
		c.Samples = append(c.Samples, bench.Sample{Round: i, Seconds: publishedOps / rate, Ops: publishedOps, InFlight: 60})
	}
	validation.Cases, validation.Experiment.Rounds, validation.Experiment.Baseline = []*bench.Case{c}, 5, c.Name
	return []*bench.Result{sweep, validation}
}

// publishedDelays are the nominal sleeps of its sweep.
func publishedDelays() []time.Duration {
	var out []time.Duration
	for _, us := range []int{25, 50, 75, 100, 150} {
		out = append(out, time.Duration(us)*time.Microsecond)
	}
	return out
}

// publishedBackup are the compressions of report 002.
func publishedBackup() []*bench.Result {
	r := published("published-compression", "Compression Performance")
	for _, c := range []struct {
		name, workers, level string
		rate                 int64 // MB/s
	}{
		{"Standard gzip", "1", "6", 422},
		{"pgzip BestSpeed (8 workers)", "8", "1", 2048},
		{"pgzip Default (8 workers)", "8", "6", 915},
	} {
		r.Cases = append(r.Cases, oneRound(c.name, map[string]string{"workers": c.workers, "level": c.level}, bench.Sample{
			Seconds: 1, Ops: c.rate, Parts: []bench.Part{&moves.Transfer{PlainBytes: 1e6, Verified: "not known"}},
		}))
	}
	return []*bench.Result{r}
}

// publishedProfiler are the two examples of report 003. Acquire is the pool's own figure, which
// the rule uses.
func publishedProfiler() []*bench.Result {
	r := published("published-pools", "Concurrency = 100")
	for _, c := range []struct {
		pool           int
		rate           int64
		latency        float64
		acquire, query float64
	}{{100, 1018, 82, 69, 13}, {5, 451, 220, 210, 8}} {
		queue, server := bench.NewSegment(bench.SegmentQueue), bench.NewSegment(bench.SegmentServer)
		queue.Hist, server.Hist = spread(millis(c.acquire)), spread(millis(c.query))
		r.Cases = append(r.Cases, oneRound(fmt.Sprintf("pool %d", c.pool), map[string]string{"pool": fmt.Sprint(c.pool)}, bench.Sample{
			Seconds: 2, Ops: 2 * c.rate, InFlight: 100, Latency: spread(millis(c.latency)),
			Boundary: &bench.Boundary{Segments: []bench.Segment{queue, server}, PoolMax: c.pool},
		}))
	}
	return []*bench.Result{r}
}

// publishedOutbox are mixed work and each kind alone, and the partition effect, of report 004.
func publishedOutbox() []*bench.Result {
	kinds := func(name string, rates map[string]float64) *bench.Case {
		ops := max(rates["consume"], rates["enqueue"])
		return oneRound(name, nil, bench.Sample{Seconds: 10, Ops: int64(10 * ops), Rates: rates})
	}
	mixed := published("published-mixed", "Mixed workload",
		kinds("enqueue, 8 producers", map[string]float64{"enqueue": 203}),
		kinds("consume, 16x200", map[string]float64{"consume": 32_232}),
		kinds("mixed, 16x200 and 8 producers", map[string]float64{"consume": 207, "enqueue": 207}))

	const rows, visible = 2_000_000, 22_222
	partition := published("published-partition", "Partition effect")
	for _, c := range []struct {
		name, window string
		rate         float64
	}{
		{"partitioned=false, window=1h", "1h", 212},
		{"partitioned=true, window=1h", "1h", 3042},
		{"partitioned=true, window=0", "", 3226},
		{"partitioned=false, window=0", "", 4310},
	} {
		s := bench.Sample{Seconds: visible / c.rate, Ops: visible, Parts: []bench.Part{&messages.Outbox{
			PayloadBytes: 512, Ledger: messages.Ledger{Committed: rows, Delivered: visible}, Settings: map[string]string{"window": c.window},
		}}}
		if c.window != "" {
			messages.Of(s.Parts).Ledger.Pending = rows - visible
		}
		partition.Cases = append(partition.Cases, oneRound(c.name, map[string]string{"table": c.name}, s))
	}
	return []*bench.Result{mixed, partition}
}

// catches are the findings on a document's own figures. sleeps measures how long sleeps take on
// this machine, for a document that uses them as delays.
func catches(d Document, sleeps func([]time.Duration) []bench.Slept) []bench.Finding {
	var out []bench.Finding
	if d.Published != nil {
		for _, r := range d.Published() {
			r.Evaluate()
			for _, f := range r.Findings {
				if f.Severity == bench.Warn || f.ID == "mixed-fed" {
					f.Claim = r.Experiment.Title + ": " + f.Claim
					out = append(out, f)
				}
			}
		}
	}
	switch d.ID {
	case "000":
		out = append(out, bench.Overlapping("its CPU profile", publishedShares())...)
	case "001":
		if sleeps != nil {
			out = append(out, bench.FarFromNominal(sleeps(publishedDelays()))...)
		}
	}
	return out
}

// sleepsHere measures how long time.Sleep takes for nominal delays, as medians of several.
func sleepsHere(nominal []time.Duration) []bench.Slept {
	const times = 21
	var out []bench.Slept
	for _, d := range nominal {
		took := make([]float64, times)
		for i := range took {
			began := time.Now()
			time.Sleep(d)
			took[i] = float64(time.Since(began))
		}
		out = append(out, bench.Slept{Nominal: d, Took: time.Duration(bench.Median(took))})
	}
	return out
}
