package mysql

import (
	"testing"

	"github.com/weirdb/weir/internal/proxy/sqlscan/myscan"
)

// What was read of a waiting command's text holds for the same bytes, wherever the input has moved
// them, and for no others; nor in another mode.
func TestReadingsFollowTheirText(t *testing.T) {
	const first, second = `/* file:a.go */ INSERT INTO t VALUES ("a")`, `/* file:b.go */ UPDATE t SET a = 'b' -- aa`
	c := &client{l: &loop{}}
	tx := &c.texts
	tx.c = c
	buf := []byte(first)
	check := func(what, sql string, verb myscan.Verb, file string, scans uint64) {
		t.Helper()
		info := tx.read(sql)
		if info.Verb != verb || info.Hints.File != file || tx.asRead(sql).Scan().Verb != verb {
			t.Errorf("%s: %+v", what, info)
		}
		if c.l.scans != scans {
			t.Errorf("%s: %d texts were read, want %d", what, c.l.scans, scans)
		}
	}
	check("as it comes", text(buf), myscan.VerbInsert, "a.go", 1)
	tx.settle(false)
	copy(buf, second)
	moved := []byte(first)
	check("moved", text(moved), myscan.VerbInsert, "a.go", 1)
	tx.settle(false)
	copy(moved, second)
	check("moved again", first, myscan.VerbInsert, "a.go", 1)
	tx.mode.AnsiQuotes = true
	check("in another mode", first, myscan.VerbInsert, "a.go", 2)
	tx.settle(false)
	check("other bytes in the same place", text(moved), myscan.VerbUpdate, "b.go", 3)
	tx.settle(true)
	copy(moved, first)
	check("consumed", text(moved), myscan.VerbInsert, "a.go", 4)
	set := []byte(`SET @a = 1, time_zone = 'UTC'`)
	tx.read(text(set))
	tx.settle(false)
	clear(set)
	info := tx.read(`SET @a = 1, time_zone = 'UTC'`)
	for a := range info.Set.All() {
		if a.Name != "a" && a.Name != "time_zone" {
			t.Errorf("it sets %q", a.Name)
		}
	}
}
