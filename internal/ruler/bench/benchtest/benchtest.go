// Package benchtest makes up results, for tests of rules and reports.
package benchtest

import (
	"strings"
	"time"

	"github.com/weirdb/weir/internal/measure"
	"github.com/weirdb/weir/internal/ruler/bench"
)

// Factors reads "a=b c=d".
func Factors(text string) map[string]string {
	out := make(map[string]string)
	for _, kv := range strings.Fields(text) {
		k, v, _ := strings.Cut(kv, "=")
		out[k] = v
	}
	return out
}

// Case is a case of six rounds of one second whose rates differ by up to 2 %.
func Case(name, factors string, rate int64, clients int, change ...func(*bench.Sample)) *bench.Case {
	c := &bench.Case{Name: name, Factors: Factors(factors)}
	for round := range 6 {
		n := rate + rate*int64(round%3)/100
		s := bench.Sample{Round: round, Seconds: 1, Ops: n, InFlight: clients, Latency: &measure.Hist{}}
		s.Latency.RecordN(int64(clients)*1e9/n, uint64(n))
		for _, f := range change {
			f(&s)
		}
		c.Samples = append(c.Samples, s)
	}
	return c
}

// Result is a result of cases, the first of which is the baseline.
func Result(factors string, cases ...*bench.Case) *bench.Result {
	r := &bench.Result{
		Schema: bench.Schema, ID: "x",
		Env:        measure.Environment{Time: time.Unix(1, 0), CPU: "c", Cores: 2, Kernel: "6", Command: []string{"weir"}},
		Experiment: bench.Description{Name: "x", Title: "Experiment", Loop: "closed", Baseline: cases[0].Name, Factors: Factors(factors)},
		Cases:      cases,
	}
	r.Evaluate()
	return r
}

// Claims are the claims and the evidence of the findings of an ID, behind their
// severity.
func Claims(findings []bench.Finding, id string) string {
	var out []string
	for _, f := range findings {
		if f.ID == id {
			out = append(out, string(f.Severity)+": "+f.Claim+" | "+strings.Join(f.Evidence, "; "))
		}
	}
	return strings.Join(out, "\n")
}
