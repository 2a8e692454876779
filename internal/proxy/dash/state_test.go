package dash

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/weirdb/weir/internal/measure"
)

// hist returns a histogram of durations.
func hist(durations ...time.Duration) *measure.Hist {
	h := &measure.Hist{}
	for _, d := range durations {
		h.Record(d.Nanoseconds())
	}
	return h
}

func TestPointIsWhatChanged(t *testing.T) {
	at := time.UnixMilli(1_000_000)
	slow := make([]time.Duration, 100)
	for i := range slow {
		slow[i] = time.Second
	}
	before := &State{
		Time: at, Loops: 2, BusySeconds: 10, BytesIn: 1000, BytesOut: 5000,
		Pools: []Pool{{Shared: 100, Grouped: 50, Alone: 7, Errors: 3, Latency: hist(slow...)}},
		Lanes: []Lane{{Groups: 10, Members: 20}},
	}
	now := &State{
		Time: at.Add(500 * time.Millisecond), Loops: 2, BusySeconds: 10.5, BytesIn: 2000, BytesOut: 5000, Clients: 9,
		Pools: []Pool{
			{
				Shared: 150, Grouped: 60, Alone: 7, Errors: 4, Active: 2, Waiting: 1, Pinned: 3,
				Backends: Backends{Free: 1, Shared: 2, Owned: 3, Laned: 4, Connecting: 5},
				Latency:  hist(append(slow, time.Millisecond, time.Millisecond, 3*time.Millisecond)...),
			},
			{Alone: 5, Active: 1, Backends: Backends{Free: 1}, Latency: hist()}, // a pool that did not exist before
		},
		Lanes: []Lane{{Groups: 14, Members: 50, InFlight: 1, Allowed: 2, Waiting: 8}, {InFlight: 1, Allowed: 1}},
	}
	got := between(before, now)
	// The quantiles are those of the interval, to the precision of the
	// histogram: the slow statements of before do not count.
	for _, q := range []struct {
		name      string
		got, want float64
	}{{"p50", got.P50Ms, 1}, {"p99", got.P99Ms, 3}} {
		if q.got < q.want*0.99 || q.got > q.want*1.01 {
			t.Errorf("%s: %v ms, want %v", q.name, q.got, q.want)
		}
	}
	got.P50Ms, got.P99Ms = 0, 0
	want := Point{
		UnixMs: 1_000_500, Shared: 100, Grouped: 20, Alone: 10, Errors: 2,
		Clients: 9, Active: 3, Waiting: 1, Pinned: 3,
		Backends:  Backends{Free: 2, Shared: 2, Owned: 3, Laned: 4, Connecting: 5},
		GroupSize: 7.5, InFlight: 2, Allowed: 3, Queued: 8,
		BusyShare: 0.5, BytesIn: 2000, BytesOut: 0,
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("point (-want +got):\n%s", diff)
	}
}

func TestPointSurvivesCountersThatShrink(t *testing.T) {
	at := time.UnixMilli(1_000_000)
	before := &State{Time: at, BusySeconds: 5, Lanes: []Lane{{Groups: 10, Members: 20}}, Pools: []Pool{{Shared: 9, Latency: hist(time.Second)}}}
	now := &State{Time: at.Add(time.Second)} // an unused lane and its pool were dropped
	if diff := cmp.Diff(Point{UnixMs: 1_001_000}, between(before, now)); diff != "" {
		t.Errorf("point (-want +got):\n%s", diff)
	}
}

func TestStatementsOfSeveralLoopsAreAdded(t *testing.T) {
	var s State
	s.AddStatement(Statement{Verb: "SELECT", Text: "select ?", Runs: 3, Errors: 1, CostNs: 50})
	s.AddStatement(Statement{Verb: "INSERT", Text: "insert", Runs: 4, Grouped: 2})
	s.AddStatement(Statement{Verb: "SELECT", Text: "select ?", Runs: 5, CostNs: 40})
	want := []Statement{
		{Verb: "SELECT", Text: "select ?", Runs: 8, Errors: 1, CostNs: 50},
		{Verb: "INSERT", Text: "insert", Runs: 4, Grouped: 2},
	}
	if diff := cmp.Diff(want, s.Statements); diff != "" {
		t.Errorf("statements (-want +got):\n%s", diff)
	}

	later := State{Time: s.Time.Add(2 * time.Second), Statements: []Statement{{Verb: "SELECT", Text: "select ?", Runs: 28}, {Text: "new", Runs: 6}}}
	rateStatements(&s, &later)
	if a, b := later.Statements[0].PerSecond, later.Statements[1].PerSecond; a != 10 || b != 3 {
		t.Errorf("rates %v and %v per second, want 10 and 3", a, b)
	}
}
