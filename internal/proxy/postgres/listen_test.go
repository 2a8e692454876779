package postgres_test

import (
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/weirdb/weir/internal/proxy/postgres"
	"github.com/weirdb/weir/internal/testkit"
	"github.com/weirdb/weir/internal/wire/pgwire"
)

// rest has listeners come to rest at once: others want their backends.
func (w *weir) rest(listeners int) {
	w.tb.Helper()
	eventually(w.tb, fmt.Sprintf("%d listeners rest", listeners), func() bool { return w.pool().Listeners == listeners })
}

// audited waits until weir has found what every connection without a client holds.
func (w *weir) audited() {
	w.tb.Helper()
	eventually(w.tb, "all connections are audited", func() bool { return w.AuditSoon(ctxFor(w.tb)) == 0 })
}

// hears reads one notification.
func (w *wire) hears(want string) {
	w.tb.Helper()
	m, err := w.next()
	if err != nil || m.String() != want {
		w.tb.Fatalf("got %s, %v; want %s", m, err, want)
	}
}

// hubs counts the connections of a database, and those of them that listen for others.
func hubs(tb testing.TB, db string) (all, listening int) {
	tb.Helper()
	direct := dialWire(tb, server(tb).Addr(), "postgres")
	defer direct.close()
	direct.send(query("SELECT count(*), count(*) FILTER (WHERE application_name = 'weir listener') FROM pg_stat_activity WHERE datname = '" + db + "'"))
	for _, m := range direct.ready() {
		if m.typ == pgwire.ServerDataRow {
			row, err := pgwire.ParseDataRow(m.body, nil)
			if err != nil {
				tb.Fatal(err)
			}
			all, _ = strconv.Atoi(string(row[0]))
			listening, _ = strconv.Atoi(string(row[1]))
		}
	}
	return all, listening
}

// TestListenersCostOneConnection: those of one user in one database that rest.
func TestListenersCostOneConnection(t *testing.T) {
	t.Parallel()
	const n = 60
	db := database(t)
	w := start(t, db, func(c *postgres.Config) { c.PoolSize, c.Loops = 3, 2 })
	listeners := make([]*wire, n)
	for i := range listeners {
		listeners[i] = w.wire()
		listeners[i].want(fmt.Sprintf("LISTEN mine%d; LISTEN ours", i), "LISTEN LISTEN I")
	}
	w.rest(n)
	if all, listening := hubs(t, db); listening != 1 || all > 1+2*2 {
		t.Errorf("%d connections, %d of which listen for clients; want at most 5 and 1", all, listening)
	}
	direct := dialWire(t, server(t).Addr(), db)
	for round := range 3 {
		direct.want(fmt.Sprintf("NOTIFY ours, '%d'", round), "NOTIFY I")
		for i, l := range listeners {
			l.hears(fmt.Sprintf("notify:ours:%d", round))
			if i%10 == round {
				direct.want(fmt.Sprintf("NOTIFY mine%d, 'only'", i), "NOTIFY I")
				l.hears(fmt.Sprintf("notify:mine%d:only", i))
			}
		}
	}
	// They go on, each on any backend, and find their channels there.
	for i, l := range listeners {
		l.want("SELECT count(*) AS n FROM pg_listening_channels()", "[n] (2) SELECT_1 I")
		l.want("UNLISTEN ours", "UNLISTEN I")
		if i%3 == 0 {
			l.close()
		}
	}
	direct.want("NOTIFY ours, 'nobody'", "NOTIFY I")
	for i, l := range listeners {
		if i%3 == 0 {
			continue
		}
		direct.want(fmt.Sprintf("NOTIFY mine%d, 'last'", i), "NOTIFY I")
		l.hears(fmt.Sprintf("notify:mine%d:last", i))
		l.want("UNLISTEN *", "UNLISTEN I")
	}
	w.rest(0)
	w.audited()
	eventually(t, "nobody is pinned", func() bool { return w.pool().Pinned == 0 && w.pool().Channels == 0 })
	if strays := w.pool().Strays; strays != 0 {
		t.Errorf("%d backends held state of nobody's", strays)
	}
}

// A listenStep is what one client does, or an outsider; text is what it may see of it.
var listenSteps = []string{
	"LISTEN a", "LISTEN b", `LISTEN "Quoted ""One"""`, "listen A", "LISTEN " + strings.Repeat("x", 70), "LISTEN ü", "UNLISTEN a", "UNLISTEN b", "UNLISTEN *", "UNLISTEN nowhere",
	"BEGIN", "BEGIN", "COMMIT", "COMMIT", "ROLLBACK", "SAVEPOINT s", "ROLLBACK TO s", "RELEASE s",
	"NOTIFY a, '{n}'", "NOTIFY b", "NOTIFY a, 'same'; NOTIFY a, 'same'", "SELECT pg_notify('a', '{n}')", "SELECT pg_notify('" + strings.Repeat("x", 63) + "', 'ü{n}')", "NOTIFY ü, '{n}'", `NOTIFY "Quoted ""One""", '{n}'`,
	"SELECT pg_listening_channels()", "SELECT count(*) FROM pg_listening_channels()", "SELECT 1", "", "SELECT 1/0", "SHOW work_mem", "INSERT INTO t VALUES ({n})",
	"DISCARD ALL", "LISTEN a; LISTEN b; SELECT 1", "UNLISTEN *; SELECT 1/0", "BEGIN; LISTEN b; COMMIT", "BEGIN; UNLISTEN a; ROLLBACK", "LISTEN b; UNLISTEN b", "UNLISTEN a; LISTEN a",
	"DO $$ BEGIN EXECUTE 'UNLISTEN a'; END $$", "DO $$ BEGIN EXECUTE 'LISTEN a'; END $$", "SELECT pg_advisory_unlock_all(); CLOSE ALL; UNLISTEN *; RESET ALL",
	"SET client_encoding TO latin1", "SET client_encoding TO utf8", "SET work_mem = '{n}MB'", "SELECT set_config('application_name', '{n}', false)",
	"SET ROLE weir_other", "RESET ROLE",
}

// split takes an answer apart: notifications, with whose they are, and all else.
func (w *wire) split(ms []message) (heard, rest string) {
	var other []message
	for _, m := range ms {
		switch m.typ {
		case pgwire.ServerNotification:
			who := "other"
			if binary.BigEndian.Uint32(m.body) == w.pid {
				who = "me"
			}
			heard += m.String() + " by " + who + "\n"
		case pgwire.ServerParameterStatus:
		default:
			other = append(other, m)
		}
	}
	return heard, render(other)
}

// TestListenersHearWhatDirectOnesDo runs clients through weir and directly, step by step:
// each answer is the same, and so are the notifications before its end, in their order.
// Channels move whenever they can.
func TestListenersHearWhatDirectOnesDo(t *testing.T) {
	t.Parallel()
	seed := rand.Uint64()
	if s := os.Getenv("WEIR_SEED"); s != "" {
		seed, _ = strconv.ParseUint(s, 10, 64)
	}
	steps := 400
	if n, err := strconv.Atoi(os.Getenv("WEIR_STEPS")); err == nil {
		steps = n
	}
	t.Logf("WEIR_SEED=%d", seed)
	r := rand.New(rand.NewPCG(seed, 1))
	setup := "CREATE TABLE t (x int); GRANT ALL ON t TO public"
	through, straight := twins(t, setup)
	w := start(t, through, func(c *postgres.Config) { c.PoolSize = 6; c.Restless() })
	type pair struct{ weir, direct *wire }
	clients := make([]pair, 4)
	for i := range clients {
		clients[i] = pair{w.wire(), dialWire(t, server(t).Addr(), straight)}
	}
	outsider := pair{dialWire(t, server(t).Addr(), through), dialWire(t, server(t).Addr(), straight)}
	w.AuditSoon(ctxFor(t))
	inTx := -1
	var log []string
	for n := range steps {
		if r.IntN(3) == 0 {
			sql := strings.ReplaceAll([]string{"NOTIFY a, 'out{n}'", "NOTIFY b, 'out{n}'", "NOTIFY b; NOTIFY a, '{n}'", `NOTIFY "Quoted ""One""", '{n}'`, "NOTIFY ü, 'é{n}'"}[r.IntN(5)], "{n}", strconv.Itoa(n))
			log = append(log, "outsider: "+sql)
			outsider.weir.ask(sql)
			outsider.direct.ask(sql)
		}
		i := r.IntN(len(clients))
		if inTx >= 0 && r.IntN(2) == 0 {
			i = inTx
		}
		sql := strings.ReplaceAll(listenSteps[r.IntN(len(listenSteps))], "{n}", strconv.Itoa(100+n))
		if inTx >= 0 && i != inTx && strings.HasPrefix(sql, "BEGIN") {
			continue // one at a time, or the others would wait for ever
		}
		msg := query(sql)
		if extended := r.IntN(3) == 0 && !strings.Contains(sql, ";"); extended {
			msg = run(sql)
		} else if r.IntN(20) == 0 {
			sql, msg = "(sync)", sync()
		}
		log = append(log, fmt.Sprintf("client %d: %s", i, sql))
		if inTx != i && r.IntN(25) == 0 {
			log = append(log, fmt.Sprintf("client %d is another one", i))
			clients[i].weir.close()
			clients[i].direct.close()
			clients[i] = pair{w.wire(), dialWire(t, server(t).Addr(), straight)}
		}
		c := clients[i]
		c.direct.send(msg)
		c.weir.send(msg)
		want, got := c.direct.ready(), c.weir.ready()
		wantHeard, wantRest := c.direct.split(want)
		gotHeard, gotRest := c.weir.split(got)
		if wantHeard != gotHeard || wantRest != gotRest {
			t.Fatalf("%s\ngot  %s\n%swant %s\n%s", strings.Join(log[max(0, len(log)-40):], "\n"), gotRest, gotHeard, wantRest, wantHeard)
		}
		switch status := want[len(want)-1].body[0]; {
		case status != pgwire.StatusIdle:
			inTx = i
		case inTx == i:
			inTx = -1
		}
	}
	p := w.pool()
	t.Logf("%d pins, %d notifications given past backends", p.Pins["listen"], p.Notified)
	if p.Notified == 0 || p.Unheard != 0 || p.Strays != 0 {
		t.Errorf("%d notifications were given, %d sessions ended, %d strays", p.Notified, p.Unheard, p.Strays)
	}
}

// TestNoNotificationIsLostOrTwice has channels move while notifications come without a
// break: each is heard once, in order.
func TestNoNotificationIsLostOrTwice(t *testing.T) {
	t.Parallel()
	const listeners = 6
	notifications := testkit.Rounds(600, 1500)
	db := database(t)
	w := start(t, db, func(c *postgres.Config) { c.PoolSize, c.Loops = 4, 2; c.Restless() })
	var all []*wire
	for range listeners {
		l := w.wire()
		l.want("LISTEN numbers", "LISTEN I")
		all = append(all, l)
	}
	done := make(chan error, listeners)
	for i, l := range all {
		go func() {
			next := 0
			r := rand.New(rand.NewPCG(uint64(i), 2))
			for next < notifications {
				l.send(query([]string{"SELECT 1", "BEGIN; SELECT 1; COMMIT", "LISTEN other", "UNLISTEN other", "SELECT pg_sleep(0.001)"}[r.IntN(5)]))
				for asked := true; asked || r.IntN(8) > 0 && next < notifications; {
					m, err := l.next()
					switch {
					case err != nil:
						done <- fmt.Errorf("listener %d: %w", i, err)
						return
					case m.typ == pgwire.ServerReady:
						asked = false
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
	notifier := dialWire(t, server(t).Addr(), db)
	for n := range notifications {
		notifier.want(fmt.Sprintf("NOTIFY numbers, '%d'", n), "NOTIFY I")
	}
	for range all {
		if err := <-done; err != nil {
			t.Error(err)
		}
	}
	t.Logf("%d notifications were given past backends", w.pool().Notified)
}

var _ = slices.Sort[[]int]
