package backupbench

import (
	"strconv"

	"github.com/weirdb/weir/internal/ruler/bench/suite"
)

// goals are the targets of the design, and of the reference report. Cases are patterns of
// [bench.Result.Match].
func goals() []suite.Goal {
	return []suite.Goal{
		suite.AtLeast("dump-shop", "pg_dump 15, gzip", "weir", "rate", 5, "backup of a shop, against pg_dump 15 at its defaults"),
		suite.AtLeast("dump-shop", "pg_dump 1[678], zstd:1", "weir", "rate", 1, "backup of a shop, against a pg_dump that has zstd"),
		suite.AtLeast("dump-many", "pg_dump 1[678], zstd:1", "weir", "rate", 1, "backup of many tables, against a pg_dump that has zstd"),
		suite.AtLeast("dump-huge", "pg_dump 1[678], zstd:1", "weir", "rate", 1.6, "backup of one huge table, against a pg_dump that has zstd"),
		suite.AtMost("dump-shop", "pg_dump 1[678], zstd:1", "weir", "stored", 1, "archive of a shop, against a pg_dump that has zstd"),
		suite.AtLeast("restore-shop", "pg_restore*", "weir", "rate", 1.2, "restore of a shop, against pg_restore"),
		suite.AtLeast("dump-shop", "mydumper 1*, zstd", "weir", "rate", 1.1, "backup of a shop, against mydumper 1 with zstd"),
		suite.AtLeast("restore-shop", "myloader 1*", "weir", "rate", 1.2, "restore of a shop, against myloader 1"),
	}
}

// mostMemory is the largest memory that weir may use at any size, in MB.
const mostMemory = 256

// Targets judges the goals that the run can decide, and leaves out the others.
func (o *Outcome) Targets() []suite.Target {
	var out []suite.Target
	for _, g := range goals() {
		r := o.Find(g.Experiment)
		if r == nil {
			continue
		}
		// The targets are set for the size of the plan full; with little data, the start of a
		// program dominates.
		if n, err := strconv.ParseInt(r.Experiment.Factors["bytes"], 10, 64); err == nil {
			g.Claim += ", " + sizeText(n)
		}
		if against := r.Match(g.Against); against != nil {
			if t, ok := g.JudgeCases(against, r.Match(g.Side)); ok {
				out = append(out, t)
			}
		}
	}
	for _, r := range o.Results {
		for _, c := range r.Cases {
			g := suite.AtMost(r.Experiment.Name, "", c.Name, "peak", mostMemory, "memory of weir, "+c.Name)
			if t, ok := g.Judge(r); ok && aboutMemory(r) {
				out = append(out, t)
			}
		}
	}
	return out
}
