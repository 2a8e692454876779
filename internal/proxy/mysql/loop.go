package mysql

import (
	"sync/atomic"
	"time"

	"github.com/weirdb/weir/internal/proxy/netloop"
	"github.com/weirdb/weir/internal/proxy/session"
	"github.com/weirdb/weir/internal/proxy/sight"
)

// A loop is one event loop with the clients, pools and backends that live on
// it. It implements netloop.Owner.
type loop struct {
	netloop.Loop
	srv *Server

	pools    map[poolKey]*pool
	poolList []*pool
	clients  map[uint32]*client // by connection id
	resume   []*client          // whose held bytes are to be looked at again
	hotPools []*pool            // whose queues are to be looked at
	hot      []*lane            // to be pumped at the end of this turn
	timed    []*lane            // waiting for a window to end

	settings *session.Table
	shapes   *sight.Shapes
	units    []*unit // for reuse
	load     atomic.Int64

	badHints, protocolErrors uint64
}

func newLoop(srv *Server) (*loop, error) {
	l := &loop{
		srv:      srv,
		pools:    make(map[poolKey]*pool),
		settings: session.NewTable(),
		shapes:   sight.NewShapes(),
		clients:  make(map[uint32]*client),
	}
	return l, l.Start(l, srv.monotonic, srv.cfg.DrainTimeout)
}

// Settle lets clients, pools and lanes act on what the turn brought, until none
// makes work for another.
func (l *loop) Settle() {
	l.checkWindows()
	for len(l.resume) > 0 || len(l.hotPools) > 0 || len(l.hot) > 0 {
		for i := 0; i < len(l.resume); i++ {
			c := l.resume[i]
			l.resume[i] = nil
			c.resuming = false
			c.s.Consume()
		}
		l.resume = l.resume[:0]
		for i := 0; i < len(l.hotPools); i++ {
			p := l.hotPools[i]
			p.hot = false
			p.dispatch()
		}
		l.hotPools = l.hotPools[:0]
		for i := 0; i < len(l.hot); i++ {
			ln := l.hot[i]
			l.hot[i] = nil
			ln.hot = false
			ln.pump()
		}
		l.hot = l.hot[:0]
	}
}

// checkWindows wakes the lanes whose window has ended.
func (l *loop) checkWindows() {
	keep := l.timed[:0]
	for _, ln := range l.timed {
		if at, ok := ln.q.Deadline(); ok && at > l.Now {
			keep = append(keep, ln)
			continue
		}
		ln.timed = false
		ln.touch()
	}
	clear(l.timed[len(keep):])
	l.timed = keep
}

// Alarm is the nearest window's end.
func (l *loop) Alarm() (next time.Duration, ok bool) {
	for _, ln := range l.timed {
		if at, open := ln.q.Deadline(); open && (!ok || at < next) {
			next, ok = at, true
		}
	}
	return next, ok
}

// Tick does the housekeeping.
func (l *loop) Tick() {
	for _, p := range l.poolList {
		p.tick()
	}
	for _, c := range l.clients {
		c.tick()
	}
}

// Drain asks every client to leave: idle ones are told so and closed at once,
// the others when their transaction ends.
func (l *loop) Drain() {
	for _, c := range l.clients {
		c.draining = true
		c.leaveIfIdle()
	}
}

// Drained tells whether all clients have left.
func (l *loop) Drained() bool { return len(l.clients) == 0 }

// Shutdown ends clients and backends that are left.
func (l *loop) Shutdown() {
	for _, c := range l.clients {
		c.fatal(errShutdown())
	}
	l.Settle()
	for _, p := range l.poolList {
		p.closeAll()
	}
}
