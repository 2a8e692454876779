package postgres

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/weirdb/weir/outbox"
)

var errClosed = errors.New("the lease is closed")

// lease is the leadership of one shard: an advisory lock held by a dedicated session, and
// the epoch that this leader incremented when it took the lock.
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
	store *Store
	names names
	meta  meta
	place string // of the session that holds the lock, see placeText
	shard int
	epoch int64
	sql   statements
	// The identity of the table, see identityText, and its last sequence number. Owned by the
	// goroutine that reads.
	identity string
	last     int64

	lock        *pgx.Conn // belongs to watch
	pid         int64     // of the process that holds the lock
	read, write session

	lost    chan struct{}
	lose    func() // closes lost
	stop    context.CancelFunc
	watched chan struct{} // closed when watch has ended
	unlock  sync.Once

	reader reader // owned by the goroutine that reads

	mu      sync.Mutex
	noted   map[int64]struct{}  // rows of this shard with a note of failed attempts
	created map[int64]time.Time // creation times of rows that were read and not yet acked; partitioned tables only
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
		store: s, names: n, shard: shard, lock: c,
		lost: make(chan struct{}), watched: make(chan struct{}), noted: map[int64]struct{}{},
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

// answered runs f, whose statements a server answers at once, and bounds it: a server that hangs
// accepts statements and never answers.
func (s *Store) answered(ctx context.Context, f func(context.Context) error) error {
	answer, cancel := context.WithTimeout(ctx, s.answerPatience)
	defer cancel()
	err := f(answer)
	if err != nil && answer.Err() != nil && ctx.Err() == nil {
		err = fmt.Errorf("the server has not answered within %v: %w", s.answerPatience, err)
	}
	return err
}

// held asks through the pool whether a session holds a lock, and which place answers. A standby
// relay asks several times a second; a new connection for each attempt would cost the server
// some 10 ms of CPU. If the pool does not answer in time, held returns false and "", and Lead
// tries the lock itself.
func (s *Store) held(ctx context.Context, key int64) (held bool, place string) {
	ctx, cancel := context.WithTimeout(ctx, s.opts.LeaseTimeout)
	defer cancel()
	err := s.pool.QueryRow(ctx, "SELECT $1::bigint IN ("+advisoryKeys+"), "+placeText, key).Scan(&held, &place)
	if err != nil {
		return false, ""
	}
	return held, place
}

// placeText is an expression that identifies the server and the database of a session. A
// connection string may name several servers, and an address may lead to another one by now.
const placeText = "pg_catalog.concat_ws(' ', (extract(epoch FROM pg_catalog.pg_postmaster_start_time()) * 1000000)::bigint," +
	" (SELECT oid FROM pg_catalog.pg_database WHERE datname = pg_catalog.current_database()))"

// errElsewhere ends a leadership: only on the server of the lock is no other relay the leader.
var errElsewhere = fmt.Errorf("%w: the address leads to another server by now than that of its lock", outbox.ErrDeposed)

// moved drops connections of the server that the address led to before.
func (s *Store) moved() {
	s.pool.Reset()
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, leave := range s.listening {
		leave()
	}
}

// connect opens a connection to the server of the lock.
func (l *lease) connect(ctx context.Context) (*pgx.Conn, error) {
	c, err := l.store.connect(ctx)
	if err != nil {
		return nil, err
	}
	place, err := simpleValue(ctx, c, "SELECT "+placeText)
	if err == nil && string(place) != l.place {
		err = errElsewhere
	}
	if err != nil {
		closeConn(c)
		return nil, fmt.Errorf("identify the server: %w", err)
	}
	return c, nil
}

// standbyPatience is how long a standby relay asks through the pool only. The server of the
// pool's connections may no longer be the one that the address leads to.
const standbyPatience = 15 * time.Second

// leaderPatience is how long a leader stays with its server before it looks again whether the
// address leads there.
const leaderPatience = time.Minute

// doubts reports whether to try a lock with a new connection although the pool says that it is
// held: once per standbyPatience.
func (s *Store) doubts(shard int) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	since, ok := s.standby[shard]
	doubts := ok && time.Since(since) >= s.standbyPatience
	if !ok || doubts {
		s.standby[shard] = time.Now()
	}
	return doubts
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

// loadNotes removes notes of rows that are gone, and remembers which rows have one. With many
// notes that takes long, so only the heartbeat bounds it.
func (l *lease) loadNotes(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	go func() {
		select {
		case <-l.lost:
			cancel()
		case <-ctx.Done():
		}
	}()
	err := l.do(ctx, "load notes of attempts in", &l.write, func(c *pgx.Conn) error {
		if _, err := c.Exec(ctx, l.sql.forget); err != nil {
			return fmt.Errorf("remove notes of rows that are gone: %w", err)
		}
		notes, err := readNotes(ctx, c, l.sql.parked)
		for _, p := range notes {
			l.noted[p.Seq] = struct{}{}
		}
		return err
	})
	if errors.Is(err, outbox.ErrDeposed) {
		err = fmt.Errorf("%w: the server ended its session, or has not answered within %v", err, l.store.opts.LeaseTimeout)
	}
	return err
}

// durably is a condition that is always true and makes the transaction's commit wait for
// the disk: if a crash undid an epoch, two leaders would get the same one. It does not wait
// for a standby, which may be down.
const durably = "set_config('synchronous_commit', 'local', true) <> ''"

// maxSilence is how long a leader's session may be idle before the server ends it: the
// process may be stopped or its machine hang while the connection stays open. watch pings
// much more often.
const maxSilence = 15 * time.Second

// limitSilence makes the server end the session once it is idle for longest. Servers before
// version 14 cannot; there the lock is held as long as the connection exists.
func limitSilence(ctx context.Context, c *pgx.Conn, longest time.Duration) error {
	_, err := c.Exec(ctx, "SELECT set_config(name, $1, false) FROM (VALUES ('idle_session_timeout')) AS v(name) WHERE current_setting(name, true) IS NOT NULL",
		fmt.Sprint(longest.Milliseconds()))
	if err != nil {
		return fmt.Errorf("set idle_session_timeout: %w", err)
	}
	return nil
}

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

// watch ends the leadership when the session that holds the lock ends, or the address leads to
// another primary.
func (l *lease) watch(ctx context.Context) {
	defer close(l.watched)
	var group sync.WaitGroup
	defer group.Wait()
	group.Go(func() { l.store.stay(ctx, l.place, l.lost, l.lose) })
	l.store.watchSession(ctx, l.lock, l.pid, l.lose)
}

// stay looks from time to time where the address leads, and calls lose if that is another primary
// than the one of a lock. There may be messages there and no leader: this relay may be the only one.
func (s *Store) stay(ctx context.Context, place string, lost <-chan struct{}, lose func()) {
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
		c, err := s.connectToWait(ctx)
		if err != nil {
			continue // the lock does not depend on it
		}
		var elsewhere bool
		err = s.answered(ctx, func(ctx context.Context) error {
			return c.QueryRow(ctx, "SELECT "+placeText+" <> $1 AND NOT pg_catalog.pg_is_in_recovery()", place).Scan(&elsewhere)
		})
		closeConn(c)
		if err == nil && elsewhere {
			lose()
		}
	}
}

// watchSession calls lose when a session that only holds locks has ended, or is not in the
// process that took them, pid. It notices a closed connection at once and asks a silent one.
func (s *Store) watchSession(ctx context.Context, c *pgx.Conn, pid int64, lose func()) {
	timeout := s.opts.LeaseTimeout
	interval := max(timeout/4, 10*time.Millisecond)
	for ctx.Err() == nil {
		waiting, cancel := context.WithTimeout(ctx, interval)
		_, err := c.WaitForNotification(waiting)
		over := waiting.Err() != nil
		cancel()
		if err != nil && !over || c.IsClosed() {
			lose()
			return
		}
		if ctx.Err() != nil {
			return
		}
		// Not with ctx: canceling the question would close the session, and Close could not
		// unlock.
		asking, cancel := context.WithTimeout(context.Background(), timeout)
		now, err := poolCheckSession{c}.Number(asking)
		cancel()
		if err == nil && now != pid {
			s.pooled.Moved()
		}
		if err != nil || now != pid {
			lose()
			return
		}
	}
}

// Lost implements [outbox.Lease].
func (l *lease) Lost() <-chan struct{} { return l.lost }

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

// release unlocks the shard. The end of the session would do that as well, but later, and never
// if a pooler keeps the connection. In another process the lock may be another leader's.
func (l *lease) release() {
	ctx, cancel := context.WithTimeout(context.Background(), l.store.opts.LeaseTimeout)
	defer cancel()
	released, err := simpleValue(ctx, l.lock, fmt.Sprintf("SELECT CASE pg_backend_pid() WHEN %d THEN pg_advisory_unlock('%d') END",
		l.pid, l.names.leaseKey(l.shard)))
	if err == nil && released == nil {
		l.store.pooled.Moved()
	}
}

// deposed returns ErrDeposed once the lease is known to be lost.
func (l *lease) deposed() error {
	select {
	case <-l.lost:
		return outbox.ErrDeposed
	default:
		return nil
	}
}

// do runs f on one of the connections. After the lease is lost every error is ErrDeposed.
func (l *lease) do(ctx context.Context, step string, s *session, f func(*pgx.Conn) error) error {
	err := l.deposed()
	if err == nil {
		if err = s.use(ctx, f); err == nil {
			return nil
		}
		if deposed := l.deposed(); deposed != nil && !errors.Is(err, deposed) {
			err = fmt.Errorf("%w (%w)", deposed, err)
		}
	}
	return l.store.wrap(fmt.Sprintf("shard %d: %s", l.shard, step), err)
}

// Ack implements [outbox.Lease]. Its commit does not wait for the disk: if the server
// crashes, the last acks may be lost and their messages are delivered again.
func (l *lease) Ack(ctx context.Context, rows []outbox.Ref) error {
	if len(rows) == 0 {
		return l.deposed()
	}
	seqs, ids := make([]int64, len(rows)), make([][16]byte, len(rows))
	for i, row := range rows {
		seqs[i], ids[i] = row.Seq, row.ID
	}
	noted, from, to := l.ackHints(seqs)
	err := l.do(ctx, "note deliveries in", &l.write, func(c *pgx.Conn) error {
		if len(noted) > 0 {
			if _, err := c.Exec(ctx, l.sql.unpark, noted); err != nil {
				return err
			}
		}
		var tag pgconn.CommandTag
		var err error
		if !from.IsZero() {
			tag, err = c.Exec(ctx, l.sql.ackBetween, seqs, ids, from, to)
			if err != nil || int(tag.RowsAffected()) == len(seqs) {
				return err
			}
			// Some rows are gone, or their created_at was changed: search all partitions.
		}
		_, err = c.Exec(ctx, l.sql.ack, seqs, ids)
		return err
	})
	if err == nil {
		l.forget(seqs)
	}
	return err
}

// ackHints returns which rows have notes, and the first and last creation time of all rows
// (zero if one of them is unknown).
func (l *lease) ackHints(seqs []int64) (noted []int64, from, to time.Time) {
	l.mu.Lock()
	defer l.mu.Unlock()
	known := l.created != nil
	for _, seq := range seqs {
		if len(l.noted) > 0 {
			if _, ok := l.noted[seq]; ok {
				noted = append(noted, seq)
			}
		}
		if !known {
			continue
		}
		at, ok := l.created[seq]
		if known = ok; !ok {
			continue
		}
		if from.IsZero() || at.Before(from) {
			from = at
		}
		if at.After(to) {
			to = at
		}
	}
	if !known {
		return noted, time.Time{}, time.Time{}
	}
	return noted, from, to
}

// forget drops the state of rows that are no longer pending.
func (l *lease) forget(seqs []int64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, seq := range seqs {
		delete(l.created, seq)
	}
	if len(l.noted) > 0 {
		for _, seq := range seqs {
			delete(l.noted, seq)
		}
	}
}

// remember keeps the creation times of rows that were read, by which their ack finds the
// partition.
func (l *lease) remember(rows []outbox.Row) {
	if l.created == nil {
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	for i := range rows {
		l.created[rows[i].Seq] = rows[i].CreatedAt
	}
}

// Park implements [outbox.Lease]. It is fenced by the epoch.
func (l *lease) Park(ctx context.Context, p []outbox.Parking) error {
	if len(p) == 0 {
		return l.deposed()
	}
	c := parkingColumns(p)
	// Before the note is written: a later ack must delete it.
	l.mu.Lock()
	for _, seq := range c.seqs {
		l.noted[seq] = struct{}{}
	}
	l.mu.Unlock()
	return l.do(ctx, "park in", &l.write, func(conn *pgx.Conn) error {
		return l.fenced(conn.QueryRow(ctx, l.sql.park, c.seqs, c.ids, c.attempts, c.delays, c.errors, l.shard, l.epoch))
	})
}

// Bury implements [outbox.Lease]. It is fenced by the epoch.
func (l *lease) Bury(ctx context.Context, b []outbox.Burial) error {
	if len(b) == 0 {
		return l.deposed()
	}
	c := burialColumns(b)
	err := l.do(ctx, "bury in", &l.write, func(conn *pgx.Conn) error {
		return l.fenced(conn.QueryRow(ctx, l.sql.bury, c.seqs, c.ids, c.attempts, c.reasons, c.errors, l.shard, l.epoch))
	})
	if err == nil {
		l.forget(c.seqs)
	}
	return err
}

// fenced returns ErrDeposed if a fenced statement found a newer epoch.
func (l *lease) fenced(row pgx.Row) error {
	var stood int
	if err := row.Scan(&stood); err != nil {
		return err
	}
	if stood == 0 {
		return l.passed()
	}
	return nil
}

func (l *lease) passed() error {
	return fmt.Errorf("%w: epoch %d has passed", outbox.ErrDeposed, l.epoch)
}

// Parked implements [outbox.Lease].
func (l *lease) Parked(ctx context.Context) (notes []outbox.Parking, err error) {
	err = l.do(ctx, "read what is parked in", &l.write, func(c *pgx.Conn) (err error) {
		notes, err = readNotes(ctx, c, l.sql.parked)
		return err
	})
	return notes, err
}

func readNotes(ctx context.Context, q querier, sql string) ([]outbox.Parking, error) {
	rows, err := q.Query(ctx, sql)
	if err != nil {
		return nil, fmt.Errorf("read notes of attempts: %w", err)
	}
	var notes []outbox.Parking
	var p outbox.Parking
	var micros int64
	_, err = pgx.ForEachRow(rows, []any{&p.Seq, (*[16]byte)(&p.ID), &p.Attempts, &micros, &p.Error}, func() error {
		p.Delay = time.Duration(micros) * time.Microsecond
		notes = append(notes, p)
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("read notes of attempts: %w", err)
	}
	return notes, nil
}

// Fetch implements [outbox.Lease].
func (l *lease) Fetch(ctx context.Context, seqs []int64) (rows []outbox.Row, err error) {
	if len(seqs) == 0 {
		return nil, l.deposed()
	}
	err = l.do(ctx, "fetch from", &l.write, func(c *pgx.Conn) error {
		result, err := c.Query(ctx, l.sql.fetch, seqs)
		if err != nil {
			return err
		}
		rows, err = collect(result)
		return err
	})
	l.remember(rows)
	return rows, err
}

// Pending implements [outbox.Lease].
func (l *lease) Pending(ctx context.Context, after, last int64, limit int) (seqs []int64, err error) {
	err = l.do(ctx, "list pending rows of", &l.write, func(c *pgx.Conn) error {
		rows, err := c.Query(ctx, l.sql.pending, after, last, limit)
		if err != nil {
			return err
		}
		seqs, err = pgx.CollectRows(rows, pgx.RowTo[int64])
		return err
	})
	return seqs, err
}
