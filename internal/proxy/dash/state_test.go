package dash

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/weirdb/weir/internal/measure"
)

// hist returns a histogram of durations.
func hist(durations ...time.Duration) *measure.Hist {
	h := &measure.Hist{}
	for _, d := range durations {
		h.Record(d.Nanoseconds())
	}
	return h
}

func TestStatementsOfSeveralLoopsAreAdded(t *testing.T) {
	var s State
	s.AddStatement(Statement{Verb: "SELECT", Text: "select ?", Runs: 3, Errors: 1, CostNs: 50})
	s.AddStatement(Statement{Verb: "INSERT", Text: "insert", Runs: 4, Grouped: 2})
	s.AddStatement(Statement{Verb: "SELECT", Text: "select ?", Runs: 5, CostNs: 40})
	want := []Statement{
		{Verb: "SELECT", Text: "select ?", Runs: 8, Errors: 1, CostNs: 50},
		{Verb: "INSERT", Text: "insert", Runs: 4, Grouped: 2},
	}
	if diff := cmp.Diff(want, s.Statements); diff != "" {
		t.Errorf("statements (-want +got):\n%s", diff)
	}

	later := State{Time: s.Time.Add(2 * time.Second), Statements: []Statement{{Verb: "SELECT", Text: "select ?", Runs: 28}, {Text: "new", Runs: 6}}}
	rateStatements(&s, &later)
	if a, b := later.Statements[0].PerSecond, later.Statements[1].PerSecond; a != 10 || b != 3 {
		t.Errorf("rates %v and %v per second, want 10 and 3", a, b)
	}
}
