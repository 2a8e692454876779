package postgres_test

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"slices"
	"strings"
	gosync "sync"
	"sync/atomic"
	"testing"

	"github.com/weirdb/weir/internal/proxy/postgres"
	"github.com/weirdb/weir/internal/proxy/proxytest"
	"github.com/weirdb/weir/internal/testkit"
	"github.com/weirdb/weir/internal/wire/pgwire"
)

func TestCancelReachesTheStatementThatItNames(t *testing.T) {
	t.Parallel()
	db := database(t, "CREATE TABLE d (k int PRIMARY KEY, n int)", "INSERT INTO d VALUES (0, 0)")
	w := start(t, db, func(c *postgres.Config) { c.PoolSize = 3 })
	for _, c := range []struct{ name, sql string }{
		{"alone", "SELECT pg_sleep(600)"},
		{"locked write", "UPDATE d SET n = 1 WHERE k = 0"},
		{"grouped write behind a lock", "/* batch */ UPDATE d SET n = 1 WHERE k = 0"},
	} {
		t.Run(c.name, func(t *testing.T) {
			blocker := dialWire(t, server(t).Addr(), db)
			blocker.want("BEGIN", "BEGIN T")
			blocker.want("UPDATE d SET n = 2 WHERE k = 0", "UPDATE_1 T")
			mine := w.within(t).wire()
			mine.send(query(c.sql))
			waits := dialWire(t, server(t).Addr(), db)
			eventually(t, "the server has it", func() bool {
				return waits.ask("SELECT count(*) AS n FROM pg_stat_activity WHERE datname = current_database() AND wait_event IN ('PgSleep', 'transactionid', 'tuple')") == "[n] (1) SELECT_1 I"
			})
			// A grouped write moves from its lane to a backend of its own; a
			// request that came in between is void, as it may be directly.
			cancelUntilAnswered(t, w, mine)
			mine.want("SELECT 1 AS x", "[x] (1) SELECT_1 I")
			blocker.want("ROLLBACK", "ROLLBACK I")
		})
	}
}

// A session with a connection of its own is asked from time to time what state it has. A
// cancel request that comes meanwhile is for the statement behind the question.
func TestCancelBehindAQuestionOfWeirs(t *testing.T) {
	t.Parallel()
	var requests atomic.Int64 // that the server was sent
	gateway := proxytest.Gateway(t, server(t).Addr(), func(client, be net.Conn) {
		go func() {
			_, _ = io.Copy(client, be)
			_ = client.Close()
		}()
		go func() {
			defer be.Close()
			head := make([]byte, 8)
			if _, err := io.ReadFull(client, head); err != nil {
				return
			}
			if bytes.Equal(head, []byte{0, 0, 0, 16, 4, 210, 22, 46}) {
				requests.Add(1)
			}
			_, _ = io.Copy(be, io.MultiReader(bytes.NewReader(head), client))
		}()
	})
	db := database(t)
	w := start(t, db, func(c *postgres.Config) { c.Postgres.Address = gateway })
	c := w.wire()
	c.want("CREATE TEMP TABLE own (x int)", "CREATE_TABLE I")
	c.want("SELECT 1 AS x", "[x] (1) SELECT_1 I") // behind the first question
	blocker := dialWire(t, server(t).Addr(), db)
	blocker.want("BEGIN", "BEGIN T")
	blocker.want("LOCK TABLE pg_catalog.pg_cursors", "LOCK_TABLE T") // which the question reads
	c.want("BEGIN", "BEGIN T")
	c.want("ROLLBACK", "ROLLBACK I")
	look := dialWire(t, server(t).Addr(), db)
	eventually(t, "the question waits", func() bool {
		return look.ask("SELECT count(*) AS n FROM pg_locks WHERE NOT granted AND relation = 'pg_catalog.pg_cursors'::regclass AND database = (SELECT oid FROM pg_database WHERE datname = current_database())") == "[n] (1) SELECT_1 I"
	})
	received := w.pool().Received
	c.send(query("SELECT pg_sleep(600)"))
	eventually(t, "the statement is here", func() bool { return w.pool().Received > received }) // before it a request is void
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		cancel(t, w, c)
	}()
	eventually(t, "the request is here", func() bool { return w.snapshot().Cancels == 1 })
	blocker.want("ROLLBACK", "ROLLBACK I")
	<-ended
	if n := requests.Load(); n != 1 {
		t.Errorf("the server was sent %d requests", n)
	}
	cancelUntilAnswered(t, w, c)
	c.want("SELECT count(*) AS n FROM own", "[n] (0) SELECT_1 I")
}

// groupsSolo has a client prepare an UPDATE as s, and run it until that goes by a solo lane.
func (w *weir) groupsSolo(c *wire, sql string) {
	w.tb.Helper()
	c.send(parse("s", sql), describe('S', "s"), sync())
	if got := render(c.ready()); strings.Contains(got, "ERROR") {
		w.tb.Fatal(got)
	}
	before := w.lane(lanes[1].kind).Groups
	eventually(w.tb, "a solo lane", func() bool {
		c.send(bind("", "s"), execute("", 0), sync())
		c.ready()
		return w.lane(lanes[1].kind).Groups > before
	})
}

// A grouped write may wait until the server says what it returns, which a migration can keep it
// from.
func TestCancelOfAWriteThatAsksForItsColumns(t *testing.T) {
	t.Parallel()
	db := database(t, "CREATE TABLE moved (v bigint)", "INSERT INTO moved VALUES (5)")
	w := start(t, db, nil)
	c, admin := w.wire(), dialWire(t, server(t).Addr(), db)
	w.groupsSolo(c, "/* batch */ UPDATE moved SET v = 5 RETURNING v")
	w.command("RECONNECT " + db)
	w.groupsSolo(w.wire(), "/* batch */ UPDATE moved SET v = 5") // on a connection that does not know the other
	admin.want("BEGIN", "BEGIN T")
	admin.want("UPDATE moved SET v = 6", "UPDATE_1 T")
	admin.want("LOCK TABLE moved", "LOCK_TABLE T")
	c.send(bind("", "s"), execute("", 0), sync())
	const waits = "SELECT count(*) AS n FROM pg_locks WHERE NOT granted AND relation = 'moved'::regclass AND clock_timestamp() - waitstart > '100 ms'"
	eventually(t, "it waits for the lock", func() bool { return admin.ask(waits) == "[n] (1) SELECT_1 T" })
	cancel(t, w, c)
	admin.want("COMMIT", "COMMIT I")
	if got := render(c.ready()); got != "ERROR:57014 I" {
		t.Errorf("cancelled: %s", got)
	}
	c.want("SELECT v FROM moved", "[v] (6) SELECT_1 I")
}

// cancelUntilAnswered cancels the statement of c until it is answered: a request that comes
// before the server has begun with it is void, as directly.
func cancelUntilAnswered(t *testing.T, w *weir, c *wire) {
	t.Helper()
	answered := make(chan string, 1)
	go func() { answered <- render(c.ready()) }()
	var got string
	eventually(t, "it is cancelled", func() bool {
		cancel(t, w, c)
		select {
		case got = <-answered:
			return true
		default:
			return false
		}
	})
	if !strings.HasSuffix(got, "ERROR:57014 I") {
		t.Errorf("cancelled: %s", got)
	}
}

func TestCancelEndsAWaitInTheQueue(t *testing.T) {
	t.Parallel()
	w := start(t, database(t), func(c *postgres.Config) { c.PoolSize = 1 })
	holder := w.wire()
	queued := []*wire{w.wire(), w.wire(), w.wire(), w.wire()}
	holder.want("BEGIN", "BEGIN T")
	messages := [][]byte{query("SELECT pg_sleep(0)"), run("SELECT pg_sleep($1::int)", "0"), append(query("SET LOCAL work_mem = '5MB'"), query("SELECT 1 AS x")...), query("BEGIN; SELECT pg_sleep(0); COMMIT")}
	for i, c := range queued {
		c.send(messages[i])
	}
	eventually(t, "they wait", func() bool { return w.pool().Waiting == 4 })
	for i, c := range queued {
		cancel(t, w, c)
		if got := render(c.ready()); got != "ERROR:57014 I" {
			t.Errorf("queued %d: %s", i, got)
		}
	}
	// The third one's later statements are still to run.
	holder.want("COMMIT", "COMMIT I")
	if got := render(queued[2].ready()); got != "[x] (1) SELECT_1 I" {
		t.Errorf("behind the cancelled one: %s", got)
	}
	for _, c := range queued {
		c.want("SELECT 1 AS x", "[x] (1) SELECT_1 I")
	}
}

// TestRefusedBeginEndsTheSession: what a client has sent behind a BEGIN that weir refuses is
// not carried out without a transaction, nor what it has sent behind a SET in the old settings.
func TestRefusedBeginEndsTheSession(t *testing.T) {
	t.Parallel()
	insert := query("INSERT INTO r VALUES (1)")
	db := database(t, "CREATE TABLE r (x int)")
	proxyFor := inTurn(func() *weir { return start(t, db, func(c *postgres.Config) { c.PoolSize = 1 }) })
	for name, messages := range map[string][]byte{
		"simple":           slices.Concat(query("BEGIN"), insert, query("COMMIT")),
		"extended":         slices.Concat(run("BEGIN"), insert, run("COMMIT")),
		"behind a text":    slices.Concat(query("SELECT pg_sleep(0); BEGIN"), insert, query("COMMIT")),
		"behind a failure": slices.Concat(parse("", "SELECT pg_sleep(0)"), bind("", ""), execute("", 0), run("START TRANSACTION"), insert, query("COMMIT")),
		"by its name":      slices.Concat(bind("", "b"), execute("", 0), sync(), insert, query("COMMIT")),
		"a schema":         slices.Concat(query("SET search_path = nowhere"), insert),
		"a role":           slices.Concat(run("SET ROLE weir_other"), insert),
		"a reset":          slices.Concat(query("SELECT 1; RESET ALL"), insert),
		"by a function":    slices.Concat(run("SELECT set_config('search_path', $1, false)", "nowhere"), insert),
		"in a unit":        slices.Concat(parse("", "SELECT pg_sleep(0)"), bind("", ""), execute("", 0), run("SET search_path = nowhere"), insert),
		"a lock":           slices.Concat(query("SELECT pg_advisory_lock(1)"), insert),
		"a table's name":   slices.Concat(query("CREATE TEMP TABLE r (x int)"), insert),
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := proxyFor(t)
			holder, c := w.wire(), w.wire()
			c.send(parse("b", "BEGIN"), sync())
			c.ready()
			holder.want("BEGIN", "BEGIN T")
			c.send(messages)
			eventually(t, "it waits", func() bool { return w.pool().Waiting == 1 })
			cancel(t, w, c)
			got, err := c.until(0)
			if e := errorIn(got); err == nil || e == nil || e.Code != pgwire.CodeQueryCanceled || !strings.Contains(string(got[len(got)-1].body), "FATAL") {
				t.Errorf("it is refused: %s, %v", render(got), err)
			}
			holder.want("COMMIT", "COMMIT I")
			w.wire().want("SELECT count(*) AS n FROM r", "[n] (0) SELECT_1 I")
		})
	}
}

func TestWrongCancelKeysDoNothing(t *testing.T) {
	t.Parallel()
	w := start(t, database(t), nil)
	c, look := w.wire(), dialWire(t, server(t).Addr(), w.db)
	c.send(query("SELECT pg_sleep(600)"))
	eventually(t, "it runs", func() bool {
		return look.ask("SELECT count(*) AS n FROM pg_stat_activity WHERE datname = current_database() AND wait_event = 'PgSleep'") == "[n] (1) SELECT_1 I"
	})
	right := c.secret
	c.secret = []byte{right[0] ^ 1, right[1], right[2], right[3]}
	cancel(t, w, c)
	c.secret = right
	if n := w.pool().Active; n != 1 {
		t.Errorf("after a wrong key %d statements run", n)
	}
	cancel(t, w, c)
	if got := render(c.ready()); !strings.HasSuffix(got, "ERROR:57014 I") {
		t.Errorf("after the right key: %s", got)
	}
}

// TestCancelStormHitsNobodyElse has some clients cancel themselves all the time
// while others, on the same backends, must never see an error.
func TestCancelStormHitsNobodyElse(t *testing.T) {
	t.Parallel()
	db := database(t, "CREATE TABLE kv (k int PRIMARY KEY, v text)", "INSERT INTO kv SELECT g, 'v' || g FROM generate_series(0, 99) g", "CREATE TABLE ins (k int)")
	w := start(t, db, func(c *postgres.Config) { c.PoolSize = 4 })
	ctx, stop := context.WithCancel(context.Background())
	defer stop()
	var storm, calm gosync.WaitGroup
	var cancelled atomic.Int64
	for i := range 4 {
		c := w.wire()
		storm.Go(func() {
			for ctx.Err() == nil {
				sql := []string{"SELECT pg_sleep(0.002)", "SELECT v FROM kv WHERE k = 5", "/* batch */ INSERT INTO ins VALUES (-1)", "SELECT count(*) FROM generate_series(1, 20000)"}[i]
				c.send(query(sql))
				cancel(t, w, c)
				got, err := c.until(pgwire.ServerReady)
				if e := errorIn(got); err != nil || (e != nil && e.Code != pgwire.CodeQueryCanceled) {
					t.Errorf("%s, cancelled: %s, %v", sql, render(got), err)
					return
				} else if e != nil {
					cancelled.Add(1)
				}
			}
		})
	}
	each := testkit.Rounds(60, 1600)
	for i := range 6 {
		c := w.wire()
		calm.Go(func() {
			for j := range each {
				var message []byte
				var want string
				switch k := (i*7 + j) % 100; j % 4 {
				case 0:
					message, want = query(fmt.Sprintf("SELECT v FROM kv WHERE k = %d", k)), fmt.Sprintf("[v] (v%d) SELECT_1 I", k)
				case 1:
					message, want = run("SELECT v FROM kv WHERE k = $1", fmt.Sprint(k)), fmt.Sprintf("parsed bound [v] (v%d) SELECT_1 I", k)
				case 2:
					message, want = query("/* batch */ INSERT INTO ins VALUES (1)"), "INSERT_0_1 I"
				default:
					message, want = query(fmt.Sprintf("BEGIN; SELECT %d AS x; COMMIT", k)), fmt.Sprintf("BEGIN [x] (%d) SELECT_1 COMMIT I", k)
				}
				c.send(message)
				if got, err := c.until(pgwire.ServerReady); err != nil || render(got) != want {
					t.Errorf("an innocent statement got %s, %v; want %s", render(got), err, want)
					return
				}
			}
		})
	}
	calm.Wait()
	stop()
	storm.Wait()
	w.wire().want("SELECT count(*) AS n FROM ins WHERE k = 1", fmt.Sprintf("[n] (%d) SELECT_1 I", 6*each/4))
	t.Logf("%d statements were cancelled", cancelled.Load())
}

// TestEveryAnswerReachesItsOwner has many clients ask for numbers of their own,
// by every path, while some fail, leave, cancel or read slowly.
func TestEveryAnswerReachesItsOwner(t *testing.T) {
	t.Parallel()
	db := database(t, "CREATE TABLE own (c int, n int)", "CREATE TABLE kv (k int PRIMARY KEY)", "INSERT INTO kv SELECT generate_series(0, 999)")
	w := start(t, db, func(c *postgres.Config) { c.PoolSize = 6; c.Loops = 2 })
	const clients, burst = 16, 24
	rounds := testkit.Rounds(20, 600)
	var wg gosync.WaitGroup
	var units atomic.Int64
	for i := range clients {
		c := w.wire()
		wg.Go(func() {
			rng := rand.New(rand.NewPCG(7, uint64(i)))
			for round := range rounds {
				var messages []byte
				var want []string
				for j := range 1 + rng.IntN(burst) {
					tag := i*1000000 + round*1000 + j
					switch rng.IntN(8) {
					case 0, 1, 2:
						messages = append(messages, query(fmt.Sprintf("SELECT %d AS tag", tag))...)
						want = append(want, fmt.Sprintf("[tag] (%d) SELECT_1 I", tag))
					case 3, 4:
						messages = append(messages, run("SELECT $1::int AS tag FROM kv WHERE k = $2", fmt.Sprint(tag), fmt.Sprint(tag%1000))...)
						want = append(want, fmt.Sprintf("parsed bound [tag] (%d) SELECT_1 I", tag))
					case 5:
						messages = append(messages, run("/* batch */ INSERT INTO own VALUES ($1, $2) RETURNING n AS tag", fmt.Sprint(i), fmt.Sprint(tag))...)
						want = append(want, fmt.Sprintf("parsed bound [tag] (%d) INSERT_0_1 I", tag))
					case 6:
						messages = append(messages, run("SELECT $1::int AS tag", "not "+fmt.Sprint(tag))...)
						want = append(want, "parsed ERROR:22P02 I")
					default:
						messages = append(messages, query(fmt.Sprintf("SELECT %d / 0 AS tag", tag))...)
						want = append(want, "ERROR:22012 I")
					}
				}
				c.send(messages)
				if rng.IntN(20) == 0 { // leaves without reading
					c.close()
					c = w.wire()
					continue
				}
				hurried := rng.IntN(15) == 0
				if hurried {
					cancel(t, w, c)
				}
				for _, x := range want {
					got, err := c.until(pgwire.ServerReady)
					r := render(got)
					if hurried && strings.HasSuffix(r, "ERROR:57014 I") {
						continue
					}
					if err != nil || r != x {
						t.Errorf("client %d got %s, %v; want %s", i, r, err, x)
						return
					}
				}
				units.Add(int64(len(want)))
			}
		})
	}
	wg.Wait()
	t.Logf("%d units answered", units.Load())
	w.wire().want("SELECT count(*) = count(DISTINCT n) AS once, bool_and(n / 1000000 = c) AS own FROM own", "[once,own] (t,t) SELECT_1 I")
}
