package postgres_test

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/weirdb/weir/internal/proxy/postgres"
	"github.com/weirdb/weir/internal/proxy/proxytest"
	"github.com/weirdb/weir/internal/proxy/sight"
)

// shape finds what w counts of the statements with the given text.
func (w *weir) shape(text string) sight.ShapeStatus {
	w.tb.Helper()
	return proxytest.Shape(w.tb, w, text)
}

// dsn is how pgx connects through w.
func (w *weir) dsn(user string) string {
	return fmt.Sprintf("postgres://%s@%s/%s?sslmode=disable", user, w.Addr(), w.db)
}

// TestShapesCountWhatRan: each path, rows, errors and waits, by shape; and the
// histograms have each statement once.
func TestShapesCountWhatRan(t *testing.T) {
	t.Parallel()
	db := database(t, "CREATE TABLE r (id int PRIMARY KEY, v text); INSERT INTO r SELECT i, 'x' FROM generate_series(1, 100) i")
	w := start(t, db, func(c *postgres.Config) { c.PoolSize = 2 })
	ctx := ctxFor(t)
	dsn := w.dsn("postgres")
	c := connect(t, dsn)
	run := func(c *pgx.Conn, times int, sql string, mode pgx.QueryExecMode, args ...any) {
		t.Helper()
		for range times {
			rows, err := c.Query(ctx, sql, append([]any{mode}, args...)...)
			if err != nil && sqlState(err) != "23505" {
				t.Fatal(err)
			}
			for rows.Next() {
				continue // the rows count, not what is in them
			}
			_ = rows.Err() // some are to fail
		}
	}
	const text, prepared = pgx.QueryExecModeSimpleProtocol, pgx.QueryExecModeCacheStatement
	// A statement that takes long, as it may on a busy machine, is not shared.
	eventually(t, "texts are shared", func() bool {
		run(c, 20, "SELECT v FROM r WHERE id <= 3", text)
		return w.shape("select v from r where id <= ?").Shared > 0
	})
	eventually(t, "prepared statements are shared", func() bool {
		run(c, 20, "SELECT v, id FROM r WHERE id <= $1", prepared, 5)
		return w.shape("select v, id from r where id <= ?").Shared > 0
	})
	run(c, 3, "UPDATE r SET v = 'y' WHERE id <= 7", text)
	run(c, 4, "INSERT INTO r VALUES (1, 'again')", text)
	run(c, 1, "CREATE TEMPORARY TABLE mine (a int)", text)
	run(c, 2, "SELECT a FROM mine", text)
	errs := make(chan error, 4)
	for i := range 4 {
		member := connect(t, dsn)
		go func() {
			var all error
			for n := range 5 {
				_, err := member.Exec(ctx, "/* batch */ INSERT INTO r (id, v) VALUES ($1, 'g')", 1000*(i+1)+n)
				all = errors.Join(all, err)
			}
			errs <- all
		}()
	}
	for range 4 {
		if err := <-errs; err != nil {
			t.Error(err)
		}
	}

	if s := w.shape("select v from r where id <= ?"); s.Runs%20 != 0 || s.Rows != 3*s.Runs || s.Shared > s.Runs || s.Errors != 0 || s.Pinned != 0 {
		t.Errorf("texts: %+v", s)
	}
	if s := w.shape("select v, id from r where id <= ?"); s.Runs == 0 || s.Rows%100 != 0 || s.Total < s.Max || s.Total < s.Server || s.Server <= 0 {
		t.Errorf("prepared: %+v", s)
	}
	if s := w.shape("update r set v = ? where id <= ?"); s.Runs != 3 || s.Rows != 21 || s.Shared != 0 {
		t.Errorf("updates: %+v", s)
	}
	if s := w.shape("select a from mine"); s.Runs != 2 || s.Pinned != 2 || s.Rows != 0 {
		t.Errorf("pinned: %+v", s)
	}
	if s := w.shape("insert into r(id, v) values (?, ?)"); s.Runs != 20 || s.Rows != 20 || s.Grouped == 0 {
		t.Errorf("grouped: %+v", s)
	}
	if failed := proxytest.Failed(t, w); failed.Runs != 4 || failed.Errors != 4 || failed.Rows != 0 {
		t.Errorf("failed: %+v", failed)
	}
	p := w.pool()
	for name, h := range map[string]uint64{"latency": p.Latency.Count(), "wait": p.Wait.Count(), "server": p.Server.Count()} {
		if h != p.Statements {
			t.Errorf("the histogram %s has %d of %d statements", name, h, p.Statements)
		}
	}
	if n := w.snapshot().LoginTimes[db].Count(); n != 5 {
		t.Errorf("%d logins were timed, want 5", n)
	}
}

// TestLatencyCountsTheWaitForABackend: a statement that needs a backend of its own has
// waited for it, and not run.
func TestLatencyCountsTheWaitForABackend(t *testing.T) {
	t.Parallel()
	db := database(t, "CREATE TABLE r (id int)")
	w := start(t, db, func(c *postgres.Config) { c.PoolSize = 1 })
	ctx := ctxFor(t)
	holder, waiting := connect(t, w.dsn("postgres")), connect(t, w.dsn("postgres"))
	tx, err := holder.Begin(ctx)
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan error, 1)
	go func() {
		_, err := waiting.Exec(ctx, "UPDATE r SET id = 1", pgx.QueryExecModeSimpleProtocol)
		done <- err
	}()
	eventually(t, "it waits", func() bool { return w.pool().Waiting == 1 })
	const wait = 100 * time.Millisecond
	time.Sleep(wait) // what is measured
	if err := tx.Rollback(ctx); err != nil {
		t.Fatal(err)
	}
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	if s := w.shape("update r set id = ?"); s.Total < wait || s.Waited() < wait {
		t.Errorf("it took %v, of which it waited %v; want at least %v", s.Total, s.Waited(), wait)
	}
	if p := w.pool(); time.Duration(p.Wait.Max()) < wait {
		t.Errorf("longest wait %v", time.Duration(p.Wait.Max()))
	}
}

// TestShapesSayWhereTheyComeFrom: by the hints file and line, the last one counts.
func TestShapesSayWhereTheyComeFrom(t *testing.T) {
	t.Parallel()
	w := start(t, database(t, "CREATE TABLE r (id int PRIMARY KEY)"), nil)
	c := w.wire()
	for _, hint := range []string{"", "/* file:first.go line:1 */ ", "/*file='orders.go',line='42'*/ ", ""} {
		c.send(query(hint + "SELECT id FROM r WHERE id = 1"))
		if got := render(c.ready()); got != "[id] SELECT_0 I" {
			t.Errorf("with %s: %s", hint, got)
		}
	}
	c.send(run("/* file:insert.go */ INSERT INTO r VALUES ($1)", "7"))
	c.ready()
	for text, want := range map[string]string{"select id from r where id = ?": "orders.go:42", "insert into r values (?)": "insert.go"} {
		if got := w.shape(text).Site; got != want {
			t.Errorf("%s is from %q, want %q", text, got, want)
		}
	}
}
