package postgres

import (
	"bytes"
	"slices"
	"testing"

	"github.com/weirdb/weir/internal/proxy/sqlscan"
	"github.com/weirdb/weir/internal/wire/pgwire"
)

// What was read of a waiting message's text holds for the same bytes, wherever the input has
// moved them, and for no others; nor if the server reads them differently, or more is known of
// what they name.
func TestReadingsFollowTheirText(t *testing.T) {
	const first, second = `/* file:a.go */ INSERT INTO t VALUES ('a\')`, `/* file:b.go */ UPDATE t SET a = 'b' -- aa`
	l := &loop{}
	p := &pool{l: l, catalogue: &dbCatalogue{}}
	p.stmts = poolStmts{proof: p.catalogue, text: &l.text, scans: &l.scans}
	c := &client{l: l, p: p}
	tx := &c.texts
	tx.c = c
	buf := []byte(first)
	check := func(what, sql string, verb sqlscan.Verb, file string, scans uint64) {
		t.Helper()
		info := tx.scan(sql)
		if info.Verb != verb || info.Hints.File != file || info.Unread != tx.lexical().reads(sql) || tx.asRead(sql).String() != info.Unread || tx.asRead(sql).Scan().Verb != verb {
			t.Errorf("%s: %+v", what, info)
		}
		if l.scans.n != scans {
			t.Errorf("%s: %d texts were read, want %d", what, l.scans.n, scans)
		}
	}
	check("as it comes", text(buf), sqlscan.VerbInsert, "a.go", 1)
	tx.settle(false)
	copy(buf, second)
	moved := []byte(first)
	check("moved", text(moved), sqlscan.VerbInsert, "a.go", 1)
	tx.settle(false)
	copy(moved, second)
	check("moved again", first, sqlscan.VerbInsert, "a.go", 1)
	p.catalogue.epoch++
	check("more is known", first, sqlscan.VerbInsert, "a.go", 2)
	tx.settle(false)
	tx.lex.conforming = "off"
	check("with escapes", first, sqlscan.VerbInsert, "a.go", 3)
	tx.settle(false)
	check("with escapes, while it waits", string([]byte(first)), sqlscan.VerbInsert, "a.go", 3)
	check("other bytes in the same place", text(moved), sqlscan.VerbUpdate, "b.go", 4)
	tx.settle(true)
	copy(moved, first)
	check("consumed", text(moved), sqlscan.VerbInsert, "a.go", 5)
}

// FuzzBindView: what weir takes apart of a Bind message for a group is the whole message,
// and what the full reading makes of it.
func FuzzBindView(f *testing.F) {
	for _, args := range []pgwire.BindArgs{
		{},
		{Values: [][]byte{[]byte("1"), nil, {}}},
		{Formats: []int16{1}, Values: [][]byte{{1}}, ResultFormats: []byte{0, 1, 0, 0}},
		{Formats: []int16{0, 1}, Values: [][]byte{{1}, {2, 3}}, ResultFormats: []byte{0, 0}},
	} {
		f.Add(pgwire.AppendBind(nil, "", "", &args)[pgwire.HeaderLen+2:], len(args.Values))
	}
	f.Fuzz(func(t *testing.T, p []byte, want int) {
		p = slices.Clip(bytes.Clone(p)) // a read past the end panics
		v := viewBind(p, want)
		if !v.ok {
			return
		}
		if n := 2 + len(v.formats) + 2 + len(v.values) + len(v.results); n != len(p) {
			t.Fatalf("%d of %d bytes", n, len(p))
		}
		var args pgwire.BindArgs
		if err := (pgwire.BindMsg{Rest: p}).Decode(&args); err != nil || len(args.Values) != want {
			t.Fatalf("%x has %d parameters, %v; want %d", p, len(args.Values), err, want)
		}
	})
}

// FuzzRowText: a row that is found in a text, with what stands around it, is the text.
func FuzzRowText(f *testing.F) {
	for _, sql := range []string{
		"INSERT INTO t VALUES (1, -2.5, 'a''b', NULL, default) RETURNING k", "insert into t (a) values( true ,false)", "VALUES", "VALUES (", "VALUES ('", "VALUES (1", "VALUES (-", "VALUES ()", "/* VALUES (1) */ VALUES (2)",
	} {
		f.Add(sql)
	}
	f.Fuzz(func(t *testing.T, sql string) {
		var rs rowTexts
		row, ok := rs.cut(sql)
		if !ok {
			return
		}
		if sql[row.at] != '(' || sql[row.end-1] != ')' {
			t.Fatalf("%q: the row is %q", sql, sql[row.at:row.end])
		}
		key := string(rs.key)
		if again, ok := rs.cut(sql); !ok || again != row || string(rs.key) != key {
			t.Fatalf("%q: %v, then %v", sql, row, again)
		}
	})
}
