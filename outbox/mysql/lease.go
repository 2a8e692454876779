package mysql

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/weirdb/weir/outbox"
)

// lease is the leadership of a shard: an advisory lock, which ends with the session that
// holds it, and an epoch, which statements in other sessions compare. Reads run in the
// session that holds the lock, so a read that succeeds had the lock.
type lease struct {
	sessions // on the server of the lock
	s        *Store
	v        *server
	shard    int
	epoch    int64
	all      bool // the only shard: buckets make no difference
	first    int  // bucket
	last     int  // bucket
	hist     bool // layout History
	parts    bool // and partitioned
	ids      bool // table _parked has column id
	// The identity of the table; owned by the goroutine that reads.
	identity identity

	beat context.CancelFunc // ends the heartbeat
	done chan struct{}      // closed when it has ended
	lost chan struct{}

	mu      sync.Mutex // guards the session, for a whole conversation
	c       *session
	decoder decoder
	rows    []outbox.Row
	watcher watcher // of transactions, for Mark and Settled

	rangeBackoff rangeBackoff // of ranges

	readOnly atomic.Bool // whether the server was, at the last heartbeat

	state  sync.Mutex // guards what follows
	ended  bool       // lost or given up
	parked map[int64]struct{}
	// made has the creation times of rows that were read and not yet acknowledged,
	// in microseconds since 1970: with it, an acknowledgement searches one
	// partition instead of all. Nil without partitions.
	made map[int64]int64
	// seen are the numbers of rows that were read: they are committed, or gone.
	seen numbers
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
	l := &lease{s: s, shard: shard, done: make(chan struct{}), lost: make(chan struct{}), parked: map[int64]struct{}{}}
	if l.c, err = s.lockShard(ctx, v.shardLock(s, shard)); err == nil {
		if l.v, err = askServer(ctx, s, l.c); err == nil {
			err = l.take(ctx)
		}
		if err != nil {
			l.c.discard()
		}
	}
	if err != nil {
		return nil, s.fail(fmt.Sprintf("lead shard %d of", shard), err)
	}
	l.sessions = sessionsOf(s, l)
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

// errElsewhere ends a leadership: only on the server of the lock is no other relay the leader.
var errElsewhere = errors.New("the address leads to another server by now than that of its lock")

// sessionsOf lends sessions on the server of a lease's lock.
func sessionsOf(s *Store, l *lease) sessions {
	return func(ctx context.Context) (*session, error) {
		c, err := s.session(ctx)
		if err == nil && c.place != l.c.place {
			c.release(nil)
			return nil, l.lose(errElsewhere)
		}
		return c, err
	}
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

// raise increments the epoch.
func (l *lease) raise(ctx context.Context) error {
	err := retry(ctx, func() error {
		result, err := l.c.ExecContext(ctx, l.s.sql(
			"UPDATE {lease} SET epoch = LAST_INSERT_ID(epoch + 1), owner = LEFT(?, 255), taken_at = UTC_TIMESTAMP(6) WHERE shard = ?"), l.s.opts.Owner, l.shard)
		if err != nil {
			return err
		}
		l.epoch, err = result.LastInsertId()
		return err
	})
	if err != nil {
		return fmt.Errorf("increment the epoch: %w", err)
	}
	if l.epoch == 0 {
		return outbox.ErrNotMigrated // its row is missing
	}
	return nil
}

// stay looks from time to time where the address leads, and calls lose if that is another server
// than the one of a lock, and accepts writes. There may be messages there and no leader: this relay
// may be the only one.
func stay(ctx context.Context, s *Store, place string, lost <-chan struct{}, lose func()) {
	tick := time.NewTicker(s.leaderPatience)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-lost:
			return
		case <-tick.C:
		}
		// The lock does not depend on a look that fails.
		if to := look(ctx, s); to.primary && to.place != place {
			lose()
		}
	}
}

// sight is what a look where the address leads has found.
type sight struct {
	at      time.Time
	place   string
	primary bool // the server accepts writes; false if the look failed
}

// look looks where the address leads. Leases of one store look at about the same time, and share a
// look: it borrows the pool's idle connections.
func look(ctx context.Context, s *Store) sight {
	select {
	case s.looking <- struct{}{}:
		defer func() { <-s.looking }()
	case <-ctx.Done():
		return sight{}
	}
	// Less than leaderPatience: a lease must not believe what was seen before it began.
	if time.Since(s.looked.at) < s.leaderPatience/4 {
		return s.looked
	}
	found := sight{at: time.Now()}
	c, err := s.fresh(ctx)
	if err == nil {
		var readOnly string
		asking, cancel := context.WithTimeout(ctx, s.patience)
		err = c.QueryRowContext(asking, "SELECT @@global.read_only").Scan(&readOnly)
		cancel()
		found.place, found.primary = c.place, err == nil && !isOn(readOnly)
		c.discard()
	}
	if ctx.Err() == nil { // else it is this lease that has ended
		s.looked = found
	}
	return found
}

// watch checks the session that holds the lock at every heartbeat.
func (l *lease) watch(ctx context.Context) {
	defer close(l.done)
	var group sync.WaitGroup
	defer group.Wait()
	group.Go(func() { stay(ctx, l.s, l.c.place, l.lost, func() { _ = l.lose(errElsewhere) }) }) // Lost says it
	tick := time.NewTicker(heartbeat)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
			// Canceling it would end the session, and release the lock at a time unknown
			// to Close.
			if err := l.check(context.WithoutCancel(ctx)); err != nil {
				return
			}
		}
	}
}

// check is one heartbeat. If it fails, the leadership is lost.
func (l *lease) check(ctx context.Context) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	ctx, cancel := context.WithTimeout(ctx, l.s.patience)
	defer cancel()
	err := l.confirm(ctx, l.c)
	if err != nil {
		l.c.discard() // so that the server releases the lock, too
	}
	return err
}

// confirm checks the epoch, in any session, and that the session of the lock still has it.
func (l *lease) confirm(ctx context.Context, c *session) error {
	if err := l.deposed(); err != nil {
		return err
	}
	var epoch int64
	var readOnly string
	var locked bool
	err := c.QueryRowContext(ctx, l.s.sql(fmt.Sprintf("SELECT epoch, @@global.read_only, COALESCE(IS_USED_LOCK('%s') = CONNECTION_ID(), FALSE) FROM {lease} WHERE shard = %d",
		l.v.shardLock(l.s, l.shard), l.shard))).Scan(&epoch, &readOnly, &locked)
	l.readOnly.Store(err == nil && isOn(readOnly))
	switch {
	case err != nil && c == l.c:
		return l.lose(fmt.Errorf("its session has ended: %w", err))
	case err != nil:
		return err
	case epoch != l.epoch:
		return l.lose(fmt.Errorf("epoch %d has begun, this one was %d", epoch, l.epoch))
	case !locked && c == l.c:
		l.s.pooled.Moved()
		return l.lose(outbox.ErrPooled)
	}
	return nil
}

// isOn parses a boolean server variable; some of them have more values in newer versions.
func isOn(value string) bool { return value != "" && value != "0" && !strings.EqualFold(value, "OFF") }

// deposed returns ErrDeposed if the lease has ended.
func (l *lease) deposed() error {
	l.state.Lock()
	defer l.state.Unlock()
	if l.ended {
		return outbox.ErrDeposed
	}
	return nil
}

// lose ends the leadership and returns ErrDeposed with its cause.
func (l *lease) lose(cause error) error {
	l.state.Lock()
	defer l.state.Unlock()
	if !l.ended {
		l.ended = true
		close(l.lost)
	}
	return fmt.Errorf("%w: %w", outbox.ErrDeposed, cause)
}

// Lost implements [outbox.Lease].
func (l *lease) Lost() <-chan struct{} { return l.lost }

// Close implements [outbox.Lease].
func (l *lease) Close() error {
	l.beat()
	<-l.done
	l.watcher.finish()
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.c.gone {
		return nil
	}
	l.state.Lock()
	held := !l.ended
	if held {
		l.ended = true
		close(l.lost)
	}
	l.state.Unlock()
	// The server may notice late that a session has ended; the next leader should not have to
	// wait for that.
	ctx, cancel := context.WithTimeout(context.Background(), l.s.patience)
	defer cancel()
	err := l.c.unlock(ctx, l.v.shardLock(l.s, l.shard))
	l.c.discard()
	if err != nil && held {
		return l.fail("give up", err)
	}
	return nil
}

func (l *lease) fail(step string, err error) error {
	return l.s.fail(fmt.Sprintf("%s shard %d of", step, l.shard), err)
}

// inSession runs f in the session that holds the lock. An error that is not a server's answer,
// or that ends the session, loses the leadership.
func (l *lease) inSession(f func(c *session) error) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if err := l.deposed(); err != nil {
		return err
	}
	err := f(l.c)
	if err == nil || isServerError(err) || errors.Is(err, errContent) {
		return err
	}
	l.c.discard()
	return l.lose(err)
}

// errContent marks errors in the content of rows, which do not affect the session.
var errContent = errors.New("unexpected content")
