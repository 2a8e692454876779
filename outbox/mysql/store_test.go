package mysql

import (
	"context"
	"database/sql"
	sqldriver "database/sql/driver"
	"errors"
	"fmt"
	"os"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	driver "github.com/go-sql-driver/mysql"

	"github.com/weirdb/weir/internal/lab"
	"github.com/weirdb/weir/internal/lab/labtest"
	"github.com/weirdb/weir/internal/testkit"
	"github.com/weirdb/weir/outbox"
	"github.com/weirdb/weir/outbox/storetest"
)

// shared is a server that all tests of the package use, each with a database of
// its own: to start one takes longer than most tests.
type shared struct {
	start  func(context.Context, lab.MySQLConfig) (*lab.MySQL, error)
	once   sync.Once
	server *lab.MySQL
	err    error
}

var mariadb, mysqld = shared{start: lab.StartMariaDB}, shared{start: lab.StartMySQL}

// another is a second MariaDB, to which an address may be moved.
var another = shared{start: lab.StartMariaDB}

// config is of a server that never flushes, with a log to follow.
var config = lab.MySQLConfig{Durability: lab.Fast, Light: true, Settings: map[string]string{"max_allowed_packet": "128M"}}

func (s *shared) get(t *testing.T) *lab.MySQL {
	t.Helper()
	s.once.Do(func() {
		ctx, cancel := context.WithTimeout(context.Background(), labtest.Patience)
		defer cancel()
		s.server, s.err = s.start(ctx, config)
	})
	if s.err != nil {
		t.Fatal(s.err)
	}
	return s.server
}

func TestMain(m *testing.M) {
	code := m.Run()
	for _, s := range []*shared{&mariadb, &mysqld, &another} {
		if s.server == nil {
			continue
		}
		ctx, cancel := context.WithTimeout(context.Background(), labtest.Patience)
		if err := s.server.Discard(ctx); err != nil {
			fmt.Fprintln(os.Stderr, err)
			code = 1
		}
		cancel()
	}
	os.Exit(code)
}

// servers runs f with each kind of server that is installed.
func servers(t *testing.T, f func(t *testing.T, m *lab.MySQL)) {
	t.Run("MariaDB", func(t *testing.T) {
		labtest.RequireMariaDB(t)
		f(t, mariadb.get(t))
	})
	t.Run("MySQL", func(t *testing.T) {
		labtest.RequireMySQL(t)
		f(t, mysqld.get(t))
	})
}

var databases atomic.Int64

// database makes a fresh one.
func database(t *testing.T, m *lab.MySQL) string {
	t.Helper()
	storetest.AvoidMidnight(t)
	name := fmt.Sprintf("weir_%d", databases.Add(1))
	if err := m.Exec(t.Context(), "CREATE DATABASE "+name); err != nil {
		t.Fatal(err)
	}
	return name
}

// open opens a store as one more process would, one that does not take a slow
// machine for a dead server.
func open(t *testing.T, m *lab.MySQL, db string, opts Options) *Store {
	t.Helper()
	s, err := Open(t.Context(), m.DSN(db), opts)
	if err != nil {
		t.Fatal(err)
	}
	s.patience = testPatience
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
	return s
}

// migrated is open on tables that are migrated.
func migrated(t *testing.T, m *lab.MySQL, db string, opts Options, plan outbox.Plan) *Store {
	t.Helper()
	s := open(t, m, db, opts)
	if _, err := s.Migrate(t.Context(), plan); err != nil {
		t.Fatal(err)
	}
	return s
}

// producers is a pool as an application has it, with settings unlike the store's.
func producers(t *testing.T, m *lab.MySQL, db string) *sql.DB {
	t.Helper()
	pool := sql.OpenDB(connector(t, m, db))
	t.Cleanup(func() { _ = pool.Close() })
	return pool
}

func connector(t *testing.T, m *lab.MySQL, db string) sqldriver.Connector {
	t.Helper()
	cfg := driver.NewConfig()
	cfg.User, cfg.Net, cfg.Addr, cfg.DBName = m.User(), "unix", m.Socket(), db
	cfg.InterpolateParams, cfg.ParseTime, cfg.MaxAllowedPacket = true, true, 1<<30
	c, err := driver.NewConnector(cfg)
	check(t, err)
	return c
}

// cut kills the session that leads a shard.
func cut(t *testing.T, s *Store, m *lab.MySQL, shard int) {
	t.Helper()
	v, err := s.describeServer(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	var id int64
	if err := s.db.QueryRowContext(t.Context(), "SELECT IS_USED_LOCK('"+v.shardLock(s, shard)+"')").Scan(&id); err != nil {
		t.Fatal(err)
	}
	if err := m.Exec(t.Context(), fmt.Sprintf("KILL %d", id)); err != nil {
		t.Fatal(err)
	}
}

func TestStore(t *testing.T) {
	servers(t, func(t *testing.T, m *lab.MySQL) {
		storetest.Run(t, func(t *testing.T) storetest.Harness { return harness(t, m) })
	})
}

func harness(t *testing.T, m *lab.MySQL) storetest.Harness {
	db := database(t, m)
	if err := m.Exec(t.Context(), "CREATE DATABASE IF NOT EXISTS `other Schema`"); err != nil {
		t.Fatal(err)
	}
	return storetest.Harness{
		Open:  func(t *testing.T, table string) outbox.Store { return open(t, m, db, Options{Table: table}) },
		DB:    producers(t, m, db),
		Tx:    func(e outbox.Execer) outbox.Tx { return outbox.MySQL(e) },
		Quote: func(name string) string { return (&Store{opts: Options{Table: name}}).quoted(name) },
		Names: []string{"qu`ote", "with space", `qu"ote'`, "drei-Größen", "other Schema." + db, "{parked}", "100%d"},
		Migrate: func(t *testing.T, plan outbox.Plan, n int) bool {
			crash := errors.New("crash")
			s := open(t, m, db, Options{})
			s.beforeStep = func(string) error {
				if n--; n < 0 {
					return crash
				}
				return nil
			}
			_, err := s.Migrate(t.Context(), plan)
			if err != nil && !errors.Is(err, crash) {
				t.Fatal(err)
			}
			return err != nil
		},
		CutLease:   func(t *testing.T, shard int) { cut(t, open(t, m, db, Options{}), m, shard) },
		OddZone:    []string{"SET time_zone = '+13:00'", "SET time_zone = '-09:30'"},
		SkipLocked: true, Partitions: true, Tail: true,
	}
}

// quoted quotes "name" or "schema.name".
func (s *Store) quoted(name string) string {
	s.schema, s.base = splitTable(name)
	return s.table("")
}

// TestSessionsEndTransactions: where a server has each COMMIT and ROLLBACK begin
// another transaction, the sessions of a store do not.
func TestSessionsEndTransactions(t *testing.T) {
	servers(t, func(t *testing.T, m *lab.MySQL) {
		db := database(t, m)
		ctx := t.Context()
		check(t, m.Exec(ctx, "SET GLOBAL completion_type = CHAIN"))
		defer func() { check(t, m.Exec(context.WithoutCancel(ctx), "SET GLOBAL completion_type = NO_CHAIN")) }()
		s := migrated(t, m, db, Options{}, outbox.Plan{})
		check(t, s.inSnapshot(ctx, func(*session) error { return nil }))
		check(t, s.with(ctx, func(c *session) error {
			return c.exec(ctx, s.sql("INSERT INTO {outbox} (topic, payload) VALUES ('t', 'p')"))
		}))
		var n int
		check(t, producers(t, m, db).QueryRowContext(ctx, "SELECT COUNT(*) FROM weir_outbox").Scan(&n))
		if n != 1 {
			t.Errorf("%d rows are committed", n)
		}
	})
}

// TestSessionsReadAllRows: a server that limits what its sessions read does not limit
// those of a store.
func TestSessionsReadAllRows(t *testing.T) {
	servers(t, func(t *testing.T, m *lab.MySQL) {
		db := database(t, m)
		ctx := t.Context()
		check(t, m.Exec(ctx, "SET GLOBAL sql_select_limit = 1"))
		defer func() {
			check(t, m.Exec(context.WithoutCancel(ctx), "SET GLOBAL sql_select_limit = 18446744073709551615"))
		}()
		s := migrated(t, m, db, Options{}, outbox.Plan{})
		l := leadIt(t, s)
		run(t, producers(t, m, db), insertOne, insertOne)
		if rows := pageOf(t, l, 0); len(rows) != 2 {
			t.Errorf("%d rows, want 2", len(rows))
		}
	})
}

// A relay that stands by tries to lead several times a second, in the session that it has until
// this is old.
func TestStandbyReconnectsRarely(t *testing.T) {
	servers(t, func(t *testing.T, m *lab.MySQL) {
		db := database(t, m)
		l, err := migrated(t, m, db, Options{}, outbox.Plan{}).Lead(t.Context(), 0)
		check(t, err)
		defer func() { check(t, l.Close()) }()
		s := open(t, m, db, Options{})
		s.standbyPatience = time.Hour
		session := func() (id int64) {
			check(t, s.with(t.Context(), func(c *session) error { id = c.id; return nil }))
			return id
		}
		before := session()
		if _, err := s.Lead(t.Context(), 0); !errors.Is(err, outbox.ErrHeld) {
			t.Errorf("lead: %v, want %v", err, outbox.ErrHeld)
		}
		if after := session(); after != before {
			t.Errorf("session %d goes on with %d: it was opened anew", before, after)
		}
		s.standbyPatience = 0 // from now on the session is too old
		if _, err := s.Lead(t.Context(), 0); !errors.Is(err, outbox.ErrHeld) {
			t.Errorf("lead: %v, want %v", err, outbox.ErrHeld)
		}
		if after := session(); after == before {
			t.Error("the old session goes on: the address may lead to another server by now")
		}
	})
}

// movable is a pool's connector to one of two servers.
type movable struct {
	sqldriver.Connector
	next  sqldriver.Connector
	moved atomic.Bool
}

func (m *movable) Connect(ctx context.Context) (sqldriver.Conn, error) {
	if m.moved.Load() {
		return m.next.Connect(ctx)
	}
	return m.Connector.Connect(ctx)
}

// An address leads to another server while the old one still runs, with its leader, and the
// application's pool keeps connections to it.
func TestStandbyMovesWithTheAddress(t *testing.T) {
	labtest.RequireMariaDB(t)
	old, successor := mariadb.get(t), another.get(t)
	db := database(t, old)
	check(t, successor.Exec(t.Context(), "CREATE DATABASE "+db))
	oldLeader, err := migrated(t, old, db, Options{}, outbox.Plan{}).Lead(t.Context(), 0)
	check(t, err)
	migrated(t, successor, db, Options{}, outbox.Plan{})
	for _, tt := range []struct {
		name string
		then func(s *Store)
	}{
		{"the old leader goes on", func(s *Store) { s.standbyPatience = 0 }},
		{"the old leader has gone", func(s *Store) {
			check(t, oldLeader.Close())
			s.idle[0].began = s.idle[0].began.Add(-sessionTrust)
		}},
		{"the relay has just started", func(s *Store) {
			for _, c := range s.idle {
				c.discard()
			}
			s.idle = nil
		}},
	} {
		address := &movable{Connector: connector(t, old, db), next: connector(t, successor, db)}
		pool := sql.OpenDB(address)
		defer func() { _ = pool.Close() }()
		pool.SetMaxIdleConns(4)
		s, err := New(pool, Options{})
		check(t, err)
		s.patience, s.standbyPatience, s.leaderPatience = testPatience, time.Hour, 10*time.Millisecond
		if held := oldLeader.(*lease).deposed() == nil; held {
			if _, err := s.Lead(t.Context(), 0); !errors.Is(err, outbox.ErrHeld) {
				t.Errorf("lead: %v, want %v", err, outbox.ErrHeld)
			}
		}
		var idle []*sql.Conn // the application's
		for range 3 {
			c, err := pool.Conn(t.Context())
			check(t, err)
			idle = append(idle, c)
		}
		for _, c := range idle {
			check(t, c.Close())
		}
		address.moved.Store(true)
		tt.then(s)
		l, err := s.Lead(t.Context(), 0)
		if err != nil {
			t.Fatalf("%s: lead: %v", tt.name, err)
		}
		run(t, producers(t, successor, db), insertOne)
		rows := pageOf(t, l.(*lease), 0)
		if len(rows) != 1 {
			t.Fatalf("%s: %d rows, want 1", tt.name, len(rows))
		}
		check(t, l.Ack(t.Context(), []outbox.Ref{{Seq: rows[0].Seq, ID: rows[0].ID}}))
		if left := pageOf(t, l.(*lease), 0); len(left) != 0 {
			t.Errorf("%s: the row is still there after its acknowledgement", tt.name)
		}
		address.moved.Store(false) // a leader that is the only relay follows it
		select {
		case <-l.Lost():
		case <-time.After(testPatience):
			t.Errorf("%s: the leader never looks where the address leads", tt.name)
		}
		check(t, l.Close())
	}
}

// A relay that claims with skip-locked announces it where the address leads, also when the old
// server still runs: a leader there would deliver the same messages.
func TestClaimsMoveWithTheAddress(t *testing.T) {
	labtest.RequireMariaDB(t)
	old, successor := mariadb.get(t), another.get(t)
	db := database(t, old)
	check(t, successor.Exec(t.Context(), "CREATE DATABASE "+db))
	migrated(t, old, db, Options{}, outbox.Plan{})
	store := migrated(t, successor, db, Options{}, outbox.Plan{})
	address := &movable{Connector: connector(t, old, db), next: connector(t, successor, db)}
	pool := sql.OpenDB(address)
	defer func() { _ = pool.Close() }()
	pool.SetMaxIdleConns(4)
	fill(t, pool, 3)
	s, err := New(pool, Options{})
	check(t, err)
	s.patience, s.leaderPatience = testPatience, 10*time.Millisecond
	p, err := s.Announce(t.Context())
	check(t, err)
	address.moved.Store(true)
	testkit.Receive(t, "the claims are lost", p.Lost())
	check(t, p.Close())
	p, err = s.Announce(t.Context())
	check(t, err)
	defer func() { check(t, p.Close()) }()
	if _, err := store.Lead(t.Context(), 0); !errors.Is(err, outbox.ErrMixedClaims) {
		t.Errorf("lead beside claims: %v, want %v", err, outbox.ErrMixedClaims)
	}
	run(t, producers(t, successor, db), insertOne)
	claim, err := s.Claim(t.Context(), outbox.ClaimRequest{Limit: 1})
	check(t, err)
	if n := len(claim.Rows()); n != 1 {
		t.Errorf("%d rows were claimed, want 1: sessions of the old server stay", n)
	}
	check(t, claim.Release())
}

// The address of a store may lead to a server of another kind or version later, and privileges may
// be granted: each server is asked, and asked again for each lead.
func TestServerIsDescribedAnew(t *testing.T) {
	servers(t, func(t *testing.T, m *lab.MySQL) {
		s := migrated(t, m, database(t, m), Options{}, outbox.Plan{})
		is, err := s.describeServer(t.Context())
		check(t, err)
		other := *is
		other.place, other.version, other.mariadb = "elsewhere", "8.0.99", !is.mariadb
		s.server = &other
		d, err := s.Describe(t.Context())
		check(t, err)
		if d.Server != is.title() {
			t.Errorf("the server is described as %s, want %s", d.Server, is.title())
		}
		less := *is
		less.process = false
		s.server = &less
		if l := leadIt(t, s); *l.v != *is {
			t.Errorf("a leader takes its server for %+v, want %+v", *l.v, *is)
		}
	})
}

// A leader that looks where the address leads takes no connection for which the application would
// have to wait, however few the pool may have.
func TestFreshSessionOfAFullPool(t *testing.T) {
	labtest.RequireMariaDB(t)
	m := mariadb.get(t)
	pool := producers(t, m, database(t, m))
	pool.SetMaxOpenConns(2)
	pool.SetMaxIdleConns(2)
	s, err := New(pool, Options{})
	check(t, err)
	var all [2]*sql.Conn
	for i := range all {
		all[i], err = pool.Conn(t.Context())
		check(t, err)
	}
	for _, c := range all {
		check(t, c.Close())
	}
	c, err := s.fresh(t.Context())
	check(t, err)
	c.discard()
	if n := pool.Stats().Idle; n != 1 {
		t.Errorf("%d idle connections are left of two, want 1", n)
	}
}
