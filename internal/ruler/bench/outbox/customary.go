package outboxbench

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/go-sql-driver/mysql"
	"github.com/jackc/pgx/v5/pgconn"

	outboxload "github.com/weirdb/weir/internal/ruler/bench/outbox/load"
	"github.com/weirdb/weir/internal/ruler/bench/suite"
	"github.com/weirdb/weir/outbox"
)

// customary is the relay exactly as in reference report 5, on weir's tables: workers that claim
// with FOR UPDATE SKIP LOCKED, publish, and mark rows as done by their numbers. It accepts a
// window without partitions, which weir's own relay refuses, and never looks at older rows, so
// it never delivers them. It exists to measure the cost of both.
type customary struct {
	subject
	Combination
	window time.Duration // zero: none

	pages float64 // per row of the first claim of the last round; 0: not counted
}

// errNoProducers is returned by subjects that only deliver a backlog.
var errNoProducers = errors.New("a backlog of the past has no producers")

// Seed implements [outboxload.Subject].
func (*customary) Seed(context.Context, []outboxload.Message) error { return errNoProducers }

// Enqueue implements [outboxload.Subject].
func (*customary) Enqueue(context.Context, outboxload.Message) error { return errNoProducers }

// Settings implements [outboxload.Subject].
func (c *customary) Settings() map[string]string {
	return map[string]string{
		"outbox": "customary", "claim": outbox.SkipLocked.String(), "layout": c.shape.layout.String(), "partition": c.shape.period.String(),
		"publishers": strconv.Itoa(c.Workers), "batch": strconv.Itoa(c.Batch), "window": c.window.String(),
	}
}

// Relay implements [outboxload.Subject].
func (c *customary) Relay(deliver func([][]byte)) (outboxload.Relay, error) {
	return &customaryRelay{customary: c, deliver: deliver, let: make(chan struct{})}, nil
}

// customaryRelay starts to work when Resume is called.
type customaryRelay struct {
	*customary
	deliver func([][]byte)
	let     chan struct{} // closed by Resume
	acked   atomic.Int64
}

// Run implements [outboxload.Relay].
func (r *customaryRelay) Run(ctx context.Context) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	var group sync.WaitGroup
	for range r.Workers {
		group.Go(func() {
			if err := r.work(ctx); err != nil {
				cancel(err)
			}
		})
	}
	group.Wait()
	if err := context.Cause(ctx); !errors.Is(err, context.Canceled) {
		return err
	}
	return nil
}

func (r *customaryRelay) work(ctx context.Context) error {
	select {
	case <-r.let:
	case <-ctx.Done():
		return nil
	}
	for ctx.Err() == nil {
		n, err := r.once(context.WithoutCancel(ctx))
		if deadlocked(err) {
			continue // the server rolled the batch back: it is published again
		}
		if err != nil {
			return err
		}
		if n == 0 {
			_ = wait(ctx, 50*time.Millisecond) // the poll interval of report 5; if ctx is done, the loop ends
		}
	}
	return nil
}

// deadlocked reports whether the server rolled a transaction back to resolve a deadlock. On
// MariaDB, workers that mark rows in one range of an index run into that.
func deadlocked(err error) bool {
	var my *mysql.MySQLError
	var pg *pgconn.PgError
	return errors.As(err, &my) && my.Number == 1213 || errors.As(err, &pg) && pg.Code == "40P01"
}

// once processes one batch in one transaction.
func (r *customaryRelay) once(ctx context.Context) (n int, err error) {
	tx, err := r.rig.producers.BeginTx(ctx, &sql.TxOptions{Isolation: sql.LevelReadCommitted})
	if err != nil {
		return 0, fmt.Errorf("begin: %w", err)
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, rolledBack(tx))
		}
	}()
	seqs, payloads, err := r.claim(ctx, tx)
	if err != nil {
		return 0, fmt.Errorf("claim: %w", err)
	}
	if len(seqs) > 0 {
		r.deliver(payloads)
		if _, err := tx.ExecContext(ctx, "UPDATE "+r.shape.table()+" SET status = 1, done_at = CURRENT_TIMESTAMP WHERE seq IN ("+strings.Join(seqs, ", ")+")"); err != nil {
			return 0, fmt.Errorf("mark as done: %w", err)
		}
	}
	if err := tx.Commit(); err != nil {
		return 0, fmt.Errorf("commit: %w", err)
	}
	r.acked.Add(int64(len(seqs)))
	return len(seqs), nil
}

// claimSQL is the statement that claims a batch.
func (r *customaryRelay) claimSQL() string {
	where := "status = 0"
	if r.window > 0 {
		where += " AND " + engine(r.rig.o.Engine).within(r.window)
	}
	return fmt.Sprintf("SELECT seq, payload FROM %s WHERE %s ORDER BY seq LIMIT %d FOR UPDATE SKIP LOCKED", r.shape.table(), where, r.Batch)
}

func (r *customaryRelay) claim(ctx context.Context, tx *sql.Tx) (seqs []string, payloads [][]byte, err error) {
	rows, err := tx.QueryContext(ctx, r.claimSQL())
	if err != nil {
		return nil, nil, err
	}
	defer rows.Close()
	for rows.Next() {
		var seq string
		var payload []byte
		if err := rows.Scan(&seq, &payload); err != nil {
			return nil, nil, err
		}
		seqs, payloads = append(seqs, seq), append(payloads, payload)
	}
	return seqs, payloads, rows.Err()
}

// Ready implements [outboxload.Relay].
func (r *customaryRelay) Ready(context.Context) error { return nil }

// Pause implements [outboxload.Relay]: the relay has not started yet.
func (r *customaryRelay) Pause(context.Context) error { return nil }

// Resume implements [outboxload.Relay].
func (r *customaryRelay) Resume(context.Context) error {
	close(r.let)
	return nil
}

// claimed is how many pages a claim reads per row.
func (c *customary) claimed() float64 { return c.pages }

// probe counts the pages that one claim reads, and rolls the claim back.
func (c *customary) probe(ctx context.Context) (err error) {
	r := &customaryRelay{customary: c}
	tx, err := c.rig.producers.BeginTx(ctx, &sql.TxOptions{Isolation: sql.LevelReadCommitted})
	if err != nil {
		return fmt.Errorf("begin: %w", err)
	}
	defer func() { err = errors.Join(err, rolledBack(tx)) }()
	if c.rig.o.Engine == suite.PostgreSQL {
		c.pages, err = explainedPages(ctx, tx, r.claimSQL())
		return err
	}
	c.pages, err = settledPages(func() (int64, int, error) {
		before, err := c.rig.meterPages(ctx)
		if err != nil {
			return 0, 0, err
		}
		seqs, _, err := r.claim(ctx, tx)
		if err != nil {
			return 0, 0, err
		}
		after, err := c.rig.meterPages(ctx)
		return after - before, len(seqs), err
	})
	return err
}

// settledPages is how many pages a claim reads per row. The counters of MySQL and MariaDB are
// those of the whole server, which may be purging earlier deletes: the claim is repeated until
// two counts are equal, and the smallest counts.
func settledPages(claim func() (pages int64, rows int, err error)) (float64, error) {
	const most = 20
	least := math.Inf(1)
	for range most {
		pages, rows, err := claim()
		if err != nil || rows == 0 {
			return 0, err
		}
		each := float64(pages) / float64(rows)
		if each == least {
			break
		}
		least = min(least, each)
	}
	return least, nil
}

// meterPages is how many pages the server was asked for so far, on engines whose counter is
// always up to date.
func (r *rig) meterPages(ctx context.Context) (int64, error) {
	if r.meter == nil || r.o.Engine == suite.PostgreSQL {
		return 0, nil
	}
	c, err := r.meter.Counters(ctx)
	return c.PageRequests, err
}

// explainedPages returns how many pages a statement reads per returned row, by EXPLAIN of
// PostgreSQL.
func explainedPages(ctx context.Context, tx *sql.Tx, query string) (float64, error) {
	var text string
	if err := tx.QueryRowContext(ctx, "EXPLAIN (ANALYZE, BUFFERS, TIMING OFF, FORMAT JSON) "+query).Scan(&text); err != nil {
		return 0, fmt.Errorf("explain the claim: %w", err)
	}
	var plans []struct {
		Plan struct {
			Rows float64 `json:"Actual Rows"`
			Hit  float64 `json:"Shared Hit Blocks"`
			Read float64 `json:"Shared Read Blocks"`
		}
	}
	if err := json.Unmarshal([]byte(text), &plans); err != nil || len(plans) != 1 {
		return 0, fmt.Errorf("explain the claim: %d plans, %w", len(plans), err)
	}
	p := plans[0].Plan
	if p.Rows == 0 {
		return 0, nil
	}
	return (p.Hit + p.Read) / p.Rows, nil
}

// Acked implements [outboxload.Relay].
func (r *customaryRelay) Acked() int64 { return r.acked.Load() }
