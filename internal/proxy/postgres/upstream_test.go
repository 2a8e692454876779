package postgres_test

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"golang.org/x/sync/errgroup"

	"github.com/weirdb/weir/internal/lab"
	"github.com/weirdb/weir/internal/proxy/postgres"
	"github.com/weirdb/weir/internal/proxy/sight"
	"github.com/weirdb/weir/internal/proxy/upstream"
	"github.com/weirdb/weir/internal/wire/pgwire"
)

// cluster starts a primary and a standby that follows it, and a proxy in front of both.
func cluster(t *testing.T, target upstream.Target) (primary, standby *lab.Postgres, w *weir) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	t.Cleanup(cancel)
	server(t) // skips or fails where there is no PostgreSQL
	primary, err := lab.StartPostgres(ctx, serverConfig())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = primary.Discard(context.Background()) }) // a second time, at the end of some tests
	sqlOn(t, primary.DSN("postgres"), "CREATE TABLE t (a int PRIMARY KEY)")
	standby, err = lab.StartStandby(ctx, primary, serverConfig())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = standby.Discard(context.Background()) })
	w = startFor(t, primary, "postgres", func(c *postgres.Config) {
		for _, s := range []*lab.Postgres{standby, primary} { // not in the order of their roles
			c.Hosts = append(c.Hosts, pgwire.ConnectConfig{Address: s.Addr(), User: s.User(), Password: s.Password(), TLSMode: pgwire.TLSDisable})
		}
		c.Target, c.FailoverTimeout = target, patience
	})
	return primary, standby, w
}

// A standby that stops to apply what it receives is seen to be behind, until it goes on.
func TestLagOfAStandbyIsSeen(t *testing.T) {
	t.Parallel()
	primary, standby, w := cluster(t, upstream.TargetReadWrite)
	lag := func() (h sight.HostStatus) {
		for _, h = range w.snapshot().Hosts {
			if h.Address == standby.Addr() {
				break
			}
		}
		return h
	}
	eventually(t, "the standby is not behind", func() bool { h := lag(); return h.LagKnown && h.Behind == 0 && h.Lag == 0 })
	sqlOn(t, standby.DSN("postgres"), "SELECT pg_wal_replay_pause()")
	sqlOn(t, primary.DSN("postgres"), "INSERT INTO t VALUES (1)")
	eventually(t, "the standby is behind", func() bool { h := lag(); return h.LagKnown && h.Behind > 0 && h.Lag > 0 })
	page := connect(t, "postgres://postgres@"+w.Addr().String()+"/weir?sslmode=disable&default_query_exec_mode=simple_protocol")
	rows, err := page.Query(t.Context(), "SHOW HOSTS")
	if err != nil {
		t.Fatal(err)
	}
	hosts, err := pgx.CollectRows(rows, pgx.RowToMap)
	if err != nil {
		t.Fatal(err)
	}
	for _, h := range hosts {
		if known := h["behind"] != "" && h["lag_ms"] != ""; known != (h["role"] == "standby") {
			t.Errorf("SHOW HOSTS: %v", h)
		}
	}
	sqlOn(t, standby.DSN("postgres"), "SELECT pg_wal_replay_resume()")
	eventually(t, "the standby has caught up", func() bool { h := lag(); return h.LagKnown && h.Behind == 0 && h.Lag == 0 })
}

// The primary dies and the standby is promoted: writes wait and go on there, and what
// was acknowledged by the new primary is there once.
func TestPromotedStandbyTakesOver(t *testing.T) {
	t.Parallel()
	primary, standby, w := cluster(t, upstream.TargetReadWrite)
	dsn := "postgres://postgres@" + w.Addr().String() + "/postgres?sslmode=disable"
	inTx := connect(t, dsn)
	if _, err := inTx.Exec(t.Context(), "BEGIN; INSERT INTO t VALUES (-1)"); err != nil {
		t.Fatal(err)
	}

	var next, promoted atomic.Int64
	var wg errgroup.Group
	stop := make(chan struct{})
	acked := make([][]int64, 4)
	for i := range acked {
		conn := connect(t, dsn)
		wg.Go(func() error {
			defer func() { _ = conn.Close(context.Background()) }()
			for {
				select {
				case <-stop:
					return nil
				default:
				}
				n := next.Add(1)
				hint := ""
				if n%2 == 0 {
					hint = "/* batch */ "
				}
				_, err := conn.Exec(t.Context(), hint+"INSERT INTO t VALUES ($1)", n)
				var refused *pgconn.PgError
				switch {
				case err == nil && promoted.Load() > 0:
					acked[i] = append(acked[i], n)
				case err != nil && conn.IsClosed(): // its statement went with the primary
					again, err := pgx.Connect(t.Context(), dsn)
					switch {
					case err == nil:
						conn = again
					case !errors.As(err, &refused): // a login may be under way when the primary dies
						return fmt.Errorf("connect again: %w", err)
					}
				case err != nil && !errors.As(err, &refused) && !strings.Contains(err.Error(), "conn closed"):
					return fmt.Errorf("a statement outside of a transaction: %w", err)
				}
			}
		})
	}
	eventually(t, "writes on the primary", func() bool { return next.Load() > 50 })
	primary.Kill()
	sqlOn(t, standby.DSN("postgres"), "SELECT pg_promote()")
	promoted.Store(1)
	before := next.Load()
	eventually(t, "writes on the promoted server", func() bool { return next.Load() > before+50 })
	close(stop)
	if err := wg.Wait(); err != nil {
		t.Error(err)
	}

	if _, err := inTx.Exec(t.Context(), "INSERT INTO t VALUES (-2)"); err == nil {
		t.Error("a transaction went on that the primary took with it")
	}
	direct := connect(t, standby.DSN("postgres"))
	for _, list := range acked {
		for _, n := range list {
			var found int
			if err := direct.QueryRow(t.Context(), "SELECT count(*) FROM t WHERE a = $1", n).Scan(&found); err != nil || found != 1 {
				t.Fatalf("row %d was acknowledged after the promotion and is there %d times: %v", n, found, err)
			}
		}
	}
	var half int
	if err := direct.QueryRow(t.Context(), "SELECT count(*) FROM t WHERE a < 0").Scan(&half); err != nil || half != 0 {
		t.Errorf("%d rows of the transaction that was cut off are there: %v", half, err)
	}
	if err := w.Healthy(t.Context()); err != nil {
		t.Errorf("after the promotion: %v", err)
	}
	for _, h := range w.snapshot().Hosts {
		if h.Current != (h.Address == standby.Addr()) || h.Current && (h.Role != "primary" || h.Term != 2 || h.Err != "") {
			t.Errorf("host %+v, where connections go to %s", h, standby.Addr())
		}
	}
}

// A primary that hangs looks alive to its connections. When another host has been
// promoted they end, and those who waited on them hear of it.
func TestHungPrimaryIsLeftForThePromotedOne(t *testing.T) {
	t.Parallel()
	primary, standby, w := cluster(t, upstream.TargetReadWrite)
	dsn := "postgres://postgres@" + w.Addr().String() + "/postgres?sslmode=disable"
	idle, busy := connect(t, dsn), connect(t, dsn)
	for i, c := range []*pgx.Conn{idle, busy} {
		if _, err := c.Exec(t.Context(), "INSERT INTO t VALUES ($1)", -i); err != nil {
			t.Fatal(err)
		}
	}
	listener := w.wire()
	listener.want("LISTEN news", "LISTEN I")
	w.rest(1)
	primary.Pause()
	defer primary.Resume()
	hung := make(chan error, 1)
	go func() {
		_, err := busy.Exec(t.Context(), "INSERT INTO t VALUES (1)")
		hung <- err
	}()
	loggedIn := make(chan error, 1)
	go func() { // it asks the server that hangs, and is told nothing of that
		c, err := pgx.Connect(t.Context(), dsn)
		if err == nil {
			err = c.Close(t.Context())
		}
		loggedIn <- err
	}()
	sqlOn(t, standby.DSN("postgres"), "SELECT pg_promote()")
	select {
	case err := <-hung:
		var e *pgconn.PgError
		if err != nil && !errors.As(err, &e) {
			t.Errorf("the statement on the server that hangs: %v", err)
		}
	case <-time.After(patience):
		t.Fatal("the statement on the server that hangs was never answered")
	}
	if err := <-loggedIn; err != nil {
		t.Errorf("a login that came while the server hung: %v", err)
	}
	if _, err := idle.Exec(t.Context(), "INSERT INTO t VALUES (2)"); err != nil {
		t.Errorf("a write after the promotion: %v", err)
	}
	got := listener.end() // it may have missed notifications
	if e := errorIn(got); e == nil || !e.Fatal() {
		t.Errorf("the session that listened on the server that hangs got %s", render(got))
	}
	listener = w.wire()
	listener.want("LISTEN news", "LISTEN I")
	w.rest(1)
	direct := connect(t, standby.DSN("postgres"))
	if _, err := direct.Exec(t.Context(), "NOTIFY news, 'new'"); err != nil {
		t.Error(err)
	}
	listener.hears("notify:news:new")
	var found int
	if err := direct.QueryRow(t.Context(), "SELECT count(*) FROM t WHERE a = 2").Scan(&found); err != nil || found != 1 {
		t.Errorf("the row is %d times on the promoted server: %v", found, err)
	}
}

// Where any host will do, one that does not answer is left out, with no password to log
// in with too: a name may have an address that is not reached from here.
func TestAnyHostThatAnswersWillDo(t *testing.T) {
	t.Parallel()
	nobody, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	_ = nobody.Close()
	db := database(t)
	w := start(t, db, func(c *postgres.Config) {
		there := c.Postgres
		there.User, there.Password = "nobody_at_all", ""
		away := there
		away.Address = nobody.Addr().String()
		c.Postgres, c.Hosts = away, []pgwire.ConnectConfig{away, there}
	})
	w.wire().want("SELECT 1", "[?column?] (1) SELECT_1 I")
	if err := w.Healthy(t.Context()); err != nil {
		t.Error(err)
	}
}

// Readers that want a standby get it, and a login says no where there is none.
func TestStandbyIsChosenWhereItIsWanted(t *testing.T) {
	t.Parallel()
	_, standby, w := cluster(t, upstream.TargetStandby)
	dsn := "postgres://postgres@" + w.Addr().String() + "/postgres?sslmode=disable"
	var recovering bool
	if err := connect(t, dsn).QueryRow(t.Context(), "SELECT pg_is_in_recovery()").Scan(&recovering); err != nil || !recovering {
		t.Errorf("on a standby: %v, %v", recovering, err)
	}
	sqlOn(t, standby.DSN("postgres"), "SELECT pg_promote()")
	eventually(t, "no standby is left", func() bool { return w.Healthy(t.Context()) != nil })
}

// A login that was in progress when connections moved brings a connection to the former host,
// which must not be kept.
func TestConnectionOfALateLoginIsNotKept(t *testing.T) {
	t.Parallel()
	db := database(t)
	w := start(t, db, nil)
	here := upstream.Endpoint{Host: w.Upstream(), Address: w.Upstream()}
	if kept, err := w.Donate(ctxFor(t), db, "postgres", here); err != nil || !kept {
		t.Errorf("a connection to the host that serves: kept %v, %v", kept, err)
	}
	former := upstream.Endpoint{Host: "former:5432", Address: "192.0.2.1:5432"}
	if kept, err := w.Donate(ctxFor(t), db, "postgres", former); err != nil || kept {
		t.Errorf("a connection to a former host: kept %v, %v", kept, err)
	}
}
