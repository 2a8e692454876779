package postgres_test

import (
	"encoding/binary"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/weirdb/weir/internal/proxy/postgres"
	"github.com/weirdb/weir/internal/proxy/sight"
)

// The tests of this file come from reading the code with the eyes of an
// attacker: each was a way to get a wrong answer or to end the proxy.

// wires opens n connections.
func (w *weir) wires(n int) []*wire {
	out := make([]*wire, n)
	for i := range out {
		out[i] = w.wire()
	}
	return out
}

// warmRows has weir learn that a table takes multi-row inserts.
func warmRows(w *weir, c *wire, sql string) {
	w.tb.Helper()
	before := w.lane("rows").Groups
	eventually(w.tb, "a rows lane", func() bool {
		c.ask(sql)
		return w.lane("rows").Groups > before
	})
}

// lane sums up the lanes of a kind.
func (w *weir) lane(kind string) (sum sight.LaneStatus) {
	w.tb.Helper()
	for _, l := range w.snapshot().Lanes {
		if l.Kind == kind {
			sum.Groups += l.Groups
			sum.Members += l.Members
			sum.Fallbacks += l.Fallbacks
		}
	}
	return sum
}

// Once a group has failed, a run is cut into several. When a later one of them
// fails, those that were answered already must not be looked at again.
func TestFailureBehindAnsweredGroupsAcknowledgesNothing(t *testing.T) {
	t.Parallel()
	db := database(t, "CREATE TABLE r (id int, v int CHECK (v >= 0))")
	w := start(t, db, nil)
	clients := w.wires(64)
	warmRows(w, clients[0], "/* batch:1 */ INSERT INTO r VALUES (-1, 0)")
	acked := make(map[int]bool)
	for round := range 12 {
		bad := len(clients) - 1
		if round%3 != 0 {
			bad = -1 // the size of groups recovers
		}
		for i, c := range clients {
			v := 0
			if i == bad {
				v = -1
			}
			c.send(query(fmt.Sprintf("/* batch:50 */ INSERT INTO r VALUES (%d, %d)", round*100+i, v)))
		}
		for i, c := range clients {
			got := render(c.ready())
			switch {
			case i != bad && got == "INSERT_0_1 I":
				acked[round*100+i] = true
			case i == bad && strings.HasPrefix(got, "ERROR:23514"):
			default:
				t.Fatalf("round %d, client %d: %s", round, i, got)
			}
		}
	}
	if f := w.lane("rows").Fallbacks; f < 2 {
		t.Fatalf("%d groups failed: this run proves nothing", f)
	}
	direct := dialWire(t, server(t).Addr(), db)
	direct.want("SELECT count(*)::text AS n FROM r WHERE id >= 0", fmt.Sprintf("[n] (%d) SELECT_1 I", len(acked)))
}

// The parts of a failed group wait for a backend. What is known of the table
// may be forgotten in the meantime.
func TestFailedGroupOutlivesWhatIsKnownOfItsTable(t *testing.T) {
	t.Parallel()
	db := database(t, "CREATE TABLE r (id int, v int CHECK (v >= 0))",
		"CREATE FUNCTION nothing() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NEW; END'")
	w := start(t, db, nil)
	clients := w.wires(64)
	warmRows(w, clients[0], "/* batch:1 */ INSERT INTO r VALUES (-1, 0)")
	round := func(bad int) {
		for i, c := range clients {
			v := 0
			if i == bad {
				v = -1
			}
			c.send(query(fmt.Sprintf("/* batch:50 */ INSERT INTO r VALUES (%d, %d)", i, v)))
		}
		for i, c := range clients {
			want := "INSERT_0_1 I"
			if i == bad {
				want = "ERROR:23514 I"
			}
			if got := render(c.ready()); got != want {
				t.Fatalf("client %d: %s", i, got)
			}
		}
	}
	round(0)  // from now on, a run is cut into several groups
	round(-1) // which grow
	sqlOn(t, server(t).DSN(db), "CREATE TRIGGER r_nothing BEFORE INSERT ON r FOR EACH ROW EXECUTE FUNCTION nothing()")
	round(0) // the first group fails by its member, the others by the trigger
	direct := dialWire(t, server(t).Addr(), db)
	direct.want("SELECT count(*)::text AS n FROM r WHERE id >= 0", "[n] (190) SELECT_1 I")
}

// A read that is sent behind a grouped write is answered behind it, also where
// the client's last read went on a pipeline that others keep busy.
func TestReadsStayBehindGroupedWrites(t *testing.T) {
	t.Parallel()
	w := start(t, database(t, "CREATE TABLE r (id int)"), func(c *postgres.Config) { c.PoolSize, c.ReadLanes = 4, 1 })
	var stop atomic.Bool
	done := make(chan struct{})
	busy := w.wires(4)
	go func() {
		defer close(done)
		for !stop.Load() {
			for _, c := range busy {
				for range 8 {
					c.send(query("SELECT 7 AS x"))
				}
			}
			for _, c := range busy {
				for range 8 {
					if _, err := c.until('Z'); err != nil {
						t.Errorf("busy reader: %v", err)
						return
					}
				}
			}
		}
	}()
	defer func() { stop.Store(true); <-done }()
	c := w.wire()
	warmRows(w, c, "/* batch:1 */ INSERT INTO r VALUES (1)")
	for i := range 100 {
		c.want("SELECT 7 AS x", "[x] (7) SELECT_1 I")
		c.send(query("/* batch:3 */ INSERT INTO r VALUES (2)"), query("SELECT 7 AS x"))
		if got := render(c.ready()); got != "INSERT_0_1 I" {
			t.Fatalf("round %d: the answer to INSERT is %s", i, got)
		}
		if got := render(c.ready()); got != "[x] (7) SELECT_1 I" {
			t.Fatalf("round %d: the answer to SELECT is %s", i, got)
		}
	}
}

// A setting made by a function stays with its session, whatever the function looks like in the
// catalogue.
func TestSettingsMadeByFunctionsStayWithTheirSession(t *testing.T) {
	t.Parallel()
	w := start(t, database(t,
		"CREATE FUNCTION parsed(v text) RETURNS text LANGUAGE sql BEGIN ATOMIC SELECT set_config('myapp.tenant', v, false); END",
		"CREATE FUNCTION returned(v text) RETURNS text LANGUAGE sql RETURN set_config('myapp.tenant', v, false)"), twoBackends)
	other := w.wire()
	for _, sql := range []string{
		"SELECT parsed('mine') AS s", "SELECT returned('mine') AS s",
	} {
		mine := w.wire()
		mine.want(sql, "[s] (mine) SELECT_1 I")
		churn(other)
		mine.want("SHOW myapp.tenant", "[myapp.tenant] (mine) SHOW I")
		for range 4 {
			if got := other.ask("SELECT current_setting('myapp.tenant', true) AS x"); strings.Contains(got, "mine") {
				t.Errorf("after %s another client sees %s", sql, got)
			}
		}
		mine.close()
	}
}

func TestSettingsMadeByStableAndDroppedFunctions(t *testing.T) {
	t.Parallel()
	for _, steps := range [][]string{
		{"CREATE FUNCTION f() RETURNS text STABLE LANGUAGE sql AS $$ SELECT set_config('myapp.tenant', 'mine', false) $$", "SELECT f() AS s"},
		{"CREATE FUNCTION f() RETURNS text LANGUAGE sql AS $$ SELECT set_config('myapp.tenant', 'mine', false) $$", "SELECT f() AS s", "DROP FUNCTION f()"},
		{"DO $$ BEGIN PERFORM set_config('myapp.tenant', 'mine', false); END $$"},
	} {
		w := start(t, database(t), twoBackends)
		other, mine := w.wire(), w.wire()
		for _, sql := range steps {
			if got := mine.ask(sql); strings.Contains(got, "ERROR") {
				t.Fatalf("%s: %s", sql, got)
			}
		}
		churn(other)
		mine.want("SHOW myapp.tenant", "[myapp.tenant] (mine) SHOW I")
		for range 4 {
			if got := other.ask("SELECT current_setting('myapp.tenant', true) AS x"); strings.Contains(got, "mine") {
				t.Errorf("after %s another client sees %s", steps, got)
			}
		}
	}
}

func TestDoThatOnlyWritesDoesNotPin(t *testing.T) {
	t.Parallel()
	w := start(t, database(t, "CREATE TABLE r (id int)"), twoBackends)
	mine := w.wire()
	mine.want("DO $$ BEGIN UPDATE r SET id = id + 1; INSERT INTO r VALUES (1) ON CONFLICT DO NOTHING; END $$", "DO I")
	eventually(t, "no pin", func() bool { return w.pool().Pinned == 0 })
}

// Where backslashes escape, a literal may end elsewhere, and a text hold more
// than it seems to.
func TestBackslashesWhereTheyEscape(t *testing.T) {
	t.Parallel()
	w := start(t, database(t, "CREATE TABLE r (id int)"), twoBackends)
	other := w.wire()
	for _, off := range []string{"off", "0", "'false'", "no"} {
		mine := w.wire()
		mine.want("SET standard_conforming_strings = "+off, "SET I")
		mine.want("SET escape_string_warning = off", "SET I")
		const sneaky = `SELECT 'x\''; BEGIN; --' AS x`
		for range 3 { // reads of which the cost is known are shared
			if got := mine.ask(sneaky); !strings.HasSuffix(got, "BEGIN T") {
				t.Fatalf("%s: %s", sneaky, got)
			}
			other.want("INSERT INTO r VALUES (1)", "INSERT_0_1 I")
			mine.want("ROLLBACK", "ROLLBACK I")
		}
		mine.want("ROLLBACK", "WARNING:25P01 ROLLBACK I")
		before := w.pool().Reads
		eventually(t, "an innocent one is shared", func() bool {
			mine.want(`SELECT 'it\'s' AS x`, "[x] (it's) SELECT_1 I")
			return w.pool().Reads > before
		})
		mine.close()
	}
	other.want("SELECT count(*)::text AS n FROM r", "[n] (12) SELECT_1 I")
}

// A value that was written where backslashes escape is the same on another connection,
// where they do not, and the other way round.
func TestSettingsAreReplayedWhateverBackslashesMean(t *testing.T) {
	t.Parallel()
	w := start(t, database(t), func(c *postgres.Config) { c.PoolSize = 2 })
	mine, first, second := w.wire(), w.wire(), w.wire()
	mine.want("SET escape_string_warning = off", "SET I")
	first.want("SET standard_conforming_strings = off", "SET I") // and leaves its connection so
	for _, c := range []struct{ conforming, written, value string }{
		{"off", `'a\\b'`, `a\b`}, {"off", `'it\'s'`, `it's`}, {"on", `'a\\b'`, `a\\b`}, {"on", `U&'\0061\005Cb'`, `a\b`},
	} {
		for _, then := range []string{"on", "off"} {
			first.want("BEGIN", "BEGIN T")
			mine.want("SET standard_conforming_strings = "+c.conforming, "SET I")
			mine.want("SET road.x = "+c.written, "SET I")
			mine.want("SET standard_conforming_strings = "+then, "SET I")
			second.want("BEGIN", "BEGIN T") // where mine was
			first.want("ROLLBACK", "ROLLBACK I")
			mine.want("SHOW road.x", "[road.x] ("+c.value+") SHOW I")
			second.want("ROLLBACK", "ROLLBACK I")
		}
	}
}

// A read that has left a queue by a cancel request is not answered again when the wait would
// have been too long.
func TestCancelledReadIsAnsweredOnce(t *testing.T) {
	t.Parallel()
	w := start(t, database(t), func(c *postgres.Config) { c.PoolSize, c.ReadLanes, c.QueueTimeout = 1, 1, 300*time.Millisecond })
	mine := w.firstWire()
	mine.want("SELECT 7 AS x", "[x] (7) SELECT_1 I")
	mine.want("SELECT 7 AS x", "[x] (7) SELECT_1 I")
	holder := w.wire()
	holder.want("BEGIN", "BEGIN T")
	// Only behind one that waits on is the cancelled one still in the queue.
	third := w.wire()
	read := func(c *wire) <-chan string {
		c.send(query("SELECT 7 AS x"))
		answer := make(chan string, 1)
		go func() { answer <- render(c.ready()) }()
		return answer
	}
	// On a busy machine the one in front may have waited too long before the other
	// is cancelled.
	eventually(t, "a read is cancelled behind one that waits", func() bool {
		front := read(third)
		eventually(t, "a waiting read", func() bool { return w.pool().Waiting == 1 || len(front) == 1 })
		behind := read(mine)
		eventually(t, "two waiting reads", func() bool { return w.pool().Waiting == 2 || len(front) == 1 })
		cancel(t, w, mine)
		got := <-behind
		arranged := got == "ERROR:57014 I" && len(front) == 0
		if got != "ERROR:57014 I" && got != "ERROR:53300 I" {
			t.Errorf("the cancelled read: %s", got)
		}
		if got := <-front; got != "ERROR:53300 I" {
			t.Errorf("the read in front: %s", got)
		}
		return arranged
	})
	holder.want("COMMIT", "COMMIT I")
	mine.want("SELECT 7 AS x", "[x] (7) SELECT_1 I")
	mine.want("SELECT 8 AS x", "[x] (8) SELECT_1 I")
}

// A message with a false length ends its client's session and affects no other.
func TestMessagesLongerThanTheyCanBe(t *testing.T) {
	t.Parallel()
	w := start(t, database(t), twoBackends)
	for _, typ := range []byte{'S', 'H', 'D', 'C', 'E', 'X'} {
		for _, length := range []uint32{12000, 40 << 20} {
			for _, begin := range []bool{false, true} {
				c := w.wire()
				if begin {
					c.want("BEGIN", "BEGIN T")
				}
				head := binary.BigEndian.AppendUint32([]byte{typ}, length)
				// The rest is looked at as what was held, not as what came.
				c.send(query("SELECT pg_sleep(0.05)"), head[:3])
				c.ready()
				c.send(head[3:])
				if got := render(c.end()); typ != 'X' && got != "FATAL:08P01" {
					t.Errorf("%c of %d bytes, in a transaction %v: %s", typ, length, begin, got)
				}
				c.close()
			}
		}
	}
	w.wire().want("SELECT 1 AS x", "[x] (1) SELECT_1 I")
}

// Settings that are never the same again make lanes that are not kept for ever.
func TestLanesOfPassingSettingsAreBounded(t *testing.T) {
	t.Parallel()
	w := start(t, database(t, "CREATE TABLE r (id int)"), twoBackends)
	c := w.wire()
	for i := range 1100 {
		c.want(fmt.Sprintf("SET myapp.request = '%d'", i), "SET I")
		c.want("/* batch */ UPDATE r SET id = 1", "UPDATE_0 I")
	}
	if n := len(w.snapshot().Lanes); n > 1000 {
		t.Errorf("%d lanes are kept", n)
	}
}

// Reads get their turn where transactions of others never leave a backend free.
func TestReadsGetTheirTurnAmongTransactions(t *testing.T) {
	t.Parallel()
	w := start(t, database(t), twoBackends)
	reader := w.wire()
	reader.want("SELECT 7 AS x", "[x] (7) SELECT_1 I")
	var stop atomic.Bool
	const busy = 8
	done := make(chan error, busy)
	for _, c := range w.wires(busy) {
		go func() {
			for !stop.Load() {
				c.send(query("BEGIN"), query("COMMIT"))
				for range 2 {
					if _, err := c.until('Z'); err != nil {
						done <- err
						return
					}
				}
			}
			done <- nil
		}()
	}
	for range 20 {
		reader.want("SELECT 7 AS x", "[x] (7) SELECT_1 I")
	}
	stop.Store(true)
	for range busy {
		if err := <-done; err != nil {
			t.Error(err)
		}
	}
}

// TestRefusedSettingsKeepTheStatementBack: if the server refuses the settings of
// the client whose turn it is, its statement must not run in those of the client
// before, which here would put a row into another tenant's table.
func TestRefusedSettingsKeepTheStatementBack(t *testing.T) {
	t.Parallel()
	w := start(t, database(t,
		"CREATE SCHEMA a", "CREATE SCHEMA b", "CREATE TABLE a.r (v int)", "CREATE TABLE b.r (v int)",
		"CREATE TEXT SEARCH CONFIGURATION public.mycfg (COPY = simple)",
	), func(c *postgres.Config) { c.PoolSize = 1 })
	for _, insert := range []string{"INSERT INTO r VALUES (1)", "/* batch */ INSERT INTO r VALUES (1)"} {
		b := w.wire()
		b.want("SET default_text_search_config = 'public.mycfg'", "SET I")
		b.want("SET search_path = b", "SET I")
		a := w.wire()
		a.want("SET search_path = a", "SET I")
		a.want("ALTER TEXT SEARCH CONFIGURATION public.mycfg RENAME TO othercfg", "ALTER_TEXT_SEARCH_CONFIGURATION I")
		b.send(query(insert))
		if _, err := b.until('Z'); err == nil {
			t.Errorf("%s was answered although its session could not be restored", insert)
		}
		a.want("SELECT count(*) FROM a.r", "[count] (0) SELECT_1 I")
		a.want("ALTER TEXT SEARCH CONFIGURATION public.othercfg RENAME TO mycfg", "ALTER_TEXT_SEARCH_CONFIGURATION I")
	}
}
