// Package labtest starts lab servers for tests: it fails the test if a server does not start,
// skips it if the server is not installed (in CI it fails instead: a build must not be green
// because it tested nothing), and stops the server at the end of the test.
package labtest

import (
	"context"
	"os"
	"testing"
	"time"

	"github.com/weirdb/weir/internal/lab"
)

// Patience limits every start and stop. A start takes 0.2 s on an idle machine; the limit only
// keeps a hang from using up the test's own deadline.
const Patience = 2 * time.Minute

// InMemory puts servers of any durability in memory, like those that flush nothing: on disk,
// flushes are most of their work, since each new database has three hundred files. It is for a
// package's TestMain, and for tests that do not involve a crash of the machine.
func InMemory() {
	if dir := os.Getenv(lab.EnvFastDir); dir != "" && os.Getenv("WEIR_LAB_DIR") == "" {
		if err := os.Setenv("WEIR_LAB_DIR", dir); err != nil {
			panic(err)
		}
	}
}

// Postgres starts a PostgreSQL server for the duration of tb.
func Postgres(tb testing.TB, cfg lab.PostgresConfig) *lab.Postgres {
	tb.Helper()
	ctx, cancel := context.WithTimeout(tb.Context(), Patience)
	defer cancel()
	p, err := lab.StartPostgres(ctx, cfg)
	check(tb, err)
	tb.Cleanup(func() {
		stop(tb, p.Discard)
	})
	return p
}

// Standby starts a hot standby of primary for the duration of tb.
func Standby(tb testing.TB, primary *lab.Postgres, cfg lab.PostgresConfig) *lab.Postgres {
	tb.Helper()
	ctx, cancel := context.WithTimeout(tb.Context(), Patience)
	defer cancel()
	p, err := lab.StartStandby(ctx, primary, cfg)
	check(tb, err)
	tb.Cleanup(func() {
		stop(tb, p.Discard)
	})
	return p
}

// MariaDB starts a MariaDB server for the duration of tb.
func MariaDB(tb testing.TB, cfg lab.MySQLConfig) *lab.MySQL {
	tb.Helper()
	return mysql(tb, cfg, lab.StartMariaDB)
}

// MySQL starts a MySQL server for the duration of tb. No distribution in CI has one, so a
// missing server skips tb there, too: what must be tested in CI is tested with MariaDB.
func MySQL(tb testing.TB, cfg lab.MySQLConfig) *lab.MySQL {
	tb.Helper()
	RequireMySQL(tb)
	return mysql(tb, cfg, lab.StartMySQL)
}

func mysql(tb testing.TB, cfg lab.MySQLConfig, start func(context.Context, lab.MySQLConfig) (*lab.MySQL, error)) *lab.MySQL {
	tb.Helper()
	ctx, cancel := context.WithTimeout(tb.Context(), Patience)
	defer cancel()
	m, err := start(ctx, cfg)
	check(tb, err)
	tb.Cleanup(func() {
		stop(tb, m.Discard)
	})
	return m
}

// PgBouncer starts a PgBouncer in front of server for the duration of tb.
func PgBouncer(tb testing.TB, server *lab.Postgres, cfg lab.PgBouncerConfig) *lab.PgBouncer {
	tb.Helper()
	ctx, cancel := context.WithTimeout(tb.Context(), Patience)
	defer cancel()
	b, err := lab.StartPgBouncer(ctx, server, cfg)
	check(tb, err)
	tb.Cleanup(func() {
		stop(tb, b.Stop)
	})
	return b
}

// RequirePostgres skips tb if PostgreSQL is not installed, for tests that start their servers
// themselves.
func RequirePostgres(tb testing.TB) {
	tb.Helper()
	_, _, err := lab.FindPostgres(tb.Context(), "")
	check(tb, err)
}

// RequireMariaDB skips tb if MariaDB is not installed, for tests that start their servers
// themselves.
func RequireMariaDB(tb testing.TB) {
	tb.Helper()
	_, _, err := lab.FindMySQL(tb.Context(), lab.FlavorMariaDB, "")
	check(tb, err)
}

// RequireMySQL skips tb if MySQL is not installed, in CI too.
func RequireMySQL(tb testing.TB) {
	tb.Helper()
	_, _, err := lab.FindMySQL(tb.Context(), lab.FlavorMySQL, "")
	if lab.NotInstalled(err) {
		tb.Skip(err)
	}
	check(tb, err)
}

func check(tb testing.TB, err error) {
	tb.Helper()
	switch {
	case err == nil:
	case lab.NotInstalled(err) && os.Getenv("CI") != "true":
		tb.Skip(err)
	default:
		tb.Fatal(err)
	}
}

func stop(tb testing.TB, f func(context.Context) error) {
	tb.Helper()
	// Not tb.Context, which has ended by now.
	ctx, cancel := context.WithTimeout(context.Background(), Patience)
	defer cancel()
	if err := f(ctx); err != nil {
		tb.Error(err)
	}
}

// Relay starts a relay to target for the duration of tb.
func Relay(tb testing.TB, target string) *lab.Relay {
	tb.Helper()
	r, err := lab.StartRelay(target)
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() {
		if err := r.Close(); err != nil {
			tb.Errorf("close relay: %v", err)
		}
	})
	return r
}

// Addrs reserves n addresses of the loopback for the duration of tb, for servers that must know
// of each other before they start, or that start again.
func Addrs(tb testing.TB, n int) []string {
	tb.Helper()
	p, err := lab.ReservePorts(n)
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() {
		if err := p.Release(); err != nil {
			tb.Errorf("release ports: %v", err)
		}
	})
	return p.Addrs()
}
