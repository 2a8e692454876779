package backupbench

import (
	"fmt"
	"strconv"
	"strings"

	"github.com/weirdb/weir/internal/ruler/bench"
)

// Target is a goal and what the run has to say about it.
type Target struct {
	Claim   string         `json:"claim"`
	Want    string         `json:"want"`
	Got     bench.Interval `json:"got"`
	Unit    string         `json:"unit"`
	Verdict string         `json:"verdict"`
}

// The verdicts on a target.
const (
	Met       = "met"
	NotMet    = "not met"
	Undecided = "cannot tell"
)

// goal is a target by the cases that it is about. Sides are named by the beginning
// of their names, since versions are in them.
type goal struct {
	experiment, against, side, metric string
	min, max                          float64 // one of them
	claim                             string
}

// goals are the targets of the design, and of the reference report.
func goals() []goal {
	return []goal{
		{"dump-shop", "pg_dump 15, gzip", "weir", "rate", 5, 0, "backup of a shop, against pg_dump 15 at its defaults"},
		{"dump-shop", "pg_dump 1[678], zstd:1", "weir", "rate", 1, 0, "backup of a shop, against a pg_dump that has zstd"},
		{"dump-many", "pg_dump 1[678], zstd:1", "weir", "rate", 1, 0, "backup of many tables, against a pg_dump that has zstd"},
		{"dump-huge", "pg_dump 1[678], zstd:1", "weir", "rate", 1.6, 0, "backup of one huge table, against a pg_dump that has zstd"},
		{"dump-shop", "pg_dump 1[678], zstd:1", "weir", "stored", 0, 1, "archive of a shop, against a pg_dump that has zstd"},
		{"restore-shop", "pg_restore", "weir", "rate", 1.2, 0, "restore of a shop, against pg_restore"},
		{"dump-shop", "mydumper 1", "weir", "rate", 1.1, 0, "backup of a shop, against mydumper 1"},
		{"restore-shop", "myloader 1", "weir", "rate", 1.2, 0, "restore of a shop, against myloader 1"},
	}
}

// mostMemory is what weir may hold at any size.
const mostMemory = 256

// Targets judges what the run can decide, and leaves out the rest.
func (o *Outcome) Targets() []Target {
	var out []Target
	for _, g := range goals() {
		for _, r := range o.Results {
			if r.Experiment.Name == g.experiment {
				if t, ok := g.judge(r); ok {
					out = append(out, t)
				}
			}
		}
	}
	for _, r := range o.Results {
		if !strings.HasPrefix(r.Experiment.Name, "memory-") {
			continue
		}
		for _, c := range r.Cases {
			s, ok := c.Summary["peak"]
			if !ok {
				continue
			}
			out = append(out, Target{
				Claim: "memory of weir, " + c.Name, Want: fmt.Sprintf("<= %d MB", mostMemory), Got: s.Interval, Unit: "MB",
				Verdict: decide(s.Hi <= mostMemory, s.Lo > mostMemory),
			})
		}
	}
	return out
}

// named finds a case by its name, in which [678] stands for one of these digits.
// Where several fit, it is the fastest.
func named(r *bench.Result, pattern string) *bench.Case {
	var best *bench.Case
	for i := range r.Cases {
		c := &r.Cases[i]
		for _, digit := range "678" {
			want := strings.Replace(pattern, "[678]", string(digit), 1)
			whole := c.Name == want
			begins := strings.HasPrefix(c.Name, want) && want != "weir" && !strings.Contains(want, ",")
			if (whole || begins) && (best == nil || c.Summary["rate"].Median > best.Summary["rate"].Median) {
				best = c
			}
		}
	}
	return best
}

func (g goal) judge(r *bench.Result) (Target, bool) {
	a, b := named(r, g.against), named(r, g.side)
	if a == nil || b == nil {
		return Target{}, false
	}
	c, err := bench.Compare(a, b, g.metric)
	if err != nil || c.Ratio.N == 0 || c.Ratio.Method == "none" {
		return Target{}, false
	}
	t := Target{Claim: g.claim, Got: c.Ratio, Unit: "x"}
	// The targets are set for the size of the plan full; at a small one it is the
	// start of a program that counts.
	if n, err := strconv.ParseInt(r.Experiment.Factors["bytes"], 10, 64); err == nil {
		t.Claim += ", " + sizeText(n)
	}
	if g.min > 0 {
		t.Want = fmt.Sprintf(">= %.3g x", g.min)
		t.Verdict = decide(c.Ratio.Lo >= g.min, c.Ratio.Hi < g.min)
	} else {
		t.Want = fmt.Sprintf("<= %.3g x", g.max)
		t.Verdict = decide(c.Ratio.Hi <= g.max, c.Ratio.Lo > g.max)
	}
	if c.Ratio.N < 2 { // one round tells nothing apart
		t.Verdict = Undecided
	}
	return t, true
}

func decide(yes, no bool) string {
	switch {
	case yes:
		return Met
	case no:
		return NotMet
	}
	return Undecided
}
