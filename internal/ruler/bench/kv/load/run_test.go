package kvload

import (
	"context"
	"errors"
	"math"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/weirdb/weir/internal/measure"
	"github.com/weirdb/weir/internal/ruler/bench/subject/kvs"
)

// drive runs in virtual time, in which a fake takes exactly as long as it says.
func drive(t *testing.T, c Config) *Outcome {
	t.Helper()
	var o *Outcome
	synctest.Test(t, func(t *testing.T) {
		var err error
		if o, err = Run(t.Context(), c); err != nil {
			t.Fatal(err)
		}
	})
	return o
}

func TestStreamsKeepTheirOperationsUnderWay(t *testing.T) {
	f := newFake(10 * time.Millisecond)
	o := drive(t, Config{
		Driver: f, Streams: 3, Pendings: 4, Warmup: 100*time.Millisecond - time.Microsecond, Duration: time.Second,
		Workload: Workload{Keys: 100, WeakPercent: 50, WritePercent: 10},
	})
	s := o.Sample
	if s.Ops != 3*4*100 || s.InFlight != 12 || o.TotalOps != 3*4*110 {
		t.Errorf("%d operations of %d in flight, %d in all; want 1200 of 12, 1320", s.Ops, s.InFlight, o.TotalOps)
	}
	if p := s.Latency.Quantile(.99); math.Abs(float64(p)-10e6) > 1e5 {
		t.Errorf("p99 %d ns, want 10 ms", p)
	}
	if n := kvs.Of(s.Parts).Strong().Count() + kvs.Of(s.Parts).Weak().Count(); int64(n) != s.Ops {
		t.Errorf("the classes hold %d operations of %d", n, s.Ops)
	}
	if share := float64(kvs.Of(s.Parts).Weak().Count()) / float64(s.Ops); share < 0.45 || share > 0.55 {
		t.Errorf("%.2f of the operations are weak, want a half", share)
	}
	if share := float64(kvs.Of(s.Parts).StrongWrite.Count()+kvs.Of(s.Parts).WeakWrite.Count()) / float64(s.Ops); share < 0.07 || share > 0.13 {
		t.Errorf("%.2f of the operations are writes, want a tenth", share)
	}
	if kvs.Of(s.Parts).Wrong != 0 || s.Invalid != nil || kvs.Of(s.Parts).Checked == 0 || s.Errors != nil || s.Generator.Unfinished != 0 {
		t.Errorf("wrong %d (%q), checked %d, errors %v, unfinished %d", kvs.Of(s.Parts).Wrong, kvs.Of(s.Parts).Examples, kvs.Of(s.Parts).Checked, s.Errors, s.Generator.Unfinished)
	}
	if len(s.Series.Intervals) < 4 || s.Series.Intervals[1].Ops != 300 {
		t.Errorf("series %+v", s.Series)
	}
	if f.open != 0 {
		t.Errorf("%d sessions are still open", f.open)
	}
}

func TestCountEndsTheRun(t *testing.T) {
	var live atomic.Int64
	o := drive(t, Config{
		Driver: newFake(10 * time.Millisecond), Streams: 2, Pendings: 5, Count: 1000, Live: &live,
		Workload: Workload{Keys: 10, WritePercent: 100},
	})
	if o.Sample.Ops != 1000 || math.Abs(o.Sample.Seconds-1) > 1e-6 || live.Load() != 1000 {
		t.Errorf("%d operations in %v s, %d seen", o.Sample.Ops, o.Sample.Seconds, live.Load())
	}
	if kvs.Of(o.Sample.Parts).StrongWrite.Count() != 1000 || kvs.Of(o.Sample.Parts).StrongRead != nil || kvs.Of(o.Sample.Parts).WeakWrite != nil {
		t.Error("others than strong writes were done")
	}
}

func TestTheSameSeedDoesTheSame(t *testing.T) {
	run := func(seed uint64) map[string][]byte {
		f := newFake(time.Millisecond)
		drive(t, Config{Driver: f, Streams: 3, Count: 300, Workload: Workload{Keys: 50, WritePercent: 50, Skew: 0.9, OwnEvery: -1, Seed: seed}})
		return f.snapshot()
	}
	a, b, c := run(1), run(1), run(2)
	same := func(x, y map[string][]byte) bool {
		if len(x) != len(y) {
			return false
		}
		for k := range x {
			if _, ok := y[k]; !ok {
				return false
			}
		}
		return true
	}
	if !same(a, b) || same(a, c) {
		t.Errorf("keys written: %d and %d by one seed, %d by another", len(a), len(b), len(c))
	}
}

// Every way in which a store can betray its sessions that the checks claim to see.
func TestWrongAnswersAreSeen(t *testing.T) {
	own := keyName(10) + ":" // of the one stream
	isOwn := func(op *Op) bool { return strings.HasPrefix(op.Key, own) }
	first := map[string][]byte{}
	keep := func(op *Op) {
		if op.Class.Write() && first[op.Key] == nil {
			first[op.Key] = append([]byte(nil), op.Value...)
		}
	}
	tests := []struct {
		name  string
		spoil func(op *Op, a Answer) Answer
		wrong string // "": nothing is
	}{
		{"a sound store", func(_ *Op, a Answer) Answer { return a }, ""},
		{"a stale read", func(op *Op, a Answer) Answer {
			keep(op)
			if !op.Class.Write() && isOwn(op) && first[op.Key] != nil {
				return Answer{Value: first[op.Key], Found: true}
			}
			return a
		}, "had ended"},
		{"a write that is forgotten", func(op *Op, a Answer) Answer {
			if isOwn(op) {
				return Answer{}
			}
			return a
		}, "finds no value of its own key"},
		{"another key's value", func(op *Op, a Answer) Answer {
			keep(op)
			if !op.Class.Write() && op.Key != keyName(1) && first[keyName(1)] != nil {
				return Answer{Value: first[keyName(1)], Found: true}
			}
			return a
		}, "returned the value of"},
		{"a value that is cut short", func(op *Op, a Answer) Answer {
			if len(a.Value) > 0 {
				a.Value = a.Value[1:]
			}
			return a
		}, "that was never written"},
		{"a value from the future", func(op *Op, a Answer) Answer {
			if !op.Class.Write() && isOwn(op) {
				v := newValue(100)
				stamp(v, 10, 0, 1<<40)
				return Answer{Value: v, Found: true}
			}
			return a
		}, "and has written"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			clear(first)
			f := newFake(time.Millisecond)
			f.spoil = tt.spoil
			o := drive(t, Config{Driver: f, Pendings: 8, Count: 3000, Workload: Workload{Keys: 10, WeakPercent: 50, WritePercent: 50, OwnEvery: 4}})
			k := kvs.Of(o.Sample.Parts)
			if tt.wrong == "" {
				if k.Wrong != 0 || k.Checked < 100 || o.Sample.Invalid != nil {
					t.Errorf("wrong %d: %q; checked %d", k.Wrong, k.Examples, k.Checked)
				}
				return
			}
			if k.Wrong == 0 || len(o.Sample.Invalid) != 1 || !strings.Contains(strings.Join(k.Examples, "\n"), tt.wrong) {
				t.Errorf("wrong %d: %q; want some that say %q", k.Wrong, k.Examples, tt.wrong)
			}
		})
	}
}

// A store whose weak reads promise nothing is not blamed for what they miss, but
// for what its strong ones do.
func TestPromisesDecideWhatIsJudged(t *testing.T) {
	run := func(p Promises, stale Class) *Outcome {
		f := newFake(time.Millisecond)
		f.promises = p
		kept := map[string][]byte{}
		f.spoil = func(op *Op, a Answer) Answer {
			if op.Class.Write() && kept[op.Key] == nil {
				kept[op.Key] = append([]byte(nil), op.Value...)
			}
			if op.Class == stale && kept[op.Key] != nil {
				return Answer{Value: kept[op.Key], Found: true}
			}
			return a
		}
		return drive(t, Config{Driver: f, Count: 3000, Workload: Workload{Keys: 10, WeakPercent: 50, WritePercent: 50, OwnEvery: 4}})
	}
	if o := run(Promises{WeakReads: true}, WeakRead); kvs.Of(o.Sample.Parts).Wrong != 0 || kvs.Of(o.Sample.Parts).Checked == 0 {
		t.Errorf("weak reads that promise nothing: wrong %d, checked %d", kvs.Of(o.Sample.Parts).Wrong, kvs.Of(o.Sample.Parts).Checked)
	}
	if o := run(Promises{WeakReads: true, OwnWrites: true}, WeakRead); kvs.Of(o.Sample.Parts).Wrong == 0 {
		t.Error("weak reads that promise own writes miss them, and nothing is said")
	}
	if o := run(Promises{WeakReads: true}, StrongRead); kvs.Of(o.Sample.Parts).Wrong == 0 {
		t.Error("strong reads miss own writes, and nothing is said")
	}
	if o := run(Promises{}, WeakRead); kvs.Of(o.Sample.Parts).Wrong == 0 {
		t.Error("a store without weak reads does them as strong ones, which miss own writes, and nothing is said")
	}
}

// A second run on the same store is not held to what the first one has written.
func TestRunsOnOneStoreAreKeptApart(t *testing.T) {
	f := newFake(time.Millisecond)
	for range 2 {
		o := drive(t, Config{Driver: f, Streams: 2, Pendings: 3, Count: 500, Workload: Workload{Keys: 10, WritePercent: 50, OwnEvery: 2}})
		if kvs.Of(o.Sample.Parts).Wrong != 0 || kvs.Of(o.Sample.Parts).Checked == 0 {
			t.Errorf("wrong %d: %q; checked %d", kvs.Of(o.Sample.Parts).Wrong, kvs.Of(o.Sample.Parts).Examples, kvs.Of(o.Sample.Parts).Checked)
		}
	}
}

func TestTheFastPathIsCountedOfStrongWritesAlone(t *testing.T) {
	f := newFake(time.Millisecond)
	f.spoil = func(op *Op, a Answer) Answer {
		a.Fast = op.Class.Write()
		return a
	}
	o := drive(t, Config{Driver: f, Count: 1000, Workload: Workload{Keys: 10, WeakPercent: 50, WritePercent: 50}})
	if k := kvs.Of(o.Sample.Parts); k.Fast == nil || uint64(*k.Fast) != k.StrongWrite.Count() || k.WeakWrite.Count() == 0 {
		t.Errorf("fast %v of %d strong writes", k.Fast, k.StrongWrite.Count())
	}
	f.promises.TellsFast = false
	o = drive(t, Config{Driver: f, Count: 100, Workload: Workload{Keys: 10, WritePercent: 50}})
	if kvs.Of(o.Sample.Parts).Fast != nil {
		t.Error("the fast path is counted where nobody tells of it")
	}
}

func TestErrorsAreCountedByClass(t *testing.T) {
	f := newFake(time.Millisecond)
	n := 0
	f.spoil = func(_ *Op, a Answer) Answer {
		if n++; n%10 == 0 {
			return Answer{Err: ReplyError("CLUSTERDOWN no leader")}
		}
		return a
	}
	o := drive(t, Config{Driver: f, Count: 1000, Workload: Workload{Keys: 10}})
	if o.Sample.Ops != 900 || o.Sample.Errors["CLUSTERDOWN"] != 100 || o.Sample.FailedLatency.Count() != 100 || o.TotalOps != 900 {
		t.Errorf("%d operations, errors %v", o.Sample.Ops, o.Sample.Errors)
	}
}

func TestAStoreThatFailsForGoodEndsTheRun(t *testing.T) {
	f := newFake(time.Millisecond)
	f.spoil = func(*Op, Answer) Answer { return Answer{Err: errors.New("disk is on fire")} }
	synctest.Test(t, func(t *testing.T) {
		_, err := Run(t.Context(), Config{Driver: f, Pendings: 4, Duration: time.Hour, Workload: Workload{Keys: 10}})
		if err == nil || strings.Count(err.Error(), "disk is on fire") != 1 {
			t.Errorf("error %v, want the store's, once", err)
		}
	})
	refused := errors.New("refused")
	f.breaks = func(stream int) error {
		if stream == 2 {
			return refused
		}
		return nil
	}
	if _, err := Run(t.Context(), Config{Driver: f, Streams: 4, Count: 1, Workload: Workload{Keys: 10}}); !errors.Is(err, refused) || f.open != 0 {
		t.Errorf("error %v, %d sessions still open", err, f.open)
	}
}

func TestHungOperationsAreGivenUp(t *testing.T) {
	f := newFake(time.Hour)
	o := drive(t, Config{Driver: f, Streams: 2, Pendings: 3, Duration: time.Second, Drain: time.Second, Workload: Workload{Keys: 10}})
	if o.Sample.Ops != 0 || o.Sample.Generator.Unfinished != 6 {
		t.Errorf("%d operations, %d unfinished", o.Sample.Ops, o.Sample.Generator.Unfinished)
	}
}

func TestInterruptedRunSaysSo(t *testing.T) {
	enough := errors.New("enough")
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancelCause(t.Context())
		time.AfterFunc(time.Second, func() { cancel(enough) })
		f := newFake(time.Millisecond)
		if _, err := Run(ctx, Config{Driver: f, Duration: time.Hour, Workload: Workload{Keys: 10}}); !errors.Is(err, enough) || f.open != 0 {
			t.Errorf("error %v, %d sessions still open", err, f.open)
		}
	})
}

func TestRunIsRefused(t *testing.T) {
	f := newFake(0)
	w := Workload{Keys: 1}
	gone := errors.New("gone")
	for name, c := range map[string]Config{
		"no driver":     {Duration: 1, Workload: w},
		"nothing to do": {Driver: f, Workload: w},
		"negative":      {Driver: f, Duration: 1, Streams: -1, Workload: w},
		"no keys":       {Driver: f, Duration: 1},
		"percent":       {Driver: f, Duration: 1, Workload: Workload{Keys: 1, WeakPercent: 101}},
		"small values":  {Driver: f, Duration: 1, Workload: Workload{Keys: 1, ValueBytes: 3}},
		"skew":          {Driver: f, Duration: 1, Workload: Workload{Keys: 1, Skew: math.NaN()}},
		"unwatchable":   {Driver: f, Count: 1, Workload: w, Watch: map[string]func() (measure.Usage, error){"server": func() (measure.Usage, error) { return measure.Usage{}, gone }}},
	} {
		if _, err := Run(t.Context(), c); err == nil {
			t.Errorf("%s: was taken", name)
		}
	}
}
