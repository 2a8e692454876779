package mysql

import (
	"time"

	"github.com/weirdb/weir/internal/proxy/core"
)

// A loop is one event loop with the clients, pools and backends that live on it.
type loop struct {
	core.Loop[poolKey, *pool, *client]
	srv *Server
	cfg *Config // in force on this loop

	catalogs map[string]*catalog // by account
	units    []*unit             // for reuse
	scans    uint64              // texts that were read

	// renewSoon: backends may be out of date, since something was done in part; see
	// renewEvery. renewed is when that was last acted on.
	renewSoon bool
	renewed   time.Duration
}

func newLoop(srv *Server) (*loop, error) {
	l := &loop{srv: srv, cfg: srv.cfg(), catalogs: make(map[string]*catalog)}
	l.Init()
	return l, l.Start(l, srv.Monotonic, l.cfg.DrainTimeout)
}

// Tick does the housekeeping.
func (l *loop) Tick() {
	if l.renewSoon && l.Now-l.renewed > renewEvery {
		l.renewSoon, l.renewed = false, l.Now
		l.srv.renew(l)
	}
	for _, k := range l.catalogs {
		k.tick()
	}
	l.Loop.Tick()
}
