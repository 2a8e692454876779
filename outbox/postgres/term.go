package postgres

import (
	"context"
	"errors"
	"fmt"
	"sync"

	"github.com/jackc/pgx/v5"

	"github.com/weirdb/weir/outbox"
)

// term is the time for which a relay leads a shard: an advisory lock, held by a dedicated session,
// and the epoch that this leader incremented when it took the lock.
type term struct {
	store *Store
	names names
	place string // of the session that holds the lock, see placeText
	shard int
	epoch int64

	lock        *pgx.Conn // belongs to watch
	pid         int64     // of the process that holds the lock
	read, write session

	lost    chan struct{}
	lose    func() // closes lost
	stop    context.CancelFunc
	watched chan struct{} // closed when watch has ended
	unlock  sync.Once
}

// connect opens a connection to the server of the lock.
func (t *term) connect(ctx context.Context) (*pgx.Conn, error) {
	c, err := t.store.connect(ctx)
	if err != nil {
		return nil, err
	}
	err = t.store.answered(ctx, func(ctx context.Context) error {
		place, err := simpleValue(ctx, c, "SELECT "+placeText)
		if err == nil && string(place) != t.place {
			err = errElsewhere
		}
		return err
	})
	if err != nil {
		closeConn(c)
		return nil, fmt.Errorf("identify the server: %w", err)
	}
	return c, nil
}

// watch ends the leadership when the session that holds the lock ends, or the address leads to
// another primary.
func (t *term) watch(ctx context.Context) {
	defer close(t.watched)
	var group sync.WaitGroup
	defer group.Wait()
	group.Go(func() { t.store.stay(ctx, t.place, t.lost, t.lose) })
	t.store.watchSession(ctx, t.lock, t.pid, t.lose)
}

// Lost implements [outbox.Lease].
func (t *term) Lost() <-chan struct{} { return t.lost }

// release unlocks the shard. The end of the session would do that as well, but later, and never
// if a pooler keeps the connection. In another process the lock may be another leader's.
func (t *term) release() {
	ctx, cancel := context.WithTimeout(context.Background(), t.store.opts.LeaseTimeout)
	defer cancel()
	released, err := simpleValue(ctx, t.lock, fmt.Sprintf("SELECT CASE pg_backend_pid() WHEN %d THEN pg_advisory_unlock('%d') END",
		t.pid, t.names.leaseKey(t.shard)))
	if err == nil && released == nil {
		t.store.pooled.Moved()
	}
}

// deposed returns ErrDeposed once the lease is known to be lost.
func (t *term) deposed() error {
	select {
	case <-t.lost:
		return outbox.ErrDeposed
	default:
		return nil
	}
}

// do runs f on one of the connections. After the lease is lost every error is ErrDeposed.
func (t *term) do(ctx context.Context, step string, s *session, f func(*pgx.Conn) error) error {
	err := t.deposed()
	if err == nil {
		if err = s.use(ctx, f); err == nil {
			return nil
		}
		if deposed := t.deposed(); deposed != nil && !errors.Is(err, deposed) {
			err = fmt.Errorf("%w (%w)", deposed, err)
		}
	}
	return t.store.wrap(fmt.Sprintf("shard %d: %s", t.shard, step), err)
}

// fenced returns ErrDeposed if a fenced statement found a newer epoch.
func (t *term) fenced(row pgx.Row) error {
	var stood int
	if err := row.Scan(&stood); err != nil {
		return err
	}
	if stood == 0 {
		return t.passed()
	}
	return nil
}

func (t *term) passed() error {
	return fmt.Errorf("%w: epoch %d has passed", outbox.ErrDeposed, t.epoch)
}
