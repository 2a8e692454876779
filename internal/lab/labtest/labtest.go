// Package labtest starts lab servers for tests: it fails the test when a server
// does not start, skips it when the server is not installed (in CI it fails
// then: a build must not be green because it tested nothing), and stops the
// server when the test ends.
package labtest

import (
	"context"
	"os"
	"testing"
	"time"

	"github.com/weirdb/weir/internal/lab"
)

// Patience bounds every start and stop. A start takes 0.2 s on an idle machine;
// the bound only keeps a hang from eating the test's own deadline.
const Patience = 2 * time.Minute

// Postgres starts a PostgreSQL server for the length of tb.
func Postgres(tb testing.TB, cfg lab.PostgresConfig) *lab.Postgres {
	tb.Helper()
	ctx, cancel := context.WithTimeout(tb.Context(), Patience)
	defer cancel()
	p, err := lab.StartPostgres(ctx, cfg)
	check(tb, err)
	tb.Cleanup(func() {
		stop(tb, p.Stop)
	})
	return p
}

// PgBouncer starts a PgBouncer in front of server for the length of tb.
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

// RequirePostgres skips tb when PostgreSQL is not installed, for tests that
// start their servers themselves.
func RequirePostgres(tb testing.TB) {
	tb.Helper()
	_, _, err := lab.FindPostgres(tb.Context(), "")
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
	// Not tb.Context: that one has ended by now.
	ctx, cancel := context.WithTimeout(context.Background(), Patience)
	defer cancel()
	if err := f(ctx); err != nil {
		tb.Error(err)
	}
}

// Relay starts a relay to target for the length of tb.
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
