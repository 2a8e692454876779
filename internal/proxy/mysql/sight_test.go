package mysql_test

import (
	"sync"
	"testing"
	"time"

	"github.com/weirdb/weir/internal/proxy/mysql"
	"github.com/weirdb/weir/internal/proxy/proxytest"
	"github.com/weirdb/weir/internal/proxy/sight"
)

// shape finds what w counts of the statements with the given text.
func (w *weir) shape(text string) sight.ShapeStatus {
	w.tb.Helper()
	return proxytest.Shape(w.tb, w, text)
}

// TestShapesCountWhatRan: each path, rows, errors and waits, by shape; and the
// histograms have each statement once.
func TestShapesCountWhatRan(t *testing.T) {
	t.Parallel()
	db := database(t, "CREATE TABLE r (id int PRIMARY KEY, v varchar(10))", "INSERT INTO r VALUES (1,'x'),(2,'x'),(3,'x'),(4,'x'),(5,'x')")
	w := start(t, db, func(c *mysql.Config) { c.PoolSize = 2 })
	ctx := ctxFor(t)
	c := w.connect(nil)
	run := func(times, rows int, sql string, args ...any) {
		t.Helper()
		for range times {
			got, err := c.QueryContext(ctx, sql, args...)
			if err != nil {
				t.Fatal(err)
			}
			n := 0
			for got.Next() {
				n++
			}
			if err := got.Err(); err != nil || n != rows {
				t.Fatalf("%s: %d rows, %v", sql, n, err)
			}
		}
	}
	// A statement that takes long, as it may on a busy machine, is not shared.
	eventually(t, "texts are shared", func() bool {
		run(20, 3, "SELECT v FROM r WHERE id <= 3")
		return w.shape("select v from r where id <= ?").Shared > 0
	})
	eventually(t, "prepared statements are shared", func() bool {
		run(20, 2, "SELECT v, id FROM r WHERE id <= ?", 2)
		return w.shape("select v, id from r where id <= ?").Shared > 0
	})
	for i := range 3 {
		if _, err := c.ExecContext(ctx, "UPDATE r SET v = concat('y', ?) WHERE id <= 4", i); err != nil {
			t.Fatal(err)
		}
	}
	for range 4 {
		if _, err := c.ExecContext(ctx, "INSERT INTO r VALUES (1, 'again')"); code(err) != 1062 {
			t.Fatal(err)
		}
	}
	if _, err := c.ExecContext(ctx, "SET @mine = 1"); err != nil {
		t.Fatal(err)
	}
	run(2, 1, "SELECT @mine")
	var group sync.WaitGroup
	for i := range 4 {
		member := w.connect(nil)
		group.Go(func() {
			for n := range 5 {
				if _, err := member.ExecContext(ctx, "/* batch */ INSERT INTO r (id, v) VALUES (?, 'g')", 1000*(i+1)+n); err != nil {
					t.Error(err)
				}
			}
		})
	}
	group.Wait()

	if s := w.shape("select v from r where id <= ?"); s.Runs < 20 || s.Rows < 60 || s.Errors != 0 || s.Pinned != 0 {
		t.Errorf("texts: %+v", s)
	}
	if s := w.shape("select v, id from r where id <= ?"); s.Rows != 2*s.Runs || s.Runs < 20 || s.Total < s.Max || s.Total < s.Server || s.Server <= 0 {
		t.Errorf("prepared: %+v", s)
	}
	if s := w.shape("update r set v = concat(?, ?) where id <= ?"); s.Runs != 3 || s.Rows != 12 || s.Shared != 0 {
		t.Errorf("updates: %+v", s)
	}
	if s := w.shape("select @mine"); s.Runs != 2 || s.Pinned != 2 || s.Rows != 2 {
		t.Errorf("pinned: %+v", s)
	}
	if s := w.shape("insert into r(id, v) values (?, ?)"); s.Runs != 20 || s.Rows != 20 || s.Grouped == 0 {
		t.Errorf("grouped: %+v", s)
	}
	if failed := proxytest.Failed(t, w); failed.Runs != 4 || failed.Errors != 4 || failed.Rows != 0 {
		t.Errorf("failed: %+v", failed)
	}
	var all, latency, wait, server uint64
	snap := w.snapshot()
	for i := range snap.Pools {
		p := &snap.Pools[i]
		all += p.Statements
		latency, wait, server = latency+p.Latency.Count(), wait+p.Wait.Count(), server+p.Server.Count()
	}
	if all < 50 || latency != all || wait != all || server != all {
		t.Errorf("%d statements; the histograms have %d latencies, %d waits and %d server times", all, latency, wait, server)
	}
	if n := snap.LoginTimes[db].Count(); n != 5 {
		t.Errorf("%d logins were timed, want 5", n)
	}
}

// TestLatencyCountsTheWaitForABackend: a statement that needs a backend of its own has
// waited for it, and not run.
func TestLatencyCountsTheWaitForABackend(t *testing.T) {
	t.Parallel()
	db := database(t, "CREATE TABLE r (id int)")
	w := start(t, db, func(c *mysql.Config) { c.PoolSize = 1 })
	ctx := ctxFor(t)
	holder, waiting := w.connect(nil), w.connect(nil)
	tx, err := holder.BeginTx(ctx, nil)
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan error, 1)
	go func() {
		_, err := waiting.ExecContext(ctx, "UPDATE r SET id = 1")
		done <- err
	}()
	eventually(t, "it waits", func() bool { return w.pool().Waiting == 1 })
	const wait = 100 * time.Millisecond
	time.Sleep(wait) // what is measured
	if err := tx.Rollback(); err != nil {
		t.Fatal(err)
	}
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	if s := w.shape("update r set id = ?"); s.Total < wait || s.Waited() < wait {
		t.Errorf("it took %v, of which it waited %v; want at least %v", s.Total, s.Waited(), wait)
	}
}

// TestShapesSayWhereTheyComeFrom: by the hints file and line, the last one counts.
func TestShapesSayWhereTheyComeFrom(t *testing.T) {
	t.Parallel()
	w := start(t, database(t, "CREATE TABLE r (id INT PRIMARY KEY)"), nil)
	c := w.dial(nil)
	for _, hint := range []string{"", "/* file:first.go line:1 */ ", "/*file='orders.go',line='42'*/ ", ""} {
		if got := c.one(hint + "SELECT COUNT(*) FROM r"); got != "0" {
			t.Errorf("with %s: %s", hint, got)
		}
	}
	if got := w.shape("select count(*) from r").Site; got != "orders.go:42" {
		t.Errorf("it is from %q", got)
	}
}
