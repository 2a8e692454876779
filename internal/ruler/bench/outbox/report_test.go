package outboxbench

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/weirdb/weir/internal/cli/clitest"
	"github.com/weirdb/weir/internal/measure"
	"github.com/weirdb/weir/internal/ruler/bench"
	"github.com/weirdb/weir/internal/ruler/bench/subject/messages"
	"github.com/weirdb/weir/internal/ruler/bench/suite"
	"github.com/weirdb/weir/internal/ruler/report"
)

// madeUp is a run whose figures are made up: every phase, three rounds each.
func madeUp() *Outcome {
	o := &Outcome{suite.Outcome{Engine: suite.PostgreSQL, Left: []string{"other outboxes: the program that runs them is missing (make peers)"}}}
	add := func(group, name, loop string, factors map[string]string, cases ...*bench.Case) {
		r := &bench.Result{
			Schema: bench.Schema, ID: name, Cases: cases,
			Env: measure.Environment{
				Time: time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC), CPU: "Example CPU", Cores: 2, GOMAXPROCS: 2, Kernel: "6.1", OS: "Example Linux",
				Command: []string{"weir", "bench", "outbox"}, Durability: "prod",
				Servers: []measure.Server{{Name: "PostgreSQL", Version: "15.1"}},
			},
			Experiment: bench.Description{Name: name, Title: "Experiment " + name, Rounds: 3, Loop: loop, Factors: map[string]string{FactorPhase: group}, Baseline: cases[0].Name},
		}
		for k, v := range factors {
			r.Experiment.Factors[k] = v
		}
		r.Evaluate()
		o.Results = append(o.Results, r)
	}
	add(Screen, "screen", "closed", nil,
		madeUpCase("skip-locked 1x50", "skip-locked", "1", "50", 8000), madeUpCase("skip-locked 1x200", "skip-locked", "1", "200", 14000),
		madeUpCase("skip-locked 4x50", "skip-locked", "4", "50", 15000), madeUpCase("skip-locked 4x200", "skip-locked", "4", "200", 32000),
		madeUpCase("poll", "poll", "default", "default", 90000), madeUpCase("log", "log", "default", "default", 300000))
	add(Focus, "focus", "closed", nil, madeUpCase("skip-locked 4x200", "skip-locked", "4", "200", 32000), madeUpCase("poll", "poll", "default", "default", 90000))
	for i, size := range []string{"128", "512", "4096"} {
		add(Payload, "payload-"+size, "closed", map[string]string{"payload": size, "records": "1000"}, madeUpCase("poll", "poll", "default", "default", []int64{90000, 80000, 20000}[i]))
	}
	add(Enqueue, "enqueue-8", "closed", map[string]string{"producers": "8"}, madeUpCase("tx", "", "", "", 2000), madeUpCase("group", "", "", "", 6000))
	add(Mixed, "mixed-8", "closed", map[string]string{"producers": "8"}, madeUpCase("no relay", "", "", "", 2000), madeUpMixed("skip-locked 4x200", "skip-locked", 1000, 20), madeUpMixed("log", "log", 2000, 2))
	add(Mixed, "rate-500", "open", map[string]string{"rate": "500"}, madeUpMixed("log", "log", 500, 2))
	add(Partition, "partition", "closed", nil, madeUpCase("flat, window", "", "", "", 212), madeUpCase("flat, no window", "", "", "", 4310), madeUpCase("partitioned, window", "", "", "", 3042), madeUpCase("partitioned, no window", "", "", "", 3226))
	broken := madeUpCase("leaky v1", "", "", "", 1000)
	for i := range broken.Samples {
		messages.Of(broken.Samples[i].Parts).Settings = map[string]string{"outbox": "leaky"}
		messages.Of(broken.Samples[i].Parts).Ledger.Lost = 3
		broken.Samples[i].Invalid = messages.Of(broken.Samples[i].Parts).Ledger.Broken(true)
	}
	add(Peers, "peers", "closed", nil, madeUpCase("poll", "poll", "default", "default", 90000), broken)
	return o
}

func madeUpCase(name, claim, publishers, batch string, rate int64) *bench.Case {
	c := &bench.Case{Name: name, Factors: map[string]string{FactorRelay: name}}
	for round := range 3 {
		n := rate + rate*int64(round)/100
		c.Samples = append(c.Samples, bench.Sample{
			Round: round, Seconds: 1, Ops: n, Rates: map[string]float64{"consume": float64(n)},
			Processes: map[string]measure.Usage{bench.RoleClient: {UserSeconds: 0.4}, bench.RoleServer: {UserSeconds: 1.2}},
			Parts: []bench.Part{&messages.Outbox{
				PayloadBytes: payloadBytes, AckedSeconds: 1.25, Ledger: messages.Ledger{Handed: n, Committed: n, Delivered: n},
				Settings: map[string]string{"outbox": "weir", "claim": claim, "publishers": publishers, "batch": batch},
			}},
		})
	}
	return c
}

// madeUpMixed is a case with producers, whose messages are delivered so many
// milliseconds after their commit.
func madeUpMixed(name, claim string, rate, ms int64) *bench.Case {
	c := madeUpCase(name, claim, "default", "default", rate)
	for i := range c.Samples {
		s := &c.Samples[i]
		s.InFlight, s.Latency = 8, &measure.Hist{}
		s.Latency.RecordN(8*1e9/s.Ops, uint64(s.Ops))
		s.Rates["enqueue"] = float64(s.Ops)
		messages.Of(s.Parts).FromCommit, messages.Of(s.Parts).MaxLag = &measure.Hist{}, 15
		messages.Of(s.Parts).FromCommit.RecordN(ms*1e6, uint64(s.Ops))
		for k := range int64(6) {
			messages.Of(s.Parts).Lag = append(messages.Of(s.Parts).Lag, messages.LagPoint{AtSeconds: float64(k+1) / 6, Committed: s.Ops * (k + 1) / 6, Delivered: s.Ops*(k+1)/6 - k})
		}
	}
	return c
}

func TestReportIsWhatItWas(t *testing.T) {
	var got bytes.Buffer
	if err := madeUp().Report().Write(&got, report.FormatMarkdown); err != nil {
		t.Fatal(err)
	}
	path := filepath.Join("testdata", "report.md")
	have, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	clitest.Golden(t, path, string(have), got.String())
}

func TestEveryFormatOfAReportCanBeWritten(t *testing.T) {
	dir := t.TempDir()
	page, err := madeUp().Save(dir)
	if err != nil {
		t.Fatal(err)
	}
	html, err := os.ReadFile(page)
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{
		"The customary design by workers and batch", "Messages by size of payload", "Enqueuing by number of producers",
		"Commit to delivery by offered rate", "lag", "Window and partitions", "Largest use of the processors",
	} {
		if !bytes.Contains(html, []byte(want)) {
			t.Errorf("the page has no %q", want)
		}
	}
	var brief bytes.Buffer
	if err := madeUp().Brief().Write(&brief, report.FormatText); err != nil {
		t.Error(err)
	}
}

// Deliveries before their producer knew of the commit, and a relay that delivers
// nothing, are figures like others: a run with them can be saved.
func TestZeroesCanBeDrawn(t *testing.T) {
	o := madeUp()
	for _, r := range o.Results {
		for _, c := range r.Cases {
			for j := range c.Samples {
				s := &c.Samples[j]
				if messages.Of(s.Parts).FromCommit != nil {
					messages.Of(s.Parts).FromCommit = &measure.Hist{}
					messages.Of(s.Parts).FromCommit.RecordN(0, uint64(s.Ops))
				}
				if r.Experiment.Factors[FactorPhase] == Payload {
					s.Ops, s.Rates["consume"] = 0, 0
				}
			}
		}
		r.Evaluate()
	}
	if _, err := o.Save(t.TempDir()); err != nil {
		t.Error(err)
	}
}

func TestWhatIsBrokenIsListed(t *testing.T) {
	got := madeUp().Invalid()
	if len(got) != 3 || !strings.Contains(got[0], "peers, leaky v1, round 0: 3 of") {
		t.Errorf("invalid: %q", got)
	}
}
