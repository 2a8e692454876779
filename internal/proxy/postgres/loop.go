package postgres

import (
	"github.com/weirdb/weir/internal/proxy/core"
	"github.com/weirdb/weir/internal/proxy/sqlscan"
)

// A loop is one event loop with the clients, pools and backends that live on it.
type loop struct {
	core.Loop[poolKey, *pool, *client]
	srv *Server
	cfg *Config // in force on this loop

	logins core.PendingLogins // who log in
	asker  roleQuerier
	met    uint64 // logins that came to their good end on the loop alone

	proofs map[string]*dbCatalogue // by database
	units  []*unit                 // for reuse
	text   sqlscan.Text            // the text that is being judged
	scans  scans

	bound    boundRows
	cacheKey []byte // of the statement that the cache was asked about last
}

// Drain implements netloop.Owner. Who waits for a backend gets none any more.
func (l *loop) Drain() {
	var waiting []*client
	if l.cfg.Authenticator != nil {
		for _, c := range l.Clients {
			if c.link == nil && (c.state == stateWaiting || c.inflight > 0) {
				waiting = append(waiting, c)
			}
		}
		for _, p := range l.PoolList {
			p.failWaiting(0, l.errShutdown())
		}
	}
	l.logins.Dismiss()
	l.Loop.Drain()
	for _, c := range waiting {
		if c.inflight == 0 && c.link == nil {
			c.fatal(l.errShutdown())
		}
	}
}

// Settle implements netloop.Owner.
func (l *loop) Settle() {
	l.logins.Settle()
	l.asker.settle()
	l.Loop.Settle()
}

// Tick implements netloop.Owner.
func (l *loop) Tick() {
	l.logins.Tick(l.Now)
	l.asker.tick()
	l.Loop.Tick()
}

// Drained reports whether all clients have left. Those that came through an Authenticator stay as
// long as others have a backend, to hear why they may not go on when they ask.
func (l *loop) Drained() bool {
	if l.cfg.Authenticator == nil {
		return l.Loop.Drained()
	}
	for _, c := range l.Clients {
		if c.link != nil || c.inflight > 0 {
			return false
		}
	}
	return true
}

func newLoop(srv *Server) (*loop, error) {
	l := &loop{srv: srv, cfg: srv.cfg(), proofs: make(map[string]*dbCatalogue)}
	l.asker.l = l
	l.Init()
	l.Move = func(c *client) bool { return c.moving.move() }
	l.PoolOf, l.Dropped = func(c *client) poolKey { return c.p.key }, l.dropped
	l.Needed = func(p *pool) bool { return len(p.listeners.hubs) > 0 || p.ConnManager().Needed() }
	l.Idle, l.Leaving = func(p *pool, idle bool) bool { return p.ConnManager().Idle(idle) }, srv.Quotas.Leaving
	l.KeepPools(l.cfg.PoolKeep)
	return l, l.Start(l, srv.Monotonic, l.cfg.DrainTimeout)
}
