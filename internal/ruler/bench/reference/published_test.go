package reference

import (
	"strings"
	"testing"
	"time"

	"github.com/weirdb/weir/internal/ruler/bench"
)

// Fed with what the documents published, the rules must find what is wrong with them.
func TestRulesCatchThePublishedFigures(t *testing.T) {
	// As measured on the machine that the fact sheet is of: a timer of Go's waits in
	// epoll, which counts milliseconds.
	slow := func(nominal []time.Duration) (out []bench.Slept) {
		for _, d := range nominal {
			out = append(out, bench.Slept{Nominal: d, Took: 1080 * time.Microsecond})
		}
		return out
	}
	for id, want := range map[string][]string{
		"000": {
			"no-batching: MySQL Performance: At 1 ms and 100 ms the window batches nothing",
			"100 ms: 58,700 ops/s with 4,899 in flight by rate times latency, but with a window of 100 ms they cannot exceed 48,985 ops/s",
			"1 ms: 2.36 ms of mean latency against 2.35 ms without a window, at the same rate: no operation waits for it",
			"no-best: MySQL Performance: No level of window is best: the number of operations in flight changed with it.",
			"no-best: PostgreSQL Performance: No level of window is best",
			"confounded: MySQL Performance",
			"100 ms against 0 ms: window, and 4,899 instead of 100 in flight, by rate times latency",
			"overlapping-shares: The shares of its CPU profile add up to 168 %",
		},
		"001": {
			"too-short: Batch Delay Sweep: Rounds of 0.62 s without a warm-up are too short to mean anything",
			"too-short: Validation Test",
			"sleep: A sleep takes much longer than requested: 25µs takes 1.08ms. 5 levels with different names are the same delay.",
			"a sleep of 150µs takes 1.08ms, 7.2 times as long",
			"no-best: Batch Delay Sweep: Cannot tell which level of delay is best: there is one figure per level. The highest is that of 150 us.",
			"constraint: Batch Delay Sweep: 2 of 6 cases break a constraint",
		},
		"002": {
			"hiding-data: Compression Performance: The data hides the cost of compression",
			"Standard gzip: 422 MB/s on one processor",
			"crowded-workers: Compression Performance: There are more workers than processors for them",
			"pgzip Default (8 workers): 8 workers do 2.2 times the work of one",
		},
		"003": {
			"cold-pool: Concurrency = 100",
			"pool 100: 84 % of the time is spent waiting for one of 100 connections, enough for all 100 workers: they are being opened",
		},
		"004": {
			"mixed-fed: Mixed workload: In mixed, 16x200 and 8 producers, consume keeps pace with enqueue",
			"The producers are the limit: enqueue alone does 203/s as well.",
			"hidden-rows: Partition effect: A window hides rows: up to 98.9 % of the committed rows lie outside of it",
			"partitioned=false, window=1h, window 1h: 1,977,778 of 2,000,000 rows are outside and are not delivered",
		},
	} {
		d := documentOf(t, id)
		var said []string
		for _, f := range catches(d, slow) {
			said = append(said, f.ID+": "+f.Claim+" | "+strings.Join(f.Evidence, " | "))
		}
		all := strings.Join(said, "\n")
		for _, w := range want {
			if !strings.Contains(all, w) {
				t.Errorf("%s: %q is not said; what is:\n%s", id, w, all)
			}
		}
	}
}

// Nothing of what is published is called best, and nothing that differs in two factors
// is compared.
func TestNothingPublishedIsBest(t *testing.T) {
	for _, d := range Documents() {
		for _, r := range d.Published() {
			r.Evaluate()
			for _, f := range r.Findings {
				if f.ID == "sweet-spot" || strings.Contains(f.Claim, "is better than") || strings.Contains(f.Claim, "is worse than") {
					t.Errorf("%s, %s: %s", d.ID, r.Experiment.Title, f.Claim)
				}
			}
		}
	}
}

func documentOf(t *testing.T, id string) Document {
	t.Helper()
	for _, d := range Documents() {
		if d.ID == id {
			return d
		}
	}
	t.Fatalf("no document %s", id)
	return Document{}
}
