package outboxbench

import (
	"strings"
	"testing"

	"github.com/weirdb/weir/internal/ruler/bench"
	"github.com/weirdb/weir/internal/ruler/bench/subject/messages"
)

// counted gives a sample pages: asked for and read, in all, and of a claim for a row.
func counted(requests, reads int64, claim float64) func(*bench.Sample) {
	return func(s *bench.Sample) {
		s.Server = &bench.ServerCounters{Ops: s.Ops, PageRequests: requests * s.Ops, PageReads: reads * s.Ops}
		messages.Of(s.Parts).ClaimPages = claim
	}
}

func TestFindingsOfPagesGridsAndPlaces(t *testing.T) {
	skip := func(name string, rate int64, change ...func(*bench.Sample)) *bench.Case {
		return outboxCase(name, "claim=skip-locked", rate, change...)
	}
	at := func(size string, in, read int64) *bench.Result {
		return outboxResult(OutOfBand, "payload="+size, skip(inRow, in), skip(referenceRead, read), skip(referenceOnly, 9000))
	}
	for name, c := range map[string]struct {
		results []*bench.Result
		id      string
		want    []string
	}{
		"a window walks the history": {
			[]*bench.Result{outboxResult(Partition, "", outboxCase("flat, window", "", 200, counted(1, 0, 40)), outboxCase("partitioned, window", "", 3000, counted(1, 0, .05)))},
			"claim-pages",
			[]string{"flat, window: a claim reads 40.0 pages for each row that it takes, 800 times as many as partitioned, window"},
		},
		"no claim walks anything": {
			[]*bench.Result{outboxResult(Partition, "", outboxCase("flat, window", "", 200, counted(1, 0, .2)), outboxCase("partitioned, window", "", 3000, counted(1, 0, .1)))},
			"claim-pages",
			[]string{"No claim reads many more pages than another"},
		},
		"pages in memory": {
			[]*bench.Result{
				outboxResult(Payload, "payload=512", skip("skip-locked 4x200", 1000, counted(3, 0, 0))),
				outboxResult(Payload, "payload=4096", skip("skip-locked 4x200", 500, counted(12, 0, 0))),
			},
			"page-scatter",
			[]string{"a message of 512 bytes requests 3", "one of 4096 bytes 12", "All of them were in the server's cache"},
		},
		"pages from the disk": {
			[]*bench.Result{
				outboxResult(Payload, "payload=512", skip("skip-locked 4x200", 1000, counted(3, 0, 0))),
				outboxResult(Payload, "payload=4096", skip("skip-locked 4x200", 500, counted(12, 2, 0))),
			},
			"page-scatter",
			[]string{"4096 B: 12"},
		},
		"a grid with a best": {
			[]*bench.Result{outboxResult(Grid, "producers=8", skip("skip-locked 4x100", 500), skip("skip-locked 16x200", 1000))},
			"mixed-grid",
			[]string{"with skip-locked 16x200 the producers enqueue most"},
		},
		"a grid of equals": {
			[]*bench.Result{outboxResult(Grid, "producers=8", skip("skip-locked 4x100", 1000), skip("skip-locked 16x200", 1000))},
			"mixed-grid",
			[]string{"none differs from another", "the producers are the limit"},
		},
		"it pays for large ones": {
			[]*bench.Result{at("512", 3000, 1000), at("262144", 100, 300)},
			"out-of-band",
			[]string{"it pays at 262144 bytes", "it does not at 512 bytes"},
		},
	} {
		var said []string
		for _, r := range c.results {
			r.Evaluate()
		}
		for _, f := range findings(c.results) {
			if f.ID == c.id {
				said = append(said, f.Claim+" | "+strings.Join(f.Evidence, " | "))
			}
		}
		all := strings.Join(said, "\n")
		for _, w := range c.want {
			if !strings.Contains(all, w) {
				t.Errorf("%s: %q is not said; what is: %q", name, w, all)
			}
		}
		if name == "pages from the disk" && strings.Contains(all, "All of them") {
			t.Errorf("%s: %q", name, all)
		}
	}
}
