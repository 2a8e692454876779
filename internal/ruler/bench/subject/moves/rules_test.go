package moves

import (
	"strings"
	"testing"

	"github.com/weirdb/weir/internal/measure"
	"github.com/weirdb/weir/internal/ruler/bench"
	"github.com/weirdb/weir/internal/ruler/bench/benchtest"
)

// move makes a case of six rounds of data that was moved: seconds each, stored
// and peak in MB, CPU seconds of both sides.
func move(name string, seconds, stored, peak, client, server float64, change ...func(*bench.Sample)) *bench.Case {
	c := &bench.Case{Name: name, Factors: map[string]string{"way": name}}
	for round := range 6 {
		s := bench.Sample{
			Round: round, Ops: 1, Seconds: seconds * (1 + float64(round%3)/100),
			Parts: []bench.Part{&Transfer{PlainBytes: 100e6, StoredBytes: int64(stored * 1e6), PeakBytes: int64(peak * 1e6), Verified: "rows", Rows: 10}},
			Processes: map[string]measure.Usage{
				bench.RoleClient: {UserSeconds: client}, bench.RoleServer: {UserSeconds: server},
			},
		}
		for _, f := range change {
			f(&s)
		}
		c.Samples = append(c.Samples, s)
	}
	return c
}

// sized is a case of one way at a size.
func sized(name, way, bytes string, peak float64) *bench.Case {
	c := move(name, 1, 30, peak, 0.5, 0.5)
	c.Factors = map[string]string{"way": way, "bytes": bytes}
	return c
}

func TestFindingsForAndAgainst(t *testing.T) {
	for _, tc := range []struct {
		id, name string
		in       *bench.Result
		want     string // part of the claim and its evidence; "" for none
	}{
		{"fastest", "one of two", benchtest.Result("", move("a", 4, 30, 20, 1, 1), move("b", 2, 30, 20, 1, 1)), "b takes the least time: 2.02 s, 49.5 MB/s"},
		{"fastest", "alike", benchtest.Result("", move("a", 2, 30, 20, 1, 1), move("b", 2, 30, 20, 1, 1)), "cannot be told from it"},
		{"fastest", "alone", benchtest.Result("", move("a", 4, 30, 20, 1, 1)), ""},
		{"ratio", "better", benchtest.Result("", move("a", 4, 30, 20, 1, 1), move("b", 2, 30, 20, 1, 1)), "b is better than a: 2.00x"},
		{"bargains", "one is beaten", benchtest.Result("", move("a", 4, 30, 20, 1, 1), move("b", 2, 40, 20, 1, 1), move("c", 3, 50, 20, 1, 1)), "faster and smaller than a, b."},
		{"bargains", "two only", benchtest.Result("", move("a", 4, 30, 20, 1, 1), move("b", 2, 40, 20, 1, 1)), ""},
		{"memory", "bounded", benchtest.Result("", sized("s", "weir", "10", 50), sized("l", "weir", "100", 55)), "10.0 times the data take 1.10x [1.10, 1.10] of the memory: it is bounded"},
		{"memory", "grows", benchtest.Result("", sized("s", "weir", "10", 50), sized("l", "weir", "100", 400)), "it grows with the data"},
		{"memory", "between", benchtest.Result("", sized("s", "weir", "10", 50), sized("l", "weir", "100", 100)), "more, but less than the data"},
		{"fastest", "of two sizes", benchtest.Result("", sized("s", "weir", "10", 50), sized("l", "weir", "100", 100)), ""},
		{"ratio", "of two sizes", benchtest.Result("", sized("s", "weir", "10", 50), sized("l", "weir", "100", 100)), ""},
		{"memory", "same size", benchtest.Result("", sized("s", "weir", "10", 50), sized("l", "weir", "10", 100)), ""},
		{"bound-by-client", "compression", benchtest.Result("", move("a", 1, 30, 20, 1.5, 0.4)), "a: itself 74 %, the server 20 % of 2 processors"},
		{"bound-by-client", "server", benchtest.Result("", move("a", 1, 30, 20, 0.4, 1.5)), ""},
		{"bound-by-server", "server", benchtest.Result("", move("a", 1, 30, 20, 0.4, 1.5)), "the server 74 %"},
		{"bound-by-server", "compression", benchtest.Result("", move("a", 1, 30, 20, 1.5, 0.4)), ""},
		{"bound-by-waiting", "idle", benchtest.Result("", move("a", 1, 30, 20, 0.1, 0.1)), "is unused"},
		{"bound-by-waiting", "busy", benchtest.Result("", move("a", 1, 30, 20, 1, 0.5)), ""},
		{"unverified", "nobody looked", benchtest.Result("", move("a", 1, 30, 20, 1, 1, func(s *bench.Sample) { Of(s.Parts).Verified = "" })), "a: 6 of 6 rounds"},
		{"unverified", "looked", benchtest.Result("", move("a", 1, 30, 20, 1, 1)), ""},
		{"client-bound", "a rule that is not for moves", benchtest.Result("", move("a", 1, 30, 20, 1.5, 0.4)), ""},
	} {
		got := benchtest.Claims(tc.in.Findings, tc.id)
		if tc.want == "" && got != "" || !strings.Contains(got, tc.want) {
			t.Errorf("%s, %s: said %q, want %q", tc.id, tc.name, got, tc.want)
		}
	}
}

func TestMetrics(t *testing.T) {
	c := move("a", 2, 25, 20, 1, 0.04)
	s := &c.Samples[0]
	for key, want := range map[string]float64{"wall": 2, "plain_rate": 50, "client_s": 1, "peak": 20, "stored": 25, "squeeze": 4} {
		m, ok := bench.MetricByKey(key, Subject)
		if !ok {
			t.Fatalf("no metric %s", key)
		}
		if v, ok := m.Of(s); !ok || v != want {
			t.Errorf("%s is %v, %v; want %v", key, v, ok, want)
		}
	}
	if v, ok := bench.MustMetric("server_s", Subject).Of(s); ok {
		t.Errorf("40 ms of CPU time, four ticks, count as %v s", v)
	}
	other := bench.Sample{Seconds: 1, Ops: 1000, InFlight: 8}
	for _, m := range metrics() {
		if v, ok := m.Of(&other); ok {
			t.Errorf("%s is %v of a sample that moved nothing", m.Key, v)
		}
	}
}
