package postgres_test

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	gosync "sync"
	"testing"

	"github.com/weirdb/weir/internal/proxy/cache"
	"github.com/weirdb/weir/internal/proxy/postgres"
	"github.com/weirdb/weir/internal/proxy/proxytest"
	"github.com/weirdb/weir/internal/proxy/session"
	"github.com/weirdb/weir/internal/testkit"
	"github.com/weirdb/weir/internal/wire/pgwire"
)

// cacheSetup makes a table that tests change on a direct connection: an answer with the old
// value came from the cache.
var cacheSetup = []string{
	"CREATE TABLE kept (k int PRIMARY KEY, v text, at timestamptz DEFAULT '2026-02-03 04:05:06+00')", "INSERT INTO kept SELECT g, 'old' FROM generate_series(1, 20) g",
	"GRANT ALL ON ALL TABLES IN SCHEMA public TO public",
}

// cached returns the cache's counters of w's database.
func (w *weir) cached() (s cache.Stats) {
	w.tb.Helper()
	for _, c := range w.snapshot().Caches {
		if c.Database == w.db {
			s = c
		}
	}
	return s
}

// warm waits until weir knows the database, so that reads are shared.
func (w *weir) warm() {
	w.tb.Helper()
	c := w.wire()
	defer c.close()
	before := w.cached()
	eventually(w.tb, "answers are kept", func() bool {
		c.ask("/* ttl:3600 */ SELECT 'warm'")
		return w.cached().Hits > before.Hits
	})
}

// changes sets all values on a direct connection.
func (w *weir) changes(to string) {
	w.tb.Helper()
	if w.past == nil {
		w.past = sqlOver(w.tb, server(w.tb).DSN(w.db))
	}
	w.past("UPDATE kept SET v = '" + to + "'")
}

// startCache is start with the table.
func startCache(t *testing.T, change func(*postgres.Config)) *weir {
	t.Helper()
	w := start(t, database(t, cacheSetup...), change)
	w.past = sqlOver(t, server(t).DSN(w.db))
	w.warm()
	return w
}

// raw returns an answer byte for byte.
func raw(ms []message) string {
	var b bytes.Buffer
	for _, m := range ms {
		fmt.Fprintf(&b, "%c%x ", m.typ, m.body)
	}
	return b.String()
}

// binding returns a Bind message with formats.
func binding(stmt string, args pgwire.BindArgs) []byte {
	return pgwire.AppendBind(nil, "", stmt, &args)
}

func all(parts ...[]byte) []byte { return slices.Concat(parts...) }

// An answer from the cache is the server's, byte for byte, however the statement is sent, and is
// not used for another statement.
func TestCachedAnswerIsTheServers(t *testing.T) {
	t.Parallel()
	w := startCache(t, nil)
	four := binary.BigEndian.AppendUint32(nil, 4)
	const sql = "/* ttl:3600 */ SELECT k, v, at FROM kept WHERE k = $1"
	exec := all(describe('P', ""), execute("", 0), sync())
	// Once the types of a statement become known, answers are kept under another key. They are now.
	first := w.wire()
	first.send(parse("s", sql), describe('S', "s"), parse("t", sql, 23), describe('S', "t"), sync())
	if e := errorIn(first.ready()); e != nil {
		t.Fatal(e)
	}
	for name, c := range map[string]struct{ before, one, other []byte }{
		"text":                    {nil, query("/* ttl:3600 */ SELECT k, v FROM kept WHERE k = 4"), query("/* ttl:3600 */ SELECT k, v FROM kept WHERE k = 5")},
		"text, no rows":           {nil, query("/* ttl:3600 */ SELECT v FROM kept WHERE v = 'old' AND k < 2"), query("/* ttl:3600 */ SELECT v FROM kept WHERE v = 'old' AND k < 3")},
		"values":                  {nil, query("/* ttl:3600 */ VALUES ((SELECT v FROM kept WHERE k = 4))"), query("/* ttl:3600 */ TABLE kept")},
		"unnamed":                 {nil, run(sql, "4"), run(sql, "5")},
		"unnamed, not described":  {nil, all(parse("", sql), bind("", "", "4"), execute("", 0), sync()), all(parse("", sql), bind("", "", "5"), execute("", 0), sync())},
		"prepared":                {all(parse("s", sql), describe('S', "s"), sync()), all(bind("", "s", "6"), exec), all(bind("", "s", "7"), exec)},
		"prepared, not described": {all(parse("s", sql), sync()), all(bind("", "s", "6"), execute("", 0), sync()), all(bind("", "s", "7"), execute("", 0), sync())},
		"binary results": {
			all(parse("s", sql), sync()), all(binding("s", pgwire.BindArgs{Values: [][]byte{[]byte("8")}, ResultFormats: inBinary}), exec),
			all(binding("s", pgwire.BindArgs{Values: [][]byte{[]byte("8")}}), exec),
		},
		"binary parameter": {
			all(parse("s", sql, 23), sync()), all(binding("s", pgwire.BindArgs{Formats: []int16{1}, Values: [][]byte{four}}), exec),
			all(binding("s", pgwire.BindArgs{Formats: []int16{1}, Values: [][]byte{binary.BigEndian.AppendUint32(nil, 9)}}), exec),
		},
		"NULL": {
			all(parse("s", "/* ttl:3600 */ SELECT v, $1::text IS NULL FROM kept WHERE k = 1"), sync()), all(binding("s", pgwire.BindArgs{Values: [][]byte{nil}}), exec),
			all(binding("s", pgwire.BindArgs{Values: [][]byte{{}}}), exec),
		},
		"SQLCommenter": {
			nil, query("SELECT k, v FROM kept WHERE k = 10 /*ttl='3600',traceparent='00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01'*/"),
			query("SELECT k, v FROM kept WHERE k = 11 /*ttl='3600'*/"),
		},
	} {
		t.Run(name, func(t *testing.T) {
			w.changes("old")
			answer := func(c *wire, p []byte) string {
				c.send(p)
				return raw(c.ready())
			}
			direct, a, b := dialWire(t, server(t).Addr(), w.db), w.wire(), w.wire()
			for _, s := range []*wire{direct, a, b} {
				if c.before != nil {
					answer(s, c.before)
				}
			}
			want, wantOther := answer(direct, c.one), answer(direct, c.other)
			if got := answer(a, c.one); got != want {
				t.Fatalf("fetched\n%s, directly\n%s", got, want)
			}
			before := w.cached()
			if got := answer(b, c.other); got != wantOther {
				t.Errorf("another statement\n%s, directly\n%s", got, wantOther)
			}
			w.changes("new")
			for range 2 {
				if got := answer(b, c.one); got != want {
					t.Errorf("cached\n%s, at first\n%s", got, want)
				}
			}
			if got := w.cached(); got.Hits != before.Hits+2 || got.Misses != before.Misses+1 {
				t.Errorf("from %+v to %+v: want 2 hits and a miss", before, got)
			}
			// The session goes on as after any statement.
			b.want("BEGIN", "BEGIN T")
			b.want("ROLLBACK", "ROLLBACK I")
			if c.before != nil {
				b.send(bind("", "s", "1"), execute("", 0), sync())
				if e := errorIn(b.ready()); e != nil && name != "binary parameter" {
					t.Errorf("the statement afterwards: %v", e)
				}
			}
		})
	}
}

var inBinary = []byte{0, 1, 0, 1} // how many formats, and the one

// The cache distinguishes clients by everything else that an answer depends on.
func TestCacheKnowsWhoAsks(t *testing.T) {
	t.Parallel()
	setup := append(slices.Clone(cacheSetup),
		"CREATE SCHEMA other; CREATE TABLE other.kept AS SELECT k, 'elsewhere' AS v, at FROM public.kept; GRANT ALL ON SCHEMA other TO public; GRANT ALL ON other.kept TO public",
		"CREATE TABLE owned (who text, v text); INSERT INTO owned SELECT r, 'of ' || r FROM unnest(ARRAY['weir_rls', 'weir_other', 'tenant 7']) r; GRANT ALL ON owned TO public",
		"ALTER TABLE owned ENABLE ROW LEVEL SECURITY; CREATE POLICY p ON owned USING (who = current_user OR who = current_setting('app.tenant', true))",
		"CREATE TABLE texts (v text); INSERT INTO texts VALUES (U&'\\00fc'); GRANT ALL ON texts TO public")
	w := start(t, database(t, setup...), nil)
	other := database(t, cacheSetup...)
	w.warm()
	sqlOn(t, server(t).DSN(other), "UPDATE kept SET v = 'of the other database'")
	const sql = "/* ttl:3600 */ SELECT v, at FROM kept WHERE k = 1"
	first := w.wire()
	first.want(sql, "[v,at] (old,2026-02-03 09:35:06+05:30) SELECT_1 I")
	w.changes("new")
	for set, want := range map[string]string{
		"SET search_path = other":                       "[v,at] (elsewhere,2026-02-03 09:35:06+05:30) SELECT_1 I",
		"SET timezone = 'Asia/Tokyo'":                   "[v,at] (new,2026-02-03 13:05:06+09) SELECT_1 I",
		"SET datestyle = 'German'":                      "[v,at] (new,03.02.2026 09:35:06 IST) SELECT_1 I",
		"SET app.anything = 'x'":                        "[v,at] (new,2026-02-03 09:35:06+05:30) SELECT_1 I",
		"SET application_name = 'another'":              "[v,at] (old,2026-02-03 09:35:06+05:30) SELECT_1 I",
		"SELECT 1":                                      "[v,at] (old,2026-02-03 09:35:06+05:30) SELECT_1 I",
		"SET LOCAL search_path = other":                 "[v,at] (old,2026-02-03 09:35:06+05:30) SELECT_1 I",
		"CREATE TEMP TABLE kept (v int, at int, k int)": "[v,at] SELECT_0 I",
	} {
		c := w.wire()
		c.ask(set)
		if got := c.ask(sql); !strings.HasSuffix(got, want) { // behind a notice, where it is not cached
			t.Errorf("after %s: %s, want %s", set, got, want)
		}
		c.close()
	}
	dialWire(t, w.Addr().String(), w.db, pgwire.Param{Name: "options", Value: "-c search_path=other"}).want(sql, "[v,at] (elsewhere,2026-02-03 09:35:06+05:30) SELECT_1 I")
	of := dialWire(t, w.Addr().String(), other)
	if got := of.ask(sql); !strings.HasSuffix(got, "[v,at] (of the other database,2026-02-03 09:35:06+05:30) SELECT_1 I") { // behind a notice, before weir knows that database
		t.Errorf("of another database: %s", got)
	}
	dialWireAs(t, w.Addr().String(), w.db, "weir_rls").want(sql, "[v,at] (new,2026-02-03 09:35:06+05:30) SELECT_1 I")
	for range 2 {
		const owned = "/* ttl:3600 */ SELECT v FROM owned"
		dialWireAs(t, w.Addr().String(), w.db, "weir_rls").want(owned, "[v] (of weir_rls) SELECT_1 I")
		dialWireAs(t, w.Addr().String(), w.db, "weir_other").want(owned, "[v] (of weir_other) SELECT_1 I")
		tenant := dialWireAs(t, w.Addr().String(), w.db, "weir_other")
		tenant.ask("SET app.tenant = 'tenant 7'")
		tenant.want(owned, "[v] (of weir_other) (of tenant 7) SELECT_2 I")
		tenant.ask("BEGIN; SET LOCAL app.tenant = 'weir_rls'")
		if got := tenant.ask(owned); !strings.HasSuffix(got, "[v] (of weir_rls) (of weir_other) SELECT_2 T") { // behind a notice
			t.Errorf("in a transaction: %s", got)
		}
		for enc, want := range map[string]string{"UTF8": "\xc3\xbc", "LATIN1": "\xfc"} {
			c := w.wire(pgwire.Param{Name: "client_encoding", Value: enc})
			c.want("/* ttl:3600 */ SELECT v FROM texts", "[v] ("+want+") SELECT_1 I")
		}
	}
}

// A statement whose answer must not be cached runs as if it had no hint; the reason is counted
// and reported.
func TestCacheLeavesAlone(t *testing.T) {
	t.Parallel()
	w := startCache(t, func(c *postgres.Config) { c.CacheMaxAnswer = 10000 })
	sqlOn(t, server(t).DSN(w.db), "CREATE FUNCTION noisy() RETURNS int STABLE LANGUAGE plpgsql AS $$ BEGIN RAISE NOTICE 'hello'; RETURN 1; END $$")
	skipped := func(why string) uint64 { return w.cached().Skipped[why] }
	for name, c := range map[string]struct {
		why    string
		before string
		sql    []byte
	}{
		"in a transaction":     {"transaction", "BEGIN", query("/* ttl:3600 */ SELECT v FROM kept WHERE k = 1")},
		"pinned":               {"session", "CREATE TEMP TABLE mine (x int)", query("/* ttl:3600 */ SELECT v FROM kept WHERE k = 1")},
		"prepared, pinned":     {"session", "CREATE TEMP TABLE mine (x int)", run("/* ttl:3600 */ SELECT v FROM kept WHERE k = $1", "1")},
		"a write":              {"statement", "", query("/* ttl:3600 */ UPDATE kept SET k = k WHERE k = 20 RETURNING v")},
		"row locks":            {"statement", "", query("/* ttl:3600 */ SELECT v FROM kept WHERE k = 1 FOR UPDATE")},
		"several":              {"statement", "", query("/* ttl:3600 */ SELECT 1; SELECT v FROM kept WHERE k = 1")},
		"a setting":            {"statement", "", query("/* ttl:3600 */ SELECT v, current_setting('work_mem') FROM kept WHERE k = 1")},
		"random":               {"volatile", "", query("/* ttl:3600 */ SELECT v, random() < 2 FROM kept WHERE k = 1")},
		"prepared, random":     {"volatile", "", run("/* ttl:3600 */ SELECT v, pg_catalog.\"random\"() < 2 FROM kept WHERE k = $1", "1")},
		"a notification":       {"statement", "", query("/* ttl:3600 */ SELECT v, pg_notify('x', 'y') FROM kept WHERE k = 1")},
		"a sample":             {"volatile", "", query("/* ttl:3600 */ SELECT v FROM kept TABLESAMPLE system (100) WHERE k = 1")},
		"a row limit":          {"messages", "", all(parse("", "/* ttl:3600 */ SELECT v FROM kept ORDER BY k"), bind("", ""), execute("", 1), sync())},
		"a named portal":       {"messages", "", all(parse("", "/* ttl:3600 */ SELECT v FROM kept WHERE k = 1"), bind("p", ""), execute("p", 0), sync())},
		"two in one":           {"messages", "", all(parse("", "/* ttl:3600 */ SELECT v FROM kept WHERE k = 1"), bind("", ""), execute("", 0), bind("", ""), execute("", 0), sync())},
		"a notice":             {"answer", "", query("/* ttl:3600 */ SELECT v, noisy() FROM kept WHERE k = 1")},
		"a long answer":        {"large", "", query("/* ttl:3600 */ SELECT v, repeat('x', 100) FROM kept, generate_series(1, 200)")},
		"a long row":           {"large", "", query("/* ttl:3600 */ SELECT v, repeat('x', 300000) FROM kept WHERE k = 1")},
		"a long row, prepared": {"large", "", run("/* ttl:3600 */ SELECT v, repeat('x', $1) FROM kept WHERE k = 1", "300000")},
		"a statement as long":  {"key", "", query("/* ttl:3600 */ SELECT v FROM kept WHERE k = 1 AND v <> '" + strings.Repeat("x", 70000) + "'")},
	} {
		t.Run(name, func(t *testing.T) {
			w := w.within(t)
			before := skipped(c.why)
			mine, direct := w.wire(), dialWire(t, server(t).Addr(), w.db)
			for _, s := range []*wire{mine, direct} {
				if c.before != "" {
					s.ask(c.before)
				}
			}
			told := 0
			for _, value := range []string{"one", "two", "three"} {
				w.changes(value)
				mine.send(c.sql)
				got := slices.DeleteFunc(mine.ready(), func(m message) bool {
					hint := m.typ == pgwire.ServerNotice && bytes.Contains(m.body, []byte("weir ignores a hint: ttl: the answer is not cached"))
					if hint {
						told++
					}
					return hint
				})
				direct.send(c.sql)
				if want := direct.ready(); raw(got) != raw(want) {
					t.Errorf("with %s: %.300s, directly %.300s", value, render(got), render(want))
				}
			}
			if told != 1 {
				t.Errorf("told %d times, want once", told)
			}
			if n := skipped(c.why) - before; n != 3 {
				t.Errorf("%d counted as %s, want 3: %+v", n, c.why, w.cached())
			}
		})
	}
	for _, mode := range []session.Mode{session.ModeSession, session.ModeTransaction} {
		w := start(t, w.db, func(c *postgres.Config) { c.Mode = mode })
		c := w.wire()
		for _, value := range []string{"one", "two"} {
			w.changes(value)
			c.send(query("/* ttl:3600 */ SELECT v FROM kept WHERE k = 1"))
			if got := render(c.ready()); !strings.Contains(got, "("+value+")") {
				t.Errorf("mode %s: %s, want %s", mode, got, value)
			}
		}
	}
}

// A client sees its own writes, however they were made.
func TestCacheShowsOwnWrites(t *testing.T) {
	t.Parallel()
	w := startCache(t, nil)
	const read = "/* ttl:3600 */ SELECT v FROM kept WHERE k = 1"
	say := func(v string) string { return "[v] (" + v + ") SELECT_1 I" }
	steps := map[string]func(c *wire, v string){
		"text":     func(c *wire, v string) { c.ask("UPDATE kept SET v = '" + v + "' WHERE k = 1") },
		"grouped":  func(c *wire, v string) { c.ask("/* batch */ UPDATE kept SET v = '" + v + "' WHERE k = 1") },
		"prepared": func(c *wire, v string) { c.send(run("UPDATE kept SET v = $1 WHERE k = 1", v)); c.ready() },
		"transaction": func(c *wire, v string) {
			c.ask("BEGIN")
			c.ask("UPDATE kept SET v = '" + v + "' WHERE k = 1")
			w.wire().ask(read) // does not see the write, and is cached
			c.ask("COMMIT")
		},
		"function": func(c *wire, v string) { c.ask("DO $$ BEGIN UPDATE kept SET v = '" + v + "' WHERE k = 1; END $$") },
		"pinned": func(c *wire, v string) {
			c.ask("CREATE TEMP TABLE IF NOT EXISTS mine (x int)")
			c.ask("UPDATE kept SET v = '" + v + "' WHERE k = 1")
			c.ask("DISCARD ALL")
		},
	}
	writer, other := w.wire(), w.wire()
	last := "old"
	for i := range 3 {
		for name, step := range steps {
			v := fmt.Sprint(name, i)
			other.want(read, say(last)) // it is kept
			step(writer, v)
			writer.want(read, say(v))
			writer.want(read, say(v))
			other.want(read, say(v)) // the writer's answer serves others, too
			last = v
		}
	}
}

func TestCachePurges(t *testing.T) {
	t.Parallel()
	w := startCache(t, nil)
	c := w.wire()
	const read, tagged = "/* ttl:3600 */ SELECT v FROM kept WHERE k = 1", "/* ttl:3600 tag:prices */ SELECT v FROM kept WHERE k = 2"
	for i, p := range []struct {
		name   string
		do     func()
		spares bool // answers without a tag stay
	}{
		{"PURGE CACHE", func() { proxytest.Command(t, w, "PURGE CACHE") }, false},
		{"PURGE CACHE with a tag", func() { proxytest.Command(t, w, "PURGE CACHE prices") }, true},
		{"PAUSE", func() { proxytest.Command(t, w, "PAUSE "+w.db); proxytest.Command(t, w, "RESUME "+w.db) }, false},
		{"RECONNECT", func() { proxytest.Command(t, w, "RECONNECT") }, false},
		{"a change of the schema", func() { w.wire().want("ALTER TABLE kept ADD COLUMN x int", "ALTER_TABLE I"); w.warm() }, false},
		{"a change in a transaction", func() {
			other := w.wire()
			other.want("BEGIN", "BEGIN T")
			other.want("ALTER TABLE kept ADD COLUMN y int", "ALTER_TABLE T")
			other.want("COMMIT", "COMMIT I")
			w.warm()
		}, false},
	} {
		from, to := fmt.Sprint("v", i), fmt.Sprint("w", i)
		proxytest.Command(t, w, "PURGE CACHE")
		w.changes(from)
		c.want(read, "[v] ("+from+") SELECT_1 I")
		c.want(tagged, "[v] ("+from+") SELECT_1 I")
		w.changes(to)
		c.want(read, "[v] ("+from+") SELECT_1 I")
		p.do()
		c.want(tagged, "[v] ("+to+") SELECT_1 I")
		if p.spares {
			to = from
		}
		if got := c.ask(read); got != "[v] ("+to+") SELECT_1 I" {
			t.Errorf("after %s: %s, want %s", p.name, got, to)
		}
	}
	for _, bad := range []string{"PURGE", "PURGE ALL", "PURGE CACHE a b"} {
		if _, err := w.Command(ctxFor(t), bad); err == nil {
			t.Errorf("%s is carried out", bad)
		}
	}
	cfg := postgres.Config{Postgres: pgwire.ConnectConfig{Address: server(t).Addr(), User: "postgres", TLSMode: pgwire.TLSDisable}}
	cfg.CacheSize, cfg.TrustLoopback = -1, true
	c.want(read, "[v] (w5) SELECT_1 I")
	w.changes("off")
	if err := w.Reload(cfg); err != nil {
		t.Fatal(err)
	}
	c.send(query(read))
	if got := render(c.ready()); !strings.Contains(got, "(off)") {
		t.Errorf("with the cache off: %s", got)
	}
}

// locked blocks all reads of the table until the returned function is called.
func (w *weir) locked() (unlock func()) {
	w.tb.Helper()
	c := dialWire(w.tb, server(w.tb).Addr(), w.db)
	c.want("BEGIN", "BEGIN T")
	c.want("LOCK TABLE kept IN ACCESS EXCLUSIVE MODE", "LOCK_TABLE T")
	return func() { c.want("ROLLBACK", "ROLLBACK I") }
}

// waiting returns how many sessions of the server wait for the lock.
func (w *weir) waiting() string {
	w.tb.Helper()
	c := dialWire(w.tb, server(w.tb).Addr(), w.db)
	defer c.close()
	return c.ask("SELECT count(*) AS n FROM pg_locks l JOIN pg_database d ON d.oid = l.database WHERE datname = current_database() AND NOT granted")
}

// A hundred clients that ask at once cost the server one statement.
func TestCacheFetchesOnceForAll(t *testing.T) {
	t.Parallel()
	for _, loops := range []int{1, 3} {
		w := startCache(t, func(c *postgres.Config) { c.Loops = loops })
		const clients = 100
		const read = "/* ttl:3600 */ SELECT v AS only_once FROM kept WHERE k = $1"
		conns := make([]*wire, clients)
		for i := range conns {
			conns[i] = w.wire()
			conns[i].send(parse("s", read), sync())
			conns[i].ready()
		}
		unlock := w.locked()
		before := w.cached()
		for _, c := range conns {
			c.send(bind("", "s", "3"), describe('P', ""), execute("", 0), sync())
		}
		eventually(t, "all wait for one", func() bool { return w.cached().Shared == before.Shared+clients-1 })
		unlock()
		for _, c := range conns {
			if got := render(c.ready()); got != "bound [only_once] (old) SELECT_1 I" {
				t.Errorf("got %s", got)
			}
		}
		if n := w.cached().Misses - before.Misses; n != 1 {
			t.Errorf("%d misses", n)
		}
		s := w.pool()
		if s.Cached < clients-1 {
			t.Errorf("%d statements are counted as cached", s.Cached)
		}
	}
}

// An answer older than its ttl is still used, while one statement fetches a new one.
func TestCacheRefreshes(t *testing.T) {
	t.Parallel()
	w := startCache(t, nil)
	for name, conn := range map[string]func(ttl string) func(c *wire) string{
		"text": func(ttl string) func(c *wire) string {
			return func(c *wire) string { return c.ask("/* ttl:" + ttl + " */ SELECT v FROM kept WHERE k = 1") }
		},
		"prepared": func(ttl string) func(c *wire) string {
			return func(c *wire) string {
				c.send(run("/* ttl:"+ttl+" */ SELECT v FROM kept WHERE k = $1", "1"))
				return strings.TrimPrefix(render(c.ready()), "parsed bound ")
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			w := w.within(t)
			fresh, brief := conn("3600"), conn("0.2")
			c := w.wire()
			n := 0
			eventually(t, "an old answer is given while it is fetched anew", func() bool {
				n++
				w.changes(fmt.Sprint("v", n))
				before := w.cached()
				got := brief(c)
				return w.cached().Stale > before.Stale && got != fmt.Sprintf("[v] (v%d) SELECT_1 I", n)
			})
			eventually(t, "it is new", func() bool { return fresh(c) == fmt.Sprintf("[v] (v%d) SELECT_1 I", n) })
		})
	}
	// A refresh that waits delays no client: the old answer is used meanwhile.
	c := w.wire()
	read := func() string { return c.ask("/* ttl:2 */ SELECT v AS held FROM kept WHERE k = 2") }
	var got string
	eventually(t, "an old answer is given while the refresh waits", func() bool {
		proxytest.Command(t, w, "PURGE CACHE")
		want := read()
		before := w.cached()
		unlock := w.locked()
		defer unlock()
		for w.cached().Misses == before.Misses {
			if w.cached().Stale > before.Stale+2 {
				return got == want
			}
			if w.cached().Stale == before.Stale || w.waiting() == "[n] (1) SELECT_1 I" {
				got = read()
			}
		}
		return false
	})
}

// The answers to statements that a client sends after the one that fetches are not part of the
// cached answer.
func TestCacheKeepsOneAnswer(t *testing.T) {
	t.Parallel()
	w := startCache(t, nil)
	for range 3 {
		w.wire().want("SELECT v FROM kept WHERE v = 'old' AND k = 1", "[v] (old) SELECT_1 I") // known as cheap from now on
	}
	for k := range 10 {
		c := w.wire()
		read := fmt.Sprintf("/* ttl:3600 */ SELECT v FROM kept WHERE v = 'old' AND k = %d", k+1)
		c.send(query(read), query("SELECT v FROM kept WHERE v = 'old' AND k = 100"), run("SELECT v FROM kept WHERE k = $1", "100"))
		for range 3 {
			c.ready()
		}
		w.wire().want(read, "[v] (old) SELECT_1 I")
	}
	if s := w.cached(); s.Hits < 10 {
		t.Errorf("%+v", s)
	}
}

// Random keys do not make the cache larger than its limit.
func TestCacheIsBounded(t *testing.T) {
	t.Parallel()
	w := startCache(t, func(c *postgres.Config) { c.CacheSize = 1 << 20 })
	c := w.wire()
	for i := range 3000 {
		c.send(run("/* ttl:3600 */ SELECT v, $1::int FROM kept", fmt.Sprint(i)))
		c.ready()
	}
	eventually(t, "the cache is within its size", func() bool { return w.cached().Bytes <= 1<<20 })
	s := w.cached()
	if s.Evicted == 0 || s.Entries < 100 || s.Misses < 3000 {
		t.Errorf("%+v", s)
	}
	table, err := w.Command(ctxFor(t), "SHOW CACHE")
	if err != nil || !slices.ContainsFunc(table.Table.Rows, func(r []string) bool { return r[0] == w.db && r[5] == fmt.Sprint(s.Misses) }) {
		t.Errorf("SHOW CACHE: %v, %v", table.Table, err)
	}
}

// Many clients read, write, purge, cancel and leave at once. No client reads an older value than
// it has written, or a value of another key.
func TestCacheStorm(t *testing.T) {
	t.Parallel()
	db := database(t, "CREATE TABLE n (k int PRIMARY KEY, v bigint NOT NULL)", "INSERT INTO n SELECT g, g * 1000000 FROM generate_series(0, 9) g")
	w := start(t, db, func(c *postgres.Config) { c.Loops, c.CacheSize = 2, 1<<20 })
	w.warm()
	const clients = 24
	steps := testkit.Rounds(80, 150)
	var group gosync.WaitGroup
	for i := range clients {
		group.Go(func() {
			rnd := rand.New(rand.NewPCG(uint64(i), 2))
			c := w.wire()
			var least [10]int
			for range steps {
				k := rnd.IntN(len(least))
				switch rnd.IntN(12) {
				case 0, 1:
					hint := []string{"", "/* batch */ "}[rnd.IntN(2)]
					var v int
					c.send(query(fmt.Sprintf("%sUPDATE n SET v = v + 1 WHERE k = %d RETURNING v", hint, k)))
					if _, err := fmt.Sscanf(render(c.ready()), "[v] (%d)", &v); err != nil {
						t.Errorf("a write: %v", err)
						return
					}
					least[k] = v
				case 2:
					if rnd.IntN(4) == 0 {
						if _, err := w.Command(ctxFor(t), "PURGE CACHE"); err != nil {
							t.Error(err)
						}
					}
				case 3:
					c.ask("BEGIN")
					c.ask("COMMIT")
				case 4:
					if rnd.IntN(5) == 0 { // it leaves in the middle
						c.send(query(fmt.Sprintf("/* ttl:0.005 */ SELECT v FROM n WHERE k = %d", k)))
						c.close()
						c, least = w.wire(), [10]int{} // another session: its writes are its own
					}
				default:
					ttl := []string{"0.001", "0.02", "60"}[rnd.IntN(3)]
					if rnd.IntN(2) == 0 {
						c.send(query(fmt.Sprintf("/* ttl:%s */ SELECT v FROM n WHERE k = %d", ttl, k)))
					} else {
						c.send(run("/* ttl:"+ttl+" */ SELECT v FROM n WHERE k = $1", fmt.Sprint(k)))
					}
					var v int
					got := strings.TrimPrefix(render(c.ready()), "parsed bound ")
					if _, err := fmt.Sscanf(got, "[v] (%d) SELECT_1 I", &v); err != nil || v/1000000 != k || v < least[k] {
						t.Errorf("key %d after %d was written: %s (%v)", k, least[k], got, err)
						return
					}
				}
			}
		})
	}
	group.Wait()
	s := w.cached()
	if s.Hits == 0 || s.Misses == 0 {
		t.Errorf("%+v", s)
	}
}
