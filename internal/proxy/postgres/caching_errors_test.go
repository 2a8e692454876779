package postgres_test

import (
	"testing"
	"time"

	"github.com/weirdb/weir/internal/proxy/core"
	"github.com/weirdb/weir/internal/proxy/postgres"
	"github.com/weirdb/weir/internal/proxy/proxytest"
	"github.com/weirdb/weir/internal/wire/pgwire"
)

// Only the client whose statement failed gets the error; those that waited for it run their own
// statements.
func TestCacheSharesNoErrors(t *testing.T) {
	t.Parallel()
	w := startCache(t, func(c *postgres.Config) { c.PoolSize = 20 })
	const read = "/* ttl:3600 */ SELECT v FROM kept WHERE k = 3"
	const answer = "[v] (old) SELECT_1 I"
	ask := func(n int) []*wire {
		t.Helper()
		unlock := w.waiting()
		_ = unlock
		before := w.cached()
		var conns []*wire
		for i := range n {
			c := w.wire()
			c.send(query(read))
			conns = append(conns, c)
			if i == 0 {
				eventually(t, "one is fetching", func() bool { return w.cached().Misses == before.Misses+1 })
			}
		}
		eventually(t, "the others wait", func() bool { return w.cached().Shared == before.Shared+uint64(n-1) })
		return conns
	}
	purge := func() { proxytest.Command(t, w, "PURGE CACHE") }

	t.Run("killed", func(t *testing.T) {
		unlock := w.locked()
		conns := ask(4)
		eventually(t, "the server has it", func() bool { return w.waiting() == "[n] (1) SELECT_1 I" })
		began := time.Now()
		eventually(t, "it may be what is meant", func() bool { return time.Since(began) > core.TerminatedAfter+core.TerminatedAfter/4 })
		sqlOn(t, server(t).DSN(w.db), "SELECT pg_terminate_backend(pid) FROM pg_locks JOIN pg_database d ON d.oid = database WHERE datname = current_database() AND NOT granted")
		got, err := conns[0].until(pgwire.ServerReady)
		if e := errorIn(got); e == nil || e.Code != pgwire.CodeAdminShutdown {
			t.Errorf("the leader, whose connection was ended: %+v, %v; want %s", e, err, pgwire.CodeAdminShutdown)
		}
		unlock()
		for _, c := range conns[1:] {
			if got := render(c.ready()); got != answer {
				t.Errorf("one that waited got %s", got)
			}
		}
	})
	purge()
	t.Run("cancelled", func(t *testing.T) {
		unlock := w.locked()
		conns := ask(4)
		cancel(t, w, conns[2])
		if got := render(conns[2].ready()); got != "ERROR:57014 I" {
			t.Errorf("one that waited and is cancelled got %s", got)
		}
		eventually(t, "the server has it", func() bool { return w.waiting() == "[n] (1) SELECT_1 I" })
		cancel(t, w, conns[0])
		if got := render(conns[0].ready()); got != "ERROR:57014 I" {
			t.Errorf("the leader got %s", got)
		}
		unlock()
		for _, c := range []*wire{conns[1], conns[3]} {
			if got := render(c.ready()); got != answer {
				t.Errorf("one that waited got %s", got)
			}
		}
		conns[2].want(read, answer)
		conns[0].want("SELECT 1 AS x", "[x] (1) SELECT_1 I")
	})
	purge()
	t.Run("left", func(t *testing.T) {
		unlock := w.locked()
		conns := ask(4)
		conns[0].close()
		conns[3].close()
		unlock()
		for _, c := range conns[1:3] {
			if got := render(c.ready()); got != answer {
				t.Errorf("one that waited got %s", got)
			}
		}
	})
	purge()
	t.Run("failed", func(t *testing.T) {
		sqlOn(t, server(t).DSN(w.db), "CREATE TABLE brief (v text)")
		c, d := w.wire(), w.wire()
		const read = "/* ttl:3600 */ SELECT v FROM brief"
		c.want(read, "[v] SELECT_0 I")
		proxytest.Command(t, w, "PURGE CACHE")
		sqlOn(t, server(t).DSN(w.db), "DROP TABLE brief")
		for range 3 {
			c.want(read, "ERROR:42P01 I")
			d.want(read, "ERROR:42P01 I")
		}
		sqlOn(t, server(t).DSN(w.db), "CREATE TABLE brief (v text); INSERT INTO brief VALUES ('there')")
		d.want(read, "[v] (there) SELECT_1 I")
	})
	t.Run("purged", func(t *testing.T) {
		unlock := w.locked()
		conns := ask(3)
		purge()
		late := w.wire()
		before := w.cached()
		late.send(query(read))
		eventually(t, "who asks after the purge fetches", func() bool { return w.cached().Misses == before.Misses+1 })
		unlock()
		for _, c := range append(conns, late) {
			if got := render(c.ready()); got != answer {
				t.Errorf("got %s", got)
			}
		}
	})
}
