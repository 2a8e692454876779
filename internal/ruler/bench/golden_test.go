package bench_test

import (
	"bytes"
	"encoding/json"
	"flag"
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/weirdb/weir/internal/measure"
	"github.com/weirdb/weir/internal/ruler/bench"
	"github.com/weirdb/weir/internal/ruler/bench/subject"
	"github.com/weirdb/weir/internal/ruler/bench/subject/kvs"
	"github.com/weirdb/weir/internal/ruler/bench/subject/messages"
	"github.com/weirdb/weir/internal/ruler/bench/subject/moves"
)

var update = flag.Bool("update", false, "rewrite golden files")

// full returns a result in which every field has a value: what the schema can
// hold.
func full(t *testing.T) *bench.Result {
	t.Helper()
	hist := func(ns ...int64) *measure.Hist {
		h := &measure.Hist{}
		for _, v := range ns {
			h.Record(v)
		}
		return h
	}
	flush := func(p50 int64) *measure.Flush {
		return &measure.Flush{Bytes: 8192, Count: 100, P50Ns: p50, P99Ns: 2 * p50, MaxNs: 3 * p50}
	}
	usage := measure.Usage{
		UserSeconds: 0.5, SystemSeconds: 0.25, RSSBytes: 1 << 20, PeakRSSBytes: 2 << 20, Voluntary: 10, Involuntary: 3,
		Threads: 4, Processes: 1, ReadCalls: 100, WriteCalls: 200, CallsKnown: true,
	}
	boundary := &bench.Boundary{
		Acquire: hist(100), Query: hist(800),
		Segments:     []bench.Segment{{Name: bench.SegmentQueue, Hist: hist(100, 200)}, {Name: bench.SegmentServer, Hist: hist(900, 1800)}},
		ArrivalKnown: true, Overtaken: 1, RoundTrips: 2, Cold: true, PoolMax: 5, Connects: 5,
		Inside:      []bench.ServerPart{{Name: "execution", MeanNs: 400, Source: "pg_stat_statements", Nested: true}},
		Unavailable: []string{"eBPF: not permitted"},
	}
	limit, floor := 2.5, 100.0
	r := &bench.Result{
		Schema: bench.Schema, ID: "fixture-20260102-030405",
		Started: time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC), Finished: time.Date(2026, 1, 2, 3, 5, 5, 0, time.UTC),
		Env: measure.Environment{
			Time: time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC), CPU: "Example CPU", Cores: 2, GOMAXPROCS: 2, MemoryBytes: 8 << 30,
			OS: "Example Linux", Kernel: "6.1", Virtualisation: "none seen", ClockSource: "tsc", GoVersion: "go1.26", Commit: "0123456789ab",
			Command: []string{"weir", "bench"}, Durability: "prod",
			Servers:     []measure.Server{{Name: "PostgreSQL", Version: "15.1", Settings: map[string]string{"fsync": "on"}}},
			FsyncBefore: flush(60_000), FsyncAfter: flush(70_000),
			PressureBefore: measure.Pressure{Known: true, CPUSome: 1, IOSome: 2, MemSome: 3, Load1: 0.5, Runnable: 1},
			PressureAfter:  measure.Pressure{Known: true, CPUSome: 4, IOSome: 5, MemSome: 6, Load1: 1.5, Runnable: 2},
		},
		Experiment: bench.Description{
			Name: "fixture", Title: "All fields", Factors: map[string]string{"clients": "8"}, Rounds: 2, Warmup: 1, Loop: "open",
			Baseline: "a", Sweep: "window", Adaptive: "auto", SweepUnit: "ms", Shuffle: true,
			Constraints: []bench.Constraint{{Metric: "p99", Max: &limit}, {Metric: "rate", Min: &floor}},
		},
		Warnings: []string{"a warning of the run"}, Partial: true,
		Overhead: []bench.Overhead{{
			Concurrency: 8, SliceSeconds: 0.06,
			Rate: bench.Interval{Median: 0.98, Lo: 0.97, Hi: 0.99, N: 40, Confidence: 0.95, Method: "bootstrap of the median log ratio", P: 0.001},
			CPU:  bench.Interval{Median: 1.05, Lo: 1.03, Hi: 1.07, N: 40, Confidence: 0.95, Method: "bootstrap of the median log ratio", P: 0.001},
		}},
	}
	for i, name := range []string{"a", "b", "broken"} { // the last one broke a promise

		c := &bench.Case{Name: name, Factors: map[string]string{"window": name}}
		for round := range 2 {
			c.Samples = append(c.Samples, bench.Sample{
				Round: round, Started: time.Date(2026, 1, 2, 3, 4, 10*round+i, 0, time.UTC), Seconds: 1, Ops: 2,
				Errors: map[string]int64{"40001": 1}, InFlight: 8, MeanInFlight: 7.5,
				Latency: hist(1000, 2000), Service: hist(900, 1900), FailedLatency: hist(5000), Boundary: boundary,
				Series: &measure.Series{IntervalSeconds: 1, Intervals: []measure.Interval{{Ops: 2, Errors: 1, P50Ns: 1000, P99Ns: 2000, MaxNs: 2000}}},
				Cold:   &bench.Cold{Seconds: 0.5, Ops: 1, Latency: hist(9000), Boundary: boundary, Steady: true},
				Generator: &measure.Generator{
					TargetRate: 3, Intended: 3, Dropped: 1, Answered: 2, Unfinished: 1, MaxBacklog: 1,
					LateP50Ns: 50_000, LateP99Ns: 90_000, LateMaxNs: 100_000, CPUShare: 0.1, PauseShare: 0.01, PauseMaxNs: 1000,
				},
				Rates:     map[string]float64{"enqueue": 1, "consume": 1},
				Processes: map[string]measure.Usage{bench.RoleClient: usage, bench.RoleProxy: usage, bench.RoleServer: usage},
				Machine: &measure.Activity{
					Seconds: 1, BusySeconds: 1, StealSeconds: 0.5, CPUKnown: true, CPUWait: 0.1, IOWait: 0.2, IOWaitAll: 0.05,
					MemoryWait: 0.01, PressureKnown: true,
				},
				Server: &bench.ServerCounters{Ops: 2, Fsyncs: 1, LogWrites: 2, LogBytes: 300, LogRecords: 4, Commits: 2, Rollbacks: 1, PageRequests: 12, PageReads: 2},
				Groups: &bench.Groups{Flushes: 1, Items: 2, Largest: 2},
				Parts: []bench.Part{
					&messages.Outbox{
						PayloadBytes: 512, AckedSeconds: 1.5, FromStart: hist(3000, 4000), FromCommit: hist(1000, 2000), MaxLag: 2,
						Lag:      []messages.LagPoint{{AtSeconds: 0.1, Committed: 2, Delivered: 1}},
						Ledger:   messages.Ledger{Handed: 9, Committed: 7, Unknown: 1, Delivered: 6, Lost: 1, Duplicates: 2, Disordered: 3, Strangers: 4, Pending: 5},
						Settings: map[string]string{"claim": "poll"}, ClaimPages: 0.5,
					},
					&moves.Transfer{PlainBytes: 2000, StoredBytes: 1000, PeakBytes: 4 << 20, AllocatedBytes: 64, Verified: "counts", Rows: 7, Inside: map[string]float64{moves.InsideServer: 60, "goroutines": 16}},
					&kvs.KV{
						StrongRead: hist(1000), StrongWrite: hist(4000), WeakRead: hist(300), WeakWrite: hist(900), Fast: new(int64(1)), Missed: 1, Checked: 2, Wrong: 3,
						Examples: []string{"weak read: too old"}, Settings: map[string]string{"preset": "raft"}, Counters: map[string]float64{"rounds": 7}, RSSBytes: []int64{1 << 20},
					},
				},
				Pressure:    measure.Pressure{Known: true, CPUSome: 1, IOSome: 2, MemSome: 3, Load1: 0.5, Runnable: 1},
				FsyncBefore: flush(60_000), FsyncAfter: flush(61_000),
				Warnings: []string{"a warning of the round"},
			})
			if name == "broken" {
				c.Samples[round].Invalid = []string{"1 of 7 committed messages were lost"}
			}
		}
		r.Cases = append(r.Cases, c)
	}
	r.Evaluate()
	return r
}

// A field of a result that keeps its zero value in full is not covered by the
// fixture, nor by what is compared with it.
func TestFixtureFillsEveryField(t *testing.T) {
	computed := []string{"Comparison.Differs", "Comparison.Needed", "Comparison.LeftOut", "Interval.P", "Interval.Lo", "Interval.Hi", "Finding.Advice"}
	var visit func(v reflect.Value, path string)
	filled, seen := make(map[string]bool), make(map[string]bool)
	visit = func(v reflect.Value, path string) {
		switch v.Kind() {
		case reflect.Pointer, reflect.Interface:
			if !v.IsNil() {
				visit(v.Elem(), path)
			}
		case reflect.Slice:
			for i := range v.Len() {
				visit(v.Index(i), path)
			}
		case reflect.Map:
			for _, k := range v.MapKeys() {
				visit(v.MapIndex(k), path)
			}
		case reflect.Struct:
			typ := v.Type()
			if typ == reflect.TypeFor[time.Time]() || typ == reflect.TypeFor[measure.Hist]() {
				return
			}
			for i := range typ.NumField() {
				name := typ.Name() + "." + typ.Field(i).Name
				seen[name] = true
				filled[name] = filled[name] || !v.Field(i).IsZero()
				visit(v.Field(i), name)
			}
		}
	}
	visit(reflect.ValueOf(full(t)), "")
	for name := range seen {
		if !filled[name] && !slices.Contains(computed, name) {
			t.Errorf("%s has no value in the fixture", name)
		}
	}
}

func TestSchemaIsWhatItWas(t *testing.T) {
	got, err := json.MarshalIndent(full(t), "", " ")
	if err != nil {
		t.Fatal(err)
	}
	got = append(got, '\n')
	path := filepath.Join("testdata", "result-v1.json")
	if *update {
		if err := os.WriteFile(path, got, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(strings.Split(string(want), "\n"), strings.Split(string(got), "\n")); diff != "" {
		t.Errorf("results are written otherwise than %s has it (-want +got); within version 1 fields may only be added. Rewritten by -update:\n%s", path, diff)
	}
	back, err := bench.ReadResult(bytes.NewReader(want), subject.All()...)
	if err != nil {
		t.Fatal(err)
	}
	again, err := json.MarshalIndent(back, "", " ")
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(strings.Split(string(want), "\n"), strings.Split(string(again)+"\n", "\n")); diff != "" {
		t.Errorf("read and written again, it differs (-want +got):\n%s", diff)
	}
}

// testdata/result-v1-first.json was written before the schema got its later
// fields. It must be read for as long as version 1 is.
func TestFirstResultsOfVersion1AreRead(t *testing.T) {
	r, err := bench.ReadFile(filepath.Join("testdata", "result-v1-first.json"))
	if err != nil {
		t.Fatal(err)
	}
	c := r.Find("weir auto")
	if c == nil || len(c.Samples) != 3 || c.Summary["rate"].Median < 1 || c.Summary["p99"].Median <= 0 || len(r.Comparisons) == 0 || len(r.Findings) == 0 {
		t.Errorf("result %+v", r)
	}
}

// Every field that a result can have is named in docs/schema.md.
func TestSchemaIsDocumented(t *testing.T) {
	doc, err := os.ReadFile(filepath.Join("..", "..", "..", "docs", "schema.md"))
	if err != nil {
		t.Fatal(err)
	}
	b, err := json.Marshal(full(t))
	if err != nil {
		t.Fatal(err)
	}
	names := make(map[string]bool)
	var walk func(v any, free bool)
	walk = func(v any, free bool) {
		switch v := v.(type) {
		case []any:
			for _, e := range v {
				walk(e, free)
			}
		case map[string]any:
			for k, e := range v {
				if !free {
					names[k] = true
				}
				// The keys of these are names that the caller chooses.
				walk(e, slices.Contains([]string{"factors", "errors", "settings", "rates", "processes", "counters", "summary"}, k))
			}
		}
	}
	var v any
	if err := json.Unmarshal(b, &v); err != nil {
		t.Fatal(err)
	}
	walk(v, false)
	for name := range names {
		if !regexp.MustCompile("`" + name + `(\[\]|\{\})?` + "`").Match(doc) {
			t.Errorf("docs/schema.md does not name `%s`", name)
		}
	}
}

// A part of a subject that the reader does not know is neither lost nor changed, and its
// metrics and rules do not apply.
func TestUnknownPartsAreKept(t *testing.T) {
	want, err := os.ReadFile(filepath.Join("testdata", "result-v1.json"))
	if err != nil {
		t.Fatal(err)
	}
	for _, known := range [][]*bench.Subject{nil, {kvs.Subject}, {moves.Subject, messages.Subject}} {
		r, err := bench.ReadResult(bytes.NewReader(want), known...)
		if err != nil {
			t.Fatal(err)
		}
		if _, has := r.Cases[0].Summary["strong_p50"]; has != slices.Contains(known, kvs.Subject) {
			t.Errorf("%d known subjects: a metric of key-value stores: %v", len(known), has)
		}
		b, err := json.Marshal(r)
		if err != nil {
			t.Fatal(err)
		}
		all, err := bench.ReadResult(bytes.NewReader(b), subject.All()...)
		if err != nil {
			t.Fatal(err)
		}
		got, err := json.MarshalIndent(all, "", " ")
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(strings.Split(string(want), "\n"), strings.Split(string(got)+"\n", "\n")); diff != "" {
			t.Errorf("%d known subjects: read, written and read by one who knows all, it differs (-want +got):\n%s", len(known), diff)
		}
	}
}

func TestRounds(t *testing.T) {
	if one, two := bench.Rounds(1), bench.Rounds(2); one != "1 round" || two != "2 rounds" {
		t.Errorf("%q, %q", one, two)
	}
}

func TestBrokenPartIsNamed(t *testing.T) {
	b, err := json.Marshal(full(t))
	if err != nil {
		t.Fatal(err)
	}
	b = bytes.Replace(b, []byte(`"payload_bytes":512`), []byte(`"payload_bytes":"x"`), 1)
	if _, err := bench.ReadResult(bytes.NewReader(b), subject.All()...); err == nil || !strings.Contains(err.Error(), "a, outbox of round 0: ") {
		t.Errorf("error %v", err)
	}
}
