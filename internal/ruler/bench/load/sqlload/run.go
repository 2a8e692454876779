// Package sqlload drives a database through database/sql and a driver, as applications
// do. Its load is heavier than that of package load, which speaks the protocols itself,
// and takes processor time from what is measured: it exists to show what drivers cost.
package sqlload

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"net"
	"net/url"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/go-sql-driver/mysql"
	_ "github.com/jackc/pgx/v5/stdlib" // registers the driver "pgx"
	_ "github.com/lib/pq"              // registers the driver "postgres"

	"github.com/weirdb/weir/internal/measure"
	"github.com/weirdb/weir/internal/ruler/bench"
	"github.com/weirdb/weir/internal/ruler/bench/load"
)

// Driver is a driver of database/sql.
type Driver string

// The drivers.
const (
	PQ    Driver = "pq"
	PGX   Driver = "pgx-sql"
	MySQL Driver = "go-sql-driver"
)

// open opens a pool of n connections, all of which are kept.
func (d Driver) open(dsn string, n int) (*sql.DB, error) {
	name, err := map[Driver]string{PQ: "postgres", PGX: "pgx", MySQL: "mysql"}[d], error(nil)
	switch {
	case name == "":
		return nil, fmt.Errorf("no driver %q", d)
	case d == MySQL:
		if dsn, err = mysqlDSN(dsn); err != nil {
			return nil, err
		}
	}
	db, err := sql.Open(name, dsn)
	if err != nil {
		return nil, fmt.Errorf("read DSN: %w", err)
	}
	db.SetMaxOpenConns(n)
	db.SetMaxIdleConns(n)
	return db, nil
}

// mysqlDSN turns a URL into what the driver reads.
func mysqlDSN(dsn string) (string, error) {
	u, err := url.Parse(dsn)
	if err != nil || u.Host == "" {
		return "", errors.New("read DSN: want a URL with a host, such as mysql://user@host:3306/database")
	}
	c := mysql.NewConfig()
	c.User = u.User.Username()
	c.Passwd, _ = u.User.Password()
	c.Net, c.Addr, c.DBName = "tcp", u.Host, strings.TrimPrefix(u.Path, "/")
	if u.Port() == "" {
		c.Addr = net.JoinHostPort(u.Hostname(), "3306")
	}
	return c.FormatDSN(), nil
}

// The phases of a run.
const (
	warming int32 = iota
	measuring
	ending
)

// client is a goroutine that sends one operation after the other.
type client struct {
	id      int
	ops     int64 // answered within the window
	total   int64
	sent    int64
	unknown []int64
	latency measure.Hist
	errors  map[string]int64
	wrong   []string
}

// Run is load.Run through database/sql: as many goroutines as connections, each with one
// operation under way, on a pool of as many. Statements hold their values as literals.
// The workload is an Insert; its table must exist.
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
	s, err := r.conduct(ctx, c)
	if err != nil {
		return nil, err
	}
	return r.collect(s), nil
}

// fill opens all connections, so that none is opened while it is measured.
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
	phase     atomic.Int32
	live      *atomic.Int64
	clients   []client
}

// conduct moves the clients through the phases.
func (r *runner) conduct(ctx context.Context, c load.Config) (bench.Sample, error) {
	s := bench.Sample{InFlight: len(r.clients)}
	if c.Warmup == 0 {
		r.phase.Store(measuring)
	}
	// An operation under way is answered, or its time is over.
	working, cancel := context.WithCancel(ctx)
	defer cancel()
	var all sync.WaitGroup
	defer all.Wait()
	defer r.phase.Store(ending)
	before, machine, start := map[string]measure.Usage(nil), measure.ReadMachine(), time.Now()
	begin := func() (err error) {
		if before, err = measure.ReadUsages(c.Watch, bench.RoleClient); err != nil {
			return err
		}
		machine, start = measure.ReadMachine(), time.Now()
		r.phase.Store(measuring)
		return nil
	}
	if c.Warmup == 0 {
		if err := begin(); err != nil {
			return s, err
		}
	}
	for i := range r.clients {
		r.clients[i].id = i
		all.Go(func() { r.drive(working, &r.clients[i]) })
	}
	if c.Warmup > 0 {
		if err := pause(ctx, c.Warmup); err != nil {
			return s, err
		}
		if err := begin(); err != nil {
			return s, err
		}
	}
	if err := pause(ctx, c.Duration); err != nil {
		return s, err
	}
	r.phase.Store(ending)
	s.Seconds = time.Since(start).Seconds()
	activity := measure.ReadMachine().Since(machine)
	s.Machine = &activity
	after, err := measure.ReadUsages(c.Watch, bench.RoleClient)
	if err != nil {
		return s, err
	}
	s.Processes = make(map[string]measure.Usage)
	for role, u := range after {
		s.Processes[role] = u.Since(before[role])
	}
	late := time.AfterFunc(drain, cancel)
	defer late.Stop()
	all.Wait()
	return s, ctx.Err()
}

// drain is how long answers are waited for after the window.
const drain = 10 * time.Second

func pause(ctx context.Context, d time.Duration) error {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// drive is the loop of a client.
func (r *runner) drive(ctx context.Context, c *client) {
	var text []byte
	for n := int64(0); r.phase.Load() < ending && ctx.Err() == nil; n++ {
		text = r.statement.Append(text[:0], int64(c.id), n)
		before := r.phase.Load()
		start := time.Now()
		result, err := r.db.ExecContext(ctx, string(text))
		took := time.Since(start)
		c.sent = n + 1
		if err != nil {
			c.unknown = append(c.unknown, n) // a lost connection says neither
			if before == measuring && r.phase.Load() == measuring {
				c.fail(err)
			}
			if !rest(ctx) {
				return
			}
			continue
		}
		if rows, err := result.RowsAffected(); err != nil || rows != 1 {
			if len(c.wrong) < 1 {
				c.wrong = append(c.wrong, fmt.Sprintf("client %d, operation %d: %d rows, %v", c.id, n, rows, err))
			}
		}
		c.total++
		if r.live != nil {
			r.live.Add(1)
		}
		if before == measuring && r.phase.Load() == measuring {
			c.ops++
			c.latency.Record(int64(took))
		}
	}
}

// rest keeps a client that meets errors from doing nothing but that. It is false when
// the run has ended.
func rest(ctx context.Context) bool { return pause(ctx, 10*time.Millisecond) == nil }

// fail counts an error by its first words.
func (c *client) fail(err error) {
	if c.errors == nil {
		c.errors = make(map[string]int64)
	}
	text := err.Error()
	if len(text) > 60 {
		text = text[:60]
	}
	c.errors[text]++
}

// collect adds up what the clients counted.
func (r *runner) collect(s bench.Sample) *load.Outcome {
	o := &load.Outcome{Sample: s, Clients: make([]load.Client, len(r.clients))}
	o.Sample.Latency = &measure.Hist{}
	sent := make([]load.Sent, len(r.clients))
	for i := range r.clients {
		c := &r.clients[i]
		o.Sample.Ops += c.ops
		o.TotalOps += c.total
		o.Sample.Latency.Merge(&c.latency)
		o.WrongExamples = append(o.WrongExamples, c.wrong...)
		for class, n := range c.errors {
			if o.Sample.Errors == nil {
				o.Sample.Errors = make(map[string]int64)
			}
			o.Sample.Errors[class] += n
		}
		sent[i] = load.Sent{Count: c.sent, Unknown: c.unknown}
	}
	o.Ledger = load.NewLedger(sent)
	return o
}
