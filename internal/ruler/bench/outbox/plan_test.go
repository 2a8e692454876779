package outboxbench

import (
	"fmt"
	"slices"
	"testing"

	"github.com/weirdb/weir/internal/ruler/bench"
	outboxload "github.com/weirdb/weir/internal/ruler/bench/outbox/load"
	"github.com/weirdb/weir/internal/ruler/bench/suite"
)

func TestPlansCoverReport5(t *testing.T) {
	full := Plans()["full"]
	for _, tc := range []struct {
		what      string
		got, want []int
	}{
		{"workers", full.Workers, []int{1, 2, 4, 8, 16}},
		{"batches", full.Batches, []int{10, 50, 100, 200}},
		{"payloads", full.Payloads, []int{128, 512, 4096}},
		{"large payloads", full.LargePayloads, []int{16384, 131072}},
	} {
		if !slices.Equal(tc.got, tc.want) {
			t.Errorf("%s %v, want %v", tc.what, tc.got, tc.want)
		}
	}
	for _, n := range []int{1, 2, 4, 8} {
		if !slices.Contains(full.Producers, n) {
			t.Errorf("%d producers are missing", n)
		}
	}
	if full.PartitionRecords != 2_000_000 || full.PartitionDays != 90 || len(full.Rates) < 3 {
		t.Errorf("partitions of %d rows over %d days, rates %v", full.PartitionRecords, full.PartitionDays, full.Rates)
	}
	for name, p := range Plans() {
		if p.Rounds < 1 || p.FocusRounds < 1 || p.PartitionRounds < 1 || p.Duration <= 0 || p.Drain <= 0 || p.Window <= 0 || len(p.Workers) == 0 {
			t.Errorf("plan %s lacks something: %+v", name, p)
		}
	}
}

func TestBestCombinationsAreThoseOfTheGrid(t *testing.T) {
	r := &bench.Result{}
	grid := make(map[string]Combination)
	for i, rate := range []float64{100, 300, 200} {
		c := Combination{i + 1, 50}
		grid[c.String()] = c
		r.Cases = append(r.Cases, bench.Case{Name: c.String(), Summary: map[string]bench.Summary{"rate": {Interval: bench.Interval{Median: rate}}}})
	}
	r.Cases = append(r.Cases, bench.Case{Name: "poll", Summary: map[string]bench.Summary{"rate": {Interval: bench.Interval{Median: 999}}}})
	if got := fmt.Sprint(best(r, grid, 2)); got != "[2x50 3x50]" {
		t.Errorf("best are %s", got)
	}
	if got := best(r, nil, 2); len(got) != 0 {
		t.Errorf("best of nothing are %v", got)
	}
}

// A sample is found again by what makes it the same one, and by nothing less.
func TestCheckpointKeysTellSidesApart(t *testing.T) {
	s := &run{rig: &rig{o: Options{Engine: suite.PostgreSQL, Plan: Plans()["full"]}, db: suite.Foreign("")}, best: []Combination{{4, 200}, {8, 100}}}
	keys := make(map[string]string)
	add := func(e bench.Experiment) {
		names, subjects := s.rivals(2)
		for i, name := range names {
			side := s.consumeSide(name, subjects[i], outboxload.ConsumeConfig{})
			for round := range 2 {
				key := bench.Key(e.Description, side, round)
				if was := keys[key]; was != "" {
					t.Errorf("%s and %s have the key %s", was, name, key)
				}
				keys[key] = name
			}
		}
	}
	add(s.backlog(Focus, "focus", "", 2, 1000, 512))
	add(s.backlog(Focus, "focus", "", 2, 2000, 512))
	add(s.backlog(Focus, "focus", "", 2, 1000, 128))
	s.o.FsyncLatency = 2_000_000
	add(s.backlog(Focus, "focus", "", 2, 1000, 512))
	if len(keys) != 4*4*2 {
		t.Errorf("%d keys, want %d", len(keys), 4*4*2)
	}
}
