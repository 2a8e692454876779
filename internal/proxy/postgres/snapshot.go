package postgres

import (
	"github.com/weirdb/weir/internal/proxy/core"
	"github.com/weirdb/weir/internal/proxy/sight"
)

// AddTo implements core.Pool. Pools of one user and database are added up: they
// differ in what their clients can do, or are on other loops.
func (p *pool) AddTo(out *sight.Snapshot) {
	for _, ln := range p.lanes {
		out.Lanes = append(out.Lanes, ln.snapshot())
	}
	ps := out.PoolOf(p.key.database, p.key.user)
	p.Describe(ps)
	core.AddPins(ps, pinNames[:], p.pinned[:])
}

func (ln *lane) snapshot() sight.LaneStatus {
	kind := "solo"
	if ln.rows != nil {
		kind = "rows"
	}
	return sight.LaneStatus{
		Database: ln.p.key.database, User: ln.p.key.user, Kind: kind, Window: ln.key.window, Text: ln.name(),
		Waiting: ln.q.Len(), InFlight: ln.q.InFlight(), Lanes: ln.q.Lanes(), Limit: ln.limit,
		Groups: ln.groups, Members: ln.members, Fallbacks: ln.fallbacks, Retried: ln.retried, Batch: ln.q.Stats(),
	}
}
