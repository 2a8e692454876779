package mysql

import (
	"time"

	"github.com/weirdb/weir/internal/proxy/core"
	"github.com/weirdb/weir/internal/proxy/sqlscan/myscan"
)

// A loop is one event loop with the clients, pools and backends that live on it.
type loop struct {
	core.Loop[poolKey, *pool, *client]
	srv *Server
	cfg *Config // the configuration of this loop

	logins core.PendingLogins // clients that are logging in
	met    uint64             // logins completed on the loop alone

	catalogues map[string]*accountCatalogue // by account
	units      []*unit                      // for reuse
	text       myscan.Text                  // the text that was read last
	scans      uint64                       // texts read
	longest    int                          // length of the longest text that the loop itself has read
	gathers    int                          // maxGathered, or less in tests
	restWithin time.Duration                // the constant, or less in tests
	patience   time.Duration                // factsPatience, or another in tests
	cacheKey   []byte                       // of the statement last looked up in the cache

	// renewSoon: backends may be out of date, since something may have been done in part; see
	// renewEvery. renewed is when the loop last acted on it.
	renewSoon bool
	renewed   time.Duration
}

func newLoop(srv *Server) (*loop, error) {
	l := &loop{srv: srv, cfg: srv.cfg(), catalogues: make(map[string]*accountCatalogue), gathers: maxGathered, restWithin: restWithin, patience: factsPatience}
	l.Init()
	l.Move = func(c *client) bool { return c.moving.move() }
	l.PoolOf, l.Dropped = func(c *client) poolKey { return c.p.key }, l.dropped
	l.Needed = func(p *pool) bool { return p.ConnManager().Needed() }
	l.Idle, l.Leaving = func(p *pool, idle bool) bool { return p.ConnManager().Idle(idle) }, srv.Quotas.Leaving
	l.KeepPools(l.cfg.PoolKeep)
	return l, l.Start(l, srv.Monotonic, l.cfg.DrainTimeout)
}

// read splits a text into tokens. The result is valid until the next call.
func (l *loop) read(sql string, mode myscan.Mode) *myscan.Text {
	l.scans++
	l.longest = max(l.longest, len(sql))
	l.text.Read(sql, mode)
	return &l.text
}

// Drain implements netloop.Owner.
func (l *loop) Drain() {
	l.logins.Dismiss()
	l.Loop.Drain()
}

// Settle implements netloop.Owner.
func (l *loop) Settle() {
	l.logins.Settle()
	l.Loop.Settle()
}

// Tick runs the periodic work.
func (l *loop) Tick() {
	l.logins.Tick(l.Now)
	if l.renewSoon && l.Now-l.renewed > renewEvery {
		l.renewSoon, l.renewed = false, l.Now
		l.srv.renew(l)
	}
	for _, k := range l.catalogues {
		k.tick()
	}
	l.Loop.Tick()
}
