package postgres

import (
	"sync/atomic"
	"time"

	"github.com/weirdb/weir/internal/proxy/netloop"
	"github.com/weirdb/weir/internal/proxy/session"
	"github.com/weirdb/weir/internal/proxy/sight"
	"github.com/weirdb/weir/internal/proxy/sqlscan"
)

// A loop is one event loop with the clients, pools and backends that live on
// it. It implements netloop.Owner.
type loop struct {
	netloop.Loop
	srv *Server

	pools    map[poolKey]*pool
	proofs   map[string]*proof // by database
	poolList []*pool
	clients  map[uint32]*client // by cancel id
	agenda   netloop.Agenda

	settings *session.Table
	shapes   *sight.Shapes
	units    []*unit      // for reuse
	text     sqlscan.Text // the text that is being judged
	load     atomic.Int64 // clients

	badHints, protocolErrors uint64
}

func newLoop(srv *Server) (*loop, error) {
	l := &loop{
		srv:      srv,
		pools:    make(map[poolKey]*pool),
		proofs:   make(map[string]*proof),
		settings: session.NewTable(),
		shapes:   sight.NewShapes(),
		clients:  make(map[uint32]*client),
	}
	return l, l.Start(l, srv.monotonic, srv.cfg.DrainTimeout)
}

// Settle lets clients, pools and lanes act on what the turn brought.
func (l *loop) Settle() { l.agenda.Settle(l.Now) }

// Alarm is the nearest window's end.
func (l *loop) Alarm() (time.Duration, bool) { return l.agenda.Alarm() }

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
