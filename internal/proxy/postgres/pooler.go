package postgres

import (
	"context"
	"fmt"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/weirdb/weir/internal/proxy/upstream"
	"github.com/weirdb/weir/internal/wire/pgwire"
)

// This file is about poolers in the server's place that give the connection of a session
// to others between its transactions. What weir sets on such a connection, for a client or
// for itself, would reach the sessions of others, also of those who do not come through
// weir; and nothing in the protocol tells. So weir does not use them.

const (
	// maxProcess is the highest number of a process on Linux. A login that is given a
	// higher one has not come to a server itself, but to something that makes them up.
	maxProcess = 1 << 22
	// pooledBeside is how many sessions look whether they have the connection of another
	// one that is idle. A pooler gives them its idle ones, of which that is one.
	pooledBeside = 3
	// pooledPatience bounds that: a pooler that has no free connection lets them wait.
	pooledPatience = 2 * time.Second
	// pooledKeep is how long what was found counts, and pooledRetry, where it was a pooler:
	// it may have another configuration by then.
	pooledKeep  = time.Minute
	pooledRetry = 5 * time.Second
)

// A pooledVerdict is what was last found of an address.
type pooledVerdict struct {
	until time.Time
	err   error
}

// pooledVerdicts are by address. Safe for concurrent use.
type pooledVerdicts struct {
	mu sync.Mutex
	of map[string]pooledVerdict // guarded by mu, also while one is found out
}

// check returns why a new connection is of no use because others get it, too.
func (v *pooledVerdicts) check(ctx context.Context, s *Server, cfg pgwire.ConnectConfig, be *pgwire.Backend, e upstream.Endpoint) error {
	if be.PID <= maxProcess {
		return nil
	}
	v.mu.Lock()
	defer v.mu.Unlock()
	last := v.of[e.Address]
	if time.Now().Before(last.until) {
		return last.err
	}
	now := pooledVerdict{until: time.Now().Add(pooledKeep)}
	if sharesSessions(ctx, cfg, be) {
		now = pooledVerdict{time.Now().Add(pooledRetry), errSharesSessions(e)}
		if last.err == nil {
			s.Log.Error("no client can be served", "error", now.err)
		}
	}
	if v.of == nil {
		v.of = make(map[string]pooledVerdict)
	}
	v.of[e.Address] = now
	return now.err
}

func errSharesSessions(e upstream.Endpoint) *pgwire.Error {
	err := pgwire.NewError(pgwire.CodeConnectionRejected, "weir: a pooler at %s gives the connection of a session to others between its transactions", e.Host)
	err.Detail = "So does PgBouncer with pool_mode = transaction. What is set in one session would reach others."
	err.Hint = "Have --postgres name the server itself, or a pool with pool_mode = session."
	return err
}

// sharesSessions reports whether what is set on a connection that is idle now is found
// on another one. What goes wrong proves nothing.
func sharesSessions(ctx context.Context, cfg pgwire.ConnectConfig, be *pgwire.Backend) (found bool) {
	ctx, cancel := context.WithTimeout(ctx, pooledPatience)
	defer cancel()
	defer func() { _ = be.Conn.SetDeadline(time.Time{}) }()
	// Any role may set it, it does not matter, and no pooler restores it.
	mark := fmt.Sprintf("0.%05d", 2*rand.IntN(49_000)+1_001) // an odd number: no zero at the end
	if runSetup(ctx, be.Conn, "SET geqo_seed = "+mark) != nil {
		return false
	}
	defer func() { _ = runSetup(ctx, be.Conn, "RESET geqo_seed") }()
	for range pooledBeside {
		other, err := pgwire.Connect(ctx, cfg)
		if err != nil {
			return false
		}
		defer func() { _ = other.Conn.Close() }()
		// First for itself, which a pooler that shares by the statement takes; then so that
		// it keeps what it has from the next one.
		for _, begin := range []string{"", "BEGIN"} {
			if runSetup(ctx, other.Conn, begin) != nil {
				return false
			}
			row, err := queryOne(ctx, other.Conn, "SELECT pg_catalog.current_setting('geqo_seed')")
			if err != nil {
				return false
			}
			if len(row) == 1 && string(row[0]) == mark {
				_ = runSetup(ctx, other.Conn, "RESET geqo_seed; COMMIT")
				return true
			}
		}
	}
	return false
}
