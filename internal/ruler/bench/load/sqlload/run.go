// Package sqlload drives a database through database/sql and a driver, as applications do. Its
// load costs more than that of package load, which speaks the protocols itself, and takes CPU
// time from what is measured: it exists to show what drivers cost.
package sqlload

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	_ "github.com/lib/pq" // registers the driver "postgres"

	"github.com/weirdb/weir/internal/measure/loop"
	"github.com/weirdb/weir/internal/ruler/bench"
	"github.com/weirdb/weir/internal/ruler/bench/load"
	"github.com/weirdb/weir/internal/ruler/bench/sqldb"
)

// Driver is a driver of database/sql.
type Driver string

// The drivers.
const (
	PQ    Driver = "pq"
	PGX   Driver = "pgx-sql"
	MySQL Driver = "go-sql-driver"
)

// open opens a pool that keeps n connections open.
func (d Driver) open(dsn string, n int) (*sql.DB, error) {
	switch d {
	case PGX:
		return sqldb.OpenPostgres(dsn, n)
	case MySQL:
		return sqldb.OpenMySQL(dsn, n)
	case PQ:
		db, err := sql.Open("postgres", dsn)
		if err != nil {
			return nil, fmt.Errorf("read DSN: %w", err)
		}
		db.SetMaxOpenConns(n)
		db.SetMaxIdleConns(n)
		return db, nil
	}
	return nil, fmt.Errorf("no driver %q", d)
}

// client is a client that sends one operation after another.
type client struct {
	text    []byte // of the operation, reused
	total   int64  // answered
	sent    int64
	unknown []int64
	wrong   string // the first unexpected answer
}

// Run is load.Run through database/sql: a goroutine and a pooled connection per client, each
// with one operation in flight. Statements contain their values as literals. The workload must
// be an Insert, and its table must exist.
func Run(ctx context.Context, d Driver, c load.Config) (_ *load.Outcome, err error) {
	if err := c.Validate(); err != nil {
		return nil, err
	}
	work, ok := c.Workload.(load.Insert)
	if !ok || c.Duration <= 0 {
		return nil, fmt.Errorf("load through database/sql: want inserts and a duration, not %T", c.Workload)
	}
	n := max(c.Connections, 1)
	db, err := d.open(c.DSN, n)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, db.Close()) }()
	if err := fill(ctx, db, n); err != nil {
		return nil, err
	}
	r := &runner{db: db, statement: work.Statement(), live: c.Live, clients: make([]client, n)}
	o, err := loop.Run(ctx, loop.Config{
		Workers: n, Warmup: c.Warmup, FixedWarmup: true, Duration: c.Duration, Watch: c.Watch, Classify: class,
	}, r.once)
	if err != nil {
		return nil, err
	}
	s := bench.Sample{InFlight: n, Seconds: o.Seconds, Ops: o.Ops, Latency: o.Latency, Processes: o.Processes, Machine: &o.Machine}
	if len(o.Errors) > 0 {
		s.Errors = o.Errors
	}
	return r.collect(s), nil
}

// class returns an error's class: its first words.
func class(err error) string {
	text := err.Error()
	return text[:min(len(text), 60)]
}

// fill opens all connections, so that none is opened during the measurement.
func fill(ctx context.Context, db *sql.DB, n int) error {
	conns := make([]*sql.Conn, n)
	var err error
	for i := range conns {
		if conns[i], err = db.Conn(ctx); err != nil {
			err = fmt.Errorf("connect client %d: %w", i, err)
			break
		}
	}
	for _, c := range conns {
		if c != nil {
			err = errors.Join(err, c.Close())
		}
	}
	return err
}

type runner struct {
	db        *sql.DB
	statement load.Template
	live      *atomic.Int64
	clients   []client
}

// once is one operation of a client.
func (r *runner) once(ctx context.Context, worker int) error {
	c := &r.clients[worker]
	n := c.sent
	c.text = r.statement.Append(c.text[:0], int64(worker), n)
	c.sent++
	result, err := r.db.ExecContext(ctx, string(c.text))
	if err != nil {
		c.unknown = append(c.unknown, n) // a lost connection says neither
		rest(ctx)
		return err
	}
	if rows, err := result.RowsAffected(); (err != nil || rows != 1) && c.wrong == "" {
		c.wrong = fmt.Sprintf("client %d, operation %d: %d rows, %v", worker, n, rows, err)
	}
	c.total++
	if r.live != nil {
		r.live.Add(1)
	}
	return nil
}

// rest slows down a client whose operations fail.
func rest(ctx context.Context) {
	select {
	case <-time.After(10 * time.Millisecond):
	case <-ctx.Done():
	}
}

// collect adds up the clients' counts.
func (r *runner) collect(s bench.Sample) *load.Outcome {
	o := &load.Outcome{Sample: s, Clients: make([]load.Client, len(r.clients))}
	sent := make([]load.Sent, len(r.clients))
	for i := range r.clients {
		c := &r.clients[i]
		o.TotalOps += c.total
		if c.wrong != "" {
			o.WrongExamples = append(o.WrongExamples, c.wrong)
		}
		sent[i] = load.Sent{Count: c.sent, Unknown: c.unknown}
	}
	o.Ledger = load.NewLedger(sent)
	return o
}
