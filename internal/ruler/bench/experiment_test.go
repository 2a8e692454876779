package bench

import (
	"bytes"
	"context"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/weirdb/weir/internal/measure"
)

// fixed returns a sample of one second with the given rate, for so many clients.
func fixed(rate int64, clients int) Sample {
	s := Sample{Seconds: 1, Ops: rate, InFlight: clients, Latency: &measure.Hist{}}
	s.Latency.RecordN(int64(clients)*1e9/rate, uint64(rate))
	return s
}

// sides returns an experiment of two sides and the log of what was called.
func sides(rounds, warmup int) (Experiment, *[]string) {
	var log []string
	side := func(name string, rate int64) Side {
		return Side{
			Name: name, Factors: map[string]string{"path": name},
			Setup:    func(context.Context) error { log = append(log, name+" up"); return nil },
			Run:      func(_ context.Context, _ int) (Sample, error) { log = append(log, name); return fixed(rate, 8), nil },
			Teardown: func(context.Context) error { log = append(log, name+" down"); return nil },
		}
	}
	return Experiment{
		Description: Description{Name: "x", Rounds: rounds, Warmup: warmup},
		Sides:       []Side{side("a", 1000), side("b", 2000)},
	}, &log
}

func TestRunAlternatesAndComparesPairs(t *testing.T) {
	e, log := sides(4, 1)
	var seen []int
	r, err := Run(t.Context(), e, Options{Progress: func(p Progress) { seen = append(seen, p.Done) }})
	if err != nil {
		t.Fatal(err)
	}
	want := "b up, b, a up, a, a, b, b, a, a, b, b, a, a down, b down"
	if got := strings.Join(*log, ", "); got != want {
		t.Errorf("calls\n     %s\nwant %s", got, want)
	}
	if !slices.Equal(seen, []int{1, 2, 3, 4, 5, 6, 7, 8, 9, 10}) {
		t.Errorf("progress = %v", seen)
	}
	if err := r.Validate(); err != nil {
		t.Error(err)
	}
	c := r.Comparisons[0]
	if c.A != "a" || c.B != "b" || c.Metric != "rate" || c.Ratio.Median < 1.99 || c.Ratio.Median > 2.01 || c.Verdict != Better || c.Ratio.N != 4 {
		t.Errorf("comparison = %+v", c)
	}
	if p50 := r.Find("b").Summary["p50"]; p50.Median != 4 || p50.Unit != "ms" {
		t.Errorf("p50 = %+v, want 4 ms", p50)
	}
}

func TestRunResumesFromItsStore(t *testing.T) {
	dir := t.TempDir()
	e, log := sides(3, 1)
	broken := errors.New("disk on fire")
	good := e.Sides[1].Run
	e.Sides[1].Run = func(ctx context.Context, round int) (Sample, error) {
		if round == 1 {
			return Sample{}, broken
		}
		return good(ctx, round)
	}
	store, err := OpenStore(dir, false)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := Run(t.Context(), e, Options{Store: store}); !errors.Is(err, broken) {
		t.Fatalf("error = %v", err)
	}
	if _, err := OpenStore(dir, true); err == nil || !strings.Contains(err.Error(), "another run writes there") {
		t.Errorf("a second run at once: %v", err)
	}
	store.Close()
	if half, err := ReadPath(dir); err != nil || !half[0].Partial || len(half[0].Cases[0].Samples) != 1 || !strings.Contains(half[0].Warnings[0], broken.Error()) {
		t.Errorf("the partial result: %+v, %v", half, err)
	}
	if got := (*log)[len(*log)-2:]; got[0] != "a down" || got[1] != "b down" {
		t.Errorf("after a failure: %v, want both torn down", got)
	}
	if _, err := OpenStore(dir, false); err == nil {
		t.Error("a directory with results was about to be overwritten")
	}
	// A crash in the middle of a line.
	f, err := os.OpenFile(filepath.Join(dir, "results.jsonl"), os.O_APPEND|os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	f.WriteString(`{"schema":"weir.ben`)
	f.Close()

	*log = nil
	e.Sides[1].Run = good
	store, err = OpenStore(dir, true)
	if err != nil {
		t.Fatal(err)
	}
	defer store.Close()
	r, err := Run(t.Context(), e, Options{Store: store})
	if err != nil {
		t.Fatal(err)
	}
	// Taken before: a0 b0 in round 0; round 1 begins with b, which failed.
	want := "b up, b, a up, a, b, a, a, b, a down, b down"
	if got := strings.Join(*log, ", "); got != want {
		t.Errorf("calls\n     %s\nwant %s", got, want)
	}
	if len(r.Cases[0].Samples) != 3 || len(r.Cases[1].Samples) != 3 {
		t.Error("samples are missing")
	}
	b, err := os.ReadFile(filepath.Join(dir, "x.json"))
	if err != nil {
		t.Fatal(err)
	}
	back, err := ReadResult(bytes.NewReader(b))
	if err != nil {
		t.Fatal(err)
	}
	if back.Comparisons[0].Ratio != r.Comparisons[0].Ratio || len(back.Findings) != len(r.Findings) {
		t.Error("a result read back is judged otherwise")
	}
	csv, err := os.ReadFile(filepath.Join(dir, "x.csv"))
	if err != nil || !strings.Contains(string(csv), "x,a,rate,ops/s,0,1000,,\n") {
		t.Errorf("csv = %.200s, %v", csv, err)
	}

	*log = nil
	if _, err := Run(t.Context(), e, Options{Store: store}); err != nil || len(*log) != 0 {
		t.Errorf("a complete run was measured again: %v, %v", *log, err)
	}
}

func TestRunStopsWithItsContext(t *testing.T) {
	e, log := sides(3, 0)
	ctx, cancel := context.WithCancel(t.Context())
	run := e.Sides[0].Run
	e.Sides[0].Run = func(ctx context.Context, round int) (Sample, error) { cancel(); return run(ctx, round) }
	r, err := Run(ctx, e, Options{})
	if !errors.Is(err, context.Canceled) {
		t.Errorf("error = %v", err)
	}
	if r == nil || !r.Partial || r.Validate() != nil || len(r.Cases) != 1 || r.Cases[0].Summary["rate"].Median != 1000 {
		t.Errorf("what was measured until then is not a valid result that says so: %+v", r)
	}
	if got := strings.Join(*log, ", "); got != "a up, a, a down" {
		t.Errorf("calls = %s", got)
	}
}

func TestResumingOnAnotherMachineIsSaid(t *testing.T) {
	dir := t.TempDir()
	e, _ := sides(2, 0)
	run := func(rounds int, cpu string) *Result {
		t.Helper()
		e.Rounds = rounds
		store, err := OpenStore(dir, true)
		if err != nil {
			t.Fatal(err)
		}
		defer store.Close()
		env := measure.ReadEnvironment()
		env.CPU = cpu
		r, err := Run(t.Context(), e, Options{Store: store, Env: &env})
		if err != nil {
			t.Fatal(err)
		}
		return r
	}
	run(1, "small")
	if r := run(2, "small"); len(r.Warnings) != 0 {
		t.Errorf("on the same machine: %q", r.Warnings)
	}
	r := run(3, "large")
	if len(r.Warnings) != 1 || !strings.Contains(r.Warnings[0], "on small") || !strings.Contains(r.Warnings[0], "on large") {
		t.Errorf("on another machine: %q", r.Warnings)
	}
}

func TestEachRoundStandsBetweenTwoCalibrations(t *testing.T) {
	e, _ := sides(2, 1)
	r, err := Run(t.Context(), e, Options{FlushDir: t.TempDir()})
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range r.Cases {
		for _, s := range c.Samples {
			if s.FsyncBefore == nil || s.FsyncAfter == nil || s.FsyncAfter.Count == 0 {
				t.Errorf("%s, round %d: %v, %v", c.Name, s.Round, s.FsyncBefore, s.FsyncAfter)
			}
		}
	}
	// The sides go b a in the warm-up, a b, b a: what comes after one round's b is
	// what comes before the next round's.
	if r.Cases[1].Samples[0].FsyncAfter != r.Cases[1].Samples[1].FsyncBefore {
		t.Error("the disk was calibrated twice between two rounds")
	}
}

func TestShuffledOrderIsFairAndRepeatable(t *testing.T) {
	e := Experiment{Description: Description{Shuffle: true}, Sides: make([]Side, 2)}
	first := 0
	for round := range 1000 {
		o := e.order(round)
		if !slices.Equal(o, e.order(round)) {
			t.Fatal("asked twice, another order")
		}
		first += o[0]
	}
	if first < 440 || first > 560 { // four standard deviations
		t.Errorf("the second side came first in %d of 1000 rounds", first)
	}
}

func TestKeyChangesWithFactors(t *testing.T) {
	d := Description{Name: "x", Factors: map[string]string{"clients": "64", "server": "15"}}
	s := Side{Name: "a", Factors: map[string]string{"window": "1"}}
	if got, want := Key(d, s, 2), "x/a/2/clients=64,server=15/window=1"; got != want {
		t.Errorf("key = %q, want %q", got, want)
	}
}

func TestExperimentIsRefused(t *testing.T) {
	run := func(context.Context, int) (Sample, error) { return Sample{}, nil }
	for want, e := range map[string]Experiment{
		"name":       {},
		"lacks":      {Description: Description{Name: "x", Rounds: 1}, Sides: []Side{{Name: "a"}}},
		"two sides":  {Description: Description{Name: "x", Rounds: 1}, Sides: []Side{{Name: "a", Run: run}, {Name: "a", Run: run}}},
		"not a side": {Description: Description{Name: "x", Rounds: 1, Baseline: "z"}, Sides: []Side{{Name: "a", Run: run}}},
	} {
		if _, err := Run(t.Context(), e, Options{}); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("error = %v, want mention of %q", err, want)
		}
	}
}

func FuzzReadRecords(f *testing.F) {
	f.Add([]byte(`{"schema":"weir.bench/1","key":"x/a/0","sample":{"ops":3}}` + "\n"))
	f.Add([]byte("{\n"))
	f.Fuzz(func(t *testing.T, b []byte) {
		if _, whole, err := readRecords(b, nil); err == nil && (whole > len(b) || whole > 0 && b[whole-1] != '\n') {
			t.Errorf("%d of %d bytes are whole lines", whole, len(b))
		}
	})
}
