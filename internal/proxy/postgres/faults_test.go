package postgres_test

import (
	"context"
	"fmt"
	"io"
	"net"
	"strconv"
	"strings"
	gosync "sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/weirdb/weir/internal/lab"
	"github.com/weirdb/weir/internal/lab/labtest"
	"github.com/weirdb/weir/internal/proxy/postgres"
	"github.com/weirdb/weir/internal/testkit"
	"github.com/weirdb/weir/internal/wire/pgwire"
)

// TestServerKilledMidGroupLosesNoAcknowledgedRow crashes the server under load. Afterwards every
// acknowledged row must exist, none may exist twice, and none that was not written. An
// unacknowledged row may exist only if its client saw an error.
func TestServerKilledMidGroupLosesNoAcknowledgedRow(t *testing.T) {
	t.Parallel()
	for _, lane := range lanes {
		t.Run(lane.kind, func(t *testing.T) {
			t.Parallel()
			server := trusting(t)
			sqlOn(t, server.DSN("postgres"), "CREATE TABLE acked (k bigint, who int)")
			w := startFor(t, server, "postgres", lane.change)
			sum := make(map[int64]bool) // rows that were acknowledged
			var mu gosync.Mutex
			unknown := make(map[int64]bool) // rows whose clients saw an error
			var next, total atomic.Int64
			for range testkit.Rounds(1, 12) {
				var wg gosync.WaitGroup
				const clients = 24
				goal := total.Load() + 400
				crash := make(chan struct{})
				for i := range clients {
					c := w.wire()
					wg.Go(func() {
						for {
							k := next.Add(1)
							c.send(run("/* batch */ INSERT INTO acked VALUES ($1, $2)", strconv.FormatInt(k, 10), strconv.Itoa(i)))
							got, err := c.until(pgwire.ServerReady)
							ok := err == nil && errorIn(got) == nil
							mu.Lock()
							if ok {
								sum[k] = true
							} else {
								unknown[k] = true
							}
							mu.Unlock()
							if !ok {
								c.close()
								return
							}
							if total.Add(1) == goal {
								close(crash)
							}
						}
					})
				}
				select {
				case <-crash:
				case <-time.After(patience):
					t.Fatal("no progress")
				}
				server.Kill()
				wg.Wait()
				ctx, cancel := context.WithTimeout(context.Background(), patience)
				if err := server.Restart(ctx); err != nil {
					t.Fatal(err)
				}
				cancel()
			}
			if w.gathered(lane.kind) == 0 {
				t.Errorf("no group of two and more came about in the %s lane", lane.kind)
			}
			direct := dialWire(t, server.Addr(), "postgres")
			direct.send(query("SELECT k, count(*) FROM acked GROUP BY k"))
			there := make(map[int64]bool)
			for _, m := range direct.ready() {
				if m.typ != pgwire.ServerDataRow {
					continue
				}
				values, err := pgwire.ParseDataRow(m.body, nil)
				if err != nil {
					t.Fatal(err)
				}
				k, err := strconv.ParseInt(string(values[0]), 10, 64)
				if err != nil {
					t.Fatal(err)
				}
				there[k] = true
				if n := string(values[1]); n != "1" {
					t.Errorf("row %d is there %s times", k, n)
				}
				if !sum[k] && !unknown[k] {
					t.Errorf("row %d was written by nobody", k)
				}
			}
			for k := range sum {
				if !there[k] {
					t.Errorf("acknowledged row %d is lost", k)
				}
			}
			t.Logf("%d rows acknowledged, %d there, %d of unknown outcome", len(sum), len(there), len(unknown))
		})
	}
}

// TestCutConnectionIsReportedNeverRetried cuts the connections to the server, which goes on and
// completes what it has received.
func TestCutConnectionIsReportedNeverRetried(t *testing.T) {
	t.Parallel()
	db := database(t, "CREATE TABLE c (k bigint)")
	relay := labtest.Relay(t, server(t).Addr())
	var next atomic.Int64
	for _, lane := range lanes {
		w := start(t, db, func(c *postgres.Config) {
			c.Postgres.Address = relay.Addr()
			c.ConnectPatience = 500 * time.Millisecond
			lane.change(c)
		})
		after := w.wire()
		for range 2 {
			var wg gosync.WaitGroup
			var acked, failed atomic.Int64
			var cutting atomic.Bool
			first := next.Load()
			for range 12 {
				c := w.wire()
				wg.Go(func() {
					for {
						c.send(run("/* batch */ INSERT INTO c VALUES ($1)", strconv.FormatInt(next.Add(1), 10)))
						got, err := c.until(pgwire.ServerReady)
						if e := errorIn(got); err == nil && e != nil && e.Code == pgwire.CodeConnectionUnable && !cutting.Load() {
							continue // on a busy machine the short timeout may not be enough
						}
						if err != nil || errorIn(got) != nil {
							failed.Add(1)
							if e := errorIn(got); e != nil && e.Code != pgwire.CodeConnectionFailure && e.Code != pgwire.CodeConnectionUnable {
								t.Errorf("the client was told %v", e)
							}
							c.close()
							return
						}
						acked.Add(1)
					}
				})
			}
			eventually(t, "writes are under way", func() bool { return acked.Load() > 50 })
			cutting.Store(true)
			for i := 0; ; i++ { // until all have met a cut
				relay.Cut()
				if failed.Load() >= 12 {
					break
				}
				if i > 5000 {
					t.Fatal("clients do not notice that the connection is gone")
				}
				time.Sleep(2 * time.Millisecond) // between cuts
			}
			wg.Wait()
			direct := dialWire(t, server(t).Addr(), db)
			got := direct.ask(fmt.Sprintf("SELECT count(DISTINCT k) = count(*) AS once, count(*) >= %d AS all FROM c WHERE k > %d", acked.Load(), first))
			if got != "[once,all] (t,t) SELECT_1 I" {
				t.Errorf("%s lane: after %d acknowledged: %s", lane.kind, acked.Load(), got)
			}
		}
		eventually(t, "it goes on", func() bool { return after.ask("SELECT 1 AS x") == "[x] (1) SELECT_1 I" })
	}
}

func TestFastStatementsAreAnsweredBesideSlowOnes(t *testing.T) {
	t.Parallel()
	db := database(t, "CREATE TABLE kv (k int PRIMARY KEY, v text)", "INSERT INTO kv SELECT g, 'v' || g FROM generate_series(1, 100) g", "CREATE TABLE locked (k int)")
	w := start(t, db, nil)
	fast := w.wire()
	for range 5 {
		fast.want("SELECT v FROM kv WHERE k = 7", "[v] (v7) SELECT_1 I")
		fast.want("SELECT k FROM locked", "[k] SELECT_0 I") // known as cheap and shared
	}
	blocker := dialWire(t, server(t).Addr(), db)
	blocker.want("BEGIN", "BEGIN T")
	blocker.want("LOCK TABLE locked", "LOCK_TABLE T")
	slow := []*wire{w.wire(), w.wire(), w.wire()}
	slow[0].send(query("SELECT pg_sleep(600)"))
	slow[1].send(query("SELECT k FROM locked"))
	slow[2].send(query("SELECT count(*) FROM generate_series(1, 1000000000)"))
	eventually(t, "the slow ones are under way", func() bool { return w.pool().Active == 3 })
	for range 300 {
		fast.want("SELECT v FROM kv WHERE k = 7", "[v] (v7) SELECT_1 I")
	}
	blocker.want("ROLLBACK", "ROLLBACK I")
	if got := render(slow[1].ready()); got != "[k] SELECT_0 I" {
		t.Errorf("the one behind the lock: %s", got)
	}
	for _, c := range []*wire{slow[0], slow[2]} {
		cancel(t, w, c)
		if got := render(c.ready()); !strings.Contains(got, "ERROR:57014") {
			t.Errorf("cancelled: %s", got)
		}
	}
}

// cancel sends a cancel request for a client of the proxy.
func cancel(tb testing.TB, w *weir, c *wire) {
	tb.Helper()
	ctx, done := context.WithTimeout(context.Background(), patience)
	defer done()
	if err := pgwire.Cancel(ctx, pgwire.ConnectConfig{Address: w.Addr().String(), TLSMode: pgwire.TLSDisable}, c.pid, c.secret); err != nil {
		tb.Errorf("cancel: %v", err)
	}
}

func TestClientThatVanishesLeavesOthersAndFreesItsBackend(t *testing.T) {
	t.Parallel()
	db := database(t, "CREATE TABLE c (k int, v text)")
	w := start(t, db, twoBackends)
	other := w.wire()
	for _, c := range []struct {
		name string
		send []byte
	}{
		{"mid-statement", query("SELECT pg_sleep(600)")},
		{"mid-COPY", append(query("COPY c FROM STDIN"), pgwire.AppendCopyData(nil, []byte("1\tx\n"))...)},
		{"mid-message", query("SELECT 'a long text that never ends'")[:20]},
		{"mid-unit", append(parse("", "INSERT INTO c VALUES (1, 'no')"), bind("", "")...)},
		{"mid-unit with Flush", append(append(parse("", "INSERT INTO c VALUES (1, 'no')"), bind("", "")...), append(execute("", 0), flush()...)...)},
		{"mid-transaction", query("BEGIN; INSERT INTO c VALUES (1, 'no')")},
		{"mid-big-result", query("SELECT repeat('x', 1000) FROM generate_series(1, 1000000)")},
		{"mid-COPY-out", query("COPY (SELECT repeat('x', 1000) FROM generate_series(1, 1000000)) TO STDOUT")},
	} {
		t.Run(c.name, func(t *testing.T) {
			mine := w.within(t).wire()
			mine.send(c.send)
			if c.name != "mid-message" && c.name != "mid-unit" {
				eventually(t, "it is under way", func() bool { p := w.pool(); return p.Owned > 0 || p.Active > 0 || p.Statements > 0 })
			}
			mine.close()
			other.want("SELECT 1 AS x", "[x] (1) SELECT_1 I")
			eventually(t, "its backend is free again", func() bool {
				p := w.pool()
				return p.Clients == 1 && p.Owned == 0 && p.Laned == 0 && p.Shared == 0
			})
			other.want("SELECT count(*) AS n FROM c", "[n] (0) SELECT_1 I")
		})
	}
}

func TestFailedCopyGivesItsBackendBack(t *testing.T) {
	t.Parallel()
	db := database(t, "CREATE TABLE c (k int)")
	w := start(t, db, nil)
	mine := w.wire()
	for _, end := range [][]byte{pgwire.AppendCopyDone(nil), pgwire.AppendCopyFail(nil, "no more")} {
		mine.send(query("COPY c FROM STDIN"), pgwire.AppendCopyData(nil, []byte("x\n")), end)
		if got := render(mine.ready()); !strings.Contains(got, "ERROR:") {
			t.Errorf("COPY: %s", got)
		}
		eventually(t, "the backend is free", func() bool { return w.pool().Owned == 0 })
	}
	mine.want("SELECT count(*) AS n FROM c", "[n] (0) SELECT_1 I")
}

func TestMalformedMessagesHarmOnlyTheirSender(t *testing.T) {
	t.Parallel()
	w := start(t, database(t), func(c *postgres.Config) { c.MaxMessage = 1 << 20 })
	other := w.wire()
	for _, c := range []struct {
		name string
		raw  []byte
		code string // "" if the server itself answers, and the session goes on
	}{
		{"unknown type", []byte{'!', 0, 0, 0, 4}, "08P01"},
		{"length too small", []byte{'Q', 0, 0, 0, 3}, "08P01"},
		{"length zero", []byte{'Q', 0, 0, 0, 0}, "08P01"},
		{"length negative", []byte{'Q', 0xff, 0xff, 0xff, 0xff}, "08P01"},
		{"over the limit", []byte{'Q', 0x7f, 0xff, 0xff, 0xff}, "08P01"},
		{"just over the limit", []byte{'P', 0x00, 0x10, 0x00, 0x01}, "08P01"},
		{"Query without end", pgwire.AppendMessage(nil, 'Q', []byte("SELECT 1")), "08P01"},
		{"Query with two ends", pgwire.AppendMessage(nil, 'Q', []byte("SELECT 1\x00\x00")), "08P01"},
		{"Parse without end", pgwire.AppendMessage(nil, 'P', []byte("name")), "08P01"},
		{"Parse cut short", pgwire.AppendMessage(nil, 'P', []byte("\x00SELECT 1\x00\x00")), "08P01"},
		{"Parse lying about types", pgwire.AppendMessage(nil, 'P', []byte("\x00SELECT 1\x00\x00\x09")), "08P01"},
		{"Bind without end", pgwire.AppendMessage(nil, 'B', []byte("portal")), "08P01"},
		{"Describe of nothing", pgwire.AppendMessage(nil, 'D', nil), "08P01"},
		{"Describe of the unknown", pgwire.AppendMessage(nil, 'D', []byte("X\x00")), "08P01"},
		{"Execute cut short", pgwire.AppendMessage(nil, 'E', []byte("\x00\x00")), "08P01"},
		{"Close cut short", pgwire.AppendMessage(nil, 'C', []byte("S")), "08P01"},
		{"a password out of turn", pgwire.AppendMessage(nil, 'p', []byte("secret\x00")), "08P01"},
		{"Bind that lies about values", append(append(parse("", "SELECT $1::int"), pgwire.AppendMessage(nil, 'B', []byte("\x00\x00\x00\x00\x00\x01\x00\x00\xff\xff1\x00\x00"))...), sync()...), ""},
		{"Bind that lies about formats", append(append(parse("", "SELECT 1"), pgwire.AppendMessage(nil, 'B', []byte("\x00\x00\x00\x07\x00\x01"))...), sync()...), ""},
		{"grouped Bind that lies", append(append(parse("", "/* batch */ INSERT INTO x VALUES ($1)"), pgwire.AppendMessage(nil, 'B', []byte("\x00\x00\x00\x00\x00\x09\x00\x00\x00\x011\x00\x00"))...), sync()...), ""},
		{"NUL in a text", append(append(parse("", "SELECT $1::text"), bind("", "", "a\x00b")...), sync()...), ""},
		{"not UTF-8", query("SELECT '\xff\xfe'"), ""},
		{"COPY messages without COPY", append(append(pgwire.AppendCopyData(nil, []byte("x")), pgwire.AppendCopyDone(nil)...), query("SELECT 1")...), ""},
		{"Function call of nothing", append(pgwire.AppendMessage(nil, 'F', []byte{0, 0, 0, 0, 0, 0, 0, 0, 0, 0}), sync()...), ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			mine := w.within(t).wire()
			mine.send(c.raw)
			if c.code == "" {
				mine.ready()
			} else {
				got := mine.end()
				if e := errorIn(got); e == nil || e.Code != c.code || !e.Fatal() {
					t.Errorf("answered %s", render(got))
				}
			}
			mine.close()
			other.want("SELECT 1 AS x", "[x] (1) SELECT_1 I")
			// The same in a transaction, where weir passes messages on.
			mine = w.within(t).wire()
			mine.want("BEGIN", "BEGIN T")
			mine.send(c.raw)
			if c.code == "" {
				mine.ready()
			} else {
				mine.end()
			}
			mine.close()
			other.want("SELECT 1 AS x", "[x] (1) SELECT_1 I")
		})
	}
	eventually(t, "nothing is left of them", func() bool { p := w.pool(); return p.Clients == 1 && p.Owned == 0 })
}

func TestBigMessagesPass(t *testing.T) {
	t.Parallel()
	w := start(t, database(t, "CREATE TABLE big (t text)"), nil)
	c := w.wire()
	long := strings.Repeat("x", 5<<20)
	c.want("SELECT length('"+long+"') AS n", "[n] (5242880) SELECT_1 I")
	c.send(run("INSERT INTO big VALUES ($1)", long))
	if got := render(c.ready()); got != "parsed bound nodata INSERT_0_1 I" {
		t.Errorf("insert: %s", got)
	}
	c.send(run("/* batch */ INSERT INTO big VALUES ($1)", long))
	if got := render(c.ready()); got != "parsed bound nodata INSERT_0_1 I" {
		t.Errorf("grouped insert: %s", got)
	}
	c.send(query("SELECT t FROM big"))
	got := c.ready()
	if len(got) != 5 || len(got[1].body) != 5<<20+6 {
		t.Errorf("select: %d messages", len(got))
	}
}

func TestServerThatIsAwayIsWaitedForAndReported(t *testing.T) {
	t.Parallel()
	db := database(t)
	relay := labtest.Relay(t, server(t).Addr())
	w := start(t, db, func(c *postgres.Config) {
		c.Postgres.Address = relay.Addr()
		c.ConnectPatience = 300 * time.Millisecond
		c.PoolSize = 1
	})
	c := w.wire()
	c.want("SELECT 1 AS x", "[x] (1) SELECT_1 I")
	if err := relay.Refuse(true); err != nil {
		t.Fatal(err)
	}
	relay.Cut()
	eventually(t, "the backend is gone", func() bool { return w.pool().Backends == 0 })
	got := c.ask("SELECT 1 AS x")
	if got != "ERROR:08001 I" && got != "ERROR:08006 I" {
		t.Errorf("while the server is away: %s", got)
	}
	if _, err := pgwire.Connect(t.Context(), pgwire.ConnectConfig{Address: w.Addr().String(), User: "weir_other", Database: db, TLSMode: pgwire.TLSDisable}); pgwire.CodeOf(err) != pgwire.CodeConnectionUnable {
		t.Errorf("login while the server is away: %v", err)
	}
	if err := relay.Refuse(false); err != nil {
		t.Fatal(err)
	}
	// The session goes on if the server can be reached in time.
	eventually(t, "an answer when the server is back", func() bool { return c.ask("SELECT 2 AS x") == "[x] (2) SELECT_1 I" })
}

func TestTerminatedBackendEndsOnlyItsStatement(t *testing.T) {
	t.Parallel()
	db := database(t)
	w := start(t, db, twoBackends)
	mine, other := w.wire(), w.wire()
	other.want("SELECT 1 AS x", "[x] (1) SELECT_1 I")
	mine.want("BEGIN", "BEGIN T")
	mine.send(query("SELECT pg_terminate_backend(pg_backend_pid())"))
	got := mine.end()
	if r := render(got); !strings.HasSuffix(r, "FATAL:57P01") || strings.Count(r, "FATAL") != 1 {
		t.Errorf("terminated in a transaction: %s; directly there is one FATAL:57P01", r)
	}
	other.want("SELECT 1 AS x", "[x] (1) SELECT_1 I")
	// Idle backends are terminated without any client noticing.
	for range 3 {
		onServer(t, "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = '"+db+"'")
		eventually(t, "weir has noticed", func() bool { return w.pool().Backends == 0 })
		other.want("SELECT 1 AS x", "[x] (1) SELECT_1 I")
	}
}

func TestSlowReaderHoldsUpNobody(t *testing.T) {
	t.Parallel()
	db := database(t, "CREATE TABLE w (k int)")
	w := start(t, db, func(c *postgres.Config) { c.WriteLanes = 1 })
	stalled := w.wire()
	if err := stalled.conn.(*net.TCPConn).SetReadBuffer(64 << 10); err != nil {
		t.Fatal(err)
	}
	stalled.send(query("SELECT repeat('x', 1000) FROM generate_series(1, 20000)"))
	writers := w.clients(8, "/* batch */ INSERT INTO w VALUES (1)")
	for range 20 {
		var messages [][]byte
		for range writers {
			messages = append(messages, query("/* batch */ INSERT INTO w VALUES (1)"))
		}
		for _, got := range together(writers, messages) {
			if render(got) != "INSERT_0_1 I" {
				t.Fatalf("beside a stalled client: %s", render(got))
			}
		}
	}
	rows := 0
	for _, m := range stalled.ready() {
		if m.typ == pgwire.ServerDataRow {
			rows++
		}
	}
	if rows != 20000 {
		t.Errorf("the stalled client read %d rows in the end, want 20000", rows)
	}
}

func TestDeadlocksAndSerializationFailuresAreTheirOwners(t *testing.T) {
	t.Parallel()
	db := database(t, "CREATE TABLE d (k int PRIMARY KEY, n int DEFAULT 0)", "INSERT INTO d SELECT generate_series(0, 3)", readCommitted)
	w := start(t, db, nil)
	a, b := w.wire(), w.wire()
	a.want("BEGIN", "BEGIN T")
	b.want("BEGIN", "BEGIN T")
	a.want("UPDATE d SET n = 1 WHERE k = 0", "UPDATE_1 T")
	b.want("UPDATE d SET n = 2 WHERE k = 1", "UPDATE_1 T")
	// Grouped writes wait for both. The first two may be the deadlock's victim: they hold the
	// lock of the row's tuple, for which b and a wait in turn.
	waiting := []*wire{w.wire(), w.wire(), w.wire(), w.wire()}
	for i, c := range waiting {
		c.send(query(fmt.Sprintf("/* batch */ UPDATE d SET n = n + 10 WHERE k = %d", i)))
	}
	a.send(query("UPDATE d SET n = 1 WHERE k = 1"))
	b.send(query("UPDATE d SET n = 2 WHERE k = 0"))
	ra, rb := render(a.ready()), render(b.ready())
	if (ra == "ERROR:40P01 E") == (rb == "ERROR:40P01 E") {
		t.Errorf("of two in a deadlock, one must fail: %s, %s", ra, rb)
	}
	a.ask("COMMIT")
	b.ask("COMMIT")
	for i, c := range waiting {
		if got := render(c.ready()); got != "UPDATE_1 I" && (i > 1 || got != "ERROR:40P01 I") {
			t.Errorf("grouped write %d beside a deadlock: %s", i, got)
		}
	}
	// Many serializable increments of one row: each is done once or refused.
	serial := make([]*wire, 8)
	for i := range serial {
		serial[i] = w.wire(pgwire.Param{Name: "default_transaction_isolation", Value: "serializable"})
	}
	done := 0
	for range 10 {
		var messages [][]byte
		for range serial {
			messages = append(messages, query("/* batch */ UPDATE d SET n = n + 1 WHERE k = 3"))
		}
		for _, got := range together(serial, messages) {
			switch r := render(got); r {
			case "UPDATE_1 I":
				done++
			case "ERROR:40001 I":
			default:
				t.Errorf("serializable: %s", r)
			}
		}
	}
	serial[0].want("SELECT n FROM d WHERE k = 3", fmt.Sprintf("[n] (%d) SELECT_1 I", 10+done))
}

func TestTimeoutsOfAClientActOnItsOwnGroupedWrite(t *testing.T) {
	t.Parallel()
	db := database(t, "CREATE TABLE d (k int PRIMARY KEY, n int DEFAULT 0)", "INSERT INTO d SELECT generate_series(0, 9)", readCommitted)
	w := start(t, db, nil)
	blocker := dialWire(t, server(t).Addr(), db)
	blocker.want("BEGIN", "BEGIN T")
	blocker.want("UPDATE d SET n = 5 WHERE k = 0", "UPDATE_1 T")
	patient := w.wire()
	patient.send(query("/* batch */ UPDATE d SET n = n + 1 WHERE k = 0"))
	for _, c := range []struct{ set, code string }{
		{"statement_timeout", "ERROR:57014 I"}, {"lock_timeout", "ERROR:55P03 I"},
	} {
		hasty := w.wire(pgwire.Param{Name: c.set, Value: "100ms"})
		hasty.want("/* batch */ UPDATE d SET n = n + 1 WHERE k = 0", c.code)
		eventually(t, "a write within its timeout", func() bool { return hasty.ask("/* batch */ UPDATE d SET n = n + 1 WHERE k = 1") == "UPDATE_1 I" })
	}
	blocker.want("COMMIT", "COMMIT I")
	if got := render(patient.ready()); got != "UPDATE_1 I" {
		t.Errorf("the one without a timeout: %s", got)
	}
	patient.want("SELECT n FROM d WHERE k = 0", "[n] (6) SELECT_1 I")
}

// FuzzClientBytes sends arbitrary bytes in a session on a real server. The proxy must go on
// serving other clients.
func FuzzClientBytes(f *testing.F) {
	f.Add(query("SELECT 1"))
	f.Add(run("SELECT $1::int", "1"))
	f.Add(append(parse("a", "/* batch */ INSERT INTO f VALUES ($1)"), append(bind("", "a", "1"), append(execute("", 0), sync()...)...)...))
	f.Add(append(query("COPY f FROM STDIN"), pgwire.AppendCopyData(nil, []byte("1\n"))...))
	f.Add([]byte{'B', 0, 0, 0, 8, 0, 0, 0, 1})
	f.Add(append(query("BEGIN"), append(parse("", "SELECT 1/0"), append(flush(), append(describe('S', "x"), sync()...)...)...)...))
	f.Add(pgwire.AppendMessage(nil, 'F', []byte{0, 0, 0, 1}))
	db := database(f, "CREATE TABLE f (k int)")
	w := start(f, db, func(c *postgres.Config) { c.MaxMessage = 1 << 16 })
	other := w.wire()
	f.Fuzz(func(t *testing.T, raw []byte) {
		if strings.Contains(strings.ToLower(string(raw)), "pg_") || len(raw) > 1<<12 {
			t.Skip("not to be let loose on the server")
		}
		mine := w.within(t).wire()
		mine.send(raw, sync(), pgwire.AppendTerminate(nil))
		_, _ = io.Copy(io.Discard, mine.r)
		mine.close()
		witness := *other
		witness.tb = t
		witness.want("SELECT 1 AS x", "[x] (1) SELECT_1 I")
	})
}

// If a connection is lost while weir replays a client's settings on it, nothing of the client's
// statement was sent, so it runs on another connection.
func TestConnectionLostBeforeItIsUsed(t *testing.T) {
	t.Parallel()
	relay := labtest.Relay(t, server(t).Addr())
	w := start(t, database(t), func(c *postgres.Config) {
		c.Postgres.Address = relay.Addr()
		c.ConnectPatience, c.PoolSize = patience, 1
	})
	c, other := w.wire(), w.wire()
	c.want("SET work_mem = '111kB'", "SET I")
	other.want("SELECT 1 AS x", "[x] (1) SELECT_1 I") // takes the connection back to its own settings
	relay.Stall(lab.ToServer)
	before := w.pool().Replays
	c.send(query("BEGIN; SHOW work_mem"))
	eventually(t, "the settings have been sent, or weir's own question is in the way", func() bool { return w.pool().Replays > before || w.pool().Waiting > 0 })
	relay.Cut()
	relay.Heal()
	if got := render(c.ready()); got != "BEGIN [work_mem] (111kB) SHOW T" {
		t.Errorf("the statement that had not been sent: %s", got)
	}
	c.want("COMMIT", "COMMIT I")
}
