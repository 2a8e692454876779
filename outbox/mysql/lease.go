package mysql

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"time"

	"github.com/weirdb/weir/outbox"
)

// lease is the leadership of a shard. Reads run in the session that holds the lock, so a read that
// succeeds had the lock.
type lease struct {
	term
	deliveries
	all   bool // the only shard: buckets make no difference
	first int  // bucket
	last  int  // bucket
	ids   bool // table _parked has column id
	// The identity of the table; owned by the goroutine that reads.
	identity identity

	decoder decoder      // of Read, as rows
	rows    []outbox.Row // guarded by term.mu
	watcher watcher      // of transactions, for Mark and Settled
}

const (
	// heartbeat is how often the session that holds the lock is checked.
	heartbeat = 400 * time.Millisecond
	// leasePatience is how long it may take to answer. The death of a server is
	// noticed at once; a slow server still holds the lock.
	leasePatience = 3 * time.Second
	// idleTimeout is after how many idle seconds the server ends the session, for
	// relays whose machine is gone.
	idleTimeout = 15
	// standbyPatience is how long a standby relay asks in the same session. Its server may no
	// longer be the one that the address leads to.
	standbyPatience = 15 * time.Second
	// leaderPatience is how long a leader stays with its server before it looks again whether the
	// address leads there.
	leaderPatience = time.Minute
	// sessionTrust is how old a session may be to begin to lead, for the same reason.
	sessionTrust = time.Second
)

// Lead implements [outbox.Store]. Canceling a Read while it runs closes its connection and so
// ends the leadership.
func (s *Store) Lead(ctx context.Context, shard int) (outbox.Lease, error) {
	if err := s.pooled.Err(); err != nil {
		return nil, s.fail("lead a shard of", err)
	}
	v, err := s.describeServer(ctx)
	if err != nil {
		return nil, err
	}
	l := &lease{
		term:       term{s: s, shard: shard, done: make(chan struct{}), lost: make(chan struct{})},
		deliveries: deliveries{names: s.names, parked: map[int64]struct{}{}},
	}
	if l.c, err = s.lockShard(ctx, v.shardLock(s, shard)); err == nil {
		if l.v, err = s.askServer(ctx, l.c); err == nil {
			err = l.take(ctx)
		}
		if err != nil {
			l.c.discard()
		}
	}
	if err != nil {
		return nil, s.fail(fmt.Sprintf("lead shard %d of", shard), err)
	}
	l.sessions = l.onServer
	ctx, l.beat = context.WithCancel(context.Background())
	go l.watch(ctx)
	return l, nil
}

// lockShard takes a lock in a session that leads where the address leads now. A standby relay
// tries several times a second, in the session that it has.
func (s *Store) lockShard(ctx context.Context, name string) (*session, error) {
	c, err := s.session(ctx)
	if err == nil && time.Since(c.began) >= s.standbyPatience {
		c, err = s.renew(ctx, c)
	}
	if err != nil {
		return nil, err
	}
	lock := func() (free bool, err error) {
		ctx, cancel := context.WithTimeout(ctx, s.patience)
		defer cancel()
		return c.lock(ctx, name, 0)
	}
	free, err := lock()
	if free && time.Since(c.began) >= sessionTrust {
		if err = c.unlock(ctx, name); err == nil {
			c, err = s.renew(ctx, c)
		}
		if err == nil {
			free, err = lock()
		}
	}
	if err == nil && !free {
		err = outbox.ErrHeld
		c.release(nil)
	} else if err != nil && c != nil {
		c.discard()
	}
	return c, err
}

// take increments the epoch, which waits for running statements of the previous leader.
func (l *lease) take(ctx context.Context) error {
	if err := l.c.exec(ctx, fmt.Sprintf("SET wait_timeout = %d", idleTimeout)); err != nil {
		return err
	}
	if err := l.c.refuseClaims(ctx, l.s, l.v); err != nil {
		return err
	}
	t, err := migration{l.s}.inspect(ctx, l.c, l.v)
	if err != nil {
		return err
	}
	if err := t.checkVersion(); err != nil {
		return err
	}
	if l.shard < 0 || l.shard >= t.meta.shards {
		return fmt.Errorf("there are %d shards", t.meta.shards)
	}
	l.hist, l.parts = t.meta.layout == outbox.History, len(t.partitions) > 0
	l.ids = t.noteIDs
	if l.parts {
		l.made = map[int64]int64{}
	}
	l.all = t.meta.shards == 1
	l.first, l.last = outbox.ShardBuckets(l.shard, t.meta.shards)
	l.decoder = decoder{first: l.first, last: l.last, all: l.all}
	if l.identity, err = l.identify(ctx, l.c); err != nil {
		return err
	}
	return l.raise(ctx)
}

// identity identifies a table: its creation time and its next AUTO_INCREMENT value. MySQL does
// not show a current value of the latter, so it is 0 there.
type identity struct {
	made string
	next int64
}

func (l *lease) identify(ctx context.Context, c *session) (id identity, err error) {
	var made sql.NullString
	next := "AUTO_INCREMENT"
	if !l.v.mariadb {
		next = "0"
	}
	err = c.QueryRowContext(ctx, "SELECT CAST(CREATE_TIME AS CHAR), COALESCE("+next+", 0) FROM information_schema.TABLES WHERE TABLE_SCHEMA = ? AND TABLE_NAME = ?",
		l.v.database, l.s.base).Scan(&made, &id.next)
	switch {
	case errors.Is(err, sql.ErrNoRows):
		err = outbox.ErrNotMigrated
	case err != nil:
		err = fmt.Errorf("identify the table: %w", err)
	}
	id.made = made.String
	return id, err
}

// Renewed implements [outbox.Renewer].
func (l *lease) Renewed(ctx context.Context) (anew bool, err error) {
	if err := l.deposed(); err != nil {
		return false, l.fail("look for", err)
	}
	err = l.with(ctx, func(c *session) error {
		now, err := l.identify(ctx, c)
		anew = now.next < l.identity.next
		if !l.parts || now.next == 0 {
			anew = anew || now.made != l.identity.made
		}
		// MariaDB also changes the time when partitions are added or dropped; a recreated
		// table has lower numbers.
		l.identity.next, l.identity.made = now.next, now.made
		return err
	})
	if err != nil {
		return false, l.fail("look for", err)
	}
	return anew, nil
}

// Close implements [outbox.Lease].
func (l *lease) Close() error {
	l.beat()
	<-l.done
	l.watcher.finish()
	return l.giveUp()
}
