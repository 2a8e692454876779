package mysql

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"

	"github.com/weirdb/weir/outbox"
)

// presence is an advisory lock of a relay that claims with SKIP LOCKED, held by a dedicated
// session. Relays that lead hold the locks of shards. Each kind takes its own lock before it
// checks for the other's, so that of two that start at the same time at least one sees the
// other.
type presence struct {
	s    *Store
	c    *session
	same string // an expression: whether the session is the one that announced
	stop context.CancelFunc
	done chan struct{} // closed when watch has ended
	lost chan struct{}
	once sync.Once
}

// claimLocks is the number of locks for such relays, since the server has no shared advisory
// locks. Further relays hold none and depend on the others.
const claimLocks = 32

func (v *server) claimLock(s *Store, i int) string {
	return v.lockName(s, fmt.Sprintf("skip-locked %d", i))
}

// Announce implements [outbox.Announcer].
func (s *Store) Announce(ctx context.Context) (outbox.Presence, error) {
	if err := s.pooled.Err(); err != nil {
		return nil, s.fail("announce claims on", err)
	}
	c, err := s.renew(ctx, nil) // rows are claimed where the announcement is
	if err != nil {
		return nil, s.fail("announce claims on", err)
	}
	var same string
	v, err := s.serverOf(ctx, c)
	if err == nil {
		same, err = c.announce(ctx, s, v)
	}
	if err != nil {
		c.discard()
		return nil, s.fail("announce claims on", err)
	}
	p := &presence{s: s, c: c, same: same, done: make(chan struct{}), lost: make(chan struct{})}
	ctx, p.stop = context.WithCancel(context.Background())
	go p.watch(ctx) // Close ends it
	return p, nil
}

// announce takes a lock. It returns an expression that is true in this session alone.
func (c *session) announce(ctx context.Context, s *Store, v *server) (same string, err error) {
	if err := c.exec(ctx, fmt.Sprintf("SET wait_timeout = %d", idleTimeout)); err != nil {
		return "", err
	}
	same = fmt.Sprintf("CONNECTION_ID() = %d", c.id)
	for i := range claimLocks {
		name := v.claimLock(s, i)
		got, err := c.lock(ctx, name, 0)
		if err != nil {
			return "", err
		}
		if got {
			same = "COALESCE(IS_USED_LOCK('" + name + "') = CONNECTION_ID(), FALSE)"
			break
		}
	}
	var owner string
	err = c.QueryRowContext(ctx, s.sql("SELECT owner FROM {lease} WHERE IS_USED_LOCK(CONCAT('"+v.lockName(s, "")+"', shard)) IS NOT NULL LIMIT 1")).Scan(&owner)
	switch {
	case err == nil:
		return "", fmt.Errorf("%w (%s leads)", outbox.ErrMixedClaims, owner)
	case !errors.Is(err, sql.ErrNoRows):
		return "", fmt.Errorf("look for a leader: %w", err)
	}
	return same, nil
}

// refuseClaims refuses to lead beside relays that claim with SKIP LOCKED.
func (c *session) refuseClaims(ctx context.Context, s *Store, v *server) error {
	used := make([]string, claimLocks)
	for i := range used {
		used[i] = "IS_USED_LOCK('" + v.claimLock(s, i) + "')"
	}
	var session sql.NullInt64
	if err := c.QueryRowContext(ctx, "SELECT COALESCE("+strings.Join(used, ", ")+")").Scan(&session); err != nil {
		return fmt.Errorf("look for claims with skip-locked: %w", err)
	}
	if session.Valid {
		return fmt.Errorf("%w (a relay, session %d, claims with skip-locked)", outbox.ErrMixedClaims, session.Int64)
	}
	return nil
}

// watch keeps the session alive and closes lost when it has ended, or another one answers, or the
// address leads elsewhere.
func (p *presence) watch(ctx context.Context) {
	defer close(p.done)
	var group sync.WaitGroup
	defer group.Wait()
	lose := sync.OnceFunc(func() { close(p.lost) })
	group.Go(func() { p.s.stay(ctx, p.c.place, p.lost, lose) })
	tick := time.NewTicker(heartbeat)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-p.lost:
			return
		case <-tick.C:
		}
		asking, cancel := context.WithTimeout(context.WithoutCancel(ctx), p.s.patience)
		var same bool
		err := p.c.QueryRowContext(asking, "SELECT "+p.same).Scan(&same)
		cancel()
		if err == nil && !same {
			p.s.pooled.Moved()
		}
		if err != nil || !same {
			lose()
			return
		}
	}
}

// Lost implements [outbox.Presence].
func (p *presence) Lost() <-chan struct{} { return p.lost }

// Close implements [outbox.Presence].
func (p *presence) Close() (err error) {
	p.once.Do(func() {
		p.stop()
		<-p.done
		// The server may notice late that a session has ended. Another session that answers may
		// have locks of others.
		ctx, cancel := context.WithTimeout(context.Background(), p.s.patience)
		defer cancel()
		if err = p.c.exec(ctx, "DO IF("+p.same+", RELEASE_ALL_LOCKS(), 0)"); err != nil {
			err = p.s.fail("end announcing claims on", err)
		}
		p.c.discard()
	})
	return err
}
