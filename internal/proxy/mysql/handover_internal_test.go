package mysql

import (
	"reflect"
	"strings"
	"testing"

	"github.com/weirdb/weir/internal/proxy/session"
	"github.com/weirdb/weir/internal/proxy/sight"
	"github.com/weirdb/weir/internal/proxy/sqlscan/myscan"
)

// A statement that was read away from the loop is what it would be had the loop read it.
func TestStatementsReadAway(t *testing.T) {
	t.Parallel()
	pools := func() (*poolStmts, *session.Table) {
		l := &loop{}
		l.Settings, l.Shapes = session.NewTable(), sight.NewShapes()
		return &poolStmts{l: l, byKey: make(map[string]*stmt)}, l.Settings
	}
	mode := myscan.Mode{Multi: true}
	here, sets := pools()
	away, awaySets := pools()
	for _, sql := range []string{
		"SELECT a FROM t WHERE k = ?", "/* batch */ INSERT INTO s.t (a, b) VALUES (?, NOW())", "REPLACE INTO t VALUES (?)", "UPDATE t SET a = ? WHERE k = ?",
		"DELETE FROM t", "SET @v = ?", "BEGIN", "nonsense", "", "SELECT 1 /*" + strings.Repeat("x", maxSharedText) + "*/",
	} {
		for _, private := range []bool{false, true} {
			want := here.intern(sets.Empty(), []byte(sql), mode, private)
			m := movedClient{Statements: []movedStatement{{SQL: sql, Mode: want.mode, Private: private}, {SQL: strings.Repeat(" ", maxScanned+1)}}}
			m.read()
			got := away.adopt(awaySets.Empty(), m.made[0])
			if again := away.adopt(awaySets.Empty(), readAway(sql, mode, private)); (again == got) == got.private {
				t.Errorf("%.50q: private %v, and shared %v", sql, got.private, again == got)
			}
			if got.shape.Text != want.shape.Text {
				t.Errorf("%.50q: shape %q, want %q", sql, got.shape.Text, want.shape.Text)
			}
			w, g := *want, *got
			w.set, w.target.in, w.shape = g.set, g.target.in, g.shape
			if !reflect.DeepEqual(g, w) {
				t.Errorf("%.50q:\n got %+v\nwant %+v", sql, g, w)
			}
		}
	}
	short := movedClient{Statements: []movedStatement{{SQL: "SELECT 1"}}}
	if short.read(); short.made != nil {
		t.Error("short texts are read away from the loop")
	}
}
