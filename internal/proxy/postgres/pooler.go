package postgres

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"sync"
	"time"

	"github.com/weirdb/weir/internal/proxy/upstream"
	"github.com/weirdb/weir/internal/wire/pgwire"
)

// This file detects poolers in the place of the server that give the connection of a session
// to others between its transactions. What weir sets on such a connection, for a client or
// for itself, would reach the sessions of others, also of clients that do not use
// weir; and nothing in the protocol shows it. So weir does not use them.

const (
	// maxProcess is the highest process ID on Linux. A login that gets a
	// higher one is not connected to a server itself, but to something that invents them.
	maxProcess = 1 << 22
	// pooledBeside is how many sessions check whether they have the connection of another
	// one that is idle. A pooler gives them its idle connections, of which that is one.
	pooledBeside = 3
	// pooledPatience bounds that: a pooler that has no free connection lets them wait.
	// pooledTrips is for one that is far away: they come to 30 round trips, with SCRAM in TLS,
	// each of at most pooledTrip.
	pooledPatience = 2 * time.Second
	pooledTrips    = 60
	pooledTrip     = time.Second / 2
	// pooledLate bounds by how much an answer may be later than another one, which the pooler
	// has given after it.
	pooledLate = 100 * time.Millisecond
	// pooledKeep is how long what was found counts, and pooledRetry, where it was a pooler:
	// it may have another configuration by then.
	pooledKeep  = time.Minute
	pooledRetry = 5 * time.Second
)

// A pooledKey says whose connections to what address are alike: PgBouncer has a pool_mode for
// each database and each user.
type pooledKey struct{ address, database, user string }

// A pooledVerdict is what was last found, or is being looked for.
type pooledVerdict struct {
	found chan struct{} // closed when that is over; what follows is set before
	until time.Time     // how long it counts; zero if nothing was found
	err   error         // why no connection is of use
}

// pooledVerdicts are by address, database and user. Safe for concurrent use.
type pooledVerdicts struct {
	mu sync.Mutex
	of map[pooledKey]*pooledVerdict // guarded by mu
}

// maxPooled bounds the verdicts that are kept.
const maxPooled = 10000

// check returns why a new connection is of no use: others get it, too, or it was lost while
// weir looked. The context has a deadline. One connection at a time looks, and others wait
// for what it finds.
func (v *pooledVerdicts) check(ctx context.Context, s *Server, cfg pgwire.ConnectConfig, be *pgwire.Backend, e upstream.Endpoint) error {
	if be.PID <= maxProcess {
		return nil
	}
	for {
		p, mine := v.begin(pooledKey{e.Address, cfg.Database, cfg.User})
		if mine {
			return p.find(ctx, s, cfg, be, e)
		}
		select {
		case <-p.found:
		case <-ctx.Done():
			return ctx.Err()
		}
		if !p.until.IsZero() {
			return p.err
		}
	}
}

// begin returns the verdict that counts, or is being looked for; or, if mine, one that the
// caller is to look for.
func (v *pooledVerdicts) begin(key pooledKey) (p *pooledVerdict, mine bool) {
	v.mu.Lock()
	defer v.mu.Unlock()
	next := &pooledVerdict{found: make(chan struct{})}
	if p = v.of[key]; p != nil {
		select {
		case <-p.found:
			if time.Now().Before(p.until) {
				return p, false
			}
			next.err = p.err
		default:
			return p, false
		}
	}
	if v.of == nil || len(v.of) >= maxPooled {
		v.of = make(map[pooledKey]*pooledVerdict)
	}
	v.of[key] = next
	return next, true
}

// find looks for a verdict, which has the error of the one before it, on a connection.
func (p *pooledVerdict) find(ctx context.Context, s *Server, cfg pgwire.ConnectConfig, be *pgwire.Backend, e upstream.Endpoint) error {
	defer close(p.found)
	before := p.err
	p.err = nil
	shares, sure, err := sharesSessions(ctx, cfg, be)
	switch {
	case shares:
		p.until, p.err = time.Now().Add(pooledRetry), errSharesSessions(e)
		if before == nil {
			s.Log.Error("no client can be served", "error", p.err)
		}
		return p.err
	case sure:
		p.until = time.Now().Add(pooledKeep)
	}
	return err
}

func errSharesSessions(e upstream.Endpoint) *pgwire.Error {
	err := pgwire.NewError(pgwire.CodeConnectionRejected, "weir: a pooler at %s gives the connection of a session to others between its transactions", e.Host)
	err.Detail = "So does PgBouncer with pool_mode = transaction. What is set in one session would reach others."
	err.Hint = "Have --postgres name the server itself, or a pool with pool_mode = session."
	return err
}

// sharesSessions reports whether what is set on a connection that is idle now is found
// on another one; sure tells that it would have been. After an error the connection is of no
// use, since an answer to weir may be still to come.
func sharesSessions(ctx context.Context, cfg pgwire.ConnectConfig, be *pgwire.Backend) (shares, sure bool, err error) {
	// Any role may set it, it does not matter, and no pooler restores it.
	mark := fmt.Sprintf("0.%05d", 2*rand.IntN(49_000)+1_001) // an odd number: no zero at the end
	var refused *pgwire.Error
	if err := runSetup(ctx, be.Conn, "SET geqo_seed = "+mark); errors.As(err, &refused) {
		return false, false, be.Conn.SetDeadline(time.Time{}) // no PostgreSQL
	} else if err != nil {
		return false, false, fmt.Errorf("ask whether a pooler shares the connection: %w", err)
	}
	// The second statement's time is that of a round trip: for the first one a pooler may have
	// opened a connection, or waited for one.
	sent := time.Now()
	if err := runSetup(ctx, be.Conn, ""); err != nil {
		return false, false, fmt.Errorf("ask how far away a pooler is: %w", err)
	}
	trip := min(time.Since(sent), pooledTrip)
	others, shares, sure, waits := findBeside(ctx, cfg, mark, max(pooledPatience, pooledTrips*trip))
	// One that waits for a connection of a pooler that shares them has it before be is
	// answered. If it still waits then, be has one of its own.
	own, cancel := context.WithTimeout(context.WithoutCancel(ctx), pooledPatience+2*trip)
	defer cancel()
	err = runSetup(own, be.Conn, "RESET geqo_seed")
	late := err == nil && waits != nil && !unanswered(waits)
	for _, other := range others {
		_ = other.Conn.Close()
	}
	if late {
		return false, false, errors.New("find out whether a pooler shares the connection: another one waited, and was answered meanwhile")
	}
	if err == nil {
		err = be.Conn.SetDeadline(time.Time{})
	}
	if err != nil {
		return shares, false, fmt.Errorf("take back what weir set to find out whether a pooler shares the connection: %w", err)
	}
	return shares, sure, nil
}

// unanswered reports whether a connection that an answer did not come to in time has none yet.
func unanswered(be *pgwire.Backend) bool {
	if be.Conn.SetDeadline(time.Now().Add(pooledLate)) != nil {
		return false
	}
	_, err := be.Conn.Read(make([]byte, 1))
	return errors.Is(err, os.ErrDeadlineExceeded)
}

// findBeside looks for the mark on other connections, which the caller closes. Where these
// cannot be had, it proves nothing; where one of them waits, it is sure to find none if that
// one has to wait on.
func findBeside(ctx context.Context, cfg pgwire.ConnectConfig, mark string, patience time.Duration) (others []*pgwire.Backend, shares, sure bool, waits *pgwire.Backend) {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	for range pooledBeside {
		other, err := pgwire.Connect(ctx, cfg)
		if err != nil {
			return others, false, false, nil
		}
		others = append(others, other)
		// First for itself, which a pooler that shares by the statement takes; then so that
		// it keeps what it has from the next one.
		for _, begin := range []string{"", "BEGIN"} {
			var row [][]byte
			if err = runSetup(ctx, other.Conn, begin); err == nil {
				row, err = queryOne(ctx, other.Conn, "SELECT pg_catalog.current_setting('geqo_seed')")
			}
			switch {
			case err != nil && (ctx.Err() != nil || errors.Is(err, os.ErrDeadlineExceeded)): // the context's, by another timer
				return others, false, true, other
			case err != nil:
				return others, false, false, nil
			case len(row) == 1 && string(row[0]) == mark:
				_ = runSetup(ctx, other.Conn, "RESET geqo_seed; COMMIT")
				return others, true, true, nil
			}
		}
	}
	return others, false, true, nil
}
