package postgres

import (
	"reflect"
	"strings"
	"testing"

	"github.com/weirdb/weir/internal/proxy/session"
	"github.com/weirdb/weir/internal/proxy/sight"
	"github.com/weirdb/weir/internal/proxy/sqlscan"
)

// A statement that was read away from the loop is what it would be had the loop read it,
// once it is judged.
func TestStatementsReadAway(t *testing.T) {
	t.Parallel()
	pools := func() (*poolStmts, *session.Table) {
		return &poolStmts{proof: &dbCatalogue{}, shapes: sight.NewShapes(), text: new(sqlscan.Text), scans: new(scans), byKey: make(map[string]*stmt)}, session.NewTable()
	}
	here, sets := pools()
	away, awaySets := pools()
	for _, sql := range []string{
		"SELECT a FROM t WHERE k = $1", "/* batch */ INSERT INTO s.t (a, b) VALUES ($1, now())", "UPDATE t SET a = $1 WHERE k = $2", "DELETE FROM t WHERE k = $1",
		"SET work_mem = '1MB'", "BEGIN", "nonsense", "", `SELECT 'a\'`, "SELECT 1 /*" + strings.Repeat("x", maxSharedText) + "*/",
	} {
		for _, as := range []lexical{{"UTF8", "on"}, {"UTF8", "off"}} {
			tail := append([]byte(sql), 0, 0, 0)
			want := here.intern(sets.Empty(), as, tail)
			want.reads(as)
			moving := movedLexical{as.encoding, as.conforming}
			m := movedClient{Statements: []movedStatement{{Tail: tail, As: moving}, {Tail: make([]byte, maxScanned), As: moving}}}
			m.read()
			got := away.adopt(awaySets.Empty(), as, m.made[0])
			got.reads(as)
			if again := away.adopt(awaySets.Empty(), as, readAway(tail, as)); (again == got) != (len(tail) <= maxSharedText) {
				t.Errorf("%.50q: shared %v", sql, again == got)
			}
			away.refresh(got)
			if got.shape.Text != want.shape.Text {
				t.Errorf("%.50q: shape %q, want %q", sql, got.shape.Text, want.shape.Text)
			}
			w, g := *want, *got
			w.key, w.srvName, w.set, w.shape = g.key, g.srvName, g.set, g.shape
			if !reflect.DeepEqual(g, w) {
				t.Errorf("%.50q:\n got %+v\nwant %+v", sql, g, w)
			}
		}
	}
	short := movedClient{Statements: []movedStatement{{Tail: []byte("SELECT 1\x00\x00\x00")}}}
	if short.read(); short.made != nil {
		t.Error("short texts are read away from the loop")
	}
}
