package sqlscan

import (
	"hash/fnv"
	"math"
	"testing"
	"unicode/utf8"
)

func TestNormalize(t *testing.T) {
	for sql, want := range map[string]string{
		"":         "",
		" ; ;":     "",
		"select 1": "select ?",
		"SELECT  a.B,c::INT FROM \"T\" /* x */ WHERE d='x' -- y\n;": `select a.b, c::int from "T" where d = ?`,
		"select $1, 'a', E'\\'', $$x$$, 1.5e3, B'01', 'a'\n'b'":     "select ?, ?, ?, ?, ?, ?, ?",
		"select * from t where a IN (1,2, -3)":                      "select * from t where a in (?)",
		"select * from t where a in ($1::uuid, $2::uuid)":           "select * from t where a in (?)",
		"select * from t where a in (1, b)":                         "select * from t where a in (?, b)",
		"select * from t where a in (select 1)":                     "select * from t where a in (select ?)",
		"select * from t where a = any(array[1,2])":                 "select * from t where a = any (array[?])",
		"insert into t(a,b) values (1,'x'),(2,'y') returning a":     "insert into t(a, b) values (?, ?) returning a",
		"insert into t values (1, f(2), (3))":                       "insert into t values (?, f(?), (?))",
		"select a from (values (1), (2)) x(a), (values (3), (4)) y": "select a from (values (?)) x(a), (values (?)) y",
		"select a-1, -1, a = -1, (2)-1, a - b, 'x'::text":           "select a - ?, ?, a = ?, (?) - ?, a - b, ?::text",
		"select count(*), a[1], a[1:2] from t":                      "select count(*), a[?], a[? : ?] from t",
		"begin; select 1; commit;":                                  "begin; select ?; commit",
		"SET app.token TO s3cret; select a = b":                     "set app.token to ?; select a = b",
		"set local search_path = tenant_a, \"B\"":                   "set local search_path = ?",
		"set work_mem to default":                                   "set work_mem to ?",
		"update t set a = b":                                        "update t set a = b",
	} {
		if got := Normalize(sql, 1000); got != want {
			t.Errorf("%s\n got %s\nwant %s", sql, got, want)
		}
	}
}

func TestNormalizeCuts(t *testing.T) {
	const sql = "select ééé, 'x', \"\xff\xff\", more and more"
	for limit := -1; limit < 60; limit++ {
		got := Normalize(sql, limit)
		if len(got) > max(limit, 0) || !utf8.ValidString(got) {
			t.Errorf("max %d: %q", limit, got)
		}
	}
}

func TestFingerprintSharesAndSeparates(t *testing.T) {
	groups := [][]string{
		{"select a from t where b = 1", "SELECT a\nFROM t WHERE b='x' ;", "/* batch */ select a from t where b = $1 -- x", "select a from t where b=-5"},
		{"select a from t where b in (1)", "select a from t where b in (1, 2, 3)", "select a from t where b in ($1,$2)"},
		{"insert into t values (1)", "insert into t values (1), (2)", "insert into t values ($1)"},
		{"select a from t"},
		{`select "a" from t`},
		{"select at from"},
		{"select a from t where b is null"},
		{"delete from t"},
		{""},
	}
	seen := map[uint64]int{}
	for i, group := range groups {
		for _, sql := range group {
			f := Fingerprint(sql)
			if j, ok := seen[f]; ok && j != i {
				t.Errorf("%s: shares with group %d", sql, j)
			}
			if f != Fingerprint(group[0]) {
				t.Errorf("%s: differs from %s", sql, group[0])
			}
			seen[f] = i
		}
	}
}

func TestFingerprintIsTheHashOfTheNormalForm(t *testing.T) {
	for _, sql := range corpus {
		if !utf8.ValidString(sql) {
			continue
		}
		h := fnv.New64a()
		h.Write([]byte(Normalize(sql, math.MaxInt32)))
		if got := Fingerprint(sql); got != h.Sum64() {
			t.Errorf("%s: %x, want %x", sql, got, h.Sum64())
		}
	}
}
