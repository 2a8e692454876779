package mysql

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"fmt"
	"sync"
	"testing"

	mysqldriver "github.com/go-sql-driver/mysql"

	"github.com/weirdb/weir/internal/lab"
	"github.com/weirdb/weir/internal/testkit"
	"github.com/weirdb/weir/outbox"
)

// lender is a pooler: transactions of its clients take its connections in turn.
type lender struct {
	conns []driver.Conn
	turn  int
}

func (p *lender) Connect(context.Context) (driver.Conn, error) { return &client{lender: p}, nil }

func (p *lender) Driver() driver.Driver { return mysqldriver.MySQLDriver{} }

type client struct {
	*lender
	held driver.Conn // by a transaction
}

func (c *client) conn() driver.Conn {
	if c.held != nil {
		return c.held
	}
	c.turn++
	return c.conns[c.turn%len(c.conns)]
}

func (c *client) Prepare(text string) (driver.Stmt, error) { return c.conn().Prepare(text) }

func (c *client) Begin() (driver.Tx, error) {
	c.held = c.conn()
	tx, err := c.held.(driver.ConnBeginTx).BeginTx(context.Background(), driver.TxOptions{})
	return &lentTx{tx, c}, err
}

func (c *client) Close() error { return nil }

type lentTx struct {
	driver.Tx
	c *client
}

func (t *lentTx) Commit() error {
	t.c.held = nil
	return t.Tx.Commit()
}

func (t *lentTx) Rollback() error {
	t.c.held = nil
	return t.Tx.Rollback()
}

// A pooler that hands a session one connection after the other is refused.
func TestCheckSeesPoolers(t *testing.T) {
	servers(t, func(t *testing.T, m *lab.MySQL) {
		db := database(t, m)
		migrated(t, m, db, Options{}, outbox.Plan{})
		for size := 1; size <= 4; size++ {
			t.Run(fmt.Sprint(size), func(t *testing.T) {
				if err := lentStore(t, m, db, size).Check(t.Context()); !errors.Is(err, outbox.ErrPooled) {
					t.Errorf("check: %v, want ErrPooled", err)
				}
			})
		}
	})
}

// A leader or a claimer that the check has not refused ends when another connection than that of
// its lock answers, and nobody leads after it.
func TestLeaderSeesThatItsSessionMoves(t *testing.T) {
	servers(t, func(t *testing.T, m *lab.MySQL) {
		db := database(t, m)
		migrated(t, m, db, Options{}, outbox.Plan{})
		s := lentStore(t, m, db, 2)
		l, err := s.Lead(t.Context(), 0)
		check(t, err)
		testkit.Receive(t, "the lead is lost", l.Lost())
		check(t, l.Close())
		if _, err := s.Lead(t.Context(), 0); !errors.Is(err, outbox.ErrPooled) {
			t.Errorf("lead again: %v, want ErrPooled", err)
		}
		if _, err := s.Announce(t.Context()); !errors.Is(err, outbox.ErrPooled) {
			t.Errorf("claim: %v, want ErrPooled", err)
		}
		db = database(t, m) // the pooler keeps the leader's lock
		migrated(t, m, db, Options{}, outbox.Plan{})
		s = lentStore(t, m, db, 2)
		p, err := s.Announce(t.Context())
		check(t, err)
		testkit.Receive(t, "the claims are lost", p.Lost())
		_ = p.Close()
		if _, err := s.Announce(t.Context()); !errors.Is(err, outbox.ErrPooled) {
			t.Errorf("claim again: %v, want ErrPooled", err)
		}
	})
}

// Two relays that a pooler gives the same connection do not both lead: the server would grant the
// lock of its session to both. Nor does one go on whose epoch has passed.
func TestRelaysOfOneConnection(t *testing.T) {
	servers(t, func(t *testing.T, m *lab.MySQL) {
		db := database(t, m)
		migrated(t, m, db, Options{}, outbox.Plan{})
		first := lentStore(t, m, db, 1)
		l, err := first.Lead(t.Context(), 0)
		check(t, err)
		second, err := New(first.db, Options{})
		check(t, err)
		l.(*lease).term.mu.Lock() // no heartbeat: this pooler does not wait until its connection is free
		if _, err := second.Lead(t.Context(), 0); !errors.Is(err, outbox.ErrPooled) {
			t.Errorf("a second relay leads on the same connection: %v, want %v", err, outbox.ErrPooled)
		}
		l.(*lease).term.mu.Unlock()
		run(t, producers(t, m, db), "UPDATE weir_outbox_lease SET epoch = epoch + 1")
		testkit.Receive(t, "the lead is lost", l.Lost())
		check(t, l.Close())
	})
}

// lentStore returns a store behind a pooler with some connections.
func lentStore(t *testing.T, m *lab.MySQL, db string, size int) *Store {
	t.Helper()
	cfg := mysqldriver.NewConfig()
	cfg.User, cfg.Net, cfg.Addr, cfg.DBName = m.User(), "unix", m.Socket(), db
	connector, err := mysqldriver.NewConnector(cfg)
	check(t, err)
	p := &lender{}
	for range size {
		c, err := connector.Connect(t.Context())
		check(t, err)
		t.Cleanup(func() { _ = c.Close() })
		p.conns = append(p.conns, c)
	}
	pool := sql.OpenDB(p)
	t.Cleanup(func() { _ = pool.Close() })
	s, err := New(pool, Options{})
	check(t, err)
	return s
}

// A relay that starts beside others that look at the list of threads is not refused:
// the server hides a thread's text while another one reads it.
func TestCheckBesideReadersOfTheList(t *testing.T) {
	testkit.Long(t, "has many sessions read the list of threads")
	servers(t, func(t *testing.T, m *lab.MySQL) {
		db := database(t, m)
		s := migrated(t, m, db, Options{}, outbox.Plan{})
		ctx, cancel := context.WithCancel(t.Context())
		var readers, checks sync.WaitGroup
		for range 6 {
			readers.Go(func() {
				for ctx.Err() == nil {
					rows, err := s.db.QueryContext(ctx, "SELECT INFO FROM information_schema.PROCESSLIST")
					if err == nil {
						err = rows.Close()
					}
					if err != nil && ctx.Err() == nil {
						t.Error(err)
						return
					}
				}
			})
		}
		for range 4 {
			checks.Go(func() {
				for range testkit.Rounds(20, 200) {
					fresh, err := New(s.db, Options{}) // another asks the server once
					if err == nil {
						err = fresh.Check(ctx)
					}
					if err != nil {
						t.Error(err)
						return
					}
				}
			})
		}
		checks.Wait()
		cancel()
		readers.Wait()
	})
}
