package mysql_test

import (
	"database/sql"
	"testing"

	"github.com/weirdb/weir/outbox/mysql"
)

// The example runs here, where it is skipped without a server.
func TestExampleOpen(t *testing.T) {
	database = mysql.NewDatabase(t)
	db, err := sql.Open("mysql", database)
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	if _, err := db.ExecContext(t.Context(), "CREATE TABLE orders (number INTEGER)"); err != nil {
		t.Fatal(err)
	}
	ExampleOpen()
	for _, table := range []string{"orders", "weir_outbox"} {
		var n int
		if err := db.QueryRowContext(t.Context(), "SELECT count(*) FROM "+table).Scan(&n); err != nil || n != 1 {
			t.Errorf("%s has %d rows, want 1 (%v)", table, n, err)
		}
	}
}
