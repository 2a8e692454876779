package postgres

import (
	"context"
	"errors"
	"fmt"
	"net"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/weirdb/weir/internal/wire/pgrepl"
	"github.com/weirdb/weir/internal/wire/pgwire"
	"github.com/weirdb/weir/outbox"
)

// tailVersion is the first server version that sends the log in binary.
const (
	tailVersion  = 140000
	tooOldToTail = "PostgreSQL 14 or newer is needed"
	// slotPatience is how long the creation of a slot may take: the server waits
	// for running transactions to end, and takes some seconds to drop the
	// half-created slot of another relay.
	slotPatience = 15 * time.Second
	tailRows     = 5000     // buffered before the log waits for the reader
	tailBytes    = 16 << 20 // buffered payload, likewise
)

// Tail implements [outbox.Lease] by logical decoding, with a temporary slot: the server keeps
// nothing when the tail is gone. It requires wal_level = logical, a free slot and the
// REPLICATION privilege; the first tail creates the publication, which requires ownership of
// the table. The server creates a slot after the running transactions have ended. If that
// takes more than 15 s, Tail returns a TailError.
func (l *lease) Tail(ctx context.Context) (outbox.Tail, error) {
	if err := l.deposed(); err != nil {
		return nil, l.store.wrap("tail", err)
	}
	starting, cancel := context.WithTimeout(ctx, l.store.patience)
	defer cancel()
	t, err := l.startTail(starting)
	if err == nil {
		return t, nil
	}
	if ctx.Err() != nil {
		return nil, l.store.wrap("tail", ctx.Err())
	}
	reason := err.Error()
	if starting.Err() != nil {
		reason = fmt.Sprintf("no slot within %v: it waits for the end of transactions that run, see pg_stat_activity (%v)", l.store.patience, err)
	}
	return nil, &outbox.TailError{Reason: reason}
}

// startTail tries the hosts in turn until one is the server of the lease.
func (l *lease) startTail(ctx context.Context) (*tail, error) {
	hosts, err := l.store.wireConfigs(ctx)
	if err != nil {
		return nil, err
	}
	var errs []error
	for _, cfg := range hosts {
		t, err := l.startTailAt(ctx, cfg)
		if err == nil || ctx.Err() != nil {
			return t, err
		}
		errs = append(errs, err)
	}
	return nil, errors.Join(errs...)
}

func (l *lease) startTailAt(ctx context.Context, cfg pgwire.ConnectConfig) (*tail, error) {
	table := pgrepl.Table{Namespace: l.names.schema, Name: l.names.table}
	publication := l.names.publication()
	c, report, err := pgrepl.ConnectProbed(ctx, cfg, pgrepl.ProbeConfig{Table: table, Publication: publication})
	switch {
	case err != nil:
		return nil, err
	case !report.Possible():
		err = errors.New(report.Reason())
	case report.Version < tailVersion:
		err = errors.New(tooOldToTail)
	}
	if err != nil {
		if c != nil {
			_ = c.Close() // it has no state on the server
		}
		return nil, err
	}
	if err := l.sameServer(ctx, c); err != nil {
		_ = c.Close() // it has no state on the server, and its PID means another process on the lease's
		return nil, err
	}
	slot := fmt.Sprintf("weir_outbox_%d_%d_%x", l.shard, c.PID(), time.Now().UnixNano())
	follow, err := func() (*pgrepl.Tail, error) {
		if _, err := pgrepl.EnsurePublication(ctx, c, publication, table); err != nil {
			return nil, err
		}
		if _, err := c.CreateSlot(ctx, pgrepl.SlotConfig{Name: slot, Kind: pgrepl.LogicalSlot, Temporary: true}); err != nil {
			return nil, err
		}
		return c.StartTail(ctx, pgrepl.TailConfig{
			Slot: slot, Publications: []string{publication}, Tables: []pgrepl.Table{table}, Binary: true,
		})
	}()
	if err != nil {
		return nil, errors.Join(err, l.abandon(c))
	}
	writers, err := l.Mark(ctx)
	if err != nil {
		return nil, errors.Join(err, l.abandon(c))
	}
	receiving, stop := context.WithCancel(context.Background())
	t := &tail{lease: l, conn: c, from: follow, slot: slot, writers: writers, stuck: stuckAfter, stop: stop, done: make(chan struct{}), wake: make(chan struct{}, 1), room: make(chan struct{}, 1), visibility: visibilityFilter{maxHeld: maxHeldRows, maxFull: maxFullTime}}
	go t.receive(receiving)
	return t, nil
}

// Joined reports whether everything in the log before the start of the slot can be read from
// the table. A transaction is in the log shortly before it is visible: one that committed
// just before the start would be found in neither, and be delivered after what its producer
// did next. So Joined waits for all transactions that wrote to the table then: they hold
// their locks until they are visible. Only the goroutine that reads calls it.
func (t *tail) Joined(ctx context.Context) (bool, error) {
	return t.lease.Settled(ctx, t.writers)
}

// sameServer verifies that the log is that of the lease's server.
func (l *lease) sameServer(ctx context.Context, c *pgrepl.Conn) error {
	results, err := c.Query(ctx, "SELECT "+placeText)
	if err != nil {
		return fmt.Errorf("identify the server: %w", err)
	}
	if len(results) != 1 || len(results[0].Rows) != 1 || len(results[0].Rows[0]) != 1 {
		return errors.New("identify the server: no answer")
	}
	if l.place != string(results[0].Rows[0][0]) {
		return errors.New("the connection string leads to another server than the leader's session: add that server by its own address")
	}
	return nil
}

// abandon ends a connection whose tail was not started. A server that waits to create a slot
// does not notice that its client is gone, and would keep the half-created slot until the
// transactions that it waits for have ended.
func (l *lease) abandon(c *pgrepl.Conn) error {
	pid := c.PID()
	err := c.Close()
	ctx, cancel := context.WithTimeout(context.Background(), max(time.Second, l.store.opts.LeaseTimeout))
	defer cancel()
	if _, ending := l.store.pool.Exec(ctx, "SELECT pg_terminate_backend($1) WHERE "+placeText+" = $2", int32(pid), l.place); ending != nil {
		err = errors.Join(err, fmt.Errorf("end the session that creates a slot: %w", ending))
	}
	return err
}

// tail implements [outbox.Tail]. A goroutine receives rows from the log.
type tail struct {
	lease *lease
	conn  *pgrepl.Conn
	from  *pgrepl.Tail
	slot  string
	// The transactions that wrote to the table when the slot was created.
	writers outbox.Mark
	// Used by Kept: restart_lsn, and since when; see stuckAfter.
	begins string
	moved  time.Time
	stuck  time.Duration
	stop   context.CancelFunc
	done   chan struct{} // closed when receive has ended
	wake   chan struct{} // there are rows, or an error
	room   chan struct{} // rows were taken

	mu    sync.Mutex
	rows  []logRow
	bytes int
	err   error

	visibility visibilityFilter // owned by the goroutine that calls Next
}

// receive confirms every transaction as soon as it is received: the rows are in the table, so
// the server need not keep its log.
func (t *tail) receive(ctx context.Context) {
	defer close(t.done)
	var columns *tailColumns
	for {
		event, err := t.from.Next(ctx)
		if err != nil {
			t.put(ctx, nil, 0, err)
			return
		}
		switch event.Kind {
		case pgrepl.EventTruncate:
			t.put(ctx, nil, 0, fmt.Errorf("the table was emptied by TRUNCATE: %w", outbox.ErrRecreated))
			return
		case pgrepl.EventCommit:
			t.from.Confirm(event.End)
		case pgrepl.EventInsert:
			if columns == nil || columns.of != event.Relation {
				if columns, err = newTailColumns(event.Relation); err != nil {
					t.put(ctx, nil, 0, err)
					return
				}
			}
			row, bucket, err := columns.row(event.New)
			if err != nil {
				t.put(ctx, nil, 0, err)
				return
			}
			first, last := outbox.ShardBuckets(t.lease.shard, t.lease.meta.shards)
			if t.lease.meta.shards > 1 && (bucket < first || bucket > last) {
				continue
			}
			if !t.put(ctx, &row, event.Tx.XID, nil) {
				return
			}
		}
	}
}

// put buffers a row, or the error that ends the tail. It waits while the buffer is full.
func (t *tail) put(ctx context.Context, row *outbox.Row, xid uint32, err error) bool {
	for {
		t.mu.Lock()
		full := len(t.rows) >= tailRows || t.bytes >= tailBytes
		if err != nil {
			t.err = err
		} else if !full {
			t.rows = append(t.rows, logRow{*row, xid})
			t.bytes += len(row.Payload)
		}
		t.mu.Unlock()
		if err != nil || !full {
			select {
			case t.wake <- struct{}{}:
			default:
			}
			return true
		}
		select {
		case <-t.room:
		case <-ctx.Done():
			return false
		}
	}
}

// Next implements [outbox.Tail]. It returns rows whose transactions are visible.
func (t *tail) Next(ctx context.Context) ([]outbox.Row, error) {
	for pause := visiblePause; ; {
		// Read no more rows while too many are held back; the log then waits as well.
		var fresh []logRow
		var err error
		wake, done := t.wake, t.done
		if t.visibility.full() {
			wake, done = nil, nil
		} else {
			fresh, err = t.take()
		}
		rows, looking := t.visibility.filter(ctx, t.lease, fresh)
		switch {
		case looking != nil:
			return nil, looking
		case len(rows) > 0:
			t.lease.remember(rows)
			return rows, nil
		case len(fresh) == 0 && err != nil:
			return nil, t.lease.store.wrap("tail", err)
		}
		var again <-chan time.Time
		if len(t.visibility.held) > 0 {
			again, pause = time.After(pause), min(2*pause, maxVisiblePause)
		}
		select {
		case <-wake:
		case <-again:
		case <-done:
			// Take what it received last.
			t.mu.Lock()
			if t.err == nil && len(t.rows) == 0 {
				t.err = errors.New("the tail is closed")
			}
			t.mu.Unlock()
		case <-ctx.Done():
			return nil, t.lease.store.wrap("tail", ctx.Err())
		}
	}
}

// take removes and returns the buffered rows, and the error that ended the tail.
func (t *tail) take() ([]logRow, error) {
	t.mu.Lock()
	fresh, err := t.rows, t.err
	t.rows, t.bytes = nil, 0
	t.mu.Unlock()
	if len(fresh) > 0 {
		select {
		case t.room <- struct{}{}:
		default:
		}
	}
	return fresh, err
}

// stuckAfter is how long restart_lsn may stay the same before the log from there counts as
// kept for the tail: the server moves it every 15 s, or at a checkpoint.
const stuckAfter = 45 * time.Second

// Kept returns how many bytes of log the server keeps for this tail: what is not confirmed,
// or, if restart_lsn no longer moves because an old transaction is still open, everything
// from there.
func (t *tail) Kept(ctx context.Context) (bytes int64, err error) {
	var unconfirmed, kept int64
	var begins string
	err = t.lease.do(ctx, "ask for the slot of", &t.lease.read, func(c *pgx.Conn) error {
		return c.QueryRow(ctx, "SELECT coalesce(pg_catalog.pg_wal_lsn_diff(l.now, s.confirmed_flush_lsn), 0)::bigint,"+
			" coalesce(pg_catalog.pg_wal_lsn_diff(l.now, s.restart_lsn), 0)::bigint, coalesce(s.restart_lsn::text, '')"+
			" FROM pg_catalog.pg_replication_slots AS s, (SELECT pg_catalog.pg_current_wal_lsn() AS now) AS l"+
			" WHERE s.slot_name = $1", t.slot).Scan(&unconfirmed, &kept, &begins)
	})
	if begins != t.begins {
		t.begins, t.moved = begins, time.Now()
	}
	if time.Since(t.moved) < t.stuck {
		kept = 0
	}
	return max(unconfirmed, kept, 0), err
}

// Close ends the tail; the server drops the slot.
func (t *tail) Close() error {
	t.stop()
	err := t.conn.Close()
	<-t.done
	if err != nil && !errors.Is(err, net.ErrClosed) {
		return t.lease.store.wrap("end the tail of", err)
	}
	return nil
}
