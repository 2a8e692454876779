package postgres

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/weirdb/weir/outbox"
)

// lease is the leadership of one shard.
//
// It uses three connections. One only holds the lock and detects its loss. Read, Mark and
// Settled share the second, everything else the third, so that neither group waits for the
// other. The last two carry no state and are reopened when they break.
//
// Another leader may start after the session that holds the lock has ended and before this
// process notices. Park and Bury therefore compare the epoch and do nothing if it has
// changed. Ack does not: a delivered row is delivered, whichever relay says so, and
// dropping the ack would only cause a duplicate.
type lease struct {
	term
	deliveries
	meta meta
	sql  statements
	// The identity of the table, see identityText, and its last sequence number. Owned by the
	// goroutine that reads, as is reader.
	identity string
	last     int64
	reader   reader
}

// Lead implements [outbox.Store].
func (s *Store) Lead(ctx context.Context, shard int) (outbox.Lease, error) {
	if err := s.pooled.Err(); err != nil {
		return nil, s.wrap("lead a shard of", err)
	}
	n, _, err := s.ready(ctx)
	if err != nil {
		return nil, err
	}
	held, asked := s.held(ctx, n.leaseKey(shard))
	if held && !s.doubts(shard) {
		return nil, s.wrap(fmt.Sprintf("lead shard %d of", shard), outbox.ErrHeld)
	}
	c, err := s.connectToWait(ctx)
	if err != nil {
		return nil, s.wrap("lead a shard of", err)
	}
	l := &lease{
		term:       term{store: s, names: n, shard: shard, lock: c, lost: make(chan struct{}), watched: make(chan struct{})},
		deliveries: deliveries{noted: map[int64]struct{}{}},
	}
	l.lose = sync.OnceFunc(func() { close(l.lost) })
	err = s.answered(ctx, l.take)
	if l.place != "" && asked != l.place && (asked != "" || err == nil) {
		s.moved()
	}
	if err != nil {
		if l.pid != 0 {
			l.release()
		}
		closeConn(c)
		return nil, s.wrap(fmt.Sprintf("lead shard %d of", shard), err)
	}
	l.read.open, l.write.open = l.connect, l.connect
	watching, stop := context.WithCancel(context.Background())
	l.stop = stop
	go l.watch(watching)
	if err := l.loadNotes(ctx); err != nil {
		_ = l.Close() // the error is that of the notes
		return nil, err
	}
	return l, nil
}

// take locks the shard and loads its state.
func (l *lease) take(ctx context.Context) error {
	var free *bool
	var pid int64
	err := l.lock.QueryRow(ctx, "SELECT CASE WHEN $1::bigint IN ("+advisoryKeys+" AND pid = pg_backend_pid()) THEN NULL ELSE pg_try_advisory_lock($1) END, pg_backend_pid(), "+placeText,
		l.names.leaseKey(l.shard)).Scan(&free, &pid, &l.place)
	switch {
	case err != nil:
		return fmt.Errorf("lock: %w", err)
	case free == nil:
		// The server would grant its own process the lock again, and there would be two leaders.
		l.store.pooled.Moved()
		return fmt.Errorf("%w (process %d of the server, which this session shares with others, already holds the lock of a leader)", outbox.ErrPooled, pid)
	case !*free:
		return outbox.ErrHeld
	}
	l.pid = pid
	if err := refuseClaims(ctx, l.lock, l.names); err != nil {
		return err
	}
	if err := limitSilence(ctx, l.lock, max(maxSilence, 3*l.store.opts.LeaseTimeout)); err != nil {
		return err
	}
	// The number of shards cannot change from here on: Migrate refuses while a shard is led.
	m, err := l.store.refresh(ctx, l.lock)
	if err != nil {
		return err
	}
	if l.shard < 0 || l.shard >= m.shards {
		return fmt.Errorf("there is no shard %d, the table has %d", l.shard, m.shards)
	}
	l.meta = m
	l.sql = newStatements(l.names, m, l.shard)
	if m.partitioned() {
		l.created = map[int64]time.Time{}
	}
	if err := checkSequence(ctx, l.lock, l.names); err != nil {
		return err
	}
	if err := l.lock.QueryRow(ctx, identityText, l.names.q("")).Scan(&l.identity, &l.last); err != nil {
		return fmt.Errorf("identify the table: %w", err)
	}
	err = l.lock.QueryRow(ctx, "UPDATE "+l.names.q("_lease")+
		" SET epoch = epoch + 1, owner = $2, taken_at = clock_timestamp() WHERE shard = $1 AND "+durably+" RETURNING epoch",
		l.shard, clean(l.store.opts.Owner)).Scan(&l.epoch)
	if err != nil {
		return fmt.Errorf("increment the epoch: %w", err)
	}
	return nil
}

// durably is a condition that is always true and makes the transaction's commit wait for
// the disk: if a crash undid an epoch, two leaders would get the same one. It does not wait
// for a standby, which may be down.
const durably = "set_config('synchronous_commit', 'local', true) <> ''"

// checkSequence verifies what the proof of gaps depends on: the sequence returns numbers one
// by one, ascending, at the time of the insert.
func checkSequence(ctx context.Context, q querier, n names) error {
	var cache, increment int64
	var cycle bool
	err := q.QueryRow(ctx, "SELECT seqcache, seqincrement, seqcycle FROM pg_catalog.pg_sequence WHERE seqrelid = pg_get_serial_sequence($1, 'seq')::regclass",
		n.q("")).Scan(&cache, &increment, &cycle)
	if err != nil {
		return fmt.Errorf("look at the sequence: %w", err)
	}
	if cache != 1 || increment != 1 || cycle {
		return fmt.Errorf("the sequence of column seq has CACHE %d, INCREMENT %d, CYCLE %v: rows would be lost: ALTER TABLE %s ALTER COLUMN seq SET CACHE 1 SET INCREMENT 1 SET NO CYCLE",
			cache, increment, cycle, n.q(""))
	}
	return nil
}

// identityText selects a value that changes when the table or its sequence is recreated or
// the sequence is restarted, which gives it a new file, and the sequence's last number,
// which decreases only by setval.
const identityText = "SELECT c.oid || ' ' || s.oid || ' ' || s.relfilenode, coalesce(pg_sequence_last_value(s.oid), 0) FROM pg_catalog.pg_class AS c, pg_catalog.pg_class AS s" +
	" WHERE c.oid = $1::text::regclass AND s.oid = pg_get_serial_sequence($1, 'seq')::regclass"

// Renewed implements [outbox.Renewer]. It also compares the epoch: a pooler may give several relays
// the process that holds the lock, so that each of them sees it as its own.
func (l *lease) Renewed(ctx context.Context) (anew bool, err error) {
	err = l.do(ctx, "look for", &l.write, func(c *pgx.Conn) error {
		var now string
		var last, epoch int64
		err := c.QueryRow(ctx, "SELECT i.*, coalesce((SELECT epoch FROM "+l.names.q("_lease")+" WHERE shard = $2), 0) FROM ("+identityText+") AS i",
			l.names.q(""), l.shard).Scan(&now, &last, &epoch)
		if err != nil {
			return err
		}
		anew = now != l.identity || last < l.last
		l.last = last
		if !anew && epoch != l.epoch { // tables made anew have another epoch
			return l.passed()
		}
		return nil
	})
	return anew, err
}

// Close implements [outbox.Lease]. It unlocks the shard, so that another relay can lead at once.
func (l *lease) Close() error {
	l.unlock.Do(func() {
		l.stop()
		<-l.watched
		if l.deposed() == nil {
			l.release()
		}
		closeConn(l.lock)
		l.read.close()
		l.write.close()
	})
	return nil
}
