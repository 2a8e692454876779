package sqlscan_test

import (
	"slices"
	"strings"
	"testing"

	"github.com/weirdb/weir/internal/proxy/sqlscan"
)

func TestNames(t *testing.T) {
	t.Parallel()
	long := strings.Repeat("x", 63)
	table := map[string]bool{"f": true, "Odd \"F": true, "select": true, long: true, "set": true}
	for _, c := range []struct {
		sql  string
		want []string
	}{
		{`SELECT F(1), public.f(2)`, []string{"f", "f"}},
		{`SELECT "f"(1), "F"(2), 'f', $$f$$, $f$ f $f$ -- f`, []string{"f"}},
		{`SELECT "Odd ""F"()`, []string{`Odd "F`}},
		{`SELECT "select", ` + long + `yyy`, []string{"select", long}},
		{`UPDATE t SET x = 1`, []string{"set"}},
		{`SELECT (r).f`, []string{"f"}},
	} {
		var got []string
		r := sqlscan.Names(c.sql, table, func(name string, _ bool) { got = append(got, strings.Clone(name)) })
		if !slices.Equal(got, c.want) || r.Foreign || r.Unreadable {
			t.Errorf("%s: %q, %+v; want %q", c.sql, got, r, c.want)
		}
	}
	if r := sqlscan.Names(`SELECT U&"\0066"()`, table, func(string, bool) {}); !r.Unreadable {
		t.Error("a name with Unicode escapes was read")
	}
	if r := sqlscan.Names(`SELECT überall()`, table, func(string, bool) {}); !r.Foreign {
		t.Error("a name beyond ASCII was not seen")
	}
}

func TestRoutineBodies(t *testing.T) {
	t.Parallel()
	const opaque = sqlscan.EffUnknownFunc
	for _, c := range []struct {
		body    string
		want    sqlscan.Effect
		touches string
	}{
		{"BEGIN RETURN 1; END", 0, ""},
		{"BEGIN UPDATE t SET x = 1 WHERE y; END", sqlscan.EffWrites, ""},
		{"BEGIN UPDATE t SET x = 1; SET work_mem = '1MB'; END", sqlscan.EffWrites, "work_mem"},
		{"BEGIN LOOP SET LOCAL a.b TO 1; END LOOP; END", 0, "a.b"},
		{"BEGIN PERFORM set_config('Road.X', v, false); END", 0, "road.x"},
		{"BEGIN PERFORM set_config('a' || 'b', v, false); END", sqlscan.EffSetConfig, ""},
		{"BEGIN PERFORM set_config(E'a', v, false); END", sqlscan.EffSetConfig, ""},
		{"BEGIN EXECUTE 'x'; END", opaque, ""},
		{"BEGIN FOR r IN EXECUTE q LOOP END LOOP; END", opaque, ""},
		{"BEGIN INSERT INTO t VALUES (1) ON CONFLICT DO NOTHING; END", sqlscan.EffWrites, ""},
		{"BEGIN RESET ALL; END", sqlscan.EffSetUnknown, ""},
		{"BEGIN SET ROLE x; END", sqlscan.EffRole, ""},
		{"BEGIN SET SESSION AUTHORIZATION x; END", sqlscan.EffRole, ""},
		{"BEGIN CREATE TEMP TABLE x (i int); END", sqlscan.EffTemp | sqlscan.EffDDL, ""},
		{"BEGIN CREATE OR REPLACE FUNCTION f() RETURNS int LANGUAGE sql AS 'SELECT 1'; END", opaque | sqlscan.EffDDL | sqlscan.EffTemp, ""},
		{"BEGIN 'unterminated", opaque | sqlscan.EffSetConfig, ""},
	} {
		r := sqlscan.RoutinePLpgSQL(c.body)
		var names []string
		for _, s := range r.Touches {
			names = append(names, s.Name)
		}
		if r.Effects != c.want || strings.Join(names, " ") != c.touches {
			t.Errorf("%s: %s, %q; want %s, %q", c.body, r.Effects, names, c.want, c.touches)
		}
	}
}

func TestDoBody(t *testing.T) {
	t.Parallel()
	for sql, want := range map[string]string{
		"DO $$ BEGIN END $$":           " BEGIN END ",
		"do language plpgsql $x$a$x$;": "a",
		"DO 'say ''it'''":              "say 'it'",
		"DO $$a$$ LANGUAGE plpgsql":    "a",
		"DO E'a'":                      "",
		"DO $$a$$; SELECT 1":           "",
		"DO $$a$$ LANGUAGE plperl":     "",
		"DO 'a'\n'b'":                  "",
		"SELECT $$a$$":                 "",
	} {
		if got, ok := sqlscan.DoBody(sql); got != want || ok != (want != "") {
			t.Errorf("%s: %q, %t; want %q", sql, got, ok, want)
		}
	}
}
