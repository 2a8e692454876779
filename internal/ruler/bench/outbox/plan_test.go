package outboxbench

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/weirdb/weir/internal/ruler/bench"
	outboxload "github.com/weirdb/weir/internal/ruler/bench/outbox/load"
	"github.com/weirdb/weir/internal/ruler/bench/suite"
	"github.com/weirdb/weir/outbox"
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
		r.Cases = append(r.Cases, &bench.Case{Name: c.String(), Summary: map[string]bench.Summary{"rate": {Interval: bench.Interval{Median: rate}}}})
	}
	r.Cases = append(r.Cases, &bench.Case{Name: "poll", Summary: map[string]bench.Summary{"rate": {Interval: bench.Interval{Median: 999}}}})
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

func TestKnobsReplaceThePlan(t *testing.T) {
	p, err := Plans()["mini"].with(overrides{
		workers: []int{3}, batches: []int{7}, payloads: []int{128, 20_000}, producers: []int{5}, records: []int64{100, 1000},
		windows: []time.Duration{time.Hour, 0, 24 * time.Hour}, partitions: []string{"daily"}, rounds: 4, warmup: 2,
	})
	if err != nil {
		t.Fatal(err)
	}
	if !slices.Equal(p.Workers, []int{3}) || !slices.Equal(p.Batches, []int{7}) || !slices.Equal(p.Payloads, []int{128}) || !slices.Equal(p.LargePayloads, []int{20_000}) {
		t.Errorf("grid and payloads: %+v", p)
	}
	if !slices.Equal(p.Producers, []int{5}) || !slices.Equal(p.MixedProducers, []int{5}) || p.Records != 100 || p.FocusRecords != 100 || !slices.Equal(p.Lengths, []int64{100, 1000}) {
		t.Errorf("producers and records: %+v", p)
	}
	if p.Rounds != 4 || p.FocusRounds != 4 || p.PartitionRounds != 4 || p.Warmup != 2 || p.Window != 24*time.Hour || len(p.Windows) != 3 || !slices.Equal(p.Periods, []outbox.Period{outbox.Daily}) {
		t.Errorf("rounds and partitions: %+v", p)
	}
	if known := strings.Join(suite.Known(Steps(Options{Plan: p})), ", "); !strings.Contains(known, "records (records-100, records-1000)") {
		t.Errorf("experiments: %s", known)
	}
}

func TestKnobsThatMakeNoSense(t *testing.T) {
	for want, k := range map[string]overrides{
		"--workers 0: want at least 1":   {workers: []int{0}},
		"--batch names 5 twice":          {batches: []int{5, 5}},
		"--payloads 3: want at least":    {payloads: []int{3}},
		"--records 0":                    {records: []int64{0}},
		"--window 0 alone":               {windows: []time.Duration{0}},
		"--window -1s":                   {windows: []time.Duration{-time.Second}},
		`--partitions "hourly"`:          {partitions: []string{"hourly"}},
		"--rounds and --warmup must not": {rounds: -1},
	} {
		if _, err := Plans()["mini"].with(k); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%+v: %v, want an error that says %q", k, err, want)
		}
	}
}
