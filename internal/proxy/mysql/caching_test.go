package mysql_test

import (
	"context"
	"encoding/binary"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"

	driver "github.com/go-sql-driver/mysql"

	"github.com/weirdb/weir/internal/lab/labtest"
	"github.com/weirdb/weir/internal/proxy/cache"
	"github.com/weirdb/weir/internal/proxy/mysql"
	"github.com/weirdb/weir/internal/proxy/proxytest"
	"github.com/weirdb/weir/internal/proxy/session"
	"github.com/weirdb/weir/internal/wire/mywire"
)

// These tests are not parallel: objects that other tests create make weir read the catalogue
// again, and until then nothing is cached.

// cacheSetup makes a table that tests change on a direct connection: an answer with the old
// value came from the cache.
var cacheSetup = []string{
	"CREATE TABLE kept (k INT PRIMARY KEY, v VARCHAR(50), at TIMESTAMP NOT NULL DEFAULT '2026-02-03 04:05:06')",
	"INSERT INTO kept (k, v) WITH RECURSIVE s (x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM s WHERE x < 20) SELECT x, 'old' FROM s",
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

// warm waits until weir knows the server, so that reads are shared.
func (w *weir) warm() {
	w.tb.Helper()
	c := w.dial(nil)
	before := w.cached()
	eventually(w.tb, "answers are kept", func() bool {
		c.one("/* ttl:3600 */ SELECT 'warm' FROM kept WHERE k = 1")
		return w.cached().Hits > before.Hits
	})
	_ = c.Close()
}

// changes sets all values on a direct connection.
func (w *weir) changes(to string) {
	w.tb.Helper()
	sqlOn(w.tb, server(w.tb), "UPDATE "+w.db+".kept SET v = '"+to+"'")
}

func startCache(t *testing.T, change func(*mysql.Config), more ...string) *weir {
	t.Helper()
	w := start(t, database(t, append(slices.Clone(cacheSetup), more...)...), change)
	w.warm()
	return w
}

// raw sends a message and returns the packets of its answer, headers included.
func (c *wire) raw(cmd byte, msg []byte) string {
	c.tb.Helper()
	c.send(msg)
	var a mywire.Answer
	a.Reset(cmd, c.Caps)
	var all []byte
	for {
		seq, payload := c.packet()
		p := append(mywire.AppendHeader(nil, len(payload), seq), payload...)
		all = append(all, p...)
		for len(p) > 0 {
			n, event, err := a.Feed(p)
			if err != nil {
				c.tb.Fatalf("read answer: %v", err)
			}
			if event == mywire.EventDone {
				return string(all)
			}
			p = p[n:]
		}
	}
}

func (c *wire) text(query string) string {
	c.tb.Helper()
	return c.raw(mywire.ComQuery, mywire.AppendCommand(nil, mywire.ComQuery, query))
}

// prepared prepares a statement, and returns a function that executes it with an int.
func (c *wire) prepared(query string) func(k uint32) string {
	c.tb.Helper()
	answer := c.raw(mywire.ComStmtPrepare, mywire.AppendPrepare(nil, query))
	m, err := mywire.ParsePrepared([]byte(answer)[mywire.HeaderLen:])
	if err != nil {
		c.tb.Fatal(err)
	}
	return func(k uint32) string {
		return c.raw(mywire.ComStmtExecute, mywire.AppendExecute(nil, 0, m.StmtID, 0, []byte{0}, []byte{3, 0}, binary.LittleEndian.AppendUint32(nil, k)))
	}
}

// An answer from the cache is the server's, packet for packet, in both protocols, and is not
// used for another statement.
func TestCachedAnswerIsTheServers(t *testing.T) {
	w := startCache(t, nil)
	const prepared = "/* ttl:3600 */ SELECT k, v, at FROM kept WHERE k = ?"
	for name, ask := range map[string]func(c *wire) func(other bool) string{
		"text": func(c *wire) func(bool) string {
			return func(other bool) string {
				return c.text(fmt.Sprintf("/* ttl:3600 */ SELECT k, v, at FROM kept WHERE k = %d", map[bool]int{false: 1, true: 2}[other]))
			}
		},
		"no rows": func(c *wire) func(bool) string {
			return func(other bool) string {
				return c.text(fmt.Sprintf("/* ttl:3600 */ SELECT k FROM kept WHERE v = 'old' AND k < %d", map[bool]int{false: 1, true: 3}[other]))
			}
		},
		"prepared": func(c *wire) func(bool) string {
			run := c.prepared(prepared)
			return func(other bool) string { return run(map[bool]uint32{false: 3, true: 4}[other]) }
		},
		"SQLCommenter": func(c *wire) func(bool) string {
			n := 0
			return func(other bool) string {
				n++
				return c.text(fmt.Sprintf("SELECT k, v FROM kept WHERE k = %d /*ttl='3600',controller='n%d'*/", map[bool]int{false: 5, true: 6}[other], n))
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			w := w.within(t)
			w.changes("old")
			a, b := w.dial(nil), w.dial(nil)
			one, two := ask(a), ask(b)
			before := w.cached()
			first, other := one(false), two(true)
			if first == other {
				t.Fatal("two statements have one answer")
			}
			w.changes("new")
			for range 2 {
				if got := two(false); got != first {
					t.Errorf("cached\n%q, at first\n%q", got, first)
				}
			}
			if got := two(true); got != other {
				t.Errorf("cached\n%q, at first\n%q", got, other)
			}
			if got := w.cached(); got.Hits != before.Hits+3 || got.Misses != before.Misses+2 {
				t.Errorf("from %+v to %+v: want 3 hits and 2 misses", before, got)
			}
			// The session goes on as after any statement.
			b.must("BEGIN")
			if got := b.one("SELECT v FROM kept WHERE k = 1"); got != "new" {
				t.Errorf("in a transaction: %s", got)
			}
			b.must("COMMIT")
			if rows, err := b.Query(ctxFor(t), "SHOW WARNINGS"); err != nil || len(rows) != 0 {
				t.Errorf("warnings: %v, %v", rows, err)
			}
			if err := b.Ping(ctxFor(t)); err != nil {
				t.Error(err)
			}
		})
	}
}

// The cache distinguishes clients by everything else that an answer depends on.
func TestCacheKnowsWhoAsks(t *testing.T) {
	other := database(t, append(slices.Clone(cacheSetup), "UPDATE kept SET v = 'elsewhere', at = at")...)
	db := database(t, append(slices.Clone(cacheSetup), "CREATE SQL SECURITY INVOKER VIEW whose AS SELECT CONCAT(v, ' ', SUBSTRING_INDEX(USER(), '@', 1)) AS v FROM kept")...)
	sqlOn(t, server(t), "GRANT SELECT ON "+db+".* TO "+bob+"@'%'")
	w := start(t, db, nil)
	w.warm()
	const read = "/* ttl:3600 */ SELECT v FROM kept WHERE k = 1"
	const at = "/* ttl:3600 */ SELECT at FROM kept WHERE k = 1"
	first := w.dial(nil)
	old := first.one(at)
	if got := first.one(read); got != "old" {
		t.Fatal(got)
	}
	w.changes("new")
	for _, c := range []struct{ set, sql, want string }{
		{"SELECT 1", read, "old"},
		{"USE " + other, read, "elsewhere"},
		{"SET sql_mode = ''", read, "new"},
		{"SET NAMES latin1", read, "new"},
		{"SET group_concat_max_len = 5000", read, "new"},
		{"SELECT 1", at, old},
		{"CREATE TEMPORARY TABLE kept (k INT, v INT)", "/* ttl:3600 */ SELECT COUNT(v) FROM kept", "0"},
		{"SET @x = 1", read, "new"}, // which pins
	} {
		conn := w.dial(nil)
		conn.must(c.set)
		if got := conn.one(c.sql); got != c.want {
			t.Errorf("after %s: %s, want %s", c.set, got, c.want)
		}
		_ = conn.Close()
	}
	zone := w.dial(nil)
	zone.must("SET time_zone = '+11:00'")
	if got := zone.one(at); got == old {
		t.Errorf("in another time zone: %s", got)
	}
	as := func(user, password string) *wire {
		return w.dial(func(c *mywire.ConnectConfig) { c.User, c.Password = user, password })
	}
	for range 2 {
		const whose = "/* ttl:3600 */ SELECT v FROM whose LIMIT 1"
		if got := first.one(whose); got != "new root" {
			t.Errorf("root reads %s", got)
		}
		if got := as(bob, bobPassword).one(whose); got != "new bob" {
			t.Errorf("bob reads %s", got)
		}
	}
}

// A statement whose answer must not be cached runs as if it had no hint; the reason is counted.
func TestCacheLeavesAlone(t *testing.T) {
	lines := new(proxytest.Lines)
	w := startCache(t, func(c *mysql.Config) { c.CacheMaxAnswer, c.Log = 10000, slog.New(slog.NewTextHandler(lines, nil)) })
	for name, c := range map[string]struct{ why, before, sql string }{
		"in a transaction":    {"transaction", "BEGIN", "SELECT v FROM kept WHERE k = 1"},
		"without autocommit":  {"transaction", "SET autocommit = 0", "SELECT v FROM kept WHERE k = 1"},
		"pinned":              {"session", "CREATE TEMPORARY TABLE mine (x INT)", "SELECT v FROM kept WHERE k = 1"},
		"a user variable":     {"statement", "", "SELECT CONCAT(v, COALESCE(@x, '')) FROM kept WHERE k = 1"},
		"row locks":           {"statement", "", "SELECT v FROM kept WHERE k = 1 FOR UPDATE"},
		"a setting":           {"statement", "", "SELECT CONCAT(v, @@sql_mode) FROM kept WHERE k = 1"},
		"random":              {"volatile", "", "SELECT IF(RAND() < 2, v, '') FROM kept WHERE k = 1"},
		"a warning":           {"answer", "", "SELECT CONCAT(v, CAST('x' AS SIGNED)) FROM kept WHERE k = 1"},
		"a long answer":       {"large", "", "SELECT GROUP_CONCAT(v, REPEAT('x', 800)) FROM kept"},
		"a statement as long": {"key", "", "SELECT v FROM kept WHERE k = 1 AND v <> '" + strings.Repeat("x", 70000) + "'"},
	} {
		t.Run(name, func(t *testing.T) {
			w := w.within(t)
			if name == "a long answer" {
				c.before = "SET group_concat_max_len = 1000000"
			}
			mine := w.dial(nil)
			if c.before != "" {
				mine.must(c.before)
			}
			before := w.cached().Skipped[c.why]
			for _, value := range []string{"one", "two", "three"} {
				w.changes(value)
				if strings.Contains(c.before, "autocommit") || c.before == "BEGIN" {
					mine.must("COMMIT")
					if c.before == "BEGIN" {
						mine.must("BEGIN")
					}
				}
				if got := mine.one("/* ttl:3600 */ " + c.sql); !strings.HasPrefix(got, value) {
					t.Errorf("%.30s, want %s", got, value)
				}
			}
			n := w.cached().Skipped[c.why] - before
			if c.why == "answer" { // from then on the session keeps a connection for its warnings
				n += 2
			}
			if n != 3 {
				t.Errorf("%d counted as %s: %+v", n, c.why, w.cached())
			}
		})
	}
	if len(lines.With("the answer is not cached: it is in a transaction")) == 0 {
		t.Error("nothing in the log")
	}
	session := start(t, w.db, func(c *mysql.Config) { c.Mode = session.ModeTransaction })
	c := session.dial(nil)
	for _, value := range []string{"four", "five"} {
		w.changes(value)
		if got := c.one("/* ttl:3600 */ SELECT v FROM kept WHERE k = 1"); got != value {
			t.Errorf("mode transaction: %s, want %s", got, value)
		}
	}
}

// A client sees its own writes, however they were made.
func TestCacheShowsOwnWrites(t *testing.T) {
	w := startCache(t, nil, "CREATE PROCEDURE put(x VARCHAR(50)) UPDATE kept SET v = x WHERE k = 1")
	const read = "/* ttl:3600 */ SELECT v FROM kept WHERE k = 1"
	steps := map[string]func(c *wire, v string){
		"text":    func(c *wire, v string) { c.must("UPDATE kept SET v = '" + v + "' WHERE k = 1") },
		"grouped": func(c *wire, v string) { c.must("/* batch */ UPDATE kept SET v = '" + v + "' WHERE k = 1") },
		"transaction": func(c *wire, v string) {
			c.must("BEGIN")
			c.must("UPDATE kept SET v = '" + v + "' WHERE k = 1")
			w.dial(nil).one(read) // does not see the write, and is cached
			c.must("COMMIT")
		},
		"procedure": func(c *wire, v string) { c.must("CALL put('" + v + "')") },
	}
	writer, other := w.dial(nil), w.dial(nil)
	last := "old"
	for i := range 3 {
		for name, step := range steps {
			v := fmt.Sprint(name, i)
			if got := other.one(read); got != last {
				t.Errorf("before %s another client reads %s, want %s", v, got, last)
			}
			step(writer, v)
			for _, c := range []*wire{writer, writer, other} {
				if got := c.one(read); got != v {
					t.Errorf("%s, want %s", got, v)
				}
			}
			last = v
		}
	}
}

func TestCachePurges(t *testing.T) {
	w := startCache(t, nil)
	c := w.dial(nil)
	const read, tagged = "/* ttl:3600 */ SELECT v FROM kept WHERE k = 1", "/* ttl:3600 tag:prices */ SELECT v FROM kept WHERE k = 2"
	for i, p := range []struct {
		name   string
		do     func()
		spares bool
	}{
		{"PURGE CACHE", func() { proxytest.Command(t, w, "PURGE CACHE") }, false},
		{"PURGE CACHE with a tag", func() { proxytest.Command(t, w, "PURGE CACHE prices") }, true},
		{"PAUSE", func() { proxytest.Command(t, w, "PAUSE "+w.db); proxytest.Command(t, w, "RESUME "+w.db) }, false},
		{"a change of the schema", func() { w.dial(nil).must("ALTER TABLE kept ADD COLUMN x INT"); w.warm() }, false},
		{"a change of the schema behind a temporary table", func() {
			w.speaker(nil).ask("CREATE TEMPORARY TABLE brief (a INT); ALTER TABLE kept ADD COLUMN y INT")
			w.warm()
		}, false},
	} {
		from, to := fmt.Sprint("v", i), fmt.Sprint("w", i)
		proxytest.Command(t, w, "PURGE CACHE")
		w.changes(from)
		for _, sql := range []string{read, tagged} {
			if got := c.one(sql); got != from {
				t.Errorf("%s, want %s", got, from)
			}
		}
		w.changes(to)
		if got := c.one(read); got != from {
			t.Errorf("%s, want what is kept, %s", got, from)
		}
		p.do()
		if got := c.one(tagged); got != to {
			t.Errorf("after %s: %s, want %s", p.name, got, to)
		}
		if p.spares {
			to = from
		}
		if got := c.one(read); got != to {
			t.Errorf("after %s: %s, want %s", p.name, got, to)
		}
	}
}

// A hundred clients that ask at once cost the server one statement. If it fails, each client
// that waited for it runs its own.
func TestCacheFetchesOnceForAll(t *testing.T) {
	w := startCache(t, func(c *mysql.Config) { c.Loops, c.PoolSize = 2, 40 })
	const read = "/* ttl:3600 */ SELECT v FROM kept WHERE k = 3"
	lock := func() (unlock func()) {
		conn, err := open(t, server(t).Addr(), w.db, nil).Conn(ctxFor(t))
		if err == nil {
			_, err = conn.ExecContext(ctxFor(t), "LOCK TABLES kept WRITE")
		}
		if err != nil {
			t.Fatal(err)
		}
		return func() {
			if _, err := conn.ExecContext(ctxFor(t), "UNLOCK TABLES"); err != nil {
				t.Error(err)
			}
			_ = conn.Close()
		}
	}
	conns := func(n int) (conns []*wire) {
		for range n {
			c := w.dial(nil)
			eventually(t, "its loop knows the server", func() bool {
				before := w.cached().Skipped["unread"]
				c.one("/* ttl:0.001 */ SELECT k FROM kept WHERE k = 1")
				return w.cached().Skipped["unread"] == before
			})
			conns = append(conns, c)
		}
		return conns
	}
	ask := func(conns []*wire) (answers []*running) {
		t.Helper()
		before := w.cached()
		for i, c := range conns {
			answers = append(answers, c.begin(read))
			if i == 0 {
				eventually(t, "one is fetching", func() bool { return w.cached().Misses == before.Misses+1 })
			}
		}
		eventually(t, "the others wait", func() bool { return w.cached().Shared == before.Shared+uint64(len(conns)-1) })
		return answers
	}
	many := conns(100)
	many[0].one(read)
	proxytest.Command(t, w, "PURGE CACHE")
	before := w.cached()
	unlock := lock()
	answers := ask(many)
	unlock()
	for _, r := range answers {
		if err := r.wait(); err != nil {
			t.Error(err)
		}
	}
	if n := w.cached().Misses - before.Misses; n != 1 {
		t.Errorf("%d misses", n)
	}
	for name, end := range map[string]func(leader *wire){
		"killed": func(leader *wire) { _ = w.dial(nil).mayKill("KILL QUERY " + leader.id()) },
		"left":   func(leader *wire) { _ = leader.Conn.Close() },
	} {
		proxytest.Command(t, w, "PURGE CACHE")
		conns := conns(5)
		unlock := lock()
		answers := ask(conns)
		w.dial(nil).must("KILL QUERY " + conns[3].id())
		if err := answers[3].wait(); code(err) != mywire.ErrQueryInterrupted {
			t.Errorf("one that waits and is killed: %v", err)
		}
		end(conns[0])
		if err := answers[0].wait(); err == nil {
			t.Errorf("the leader was %s and has an answer", name)
		}
		unlock()
		for _, i := range []int{1, 2, 4} {
			if err := answers[i].wait(); err != nil {
				t.Errorf("one that waited for what was %s: %v", name, err)
			}
		}
	}
	// An error is not kept.
	sqlOn(t, server(t), "CREATE TABLE "+w.db+".brief (v INT)")
	c := w.dial(nil)
	const brief = "/* ttl:3600 */ SELECT COUNT(v) FROM brief"
	c.one(brief)
	proxytest.Command(t, w, "PURGE CACHE")
	sqlOn(t, server(t), "DROP TABLE "+w.db+".brief")
	for range 3 {
		if _, err := c.Query(ctxFor(t), brief); code(err) != 1146 {
			t.Errorf("without the table: %v", err)
		}
	}
	sqlOn(t, server(t), "CREATE TABLE "+w.db+".brief (v INT)")
	if got := c.one(brief); got != "0" {
		t.Errorf("with the table: %s", got)
	}
}

func (c *wire) mayKill(sql string) error {
	_, err := c.Exec(ctxFor(c.tb), sql)
	return err
}

// An answer older than its ttl is still used, while one statement fetches a new one.
func TestCacheRefreshes(t *testing.T) {
	w := startCache(t, nil)
	c := w.dial(nil)
	run := c.prepared("/* ttl:0.2 */ SELECT v FROM kept WHERE k = ?")
	for name, brief := range map[string]func() string{
		"text":     func() string { return c.text("/* ttl:0.2 */ SELECT v FROM kept WHERE k = 1") },
		"prepared": func() string { return run(2) },
	} {
		n := 0
		value := func() string { return fmt.Sprint(name, n) }
		eventually(t, "an old answer is given while it is fetched anew", func() bool {
			n++
			w.changes(value())
			before := w.cached()
			got := brief()
			return w.cached().Stale > before.Stale && !strings.Contains(got, value())
		})
		eventually(t, "it is new", func() bool { return strings.Contains(brief(), value()) })
	}
}

// MySQL reports in each answer that its statement counter has changed. The answer is cached all
// the same, and equals the one on a direct connection, also after a refresh.
func TestCacheKeepsAnswersThatTellACount(t *testing.T) {
	t.Parallel()
	server := labtest.MySQL(t, serverConfig())
	db := databaseOn(t, server, cacheSetup...)
	w := startFor(t, server, db, nil)
	w.warm()
	const read = "/* ttl:0.2 */ SELECT v FROM kept WHERE k = 1"
	for name, caps := range map[string]mywire.Caps{
		"told of state": mywire.WantedCaps | mywire.CapSessionTrack,
		"told nothing":  mywire.WantedCaps &^ mywire.CapSessionTrack,
	} {
		wants := func(c *mywire.ConnectConfig) { c.Caps = caps }
		direct, c := speakerTo(t, server.Addr(), db, wants), w.dial(wants)
		for _, value := range []string{"first of ", "second of "} {
			sqlOn(t, server, "UPDATE "+db+".kept SET v = '"+value+name+"'")
			want := direct.text(read)
			stale := w.cached().Stale
			eventually(t, name+": the new answer is given, and then as an old one", func() bool {
				return c.text(read) == want && w.cached().Stale > stale+1
			})
		}
	}
}

// Many clients read, write, purge and leave at once. No client reads an older value than it has
// written, or a value of another key.
func TestCacheStorm(t *testing.T) {
	db := database(t, "CREATE TABLE kept (k INT PRIMARY KEY, v BIGINT NOT NULL)", "INSERT INTO kept WITH RECURSIVE s (x) AS (SELECT 0 UNION ALL SELECT x + 1 FROM s WHERE x < 9) SELECT x, x * 1000000 FROM s")
	w := start(t, db, func(c *mysql.Config) { c.Loops, c.CacheSize = 2, 1<<20 })
	w.warm()
	const clients, steps = 16, 120
	var group sync.WaitGroup
	for i := range clients {
		group.Go(func() {
			rnd := rand.New(rand.NewPCG(uint64(i), 2))
			handle := open(t, w.Addr().String(), db, func(c *driver.Config) { c.InterpolateParams = i%2 == 0 })
			ctx := ctxFor(t)
			conn, err := handle.Conn(ctx)
			if err != nil {
				t.Error(err)
				return
			}
			defer func() { _ = conn.Close() }()
			var least [10]int
			for range steps {
				k := rnd.IntN(len(least))
				switch rnd.IntN(10) {
				case 0, 1:
					hint := []string{"", "/* batch */ "}[rnd.IntN(2)]
					if _, err := conn.ExecContext(ctx, hint+"UPDATE kept SET v = v + 1 WHERE k = ?", k); err != nil {
						t.Errorf("a write: %v", err)
						return
					}
					least[k]++
				case 2:
					if rnd.IntN(4) == 0 {
						if _, err := w.Command(ctx, "PURGE CACHE"); err != nil {
							t.Error(err)
						}
					}
				case 3:
					if rnd.IntN(5) == 0 { // it leaves in the middle
						cut, cancel := context.WithCancel(ctx)
						go cancel()
						_ = conn.QueryRowContext(cut, "/* ttl:0.005 */ SELECT v FROM kept WHERE k = ?", k).Scan(new(int))
						cancel()
						_ = conn.Close()
						least = [10]int{} // another session: its writes are its own
						if conn, err = handle.Conn(ctx); err != nil {
							t.Error(err)
							return
						}
					}
				default:
					ttl := []string{"0.001", "0.02", "60"}[rnd.IntN(3)]
					var v int
					if err := conn.QueryRowContext(ctx, "/* ttl:"+ttl+" */ SELECT v FROM kept WHERE k = ?", k).Scan(&v); err != nil || v/1000000 != k || v%1000000 < least[k] {
						t.Errorf("key %d after %d writes: %d (%v)", k, least[k], v, err)
						return
					}
				}
			}
		})
	}
	group.Wait()
	if s := w.cached(); s.Hits == 0 || s.Misses == 0 {
		t.Errorf("%+v", s)
	}
	table, err := w.Command(ctxFor(t), "SHOW CACHE")
	if err != nil || !slices.ContainsFunc(table.Table.Rows, func(r []string) bool { return r[0] == db }) {
		t.Errorf("SHOW CACHE: %v, %v", table.Table, err)
	}
}

// A change of the schema whose outcome is unknown, because its client has left, purges the cache
// as one that succeeded.
func TestCachePurgesWhereTheOutcomeIsUnknown(t *testing.T) {
	w := startCache(t, nil)
	c, other := w.dial(nil), w.dial(nil)
	const read = "/* ttl:3600 */ SELECT v FROM kept WHERE k = 1"
	before := c.one(read)
	w.changes("new")
	if got := c.one(read); got != before {
		t.Fatalf("%s, want what is kept, %s", got, before)
	}
	lock, err := open(t, server(t).Addr(), w.db, nil).Conn(ctxFor(t))
	if err == nil {
		_, err = lock.ExecContext(ctxFor(t), "LOCK TABLES kept READ")
	}
	if err != nil {
		t.Fatal(err)
	}
	other.send(mywire.AppendQuery(nil, other.Caps, "ALTER TABLE kept ADD COLUMN late INT"))
	watch := direct(t, server(t), "")
	eventually(t, "the change waits for the lock", func() bool {
		return watch.one("SELECT COUNT(*) FROM information_schema.PROCESSLIST WHERE INFO LIKE 'ALTER TABLE kept%'") == "1"
	})
	_ = other.Conn.Close()
	if _, err := lock.ExecContext(ctxFor(t), "UNLOCK TABLES"); err != nil {
		t.Fatal(err)
	}
	_ = lock.Close()
	// Until the catalogue has been read again, reads do not use the cache.
	eventually(t, "what was kept is gone, and what is new is kept", func() bool {
		hits := w.cached().Hits
		return c.one(read) == "new" && w.cached().Hits > hits
	})
}
