package postgres_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/weirdb/weir/internal/proxy/postgres"
	"github.com/weirdb/weir/internal/testkit"
)

// roadSetup makes objects that do something to the session of anyone who uses them:
// by each road that leads from the text of a statement to code that it does not
// show.
var roadSetup = []string{
	`CREATE TABLE plain (id int PRIMARY KEY, v text); INSERT INTO plain SELECT g, 'v' || g FROM generate_series(1, 50) g`,
	`CREATE TABLE notes (id serial PRIMARY KEY, v text)`,
	`CREATE SCHEMA other; CREATE TABLE other.plain (id int PRIMARY KEY, v text); INSERT INTO other.plain SELECT g, 'other' || g FROM generate_series(1, 50) g`,
	// Functions that change settings.
	`CREATE FUNCTION set_app(text) RETURNS text LANGUAGE sql AS $$ SELECT set_config('road.fn', $1, false) $$`,
	`CREATE FUNCTION set_named(n text, v text) RETURNS text LANGUAGE sql AS $$ SELECT set_config(n, v, false) $$`,
	`CREATE FUNCTION set_atomic(v text) RETURNS text LANGUAGE sql BEGIN ATOMIC SELECT set_config('road.atomic', v, false); END`,
	`CREATE FUNCTION set_local(v text) RETURNS text LANGUAGE plpgsql AS $$ BEGIN RETURN set_config('road.local', v, true); END $$`,
	`CREATE FUNCTION set_mem() RETURNS void LANGUAGE plpgsql AS $$ BEGIN SET work_mem = '7MB'; END $$`,
	`CREATE FUNCTION set_path() RETURNS void LANGUAGE plpgsql AS $$ BEGIN SET search_path = other, public; END $$`,
	`CREATE FUNCTION unset_path() RETURNS void LANGUAGE plpgsql AS $$ BEGIN RESET search_path; END $$`,
	`CREATE FUNCTION unset_all() RETURNS void LANGUAGE plpgsql AS $$ BEGIN RESET ALL; END $$`,
	`CREATE FUNCTION set_dynamic(v text) RETURNS void LANGUAGE plpgsql AS $$ BEGIN EXECUTE format('SET road.dynamic = %L', v); END $$`,
	`CREATE FUNCTION set_deep(v text) RETURNS text LANGUAGE sql AS $$ SELECT set_app(v) $$`,
	`CREATE FUNCTION set_scoped() RETURNS text LANGUAGE sql SET road.scoped = 'x' AS $$ SELECT current_setting('road.scoped') $$`,
	`CREATE FUNCTION take_lock() RETURNS boolean LANGUAGE plpgsql AS $$ BEGIN RETURN pg_try_advisory_lock(4711); END $$`,
	`CREATE FUNCTION make_temp() RETURNS void LANGUAGE plpgsql AS $$ BEGIN CREATE TEMP TABLE IF NOT EXISTS hidden (x int); END $$`,
	`CREATE FUNCTION last_number() RETURNS bigint LANGUAGE sql AS 'SELECT lastval()'`,
	`CREATE FUNCTION next_number() RETURNS bigint LANGUAGE sql AS $$ SELECT nextval('notes_id_seq') $$`,
	`CREATE PROCEDURE set_proc(v text) LANGUAGE plpgsql AS $$ BEGIN PERFORM set_config('road.proc', v, false); END $$`,
	`CREATE FUNCTION add_seen(s int, v int) RETURNS int LANGUAGE sql AS $$ SELECT length(set_config('road.aggregate', v::text, false)) + s $$;
	 CREATE AGGREGATE seen (int) (SFUNC = add_seen, STYPE = int, INITCOND = '0')`,
	// Triggers of all kinds.
	`CREATE FUNCTION trigger_sets() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN PERFORM set_config('road.trigger', TG_OP || TG_WHEN || TG_LEVEL, false); RETURN NEW; END $$`,
	`CREATE TABLE tr_before (id int); CREATE TRIGGER x BEFORE INSERT ON tr_before FOR EACH ROW EXECUTE FUNCTION trigger_sets()`,
	`CREATE TABLE tr_after (id int); CREATE TRIGGER x AFTER INSERT OR UPDATE OR DELETE ON tr_after FOR EACH STATEMENT EXECUTE FUNCTION trigger_sets()`,
	`CREATE TABLE tr_deferred (id int); CREATE CONSTRAINT TRIGGER x AFTER INSERT ON tr_deferred DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION trigger_sets()`,
	`CREATE TABLE tr_truncate (id int); CREATE TRIGGER x AFTER TRUNCATE ON tr_truncate FOR EACH STATEMENT EXECUTE FUNCTION trigger_sets()`,
	`CREATE TABLE tr_view_base (id int); CREATE VIEW tr_view AS SELECT * FROM tr_view_base; CREATE TRIGGER x INSTEAD OF INSERT ON tr_view FOR EACH ROW EXECUTE FUNCTION trigger_sets()`,
	`CREATE VIEW tr_through AS SELECT * FROM tr_before`,
	`CREATE TABLE tr_when (id int); CREATE TRIGGER x BEFORE INSERT ON tr_when FOR EACH ROW WHEN (set_config('road.when', NEW.id::text, false) = '') EXECUTE FUNCTION suppress_redundant_updates_trigger()`,
	`CREATE TABLE part (id int, v int) PARTITION BY RANGE (id); CREATE TABLE part_1 PARTITION OF part FOR VALUES FROM (0) TO (1000000); CREATE TRIGGER x BEFORE INSERT ON part_1 FOR EACH ROW EXECUTE FUNCTION trigger_sets()`,
	`CREATE TABLE fk_parent (id int PRIMARY KEY); CREATE TABLE fk_child (id int REFERENCES fk_parent ON DELETE CASCADE); CREATE TRIGGER x AFTER DELETE ON fk_child FOR EACH ROW EXECUTE FUNCTION trigger_sets()`,
	`CREATE TABLE heir_parent (id int); CREATE TABLE heir () INHERITS (heir_parent); INSERT INTO heir VALUES (1); CREATE TRIGGER x AFTER UPDATE ON heir FOR EACH ROW EXECUTE FUNCTION trigger_sets()`,
	`CREATE FUNCTION trigger_locks() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN PERFORM pg_try_advisory_lock(4712); CREATE TEMP TABLE IF NOT EXISTS hidden2 (x int); RETURN NEW; END $$;
	 CREATE TABLE tr_locks (id int); CREATE TRIGGER x BEFORE INSERT ON tr_locks FOR EACH ROW EXECUTE FUNCTION trigger_locks()`,
	// Rules, views, defaults, checks, generated columns, indexes, policies.
	`CREATE VIEW v_sets AS SELECT set_app('view') AS u`,
	`CREATE VIEW v_builtin AS SELECT set_config('road.view', 'built in', false) AS u`,
	`CREATE VIEW v_settings AS SELECT name, setting FROM pg_settings`,
	`CREATE VIEW v_nested AS SELECT * FROM v_sets`,
	`CREATE VIEW v_lock AS SELECT pg_try_advisory_lock(4713) AS l`,
	`CREATE VIEW v_last AS SELECT lastval() AS l`,
	`CREATE TABLE ruled (id int); CREATE RULE r AS ON INSERT TO ruled DO ALSO SELECT set_config('road.rule', 'x', false)`,
	`CREATE TABLE def_sets (id int, v text DEFAULT set_config('road.default', 'x', false))`,
	`CREATE TABLE def_fn (id int, v text DEFAULT set_app('default'))`,
	`CREATE TABLE ident (id int GENERATED ALWAYS AS IDENTITY, v text)`,
	`CREATE TABLE def_curr (id int, v bigint DEFAULT currval('notes_id_seq'))`,
	`CREATE FUNCTION im_sets(int) RETURNS int IMMUTABLE LANGUAGE plpgsql AS $$ BEGIN PERFORM set_config('road.immutable', 'x', false); RETURN $1; END $$`,
	`CREATE TABLE gen (id int, g int GENERATED ALWAYS AS (im_sets(id)) STORED)`,
	`CREATE TABLE chk (id int CHECK (im_sets(id) = id))`,
	`CREATE TABLE idx (id int); CREATE INDEX ON idx ((im_sets(id)))`,
	`CREATE TABLE idp (id int); CREATE INDEX ON idp (id) WHERE im_sets(id) > 0`,
	`CREATE TABLE pol (id int); INSERT INTO pol VALUES (1); ALTER TABLE pol ENABLE ROW LEVEL SECURITY; ALTER TABLE pol FORCE ROW LEVEL SECURITY;
	 CREATE POLICY p ON pol USING (set_config('road.policy', 'x', false) = 'x'); GRANT ALL ON ALL TABLES IN SCHEMA public TO public; GRANT ALL ON ALL SEQUENCES IN SCHEMA public TO public`,
	// Types, casts, operators.
	`CREATE DOMAIN dom AS int CHECK (length(set_config('road.domain', VALUE::text, false)) > 0); CREATE TABLE with_dom (id dom)`,
	`CREATE TYPE pair AS (a int, b dom); CREATE TABLE with_pair (p pair)`,
	`CREATE TYPE color AS ENUM ('red', 'green'); CREATE FUNCTION to_color(int) RETURNS color LANGUAGE sql AS $$ SELECT CASE WHEN set_config('road.cast', 'x', false) = 'x' THEN 'red'::color END $$;
	 CREATE CAST (int AS color) WITH FUNCTION to_color(int); CREATE TABLE with_color (c color)`,
	`CREATE FUNCTION color_plus(color, int) RETURNS text LANGUAGE sql AS $$ SELECT set_config('road.operator', $2::text, false) $$; CREATE OPERATOR + (LEFTARG = color, RIGHTARG = int, FUNCTION = color_plus);
	 CREATE TABLE colors (c color); INSERT INTO colors VALUES ('red')`,
	`CREATE FUNCTION lower(text) RETURNS text LANGUAGE sql AS $$ SELECT set_config('road.masked', $1, false) $$`,
	`CREATE FUNCTION "Odd ""Name"() RETURNS text LANGUAGE sql AS $$ SELECT set_config('road.odd', 'x', false) $$`,
	`CREATE FUNCTION überall() RETURNS text LANGUAGE sql AS $$ SELECT set_config('road.foreign', 'x', false) $$`,
	`CREATE FUNCTION harmless(int) RETURNS int LANGUAGE sql IMMUTABLE AS 'SELECT $1 + 1'`,
}

// roads are statements that plant state, and those that do nothing of the kind.
// {n} is a number that is different each time.
var roads = []string{
	// Nothing.
	`SELECT v FROM plain WHERE id = 7`, `SELECT count(*) FROM plain`, `SELECT harmless({n})`, `UPDATE plain SET v = 'n{n}' WHERE id = 3`,
	`/* batch */ UPDATE plain SET v = 'b{n}' WHERE id = 4`, `/* batch */ INSERT INTO notes (v) VALUES ('h{n}')`, `INSERT INTO notes (v) VALUES ('p{n}')`,
	`SELECT 1/0`, `BEGIN`, `COMMIT`, `ROLLBACK`, `SAVEPOINT a`, `ROLLBACK TO a`,
	// Effects that the text shows.
	`SET road.text = '{n}'`, `SET LOCAL road.textlocal = '{n}'`, `RESET road.text`, `SET work_mem = '{n}MB'`, `RESET work_mem`, `SET search_path = other, public`, `RESET search_path`,
	`SET datestyle TO dmy`, `SET datestyle TO iso`, `SET datestyle TO sql`, `SET intervalstyle TO iso_8601`, `SET timezone TO 'Asia/Tokyo'`, `RESET ALL`, `DISCARD ALL`,
	`SELECT set_config('road.call', '{n}', false)`, `SELECT set_config('road.calllocal', '{n}', true)`, `SELECT set_config('work_mem', '{n}MB', false)`,
	`SELECT set_config('ro' || 'ad.computed', '{n}', false)`, `UPDATE pg_settings SET setting = 'other,public' WHERE name = 'search_path'`,
	`UPDATE v_settings SET setting = 'other,public' WHERE name = 'search_path'`,
	`CREATE TEMP TABLE IF NOT EXISTS tt (x int)`, `DROP TABLE IF EXISTS tt`, `DISCARD TEMP`, `LISTEN road`, `LISTEN road`, `UNLISTEN *`, `NOTIFY road, '{n}'`, `SELECT pg_notify('road', '{n}')`, `SELECT pg_try_advisory_lock(4700)`, `SELECT pg_advisory_unlock_all()`,
	`PREPARE p AS SELECT 1`, `DEALLOCATE ALL`, `DECLARE c CURSOR WITH HOLD FOR SELECT 1`, `CLOSE ALL`, `SET ROLE weir_other`, `RESET ROLE`, `SELECT lastval()`, `SELECT currval('notes_id_seq')`,
	`DISCARD SEQUENCES`, `SET search_path = pg_temp, public`, `CREATE TABLE IF NOT EXISTS sneaky{n} (x int)`,
	// Effects that it does not show.
	`SELECT set_app('{n}')`, `SELECT set_named('road.named', '{n}')`, `SELECT set_atomic('{n}')`, `SELECT set_local('{n}')`, `SELECT set_mem()`, `SELECT set_path()`, `SELECT unset_path()`, `SELECT unset_all()`,
	`SELECT set_dynamic('{n}')`, `SELECT set_deep('{n}')`, `SELECT set_scoped()`, `SELECT take_lock()`, `SELECT make_temp()`, `SELECT last_number()`, `SELECT next_number()`, `CALL set_proc('{n}')`, `SELECT seen(id) FROM plain WHERE id < 3`,
	`INSERT INTO tr_before VALUES (1)`, `/* batch */ INSERT INTO tr_before VALUES (1)`, `INSERT INTO tr_through VALUES (1)`, `INSERT INTO tr_after VALUES (1)`, `/* batch */ UPDATE tr_after SET id = 2`, `DELETE FROM tr_after`,
	`INSERT INTO tr_deferred VALUES (1)`, `TRUNCATE tr_truncate`, `INSERT INTO tr_view VALUES (1)`, `INSERT INTO tr_when VALUES ({n})`, `INSERT INTO part VALUES ({n})`, `INSERT INTO fk_parent VALUES ({n})`,
	`INSERT INTO fk_child SELECT id FROM fk_parent`, `DELETE FROM fk_parent`, `UPDATE heir_parent SET id = id`, `INSERT INTO tr_locks VALUES (1)`,
	`SELECT * FROM v_sets`, `SELECT * FROM v_builtin`, `SELECT * FROM v_nested`, `SELECT * FROM v_lock`, `SELECT * FROM v_last`, `INSERT INTO ruled VALUES (1)`, `INSERT INTO def_sets (id) VALUES (1)`, `/* batch */ INSERT INTO def_sets (id) VALUES (1)`,
	`INSERT INTO ident (v) VALUES ('{n}')`, `CREATE TABLE IF NOT EXISTS ident{n} (id serial, v text)`, `CREATE VIEW v_new{n} AS SELECT set_app('{n}') AS u`,
	`INSERT INTO def_fn (id) VALUES (1)`, `INSERT INTO def_curr (id) VALUES (1)`, `INSERT INTO gen (id) VALUES ({n})`, `/* batch */ INSERT INTO gen (id) VALUES ({n})`, `INSERT INTO chk VALUES ({n})`, `INSERT INTO idx VALUES ({n})`, `INSERT INTO idp VALUES ({n})`,
	`VACUUM idx`, `SELECT * FROM pol`, `INSERT INTO with_dom VALUES ({n})`, `SELECT {n}::dom`, `SELECT '{n}'::"dom"`, `INSERT INTO with_pair VALUES (ROW(1, {n})::pair)`, `SELECT domain_in('{n}'::cstring, 'dom'::regtype, -1)`,
	`INSERT INTO with_color VALUES (1::color)`, `SELECT c + {n} FROM colors`, `SELECT 'red'::color + {n}`, `SELECT lower('X')`, `SELECT "Odd ""Name"()`, `SELECT U&"set\005fapp"('{n}')`, `SELECT überall()`, `SELECT SET_APP('{n}')`, `SELECT "set_app"('{n}')`,
	`SELECT other.id FROM plain other, LATERAL set_app('{n}') f WHERE other.id = 1`, `WITH w AS (INSERT INTO tr_before VALUES (1) RETURNING id) SELECT * FROM w`, `EXPLAIN (ANALYZE, COSTS OFF, TIMING OFF, SUMMARY OFF) INSERT INTO tr_before VALUES (1)`,
	`SELECT query_to_xml('SELECT set_app(''{n}'')', true, true, '') IS NULL`,
	`DO $$ BEGIN PERFORM set_config('road.do', '{n}', false); END $$`, `DO $$ BEGIN RESET search_path; END $$`, `DO $$ BEGIN EXECUTE 'SET road.doexec = 1'; END $$`, `DO $$ BEGIN PERFORM pg_try_advisory_lock(4714); END $$`,
	`DO $$ BEGIN CREATE TEMP TABLE IF NOT EXISTS dotemp (x int); END $$`, `DO 'BEGIN PERFORM set_app(''{n}''); END'`, `DO $$ BEGIN INSERT INTO notes (v) VALUES ('do'); END $$`,
	`CREATE OR REPLACE FUNCTION fresh() RETURNS text LANGUAGE sql AS $$ SELECT set_config('road.fresh', '{n}', false) $$`, `CREATE OR REPLACE FUNCTION fresh() RETURNS text LANGUAGE sql AS $$ SELECT 'nothing' $$`, `SELECT fresh()`,
	`CREATE OR REPLACE FUNCTION fresh() RETURNS text LANGUAGE sql AS $$ SELECT set_config('road.twice', '{n}', false) $$; SELECT fresh()`,
}

// probe shows what state a session has.
const probe = `SELECT current_setting('work_mem'), current_setting('search_path'), current_setting('datestyle'), current_setting('intervalstyle'), current_setting('timezone'), current_user,
 (SELECT string_agg(coalesce(s || '=' || current_setting(s, true), ''), ' ') FROM unnest('{road.text,road.textlocal,road.call,road.calllocal,road.computed,road.named,road.fn,road.atomic,road.local,road.dynamic,road.scoped,road.proc,
  road.aggregate,road.trigger,road.when,road.view,road.rule,road.default,road.immutable,road.policy,road.domain,road.cast,road.operator,road.masked,road.odd,road.foreign,road.do,road.doexec,road.fresh,road.twice}'::text[]) s),
 (SELECT string_agg(relname, ' ' ORDER BY relname) FROM pg_class WHERE relnamespace = pg_my_temp_schema()),
 (SELECT string_agg(objid::text, ' ' ORDER BY objid) FROM pg_locks WHERE locktype = 'advisory' AND pid = pg_backend_pid()),
 (SELECT string_agg(c, ' ') FROM pg_listening_channels() c), (SELECT count(*) FROM pg_cursors WHERE is_holdable), (SELECT count(*) FROM pg_prepared_statements WHERE from_sql), '01/02/2026'::date`

// A twin is one client: connected through weir, and directly to a database that
// sees the same statements in the same order.
type twin struct {
	weir, direct *pgconn.PgConn
	// heard are the notifications that each has been given; whether by itself, and what.
	heard *struct{ weir, direct []string }
}

// told is what a client learns from a statement.
func told(ctx context.Context, c *pgconn.PgConn, sql string, extended bool) string {
	if extended {
		r := c.ExecParams(ctx, sql, nil, nil, nil, nil).Read()
		return strings.TrimSpace(outcome([]*pgconn.Result{r}, r.Err))
	}
	r, err := c.Exec(ctx, sql).ReadAll()
	return strings.TrimSpace(outcome(r, err))
}

func outcome(results []*pgconn.Result, err error) string {
	var b strings.Builder
	for _, r := range results {
		for _, row := range r.Rows {
			for _, v := range row {
				if v == nil {
					b.WriteString("NULL|")
				} else {
					b.Write(v)
					b.WriteByte('|')
				}
			}
			b.WriteByte('\n')
		}
		b.WriteString(r.CommandTag.String() + "\n")
	}
	var e *pgconn.PgError
	switch {
	case errors.As(err, &e):
		b.WriteString(e.Code)
	case err != nil:
		b.WriteString(err.Error())
	}
	return b.String()
}

// TestNoStateReachesAnotherClient runs statements of several clients in random
// order, each through weir and directly, and compares what each client then
// sees of its session. WEIR_LEAK_FUZZ makes it longer, WEIR_LEAK_SEED repeats one.
func TestNoStateReachesAnotherClient(t *testing.T) {
	t.Parallel()
	length, rounds := time.Duration(0), testkit.Rounds(1, 20)
	if d, err := time.ParseDuration(os.Getenv("WEIR_LEAK_FUZZ")); err == nil {
		length = d
	}
	seed := uint64(time.Now().UnixNano())
	if s := os.Getenv("WEIR_LEAK_SEED"); s != "" {
		if _, err := fmt.Sscan(s, &seed); err != nil {
			t.Fatal(err)
		}
		rounds = 1
	}
	began := time.Now()
	for round := 0; round < rounds || time.Since(began) < length; round++ {
		if t.Failed() {
			return
		}
		t.Run(fmt.Sprintf("seed %d", seed), func(t *testing.T) { leakRound(t, seed) })
		seed++
	}
}

func leakRound(t *testing.T, seed uint64) {
	random := rand.New(rand.NewPCG(seed, 0))
	through, beside := twins(t, roadSetup...)
	user := []string{"postgres", "weir_rls"}[random.IntN(2)]
	for _, db := range []string{through, beside} {
		sqlOn(t, server(t).DSN(db), `GRANT ALL ON SCHEMA public, other TO weir_rls; GRANT ALL ON ALL TABLES IN SCHEMA public, other TO weir_rls; GRANT ALL ON ALL SEQUENCES IN SCHEMA public TO weir_rls; GRANT weir_other TO weir_rls`)
	}
	// No session ends the transaction of another one here, so a wait for a lock would last for
	// ever. With a timeout it fails alike on both sides.
	for _, db := range []string{through, beside} {
		sqlOn(t, server(t).DSN(db), "ALTER DATABASE "+db+" SET lock_timeout = '200ms'")
	}
	size := 1 + random.IntN(8)
	clients := min(size, 1+random.IntN(4)) // each may be pinned
	w := start(t, through, func(c *postgres.Config) { c.PoolSize = size + 1; c.Restless() })
	ctx := ctxFor(t)
	open := func() twin {
		tw := twin{heard: new(struct{ weir, direct []string })}
		one := func(dsn string, heard *[]string) *pgconn.PgConn {
			cfg, err := pgconn.ParseConfig(dsn)
			if err != nil {
				t.Fatal(err)
			}
			cfg.User = user
			cfg.OnNotification = func(c *pgconn.PgConn, n *pgconn.Notification) {
				*heard = append(*heard, fmt.Sprint(n.Channel, " ", n.Payload, " ", n.PID == c.PID()))
			}
			c, err := pgconn.ConnectConfig(ctx, cfg)
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { _ = c.Close(context.Background()) })
			return c
		}
		tw.weir = one(fmt.Sprintf("postgres://postgres@%s/%s?sslmode=disable", w.Addr(), w.db), &tw.heard.weir)
		tw.direct = one(server(t).DSN(beside), &tw.heard.direct)
		return tw
	}
	twins := make([]twin, clients)
	for i := range twins {
		twins[i] = open()
	}
	var log []string
	say := func(i int, sql string, extended bool) bool {
		got, want := told(ctx, twins[i].weir, sql, extended), told(ctx, twins[i].direct, sql, extended)
		log = append(log, fmt.Sprintf("client %d: %s", i, strings.Replace(sql, probe, "(probe)", 1)))
		if h := twins[i].heard; !slices.Equal(h.weir, h.direct) {
			t.Fatalf("seed %d, pool of %d, user %s:\n%s\n\nheard through weir: %q\ndirect:             %q", seed, size, user, strings.Join(log[max(0, len(log)-60):], "\n"), h.weir, h.direct)
		}
		undefined := strings.HasSuffix(got, "55000") // weir may say of a sequence's last value that it is not defined, but never another's
		if got == want || undefined && slices.ContainsFunc([]string{"last", "curr", "def_"}, func(s string) bool { return strings.Contains(sql, s) }) {
			return undefined && got != want
		}
		t.Fatalf("seed %d, pool of %d, user %s:\n%s\n\nthrough weir: %s\ndirect:       %s", seed, size, user, strings.Join(log[max(0, len(log)-60):], "\n"), got, want)
		return false
	}
	inTx := make([]bool, clients)
	last, discarded := 0, false
	for n := range 250 {
		i := random.IntN(clients)
		// After DISCARD ALL settings that a client has made up are NULL where directly
		// they are empty, so it leaves, too.
		if (random.IntN(40) == 0 || discarded) && !inTx[last] {
			i = last
			_ = twins[i].weir.Close(ctx)
			_ = twins[i].direct.Close(ctx)
			eventually(t, "the server has noticed", func() bool { return gone(t, twins[i].direct.PID()) })
			w.eventuallyLeft(clients - 1)
			twins[i] = open()
			log = append(log, fmt.Sprintf("client %d: leaves, and another comes", i))
		}
		sql := strings.ReplaceAll(roads[random.IntN(len(roads))], "{n}", fmt.Sprint(n+1))
		extended := random.IntN(3) == 0 && !strings.Contains(sql, ";")
		if skipped := say(i, sql, extended); skipped {
			// One of the two has a failed transaction or a row more.
			if inTx[i] {
				say(i, "ROLLBACK", false)
			}
		}
		inTx[i] = twins[i].direct.TxStatus() != 'I'
		last, discarded = i, sql == "DISCARD ALL" && !inTx[i]
		if discarded {
			continue
		}
		if twins[i].weir.TxStatus() != twins[i].direct.TxStatus() {
			t.Fatalf("seed %d: transaction status %c, direct %c:\n%s", seed, twins[i].weir.TxStatus(), twins[i].direct.TxStatus(), strings.Join(log, "\n"))
		}
		if inTx[i] && random.IntN(4) == 0 {
			say(i, "COMMIT", false)
			inTx[i] = false
		}
		for j := range twins {
			if twins[j].direct.TxStatus() != 'E' {
				say(j, probe, false)
			}
		}
	}
}

// gone reports whether a session of the server has ended.
func gone(tb testing.TB, pid uint32) bool {
	tb.Helper()
	return countOnServer(tb, fmt.Sprintf("SELECT count(*) FROM pg_stat_activity WHERE pid = %d", pid)) == 0
}

// eventuallyLeft waits until weir has no more than n clients.
func (w *weir) eventuallyLeft(n int) {
	w.tb.Helper()
	eventually(w.tb, "the client has left", func() bool { return w.snapshot().Clients <= n && w.pool().Owned <= n })
}
