package mysql

import "testing"

// TestTablespaceNamesItsEngine, which need not be the server's default.
func TestTablespaceNamesItsEngine(t *testing.T) {
	want := "CREATE TABLESPACE `a``b` ADD DATAFILE 'a`b.ibd' ENGINE = InnoDB"
	if got := tablespace("a`b"); got != want {
		t.Errorf("%s\ninstead of\n%s", got, want)
	}
}
