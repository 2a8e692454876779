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

	proofs map[string]*proof // by database
	units  []*unit           // for reuse
	text   sqlscan.Text      // the text that is being judged
	scans  uint64            // texts that were read
}

func newLoop(srv *Server) (*loop, error) {
	l := &loop{srv: srv, cfg: srv.cfg(), proofs: make(map[string]*proof)}
	l.Init()
	return l, l.Start(l, srv.Monotonic, l.cfg.DrainTimeout)
}
