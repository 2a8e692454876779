package postgres_test

import (
	"bytes"
	"encoding/binary"
	"flag"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/weirdb/weir/internal/proxy/postgres"
	"github.com/weirdb/weir/internal/testkit"
	"github.com/weirdb/weir/internal/wire/pgwire"
)

var (
	diffSeed  = flag.Uint64("diff.seed", 0, "seed of TestAnswersEqualThoseOfADirectConnection; 0: a few fixed ones")
	diffSteps = flag.Int("diff.steps", 120, "steps of each script of TestAnswersEqualThoseOfADirectConnection")
)

// diffClients run their scripts at the same time, each in a schema of its own
// that its search path names, on fewer backends than there are clients. The
// scripts use the same texts, so whatever leaks from one session to another
// shows as a difference.
const diffClients = 4

// TestAnswersEqualThoseOfADirectConnection runs random scripts on a direct
// connection and through the proxy and compares every message byte for byte.
func TestAnswersEqualThoseOfADirectConnection(t *testing.T) {
	t.Parallel()
	seeds := []uint64{1, 2}
	if testing.Short() {
		seeds = seeds[:1]
	}
	for seed := len(seeds); testkit.All() && seed < 30; seed++ {
		seeds = append(seeds, uint64(seed+1))
	}
	if *diffSeed != 0 {
		seeds = []uint64{*diffSeed}
	}
	for _, hints := range []bool{false, true} {
		for _, seed := range seeds {
			t.Run(fmt.Sprintf("seed %d hints %v", seed, hints), func(t *testing.T) {
				t.Parallel()
				direct, through := database(t), database(t)
				w := start(t, through, func(c *postgres.Config) { c.PoolSize = 3 })
				var scripts [diffClients][]step
				for i := range scripts {
					rng := rand.New(rand.NewPCG(seed, uint64(i)))
					scripts[i] = script(rng, i, *diffSteps, hints)
				}
				results := make(chan string, diffClients)
				for i, s := range scripts {
					go func() { results <- difference(t, w, direct, i, s) }()
				}
				failed := ""
				for range scripts {
					failed = max(failed, <-results)
				}
				if failed != "" {
					t.Error(failed)
				}
			})
		}
	}
}

// difference runs a script on both sides and describes the first difference,
// with the shortest script found that shows it.
func difference(tb testing.TB, w *weir, direct string, client int, s []step) string {
	at, text := firstDifference(tb, w, direct, client, s)
	if at < 0 {
		return ""
	}
	s = s[:at+1]
	enough := time.Now().Add(15 * time.Second)
	for size := len(s) / 2; size > 0; size /= 2 {
		for from := 0; from+size < len(s) && time.Now().Before(enough); {
			shorter := slices.Concat(s[:from], s[from+size:])
			if n, other := firstDifference(tb, w, direct, client, shorter); n >= 0 {
				s, text = shorter[:n+1], other
			} else {
				from += size
			}
		}
	}
	var b strings.Builder
	for _, x := range s {
		fmt.Fprintf(&b, "  %s\n", x.text)
	}
	return fmt.Sprintf("client %d: after\n%s%s", client, b.String(), text)
}

// firstDifference returns the index of the first step whose answers differ, -1
// if all are equal.
func firstDifference(tb testing.TB, w *weir, direct string, client int, s []step) (int, string) {
	a, sa := answers(tb, server(tb).Addr(), direct, client, s)
	b, sb := answers(tb, w.Addr().String(), w.db, client, s)
	if a == nil || b == nil {
		tb.Errorf("the pool is %+v", w.pool())
		return -1, "" // reported already
	}
	for i := range s {
		if !equal(a[i], b[i]) {
			return i, fmt.Sprintf("direct %s\n  weir %s\n%s", render(a[i]), render(b[i]), detail(a[i], b[i]))
		}
	}
	for name, value := range sa {
		if sb[name] != value {
			return len(s) - 1, fmt.Sprintf("at the end the client believes %s to be %q, directly %q", name, sb[name], value)
		}
	}
	return -1, ""
}

// equal compares two answers byte for byte. In a failed transaction, a Parse of
// weir's own may be refused in place of the client's message: there, one error
// is as good as another.
func equal(direct, through []message) bool {
	if slices.EqualFunc(direct, through, func(x, y message) bool { return x.typ == y.typ && bytes.Equal(x.body, y.body) }) {
		return true
	}
	a, b := errorIn(direct), errorIn(through)
	last := len(through) - 1
	return a != nil && b != nil && b.Code == pgwire.CodeInFailedTransaction &&
		string(through[last].body) == "E" && string(direct[len(direct)-1].body) == "E"
}

// detail shows the first pair of messages that differ, in full.
func detail(a, b []message) string {
	for i := range min(len(a), len(b)) {
		if a[i].typ != b[i].typ || !bytes.Equal(a[i].body, b[i].body) {
			return fmt.Sprintf("direct %c %q\n  weir %c %q", a[i].typ, a[i].body, b[i].typ, b[i].body)
		}
	}
	return ""
}

// answers runs a script on a new schema. It returns the messages of each step and the last value
// of each reported parameter.
func answers(tb testing.TB, addr, db string, client int, s []step) ([][]message, map[string]string) {
	schema := fmt.Sprintf("s%d", client)
	sqlOn(tb, server(tb).DSN(db), "DROP SCHEMA IF EXISTS "+schema+" CASCADE", "CREATE SCHEMA "+schema, "SET search_path TO "+schema, `
CREATE TABLE kv (k int PRIMARY KEY, v text, n numeric(10,2) DEFAULT 1.5, b boolean);
INSERT INTO kv SELECT g, 'v' || g, g / 4.0, g % 2 = 0 FROM generate_series(1, 8) g;
CREATE TABLE ser (id serial PRIMARY KEY, x int CHECK (x < 50), t text DEFAULT 'd', g int GENERATED ALWAYS AS (x * 2) STORED);
CREATE TABLE child (k int REFERENCES kv DEFERRABLE INITIALLY DEFERRED, note text);
CREATE FUNCTION noisy(i int) RETURNS int LANGUAGE plpgsql AS $$ BEGIN RAISE NOTICE 'noise %', i; RETURN i; END $$`)
	w := dialWire(tb, addr, db, pgwire.Param{Name: "search_path", Value: schema}, pgwire.Param{Name: "application_name", Value: schema})
	defer w.close()
	var out [][]message
	for _, x := range s {
		w.send(x.bytes)
		var got []message
		asked := x.rest == nil // for all of it
		for ready, done := 0, 0; ready < x.ready; {
			if !asked && done >= x.flushed {
				asked = true
				w.send(x.rest)
			}
			m, err := w.next()
			if err != nil {
				for k := max(0, len(out)-9); k < len(out); k++ {
					tb.Logf("%s => %.300s", s[k].text, render(out[k]))
				}
				tb.Errorf("%s: %s: %v, after %s", schema, x.text, err, render(got))
				return nil, nil
			}
			switch m.typ {
			case pgwire.ServerParameterStatus:
				name, value, _ := pgwire.ParseParameterStatus(m.body)
				w.params[string(name)] = string(value)
				continue
			case pgwire.ServerReady:
				ready++
			case pgwire.ServerError:
				done = x.flushed // the server waits for the Sync
			case pgwire.ServerParseComplete, pgwire.ServerBindComplete, pgwire.ServerCloseComplete, pgwire.ServerNoData,
				pgwire.ServerRowDescription, pgwire.ServerCommandComplete, pgwire.ServerEmptyQuery, pgwire.ServerPortalSuspended:
				done++
			}
			got = append(got, normal(m))
		}
		out = append(out, got)
	}
	w.ask("SELECT 1") // so that messages after the last answer are read, too
	return out, w.params
}

// normal removes the OIDs of this database's own tables from a message, and the process ID from
// a notification.
func normal(m message) message {
	switch m.typ {
	case pgwire.ServerRowDescription:
		at := 2
		for at < len(m.body) {
			n := bytes.IndexByte(m.body[at:], 0)
			at += n + 1
			if binary.BigEndian.Uint32(m.body[at:]) >= 16384 {
				binary.BigEndian.PutUint32(m.body[at:], 16384)
			}
			at += 18
		}
	case pgwire.ServerNotification:
		binary.BigEndian.PutUint32(m.body, 0)
	}
	return m
}

// A step is what a client sends at once, and how much it waits for.
type step struct {
	text    string
	bytes   []byte
	ready   int    // ReadyForQuery messages
	flushed int    // answers to single messages, or an error, before rest is sent
	rest    []byte // ... if there is one
}

// script returns n random steps, and a last one that closes what they left open.
func script(rng *rand.Rand, client, n int, hints bool) []step {
	g := &scripter{Rand: rng, client: client, hints: hints}
	for len(g.steps) < n {
		switch k := g.IntN(100); {
		case k < 45:
			sql := g.statement()
			g.add(sql, 1, query(sql))
		case k < 65:
			g.extended()
		case k < 78:
			g.named()
		case k < 84:
			g.pipeline()
		case k < 90:
			g.portal()
		case k < 94:
			g.copyIn()
		default:
			g.flushes()
		}
	}
	g.add("ROLLBACK", 1, query("ROLLBACK"))
	return g.steps
}

type scripter struct {
	*rand.Rand
	client int
	hints  bool
	steps  []step
}

func (g *scripter) add(text string, ready int, parts ...[]byte) {
	g.steps = append(g.steps, step{text: text, bytes: bytes.Join(parts, nil), ready: ready})
}

func (g *scripter) pick(of ...string) string { return of[g.IntN(len(of))] }

// statement returns one text for the simple protocol.
func (g *scripter) statement() string {
	n := g.IntN(12)
	switch g.IntN(12) {
	case 0, 1, 2:
		return g.read(n)
	case 3, 4, 5:
		return g.write(n)
	case 6, 7:
		return g.pick("BEGIN", "COMMIT", "ROLLBACK", "SAVEPOINT a", "ROLLBACK TO a", "RELEASE a", "START TRANSACTION READ ONLY",
			"BEGIN ISOLATION LEVEL SERIALIZABLE", "COMMIT AND CHAIN", "ROLLBACK AND CHAIN", "END", "SET CONSTRAINTS ALL IMMEDIATE",
			"SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
	case 8:
		return g.setting(n)
	case 9:
		return g.session(n)
	case 10:
		return g.pick(
			"SELECT 1; SELECT 2", "", ";", "-- nothing", "SELECT 1;;", fmt.Sprintf("INSERT INTO kv VALUES (%d, 'multi'); SELECT 1/0", 20+n),
			fmt.Sprintf("BEGIN; INSERT INTO kv VALUES (%d, 'multi'); COMMIT; SELECT 1", 40+n), "SELECT 1; ROLLBACK", "BEGIN; SELECT 1/0; SELECT 2",
			"SET TimeZone = 'Asia/Tokyo'; SELECT timestamptz '2000-01-01 00:00Z'", "COPY kv (k, v) TO STDOUT; SELECT 5",
			"SELECT 1 FROM kv WHERE k = 'x;y'", "SELECT 'a;b' AS \"c;d\"; SELECT $q$;$q$")
	default:
		return g.pick("SELEC 1", "SELECT nope", "SELECT 1/0", "SELECT * FROM missing", "SELECT 'unterminated", "SELECT /* open", "INSERT INTO kv VALUES (1)",
			"SELECT (", "SELECT $1", "EXECUTE missing", "DEALLOCATE missing", "FETCH 1 FROM missing", "ROLLBACK TO missing", "SELECT \"unterminated")
	}
}

func (g *scripter) read(n int) string {
	return g.pick(
		fmt.Sprintf("SELECT * FROM kv WHERE k = %d", n), "SELECT count(*), sum(k) FROM kv", "SELECT id, x, t, g FROM ser ORDER BY id",
		fmt.Sprintf("SELECT %d / (%d - 5)", n, n), fmt.Sprintf("SELECT generate_series(1, %d)", n*n*4), fmt.Sprintf("SELECT noisy(%d)", n),
		"VALUES (1, 'a'), (2, NULL)", "TABLE kv ORDER BY k", "SELECT v FROM kv ORDER BY k FOR UPDATE", "EXPLAIN (COSTS OFF) SELECT 1",
		"SELECT '\\x41'::bytea, 1.5::float8, 'a'::\"char\", NULL, true, '{1,2}'::int[], 1::numeric/3", "SELECT timestamptz '2000-01-01 00:00Z', date '2000-02-03'",
		"SELECT coalesce(current_setting('myapp.x', true), ''), current_setting('TimeZone'), current_schema()", "SELECT 'a\\tb', E'a\\tb'",
		"SHOW search_path", "SHOW TimeZone", "SHOW application_name", "SELECT FROM kv", "SELECT current_user, session_user",
		"WITH x AS (SELECT 1 AS a) SELECT * FROM x", "SELECT repeat('x', 70000)", "SELECT  k\tFROM kv ORDER  BY k LIMIT 2")
}

func (g *scripter) write(n int) string {
	sql := g.pick(
		fmt.Sprintf("INSERT INTO kv VALUES (%d, 'new')", n+4), fmt.Sprintf("INSERT INTO kv (k, v) VALUES (%d, 'it''s; $1')", n+6),
		fmt.Sprintf("INSERT INTO kv VALUES (%d, 'up') ON CONFLICT (k) DO UPDATE SET v = excluded.v || kv.k", n),
		fmt.Sprintf("INSERT INTO kv VALUES (%d) ON CONFLICT DO NOTHING RETURNING k", n), fmt.Sprintf("UPDATE kv SET v = v || '%d' WHERE k %% 3 = 1", n),
		fmt.Sprintf("UPDATE kv SET n = n * 10000000 WHERE k = %d", n), fmt.Sprintf("DELETE FROM kv WHERE k = %d RETURNING *", n+2),
		fmt.Sprintf("INSERT INTO ser (x) VALUES (%d) RETURNING id, g", n*6), fmt.Sprintf("INSERT INTO ser (x, t) VALUES (%d, DEFAULT), (%d, 'two')", n, n+1),
		fmt.Sprintf("INSERT INTO child VALUES (%d, 'orphan?')", n), "INSERT INTO ser DEFAULT VALUES", "INSERT INTO ser (x) SELECT k FROM kv ORDER BY k LIMIT 2",
		"WITH d AS (DELETE FROM child RETURNING k) INSERT INTO ser (x) SELECT count(*) FROM d", fmt.Sprintf("INSERT INTO ser (x) VALUES (noisy(%d))", n),
		fmt.Sprintf("UPDATE ser SET x = %d WHERE id = %d", n*7, n), "TRUNCATE child", fmt.Sprintf("INSERT INTO kv (k, v) VALUES (%d, '/* batch:off */')", n+30))
	if g.hints && g.IntN(4) > 0 {
		sql = g.pick("/* batch */ ", "/* batch:auto */ ", "/*batch='auto'*/ ", "/* batch:0.2 */ ", "/*route='x',batch='auto'*/\n", "/* batch:off */ ") + sql
	}
	return sql
}

func (g *scripter) setting(n int) string {
	return g.pick("SET TimeZone = 'Asia/Tokyo'", "SET TIME ZONE 'UTC'", "SET DateStyle = 'German'", fmt.Sprintf("SET myapp.x = 'v%d'", n), fmt.Sprintf("SET LOCAL myapp.x = 'l%d'", n),
		"RESET myapp.x", "SET bytea_output = 'escape'", "SET extra_float_digits = 0", "RESET ALL", "SET client_min_messages = 'warning'", "SET application_name = 'a b'",
		"RESET application_name", "SET standard_conforming_strings = off", "RESET standard_conforming_strings", fmt.Sprintf("SET search_path = s%d, pg_catalog", g.client), "RESET search_path",
		fmt.Sprintf("SELECT set_config('myapp.x', 'c%d', false)", n), "SELECT set_config('myapp.x', 'local', true)", "SET work_mem = 'much'", "SET nonsense = 1",
		"SET SESSION CHARACTERISTICS AS TRANSACTION READ ONLY", "SET default_transaction_read_only = off", "SET statement_timeout = '5min'",
		"SET client_encoding = 'LATIN1'", "RESET client_encoding", "SET intervalstyle TO DEFAULT")
}

func (g *scripter) session(n int) string {
	return g.pick("DECLARE c CURSOR FOR SELECT k FROM kv ORDER BY k", "DECLARE h CURSOR WITH HOLD FOR SELECT k FROM kv ORDER BY k", "FETCH 2 FROM c", "FETCH 1 FROM h", "CLOSE c", "CLOSE h", "CLOSE ALL",
		"PREPARE p AS SELECT $1::int + 1", fmt.Sprintf("EXECUTE p(%d)", n), "DEALLOCATE p", "DEALLOCATE ALL", "CREATE TEMP TABLE tmp (x int)", "INSERT INTO tmp VALUES (1)", "TABLE tmp", "DROP TABLE tmp",
		"DISCARD ALL", "DISCARD TEMP", fmt.Sprintf("LISTEN ch%d", g.client), fmt.Sprintf("UNLISTEN ch%d", g.client), fmt.Sprintf("NOTIFY ch%d, 'p'", g.client), fmt.Sprintf("SELECT pg_try_advisory_lock(%d)", 1000*g.client+n%3),
		fmt.Sprintf("SELECT pg_advisory_unlock(%d)", 1000*g.client+n%3), "SELECT pg_advisory_unlock_all()", "DO $$ BEGIN RAISE WARNING 'done'; END $$",
		"DO $$ BEGIN PERFORM set_config('myapp.x', 'do', false); END $$", "COPY kv (k, v) TO STDOUT", "COPY (SELECT 1/0) TO STDOUT", "LOCK TABLE kv",
		"CREATE TABLE made (x int)", "DROP TABLE IF EXISTS made", "ALTER TABLE kv ADD COLUMN IF NOT EXISTS extra int", "EXECUTE s1(3)", "EXECUTE s2", "DEALLOCATE s1", "DEALLOCATE s2")
}

// extended runs one text by the extended protocol, with the unnamed statement.
func (g *scripter) extended() {
	n := g.IntN(12)
	sql, values := g.parameterised(n)
	if g.IntN(3) == 0 {
		sql, values = g.statement(), nil
	}
	if g.IntN(12) == 0 {
		values = append(values, "9") // one too many
	}
	g.add(fmt.Sprintf("extended %q %q", sql, values), 1, run(sql, values...))
}

func (g *scripter) parameterised(n int) (string, []string) {
	num := fmt.Sprint(n)
	hint := ""
	if g.hints {
		hint = g.pick("", "/* batch */ ", "/* batch:auto */ ")
	}
	switch g.IntN(9) {
	case 0:
		return "SELECT * FROM kv WHERE k = $1", []string{num}
	case 1:
		return "SELECT $1::int / ($2::int - 5)", []string{num, num}
	case 2:
		return hint + "INSERT INTO kv (v, k) VALUES ($2, $1)", []string{fmt.Sprint(n + 50), "swapped"}
	case 3:
		return hint + "INSERT INTO ser (x, t) VALUES ($1, 'lit') RETURNING id, x, t, g", []string{fmt.Sprint(n * 6)}
	case 4:
		return hint + "UPDATE kv SET v = $1 WHERE k = $2", []string{"set", num}
	case 5:
		return hint + "DELETE FROM ser WHERE id = $1", []string{num}
	case 6:
		return "SELECT k FROM kv WHERE v = $1", []string{"not a number; " + num}
	case 7:
		return hint + "INSERT INTO kv (k) VALUES ($1)", []string{"x" + num} // not an int
	}
	return "SELECT $1::text, coalesce(current_setting('myapp.x', true), '')", []string{num}
}

// named parses, binds, describes, runs and closes named statements.
func (g *scripter) named() {
	name := g.pick("s1", "s2", "s3", "")
	n := g.IntN(12)
	sql, values := g.parameterised(n)
	switch g.IntN(8) {
	case 0, 1:
		g.add(fmt.Sprintf("parse %q %q", name, sql), 1, parse(name, sql), sync())
	case 2:
		g.add(fmt.Sprintf("parse, describe %q %q", name, sql), 1, parse(name, sql), describe('S', name), sync())
	case 3:
		g.add(fmt.Sprintf("close %q", name), 1, closing('S', name), sync())
	case 4:
		g.add(fmt.Sprintf("describe %q", name), 1, describe('S', name), sync())
	case 5:
		g.add(fmt.Sprintf("close, parse, execute %q %q", name, sql), 1, closing('S', name), parse(name, sql), bind("", name, values...), execute("", 0), sync())
	default:
		values := values[:g.IntN(len(values)+1)]
		g.add(fmt.Sprintf("bind, execute %q %q", name, values), 1, bind("", name, values...), describe('P', ""), execute("", 0), sync())
	}
}

// pipeline sends several units in one write.
func (g *scripter) pipeline() {
	var all []byte
	var texts []string
	n := 2 + g.IntN(4)
	for range n {
		if g.IntN(3) == 0 {
			sql := g.statement()
			if strings.HasPrefix(sql, "COPY") {
				sql = "SELECT 3"
			}
			all, texts = append(all, query(sql)...), append(texts, sql)
			continue
		}
		sql, values := g.parameterised(g.IntN(12))
		all, texts = append(all, run(sql, values...)...), append(texts, fmt.Sprintf("%s %q", sql, values))
	}
	g.add("pipeline "+strings.Join(texts, " | "), n, all)
}

// portal runs a statement in pieces.
func (g *scripter) portal() {
	limit := uint32(1 + g.IntN(5))
	name := g.pick("", "portal")
	switch g.IntN(4) {
	case 0:
		g.add(fmt.Sprintf("portal by %d", limit), 1, parse("", "SELECT generate_series(1, 7)"), bind(name, ""), execute(name, limit), execute(name, limit), execute(name, 0), sync())
	case 1:
		g.add("two in one unit", 1, parse("", "SELECT 1"), bind("", ""), execute("", 0), parse("", "INSERT INTO ser (x) VALUES (1)"), bind("", ""), execute("", 0), sync())
	case 2:
		g.add("error within", 1, parse("", "INSERT INTO ser (x) VALUES (2)"), bind("", ""), execute("", 0), parse("", "SELECT 1/0"), bind("", ""), execute("", 0), parse("s1", "SELECT 'skipped'"), closing('P', name), sync())
	default:
		g.add("closed portal", 1, parse("", "SELECT 1"), bind(name, ""), closing('P', name), execute(name, 0), sync())
	}
}

// copyIn loads rows; some rows are invalid, some loads are aborted.
func (g *scripter) copyIn() {
	n := 60 + g.IntN(30)
	rows := fmt.Sprintf("%d\tcopied\n%d\t\\N\n", n, n+1)
	if g.IntN(4) == 0 {
		rows = "bad\trow\n"
	}
	end := pgwire.AppendCopyDone(nil)
	if g.IntN(4) == 0 {
		end = pgwire.AppendCopyFail(nil, "changed my mind")
	}
	sql := g.pick("COPY kv (k, v) FROM STDIN", "COPY kv (k, v) FROM STDIN", "COPY missing FROM STDIN")
	data := pgwire.AppendCopyData(nil, []byte(rows))
	if g.IntN(2) == 0 {
		g.add(sql+" "+rows, 1, query(sql), data, end)
		return
	}
	g.add("extended "+sql+" "+rows, 1, parse("", sql), bind("", ""), execute("", 0), data, end, sync())
}

// flushes asks for answers before the Sync.
func (g *scripter) flushes() {
	sql, values := g.parameterised(g.IntN(12))
	g.steps = append(g.steps, step{
		text:  fmt.Sprintf("parse, flush, bind, execute, sync %q %q", sql, values),
		bytes: slices.Concat(parse("", sql), flush()), flushed: 1,
		rest: slices.Concat(bind("", "", values...), execute("", 0), sync()), ready: 1,
	})
}
