package mysql_test

import (
	"database/sql"
	"fmt"
	"strings"
	"testing"

	"github.com/weirdb/weir/internal/wire/mywire"
)

// A client that prepares too many statements gets an error. Once it closes some it can go on.
func TestTextsOfOneClientAreBounded(t *testing.T) {
	t.Parallel()
	w := start(t, database(t), nil)
	for _, held := range []bool{false, true} {
		c := w.connect(nil)
		if held {
			if _, err := c.ExecContext(t.Context(), "BEGIN"); err != nil {
				t.Fatal(err)
			}
		}
		prepare := func(i int) (*sql.Stmt, error) {
			return c.PrepareContext(t.Context(), fmt.Sprintf("SELECT %d /* %s */", i, strings.Repeat("x", 2<<20)))
		}
		var kept []*sql.Stmt
		for i := range 16 {
			st, err := prepare(i)
			if err != nil {
				if i != 15 || code(err) != mywire.ErrTooManyStatements || !strings.Contains(err.Error(), "more than 32 MB of text") {
					t.Errorf("held %v, statement %d: %v", held, i, err)
				}
				break
			}
			kept = append(kept, st)
		}
		if len(kept) != 15 {
			t.Fatalf("held %v: %d statements", held, len(kept))
		}
		if err := kept[3].Close(); err != nil {
			t.Fatal(err)
		}
		if _, err := prepare(3); err != nil {
			t.Errorf("held %v, after one was closed: %v", held, err)
		}
	}
}
