package myscan

import (
	"hash/fnv"
	"math"
	"testing"
)

func TestNormalize(t *testing.T) {
	for sql, want := range map[string]string{
		"":         "",
		" ; ;":     "",
		"select 1": "select ?",
		"SELECT  a.B,`C` FROM `T` /* x */ WHERE d='x' -- y\n;":      "select a.b, `C` from `T` where d = ?",
		"select * from t where a in (1, -2, 'x') and b in (?,?)":    "select * from t where a in (?) and b in (?)",
		"select * from t where a in (select 1)":                     "select * from t where a in (select ?)",
		"insert into t (a, b) values (1, 'x'), (2, 'y'),(3,'z')":    "insert into t(a, b) values (?, ?)",
		"insert into t values (1, f(2)), (3, g()) as n":             "insert into t values (?, f(?)) as n",
		"select -1, - 2, a - 1, 2-1, -a, (-3), @x-1":                "select ?, ?, a - ?, ? - ?, - a, (?), @x - ?",
		"select a<=>b, c->>'$.d', e != 1, !f":                       "select a <=> b, c ->> ?, e != ?, ! f",
		"set names utf8mb4; select _latin1'x', N'y', x'41', @@A.b":  "set names utf8mb4; select _latin1 ?, ?, ?, @@A.b",
		"select count(*), coalesce (a, 1), if(a, 1, 2) from t":      "select count(*), coalesce(a, ?), if(a, ?, ?) from t",
		"select /*!40000 sql_no_cache */ 1 # x":                     "select sql_no_cache ?",
		"values(1),(2),(":                                           "values (?), (",
		"select \"a\"":                                              "select ?",
		"update t set a = a + 1 where b between 1 and -2 limit 1;;": "update t set a = a + ? where b between ? and ? limit ?",
	} {
		if got := Normalize(sql, Mode{}, math.MaxInt32); got != want {
			t.Errorf("%s\n got %s\nwant %s", sql, got, want)
		}
		h := fnv.New64a()
		h.Write([]byte(want))
		if got := Fingerprint(sql, Mode{}); got != h.Sum64() {
			t.Errorf("%s: %x is not the hash of the normal form", sql, got)
		}
	}
	if got := Normalize("select \"A\"", ansi, 100); got != "select \"A\"" {
		t.Error(got)
	}
	if got := Normalize("select 'a\\', b, 'c'", noEscapes, 100); got != "select ?, b, ?" {
		t.Error(got)
	}
}

func TestNormalizeCuts(t *testing.T) {
	for _, c := range []struct {
		sql  string
		max  int
		want string
	}{
		{"select abc", 9, "select ab"},
		{"select é", 8, "select "},
		{"select é", 9, "select é"},
		{"select 1", 0, ""},
		{"select 1", -1, ""},
		{"select \xff", 20, "select ?"},
	} {
		if got := Normalize(c.sql, Mode{}, c.max); got != c.want {
			t.Errorf("%q at %d: %q, want %q", c.sql, c.max, got, c.want)
		}
	}
}
