package postgres_test

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/weirdb/weir/internal/proxy/postgres"
	"github.com/weirdb/weir/internal/proxy/upstream"
	"github.com/weirdb/weir/internal/testkit"
	"github.com/weirdb/weir/internal/wire/pgwire"
)

// TestListenersThroughConsoleCommands pauses, suspends, resumes and reconnects while listeners
// copy rows in both directions and their channels move: each notification must arrive once, in
// order, and no client may get an error.
func TestListenersThroughConsoleCommands(t *testing.T) {
	t.Parallel()
	const listeners = 6
	notifications := testkit.Rounds(300, 600)
	db := database(t, "CREATE TABLE t (a int)")
	w := start(t, db, func(c *postgres.Config) { c.PoolSize, c.Loops = 4, 2; c.Restless() })
	copyIn := query("COPY t FROM STDIN")
	for row := range 20 {
		copyIn = pgwire.AppendCopyData(copyIn, fmt.Appendf(nil, "%d\n", row))
	}
	copyIn = pgwire.AppendCopyDone(copyIn)
	work := [][]byte{
		query("SELECT 1"), query("COPY (SELECT generate_series(1, 100)) TO STDOUT"), copyIn,
		query("BEGIN; LISTEN other; COMMIT"), query("UNLISTEN other"), query("BEGIN; COPY (SELECT 1) TO STDOUT; COMMIT"),
	}
	done := make(chan error, listeners)
	copied := make([]int, listeners)
	for i := range listeners {
		l := w.wire()
		l.want("LISTEN numbers", "LISTEN I")
		go func() {
			r := rand.New(rand.NewPCG(uint64(i), 3))
			for next := 0; next < notifications; {
				n := r.IntN(len(work))
				l.send(work[n])
				for asked := true; asked || r.IntN(8) > 0 && next < notifications; {
					m, err := l.next()
					switch {
					case err != nil:
						done <- fmt.Errorf("listener %d: %w", i, err)
						return
					case m.typ == pgwire.ServerReady:
						asked = false
						if n == 2 {
							copied[i] += 20
						}
					case m.typ == pgwire.ServerError:
						done <- fmt.Errorf("listener %d: %s", i, m)
						return
					case m.typ == pgwire.ServerNotification:
						if want := fmt.Sprintf("notify:numbers:%d", next); m.String() != want {
							done <- fmt.Errorf("listener %d: heard %s, want %s", i, m, want)
							return
						}
						next++
					}
				}
			}
			done <- nil
		}()
	}
	w.AuditSoon(ctxFor(t))
	notifier := dialWire(t, server(t).Addr(), db)
	notify := func(n int) { notifier.want(fmt.Sprintf("NOTIFY numbers, '%d'", n), "NOTIFY I") }
	for n := range notifications {
		if n%60 != 31 { // which is said while weir is suspended
			notify(n)
		}
		switch n % 60 {
		case 15:
			w.command("RECONNECT " + db)
		case 30:
			w.command("SUSPEND")
			notify(n + 1)
			w.command("RESUME")
		case 45: // which those that rest keep from returning
			ended := w.begin("PAUSE " + db)
			eventually(t, "the database is paused", w.paused)
			w.command("RESUME " + db)
			if err := <-ended; err != nil && !strings.Contains(err.Error(), "was resumed before") {
				t.Errorf("PAUSE: %v", err)
			}
		}
	}
	sum := 0
	for range listeners {
		if err := <-done; err != nil {
			t.Error(err)
		}
	}
	for _, n := range copied {
		sum += n
	}
	notifier.want("SELECT count(*) AS n FROM t", fmt.Sprintf("[n] (%d) SELECT_1 I", sum))
	if p := w.pool(); p.Strays != 0 || p.Unheard != 0 {
		t.Errorf("%d strays, %d listeners ended", p.Strays, p.Unheard)
	}
}

// TestListenersAtAFailover: those that rest, and those within a transaction, are told
// that they may have missed something; they listen again on the new primary, and what
// is said there they hear.
func TestListenersAtAFailover(t *testing.T) {
	t.Parallel()
	primary, standby, w := cluster(t, upstream.TargetReadWrite)
	var resting, busy []*wire
	for range 3 {
		l := w.wire()
		l.want("LISTEN news", "LISTEN I")
		resting = append(resting, l)
		b := w.wire()
		b.want("LISTEN news", "LISTEN I")
		b.want("BEGIN", "BEGIN T")
		busy = append(busy, b)
	}
	w.rest(3)
	primary.Kill()
	sqlOn(t, standby.DSN("postgres"), "SELECT pg_promote()")
	for what, list := range map[string][]*wire{"rested": resting, "was in a transaction": busy} {
		for _, l := range list {
			got := l.end()
			e := errorIn(got)
			if e == nil || !e.Fatal() || e.Code != pgwire.CodeConnectionFailure && e.Code != pgwire.CodeAdminShutdown && e.Code != "57P02" {
				t.Errorf("a listener that %s got %s", what, render(got))
			}
		}
	}
	var again []*wire
	for range 3 {
		l := w.wire()
		l.want("LISTEN news", "LISTEN I")
		again = append(again, l)
	}
	w.rest(3)
	dialWire(t, standby.Addr(), "postgres").want("NOTIFY news, 'promoted'", "NOTIFY I")
	for _, l := range again {
		l.hears("notify:news:promoted")
		l.want("INSERT INTO t VALUES ((SELECT count(*) FROM t))", "INSERT_0_1 I")
	}
}
