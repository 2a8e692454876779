package sqlscan

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/weirdb/weir/internal/lab"
	"github.com/weirdb/weir/internal/lab/labtest"
	"github.com/weirdb/weir/internal/proxy/sqlscan/lexicon"
)

// TestAgainstServer holds the scanner's answers against those of a real server.
func TestAgainstServer(t *testing.T) {
	server := labtest.Postgres(t, lab.PostgresConfig{Durability: lab.Fast})
	conn, err := pgx.Connect(t.Context(), server.DSN("postgres"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close(context.Background()) })
	t.Run("inserts", func(t *testing.T) { checkInserts(t, conn) })
	t.Run("settings", func(t *testing.T) { checkSettings(t, conn) })
	t.Run("names", func(t *testing.T) { checkNames(t, conn) })
	t.Run("keywords", func(t *testing.T) { checkKeywords(t, conn) })
	t.Run("literals", func(t *testing.T) { checkLiterals(t, conn) })
	t.Run("conform", func(t *testing.T) { checkConform(t, conn) })
}

func exec(t *testing.T, conn *pgx.Conn, sql string, args ...any) {
	t.Helper()
	if len(args) == 0 {
		_, err := conn.PgConn().Exec(t.Context(), sql).ReadAll()
		if err != nil {
			t.Fatalf("%s: %v", sql, err)
		}
		return
	}
	if _, err := conn.Exec(t.Context(), sql, append([]any{pgx.QueryExecModeExec}, args...)...); err != nil {
		t.Fatalf("%s: %v", sql, err)
	}
}

func query(t *testing.T, conn *pgx.Conn, sql string) []string {
	t.Helper()
	rows, err := conn.Query(t.Context(), sql, pgx.QueryExecModeExec)
	if err != nil {
		t.Fatalf("%s: %v", sql, err)
	}
	out, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil {
		t.Fatalf("%s: %v", sql, err)
	}
	return out
}

// checkInserts stores the same rows one by one and by one statement.
func checkInserts(t *testing.T, conn *pgx.Conn) {
	exec(t, conn, `create sequence s; create table t (id int default nextval('s'), a text, b numeric(10, 2) default 9, c timestamptz, d int[])`)
	const read = "select row_to_json(t)::text from t order by id, a"
	for _, c := range []struct {
		sql  string
		rows [][]any
	}{
		{"insert into t (a, b) values ($1, $2)", [][]any{{"x", 1.5}, {"y", nil}, {"it's", -1}}},
		{"insert into t (b, a) values ($2, $1)", [][]any{{"x", 1}, {"y", 2}}},
		{"insert into t (a, b) values ($1, 7)", [][]any{{"x"}, {"y"}}},
		{"insert into t (a, b, c) values ('see /* ttl:5 */ $1 here', $1, '2020-01-01') returning id", [][]any{{1}, {2}}},
		{"insert into t as u (a, b, d) values (upper($1) || '$2', default, array[$2, $2 + 1]::int[]) -- x\n returning u.a;", [][]any{{"x", 1}, {"y", 2}}},
		{"/* batch */ insert into t values (nextval('s'), $1, round($2::numeric / 3, 2), $3, null)", [][]any{{"x", 1, "2020-02-02"}, {"y", 2, "2021-02-02"}}},
	} {
		shape, ok := Insert(c.sql)
		if !ok {
			t.Errorf("%s: refused", c.sql)
			continue
		}
		exec(t, conn, "truncate t; alter sequence s restart")
		for _, row := range c.rows {
			exec(t, conn, c.sql, row...)
		}
		want := query(t, conn, read)

		text, all := []byte(shape.Prefix), []any(nil)
		for i, row := range c.rows {
			if i > 0 {
				text = append(text, ',')
			}
			text = shape.AppendTuple(append(text, ' '), i*shape.MaxParam)
			all = append(all, row...)
		}
		exec(t, conn, "truncate t; alter sequence s restart")
		exec(t, conn, string(text)+shape.Suffix, all...)
		if diff := cmp.Diff(want, query(t, conn, read)); diff != "" {
			t.Errorf("%s (-one by one +together)\n%s", text, diff)
		}
	}

	// Rows of constants: their texts differ, and so may the types they seem to have.
	rows := []string{"('1', '2.50', '2020-01-01')", "(2, 3, default)", "(null, '4', '2021-01-01'::timestamptz + interval '1 day')"}
	exec(t, conn, "truncate t; alter sequence s restart")
	var together string
	for _, row := range rows {
		sql := "insert into t (a, b, c) values " + row
		shape, ok := Insert(sql)
		if !ok {
			t.Fatalf("%s: refused", sql)
		}
		exec(t, conn, sql)
		if together == "" {
			together = shape.Prefix + " " + shape.Tuple
		} else {
			together += ", " + shape.Tuple
		}
	}
	want := query(t, conn, read)
	exec(t, conn, "truncate t; alter sequence s restart")
	exec(t, conn, together)
	if diff := cmp.Diff(want, query(t, conn, read)); diff != "" {
		t.Errorf("%s (-one by one +together)\n%s", together, diff)
	}
}

// checkSettings runs a SET, then replays what the scanner made of it on a clean
// session, and compares the setting.
func checkSettings(t *testing.T, conn *pgx.Conn) {
	for _, sql := range []string{
		"set work_mem to '64MB'", "set Work_mem = 8192", `set "DateStyle" to german, dmy -- x`, "set search_path = a, \"B\", public",
		"set session statement_timeout = '5s';", "set app.who /* c */ to 'it''s'", "set extra_float_digits = -1",
		"set time zone 'Europe/Amsterdam'", "set time zone -7", "set time zone utc", "set time zone local", "set time zone default",
		"set names 'latin1'", "set names", "set schema 'x'", "set xml option document", "set work_mem to default",
		"set standard_conforming_strings to on", "set application_name to E'a\\'b'", "set default_transaction_isolation to 'repeatable read'",
	} {
		s := Scan(sql)
		if s.Effects != EffSet {
			t.Errorf("%s: %v", sql, s.Effects)
			continue
		}
		exec(t, conn, sql)
		read := fmt.Sprintf("select current_setting('%s')", s.Set.Name)
		want := query(t, conn, read)
		exec(t, conn, "discard all")
		value := s.Set.Value
		if s.Set.Default {
			value = "default"
		}
		exec(t, conn, "set "+s.Set.Name+" to "+value)
		if diff := cmp.Diff(want, query(t, conn, read)); diff != "" {
			t.Errorf("%s (-said +replayed)\n%s", sql, diff)
		}
		exec(t, conn, "discard all")
	}
}

func checkNames(t *testing.T, conn *pgx.Conn) {
	for _, name := range []string{
		"abc", "ABC", `"A""b"`, "Été_$1", `"with space"`, "x" + strings.Repeat("é", 40), `"` + strings.Repeat("X", 70) + `"`,
	} {
		sql := "listen " + name
		exec(t, conn, sql)
		if diff := cmp.Diff(query(t, conn, "select pg_listening_channels()"), []string{Scan(sql).Name}); diff != "" {
			t.Errorf("%s (-server +scan)\n%s", sql, diff)
		}
		exec(t, conn, "unlisten *")
	}
}

// checkKeywords asks whether the server has words that the table does not know.
// Servers newer than the table may have more unreserved ones, which do no harm.
func checkKeywords(t *testing.T, conn *pgx.Conn) {
	words := query(t, conn, "select word from pg_get_keywords() where catcode in ('R', 'C') and word <> 'system_user'")
	if len(words) < 100 {
		t.Fatalf("only %d keywords", len(words))
	}
	for _, word := range words {
		if k := lookupKeyword(word, lexicon.Hash(word)); k.isFunctionName() {
			t.Errorf("%s is no function name for the server", word)
		}
	}
}

// checkLiterals lets the server read literals and tells by the count of columns
// whether both see the same ends.
func checkLiterals(t *testing.T, conn *pgx.Conn) {
	for _, list := range []string{
		`'a'', b', 1`, `E'\', ''', 2`, "'a'\n ', b', 3", "'a' -- x, y\n 'b', 4", "$$, '$$, $x$ $$, $x$", "E'a'\n'\\', ', 1",
		`U&'\0041, ', 1`, `b'01', x'1F', n',', 1`, "1 /* , /* , */ , */, 2", "1 -- ,\n, 2", "'a\\', 2", `1 as "a, ""b", 2`, "1+-2, 3--4,\n, 5", "2*-/* , */1, 3",
	} {
		rows, err := conn.Query(t.Context(), "select "+list, pgx.QueryExecModeExec)
		if err != nil {
			t.Fatal(err)
		}
		want := len(rows.FieldDescriptions())
		rows.Close()
		if err := rows.Err(); err != nil {
			t.Errorf("%q: %v", list, err)
			continue
		}
		got := 1
		l := lexer{sql: list}
		for tok := l.next(); tok.kind != tokEOF; tok = l.next() {
			if tok.kind == ',' {
				got++
			}
		}
		if got != want {
			t.Errorf("%q: %d columns, the server sees %d", list, got, want)
		}
	}
}

// checkConform makes texts of pieces that matter, and has the server read each with
// standard_conforming_strings off, and what Conform makes of it with it on.
func checkConform(t *testing.T, conn *pgx.Conn) {
	pieces := []string{"'", "'", "''", `\`, `\\`, `\'`, "a", ", ", " ", "\n", "--", "/*", "*/", "E'", "n'", "B'", "$$", `"`, "1"}
	random := rand.New(rand.NewPCG(1, 2))
	ask := func(setting, list string) string {
		exec(t, conn, "SET escape_string_warning = off; SET backslash_quote = on; SET standard_conforming_strings = "+setting)
		results, err := conn.PgConn().Exec(t.Context(), "select "+list).ReadAll()
		var refused *pgconn.PgError
		if errors.As(err, &refused) {
			return "refused" // a text that means nothing may mean it in another way
		} else if err != nil {
			t.Fatalf("%q: %v", list, err)
		}
		var out strings.Builder
		for _, r := range results {
			for _, row := range r.Rows {
				fmt.Fprintf(&out, "%q", row)
			}
		}
		return out.String()
	}
	told := 0
	for range 4000 {
		var list strings.Builder
		for range 2 + random.IntN(9) {
			list.WriteString(pieces[random.IntN(len(pieces))])
		}
		off, on := ask("off", list.String()), ask("on", Conform(list.String()))
		if off != on {
			t.Errorf("%q: off %s; %q: on %s", list.String(), off, Conform(list.String()), on)
		}
		if strings.HasPrefix(off, "[") && Conform(list.String()) != list.String() {
			told++
		}
	}
	if told < 20 {
		t.Errorf("only %d texts were read otherwise and had an answer", told)
	}
}
