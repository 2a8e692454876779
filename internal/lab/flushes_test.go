package lab_test

import (
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/weirdb/weir/internal/lab"
	"github.com/weirdb/weir/internal/lab/labtest"
)

// TestFlushesCountsCommits holds the count against what must have happened:
// one client's synchronous commits flush the log at least once each.
func TestFlushesCountsCommits(t *testing.T) {
	t.Parallel()
	pg := labtest.Postgres(t, lab.PostgresConfig{CountFlushes: true})
	conn, err := pgx.Connect(t.Context(), pg.DSN("postgres"))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close(t.Context())
	if _, err := conn.Exec(t.Context(), "CREATE TABLE t (a int)"); err != nil {
		t.Fatal(err)
	}
	before, err := pg.Flushes()
	if err != nil {
		t.Fatal(err)
	}
	for i := range 50 {
		if _, err := conn.Exec(t.Context(), "INSERT INTO t VALUES ($1)", i); err != nil {
			t.Fatal(err)
		}
	}
	after, err := pg.Flushes()
	if err != nil {
		t.Fatal(err)
	}
	if after-before < 50 {
		t.Errorf("50 commits were counted as %d flushes", after-before)
	}
}
