package postgres_test

import (
	"context"
	"fmt"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/weirdb/weir/internal/proxy/postgres"
	"github.com/weirdb/weir/internal/wire/pgwire"
)

func restless(c *postgres.Config) { c.Restless() }

// console runs a command of the admin console.
func (w *weir) console(sql string) [][]string {
	w.tb.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	a, err := w.Command(ctx, sql)
	if err != nil {
		w.tb.Fatalf("%s: %v", sql, err)
	}
	if a.Table == nil {
		return nil
	}
	return a.Table.Rows
}

// endHub has the server end the connection that listens for the clients of a database.
func endHub(tb testing.TB, db string) {
	tb.Helper()
	direct := dialWire(tb, server(tb).Addr(), "postgres")
	defer direct.close()
	if got := direct.ask("SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity WHERE application_name = 'weir listener' AND datname = '" + db + "'"); got != "[count] (1) SELECT_1 I" {
		tb.Fatalf("the connection that listens was not found: %s", got)
	}
}

// TestListenersEndWithTheirConnection: they may have missed notifications, as a direct
// session that loses its connection. Those that are busy listen on another, and stay.
func TestListenersEndWithTheirConnection(t *testing.T) {
	t.Parallel()
	db := database(t)
	w := start(t, db, restless)
	resting, busy, deaf := w.wire(), w.wire(), w.wire()
	resting.want("LISTEN news", "LISTEN I")
	busy.want("LISTEN news", "LISTEN I")
	w.rest(2)
	busy.want("BEGIN", "BEGIN T")
	w.rest(1)
	endHub(t, db)
	got := resting.end()
	if e := errorIn(got); len(got) != 1 || e == nil || !e.Fatal() || e.Code != pgwire.CodeAdminShutdown {
		t.Errorf("the listener that rested got %s", render(got))
	}
	busy.want("SELECT 1 AS x", "[x] (1) SELECT_1 T")
	busy.want("COMMIT", "COMMIT I")
	w.rest(1) // by another connection
	deaf.want("NOTIFY news, 'again'", "NOTIFY I")
	busy.hears("notify:news:again")
	busy.want("SELECT count(*) AS n FROM pg_listening_channels()", "[n] (1) SELECT_1 I")
	deaf.want("SELECT 1 AS x", "[x] (1) SELECT_1 I")
	if p := w.pool(); p.Unheard != 1 {
		t.Errorf("%d sessions were counted as ended; want 1", p.Unheard)
	}
}

// TestListenerThatDoesNotReadEnds, and others hear everything.
func TestListenerThatDoesNotReadEnds(t *testing.T) {
	t.Parallel()
	const n, size = 6000, 7900
	w := start(t, database(t), restless)
	silent, reader, notifier := w.wire(), w.wire(), w.wire()
	silent.want("LISTEN flood", "LISTEN I")
	reader.want("LISTEN flood", "LISTEN I")
	w.rest(2)
	notifier.want(fmt.Sprintf("SELECT count(pg_notify('flood', lpad(g::text, %d, '0'))) AS n FROM generate_series(1, %d) g", size, n), fmt.Sprintf("[n] (%d) SELECT_1 I", n))
	for i := 1; i <= n; i++ {
		m, err := reader.next()
		if err != nil || m.typ != pgwire.ServerNotification || !strings.HasSuffix(strings.TrimRight(string(m.body), "\x00"), fmt.Sprintf("%06d", i)) {
			t.Fatalf("notification %d: %.40s, %v", i, m, err)
		}
	}
	eventually(t, "the listener that does not read is disconnected", func() bool { p := w.pool(); return p.Unheard == 1 && p.Listeners == 1 })
}

// TestListenersInOtherEncodingsKeepTheirBackends checks that such listeners keep their backends,
// because only those convert notifications.
func TestListenersInOtherEncodingsKeepTheirBackends(t *testing.T) {
	t.Parallel()
	db := database(t)
	w := start(t, db, restless)
	latin, changing, raw := w.wire(pgwire.Param{Name: "client_encoding", Value: "LATIN1"}), w.wire(), w.wire(pgwire.Param{Name: "client_encoding", Value: "SQL_ASCII"})
	for _, l := range []*wire{latin, changing, raw} {
		l.want("LISTEN news", "LISTEN I")
	}
	w.rest(2)
	direct := dialWire(t, server(t).Addr(), db)
	direct.want("NOTIFY news, 'é'", "NOTIFY I")
	latin.hears("notify:news:\xe9")
	changing.hears("notify:news:é")
	raw.hears("notify:news:é")
	changing.want("SET client_encoding TO latin1", "SET I")
	w.rest(1)
	direct.want("NOTIFY news, 'ü'", "NOTIFY I")
	changing.hears("notify:news:\xfc")
	latin.hears("notify:news:\xfc")
	changing.want("RESET client_encoding", "RESET I")
	w.rest(2)
}

// TestListenersKeepTheirBackends where they are told to.
func TestListenersKeepTheirBackends(t *testing.T) {
	t.Parallel()
	db := database(t)
	w := start(t, db, func(c *postgres.Config) { c.Restless(); c.NoSharedListen = true })
	l := w.wire()
	l.want("LISTEN news", "LISTEN I")
	l.want("SELECT 1 AS x", "[x] (1) SELECT_1 I")
	if p := w.pool(); p.Pinned != 1 || p.Listeners != 0 {
		t.Errorf("%d pinned, %d rest; want the one pinned", p.Pinned, p.Listeners)
	}
	if _, listening := hubs(t, db); listening != 0 {
		t.Errorf("%d connections listen for others", listening)
	}
}

// TestListenersAtTheConsole: what is shown, RECONNECT, and DROP DATABASE behind them.
func TestListenersAtTheConsole(t *testing.T) {
	t.Parallel()
	db := "listeners_console"
	onServer(t, "DROP DATABASE IF EXISTS "+db, "CREATE DATABASE "+db)
	w := start(t, db, restless)
	first, second := w.wire(), w.wire()
	first.want("LISTEN news", "LISTEN I")
	w.rest(1)
	if rows := w.console("SHOW LISTENERS"); len(rows) != 1 || rows[0][0] != db || rows[0][3] != "listening" || rows[0][4] != "1" || rows[0][5] != "1" {
		t.Errorf("SHOW LISTENERS: %q", rows)
	}
	w.console("RECONNECT " + db)
	second.want("LISTEN news", "LISTEN I")
	w.rest(2)
	second.want("NOTIFY news, 'both'", "NOTIFY notify:news:both I")
	first.hears("notify:news:both")
	eventually(t, "two connections listen", func() bool { _, n := hubs(t, db); return n == 2 })
	first.want("SELECT 1 AS x", "[x] (1) SELECT_1 I") // and rests elsewhere
	w.rest(2)
	eventually(t, "one connection listens", func() bool { _, n := hubs(t, db); return n == 1 })
	first.close()
	second.close()
	elsewhere := dialWire(t, w.Addr().String(), "postgres")
	eventually(t, "the clients have left", func() bool { return w.snapshot().Clients == 1 })
	elsewhere.want("DROP DATABASE "+db, "DROP_DATABASE I")
}

// TestWaitForNotification is what pgx makes of it.
func TestWaitForNotification(t *testing.T) {
	t.Parallel()
	ctx := ctxFor(t)
	w := start(t, database(t), restless)
	listener, notifier := connect(t, w.dsn("postgres")), connect(t, w.dsn("postgres"))
	exec := func(c *pgx.Conn, sql string, args ...any) {
		t.Helper()
		if _, err := c.Exec(ctx, sql, args...); err != nil {
			t.Fatalf("%s: %v", sql, err)
		}
	}
	exec(listener, "listen "+pgx.Identifier{"Jobs of the day"}.Sanitize())
	w.rest(1)
	for i := range 20 {
		exec(notifier, "select pg_notify($1, $2)", "Jobs of the day", fmt.Sprint(i))
		n, err := listener.WaitForNotification(ctx)
		if err != nil || n.Payload != fmt.Sprint(i) || n.Channel != "Jobs of the day" || n.PID == listener.PgConn().PID() {
			t.Fatalf("%d: %+v, %v", i, n, err)
		}
		if i%3 == 0 {
			exec(listener, "select pg_notify($1, $2)", "Jobs of the day", "mine")
			if n, err := listener.WaitForNotification(ctx); err != nil || n.Payload != "mine" || n.PID != listener.PgConn().PID() {
				t.Fatalf("%d: %+v, %v, of the session %d", i, n, err, listener.PgConn().PID())
			}
		}
	}
	tx, err := listener.Begin(ctx)
	if err != nil {
		t.Fatal(err)
	}
	for _, sql := range []string{"unlisten *", "listen other"} {
		if _, err := tx.Exec(ctx, sql); err != nil {
			t.Fatal(err)
		}
	}
	if err := tx.Rollback(ctx); err != nil {
		t.Fatal(err)
	}
	exec(notifier, "notify other")
	exec(notifier, `notify "Jobs of the day", 'still'`)
	if n, err := listener.WaitForNotification(ctx); err != nil || n.Payload != "still" {
		t.Errorf("%+v, %v", n, err)
	}
}
