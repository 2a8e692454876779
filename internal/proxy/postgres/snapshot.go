package postgres

import (
	"context"

	"github.com/weirdb/weir/internal/proxy/core"
	"github.com/weirdb/weir/internal/proxy/sight"
)

// Engine is the name of this side of the proxy in metrics and reports.
const Engine = "postgresql"

// Snapshot collects the state of all loops. It costs each loop some
// microseconds per pool.
func (s *Server) Snapshot(ctx context.Context) (sight.Snapshot, error) {
	out := sight.Snapshot{
		Engine: Engine,
		Uptime: s.monotonic(), Logins: s.logins.Load(), LoginsFailed: s.failed.Load(),
		LoginsRefused: s.refused.Load(), Cancels: s.cancels.Load(),
	}
	for _, l := range s.loops {
		if err := l.Call(ctx, func() { l.snapshot(&out) }); err != nil {
			return sight.Snapshot{}, err
		}
	}
	out.Sort()
	return out, nil
}

func (l *loop) snapshot(out *sight.Snapshot) {
	out.Clients += len(l.clients)
	out.ProtocolErrors += l.protocolErrors
	out.BadHints += l.badHints
	out.Loops = append(out.Loops, l.Stats())
	out.AddShapes(l.shapes)
	for _, p := range l.poolList {
		p.addTo(out.PoolOf(p.key.database, p.key.user))
		for _, ln := range p.lanes {
			out.Lanes = append(out.Lanes, ln.snapshot())
		}
	}
	for _, c := range l.clients {
		ps := out.PoolOf(c.p.key.database, c.p.key.user)
		ps.Clients++
		if c.pins != 0 {
			ps.Pinned++
		}
		if c.inflight > 0 || c.waiting || (c.link != nil && c.link.depth() > 0) {
			ps.Active++
		}
	}
}

func (p *pool) addTo(ps *sight.PoolStatus) {
	ps.Size += p.size
	ps.Backends += len(p.backends)
	ps.Free += len(p.free)
	ps.Dialing += p.dialing
	for _, b := range p.backends {
		switch b.mode {
		case modeShared:
			ps.Shared++
		case modeOwned, modeOwn:
			ps.Owned++
		case modeLaned:
			ps.Laned++
		}
	}
	for _, w := range p.excl {
		if !w.gone() {
			ps.Waiting++
			ps.OldestWait = max(ps.OldestWait, p.l.Now-w.since)
		}
	}
	ps.Waiting += len(p.reads) + p.apart.waiting()
	p.st.AddTo(ps)
	core.AddPins(ps, pinNames[:], p.st.pins[:])
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
