package mysql

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/weirdb/weir/outbox"
)

// term is the time for which a relay leads a shard: an advisory lock, which ends with the session
// that holds it, and an epoch, which statements in other sessions compare.
type term struct {
	sessions // on the server of the lock
	s        *Store
	v        *server
	shard    int
	epoch    int64

	beat context.CancelFunc // ends the heartbeat
	done chan struct{}      // closed when it has ended
	lost chan struct{}

	mu sync.Mutex // guards the session, for a whole conversation
	c  *session

	readOnly atomic.Bool // whether the server was, at the last heartbeat

	state sync.Mutex // guards what follows
	ended bool       // lost or given up
}

// errElsewhere ends a leadership: only on the server of the lock is no other relay the leader.
var errElsewhere = errors.New("the address leads to another server by now than that of its lock")

// onServer lends sessions on the server of the lock.
func (t *term) onServer(ctx context.Context) (*session, error) {
	c, err := t.s.session(ctx)
	if err == nil && c.place != t.c.place {
		c.release(nil)
		return nil, t.lose(errElsewhere)
	}
	return c, err
}

// raise increments the epoch.
func (t *term) raise(ctx context.Context) error {
	err := retry(ctx, func() error {
		result, err := t.c.ExecContext(ctx, t.s.sql(
			"UPDATE {lease} SET epoch = LAST_INSERT_ID(epoch + 1), owner = LEFT(?, 255), taken_at = UTC_TIMESTAMP(6) WHERE shard = ?"), t.s.opts.Owner, t.shard)
		if err != nil {
			return err
		}
		t.epoch, err = result.LastInsertId()
		return err
	})
	if err != nil {
		return fmt.Errorf("increment the epoch: %w", err)
	}
	if t.epoch == 0 {
		return outbox.ErrNotMigrated // its row is missing
	}
	return nil
}

// watch checks the session that holds the lock at every heartbeat.
func (t *term) watch(ctx context.Context) {
	defer close(t.done)
	var group sync.WaitGroup
	defer group.Wait()
	group.Go(func() { t.s.stay(ctx, t.c.place, t.lost, func() { _ = t.lose(errElsewhere) }) }) // Lost says it
	tick := time.NewTicker(heartbeat)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
			// Canceling it would end the session, and release the lock at a time unknown
			// to Close.
			if err := t.check(context.WithoutCancel(ctx)); err != nil {
				return
			}
		}
	}
}

// check is one heartbeat. If it fails, the leadership is lost.
func (t *term) check(ctx context.Context) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	ctx, cancel := context.WithTimeout(ctx, t.s.patience)
	defer cancel()
	err := t.confirm(ctx, t.c)
	if err != nil {
		t.c.discard() // so that the server releases the lock, too
	}
	return err
}

// confirm checks the epoch, in any session, and that the session of the lock still has it.
func (t *term) confirm(ctx context.Context, c *session) error {
	if err := t.deposed(); err != nil {
		return err
	}
	var epoch int64
	var readOnly string
	var locked bool
	err := c.QueryRowContext(ctx, t.s.sql(fmt.Sprintf("SELECT epoch, @@global.read_only, COALESCE(IS_USED_LOCK('%s') = CONNECTION_ID(), FALSE) FROM {lease} WHERE shard = %d",
		t.v.shardLock(t.s, t.shard), t.shard))).Scan(&epoch, &readOnly, &locked)
	t.readOnly.Store(err == nil && isOn(readOnly))
	switch {
	case err != nil && c == t.c:
		return t.lose(fmt.Errorf("its session has ended: %w", err))
	case err != nil:
		return err
	case epoch != t.epoch:
		return t.lose(fmt.Errorf("epoch %d has begun, this one was %d", epoch, t.epoch))
	case !locked && c == t.c:
		t.s.pooled.Moved()
		return t.lose(outbox.ErrPooled)
	}
	return nil
}

// deposed returns ErrDeposed if the lease has ended.
func (t *term) deposed() error {
	t.state.Lock()
	defer t.state.Unlock()
	if t.ended {
		return outbox.ErrDeposed
	}
	return nil
}

// lose ends the leadership and returns ErrDeposed with its cause.
func (t *term) lose(cause error) error {
	t.state.Lock()
	defer t.state.Unlock()
	if !t.ended {
		t.ended = true
		close(t.lost)
	}
	return fmt.Errorf("%w: %w", outbox.ErrDeposed, cause)
}

// Lost implements [outbox.Lease].
func (t *term) Lost() <-chan struct{} { return t.lost }

func (t *term) fail(step string, err error) error {
	return t.s.fail(fmt.Sprintf("%s shard %d of", step, t.shard), err)
}

// inSession runs f in the session that holds the lock. An error that is not a server's answer,
// or that ends the session, loses the leadership.
func (t *term) inSession(f func(c *session) error) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	if err := t.deposed(); err != nil {
		return err
	}
	err := f(t.c)
	if err == nil || isServerError(err) || errors.Is(err, errContent) {
		return err
	}
	t.c.discard()
	return t.lose(err)
}

// giveUp ends the leadership and unlocks the shard: the server may notice late that a session has
// ended, and the next leader should not have to wait for that.
func (t *term) giveUp() error {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.c.gone {
		return nil
	}
	t.state.Lock()
	held := !t.ended
	if held {
		t.ended = true
		close(t.lost)
	}
	t.state.Unlock()
	ctx, cancel := context.WithTimeout(context.Background(), t.s.patience)
	defer cancel()
	err := t.c.unlock(ctx, t.v.shardLock(t.s, t.shard))
	t.c.discard()
	if err != nil && held {
		return t.fail("give up", err)
	}
	return nil
}

// isOn parses a boolean server variable; some of them have more values in newer versions.
func isOn(value string) bool { return value != "" && value != "0" && !strings.EqualFold(value, "OFF") }

// errContent marks errors in the content of rows, which do not affect the session.
var errContent = errors.New("unexpected content")
