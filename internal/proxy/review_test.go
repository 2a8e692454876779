package proxy_test

import (
	"fmt"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/weirdb/weir/internal/proxy"
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
func (w *weir) lane(kind string) (sum proxy.LaneStatus) {
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
	direct := dialWire(t, postgres(t).Addr(), db)
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
	sqlOn(t, postgres(t).DSN(db), "CREATE TRIGGER r_nothing BEFORE INSERT ON r FOR EACH ROW EXECUTE FUNCTION nothing()")
	round(0) // the first group fails by its member, the others by the trigger
	direct := dialWire(t, postgres(t).Addr(), db)
	direct.want("SELECT count(*)::text AS n FROM r WHERE id >= 0", "[n] (190) SELECT_1 I")
}

// A read that is sent behind a grouped write is answered behind it, also where
// the client's last read went on a pipeline that others keep busy.
func TestReadsStayBehindGroupedWrites(t *testing.T) {
	t.Parallel()
	w := start(t, database(t, "CREATE TABLE r (id int)"), func(c *proxy.Config) { c.PoolSize, c.ReadLanes = 4, 1 })
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
