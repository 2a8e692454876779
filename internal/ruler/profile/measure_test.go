package profile

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/weirdb/weir/internal/lab"
	"github.com/weirdb/weir/internal/lab/labtest"
	"github.com/weirdb/weir/internal/measure"
	"github.com/weirdb/weir/internal/ruler/bench"
	"github.com/weirdb/weir/internal/testkit"
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
	var inSides uint64
	for name, want := range map[string]*measure.Hist{"acquire": b.Acquire, "query": b.Query} {
		if want == nil || want.Count() != count {
			t.Fatalf("%s is not known of all %d operations: %+v", name, count, want)
		}
		inSides += want.Sum()
	}
	outside := b.Segment(bench.SegmentSchedule).Sum() + b.Segment(bench.SegmentRelease).Sum() + b.Segment(bench.SegmentHarness).Sum()
	if inSides+outside != sum {
		t.Errorf("acquire and query are %d ns, the segments of neither %d ns, all segments %d ns", inSides, outside, sum)
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

func TestEveryWorkloadOnMariaDB(t *testing.T) {
	m := labtest.MariaDB(t, lab.MySQLConfig{Durability: lab.Fast})
	target := connected(t, m.DSN(""))
	if target.Engine != EngineMariaDB || target.Server().Name != "MariaDB" {
		t.Errorf("engine %s, server %+v; the URL says mysql and the server is MariaDB", target.Engine, target.Server())
	}
	for name := range Workloads() {
		t.Run(name, func(t *testing.T) {
			w := prepared(t, target, name)
			s, err := target.Measure(t.Context(), w, brief)
			if err != nil {
				t.Fatal(err)
			}
			checkSample(t, &s)
			if len(s.Errors) > 0 {
				t.Errorf("errors: %v", s.Errors)
			}
			if _, ok := s.Processes[bench.RoleServer]; !ok {
				t.Error("the server's process was not found")
			}
			if len(s.Boundary.Inside) == 0 {
				t.Errorf("nothing is known of the inside of the server: %q", s.Boundary.Unavailable)
			}
		})
	}
}

func TestDriversAndTransports(t *testing.T) {
	testkit.Long(t, "measures every driver on both engines")
	_, target := postgresTarget(t)
	m := labtest.MariaDB(t, lab.MySQLConfig{Durability: lab.Fast})
	maria := connected(t, m.DSN(""))
	for _, target := range []*Target{target, maria} {
		w := prepared(t, target, "tpcb")
		for _, driver := range Drivers(target.Engine) {
			for _, transport := range []Transport{{Kind: "tcp"}, {Kind: "unix"}, {RTT: 2 * time.Millisecond}} {
				t.Run(target.Engine+" "+driver+" "+transport.String(), func(t *testing.T) {
					c := brief
					c.Requests = 60
					c.Driver, c.Transport = driver, transport
					s, err := target.Measure(t.Context(), w, c)
					if err != nil {
						t.Fatal(err)
					}
					checkSample(t, &s)
					if len(s.Errors) > 0 {
						t.Errorf("errors: %v", s.Errors)
					}
					if want := transport.Kind != "unix"; s.Boundary.ArrivalKnown != want {
						t.Errorf("arrival known: %v, want %v", s.Boundary.ArrivalKnown, want)
					}
					// Each of seven statements crosses the relay there and back.
					if floor := 7 * transport.RTT; s.Latency.Min() < int64(floor) {
						t.Errorf("an operation took %v, and seven round trips take %v", time.Duration(s.Latency.Min()), floor)
					}
				})
			}
		}
	}
}

func TestModes(t *testing.T) {
	target := connected(t, "sleep://?latency=1ms&jitter=200us&connect=1ms")
	w := prepared(t, target, "ping")
	for _, mode := range []Mode{Sequential, Threads, Async} {
		c := Config{Mode: mode, Concurrency: 6, PoolMax: 3, Requests: 60, Cold: true}
		s, err := target.Measure(t.Context(), w, c)
		if err != nil {
			t.Fatalf("%s: %v", mode, err)
		}
		checkSample(t, &s)
		want := 6
		if mode == Sequential {
			want = 1
		}
		if s.InFlight != want {
			t.Errorf("%s: %d in flight, want %d", mode, s.InFlight, want)
		}
		b := s.Boundary
		if n := int64(min(want, 3)); b.Connects != n || !b.Cold {
			t.Errorf("%s: %d connections opened, cold %v; want %d from an empty pool", mode, b.Connects, b.Cold, n)
		}
		if b.Segment(bench.SegmentConnect).Max() < int64(time.Millisecond) {
			t.Errorf("%s: opening a connection took %d ns, and sleeps 1 ms", mode, b.Segment(bench.SegmentConnect).Max())
		}
		if min := b.Segment(bench.SegmentServer).Min(); min < int64(800*time.Microsecond) {
			t.Errorf("%s: an operation was %d ns in the server, and sleeps 0.8 ms at least", mode, min)
		}
	}
}

// Ten workers share one connection. Nine of them wait at any time, so at least nine tenths of
// the time is the wait for it. None of that is time in which a worker has the connection.
func TestAPoolThatIsTooSmallShows(t *testing.T) {
	target := connected(t, "sleep://?latency=2ms")
	s, err := target.Measure(t.Context(), prepared(t, target, "ping"), Config{Concurrency: 10, PoolMax: 1, Requests: 200, Warmup: time.Second})
	if err != nil {
		t.Fatal(err)
	}
	checkSample(t, &s)
	if share := s.Boundary.Share(bench.SegmentQueue); share < 0.85 {
		t.Errorf("%.3f of the time is the queue, want nine tenths", share)
	}
	if min := s.Boundary.Segment(bench.SegmentServer).Min(); min < int64(2*time.Millisecond) {
		t.Errorf("an operation was %d ns in the server, and sleeps 2 ms", min)
	}
}

func TestOpenLoopCountsFromTheIntendedStart(t *testing.T) {
	target := connected(t, "sleep://?latency=10ms")
	// One worker does 100 a second at the most, and 200 are due.
	s, err := target.Measure(t.Context(), prepared(t, target, "ping"), Config{Concurrency: 1, Rate: 200, Requests: 60, Cold: true})
	if err != nil {
		t.Fatal(err)
	}
	checkSample(t, &s)
	if s.Service == nil || s.Generator.TargetRate != 200 || s.InFlight != 0 {
		t.Fatalf("not an open loop: %+v", s.Generator)
	}
	// Each is late by 5 ms more than the one before, on a slow machine by more: by
	// 290 ms in the end, half of that in the mean.
	schedule := s.Boundary.Segment(bench.SegmentSchedule)
	if late := s.Latency.Mean() - s.Service.Mean(); late < 140e6 || schedule.Max() < int64(280*time.Millisecond) {
		t.Errorf("latency is %.0f ns above service in the mean, starts late by up to %d ns: those that had to wait are missing",
			late, schedule.Max())
	}
}

func TestOverheadIsMeasured(t *testing.T) {
	target := connected(t, "sleep://?latency=100us")
	w, slice := prepared(t, target, "ping"), 30*time.Millisecond
	measured := func() (*bench.Overhead, error) {
		return target.MeasureOverhead(t.Context(), w, Config{Concurrency: 4}, OverheadConfig{Pairs: 6, Slice: slice})
	}
	o, err := measured()
	for ; errors.Is(err, ErrNothing) && slice < 10*time.Second; o, err = measured() {
		slice *= 2 // a busy machine stood still in nearly all of them
	}
	if err != nil {
		t.Fatal(err)
	}
	// A slice in which the machine stood still is left out with its pair.
	if o.Rate.N < 2 || o.Rate.N > 6 || o.CPU.N != o.Rate.N || o.Rate.Median <= 0 || o.CPU.Median <= 0 || o.Concurrency != 4 {
		t.Errorf("overhead = %+v", o)
	}
}

func TestDeepLookExplainsTheServer(t *testing.T) {
	_, target := postgresTarget(t)
	w := prepared(t, target, "update")
	c := brief
	c.Deep = true
	s, err := target.Measure(t.Context(), w, c)
	if err != nil {
		t.Fatal(err)
	}
	checkSample(t, &s)
	// How much of the time is explained depends on who else has the processors.
	// That the server had the requests, and worked on them, does not.
	var seen, worked bool
	for _, p := range s.Boundary.Inside {
		if p.MeanNs <= 0 {
			t.Errorf("part %q is %v ns long", p.Name, p.MeanNs)
		}
		seen = seen || p.Source == "eBPF"
		worked = worked || p.Source == "eBPF" && p.Name == "on a processor"
		if p.Source != "eBPF" && seen && !p.Nested {
			t.Errorf("%s of %s lies inside what eBPF saw, and is not marked so", p.Name, p.Source)
		}
	}
	if !seen {
		for _, u := range s.Boundary.Unavailable {
			if strings.Contains(u, "eBPF") {
				t.Skip(u)
			}
		}
		t.Fatalf("nothing was seen by eBPF, and no reason given: %q", s.Boundary.Unavailable)
	}
	if !worked {
		t.Errorf("the server took no processor: %+v", s.Boundary.Inside)
	}
}

// TLS lies above what is watched: the segments are those of the encrypted bytes.
func TestEncryptedConnections(t *testing.T) {
	pg := labtest.Postgres(t, lab.PostgresConfig{Durability: lab.Fast, TLS: lab.TLSRequired})
	m := labtest.MariaDB(t, lab.MySQLConfig{Durability: lab.Fast, TLS: lab.TLSRequired})
	for _, dsn := range []string{pg.DSN("postgres"), m.DSN("")} {
		target := connected(t, dsn)
		w := prepared(t, target, "point-select")
		for _, driver := range Drivers(target.Engine) {
			c := brief
			c.Driver, c.Requests = driver, 100
			s, err := target.Measure(t.Context(), w, c)
			if err != nil {
				t.Fatalf("%s: %v", driver, err)
			}
			checkSample(t, &s)
			if b := s.Boundary; !b.ArrivalKnown || b.RoundTrips < s.Ops {
				t.Errorf("%s: %d round trips of %d operations were seen, arrivals known: %v", driver, b.RoundTrips, s.Ops, b.ArrivalKnown)
			}
		}
	}
}
