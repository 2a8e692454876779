package lab_test

import (
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/weirdb/weir/internal/lab"
	"github.com/weirdb/weir/internal/lab/labtest"
	"github.com/weirdb/weir/internal/testkit"
)

// TestFastPostgresEndsQuickly checks that processes of a fast server do without the exit handlers
// of libraries, but not without PostgreSQL's own, and that programs which the server starts end
// as usual.
func TestFastPostgresEndsQuickly(t *testing.T) {
	t.Parallel()
	if !lab.WatchesDisks() {
		t.Skip("no C compiler")
	}
	for _, d := range []lab.Durability{lab.Fast, lab.Prod} {
		p := labtest.Postgres(t, lab.PostgresConfig{Durability: d})
		conn := connect(t, p.DSN("postgres"))
		maps, err := os.ReadFile(fmt.Sprintf("/proc/%d/maps", query[int](t, conn, "SELECT pg_backend_pid()")))
		if err != nil {
			t.Fatal(err)
		}
		if got, want := strings.Contains(string(maps), "quickexit.so"), d == lab.Fast; got != want {
			t.Errorf("durability %v: the shim is loaded: %t, want %t", d, got, want)
		}
		if d != lab.Fast {
			continue
		}
		for _, sql := range []string{"CREATE TABLE environment (line text)", "COPY environment FROM PROGRAM 'env'"} {
			if _, err := conn.Exec(t.Context(), sql); err != nil {
				t.Fatal(err)
			}
		}
		if n := query[int](t, conn, "SELECT count(*) FROM environment WHERE line LIKE 'LD_PRELOAD%'"); n != 0 {
			t.Error("a program of the server's loads the shim")
		}
		if n := query[int](t, conn, "SELECT count(*) FROM environment"); n == 0 {
			t.Error("the program printed nothing")
		}

		gone := connect(t, p.DSN("postgres"))
		for _, sql := range []string{"CREATE TABLE counted (a int)", "SELECT pg_advisory_lock(1)", "INSERT INTO counted VALUES (1)"} {
			if _, err := gone.Exec(t.Context(), sql); err != nil {
				t.Fatal(err)
			}
		}
		if err := gone.Close(t.Context()); err != nil {
			t.Fatal(err)
		}
		testkit.Eventually(t, "the lock is released", func() bool { return query[bool](t, conn, "SELECT pg_try_advisory_lock(1)") })
		testkit.Eventually(t, "the row is counted", func() bool {
			return query[int](t, conn, "SELECT coalesce(sum(n_tup_ins), 0)::int FROM pg_stat_user_tables WHERE relname = 'counted'") == 1
		})
	}
}
