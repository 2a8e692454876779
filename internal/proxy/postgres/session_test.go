package postgres_test

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/weirdb/weir/internal/proxy/postgres"
	"github.com/weirdb/weir/internal/proxy/session"
	"github.com/weirdb/weir/internal/wire/pgwire"
)

// twoBackends makes sessions meet: everything that they do not hold on to is
// done on one of two backends.
func twoBackends(c *postgres.Config) { c.PoolSize = 2 }

// churn has another client use every free backend, so that whatever a session
// left there would be seen, and whatever it relies on there would be gone.
func churn(other *wire) {
	other.tb.Helper()
	for range 4 {
		other.want("BEGIN", "BEGIN T")
		other.want("SELECT 1 AS x", "[x] (1) SELECT_1 T")
		other.want("COMMIT", "COMMIT I")
	}
}

func TestSettingsFollowTheirClientAcrossBackends(t *testing.T) {
	t.Parallel()
	w := start(t, database(t, "CREATE SCHEMA mine", "CREATE TABLE mine.private (x int)"), twoBackends)
	other := w.wire()
	_, plainDate, _ := strings.Cut(dialWire(t, server(t).Addr(), w.db).ask("SHOW datestyle"), "(")
	plainDate, _, _ = strings.Cut(plainDate, ")")
	for _, c := range []struct{ name, set, show, want, plain string }{
		{"search path", "SET search_path TO mine, public", "SHOW search_path", "mine, public", `"$user", public`},
		{"time zone", "SET TimeZone = 'Asia/Tokyo'", "SHOW TimeZone", "Asia/Tokyo", ""},
		{"time zone in words", "SET TIME ZONE 'Asia/Kathmandu'", "SHOW TimeZone", "Asia/Kathmandu", ""},
		{"custom", "SET myapp.tenant = E'it''s \\\\ 7'", "SHOW myapp.tenant", `it's \ 7`, ""},
		{"quoted name", `SET "myapp"."Weird" TO 'x'`, `SHOW myapp.weird`, "x", ""},
		{"number", "SET work_mem = '12MB'", "SHOW work_mem", "12MB", "4MB"},
		{"set_config", "SELECT set_config('myapp.viaf', 'q', false) AS s", "SHOW myapp.viaf", "q", ""},
		{"date style", "SET datestyle = 'German'", "SHOW datestyle", "German, DMY", plainDate},
		{"application_name", "SET application_name = 'named'", "SHOW application_name", "named", ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			w := w.within(t)
			mine := w.wire()
			if got := mine.ask(c.set); strings.Contains(got, "ERROR") {
				t.Fatalf("%s: %s", c.set, got)
			}
			churn(other)
			for range 3 {
				if got := mine.ask(c.show); !strings.Contains(got, "("+c.want+")") {
					t.Errorf("%s after %s: %s, want %s", c.show, c.set, got, c.want)
				}
				if got := other.ask(c.show); strings.Contains(got, "("+c.want+")") {
					t.Errorf("another client sees it: %s: %s", c.show, got)
				} else if c.plain != "" && !strings.Contains(got, "("+c.plain+")") {
					t.Errorf("another client: %s: %s, want %s", c.show, got, c.plain)
				}
			}
			mine.close()
		})
	}
	mine := w.wire()
	mine.want("SET search_path TO mine", "SET I")
	for range 3 {
		churn(other)
		mine.want("SELECT x FROM private", "[x] SELECT_0 I")
		if got := other.ask("SELECT x FROM private"); got != "ERROR:42P01 I" {
			t.Errorf("a client without the search path: %s", got)
		}
	}
}

func TestSetEndsAsInADirectSession(t *testing.T) {
	t.Parallel()
	w := start(t, database(t), twoBackends)
	other := w.wire()
	for _, c := range []struct {
		name  string
		steps []string
		want  string // of SHOW myapp.x, after SET myapp.x = 'before'
	}{
		{"local", []string{"BEGIN", "SET LOCAL myapp.x = 'in'", "COMMIT"}, "before"},
		{"rolled back", []string{"BEGIN", "SET myapp.x = 'in'", "ROLLBACK"}, "before"},
		{"committed", []string{"BEGIN", "SET myapp.x = 'in'", "COMMIT"}, "in"},
		{"failed commit", []string{"BEGIN", "SET myapp.x = 'in'", "SELECT 1/0", "COMMIT"}, "before"},
		{"chained commit", []string{"BEGIN", "SET myapp.x = 'in'", "COMMIT AND CHAIN", "ROLLBACK"}, "in"},
		{"chained rollback", []string{"BEGIN", "SET myapp.x = 'in'", "ROLLBACK AND CHAIN", "COMMIT"}, "before"},
		{"savepoint kept", []string{"BEGIN", "SAVEPOINT s", "SET myapp.x = 'in'", "RELEASE s", "COMMIT"}, "in"},
		{"savepoint undone", []string{"BEGIN", "SAVEPOINT s", "SET myapp.x = 'in'", "ROLLBACK TO s", "COMMIT"}, "before"},
		{"savepoint, two sets", []string{"BEGIN", "SET myapp.x = 'out'", "SAVEPOINT s", "SET myapp.x = 'in'", "ROLLBACK TO s", "COMMIT"}, "out"},
		{"many in one text", []string{"SET myapp.x = 'a'; SET myapp.x = 'b'"}, "b"},
		{"many, failing", []string{"SET myapp.x = 'a'; SELECT 1/0"}, "before"},
		{"transaction in one text", []string{"BEGIN; SET myapp.x = 'a'; COMMIT"}, "a"},
		{"bad value", []string{"SET work_mem = 'much'"}, "before"},
		{"other reset", []string{"SET myapp.y = '1'", "RESET myapp.y"}, "before"},
		{"in DO", []string{"DO $$ BEGIN PERFORM set_config('myapp.x', 'do', false); END $$"}, "do"},
		{"in DO by SET", []string{"DO $$ BEGIN SET myapp.x = 'do'; END $$"}, "do"},
	} {
		t.Run(c.name, func(t *testing.T) {
			w := w.within(t)
			mine := w.wire()
			mine.want("SET myapp.x = 'before'", "SET I")
			for _, sql := range c.steps {
				mine.ask(sql)
			}
			churn(other)
			mine.want("SHOW myapp.x", "[myapp.x] ("+c.want+") SHOW I")
			if got := other.ask("SELECT current_setting('myapp.x', true) AS x"); got != "[x] () SELECT_1 I" && got != "[x] (null) SELECT_1 I" {
				t.Errorf("another client sees %s", got)
			}
			mine.close()
		})
	}
}

func TestResetGoesBackToTheStartupParameters(t *testing.T) {
	t.Parallel()
	w := start(t, database(t), twoBackends)
	other := w.wire()
	mine := w.wire(
		pgwire.Param{Name: "options", Value: `-c work_mem=7MB -c myapp.name=a\ b --search-path=pg_catalog`},
		pgwire.Param{Name: "application_name", Value: "starter"},
		pgwire.Param{Name: "timezone", Value: "Asia/Tokyo"},
	)
	if got := mine.params["TimeZone"]; got != "Asia/Tokyo" {
		t.Errorf("reported TimeZone is %q", got)
	}
	if got := mine.params["application_name"]; got != "starter" {
		t.Errorf("reported application_name is %q", got)
	}
	check := func(when string) {
		t.Helper()
		churn(other)
		for show, want := range map[string]string{
			"work_mem": "7MB", "myapp.name": "a b", "search_path": "pg_catalog", "application_name": "starter", "timezone": "Asia/Tokyo",
		} {
			if got := mine.ask("SELECT current_setting('" + show + "', true) AS x"); got != "[x] ("+want+") SELECT_1 I" {
				t.Errorf("%s: %s is %s, want %s", when, show, got, want)
			}
		}
		if got := other.ask("SELECT current_setting('work_mem') AS x"); got != "[x] (4MB) SELECT_1 I" {
			t.Errorf("another client has work_mem %s", got)
		}
	}
	check("at start")
	mine.want("SET work_mem = '9MB'", "SET I")
	mine.want("RESET work_mem", "RESET I")
	check("after RESET of one")
	mine.ask("SET TimeZone = 'UTC'")
	mine.want("SET work_mem TO DEFAULT", "SET I")
	mine.ask("RESET ALL")
	check("after RESET ALL")
	mine.ask("SET search_path = public")
	mine.ask("SET application_name = 'else'")
	mine.ask("DISCARD ALL")
	check("after DISCARD ALL")
	// The messages to the client in the meantime add up to the truth.
	for name, want := range map[string]string{"TimeZone": "Asia/Tokyo", "application_name": "starter"} {
		if got := mine.params[name]; got != want {
			t.Errorf("the client was told at last that %s is %q, want %q", name, got, want)
		}
	}
}

func TestBadStartupParametersAreRefusedAsByTheServer(t *testing.T) {
	t.Parallel()
	w := start(t, database(t), nil)
	for _, p := range []pgwire.Param{
		{Name: "options", Value: "-c work_mem=much"},
		{Name: "no_such_setting", Value: "1"},
		{Name: "client_encoding", Value: "klingon"},
	} {
		var codes []string
		for _, addr := range []string{server(t).Addr(), w.Addr().String()} {
			_, err := pgwire.Connect(t.Context(), pgwire.ConnectConfig{Address: addr, User: "postgres", Database: w.db, TLSMode: pgwire.TLSDisable, Params: []pgwire.Param{p}})
			if err == nil {
				t.Errorf("%s=%s: accepted by %s", p.Name, p.Value, addr)
			}
			codes = append(codes, pgwire.CodeOf(err))
		}
		if codes[0] != codes[1] {
			t.Errorf("%s=%s: the server says %s, weir %s", p.Name, p.Value, codes[0], codes[1])
		}
	}
	w.wire().want("SELECT 1 AS x", "[x] (1) SELECT_1 I") // and a good one gets in
}

func TestSessionStatePinsAndUnpins(t *testing.T) {
	t.Parallel()
	w := start(t, database(t, "CREATE TABLE t (id serial, x int)", "INSERT INTO t (x) SELECT g FROM generate_series(1, 5) g", "CREATE ROLE pinned_role_"+"x"), func(c *postgres.Config) { c.PoolSize, c.NoSharedListen = 3, true })
	t.Cleanup(func() { onServer(t, "DROP ROLE pinned_role_x") })
	other := w.wire()
	for _, c := range []struct {
		name, cause string
		enter       []string
		probe, want string
		alien       string // what another client gets from the probe must not be this
		leave       []string
		stays       bool // the pin stays until the client leaves
	}{
		{"temporary table", "temp", []string{"CREATE TEMP TABLE tt (x int)", "INSERT INTO tt VALUES (1)"}, "SELECT x FROM tt", "[x] (1) SELECT_1 I", "(1)", []string{"DROP TABLE tt"}, false},
		{"temporary table on commit drop", "temp", []string{"BEGIN", "CREATE TEMP TABLE tt (x int) ON COMMIT DROP"}, "SELECT x FROM tt", "[x] SELECT_0 T", "SELECT_0", []string{"COMMIT"}, false},
		{"select into temporary", "temp", []string{"SELECT 1 AS x INTO TEMP tt"}, "SELECT x FROM tt", "[x] (1) SELECT_1 I", "(1)", []string{"DISCARD TEMP"}, false},
		{"advisory lock", "advisory_lock", []string{"SELECT pg_advisory_lock(4711)"}, "SELECT count(*) AS n FROM pg_locks WHERE locktype = 'advisory' AND pid = pg_backend_pid() AND objid = 4711", "[n] (1) SELECT_1 I", "(1)", []string{"SELECT pg_advisory_unlock(4711)"}, false},
		{"held cursor", "hold_cursor", []string{"DECLARE hc CURSOR WITH HOLD FOR SELECT x FROM t ORDER BY x", "FETCH 1 FROM hc"}, "FETCH 0 FROM hc", "[x] (1) FETCH_1 I", "FETCH", []string{"CLOSE hc"}, false},
		{"SQL PREPARE", "prepare", []string{"PREPARE pp AS SELECT 7 AS x"}, "EXECUTE pp", "[x] (7) SELECT_1 I", "(7)", []string{"DEALLOCATE pp"}, false},
		{"listen", "listen", []string{"LISTEN ch"}, "SELECT count(*) AS n FROM pg_listening_channels()", "[n] (1) SELECT_1 I", "(1)", []string{"UNLISTEN ch"}, false},
		{"role", "role", []string{"SET ROLE pinned_role_x"}, "SELECT current_user AS u", "[u] (pinned_role_x) SELECT_1 I", "pinned_role_x", []string{"RESET ROLE"}, true},
		{"session authorization", "role", []string{"SET SESSION AUTHORIZATION pinned_role_x"}, "SELECT session_user AS u", "[u] (pinned_role_x) SELECT_1 I", "pinned_role_x", []string{"DISCARD ALL"}, false},
		{"everything discarded", "temp", []string{"CREATE TEMP TABLE tt (x int)", "LISTEN ch", "PREPARE pp AS SELECT 7 AS x"}, "EXECUTE pp", "[x] (7) SELECT_1 I", "(7)", []string{"DISCARD ALL"}, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			w := w.within(t)
			before := w.pool().Pins[c.cause]
			mine := w.wire()
			for _, sql := range c.enter {
				if got := mine.ask(sql); strings.Contains(got, "ERROR") {
					t.Fatalf("%s: %s", sql, got)
				}
			}
			eventually(t, "one client is pinned", func() bool { return w.pool().Pinned == 1 })
			if n := w.pool().Pins[c.cause] - before; n == 0 {
				t.Errorf("no pin was counted for %s", c.cause)
			}
			for range 3 {
				churn(other)
				mine.want(c.probe, c.want)
				if got := other.ask(c.probe); strings.Contains(got, c.alien) {
					t.Errorf("another client sees it: %s", got)
				}
			}
			for _, sql := range c.leave {
				mine.ask(sql)
			}
			if !c.stays {
				eventually(t, "the pin is gone", func() bool { return w.pool().Pinned == 0 })
			}
			mine.close()
			eventually(t, "the client is gone and its backend clean", func() bool {
				p := w.pool()
				return p.Pinned == 0 && p.Owned == 0
			})
			if got := other.ask(c.probe); strings.Contains(got, c.alien) {
				t.Errorf("left behind for another client: %s", got)
			}
		})
	}
}

// Roles of startup messages hold for their own clients only. The startup message may set what
// such a role may not.
func TestRolesOfStartupMessages(t *testing.T) {
	t.Parallel()
	db := database(t)
	w := start(t, db, func(c *postgres.Config) { c.PoolSize, c.Loops = 1, 1 })
	const probe = "SELECT current_user AS u, session_user AS s, current_setting('session_replication_role') AS r, current_setting('lc_messages') AS l"
	plain := w.wire()
	want := dialWire(t, server(t).Addr(), db).ask(probe)
	var directly, all []*wire
	var wants []string
	for _, options := range []string{
		"-c role=weir_other", "-c session_authorization=weir_other", "-c session_authorization=weir_rls -c role=weir_rls",
		"-c role=weir_other -c session_replication_role=replica", "-c session_authorization=weir_other -c lc_messages=C -c session_replication_role=local",
	} {
		as := pgwire.Param{Name: "options", Value: options}
		directly = append(directly, dialWire(t, server(t).Addr(), db, as))
		wants = append(wants, directly[len(directly)-1].ask(probe))
		all = append(all, dialWire(t, w.Addr().String(), db, as))
	}
	for range 2 {
		for i, c := range all {
			plain.want(probe, want)
			c.want(probe, wants[i])
			all[(i+1)%len(all)].want(probe, wants[(i+1)%len(all)])
		}
	}
	for i, c := range all {
		same := func(sql string) {
			t.Helper()
			want, got := directly[i].ask(sql), c.ask(sql)
			if got != want {
				t.Errorf("%s: %s, want %s", sql, got, want)
			}
		}
		for _, sql := range []string{
			"RESET ROLE", "SET ROLE TO DEFAULT", "SET LOCAL role = DEFAULT", "SET ROLE NONE", "RESET ALL", "SELECT 1; RESET ROLE", "RESET ROLE; SET ROLE weir_rls",
			"SELECT set_config('role', 'weir_rls', true)", "SELECT set_config('role', NULL, false)", "DO 'BEGIN RESET ROLE; END'", "RESET ROLE; " + probe, "RESET ROLE; SET ROLE NONE",
			"SELECT 1/0; RESET ROLE", "BEGIN; RESET ROLE; ROLLBACK", "RESET SESSION AUTHORIZATION", "SET SESSION AUTHORIZATION DEFAULT", "SET SESSION AUTHORIZATION weir_rls",
		} {
			for _, script := range [][]string{{"SET ROLE NONE", sql}, {"SET ROLE NONE", "BEGIN", sql, probe, "ROLLBACK"}, {"BEGIN", "SET LOCAL ROLE NONE", sql, probe, "COMMIT"}} {
				for _, sql := range append(script, probe, "RESET SESSION AUTHORIZATION", "RESET ROLE", probe) {
					same(sql)
				}
			}
		}
		answer := func(c *wire, texts []string) string {
			for _, sql := range texts {
				c.send(parse("", sql), bind("", ""), execute("", 0))
			}
			c.send(sync())
			return render(slices.DeleteFunc(c.ready(), func(m message) bool { return m.typ == pgwire.ServerParameterStatus }))
		}
		for _, texts := range [][]string{{"SET ROLE NONE"}, {"RESET ROLE", probe}, {"SET ROLE NONE"}, {"BEGIN", "SET LOCAL role = DEFAULT", probe}, {"COMMIT", probe}} {
			if want, got := answer(directly[i], texts), answer(c, texts); got != want {
				t.Errorf("%q: %s, want %s", texts, got, want)
			}
		}
		same("DISCARD ALL")
		same(probe)
	}
	w.audited()
	plain.want(probe, want)
	for _, login := range []struct{ user, role string }{{"postgres", "weir_nobody"}, {"weir_rls", "weir_other"}, {"postgres", ""}} {
		refusal := func(dsn string) string {
			cfg, err := pgx.ParseConfig(dsn)
			if err != nil {
				t.Fatal(err)
			}
			cfg.User, cfg.RuntimeParams["role"] = login.user, login.role
			conn, err := pgx.ConnectConfig(ctxFor(t), cfg)
			if err == nil {
				_ = conn.Close(ctxFor(t))
			}
			var refused *pgconn.PgError
			if !errors.As(err, &refused) {
				return fmt.Sprint(err)
			}
			return refused.Severity + refused.Code + refused.Message
		}
		if want, got := refusal(server(t).DSN(db)), refusal(w.dsn(db)); got != want {
			t.Errorf("role %q of %s: %s, want %s", login.role, login.user, got, want)
		}
	}
	if n := w.pool().Strays; n != 0 {
		t.Errorf("%d connections held state of nobody's", n)
	}
}

func TestStateOfAClientThatVanishesIsCleaned(t *testing.T) {
	t.Parallel()
	w := start(t, database(t), func(c *postgres.Config) { c.PoolSize = 1 })
	mine := w.wire()
	for _, sql := range []string{"CREATE TEMP TABLE tt (x int)", "SELECT pg_advisory_lock(99)", "LISTEN ch", "PREPARE pp AS SELECT 1", "SET ROLE postgres", "BEGIN", "SET myapp.x = 'left'"} {
		mine.ask(sql)
	}
	mine.close()
	other := w.wire()
	other.want("SELECT count(*) AS n FROM pg_class WHERE relname = 'tt' AND pg_table_is_visible(oid)", "[n] (0) SELECT_1 I")
	other.want("SELECT count(*) AS n FROM pg_locks WHERE locktype = 'advisory' AND objid = 99", "[n] (0) SELECT_1 I")
	other.want("SELECT count(*) AS n FROM pg_listening_channels()", "[n] (0) SELECT_1 I")
	other.want("SELECT count(*) AS n FROM pg_prepared_statements WHERE from_sql", "[n] (0) SELECT_1 I")
	if got := other.ask("SELECT current_setting('myapp.x', true) AS x"); strings.Contains(got, "left") {
		t.Errorf("a setting was left: %s", got)
	}
}

func TestNotificationsReachTheirListener(t *testing.T) {
	t.Parallel()
	w := start(t, database(t), func(c *postgres.Config) { c.PoolSize = 3 })
	listener, other := w.wire(), w.wire()
	listener.want("LISTEN news", "LISTEN I")
	other.want("NOTIFY news, 'one'", "NOTIFY I")
	m, err := listener.next()
	if err != nil || m.String() != "notify:news:one" {
		t.Errorf("the idle listener got %s, %v", m, err)
	}
	other.want("SELECT pg_notify('news', 'two')", "[pg_notify] () SELECT_1 I")
	if m, err := listener.next(); err != nil || m.String() != "notify:news:two" {
		t.Errorf("the idle listener got %s, %v", m, err)
	}
	listener.want("NOTIFY news, 'self'", "NOTIFY notify:news:self I")
	listener.want("UNLISTEN *", "UNLISTEN I")
	eventually(t, "nobody is pinned", func() bool { return w.pool().Pinned == 0 })
	other.want("NOTIFY news, 'late'", "NOTIFY I")
	listener.want("SELECT 1 AS x", "[x] (1) SELECT_1 I")
	churn(other)
}

// TestDiscardedSequencesAreDiscardedEverywhere: a client's numbers may lie on more
// backends than the one that DISCARD SEQUENCES reaches.
func TestDiscardedSequencesAreDiscardedEverywhere(t *testing.T) {
	t.Parallel()
	w := start(t, database(t, "CREATE TABLE t (id serial, x int)"), func(c *postgres.Config) { c.PoolSize = 4 })
	mine, others := w.wire(), []*wire{w.wire(), w.wire(), w.wire()}
	for n := range 60 {
		discard := []string{"DISCARD SEQUENCES", "discard /* all */ sequences", "DISCARD ALL", "SELECT 1; DISCARD SEQUENCES"}[n%4]
		mine.want("INSERT INTO t (x) VALUES (1)", "INSERT_0_1 I")
		held := others[n%3]
		held.want("BEGIN", "BEGIN T")
		held.ask("SELECT 1")
		mine.ask("INSERT INTO t (x) VALUES (1)")
		held.want("COMMIT", "COMMIT I")
		churn(others[(n+1)%3])
		if got := mine.ask(discard); !strings.Contains(got, "DISCARD") {
			t.Fatal(got)
		}
		for _, c := range others {
			c.ask("SELECT count(*) FROM t")
		}
		if got := mine.ask("SELECT lastval()"); !strings.Contains(got, "55000") {
			t.Fatalf("round %d: after %s: %s", n, discard, got)
		}
	}
}

func TestSequenceValuesAreNeverAnotherClients(t *testing.T) {
	t.Parallel()
	w := start(t, database(t, "CREATE SEQUENCE s", "CREATE TABLE t (id serial, x int)"), func(c *postgres.Config) { c.PoolSize = 4 })
	mine, other := w.wire(), w.wire()
	mine.want("INSERT INTO t (x) VALUES (1)", "INSERT_0_1 I")
	other.want("INSERT INTO t (x) VALUES (2)", "INSERT_0_1 I")
	// Across statements the first reading may be undefined, never wrong; from
	// then on it is right.
	if got := mine.ask("SELECT currval('t_id_seq') AS v"); got != "[v] (1) SELECT_1 I" && !strings.Contains(got, "55000") {
		t.Errorf("currval: %s", got)
	}
	for i, sql := range []string{"SELECT nextval('s') AS v", "INSERT INTO t (x) VALUES (3) RETURNING id AS v"} {
		first := mine.ask(sql)
		churn(other)
		other.ask(sql)
		again := mine.ask([]string{"SELECT currval('s') AS v", "SELECT lastval() AS v"}[i])
		if strings.Split(first, " ")[1] != strings.Split(again, " ")[1] {
			t.Errorf("%s gave %s, read back %s", sql, first, again)
		}
	}
	third := w.wire()
	if got := third.ask("SELECT lastval()"); !strings.Contains(got, "55000") {
		t.Errorf("lastval of a client without one: %s", got)
	}
	mine.want("BEGIN", "BEGIN T")
	first := mine.ask("SELECT nextval('s') AS v")
	other.ask("SELECT nextval('s') AS v")
	if again := mine.ask("SELECT currval('s') AS v"); again != first {
		t.Errorf("in a transaction: nextval %s, currval %s", first, again)
	}
	mine.want("COMMIT", "COMMIT I")
}

func TestStatementsPreparedByProtocolAreUsableBySQL(t *testing.T) {
	t.Parallel()
	w := start(t, database(t), twoBackends)
	mine, other := w.wire(), w.wire()
	mine.send(parse("ps", "SELECT $1::int AS x"), sync())
	mine.ready()
	for range 2 {
		churn(other)
		mine.want("EXECUTE ps(5)", "[x] (5) SELECT_1 I")
		mine.want("EXECUTE ps(6)", "[x] (6) SELECT_1 I")
		mine.want("BEGIN", "BEGIN T")
		mine.want("EXECUTE ps(7)", "[x] (7) SELECT_1 T")
		mine.want("EXECUTE ps(8)", "[x] (8) SELECT_1 T")
		mine.want("COMMIT", "COMMIT I")
	}
	if got := other.ask("EXECUTE ps(5)"); got != "ERROR:26000 I" {
		t.Errorf("another client: %s", got)
	}
	other.send(parse("ps", "SELECT 'other' AS x"), sync())
	other.ready()
	other.want("EXECUTE ps", "[x] (other) SELECT_1 I")
	mine.want("EXECUTE ps(9)", "[x] (9) SELECT_1 I")
	mine.want("DEALLOCATE ps", "DEALLOCATE I")
	if got := mine.ask("EXECUTE ps(5)"); got != "ERROR:26000 I" {
		t.Errorf("after DEALLOCATE: %s", got)
	}
	mine.send(bind("", "ps", "1"), execute("", 0), sync())
	if got := render(mine.ready()); got != "ERROR:26000 I" {
		t.Errorf("Bind after DEALLOCATE: %s", got)
	}
	other.want("DEALLOCATE ALL", "DEALLOCATE_ALL I")
	other.send(bind("", "ps"), sync())
	if got := render(other.ready()); got != "ERROR:26000 I" {
		t.Errorf("Bind after DEALLOCATE ALL: %s", got)
	}
}

func TestUnnamedStatementSurvivesWhatWeirAsksForItself(t *testing.T) {
	t.Parallel()
	w := start(t, database(t), twoBackends)
	mine := w.wire()
	mine.want("LISTEN a", "LISTEN I")
	mine.send(parse("unlock", "SELECT pg_advisory_unlock(1) AS u"), sync())
	mine.ready()
	mine.send(parse("", "SELECT 'still here' AS x"), sync())
	mine.ready()
	mine.send(bind("", "unlock"), execute("", 0), sync()) // weir looks at the state after it
	mine.ready()
	mine.send(bind("", ""), execute("", 0), sync())
	if got := render(mine.ready()); got != "bound (still here) SELECT_1 I" {
		t.Errorf("got %s", got)
	}
}

// A session whose parameters weir knew already keeps the backend of its first
// statement, even where that is a read that could have been shared.
func TestModeSessionKeepsTheFirstBackend(t *testing.T) {
	w := start(t, database(t), func(c *postgres.Config) { c.Mode, c.PoolSize = session.ModeSession, 2 })
	for range 2 { // the second login is answered from what the first was told
		c := w.wire()
		c.want("SELECT 1 AS x", "[x] (1) SELECT_1 I")
		if n := w.pool().Owned; n != 1 {
			t.Errorf("%d backends have an owner after a read, want 1", n)
		}
		c.close()
		eventually(t, "the backend is free again", func() bool { return w.pool().Owned == 0 })
	}
}

// A replay of settings is weir's own: no statement_timeout that it finds on a connection
// ends it, neither another client's nor that of the role.
func TestReplaysRunWithoutATimeout(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ name, setup, other string }{
		{"of another client", "SELECT 1", "SET statement_timeout = '500ms'"},
		{"of the database", "DO $$ BEGIN EXECUTE format('ALTER DATABASE %I SET statement_timeout = %L', current_database(), '500ms'); END $$", "SET statement_timeout = DEFAULT"},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			w := start(t, database(t, c.setup), func(c *postgres.Config) { c.PoolSize = 2 })
			other, mine, third := w.wire(), w.wire(), w.wire()
			other.want(c.other, "SET I")
			other.want("BEGIN", "BEGIN T")
			mine.want("SET statement_timeout = '50s'", "SET I")
			mine.want("SET default_table_access_method = heap", "SET I") // which looks into pg_am
			third.want("BEGIN", "BEGIN T")                               // where mine was
			other.want("COMMIT", "COMMIT I")
			lock := dialWire(t, server(t).Addr(), w.db)
			lock.ask("SET statement_timeout = 0")
			lock.want("BEGIN", "BEGIN T")
			lock.want("LOCK TABLE pg_catalog.pg_am IN ACCESS EXCLUSIVE MODE", "LOCK_TABLE T")
			mine.send(query("SHOW statement_timeout"))
			eventually(t, "the replay takes longer than the timeout", func() bool { // that of the other case waits at the same time
				return countOnServer(t, "SELECT count(*) FROM pg_locks JOIN pg_stat_activity USING (pid) WHERE NOT granted AND datname = '"+w.db+"'"+
					" AND query LIKE '%default_table_access_method%' AND clock_timestamp() - waitstart > '1s'") == 1
			})
			lock.want("ROLLBACK", "ROLLBACK I")
			if got := render(mine.ready()); got != "[statement_timeout] (50s) SHOW I" {
				t.Errorf("behind the replay: %s", got)
			}
		})
	}
}
