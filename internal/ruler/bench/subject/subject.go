// Package subject lists the subjects of weir's benchmarks, for those who read results of any of
// them. Each has a package of its own below this one: what a sample holds about it, its metrics
// and its rules.
package subject

import (
	"github.com/weirdb/weir/internal/ruler/bench"
	"github.com/weirdb/weir/internal/ruler/bench/subject/kvs"
	"github.com/weirdb/weir/internal/ruler/bench/subject/messages"
	"github.com/weirdb/weir/internal/ruler/bench/subject/moves"
)

// All returns all subjects.
func All() []*bench.Subject {
	return []*bench.Subject{messages.Subject, moves.Subject, kvs.Subject}
}
