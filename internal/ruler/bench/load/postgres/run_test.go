package pgload

import (
	"context"
	"errors"
	"math"
	"strings"
	"testing"
	"time"

	"github.com/weirdb/weir/internal/lab"
	"github.com/weirdb/weir/internal/lab/labtest"
	"github.com/weirdb/weir/internal/measure"
	"github.com/weirdb/weir/internal/ruler/bench"
	"github.com/weirdb/weir/internal/ruler/bench/load"
)

func TestRunAgainstPostgreSQL(t *testing.T) {
	pg := labtest.Postgres(t, lab.PostgresConfig{})
	dsn := pg.DSN("postgres")
	ctx := t.Context()
	for name, c := range map[string]load.Config{
		"insert":                {Workload: load.Insert{}, Connections: 8},
		"insert, one client":    {Workload: load.Insert{Hint: "/* batch:10 */"}, Connections: 1},
		"insert, simple":        {Workload: load.Insert{}, Connections: 5, Threads: 3, Text: true},
		"insert, some fail":     {Workload: load.Insert{FailPercent: 10}, Connections: 8},
		"insert, simple + fail": {Workload: load.Insert{FailPercent: 10}, Connections: 4, Text: true},
		"select":                {Workload: load.Select{Keys: 500}, Connections: 8},
		"update":                {Workload: load.Update{Keys: 50}, Connections: 8},
		"update, simple":        {Workload: load.Update{Keys: 50, Hint: "/* batch */"}, Connections: 3, Text: true},
		"select, simple":        {Workload: load.Select{Keys: 500}, Connections: 3, Text: true},
	} {
		t.Run(name, func(t *testing.T) {
			c.DSN, c.Count = dsn, 600
			if err := Protocol.Setup(ctx, dsn, c.Workload); err != nil {
				t.Fatal(err)
			}
			c.Watch = map[string]func() (measure.Usage, error){
				bench.RoleServer: func() (measure.Usage, error) { return measure.Tree(pg.PID()) },
			}
			o, err := Protocol.Run(ctx, c)
			if err != nil {
				t.Fatal(err)
			}
			s := o.Sample
			if len(s.Errors) > 0 {
				t.Fatalf("errors %v: %q", s.Errors, o.WrongExamples)
			}
			if o.TotalOps != 600 || o.Ledger.Sent() != 600 || o.Ledger.Unknown() != 0 || s.Ops != 600 {
				t.Errorf("%d operations, %d in the window, %d sent, %d unknown; want 600", o.TotalOps, s.Ops, o.Ledger.Sent(), o.Ledger.Unknown())
			}
			if s.Latency.Count() != uint64(s.Ops) || s.Seconds <= 0 || s.InFlight != c.Connections {
				t.Errorf("%d latencies for %d operations in %v s", s.Latency.Count(), s.Ops, s.Seconds)
			}
			if s.Processes[bench.RoleServer].Processes < c.Connections {
				t.Errorf("server tree = %+v", s.Processes[bench.RoleServer])
			}
			if w, ok := c.Workload.(load.Update); ok {
				if sum, err := Protocol.Count(ctx, dsn, w); err != nil || w.Check(sum, o) != nil || w.Check(sum+1, o) == nil || w.Check(sum-1, o) == nil {
					t.Errorf("%d updates of %d in the table, %v", sum, o.TotalOps, err)
				}
			}
			if w, ok := c.Workload.(load.Insert); ok {
				a, err := Protocol.Verify(ctx, dsn, w, o)
				if err != nil {
					t.Fatal(err)
				}
				if err := a.Err(); err != nil {
					t.Error(err)
				}
				if w.FailPercent > 0 && a.Rows == 600 {
					t.Error("no operation failed")
				}
			}
		})
	}
}

func TestRunByDurationObeysLittlesLaw(t *testing.T) {
	pg := labtest.Postgres(t, lab.PostgresConfig{})
	w := load.Select{Keys: 100}
	if err := Protocol.Setup(t.Context(), pg.DSN("postgres"), w); err != nil {
		t.Fatal(err)
	}
	o, err := Protocol.Run(t.Context(), load.Config{DSN: pg.DSN("postgres"), Workload: w, Connections: 16, Warmup: 50 * time.Millisecond, Duration: 400 * time.Millisecond})
	if err != nil {
		t.Fatal(err)
	}
	s := o.Sample
	if o.TotalOps <= s.Ops {
		t.Errorf("%d operations in all, %d measured: the warm-up is not cut off", o.TotalOps, s.Ops)
	}
	// An operation is counted by its end, so the sum of latencies differs from
	// clients x window by at most the longest latency per client at either end.
	sum, want, slack := float64(s.Latency.Sum()), 16*s.Seconds*1e9, 16*float64(s.Latency.Max())+1e7
	if math.Abs(sum-want) > 2*slack {
		t.Errorf("latencies sum up to %.0f ms, clients x window is %.0f ms", sum/1e6, want/1e6)
	}
}

func TestRunReportsALostServer(t *testing.T) {
	pg := labtest.Postgres(t, lab.PostgresConfig{})
	if err := Protocol.Setup(t.Context(), pg.DSN("postgres"), load.Insert{}); err != nil {
		t.Fatal(err)
	}
	killed := false
	o, err := Protocol.Run(t.Context(), load.Config{
		DSN: pg.DSN("postgres"), Workload: load.Insert{}, Connections: 4, Duration: time.Hour,
		Watch: map[string]func() (measure.Usage, error){"killer": func() (measure.Usage, error) {
			if !killed {
				killed = true
				pg.Kill()
			}
			return measure.Usage{}, nil
		}},
	})
	if err != nil {
		t.Fatal(err)
	}
	if got := o.Sample.Errors[load.ClassLost]; got != 4 {
		t.Errorf("errors = %v, want 4 lost connections (%q)", o.Sample.Errors, o.WrongExamples)
	}
	if u := o.Ledger.Unknown(); u > 4 {
		t.Errorf("%d operations unknown, at most 4 were in flight", u)
	}
}

func TestRunEndsWithItsContext(t *testing.T) {
	pg := labtest.Postgres(t, lab.PostgresConfig{})
	if err := Protocol.Setup(t.Context(), pg.DSN("postgres"), load.Insert{}); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	_, err := Protocol.Run(ctx, load.Config{
		DSN: pg.DSN("postgres"), Workload: load.Insert{}, Connections: 2, Duration: time.Hour,
		Watch: map[string]func() (measure.Usage, error){"stop": func() (measure.Usage, error) {
			cancel()
			return measure.Usage{}, nil
		}},
	})
	if !errors.Is(err, context.Canceled) {
		t.Errorf("error = %v, want context.Canceled", err)
	}
}

func TestConfigIsRefusedByName(t *testing.T) {
	for want, c := range map[string]load.Config{
		"DSN":      {Workload: load.Insert{}, Count: 1},
		"workload": {DSN: "x", Count: 1},
		"duration": {DSN: "x", Workload: load.Insert{}},
	} {
		if _, err := Protocol.Run(t.Context(), c); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("error = %v, want mention of %s", err, want)
		}
	}
}
