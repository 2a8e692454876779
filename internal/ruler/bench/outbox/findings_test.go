package outboxbench

import (
	"strings"
	"testing"
	"time"

	"github.com/weirdb/weir/internal/measure"
	"github.com/weirdb/weir/internal/ruler/bench"
	"github.com/weirdb/weir/internal/ruler/bench/benchtest"
	"github.com/weirdb/weir/internal/ruler/bench/subject/messages"
)

// outboxCase is a case of an outbox with settings such as "claim=poll batch=200".
func outboxCase(name, settings string, rate int64, change ...func(*bench.Sample)) *bench.Case {
	with := []func(*bench.Sample){func(s *bench.Sample) {
		s.Parts = []bench.Part{&messages.Outbox{PayloadBytes: 512, Settings: benchtest.Factors(settings), Ledger: messages.Ledger{Delivered: s.Ops, Committed: s.Ops, Handed: s.Ops}}}
		s.Rates = map[string]float64{"consume": float64(s.Ops)}
	}}
	c := benchtest.Case(name, "", rate, 8, append(with, change...)...)
	c.Factors[FactorRelay] = name
	return c
}

// outboxResult is a result of a group with factors such as "payload=512".
func outboxResult(group, factors string, cases ...*bench.Case) *bench.Result {
	return benchtest.Result(FactorPhase+"="+group+" "+factors, cases...)
}

// both gives a sample the rates of producers and relay.
func both(enqueue, consume float64) func(*bench.Sample) {
	return func(s *bench.Sample) { s.Rates = map[string]float64{"enqueue": enqueue, "consume": consume} }
}

func deliveredAfter(after time.Duration) func(*bench.Sample) {
	return func(s *bench.Sample) {
		messages.Of(s.Parts).FromCommit = &measure.Hist{}
		messages.Of(s.Parts).FromCommit.RecordN(int64(after), 100)
	}
}

func TestOutboxFindingsForAndAgainst(t *testing.T) {
	grid := func(name string, rate int64, workers, batch string) *bench.Case {
		return outboxCase(name, "claim=skip-locked publishers="+workers+" batch="+batch, rate)
	}
	payload := func(size string, rate int64) *bench.Result {
		return outboxResult("payload", "records=1000 payload="+size, outboxCase("poll", "claim=poll", rate))
	}
	mixedOf := func(cases ...*bench.Case) []*bench.Result {
		alone := outboxCase("no relay", "outbox=weir", 1000, func(s *bench.Sample) { s.Rates = map[string]float64{"enqueue": 1000} })
		return []*bench.Result{outboxResult("mixed", "producers=8", append([]*bench.Case{alone}, cases...)...)}
	}
	rateOf := func(rate string, p95 time.Duration) *bench.Result {
		return outboxResult("mixed", "rate="+rate, outboxCase("log", "claim=log", 500, deliveredAfter(p95)))
	}
	partitions := func(flatWindow, flat, partsWindow, parts int64) []*bench.Result {
		return []*bench.Result{outboxResult("partition", "",
			outboxCase("flat, window", "", flatWindow), outboxCase("flat, no window", "", flat),
			outboxCase("partitioned, window", "", partsWindow), outboxCase("partitioned, no window", "", parts))}
	}
	cpu := func(client, server float64) func(*bench.Sample) {
		return func(s *bench.Sample) {
			s.Processes = map[string]measure.Usage{bench.RoleClient: {UserSeconds: client}, bench.RoleServer: {UserSeconds: server}}
		}
	}
	for _, tc := range []struct {
		id, name string
		in       []*bench.Result
		want     string // part of claim and evidence; "" for none
	}{
		{"best-combination", "with a knee", []*bench.Result{outboxResult("screen", "", grid("1x50", 1000, "1", "50"), grid("4x200", 3000, "4", "200"), grid("16x200", 3100, "16", "200"))}, "Of 3 combinations of workers x batch of the customary design, 16x200 is best: 3,131 msg/s. The knee is 4x200, which reaches 97 % of that with less."},
		{"best-combination", "more workers are slower", []*bench.Result{outboxResult("screen", "", grid("4x200", 3000, "4", "200"), grid("16x200", 1500, "16", "200"))}, "More workers are slower: 16x200 reaches 50 %."},
		{"best-combination", "one alone", []*bench.Result{outboxResult("screen", "", grid("4x200", 3000, "4", "200"))}, ""},
		{"best-combination", "another phase", []*bench.Result{outboxResult("focus", "", grid("1x50", 1000, "1", "50"), grid("4x200", 3000, "4", "200"))}, ""},

		{"own-defaults", "best", []*bench.Result{outboxResult("screen", "", outboxCase("poll", "claim=poll batch=default", 2000), outboxCase("poll 1x200", "claim=poll batch=200", 1000))}, "The defaults of poll are the best of 2 settings"},
		{"own-defaults", "not best", []*bench.Result{outboxResult("screen", "", outboxCase("log", "claim=log batch=default", 1000), outboxCase("log 1x200", "claim=log batch=200", 2000))}, "The defaults of log reach 50 % of the best setting that was tried, log 1x200."},
		{"own-defaults", "nothing else tried", []*bench.Result{outboxResult("screen", "", outboxCase("log", "claim=log batch=default", 1000))}, ""},

		{"claim-ratio", "faster", []*bench.Result{outboxResult("focus", "", grid("4x200", 1000, "4", "200"), outboxCase("poll", "claim=poll", 5000))}, "poll delivers a backlog at 5.00x [5.00, 5.00] (better) of the rate of 4x200."},
		{"claim-ratio", "only the customary one", []*bench.Result{outboxResult("focus", "", grid("4x200", 1000, "4", "200"), grid("4x50", 900, "4", "50"))}, ""},

		{"peer", "slower than weir", []*bench.Result{outboxResult("peers", "", outboxCase("skip-locked", "outbox=weir claim=skip-locked", 9000), outboxCase("poll", "outbox=weir claim=poll", 3000), outboxCase("river v1", "outbox=river", 1000))}, "weir (poll) reaches 3.00x [3.00, 3.00] of the rate of river v1 (better)."},
		{"peer", "what loses messages is compared with nothing", []*bench.Result{outboxResult("peers", "", outboxCase("poll", "outbox=weir claim=poll", 3000), outboxCase("leaky", "outbox=leaky", 1000, func(s *bench.Sample) { s.Invalid = []string{"1 of 9 were lost"} }))}, ""},
		{"peer", "no other", []*bench.Result{outboxResult("peers", "", outboxCase("poll", "outbox=weir claim=poll", 3000))}, ""},

		{"payload-knee", "bytes bind", []*bench.Result{payload("128", 10000), payload("512", 9000), payload("4096", 3000)}, "poll, 1000 rows: from 512 to 4096 bytes of payload the rate of messages falls to 33 %, that of bytes changes 2.7-fold. From there on the bytes are the main cost"},
		{"payload-knee", "worse than its bytes", []*bench.Result{payload("512", 26000), payload("4096", 1200)}, "Larger payloads cost more than in proportion to their size."},
		{"payload-knee", "none", []*bench.Result{payload("128", 10000), payload("512", 9000)}, ""},
		{"payload-knee", "fewer rows are another series", []*bench.Result{payload("512", 10000), outboxResult("payload", "records=10 payload=16384", outboxCase("poll", "claim=poll", 100))}, ""},

		{"enqueue", "at the most producers", []*bench.Result{
			outboxResult("enqueue", "producers=1", outboxCase("tx", "", 100), outboxCase("group", "", 100)),
			outboxResult("enqueue", "producers=8", outboxCase("tx", "", 100), outboxCase("group", "", 400)),
		}, "With 8 producers, against a transaction for each message: group 4.00x"},
		{"enqueue", "nothing to compare", []*bench.Result{outboxResult("enqueue", "producers=1", outboxCase("tx", "", 100))}, ""},

		{"producers-bind", "the relay keeps up", append(mixedOf(outboxCase("poll", "claim=poll", 1000, both(1000, 998))), outboxResult("focus", "", outboxCase("poll", "claim=poll", 50000))), "8 of them that wait 7.9"},
		{"producers-bind", "what it could do", append(mixedOf(outboxCase("poll", "claim=poll", 1000, both(1000, 998))), outboxResult("focus", "", outboxCase("poll", "claim=poll", 50000))), "alone, poll delivers 50,500 msg/s: here it works at 2 % of that"},
		{"producers-bind", "the relay falls behind", mixedOf(outboxCase("poll", "claim=poll", 1000, both(1000, 500))), ""},
		{"relay-binds", "the relay falls behind", mixedOf(outboxCase("poll", "claim=poll", 1000, both(1000, 500))), "the relay falls behind. Of 1,000 messages per second it delivers 500."},
		{"relay-binds", "the relay keeps up", mixedOf(outboxCase("poll", "claim=poll", 1000, both(1000, 1000))), ""},

		{"relay-cost", "some", mixedOf(outboxCase("poll", "claim=poll", 700, both(700, 700))), "poll: the relay costs the producers 30 % of their rate."},
		{"relay-cost", "none", mixedOf(outboxCase("poll", "claim=poll", 1000, both(1000, 1000))), "has no measurable cost for the producers"},
		{"relay-cost", "no relay", mixedOf(), ""},

		{"open-loop", "past the knee", []*bench.Result{rateOf("250", 2*time.Millisecond), rateOf("500", 3*time.Millisecond), rateOf("1000", 80*time.Millisecond)}, "From 1000 on it is 40 times the lowest: beyond the knee."},
		{"open-loop", "flat", []*bench.Result{rateOf("250", 2*time.Millisecond), rateOf("500", 3*time.Millisecond)}, "log: at 500 messages a second offered, 95 % are delivered within 3.0"},
		{"open-loop", "closed", mixedOf(outboxCase("poll", "claim=poll", 700, both(700, 700), deliveredAfter(time.Millisecond))), ""},

		{"partition-effect", "as report 5 found", partitions(212, 4310, 3042, 3226), "With a window, partitions change the customary design's rate to 14.36x [14.35, 14.36]; without one, to 0.75x [0.75, 0.75]. On the flat table the window leaves 0.05x [0.05, 0.05] of the rate"},
		{"partition-effect", "a window that costs nothing", partitions(5000, 4000, 5000, 5000), "to 1.00x [1.00, 1.00]; without one, to 1.25x [1.25, 1.25]. |"},
		{"partition-effect", "half measured", []*bench.Result{outboxResult("partition", "", outboxCase("flat, window", "", 10))}, ""},

		{"peak-cpu", "the server", []*bench.Result{outboxResult("screen", "", outboxCase("poll", "", 100, cpu(0.2, 1.8)))}, "the server used 90 % of 2 cores, and producers and relay together 10 %. Together they saturate the machine (100 %), and the server uses the larger part."},
		{"peak-cpu", "nobody", []*bench.Result{outboxResult("screen", "", outboxCase("poll", "", 100, cpu(0.48, 0.56)))}, "Nothing saturates: all processes together never used more than 52 %."},
		{"peak-cpu", "unknown", []*bench.Result{outboxResult("screen", "", outboxCase("poll", "", 100))}, ""},
	} {
		t.Run(tc.id+"/"+tc.name, func(t *testing.T) {
			got := benchtest.Claims(findings(tc.in), tc.id)
			if (tc.want == "") != (got == "") || !strings.Contains(got, tc.want) {
				t.Errorf("said %q\nwant %q", got, tc.want)
			}
		})
	}
}

func TestLedgersForAndAgainst(t *testing.T) {
	change := func(f func(*bench.Sample)) func(*bench.Sample) { return f }
	for _, tc := range []struct {
		id   string
		in   *bench.Case
		want string
	}{
		{"invalid", outboxCase("poll", "", 100, change(func(s *bench.Sample) { s.Invalid = []string{"2 of 9 committed messages were lost"} })), "6 rounds are invalid: a promise was broken. Their figures are those of something that does not work. | poll, round 0: 2 of 9"},
		{"invalid", outboxCase("poll", "", 100), ""},
		{"disorder", outboxCase("poll", "", 100, change(func(s *bench.Sample) { messages.Of(s.Parts).Ledger.Disordered = 3 })), "poll: 18 of 606"},
		{"disorder", outboxCase("poll", "", 100), ""},
		{"duplicates", outboxCase("poll", "", 100, change(func(s *bench.Sample) { messages.Of(s.Parts).Ledger.Duplicates = 1 })), "poll: 6 beside 606"},
		{"duplicates", outboxCase("poll", "", 100), ""},
	} {
		got := benchtest.Claims(outboxResult("screen", "", tc.in).Findings, tc.id)
		if (tc.want == "") != (got == "") || !strings.Contains(got, tc.want) {
			t.Errorf("%s: said %q, want %q", tc.id, got, tc.want)
		}
	}
}

// The relay is in the process of the load: that it uses more than the server says
// nothing against the figures.
func TestClientOfAnOutboxIsNotBlamed(t *testing.T) {
	r := outboxResult("screen", "", outboxCase("poll", "", 100, func(s *bench.Sample) {
		s.Processes = map[string]measure.Usage{bench.RoleClient: {UserSeconds: 0.9}, bench.RoleServer: {UserSeconds: 0.1}}
	}))
	if got := benchtest.Claims(r.Findings, "client-bound"); got != "" {
		t.Errorf("said %q", got)
	}
}

func TestOneRoundDecidesNoCombination(t *testing.T) {
	screen := func(n int) []*bench.Result {
		a := outboxCase("1x50", "claim=skip-locked publishers=1 batch=50", 900)
		b := outboxCase("4x200", "claim=skip-locked publishers=4 batch=200", 1800)
		a.Samples, b.Samples = a.Samples[:n], b.Samples[:n]
		return []*bench.Result{outboxResult("screen", "", a, b)}
	}
	if got := benchtest.Claims(findings(screen(1)), "best-combination"); !strings.HasPrefix(got, "info: Cannot tell which of 2") {
		t.Errorf("best of one round each: %q", got)
	}
	if got := benchtest.Claims(findings(screen(3)), "best-combination"); !strings.HasPrefix(got, "info: Of 2 combinations") {
		t.Errorf("best of three rounds each: %q", got)
	}
}
