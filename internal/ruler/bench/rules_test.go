package bench

import (
	"fmt"
	"maps"
	"math"
	"strings"
	"testing"

	"github.com/weirdb/weir/internal/measure"
)

// split gives a sample a boundary in which the operations' time is divided by
// the given percentages, as in "queue 95, network+server 5".
func split(pool int, parts map[string]float64, change ...func(*Boundary)) func(*Sample) {
	return func(s *Sample) {
		b := &Boundary{PoolMax: pool, RoundTrips: s.Ops}
		for _, name := range segmentNames {
			g := NewSegment(name)
			g.Hist.RecordN(int64(s.Latency.Mean()*parts[name]/100), uint64(s.Ops))
			b.Segments = append(b.Segments, g)
		}
		for _, f := range change {
			f(b)
		}
		s.Boundary = b
	}
}

// withPool is a case of a sweep over the size of a pool.
func withPool(name string, pool int, rate int64, change ...func(*Sample)) *Case {
	c := testCase(name, "-", rate, 100, change...)
	c.Factors = map[string]string{"pool": fmt.Sprint(pool), "clients": "100"}
	return c
}

// stretched makes the p99 of a sample as many times its mean.
func stretched(by int64) func(*Sample) {
	return func(s *Sample) {
		h := &measure.Hist{}
		h.RecordN(int64(s.Latency.Mean())*by, uint64(s.Ops)/20)
		h.RecordN(int64(s.Latency.Mean()), uint64(s.Ops)-uint64(s.Ops)/20)
		s.Latency = h
	}
}

func openLoop(change func(*measure.Generator)) func(*Sample) {
	return func(s *Sample) {
		s.MeanInFlight, s.InFlight = float64(s.InFlight), 0
		s.Service = s.Latency
		s.Generator = &measure.Generator{TargetRate: float64(s.Ops), Intended: s.Ops, Answered: s.Ops, CPUShare: 0.2, LateP99Ns: 50_000}
		change(s.Generator)
	}
}

func TestRulesOfBoundariesForAndAgainst(t *testing.T) {
	waits := map[string]float64{SegmentQueue: 95, SegmentServer: 5}
	wakes := map[string]float64{SegmentWake: 90, SegmentServer: 10}
	even := map[string]float64{SegmentEncode: 30, SegmentSend: 35, SegmentServer: 35}
	inside := func(name string, share float64) func(*Boundary) {
		return func(b *Boundary) {
			b.Inside = append(b.Inside, ServerPart{Name: name, MeanNs: share * 1e8, Source: "test"})
		}
	}
	server := map[string]float64{SegmentServer: 90, SegmentDecode: 10}
	connects := func(n int64, cold bool) func(*Boundary) {
		return func(b *Boundary) { b.Connects, b.Cold = n, cold }
	}
	withStart := func(start string, c *Case) *Case {
		c.Factors["start"] = start
		return c
	}
	rtt := func(c *Case, text string) *Case {
		c.Factors["transport"] = text
		return c
	}
	for _, tc := range []struct {
		id, name string
		in       *Result
		want     string // part of claim and evidence; "" for none
	}{
		{"dominant-segment", "queue", result(withPool("p5", 5, 1000, split(5, waits))), "95 % of an operation's time is the wait for a connection of the pool (queue), in p5. | p5: queue 95 %, server 5 %"},
		{"dominant-segment", "in several cases", result(withPool("p5", 5, 1000, split(5, waits)), withPool("p6", 6, 1000, split(6, map[string]float64{SegmentQueue: 60, SegmentServer: 40}))), "Up to 95 % of an operation's time is the wait for a connection of the pool (queue), in p5, p6."},
		{"dominant-segment", "none above the rest", result(withPool("p", 5, 1000, split(5, even))), ""},
		{"dominant-segment", "nothing known", result(testCase("a", "0", 1000, 8)), ""},

		{"cold-pool", "opened while measured", result(withPool("p100", 100, 1000, split(100, map[string]float64{SegmentConnect: 40, SegmentQueue: 30, SegmentServer: 30}, connects(99, true)))), "up to 70 % of the time is the cost of a cold pool"},
		{
			"cold-pool", "the warm one queues too", result(
				withStart("warm", withPool("p5", 5, 1000, split(5, map[string]float64{SegmentQueue: 50, SegmentServer: 50}))),
				withStart("cold", withPool("p5, cold", 5, 1000, split(5, map[string]float64{SegmentConnect: 20, SegmentQueue: 70, SegmentServer: 10}, connects(5, true)))),
			), "queue 70 % of the time (40 % beyond what the warm pool queues for)",
		},
		{
			"cold-pool", "the queue is that of the warm one", result(
				withStart("warm", withPool("p5", 5, 1000, split(5, waits))),
				withStart("cold", withPool("p5, cold", 5, 1000, split(5, map[string]float64{SegmentConnect: 1, SegmentQueue: 95, SegmentServer: 4}, connects(5, true)))),
			), "",
		},
		{"cold-pool", "warm, a few reopened", result(withPool("p100", 100, 1000, split(100, map[string]float64{SegmentConnect: 1, SegmentQueue: 90, SegmentServer: 9}, connects(2, false)))), ""},
		{"cold-pool", "warm", result(withPool("p5", 5, 1000, split(5, waits))), ""},

		{"pool-small", "a larger one is faster", result(withPool("p5", 5, 1000, split(5, waits)), withPool("p50", 50, 2000, split(50, even))), "The pool of 5 is too small: p50 reaches 2.00x [2.00, 2.00] of its throughput."},
		{"pool-small", "a larger one is not", result(withPool("p5", 5, 1000, split(5, waits)), withPool("p50", 50, 1000, split(50, even))), ""},
		{"pool-wait", "a larger one is not", result(withPool("p5", 5, 1000, split(5, waits)), withPool("p50", 50, 1000, split(50, even))), "No larger pool proved faster: with one, operations only wait elsewhere."},
		{"pool-wait", "no other pool", result(withPool("p5", 5, 1000, split(5, waits))), "95 % of the time is spent waiting for one of 5 connections"},
		{"pool-wait", "no wait", result(withPool("p5", 5, 1000, split(5, even))), ""},
		{"pool-small", "the other differs in more than its pool", result(withPool("p5", 5, 1000, split(5, waits)), func() *Case {
			c := withPool("p50", 50, 2000, split(50, even))
			c.Factors["clients"] = "200"
			return c
		}()), ""},

		{"pool-large", "a smaller one is as fast with a shorter tail", result(withPool("p100", 100, 1000, stretched(10), split(100, wakes)), withPool("p5", 5, 1000, split(5, waits))), "The pool of 100 is too large: p5 loses no throughput, and its p99 is 0.1"},
		{"pool-large", "a smaller one is slower", result(withPool("p100", 100, 1000, stretched(10), split(100, wakes)), withPool("p5", 5, 500, split(5, waits))), ""},
		{"wake-bound", "no other pool", result(withPool("p100", 100, 1000, split(100, wakes))), "answers that have arrived wait for their goroutine during 90 % of the time"},
		{"wake-bound", "no wake-ups", result(withPool("p100", 100, 1000, split(100, even))), ""},

		{"lock-wait", "half of the time", result(withPool("p", 5, 1000, split(5, server, inside("waiting for table locks", 0.5)))), "Operations wait for each other's locks in the server, during up to 51 % of their time."},
		{"lock-wait", "little", result(withPool("p", 5, 1000, split(5, server, inside("waiting for table locks", 0.05)))), ""},

		{"network-bound", "a relay in between", result(rtt(withPool("p", 5, 1000, split(5, server)), "rtt:80ms")), "Round trips over the network take up to 81 % of an operation's time."},
		{"network-bound", "the server says so", result(withPool("p", 5, 1000, split(5, server, inside("network", 0.7)))), "up to 71 %"},
		{"network-bound", "a near server", result(rtt(withPool("p", 5, 1000, split(5, server)), "rtt:1ms")), ""},
		{"network-bound", "on this machine", result(rtt(withPool("p", 5, 1000, split(5, server)), "unix")), ""},
	} {
		got := claims(tc.in, tc.id)
		if tc.want == "" && got != "" || !strings.Contains(got, tc.want) {
			t.Errorf("%s, %s: got %q, want %q", tc.id, tc.name, got, tc.want)
		}
	}
}

func TestRulesOfTrustForAndAgainst(t *testing.T) {
	series := func(rates ...int64) func(*Sample) {
		return func(s *Sample) {
			s.Series = &measure.Series{IntervalSeconds: 1}
			for _, r := range rates {
				s.Series.Intervals = append(s.Series.Intervals, measure.Interval{Ops: r})
			}
		}
	}
	cold := func(steady bool) func(*Sample) {
		return func(s *Sample) { s.Cold = &Cold{Seconds: 3, Steady: steady} }
	}
	inRound := func(round int, f func(*Sample)) func(*Sample) {
		return func(s *Sample) {
			s.Machine = &measure.Activity{Seconds: 1, BusySeconds: 1, CPUKnown: true, PressureKnown: true, CPUWait: 0.3}
			s.Processes = map[string]measure.Usage{RoleClient: {UserSeconds: 0.3}, RoleServer: {UserSeconds: 0.6}}
			s.FsyncBefore, s.FsyncAfter = &measure.Flush{P50Ns: 60_000}, &measure.Flush{P50Ns: 65_000}
			if s.Round == round {
				f(s)
			}
		}
	}
	calm := func(*Sample) {}
	for _, tc := range []struct {
		id, name string
		in       *Result
		want     string
	}{
		{"disturbed", "calm", result(testCase("a", "0", 1000, 8, inRound(2, calm))), ""},
		{"disturbed", "the disk", result(testCase("a", "0", 1000, 8, inRound(2, func(s *Sample) { s.FsyncAfter.P50Ns = 3_100_000 }))), "1 of 6 rounds. | a, round 2: a flush cost 3.1 ms around this round; the median is 62.5 us"},
		{"disturbed", "the disk, of reads", result(testCase("a", "0", 1000, 8, inRound(2, func(s *Sample) {
			s.FsyncAfter.P50Ns = 3_100_000
			s.Server = &ServerCounters{Ops: 1000}
		}))), ""},
		{"disturbed", "another process", result(testCase("a", "0", 1000, 8, inRound(4, func(s *Sample) { s.Machine.BusySeconds = 1.5 }))), "a, round 4: other processes used 30 % of the processors"},
		{"disturbed", "a server that is not watched", result(testCase("a", "0", 1000, 8, inRound(4, func(s *Sample) {
			s.Machine.BusySeconds = 1.5
			delete(s.Processes, RoleServer)
		}))), ""},
		{"disturbed", "another machine", result(testCase("a", "0", 1000, 8, inRound(0, func(s *Sample) { s.Machine.StealSeconds = 0.1 }))), "the hypervisor gave 5 % of the processors"},
		{"disturbed", "processors", result(testCase("a", "0", 1000, 8, inRound(0, func(s *Sample) { s.Machine.CPUWait = 0.8 }))), "processes waited for processors during 80 % of the time; in the median round, 30 %"},
		{"disturbed", "memory", result(testCase("a", "0", 1000, 8, inRound(0, func(s *Sample) { s.Machine.MemoryWait = 0.2 }))), "processes waited for memory during 20 %"},
		{"disturbed", "too short to say", result(testCase("a", "0", 1000, 8, inRound(4, func(s *Sample) { s.Machine.Seconds = 0.1 }))), ""},

		{"generator", "well", result(testCase("a", "0", 1000, 8, openLoop(func(*measure.Generator) {}))), ""},
		{"generator", "dropped", result(testCase("a", "0", 1000, 8, openLoop(func(g *measure.Generator) { g.Dropped, g.MaxBacklog = 9, 50 }))), "9 of 1000 starts were dropped because 50 were already waiting"},
		{"generator", "late", result(testCase("a", "0", 1000, 8, openLoop(func(g *measure.Generator) { g.LateP99Ns = 5e6 }))), "up to 5 ms late"},
		{"generator", "late, of slow operations", result(testCase("a", "0", 1, 8, openLoop(func(g *measure.Generator) { g.LateP99Ns = 5e6 }))), ""},
		{"generator", "behind", result(testCase("a", "0", 1000, 8, openLoop(func(g *measure.Generator) { g.Answered = 500 }))), "500 of 1,000 ops/s were answered in time"},
		{"generator", "saturated", result(testCase("a", "0", 1000, 8, openLoop(func(g *measure.Generator) { g.CPUShare = 0.9 }))), "used 90 % of its processors"},
		{"generator", "collects garbage", result(testCase("a", "0", 1000, 8, openLoop(func(g *measure.Generator) { g.PauseShare = 0.08 }))), "stopped it for 8.0 % of the time"},
		{"generator", "unfinished", result(testCase("a", "0", 1000, 8, openLoop(func(g *measure.Generator) { g.Unfinished = 3 }))), "3 operations had no answer"},
		{"generator", "nothing known", result(testCase("a", "0", 1000, 8)), ""},

		{"unsettled", "settled", result(testCase("a", "0", 1000, 8, cold(true))), ""},
		{"unsettled", "not", result(testCase("a", "0", 1000, 8, cold(false))), "still moving after 3.0 s"},
		{"stall", "none", result(testCase("a", "0", 1000, 8, series(900, 1000, 1100, 950, 1000, 20))), ""},
		{"stall", "one", result(testCase("a", "0", 1000, 8, series(900, 1000, 3, 950, 1000, 1000))), "second 2: 3 ops/s, 950 as a rule"},
		{"littles-law", "counted in an open loop", result(testCase("a", "0", 1000, 8, openLoop(func(*measure.Generator) {}))), ""},
		{"littles-law", "not so in an open loop", result(testCase("a", "0", 1000, 8, openLoop(func(*measure.Generator) {}), func(s *Sample) { s.MeanInFlight *= 1.2 })), "8.0 in flight by rate and latency, 9.6 counted"},
		{"littles-law", "with the time of failures", result(testCase("a", "0", 1000, 8, func(s *Sample) {
			s.Errors, s.FailedLatency, s.InFlight = map[string]int64{"x": 1000}, s.Latency, 16
		})), ""},
	} {
		got := claims(tc.in, tc.id)
		if tc.want == "" && got != "" || !strings.Contains(got, tc.want) {
			t.Errorf("%s, %s: got %q, want %q", tc.id, tc.name, got, tc.want)
		}
	}
	r := result(testCase("a", "0", 1000, 8))
	r.Partial, r.Experiment.Rounds = true, 10
	r.Evaluate()
	if got := claims(r, "partial"); !strings.Contains(got, "a: 6 of 10 rounds") {
		t.Errorf("partial: %q", got)
	}
}

func TestRulesOfResourcesForAndAgainst(t *testing.T) {
	busy := func(client, server float64) func(*Sample) {
		return func(s *Sample) {
			s.Processes = map[string]measure.Usage{RoleClient: {UserSeconds: client}, RoleServer: {UserSeconds: server}}
		}
	}
	flushes := func(n int64, cost int64) func(*Sample) {
		return func(s *Sample) {
			s.Server = &ServerCounters{Ops: s.Ops, Fsyncs: n}
			s.FsyncBefore, s.FsyncAfter = &measure.Flush{P50Ns: cost}, &measure.Flush{P50Ns: cost}
		}
	}
	for _, tc := range []struct {
		id, name string
		in       *Result
		want     string
	}{
		{"server-cpu-bound", "full", result(testCase("a", "0", 1000, 8, busy(0.4, 1.5))), "the server uses 75 % of 2 cores, 1.49e+03 us an operation"},
		{"server-cpu-bound", "the client is", result(testCase("a", "0", 1000, 8, busy(1.5, 0.4))), ""},
		{"server-cpu-bound", "idle", result(testCase("a", "0", 1000, 8, busy(0.1, 1.3))), ""},
		{"commit-bound", "by the disk", result(testCase("a", "0", 1000, 8, flushes(900, 1_000_000))), "a: 900 flushes a second of 1 ms each, 90 % of the time"},
		{"commit-bound", "a fast disk", result(testCase("a", "0", 1000, 8, flushes(900, 60_000))), ""},
		{"commit-bound", "shared flushes", result(testCase("a", "0", 1000, 8, flushes(20, 1_000_000))), ""},
		{"commit-bound", "the kernel says so", result(withPool("p", 5, 1000, split(5, map[string]float64{SegmentServer: 100}, func(b *Boundary) {
			b.Inside = []ServerPart{{Name: "flushing files", MeanNs: 30e6}, {Name: "waiting for another session (futex)", MeanNs: 40e6}, {Name: "log flush", MeanNs: 20e6, Nested: true}}
		}))), "p: flushing 30 ms and waiting for another session 40 ms of 99 ms, 71 % of an operation's time"},
		{"commit-bound", "the kernel says otherwise", result(withPool("p", 5, 1000, split(5, map[string]float64{SegmentServer: 100}, func(b *Boundary) {
			b.Inside = []ServerPart{{Name: "waiting for another session (futex)", MeanNs: 70e6}}
		}))), ""},
		{"commit-bound", "unknown disk", result(testCase("a", "0", 1000, 8, func(s *Sample) { s.Server = &ServerCounters{Ops: 1000, Fsyncs: 900} })), ""},
	} {
		got := claims(tc.in, tc.id)
		if tc.want == "" && got != "" || !strings.Contains(got, tc.want) {
			t.Errorf("%s, %s: got %q, want %q", tc.id, tc.name, got, tc.want)
		}
	}
	slow := result(testCase("a", "0", 1000, 8, flushes(400, 60_000)))
	slow.Experiment.Factors = map[string]string{"fsync_latency": "2ms"}
	slow.Evaluate()
	if got := claims(slow, "commit-bound"); !strings.Contains(got, "400 flushes a second of 2.06 ms each") {
		t.Errorf("a disk made slow: %q", got)
	}
}

func TestRulesOfSweepsForAndAgainst(t *testing.T) {
	limited := func(max float64, cases ...*Case) *Result {
		r := result(cases...)
		r.Experiment.Constraints = []Constraint{{Metric: "p50", Max: &max}}
		r.Evaluate()
		return r
	}
	kinds := func(name string, rates map[string]float64) *Case {
		return testCase(name, "-", 1000, 8, func(s *Sample) { s.Rates = maps.Clone(rates) })
	}
	enqueue, consume := kinds("enqueue alone", map[string]float64{"enqueue": 2000}), kinds("consume alone", map[string]float64{"consume": 32000})
	for _, tc := range []struct {
		id, name string
		in       *Result
		want     string
	}{
		// Latency is clients / rate: 8 ms, 2.67 ms and 16 ms.
		{"constraint", "one breaks it", limited(5, testCase("w0", "0", 1000, 8), testCase("w1", "1", 3000, 8)), "1 of 2 cases break a constraint; they are not recommended, however fast they are. | w0: p50"},
		{"constraint", "all keep it", limited(50, testCase("w0", "0", 1000, 8), testCase("w1", "1", 3000, 8)), ""},
		{"sweet-spot", "the fastest breaks a limit", func() *Result {
			r := result(testCase("w0", "0", 1000, 8), testCase("w1", "1", 2000, 8), testCase("w10", "10", 4000, 80))
			limit := 10.0
			r.Experiment.Constraints = []Constraint{{Metric: "p50", Max: &limit}}
			r.Evaluate()
			return r
		}(), "1 ms of window is best: 2,020 ops/s"},
		{"cliff", "a fall to a tenth", result(testCase("a", "1", 10000, 8), testCase("b", "2", 9500, 8), testCase("c", "4", 950, 8)), "Between 2 ms and 4 ms of window throughput falls to 10 %: a cliff"},
		{"cliff", "a slope as steep as the step", result(testCase("a", "1", 10000, 8), testCase("b", "8", 1250, 8)), ""},
		{"cliff", "flat", result(testCase("a", "1", 10000, 8), testCase("b", "2", 9000, 8)), ""},
		{"mixed-collapse", "one starves", result(enqueue, consume, kinds("mixed", map[string]float64{"enqueue": 1500, "consume": 900})), "In mixed, consume falls to 900/s, 2.8 % of the 32,000/s that it reaches alone."},
		{"mixed-collapse", "fair shares", result(enqueue, consume, kinds("mixed", map[string]float64{"enqueue": 1000, "consume": 15000})), ""},
		{"mixed-collapse", "fed by the other", result(enqueue, consume, kinds("mixed", map[string]float64{"enqueue": 1500, "consume": 1480})), ""},
		{"mixed-fed", "fed by the other", result(enqueue, consume, kinds("mixed", map[string]float64{"enqueue": 1500, "consume": 1480})), "consume keeps pace with enqueue, at 1,480/s: it has no more to do than what that supplies. Alone it reaches 32,000/s."},
		{"mixed-fed", "nothing mixed", result(enqueue, consume), ""},
	} {
		got := claims(tc.in, tc.id)
		if tc.want == "" && got != "" || !strings.Contains(got, tc.want) {
			t.Errorf("%s, %s: got %q, want %q", tc.id, tc.name, got, tc.want)
		}
	}
}

// Six of ten rounds of one side are hit, or one: only the one can be left out.
func TestDisturbedPairsAreLeftOutIfEnoughRemain(t *testing.T) {
	for _, tc := range []struct{ hit, pairs, leftOut int }{{0, 6, 0}, {1, 5, 1}, {4, 6, 0}} {
		hurt := func(s *Sample) {
			s.Machine = &measure.Activity{Seconds: 1, BusySeconds: 0.1, CPUKnown: true}
			if s.Round < tc.hit {
				s.Machine.StealSeconds = 1
				s.Ops /= 2
			}
		}
		r := result(testCase("a", "0", 1000, 8), testCase("b", "1", 2000, 8, hurt))
		c, err := Compare(r.Find("a"), r.Find("b"), "rate")
		if err != nil || c.Ratio.N != tc.pairs || c.LeftOut != tc.leftOut {
			t.Errorf("%d of 6 rounds hit: %d pairs, %d left out, %v", tc.hit, c.Ratio.N, c.LeftOut, err)
		}
		if tc.hit == 1 && math.Abs(c.Ratio.Median-2) > 0.01 {
			t.Errorf("ratio %v, want that of the calm rounds", c.Ratio.Median)
		}
	}
}
