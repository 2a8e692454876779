package postgres

import (
	"context"
	"database/sql"
	"fmt"
	"os"
	"regexp"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	_ "github.com/jackc/pgx/v5/stdlib"

	"github.com/weirdb/weir/internal/lab"
	"github.com/weirdb/weir/internal/lab/labtest"
	"github.com/weirdb/weir/internal/testkit"
	"github.com/weirdb/weir/outbox"
	"github.com/weirdb/weir/outbox/storetest"
)

// patience bounds every wait; only a defect reaches it.
const patience = 2 * time.Minute

// config is of a PostgreSQL that decodes its log and prepares transactions.
var config = lab.PostgresConfig{Durability: lab.Fast, Settings: map[string]string{
	"wal_level": "logical", "max_prepared_transactions": "20", "max_replication_slots": "20", "max_wal_senders": "20",
}}

var shared = labtest.Share(func(ctx context.Context) (*lab.Postgres, error) { return lab.StartPostgres(ctx, config) })

func TestMain(m *testing.M) { os.Exit(labtest.Main(m)) }

// server is the one of all tests that do not harm it.
func server(t testing.TB) *lab.Postgres {
	t.Helper()
	return shared.Get(t)
}

var rough = labtest.Share(func(ctx context.Context) (*lab.Postgres, error) { return lab.StartPostgres(ctx, config) })

// roughServer is one that tests may kill and restart, and whose settings they may change for a
// while. No other test uses their databases.
func roughServer(t testing.TB) *lab.Postgres {
	t.Helper()
	return rough.Get(t)
}

// rig is one database of a server.
type rig struct {
	testing.TB
	dsn string
	db  *sql.DB
}

var databases atomic.Int64

// spare are databases of the shared server whose tests have ended, each with one connection.
var spare []*rig

// asNew has a connection forget what a test did with it.
const asNew = "ROLLBACK; SET SESSION AUTHORIZATION DEFAULT; RESET ALL; CLOSE ALL; UNLISTEN *; SELECT pg_advisory_unlock_all(); DISCARD PLANS; DISCARD TEMP"

// newRig returns an empty database. It is one of an earlier test if there is one: to make a
// database and to connect to it for the first time costs more than most tests.
func newRig(t testing.TB, server *lab.Postgres) *rig {
	t.Helper()
	if len(spare) == 0 {
		r := openRig(t, ownDatabase(t, server))
		r.spareAfter()
		return r
	}
	storetest.AvoidMidnight(t)
	r := spare[len(spare)-1]
	spare = spare[:len(spare)-1]
	r.TB = t
	if _, err := r.db.ExecContext(r.ctx(), asNew); err != nil { // the last test ended its session
		_ = r.db.Close()
		r = openRig(t, r.dsn)
	}
	r.db.SetMaxIdleConns(idleConns)
	r.spareAfter()
	r.eventually("the sessions of the last test have ended", func() bool {
		var n int
		r.check(r.db.QueryRowContext(r.ctx(), `SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity
			WHERE datname = current_database() AND pid <> pg_backend_pid() AND backend_type IN ('client backend', 'walsender')`).Scan(&n))
		return n == 0
	})
	r.exec(`DO $$ DECLARE name text; BEGIN
		FOR name IN SELECT pubname FROM pg_publication LOOP EXECUTE format('DROP PUBLICATION %I', name); END LOOP;
		FOR name IN SELECT nspname FROM pg_namespace WHERE nspname !~ '^(pg_|information_schema$)' LOOP EXECUTE format('DROP SCHEMA %I CASCADE', name); END LOOP;
		CREATE SCHEMA public;
		GRANT USAGE ON SCHEMA public TO PUBLIC;
	END $$`)
	return r
}

// spareAfter leaves the database to later tests if this one passes, with one of its connections: to
// connect costs as much as a short test.
func (r *rig) spareAfter() {
	t, dsn, db := r.TB, r.dsn, r.db // tests change them
	t.Cleanup(func() {
		if t.Failed() {
			_ = db.Close()
			return
		}
		db.SetMaxOpenConns(0)
		db.SetMaxIdleConns(1)
		spare = append(spare, &rig{dsn: dsn, db: db})
	})
}

// newOwnRig makes a database that no other test gets.
func newOwnRig(t testing.TB, server *lab.Postgres) *rig {
	t.Helper()
	return rigOf(t, ownDatabase(t, server))
}

func ownDatabase(t testing.TB, server *lab.Postgres) (dsn string) {
	t.Helper()
	storetest.AvoidMidnight(t)
	name := fmt.Sprintf("d%d", databases.Add(1))
	rigOf(t, server.DSN("postgres")).exec(server.CreateDatabase(name))
	return server.DSN(name)
}

func rigOf(t testing.TB, dsn string) *rig {
	t.Helper()
	r := openRig(t, dsn)
	t.Cleanup(func() { _ = r.db.Close() })
	return r
}

// openRig is rigOf for a rig whose connections stay open when t ends.
func openRig(t testing.TB, dsn string) *rig {
	t.Helper()
	db, err := sql.Open("pgx", dsn)
	if err != nil {
		t.Fatal(err)
	}
	db.SetMaxIdleConns(idleConns)
	return &rig{TB: t, dsn: dsn, db: db}
}

// idleConns is more than two, as it is by itself, with which many producers connect again and again.
const idleConns = 16

// another returns a name of the test's own for a database or role of the server, which
// stays there.
func (r *rig) another(what string) string { return fmt.Sprintf("%s_%d", what, databases.Add(1)) }

func (r *rig) role() string {
	r.Helper()
	name := r.another("role")
	r.exec("CREATE ROLE " + name)
	return name
}

func (r *rig) ctx() context.Context {
	ctx, cancel := context.WithTimeout(r.Context(), patience)
	r.Cleanup(cancel)
	return ctx
}

func (r *rig) check(err error) {
	r.Helper()
	if err != nil {
		r.Fatal(err)
	}
}

func (r *rig) exec(text string, args ...any) {
	r.Helper()
	if _, err := r.db.ExecContext(r.ctx(), text, args...); err != nil {
		r.Fatalf("%s: %v", text, err)
	}
}

// open opens a store that does not take a slow machine for a dead server.
func (r *rig) open(t testing.TB, opts Options) *Store {
	t.Helper()
	if opts.LeaseTimeout == 0 {
		opts.LeaseTimeout = time.Minute
	}
	s, err := Open(r.ctx(), r.dsn, opts)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Close() })
	return s
}

// cut ends the session that holds the lease of a shard.
func (r *rig) cut(shard int) {
	r.Helper()
	key := names{"public", outbox.DefaultTable}.leaseKey(shard)
	var n int
	err := r.db.QueryRowContext(r.ctx(), `SELECT count(pg_terminate_backend(pid)) FROM pg_locks WHERE locktype = 'advisory'
		AND (classid::bigint << 32) | objid::bigint = $1 AND database = (SELECT oid FROM pg_database WHERE datname = current_database())`, key).Scan(&n)
	r.check(err)
	if n != 1 {
		r.Fatalf("%d sessions hold the lease of shard %d, want 1", n, shard)
	}
}

// breaker cancels the n-th statement that changes something before it is sent.
type breaker struct {
	mu     sync.Mutex
	left   int
	broken bool
}

var changes = regexp.MustCompile(`(?i)^\s*(CREATE|ALTER|INSERT|UPDATE|DELETE|DROP|WITH|COMMIT|LOCK)\b`)

func (b *breaker) TraceQueryStart(ctx context.Context, _ *pgx.Conn, data pgx.TraceQueryStartData) context.Context {
	b.mu.Lock()
	defer b.mu.Unlock()
	if !b.broken && !changes.MatchString(data.SQL) {
		return ctx
	}
	if b.left--; b.left >= 0 && !b.broken {
		return ctx
	}
	b.broken = true
	ended, cancel := context.WithCancel(ctx)
	cancel()
	return ended
}

func (b *breaker) TraceQueryEnd(context.Context, *pgx.Conn, pgx.TraceQueryEndData) {}

// migrateBroken migrates a table and breaks off before the n-th change.
func (r *rig) migrateBroken(t *testing.T, table string, plan outbox.Plan, n int) bool {
	t.Helper()
	cfg, err := pgxpool.ParseConfig(r.dsn)
	r.check(err)
	b := &breaker{left: n}
	cfg.ConnConfig.Tracer = b
	pool, err := pgxpool.NewWithConfig(r.ctx(), cfg)
	r.check(err)
	defer pool.Close()
	s, err := New(pool, Options{Table: table})
	r.check(err)
	_, err = s.Migrate(r.ctx(), plan)
	if b.broken != (err != nil) {
		t.Fatalf("broken off before change %d: %v, and the migration says %v", n, b.broken, err)
	}
	return b.broken
}

// migrated opens the default table.
func (r *rig) migrated(plan outbox.Plan) *Store {
	r.Helper()
	s := r.open(r.TB, Options{})
	if _, err := s.Migrate(r.ctx(), plan); err != nil {
		r.Fatal("migrate:", err)
	}
	return s
}

func (r *rig) lead(s *Store) *lease {
	r.Helper()
	l, err := s.Lead(r.ctx(), 0)
	if err != nil {
		r.Fatal("lead:", err)
	}
	r.Cleanup(func() { _ = l.Close() })
	return l.(*lease)
}

func (r *rig) enqueue(msgs ...outbox.Message) {
	r.Helper()
	r.check(outbox.Enqueue(r.ctx(), outbox.Postgres(r.db), msgs...))
}

func (r *rig) read(l outbox.Lease) []outbox.Row {
	r.Helper()
	page, err := l.Read(r.ctx(), outbox.ReadRequest{Limit: 100_000, MaxBytes: 1 << 30})
	r.check(err)
	return append([]outbox.Row(nil), page.Rows...)
}

// eventually waits for a condition that something else brings about.
func (r *rig) eventually(what string, f func() bool) {
	r.Helper()
	testkit.Eventually(r, what, f)
}
