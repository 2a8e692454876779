package bench

import (
	"strings"
	"testing"
	"time"

	"github.com/weirdb/weir/internal/measure"
)

// outboxCase is a case of an outbox with settings such as "claim=poll batch=200".
func outboxCase(name, settings string, rate int64, change ...func(*Sample)) Case {
	set := make(map[string]string)
	for _, kv := range strings.Fields(settings) {
		k, v, _ := strings.Cut(kv, "=")
		set[k] = v
	}
	with := []func(*Sample){func(s *Sample) {
		s.Outbox = &Outbox{PayloadBytes: 512, Settings: set, Ledger: Ledger{Delivered: s.Ops, Committed: s.Ops, Handed: s.Ops}}
		s.Rates = map[string]float64{"consume": float64(s.Ops)}
	}}
	c := testCase(name, "-", rate, 8, append(with, change...)...)
	c.Factors = map[string]string{"relay": name}
	return c
}

// outboxResult is a result of a phase with factors such as "payload=512".
func outboxResult(phase, factors string, cases ...Case) *Result {
	r := result(cases...)
	r.Experiment.Sweep, r.Experiment.Title = "", "Experiment"
	r.Experiment.Factors = map[string]string{"phase": phase}
	for _, kv := range strings.Fields(factors) {
		k, v, _ := strings.Cut(kv, "=")
		r.Experiment.Factors[k] = v
	}
	r.Evaluate()
	return r
}

// both gives a sample the rates of producers and relay.
func both(enqueue, consume float64) func(*Sample) {
	return func(s *Sample) { s.Rates = map[string]float64{"enqueue": enqueue, "consume": consume} }
}

func delivered(after time.Duration) func(*Sample) {
	return func(s *Sample) {
		s.Outbox.FromCommit = &measure.Hist{}
		s.Outbox.FromCommit.RecordN(int64(after), 100)
	}
}

func outboxClaims(results []*Result, id string) string {
	var out []string
	for _, f := range OutboxFindings(results) {
		if f.ID == id {
			out = append(out, f.Claim+" | "+strings.Join(f.Evidence, "; "))
		}
	}
	return strings.Join(out, "\n")
}

func TestOutboxFindingsForAndAgainst(t *testing.T) {
	grid := func(name string, rate int64, workers, batch string) Case {
		return outboxCase(name, "claim=skip-locked publishers="+workers+" batch="+batch, rate)
	}
	payload := func(size string, rate int64) *Result {
		return outboxResult("payload", "records=1000 payload="+size, outboxCase("poll", "claim=poll", rate))
	}
	mixedOf := func(cases ...Case) []*Result {
		alone := outboxCase("no relay", "outbox=weir", 1000, func(s *Sample) { s.Rates = map[string]float64{"enqueue": 1000} })
		return []*Result{outboxResult("mixed", "producers=8", append([]Case{alone}, cases...)...)}
	}
	rateOf := func(rate string, p95 time.Duration) *Result {
		return outboxResult("mixed", "rate="+rate, outboxCase("log", "claim=log", 500, delivered(p95)))
	}
	partitions := func(flatWindow, flat, partsWindow, parts int64) []*Result {
		return []*Result{outboxResult("partition", "",
			outboxCase("flat, window", "", flatWindow), outboxCase("flat, no window", "", flat),
			outboxCase("partitioned, window", "", partsWindow), outboxCase("partitioned, no window", "", parts))}
	}
	cpu := func(client, server float64) func(*Sample) {
		return func(s *Sample) {
			s.Processes = map[string]measure.Usage{RoleClient: {UserSeconds: client}, RoleServer: {UserSeconds: server}}
		}
	}
	for _, tc := range []struct {
		id, name string
		in       []*Result
		want     string // part of claim and evidence; "" for none
	}{
		{"best-combination", "with a knee", []*Result{outboxResult("screen", "", grid("1x50", 1000, "1", "50"), grid("4x200", 3000, "4", "200"), grid("16x200", 3100, "16", "200"))}, "Of 3 combinations of workers x batch of the customary design, 16x200 is best: 3,131 msg/s. The knee is 4x200, which reaches 97 % of that with less."},
		{"best-combination", "more workers are slower", []*Result{outboxResult("screen", "", grid("4x200", 3000, "4", "200"), grid("16x200", 1500, "16", "200"))}, "More workers are slower: 16x200 reaches 50 %."},
		{"best-combination", "one alone", []*Result{outboxResult("screen", "", grid("4x200", 3000, "4", "200"))}, ""},
		{"best-combination", "another phase", []*Result{outboxResult("focus", "", grid("1x50", 1000, "1", "50"), grid("4x200", 3000, "4", "200"))}, ""},

		{"own-defaults", "best", []*Result{outboxResult("screen", "", outboxCase("poll", "claim=poll batch=default", 2000), outboxCase("poll 1x200", "claim=poll batch=200", 1000))}, "The defaults of poll are the best of 2 settings"},
		{"own-defaults", "not best", []*Result{outboxResult("screen", "", outboxCase("log", "claim=log batch=default", 1000), outboxCase("log 1x200", "claim=log batch=200", 2000))}, "The defaults of log reach 50 % of the best setting that was tried, log 1x200."},
		{"own-defaults", "nothing else tried", []*Result{outboxResult("screen", "", outboxCase("log", "claim=log batch=default", 1000))}, ""},

		{"claim-ratio", "faster", []*Result{outboxResult("focus", "", grid("4x200", 1000, "4", "200"), outboxCase("poll", "claim=poll", 5000))}, "poll delivers a backlog at 5.00x [5.00, 5.00] (better) of the rate of 4x200."},
		{"claim-ratio", "only the customary one", []*Result{outboxResult("focus", "", grid("4x200", 1000, "4", "200"), grid("4x50", 900, "4", "50"))}, ""},

		{"peer", "slower than weir", []*Result{outboxResult("peers", "", outboxCase("skip-locked", "outbox=weir claim=skip-locked", 9000), outboxCase("poll", "outbox=weir claim=poll", 3000), outboxCase("river v1", "outbox=river", 1000))}, "weir (poll) reaches 3.00x [3.00, 3.00] of the rate of river v1 (better)."},
		{"peer", "what loses messages is compared with nothing", []*Result{outboxResult("peers", "", outboxCase("poll", "outbox=weir claim=poll", 3000), outboxCase("leaky", "outbox=leaky", 1000, func(s *Sample) { s.Invalid = []string{"1 of 9 were lost"} }))}, ""},
		{"peer", "no other", []*Result{outboxResult("peers", "", outboxCase("poll", "outbox=weir claim=poll", 3000))}, ""},

		{"payload-knee", "bytes bind", []*Result{payload("128", 10000), payload("512", 9000), payload("4096", 3000)}, "poll, 1000 rows: from 512 to 4096 bytes of payload the rate of messages falls to 33 %, that of bytes changes 2.7-fold. From there on it is mostly the bytes"},
		{"payload-knee", "worse than its bytes", []*Result{payload("512", 26000), payload("4096", 1200)}, "Larger payloads cost more than their bytes."},
		{"payload-knee", "none", []*Result{payload("128", 10000), payload("512", 9000)}, ""},
		{"payload-knee", "fewer rows are another series", []*Result{payload("512", 10000), outboxResult("payload", "records=10 payload=16384", outboxCase("poll", "claim=poll", 100))}, ""},

		{"enqueue", "at the most producers", []*Result{
			outboxResult("enqueue", "producers=1", outboxCase("tx", "", 100), outboxCase("group", "", 100)),
			outboxResult("enqueue", "producers=8", outboxCase("tx", "", 100), outboxCase("group", "", 400)),
		}, "With 8 producers, against a transaction for each message: group 4.00x"},
		{"enqueue", "nothing to compare", []*Result{outboxResult("enqueue", "producers=1", outboxCase("tx", "", 100))}, ""},

		{"producers-bind", "the relay keeps up", append(mixedOf(outboxCase("poll", "claim=poll", 1000, both(1000, 998))), outboxResult("focus", "", outboxCase("poll", "claim=poll", 50000))), "8 of them that wait 7.9"},
		{"producers-bind", "what it could do", append(mixedOf(outboxCase("poll", "claim=poll", 1000, both(1000, 998))), outboxResult("focus", "", outboxCase("poll", "claim=poll", 50000))), "alone, poll delivers 50,500 msg/s: here it works at 2 % of that"},
		{"producers-bind", "the relay falls behind", mixedOf(outboxCase("poll", "claim=poll", 1000, both(1000, 500))), ""},
		{"relay-binds", "the relay falls behind", mixedOf(outboxCase("poll", "claim=poll", 1000, both(1000, 500))), "the relay falls behind. Of 1,000 messages a second it delivers 500."},
		{"relay-binds", "the relay keeps up", mixedOf(outboxCase("poll", "claim=poll", 1000, both(1000, 1000))), ""},

		{"relay-cost", "some", mixedOf(outboxCase("poll", "claim=poll", 700, both(700, 700))), "poll: the relay costs the producers 30 % of their rate."},
		{"relay-cost", "none", mixedOf(outboxCase("poll", "claim=poll", 1000, both(1000, 1000))), "costs the producers nothing that could be measured"},
		{"relay-cost", "no relay", mixedOf(), ""},

		{"open-loop", "past the knee", []*Result{rateOf("250", 2*time.Millisecond), rateOf("500", 3*time.Millisecond), rateOf("1000", 80*time.Millisecond)}, "From 1000 on it is 40 times the least: past the knee."},
		{"open-loop", "flat", []*Result{rateOf("250", 2*time.Millisecond), rateOf("500", 3*time.Millisecond)}, "log: at 500 messages a second offered, 95 % are delivered within 3.0"},
		{"open-loop", "closed", mixedOf(outboxCase("poll", "claim=poll", 700, both(700, 700), delivered(time.Millisecond))), ""},

		{"partition-effect", "as report 5 found", partitions(212, 4310, 3042, 3226), "With a window, partitions change the customary design's rate 14-fold; without one, 0.75-fold. On the flat table the window costs 95 % of the rate"},
		{"partition-effect", "a window that costs nothing", partitions(5000, 4000, 5000, 5000), "1-fold; without one, 1.2-fold. |"},
		{"partition-effect", "half measured", []*Result{outboxResult("partition", "", outboxCase("flat, window", "", 10))}, ""},

		{"peak-cpu", "the server", []*Result{outboxResult("screen", "", outboxCase("poll", "", 100, cpu(0.2, 1.8)))}, "the server used 90 % of 2 cores, and producers and relay together 10 %. Together they fill the machine (100 %), and the server takes the larger part."},
		{"peak-cpu", "nobody", []*Result{outboxResult("screen", "", outboxCase("poll", "", 100, cpu(0.48, 0.56)))}, "Nothing saturates: all together never used more than 52 %."},
		{"peak-cpu", "unknown", []*Result{outboxResult("screen", "", outboxCase("poll", "", 100))}, ""},
	} {
		t.Run(tc.id+"/"+tc.name, func(t *testing.T) {
			got := outboxClaims(tc.in, tc.id)
			if (tc.want == "") != (got == "") || !strings.Contains(got, tc.want) {
				t.Errorf("said %q\nwant %q", got, tc.want)
			}
		})
	}
}

func TestLedgersForAndAgainst(t *testing.T) {
	change := func(f func(*Sample)) func(*Sample) { return f }
	for _, tc := range []struct {
		id   string
		in   Case
		want string
	}{
		{"invalid", outboxCase("poll", "", 100, change(func(s *Sample) { s.Invalid = []string{"2 of 9 committed messages were lost"} })), "6 rounds are invalid: a promise was broken. Their figures are those of something that does not work. | poll, round 0: 2 of 9"},
		{"invalid", outboxCase("poll", "", 100), ""},
		{"disorder", outboxCase("poll", "", 100, change(func(s *Sample) { s.Outbox.Ledger.Disordered = 3 })), "poll: 18 of 606"},
		{"disorder", outboxCase("poll", "", 100), ""},
		{"duplicates", outboxCase("poll", "", 100, change(func(s *Sample) { s.Outbox.Ledger.Duplicates = 1 })), "poll: 6 beside 606"},
		{"duplicates", outboxCase("poll", "", 100), ""},
	} {
		got := claims(outboxResult("screen", "", tc.in), tc.id)
		if (tc.want == "") != (got == "") || !strings.Contains(got, tc.want) {
			t.Errorf("%s: said %q, want %q", tc.id, got, tc.want)
		}
	}
}

// The relay is in the process of the load: that it uses more than the server says
// nothing against the figures.
func TestClientOfAnOutboxIsNotBlamed(t *testing.T) {
	r := outboxResult("screen", "", outboxCase("poll", "", 100, func(s *Sample) {
		s.Processes = map[string]measure.Usage{RoleClient: {UserSeconds: 0.9}, RoleServer: {UserSeconds: 0.1}}
	}))
	if got := claims(r, "client-bound"); got != "" {
		t.Errorf("said %q", got)
	}
}
