package postgres_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/weirdb/weir/internal/lab"
	"github.com/weirdb/weir/internal/lab/labtest"
	"github.com/weirdb/weir/internal/proxy/postgres"
	"github.com/weirdb/weir/internal/proxy/session"
	"github.com/weirdb/weir/internal/wire/pgwire"
)

func TestTooManyClientsAreRefused(t *testing.T) {
	t.Parallel()
	w := start(t, database(t), func(c *postgres.Config) { c.MaxClients = 3 })
	all := []*wire{w.wire(), w.wire(), w.wire()}
	login := func() error {
		be, err := pgwire.Connect(t.Context(), pgwire.ConnectConfig{Address: w.Addr().String(), User: "postgres", Database: w.db, TLSMode: pgwire.TLSDisable})
		if err == nil {
			_ = be.Conn.Close()
		}
		return err
	}
	if err := login(); pgwire.CodeOf(err) != pgwire.CodeTooManyConnections {
		t.Errorf("the fourth client: %v", err)
	}
	all[0].want("SELECT 1 AS x", "[x] (1) SELECT_1 I")
	all[1].close()
	eventually(t, "there is room again", func() bool { return login() == nil })
}

func TestFullQueueRefusesInOrderAndSessionsGoOn(t *testing.T) {
	t.Parallel()
	w := start(t, database(t), func(c *postgres.Config) { c.PoolSize, c.MaxWaiting = 1, 1 })
	holder, queued, refused := w.wire(), w.wire(), w.wire()
	holder.want("BEGIN", "BEGIN T")
	queued.send(query("SELECT pg_sleep(0)"))
	eventually(t, "one waits", func() bool { return w.pool().Waiting == 1 })
	for _, c := range []struct {
		name    string
		message []byte
		want    string
	}{
		{"simple", query("SELECT pg_sleep(0)"), "ERROR:53300 I"},
		{"extended", run("SELECT pg_sleep($1::int)", "0"), "ERROR:53300 I"},
	} {
		for range 3 {
			refused.send(c.message)
			if got := render(refused.ready()); got != c.want {
				t.Errorf("%s beyond max-waiting: %s", c.name, got)
			}
		}
	}
	refused.send(query("SELECT pg_sleep(0)"), run("SELECT pg_sleep($1::int)", "0"), query("SELECT pg_sleep(0)"))
	for range 3 {
		if got := render(refused.ready()); got != "ERROR:53300 I" {
			t.Errorf("in a pipeline: %s", got)
		}
	}
	holder.want("COMMIT", "COMMIT I")
	if got := render(queued.ready()); got != "[pg_sleep] () SELECT_1 I" {
		t.Errorf("the one that waited: %s", got)
	}
	refused.want("SELECT 1 AS x", "[x] (1) SELECT_1 I")
}

func TestQueueTimeoutNamesThePoolAndLeavesTheSession(t *testing.T) {
	t.Parallel()
	w := start(t, database(t), func(c *postgres.Config) { c.PoolSize = 1; c.QueueTimeout = 150 * time.Millisecond })
	holder, queued := w.firstWire(), w.wire()
	holder.want("BEGIN", "BEGIN T")
	for _, message := range [][]byte{query("SELECT pg_sleep(0)"), run("SELECT pg_sleep($1::int)", "0"), query("/* batch */ DELETE FROM pg_class WHERE false")} {
		queued.send(message)
		got := queued.ready()
		e := errorIn(got)
		if e == nil || e.Code != pgwire.CodeTooManyConnections || !strings.Contains(e.Message, "postgres@"+w.db) || e.Hint == "" {
			t.Errorf("after the queue timeout: %s: %+v", render(got), e)
		}
	}
	holder.want("COMMIT", "COMMIT I")
	eventually(t, "the session goes on", func() bool {
		got := queued.ask("SELECT 1 AS x")
		if got != "[x] (1) SELECT_1 I" && got != "ERROR:53300 I" {
			t.Errorf("afterwards: %s", got)
		}
		return got != "ERROR:53300 I"
	})
}

// A client that waited for --queue-timeout while the server was away gets an error that says so.
func TestQueueTimeoutWhileTheServerIsAway(t *testing.T) {
	t.Parallel()
	s := labtest.Postgres(t, lab.PostgresConfig{})
	w := startFor(t, s, "postgres", func(c *postgres.Config) { c.QueueTimeout, c.ConnectPatience = 100*time.Millisecond, patience })
	c := w.firstWire()
	s.Kill()
	eventually(t, "the wait ends", func() bool {
		c.send(query("SELECT 1 AS x"))
		e := errorIn(c.ready())
		if e != nil && e.Code == pgwire.CodeTooManyConnections {
			t.Errorf("a client that waits for a server that is away: %v", e)
		}
		return e != nil && (e.Code == pgwire.CodeConnectionUnable || e.Code == pgwire.CodeTooManyConnections)
	})
}

func TestIdleTransactionIsEndedAndRolledBack(t *testing.T) {
	t.Parallel()
	w := start(t, database(t, "CREATE TABLE i (k int)"), func(c *postgres.Config) { c.IdleInTransactionTimeout = 150 * time.Millisecond })
	idle, other := w.wire(), w.wire()
	// At once: between two statements a busy machine could find it idle.
	idle.send(query("BEGIN"), query("INSERT INTO i VALUES (1)"))
	if got := render(idle.end()); got != "BEGIN T INSERT_0_1 T FATAL:25P03" {
		t.Errorf("the idle one was told %s", got)
	}
	other.want("SELECT count(*) AS n FROM i", "[n] (0) SELECT_1 I")
	eventually(t, "its backend is free", func() bool { return w.pool().Owned == 0 })
	other.send(query("BEGIN"), query("SELECT 1 AS x FROM pg_sleep(0.4)"), query("COMMIT")) // busy is not idle
	for _, want := range []string{"BEGIN T", "[x] (1) SELECT_1 T", "COMMIT I"} {
		if got := render(other.ready()); got != want {
			t.Errorf("the busy one was told %s, want %s", got, want)
		}
	}
}

// A client that does nothing is idle with a connection of its own, too, unless it listens.
func TestIdleClientsAreEnded(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name, sql, want string
		mode            session.Mode
	}{
		{"without a connection", "SELECT 1 AS x", "[x] (1) SELECT_1 I", session.ModeAuto},
		{"pinned", "CREATE TEMP TABLE i (k int)", "CREATE_TABLE I", session.ModeAuto},
		{"session mode", "SELECT 1 AS x", "[x] (1) SELECT_1 I", session.ModeSession},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			w := start(t, database(t), func(cfg *postgres.Config) {
				cfg.ClientIdleTimeout, cfg.Mode = 300*time.Millisecond, c.mode
			})
			var listens *wire
			eventually(t, "one listens", func() bool { // which a busy machine could find idle before
				listens = w.wire()
				listens.send(query("LISTEN a; SELECT pg_advisory_lock(1)")) // which keeps the connection
				got, _ := listens.until('Z')
				return render(got) == "LISTEN [pg_advisory_lock] () SELECT_1 I"
			})
			eventually(t, "an idle client ends", func() bool {
				idle := w.wire()
				idle.send(query(c.sql))
				got := render(idle.end())
				if got != c.want+" FATAL:57P05" && got != "FATAL:57P05" {
					t.Errorf("the idle one was told %s", got)
				}
				return got != "FATAL:57P05"
			})
			listens.want("SELECT pg_advisory_unlock(1) AS x", "[x] (t) SELECT_1 I")
		})
	}
}

func TestStopLetsTransactionsFinish(t *testing.T) {
	t.Parallel()
	w := start(t, database(t, "CREATE TABLE s (k int)"), func(c *postgres.Config) { c.DrainTimeout = patience })
	idle, busy := w.wire(), w.wire()
	idle.want("SELECT 1 AS x", "[x] (1) SELECT_1 I")
	busy.want("BEGIN", "BEGIN T")
	busy.want("INSERT INTO s VALUES (1)", "INSERT_0_1 T")
	stopped := make(chan error, 1)
	go func() { stopped <- w.stop() }()
	if got := render(idle.end()); got != "FATAL:57P01" {
		t.Errorf("the idle client was told %s", got)
	}
	busy.want("INSERT INTO s VALUES (2)", "INSERT_0_1 T")
	busy.send(query("COMMIT"))
	if got := render(busy.end()); got != "COMMIT I FATAL:57P01" {
		t.Errorf("the busy client was told %s", got)
	}
	if err := <-stopped; err != nil {
		t.Error(err)
	}
	dialWire(t, server(t).Addr(), w.db).want("SELECT count(*) AS n FROM s", "[n] (2) SELECT_1 I")
}

func TestHintsThatCannotBeUsedWarnAndTheStatementRuns(t *testing.T) {
	t.Parallel()
	w := start(t, database(t, "CREATE TABLE h (k int, v text)"), nil)
	warm := w.wire()
	warm.ask("/* batch */ INSERT INTO h VALUES (0, 'warm')")
	for _, hint := range []string{"batch:x", "batch:-1", "batch:1e9", "batch:99999999999999999999", "batch:", "line:-3 batch:auto", "ttl:soon", "ttl:5", "tag: batch", "file: batch", "batch line:x"} {
		for _, extended := range []bool{false, true} {
			c := w.wire()
			sql := "/* " + hint + " */ INSERT INTO h VALUES (1, 'x')"
			var got []message
			var n *pgwire.Error
			for i := 0; i < 10 && n == nil; i++ { // amid an answer, weir's own included, it says nothing
				if extended {
					c.send(run(sql))
				} else {
					c.send(query(sql))
				}
				got = c.ready()
				n = noticeIn(got)
			}
			if n == nil || n.SeverityRaw != "WARNING" || errorIn(got) != nil || !strings.HasSuffix(render(got), "INSERT_0_1 I") {
				t.Errorf("%s: %s", sql, render(got))
			}
			c.close()
		}
	}
	if w.snapshot().BadHints == 0 {
		t.Error("bad hints are not counted")
	}
	// In a transaction a hint changes nothing, inside a literal it is text.
	c := w.wire()
	c.want("BEGIN", "BEGIN T")
	c.want("/* batch */ INSERT INTO h VALUES (2, 'tx')", "INSERT_0_1 T")
	c.want("ROLLBACK", "ROLLBACK I")
	grouped := w.pool().Grouped
	c.want("INSERT INTO h VALUES (3, '/* batch */ kept /* ttl:5 */')", "INSERT_0_1 I")
	c.want("INSERT INTO h VALUES (4, $$/* batch:x */$$)", "INSERT_0_1 I")
	if n := w.pool().Grouped; n != grouped {
		t.Errorf("%d statements with a hint in a literal were grouped", n-grouped)
	}
	c.want("SELECT v FROM h WHERE k > 1 ORDER BY k", "[v] (/* batch */ kept /* ttl:5 */) (/* batch:x */) SELECT_2 I")
	// Any order of hints, either form.
	for i, hint := range []string{"/* batch:10 */", "/*batch='auto',route='x'*/", "/*route='x',batch='1'*/"} {
		before := w.pool().Grouped
		eventually(t, hint+" takes effect", func() bool { // once the server is known
			c.want(fmt.Sprintf("%s INSERT INTO h VALUES (%d, 'o')", hint, 10+i), "INSERT_0_1 I")
			return w.pool().Grouped > before
		})
	}
}

func TestOffHintAndOwnSynchronousCommitStayOutOfGroups(t *testing.T) {
	t.Parallel()
	w := start(t, database(t, "CREATE TABLE h (k int)", "CREATE TABLE r (k int)"), func(c *postgres.Config) { c.NoRowsLane = true; c.Batch = []session.BatchRule{{Batch: true}} })
	c := w.wire()
	eventually(t, "writes are grouped by rule", func() bool {
		c.want("INSERT INTO h VALUES (1)", "INSERT_0_1 I")
		return w.pool().Grouped > 0
	})
	for _, prepare := range []string{"", "SET synchronous_commit = on", "SET synchronous_commit = off"} {
		own := w.wire()
		sql := "INSERT INTO h VALUES (2)"
		if prepare == "" {
			sql = "/* batch:off */ " + sql
		} else {
			own.want(prepare, "SET I")
		}
		before := w.pool().Grouped
		own.want(sql, "INSERT_0_1 I")
		if n := w.pool().Grouped; n != before {
			t.Errorf("%q: %s was grouped", prepare, sql)
		}
	}
}

func TestWritesRunAsTheirOwnUserInTheirOwnDatabase(t *testing.T) {
	t.Parallel()
	setup := []string{"CREATE TABLE who (u text DEFAULT current_user, d text DEFAULT current_database(), z text DEFAULT current_setting('TimeZone'))", "GRANT ALL ON who TO weir_rls, weir_other"}
	one, two := twins(t, setup...)
	w := start(t, one, oneLane(nil))
	var all []*wire
	var want []string
	for _, db := range []string{one, two} {
		for _, user := range []string{"postgres", "weir_rls", "weir_other"} {
			for _, zone := range []string{"UTC", "Asia/Tokyo"} {
				all = append(all, dialWireAs(t, w.Addr().String(), db, user, pgwire.Param{Name: "TimeZone", Value: zone}))
				want = append(want, fmt.Sprintf("[u,d,z] (%s,%s,%s) INSERT_0_1 I", user, db, zone))
			}
		}
	}
	for range 30 {
		var messages [][]byte
		for range all {
			messages = append(messages, query("/* batch */ INSERT INTO who DEFAULT VALUES RETURNING u, d, z"))
		}
		for i, got := range together(all, messages) {
			if r := render(got); r != want[i] {
				t.Errorf("got %s, want %s", r, want[i])
			}
		}
	}
}
