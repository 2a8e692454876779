package mysql

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	mysqldriver "github.com/go-sql-driver/mysql"

	"github.com/weirdb/weir/internal/lab/labtest"
	"github.com/weirdb/weir/internal/testkit"
)

// silent is a server whose connections answer nothing. Once it is full it accepts no more: a new
// connection hangs, or fails if nobody receives that it was asked for.
type silent struct {
	full   atomic.Bool
	asked  chan struct{}
	pinged atomic.Int32
}

var errSilent = errors.New("not now")

func (s *silent) Connect(ctx context.Context) (driver.Conn, error) {
	if !s.full.Load() {
		return silentConn{s}, nil
	}
	if s.asked == nil {
		return nil, errSilent
	}
	s.asked <- struct{}{}
	<-ctx.Done()
	return nil, ctx.Err()
}

func (s *silent) Driver() driver.Driver { return mysqldriver.MySQLDriver{} }

type silentConn struct{ *silent }

func (c silentConn) Ping(ctx context.Context) error {
	c.pinged.Add(1)
	<-ctx.Done()
	return ctx.Err()
}

// ResetSession is called when an idle connection is used again. It gives others the time for it.
func (c silentConn) ResetSession(context.Context) error {
	time.Sleep(time.Millisecond)
	return nil
}

func (c silentConn) Prepare(string) (driver.Stmt, error) { return nil, errSilent }
func (c silentConn) Begin() (driver.Tx, error)           { return nil, errSilent }
func (c silentConn) Close() error                        { return nil }

// silentStore returns a store over a pool with idle connections.
func silentStore(t *testing.T, server *silent, idle int) *Store {
	t.Helper()
	pool := sql.OpenDB(server)
	t.Cleanup(func() { _ = pool.Close() })
	pool.SetMaxIdleConns(idle)
	fill(t, pool, idle)
	s, err := New(pool, Options{})
	check(t, err)
	return s
}

// fill opens connections, which are idle then.
func fill(t *testing.T, pool *sql.DB, n int) {
	t.Helper()
	for range n {
		c, err := pool.Conn(t.Context())
		check(t, err)
		defer func() { check(t, c.Close()) }()
	}
}

// A server that hangs is asked once, not for each idle session. The error says what was tried.
func TestIdleSessionsOfAServerThatHangs(t *testing.T) {
	server := &silent{}
	s := silentStore(t, server, 3)
	for range 3 {
		c, err := s.db.Conn(t.Context())
		check(t, err)
		s.idle = append(s.idle, &session{Conn: c, pool: s.pool})
	}
	server.full.Store(true)
	s.patience = time.Millisecond
	_, err := s.session(t.Context())
	if !errors.Is(err, errSilent) || !strings.HasPrefix(err.Error(), "connect: ") {
		t.Errorf("a session of a server that hangs: %v", err)
	}
	if n := server.pinged.Load(); n != 1 {
		t.Errorf("%d sessions were asked, want 1", n)
	}
}

// Two that each borrow a part of the idle connections would wait for each other's.
func TestFreshSessionsTogether(t *testing.T) {
	s := silentStore(t, &silent{}, 4)
	s.db.SetMaxOpenConns(4)
	s.patience = testkit.Patience
	var together sync.WaitGroup
	for range 2 {
		together.Go(func() {
			if _, err := s.fresh(t.Context()); !errors.Is(err, errSilent) { // once it is connected
				t.Error(err)
			}
		})
	}
	together.Wait()
	if n := s.db.Stats().WaitCount; n != 0 {
		t.Errorf("%d times a connection was waited for, want none", n)
	}
}

// The application gets its connections back while a new one hangs.
func TestBorrowedConnectionsReturn(t *testing.T) {
	server := &silent{asked: make(chan struct{}, 1)}
	s := silentStore(t, server, 3)
	s.db.SetMaxOpenConns(4)
	s.patience = testkit.Patience / 4 // to accept a connection; borrowed ones return much earlier
	server.full.Store(true)
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() {
		defer close(done)
		_, _ = s.fresh(ctx)
	}()
	testkit.Receive(t, "a new connection", server.asked)
	c, err := s.db.Conn(t.Context())
	check(t, err)
	check(t, c.Close())
	select {
	case <-done:
		t.Error("the application had to wait until the new connection failed")
	default:
	}
	cancel()
	testkit.Receive(t, "the end of the new connection", done)
}

// counted counts connections.
type counted struct {
	driver.Connector
	n atomic.Int32
}

func (c *counted) Connect(ctx context.Context) (driver.Conn, error) {
	c.n.Add(1)
	return c.Connector.Connect(ctx)
}

// Leases of one store that look at the same time where the address leads look once.
func TestLeasesLookTogether(t *testing.T) {
	labtest.RequireMariaDB(t)
	m := mariadb.get(t)
	count := &counted{Connector: connector(t, m, database(t, m))}
	pool := sql.OpenDB(count)
	defer func() { _ = pool.Close() }()
	pool.SetMaxOpenConns(4)
	pool.SetMaxIdleConns(4)
	fill(t, pool, 4)
	s, err := New(pool, Options{})
	check(t, err)
	s.patience = testkit.Patience // connections are borrowed for a part of it
	before := count.n.Load()
	var together sync.WaitGroup
	for range 8 {
		together.Go(func() {
			if to := s.look(t.Context()); to.place == "" || !to.primary {
				t.Errorf("a look found %+v", to)
			}
		})
	}
	together.Wait()
	if n := count.n.Load() - before; n != 1 {
		t.Errorf("8 leases that look opened %d connections, want 1", n)
	}
}
