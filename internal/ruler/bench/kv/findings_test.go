package kvbench

import (
	"strings"
	"testing"
	"time"

	"github.com/weirdb/weir/internal/measure"
	"github.com/weirdb/weir/internal/ruler/bench"
	"github.com/weirdb/weir/internal/ruler/bench/benchtest"
	"github.com/weirdb/weir/internal/ruler/bench/subject/kvs"
)

// kvCase is a case of a store whose operations take so long, all alike.
func kvCase(name, factors string, rate int64, takes time.Duration, change ...func(*bench.Sample)) *bench.Case {
	with := []func(*bench.Sample){func(s *bench.Sample) {
		h := &measure.Hist{}
		h.RecordN(int64(takes), uint64(s.Ops))
		s.Latency = h
		s.Parts = []bench.Part{&kvs.KV{StrongRead: h, StrongWrite: h, Checked: 10, RSSBytes: []int64{50e6}}}
	}}
	return benchtest.Case(name, factors, rate, 60, append(with, change...)...)
}

// kvResult is a result of a group with factors such as "rtt=10ms".
func kvResult(group, factors string, cases ...*bench.Case) *bench.Result {
	r := benchtest.Result("scenario="+group+" "+factors, cases...)
	switch group {
	case "pendings":
		r.Experiment.Sweep = "pendings"
	case "delay", "cells":
		r.Experiment.Sweep, r.Experiment.SweepUnit, r.Experiment.Adaptive = "delay", "us", "auto"
	}
	r.Evaluate()
	return r
}

func TestKVFindingsForAndAgainst(t *testing.T) {
	const ms = time.Millisecond
	one := func(scenario, factors string, cases ...*bench.Case) []*bench.Result {
		return []*bench.Result{kvResult(scenario, factors, cases...)}
	}
	wan := func(rtt string, slow, quick time.Duration) *bench.Result {
		return kvResult("wan", "replicas=3 rtt="+rtt, kvCase("raft", "preset=raft", 100, slow), kvCase("curp", "preset=curp", 100, quick))
	}
	memory := func(bytes int64) func(*bench.Sample) {
		return func(s *bench.Sample) { kvs.Of(s.Parts).RSSBytes = []int64{bytes, bytes / 2} }
	}
	spoilt := func(s *bench.Sample) {
		kvs.Of(s.Parts).Wrong = 2
		s.Invalid = kvs.Of(s.Parts).Broken()
	}
	uneven := func(s *bench.Sample) { s.Ops -= s.Ops / 10 * int64(s.Round) }
	for _, tc := range []struct {
		id, name string
		in       []*bench.Result
		want     string // part of severity, claim and evidence; "" for none
	}{
		{"kv-spread", "rounds that differ", one("validate", "", kvCase("150 us", "delay=150", 1000, ms, uneven), kvCase("auto", "delay=auto", 1000, ms)), "info: Rounds of one setting differ by up to 6"},
		{"kv-spread", "another scenario", one("delay", "", kvCase("150 us", "delay=150", 1000, ms, uneven)), ""},

		{"kv-same", "noise", one("delay", "", kvCase("0 us", "delay=0", 1000, ms), kvCase("auto", "delay=auto", 1005, ms)), "info: A delay of 0 and none are the same, and measured 1.00x"},
		{"kv-same", "something has moved them", one("delay", "", kvCase("0 us", "delay=0", 1000, ms), kvCase("auto", "delay=auto", 2000, ms)), "warn: A delay of 0 and none are the same, and measured 2.00x"},
		{"kv-same", "no delay of 0", one("delay", "", kvCase("25 us", "delay=25", 1000, ms), kvCase("auto", "delay=auto", 2000, ms)), ""},

		{
			"kv-knee", "in the middle", one("pendings", "", kvCase("5 pending", "pendings=5", 500, ms), kvCase("15 pending", "pendings=15", 1000, 2*ms), kvCase("30 pending", "pendings=30", 1050, 4*ms)),
			"info: The fewest that reach 90 % of the highest rate: 15 pending. The highest is 1,060 ops/s, with 30 pending. With 30 pending the median latency is 2 times and the rate 1.05 times as high as with that.",
		},
		{"kv-knee", "one alone", one("pendings", "", kvCase("5 pending", "pendings=5", 500, ms)), ""},

		{"kv-length", "slows down", one("length", "", kvCase("10 ops", "ops=10", 1000, ms), kvCase("100 ops", "ops=100", 700, ms, memory(200e6))), "warn: A run of 100 ops per session has 0.70x [0.70, 0.70] of the rate of one of 10 ops. It slows down. The largest replica holds 200 MB after it, and 50.0 MB"},
		{"kv-length", "does not", one("length", "", kvCase("10 ops", "ops=10", 1000, ms), kvCase("100 ops", "ops=100", 1000, ms)), "info: A run of 100 ops per session has 1.00x [1.00, 1.00] of the rate of one of 10 ops. The largest"},
		{"kv-length", "half of it", one("length", "", kvCase("10 ops", "ops=10", 1000, ms)), ""},

		{"kv-presets", "a winner", one("presets", "", kvCase("raft", "preset=raft", 1000, ms), kvCase("curp", "preset=curp", 500, ms)), "info: On one machine raft is fastest: 1,010 ops/s. |"},
		{"kv-presets", "cannot be told", one("presets", "", kvCase("raft", "preset=raft", 1000, ms), kvCase("raft-ht", "preset=raft-ht", 1005, ms)), "Cannot tell which is fastest on one machine: raft-ht has the highest rate, 1,015 ops/s, but cannot be told from raft."},
		{"kv-presets", "wrong answers win nothing", one("presets", "", kvCase("raft", "preset=raft", 1000, ms), kvCase("curp", "preset=curp", 500, ms), kvCase("curp-ho", "preset=curp-ho", 5000, ms, spoilt)), "On one machine raft is fastest"},
		{"kv-presets", "one sound case", one("presets", "", kvCase("raft", "preset=raft", 1000, ms), kvCase("curp", "preset=curp", 500, ms, spoilt)), ""},

		{"kv-distance", "from some on", []*bench.Result{wan("10ms", 20*ms, 11*ms), wan("0s", ms, 2*ms), wan("1ms", 3*ms, 2*ms)}, "info: With 3 replicas the fast path makes strong writes faster from a round trip of 1 ms on; at 10 ms they take 55 % of the time. | round trip 0 ms: strong write p50 1.00 ms without the fast path, 2.00 ms with it; round trip 1 ms"},
		{"kv-distance", "nowhere", []*bench.Result{wan("0s", ms, 2*ms), wan("10ms", 20*ms, 20*ms)}, "certainly faster at none of the measured distances"},
		{"kv-distance", "one protocol", one("wan", "replicas=3 rtt=10ms", kvCase("raft", "", 100, ms)), ""},

		{"kv-peers", "faster", []*bench.Result{
			kvResult("etcd", "streams=1", kvCase("etcd", "", 100, 9*ms), kvCase("weir", "", 300, 3*ms)),
			kvResult("etcd", "streams=60", kvCase("etcd", "", 100, 9*ms), kvCase("weir", "", 600, 3*ms)),
		}, "info: At the same durability, weir reaches, relative to etcd's rate: 3 times at 1, 6 times at 60 clients. | 1 in flight: 303 ops/s against 101, 3.00x [3.00, 3.00]; p99 3.00 ms against 9.0"},
		{"kv-peers", "slower", one("etcd", "streams=1", kvCase("etcd", "", 1000, ms), kvCase("weir", "", 300, ms)), "warn: "},
		{"kv-peers", "alone", one("etcd", "streams=1", kvCase("weir", "", 300, ms)), ""},

		{"kv-cells", "enough", one("cells", "", kvCase("150 us", "delay=150", 1000, ms), kvCase("auto", "delay=auto", 2000, ms)), "info: Without a delay, the rate certainly reaches 97 % of that with the best fixed one in 1 of 1 cells; 0 fall short, 0 cannot be told. |"},
		{"kv-cells", "falls short", one("cells", "", kvCase("150 us", "delay=150", 1000, ms), kvCase("auto", "delay=auto", 500, ms)), "warn: Without a delay, the rate certainly reaches 97 % of that with the best fixed one in 0 of 1 cells; 1 fall short, 0 cannot be told. | Experiment: 0.50x"},
		{"kv-cells", "no fixed one", one("cells", "", kvCase("auto", "delay=auto", 500, ms)), ""},

		{"kv-durability", "the disk", one("single", "", kvCase("weir, disk", "durability=disk system=weir", 100, 4*ms), kvCase("weir, memory", "durability=memory system=weir", 400, ms), kvCase("weir, disk, Redis protocol", "durability=disk system=weir client=redis", 90, 5*ms), kvCase("etcd", "durability=disk system=etcd", 50, 9*ms)), "info: Experiment: p50 4.00 ms with a disk, 1.00 ms without, so the disk is 75 % of it."},
		{"kv-durability", "no difference", one("single", "", kvCase("weir, disk", "durability=disk", 100, ms), kvCase("weir, memory", "durability=memory", 100, ms)), "cannot be told apart"},
		{"kv-durability", "one of them", one("single", "", kvCase("weir, disk", "durability=disk", 100, ms)), ""},

		{"kv-checked", "all right", one("presets", "", kvCase("raft", "", 100, ms)), "info: Each of 606 answers to reads was checked to be of its key, and 60 of them against the session's own earlier writes: 0 were wrong. |"},
		{"kv-checked", "wrong", one("presets", "", kvCase("raft", "", 100, ms, spoilt)), "warn: Each of 606 answers to reads was checked to be of its key, and 60 of them against the session's own earlier writes: 12 were wrong."},
		{"kv-checked", "found nothing", one("presets", "", kvCase("raft", "", 100, ms, func(s *bench.Sample) { kvs.Of(s.Parts).Missed = s.Ops / 2 })), "50 % of the reads found nothing"},
		{"kv-checked", "no store", one("presets", "", benchtest.Case("x", "", 100, 1)), ""},
	} {
		t.Run(tc.id+"/"+tc.name, func(t *testing.T) {
			got := benchtest.Claims(findings(tc.in), tc.id)
			if (tc.want == "") != (got == "") || !strings.Contains(got, tc.want) {
				t.Errorf("said %q\nwant %q", got, tc.want)
			}
		})
	}
}

// A case with wrong answers is left out of what is concluded, and stays in the
// result.
func TestWrongAnswersStayInTheResult(t *testing.T) {
	r := kvResult("presets", "", kvCase("raft", "", 100, time.Millisecond), kvCase("curp", "", 100, time.Millisecond, func(s *bench.Sample) { s.Invalid = []string{"wrong"} }))
	if got := validCases([]*bench.Result{r}); len(got[0].Cases) != 1 || len(r.Cases) != 2 {
		t.Errorf("%d cases are sound, %d are left of 2", len(got[0].Cases), len(r.Cases))
	}
	if got := benchtest.Claims(r.Findings, "invalid"); !strings.Contains(got, "6 rounds are invalid") {
		t.Errorf("the experiment itself says %q", got)
	}
}
