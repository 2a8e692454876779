package profile

import (
	"context"
	"testing"
	"time"

	"github.com/weirdb/weir/internal/bench"
	"github.com/weirdb/weir/internal/lab"
	"github.com/weirdb/weir/internal/lab/labtest"
)

// connected returns a target that is closed with the test.
func connected(t *testing.T, dsn string) *Target {
	t.Helper()
	target, err := ParseTarget(dsn)
	if err != nil {
		t.Fatal(err)
	}
	if err := target.Connect(t.Context()); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := target.Close(); err != nil {
			t.Errorf("close target: %v", err)
		}
	})
	return target
}

// prepared returns a workload whose tables go with the test.
func prepared(t *testing.T, target *Target, name string) *Workload {
	t.Helper()
	w, err := target.Prepare(t.Context(), name, 1000)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := w.Drop(context.Background()); err != nil {
			t.Error(err)
		}
	})
	return w
}

func postgresTarget(t *testing.T) (*lab.Postgres, *Target) {
	t.Helper()
	pg := labtest.Postgres(t, lab.PostgresConfig{Durability: lab.Fast, Settings: map[string]string{"track_wal_io_timing": "on"}})
	target := connected(t, pg.DSN("postgres"))
	if _, err := target.admin.ExecContext(t.Context(), "CREATE EXTENSION IF NOT EXISTS pg_stat_statements"); err != nil {
		t.Logf("without pg_stat_statements: %v", err)
	}
	return pg, target
}

// brief is a short run.
var brief = Config{Concurrency: 4, PoolMax: 2, Requests: 400, Warmup: 200 * time.Millisecond}

// checkBoundary checks what must hold of every sample, whatever was measured.
func checkBoundary(t *testing.T, latencySum, count uint64, b *bench.Boundary) {
	t.Helper()
	if b == nil {
		t.Fatal("no boundary")
	}
	if len(b.Segments) != int(segments) {
		t.Errorf("%d segments, want %d", len(b.Segments), segments)
	}
	var sum uint64
	for _, s := range b.Segments {
		sum += s.Hist.Sum()
		if s.Hist.Count() != count {
			t.Errorf("segment %s has %d values for %d operations", s.Name, s.Hist.Count(), count)
		}
	}
	if sum != latencySum {
		t.Errorf("segments add up to %d ns, latencies to %d ns", sum, latencySum)
	}
}

func checkSample(t *testing.T, s *bench.Sample) {
	t.Helper()
	if s.Ops == 0 || s.Seconds <= 0 || s.Latency == nil {
		t.Fatalf("empty sample: %+v", s)
	}
	checkBoundary(t, s.Latency.Sum(), s.Latency.Count(), s.Boundary)
	if s.Cold != nil {
		checkBoundary(t, s.Cold.Latency.Sum(), s.Cold.Latency.Count(), s.Cold.Boundary)
	}
}

func TestEveryWorkloadOnPostgres(t *testing.T) {
	_, target := postgresTarget(t)
	for name := range Workloads() {
		t.Run(name, func(t *testing.T) {
			w := prepared(t, target, name)
			s, err := target.Measure(t.Context(), w, brief)
			if err != nil {
				t.Fatal(err)
			}
			checkSample(t, &s)
			// Those under way when the window opened are in it, too.
			if most := brief.Requests + int64(brief.Concurrency); s.Ops < brief.Requests || s.Ops > most {
				t.Errorf("%d operations, want %d to %d", s.Ops, brief.Requests, most)
			}
		})
	}
}

func TestOverheadIsMeasured(t *testing.T) {
	_, target := postgresTarget(t)
	w := prepared(t, target, "point-select")
	for _, c := range []int{1, 16} {
		o, err := target.MeasureOverhead(t.Context(), w, Config{Concurrency: c}, OverheadConfig{Pairs: 40, Slice: 60 * time.Millisecond})
		if err != nil {
			t.Fatal(err)
		}
		t.Log(o)
	}
}
