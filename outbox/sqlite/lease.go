package sqlite

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"net/url"
	"path/filepath"
	"strconv"
	"sync"
	"time"

	"github.com/weirdb/weir/outbox"
)

// lease is the leadership of a shard: a lock on a file next to the database, and an epoch that
// every write transaction of the lease checks.
type lease struct {
	s       *Store
	shard   int
	epoch   int64
	hist    bool
	ids     bool  // table _parked has column id
	lastSeq int64 // the last number of the table; owned by the goroutine that reads
	shardRows
	lock *fileLock

	beat context.CancelFunc // ends the heartbeat
	done chan struct{}      // closed when it has ended
	lost chan struct{}
	rows []outbox.Row

	mu    sync.Mutex
	ended bool // lost or given up
}

// heartbeat is how often a lease checks that it is still held.
const heartbeat = 400 * time.Millisecond

// lockPath returns the file to lock to lead a shard. It is next to the real file of the database,
// so that processes that open the database by a link lock the same file.
func (s *Store) lockPath(shard int) (string, error) {
	path, err := filepath.EvalSymlinks(s.path)
	if err != nil {
		return "", fmt.Errorf("find the file of the database: %w", err)
	}
	return path + "-" + url.PathEscape(s.base) + "-" + strconv.Itoa(shard) + ".lock", nil
}

// lock takes the lock of a shard.
func (s *Store) lock(shard int) (*fileLock, error) {
	path, err := s.lockPath(shard)
	if err != nil {
		return nil, err
	}
	return lockFile(path)
}

// Lead implements [outbox.Store].
func (s *Store) Lead(ctx context.Context, shard int) (outbox.Lease, error) {
	step := fmt.Sprintf("lead shard %d of", shard)
	if err := s.reopenIfReplaced(ctx); err != nil {
		return nil, s.fail(step, err)
	}
	var t *tables
	if err := s.withTables(ctx, step, func(_ *sql.Tx, found *tables) error { t = found; return nil }); err != nil {
		return nil, err
	}
	if shard < 0 || shard >= t.meta.shards {
		return nil, s.fail(step, fmt.Errorf("there are %d shards", t.meta.shards))
	}
	lock, err := s.lock(shard)
	if err != nil {
		return nil, s.fail(step, err)
	}
	l := &lease{s: s, shard: shard, lock: lock, done: make(chan struct{}), lost: make(chan struct{})}
	if err := l.raise(ctx); err != nil {
		return nil, s.fail(step, errors.Join(err, lock.Close()))
	}
	ctx, l.beat = context.WithCancel(context.Background())
	go l.watch(ctx)
	return l, nil
}

// raise increments the epoch and reads the range of buckets.
func (l *lease) raise(ctx context.Context) error {
	return l.s.write(ctx, func(tx *sql.Tx) error {
		t, err := l.s.inspect(ctx, tx)
		if err != nil {
			return err
		}
		if l.shard >= t.meta.shards {
			return fmt.Errorf("there are %d shards", t.meta.shards)
		}
		l.hist, l.ids = t.history(), t.noteIDs
		l.all = t.meta.shards == 1
		l.first, l.last = outbox.ShardBuckets(l.shard, t.meta.shards)
		if l.lastSeq, err = l.readLastSeq(ctx, tx); err != nil {
			return err
		}
		return tx.QueryRowContext(ctx, l.s.sql("UPDATE {lease} SET epoch = epoch + 1, owner = ?, taken_at = "+nowMicros+" WHERE shard = ? RETURNING epoch"),
			l.s.opts.Owner, l.shard).Scan(&l.epoch)
	})
}

// readLastSeq returns the last number of the table.
func (l *lease) readLastSeq(ctx context.Context, tx *sql.Tx) (n int64, err error) {
	err = tx.QueryRowContext(ctx, "SELECT COALESCE(MAX(seq), 0) FROM sqlite_sequence WHERE name = ?", l.s.base).Scan(&n)
	return n, err
}

// Renewed implements [outbox.Renewer]. It detects that the numbers were reset. Recreated tables
// are detected by the epoch.
func (l *lease) Renewed(ctx context.Context) (anew bool, err error) {
	err = l.inReadTx(ctx, "look for", func(tx *sql.Tx) error {
		now, err := l.readLastSeq(ctx, tx)
		anew, l.lastSeq = err == nil && now < l.lastSeq, now
		return err
	})
	return anew, err
}

// watch checks the lock and the epoch at every heartbeat.
func (l *lease) watch(ctx context.Context) {
	defer close(l.done)
	tick := time.NewTicker(heartbeat)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
			err := errors.Join(l.lock.check(), l.s.checkFile())
			if err != nil {
				err = l.lose(err)
			} else {
				err = l.s.read(ctx, func(tx *sql.Tx) error { return l.confirm(ctx, tx) })
			}
			if errors.Is(err, outbox.ErrDeposed) {
				return
			}
		}
	}
}

// confirm checks the epoch.
func (l *lease) confirm(ctx context.Context, tx *sql.Tx) error {
	var epoch int64
	err := tx.QueryRowContext(ctx, l.s.sql("SELECT epoch FROM {lease} WHERE shard = ?"), l.shard).Scan(&epoch)
	if errors.Is(err, sql.ErrNoRows) {
		return l.lose(errors.New("its row is gone"))
	}
	if err == nil && epoch != l.epoch {
		err = l.lose(fmt.Errorf("epoch %d has begun, this one was %d", epoch, l.epoch))
	}
	return err
}

// deposed returns ErrDeposed if the lease has ended.
func (l *lease) deposed() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.ended {
		return outbox.ErrDeposed
	}
	return nil
}

// lose ends the leadership and returns ErrDeposed with its cause.
func (l *lease) lose(cause error) error {
	l.end()
	return fmt.Errorf("%w: %w", outbox.ErrDeposed, cause)
}

func (l *lease) end() {
	l.mu.Lock()
	defer l.mu.Unlock()
	if !l.ended {
		l.ended = true
		close(l.lost)
	}
}

// Lost implements [outbox.Lease].
func (l *lease) Lost() <-chan struct{} { return l.lost }

// Close implements [outbox.Lease].
func (l *lease) Close() error {
	l.beat()
	<-l.done
	l.end()
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.lock == nil {
		return nil
	}
	err := l.lock.Close()
	l.lock = nil
	if err != nil {
		return l.fail("give up", err)
	}
	return nil
}

func (l *lease) fail(step string, err error) error {
	return l.s.fail(fmt.Sprintf("%s shard %d of", step, l.shard), err)
}

// inReadTx runs f in a read transaction, one snapshot.
func (l *lease) inReadTx(ctx context.Context, step string, f func(tx *sql.Tx) error) error {
	err := l.deposed()
	if err == nil {
		err = l.s.read(ctx, f)
	}
	if err != nil {
		return l.fail(step, err)
	}
	return nil
}

// inWriteTx runs f in a write transaction, after it has checked the epoch.
func (l *lease) inWriteTx(ctx context.Context, step string, f func(tx *sql.Tx) error) error {
	err := l.deposed()
	if err == nil {
		err = l.s.write(ctx, func(tx *sql.Tx) error {
			if err := l.confirm(ctx, tx); err != nil {
				return err
			}
			return f(tx)
		})
	}
	if err != nil {
		return l.fail(step, err)
	}
	return nil
}

// Mark implements [outbox.Lease]. There is nothing to record, see the package comment.
func (l *lease) Mark(context.Context) (outbox.Mark, error) {
	if err := l.deposed(); err != nil {
		return nil, l.fail("mark", err)
	}
	return struct{}{}, nil
}

// Settled implements [outbox.Lease]. No row can still appear below one that was read.
func (l *lease) Settled(context.Context, outbox.Mark) (bool, error) {
	if err := l.deposed(); err != nil {
		return false, l.fail("ask for transactions of", err)
	}
	return true, nil
}

// Tail implements [outbox.Lease]. SQLite has no log to follow.
func (l *lease) Tail(context.Context) (outbox.Tail, error) {
	if err := l.deposed(); err != nil {
		return nil, l.fail("follow the log of", err)
	}
	return nil, errNoLog
}
