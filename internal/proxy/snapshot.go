package proxy

import (
	"cmp"
	"context"
	"slices"
	"time"

	"github.com/weirdb/weir/batch"
	"github.com/weirdb/weir/internal/measure"
)

// Snapshot is the proxy's state at one moment, loops added up. Counters count
// since the start.
type Snapshot struct {
	Uptime         time.Duration
	Clients        int
	Logins         uint64
	LoginsFailed   uint64
	LoginsRefused  uint64
	Cancels        uint64
	ProtocolErrors uint64
	BadHints       uint64
	Loops          []LoopStatus
	Pools          []PoolStatus
	Lanes          []LaneStatus
	Shapes         []ShapeStatus
}

// LoopStatus is the work of one event loop. Bytes and system calls are those of
// all its sockets; Busy is the time in which it did not sleep.
type LoopStatus struct {
	Turns, Events, Reads, Writes, BytesIn, BytesOut uint64
	Busy                                            time.Duration
}

// PoolStatus is one pool.
type PoolStatus struct {
	Database, User string
	Size           int
	Clients        int // logged in
	Active         int // have a unit under way
	Waiting        int // statements that wait for a backend
	OldestWait     time.Duration
	Backends       int
	Free           int
	Shared         int // pipeline reads
	Owned          int // serve one client
	Laned          int // run a group
	Dialing        int

	Statements, Reads, Grouped, Errors uint64
	Bytes                              uint64
	Waits, Timeouts                    uint64
	Waited                             time.Duration
	Replays, Reruns                    uint64
	Opened, Closed, DialErrors         uint64
	Pins                               map[string]uint64 // by cause, since the start
	Pinned                             int               // clients pinned now
	Latency                            *measure.Hist     // ns, from the complete message to the answer
}

// LaneStatus is one write lane.
type LaneStatus struct {
	Database, User string
	Kind           string // rows or solo
	Window         time.Duration
	Text           string
	Waiting        int
	InFlight       int
	Lanes          int
	Limit          int
	Groups         uint64
	Members        uint64
	Fallbacks      uint64
	Retried        uint64
	Batch          batch.Stats
}

// ShapeStatus is what is known of one statement shape.
type ShapeStatus struct {
	Text      string
	Verb      string
	Runs      uint64 // answered, by any path
	Grouped   uint64 // of these
	Errors    uint64
	Cost      time.Duration
	MeanBytes float64
}

// Snapshot collects the state of all loops. It costs each loop some
// microseconds per pool.
func (s *Server) Snapshot(ctx context.Context) (Snapshot, error) {
	out := Snapshot{
		Uptime: s.monotonic(), Logins: s.logins.Load(), LoginsFailed: s.failed.Load(),
		LoginsRefused: s.refused.Load(), Cancels: s.cancels.Load(),
	}
	pools := make(map[poolKey]*PoolStatus)
	for _, l := range s.loops {
		if err := l.call(ctx, func() { l.snapshot(&out, pools) }); err != nil {
			return Snapshot{}, err
		}
	}
	for _, p := range pools {
		out.Pools = append(out.Pools, *p)
	}
	slices.SortFunc(out.Pools, func(a, b PoolStatus) int {
		return cmp.Or(cmp.Compare(a.Database, b.Database), cmp.Compare(a.User, b.User))
	})
	slices.SortFunc(out.Shapes, func(a, b ShapeStatus) int { return cmp.Compare(b.Runs, a.Runs) })
	return out, nil
}

// maxReportedShapes bounds the shapes in a snapshot, busiest first, and with
// it the cardinality of metrics.
const maxReportedShapes = 100

func (l *loop) snapshot(out *Snapshot, pools map[poolKey]*PoolStatus) {
	st := &l.st
	out.Clients += len(l.clients)
	out.ProtocolErrors += st.protocolErrors
	out.BadHints += st.badHints
	out.Loops = append(out.Loops, LoopStatus{
		Turns: st.turns, Events: st.events, Reads: st.reads, Writes: st.writes,
		BytesIn: st.bytesIn, BytesOut: st.bytesOut, Busy: st.busy,
	})
	for _, p := range l.poolList {
		ps := pools[p.key]
		if ps == nil {
			ps = &PoolStatus{Database: p.key.database, User: p.key.user, Pins: make(map[string]uint64), Latency: new(measure.Hist)}
			pools[p.key] = ps
		}
		p.addTo(ps)
		for _, ln := range p.lanes {
			out.Lanes = append(out.Lanes, ln.snapshot())
		}
	}
	for _, c := range l.clients {
		ps := pools[c.p.key]
		ps.Clients++
		if c.pins != 0 {
			ps.Pinned++
		}
		if c.inflight > 0 || c.waiting || (c.link != nil && c.link.depth() > 0) {
			ps.Active++
		}
	}
	var shapes []*shape
	for _, s := range l.shapes.byFP {
		if s.runs > 0 {
			shapes = append(shapes, s)
		}
	}
	slices.SortFunc(shapes, func(a, b *shape) int { return cmp.Compare(b.runs, a.runs) })
	for _, s := range shapes[:min(len(shapes), maxReportedShapes)] {
		out.Shapes = append(out.Shapes, ShapeStatus{
			Text: s.text, Verb: s.verb.String(), Runs: s.runs, Grouped: s.grouped, Errors: s.errors,
			Cost: s.cost, MeanBytes: s.bytes,
		})
	}
}

func (p *pool) addTo(ps *PoolStatus) {
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
			ps.OldestWait = max(ps.OldestWait, p.l.now-w.since)
		}
	}
	ps.Waiting += len(p.reads)
	st := &p.st
	ps.Statements += st.units
	ps.Reads += st.reads
	ps.Grouped += st.grouped
	ps.Errors += st.errors
	ps.Bytes += st.bytes
	ps.Waits += st.waits
	ps.Waited += st.waited
	ps.Timeouts += st.timeouts
	ps.Replays += st.replays
	ps.Reruns += st.reruns
	ps.Opened += st.opened
	ps.Closed += st.closed
	ps.DialErrors += st.dialErrors
	for i, n := range st.pins {
		if n > 0 {
			ps.Pins[pinNames[i]] += n
		}
	}
	ps.Latency.Merge(&st.latency)
}

func (ln *lane) snapshot() LaneStatus {
	kind := "solo"
	if ln.rows != nil {
		kind = "rows"
	}
	return LaneStatus{
		Database: ln.p.key.database, User: ln.p.key.user, Kind: kind, Window: ln.key.window, Text: ln.name,
		Waiting: ln.q.Len(), InFlight: ln.q.InFlight(), Lanes: ln.q.Lanes(), Limit: ln.limit,
		Groups: ln.groups, Members: ln.members, Fallbacks: ln.fallbacks, Retried: ln.retried, Batch: ln.q.Stats(),
	}
}
