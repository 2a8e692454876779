package postgres

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/weirdb/weir/outbox"
)

// presence is the shared advisory lock of relays that claim with SKIP LOCKED, held by a
// dedicated session. Relays that lead hold the locks of shards. Each kind takes its own lock
// before it checks for the other's, so that of two that start at the same time at least one
// sees the other.
type presence struct {
	store   *Store
	lock    *pgx.Conn // belongs to watchSession
	lost    chan struct{}
	stop    context.CancelFunc
	watched chan struct{}
	unlock  sync.Once
}

// Announce implements [outbox.Announcer].
func (s *Store) Announce(ctx context.Context) (outbox.Presence, error) {
	if err := s.pooled.Err(); err != nil {
		return nil, s.wrap("announce claims on", err)
	}
	n, m, err := s.ready(ctx)
	if err != nil {
		return nil, err
	}
	_, asked := s.held(ctx, n.claimsKey())
	c, err := s.connectToWait(ctx)
	if err != nil {
		return nil, s.wrap("announce claims on", err)
	}
	var pid int64
	var place string
	err = s.answered(ctx, func(ctx context.Context) (err error) {
		pid, place, err = announce(ctx, c, n, m, max(maxSilence, 3*s.opts.LeaseTimeout))
		return err
	})
	if err != nil {
		closeConn(c)
		return nil, s.wrap("announce claims on", err)
	}
	if asked != place {
		s.moved() // rows are claimed where the announcement is
	}
	p := &presence{store: s, lock: c, lost: make(chan struct{}), watched: make(chan struct{})}
	watching, stop := context.WithCancel(context.Background())
	p.stop = stop
	lose := sync.OnceFunc(func() { close(p.lost) })
	go func() { // Close ends it
		defer close(p.watched)
		var group sync.WaitGroup
		defer group.Wait()
		group.Go(func() { s.stay(watching, place, p.lost, lose) })
		s.watchSession(watching, c, pid, lose)
	}()
	return p, nil
}

// announce takes the lock, and returns the process that holds it and its place, see placeText.
func announce(ctx context.Context, c *pgx.Conn, n names, m meta, silence time.Duration) (pid int64, place string, err error) {
	if err := c.QueryRow(ctx, "SELECT pg_backend_pid(), "+placeText+", pg_advisory_lock_shared($1)", n.claimsKey()).Scan(&pid, &place, nil); err != nil {
		return 0, "", fmt.Errorf("lock: %w", err)
	}
	keys := make([]int64, m.shards)
	for i := range keys {
		keys[i] = n.leaseKey(i)
	}
	var owner string
	err = c.QueryRow(ctx, "SELECT l.owner FROM unnest($1::bigint[]) WITH ORDINALITY AS k(key, i) JOIN "+n.q("_lease")+
		" AS l ON l.shard = k.i - 1 WHERE k.key IN ("+advisoryKeys+") LIMIT 1", keys).Scan(&owner)
	switch {
	case err == nil:
		return 0, "", fmt.Errorf("%w (%s leads)", outbox.ErrMixedClaims, owner)
	case !errors.Is(err, pgx.ErrNoRows):
		return 0, "", fmt.Errorf("look for a leader: %w", err)
	}
	return pid, place, limitSilence(ctx, c, silence)
}

// refuseClaims refuses to lead beside relays that claim with SKIP LOCKED.
func refuseClaims(ctx context.Context, c *pgx.Conn, n names) error {
	claimed, err := advisoryHeld(ctx, c, n.claimsKey())
	if err != nil {
		return fmt.Errorf("look for claims with skip-locked: %w", err)
	}
	if claimed {
		return fmt.Errorf("%w (a relay claims with skip-locked)", outbox.ErrMixedClaims)
	}
	return nil
}

// Lost implements [outbox.Presence].
func (p *presence) Lost() <-chan struct{} { return p.lost }

// Close implements [outbox.Presence].
func (p *presence) Close() error {
	p.unlock.Do(func() {
		p.stop()
		<-p.watched
		closeConn(p.lock) // and the lock goes with the session
	})
	return nil
}
