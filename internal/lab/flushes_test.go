package lab_test

import (
	"errors"
	"os"
	"path/filepath"
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

// Servers also start without a C compiler, which a user who has just installed them may not
// have; their flushes are then not counted.
func TestServersNeedNoCompiler(t *testing.T) {
	warm, err := os.UserCacheDir()
	if err != nil {
		t.Fatal(err)
	}
	cold := t.TempDir() // but for the server's data, which takes longest to initialise
	if err := os.MkdirAll(filepath.Join(cold, "weir", "lab"), 0o700); err != nil {
		t.Fatal(err)
	}
	data, err := filepath.Glob(filepath.Join(warm, "weir", "lab", "postgres-*"))
	if err != nil {
		t.Fatal(err)
	}
	for _, path := range data {
		if err := os.Symlink(path, filepath.Join(cold, "weir", "lab", filepath.Base(path))); err != nil {
			t.Fatal(err)
		}
	}
	t.Setenv("XDG_CACHE_HOME", cold)
	t.Setenv("PATH", t.TempDir())
	if lab.WatchesDisks() {
		t.Fatal("there is a compiler")
	}
	pg := labtest.Postgres(t, lab.PostgresConfig{})
	if n, err := pg.Flushes(); !errors.Is(err, errors.ErrUnsupported) {
		t.Errorf("%d flushes, %v", n, err)
	}
}
