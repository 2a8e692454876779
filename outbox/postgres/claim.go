package postgres

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/weirdb/weir/outbox"
)

// claim is a transaction that holds locks on rows.
//
// A row that was just parked may be claimed before its delay is over, by a claim whose
// statement began before the parking committed: parking does not change the row, so the
// server does not check its condition again.
type claim struct {
	store *Store
	names names
	meta  meta
	conn  *pgxpool.Conn
	rows  []outbox.Row

	mu    sync.Mutex
	ended bool
}

// claimSettings are like sessionSettings, for one transaction.
const claimSettings = `SELECT set_config('enable_seqscan', 'off', true), set_config('enable_bitmapscan', 'off', true),
	set_config('enable_hashjoin', 'off', true), set_config('enable_mergejoin', 'off', true),
	set_config('synchronous_commit', 'off', true), set_config('jit', 'off', true)`

// Claim implements [outbox.Store], in a transaction on a connection of the pool. It takes one
// round trip to claim and one to finish.
func (s *Store) Claim(ctx context.Context, req outbox.ClaimRequest) (outbox.Claim, error) {
	if req.Limit < 1 {
		return nil, fmt.Errorf("outbox: claim from %s: a limit of %d rows: want at least 1", s.Name(), req.Limit)
	}
	n, m, err := s.ready(ctx)
	if err != nil {
		return nil, err
	}
	if req.Window > 0 && !m.partitioned() {
		// It may have been converted since.
		if m, err = s.refresh(ctx, s.pool); err != nil {
			return nil, err
		}
		if !m.partitioned() {
			return nil, fmt.Errorf("outbox: claim from %s: %w", s.Name(), outbox.ErrWindowNeedsPartitions)
		}
	}
	conn, err := s.pool.Acquire(ctx)
	if err != nil {
		return nil, s.wrap("connect to claim from", err)
	}
	c := &claim{store: s, names: n, meta: m, conn: conn}
	if err := c.begin(ctx, req); err != nil {
		return nil, s.wrap("claim from", errors.Join(err, c.Release()))
	}
	return c, nil
}

// claimText selects rows to claim. now() is constant in a transaction, so partitions outside
// the window are pruned when the plan starts. If the table was emptied and numbers are
// reused, a row waits for the delay of the earlier row with its number, but does not take
// over its attempts. Rows beyond the bytes of a claim, the last parameter, stay locked until
// the claim ends.
func claimText(n names, m meta, req outbox.ClaimRequest) string {
	where := m.pending() + " AND seq NOT IN (SELECT p.seq FROM " + n.q("_parked") + " AS p WHERE p.next_at > now())"
	if req.Window > 0 {
		where += " AND created_at >= now() - $2 * interval '1 microsecond'"
	}
	text := "SELECT " + rowColumns + ", coalesce((SELECT p.attempts FROM " + n.q("_parked") + " AS p WHERE " + m.noteOf() + "), 0) AS attempts FROM " +
		n.q("") + " AS t WHERE " + where + " ORDER BY seq LIMIT $1 FOR UPDATE OF t SKIP LOCKED"
	if req.MaxBytes == 0 {
		return text
	}
	p := 2
	if req.Window > 0 {
		p = 3
	}
	return fmt.Sprintf("SELECT %s, attempts FROM (SELECT r.*, sum(octet_length(payload)::bigint) OVER (ORDER BY seq ROWS UNBOUNDED PRECEDING)"+
		" - octet_length(payload) AS before FROM (%s) AS r) AS r WHERE before < $%d ORDER BY seq", rowColumns, text, p)
}

func (c *claim) begin(ctx context.Context, req outbox.ClaimRequest) error {
	args := []any{req.Limit}
	if req.Window > 0 {
		args = append(args, int64(req.Window/time.Microsecond))
	}
	if req.MaxBytes > 0 {
		args = append(args, int64(req.MaxBytes))
	}
	var b pgx.Batch
	b.Queue("BEGIN ISOLATION LEVEL READ COMMITTED READ WRITE")
	b.Queue(claimSettings)
	b.Queue(claimText(c.names, c.meta, req), args...)
	results := c.conn.SendBatch(ctx, &b)
	for range 2 {
		if _, err := results.Exec(); err != nil {
			return errors.Join(err, results.Close())
		}
	}
	rows, err := results.Query()
	if err == nil {
		c.rows, err = collectWith(rows, true)
	}
	return errors.Join(err, results.Close())
}

// Rows implements [outbox.Claim].
func (c *claim) Rows() []outbox.Row { return c.rows }

// Finish implements [outbox.Claim].
func (c *claim) Finish(ctx context.Context, acked []int64, parked []outbox.Parking, buried []outbox.Burial) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.ended {
		return fmt.Errorf("outbox: finish a claim of %s: it has ended", c.store.Name())
	}
	var b pgx.Batch
	if len(acked) > 0 {
		text, args := ackText(c.names.q(""), c.meta), []any{acked, c.ids(acked)}
		if c.meta.partitioned() {
			// The rows are locked: their created_at cannot change.
			first, last := c.created()
			text, args = text+ackBetween, append(args, first, last)
		}
		b.Queue(text, args...)
		if noted := c.attempted(acked); len(noted) > 0 {
			b.Queue("DELETE FROM "+c.names.q("_parked")+" WHERE seq = ANY($1)", noted)
		}
	}
	if len(parked) > 0 {
		p := parkingColumns(parked)
		b.Queue(parkText(c.names, c.meta, false), p.seqs, p.ids, p.attempts, p.delays, p.errors)
	}
	if len(buried) > 0 {
		p := burialColumns(buried)
		b.Queue(buryText(c.names, c.meta, false), p.seqs, p.ids, p.attempts, p.reasons, p.errors)
	}
	b.Queue("COMMIT")
	if err := c.conn.SendBatch(ctx, &b).Close(); err != nil {
		return c.store.wrap("finish a claim of", errors.Join(err, c.release()))
	}
	c.ended = true
	c.conn.Release()
	return nil
}

// ids returns the ids of the rows with these numbers, in the same order.
func (c *claim) ids(seqs []int64) [][16]byte {
	by := make(map[int64]outbox.ID, len(c.rows))
	for i := range c.rows {
		by[c.rows[i].Seq] = c.rows[i].ID
	}
	ids := make([][16]byte, len(seqs))
	for i, seq := range seqs {
		ids[i] = by[seq]
	}
	return ids
}

// created returns the first and last creation time of the rows.
func (c *claim) created() (first, last time.Time) {
	for i := range c.rows {
		at := c.rows[i].CreatedAt
		if first.IsZero() || at.Before(first) {
			first = at
		}
		if at.After(last) {
			last = at
		}
	}
	return first, last
}

// attempted returns those of seqs whose rows have a note of failed attempts.
func (c *claim) attempted(seqs []int64) []int64 {
	noted := map[int64]bool{}
	for i := range c.rows {
		if c.rows[i].Attempts > 0 {
			noted[c.rows[i].Seq] = true
		}
	}
	var out []int64
	for _, seq := range seqs {
		if noted[seq] {
			out = append(out, seq)
		}
	}
	return out
}

// Release implements [outbox.Claim]. It rolls back.
func (c *claim) Release() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.release()
}

func (c *claim) release() error {
	if c.ended {
		return nil
	}
	c.ended = true
	defer c.conn.Release()
	if c.conn.Conn().IsClosed() {
		return nil // and the server has rolled back
	}
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	if _, err := c.conn.Exec(ctx, "ROLLBACK"); err != nil {
		closeConn(c.conn.Conn())
		return fmt.Errorf("outbox: release a claim of %s: %w", c.store.Name(), err)
	}
	return nil
}
