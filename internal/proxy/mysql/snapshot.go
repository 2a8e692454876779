package mysql

import (
	"github.com/weirdb/weir/internal/proxy/core"
	"github.com/weirdb/weir/internal/proxy/sight"
)

// AddTo implements core.Pool. Pools of one user and database are added up: they differ in their
// clients' capabilities, or are on different loops.
func (p *pool) AddTo(out *sight.Snapshot) {
	for _, ln := range p.lanes.all {
		out.AddLane(ln.snapshot())
	}
	ps := out.PoolOf(p.key.database, p.key.user)
	p.Describe(ps)
	core.AddPins(ps, pinNames[:], p.pinned[:])
}

func (ln *lane) snapshot() sight.LaneStatus {
	kind := "transaction"
	if ln.rows != nil {
		kind = "rows"
	}
	s := ln.Status()
	s.Database, s.User, s.Kind, s.Window, s.Text = ln.p.key.database, ln.p.key.user, kind, ln.key.window, ln.name()
	return s
}
