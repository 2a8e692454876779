package postgres_test

import (
	"errors"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/weirdb/weir/internal/lab"
	"github.com/weirdb/weir/internal/lab/labtest"
	"github.com/weirdb/weir/internal/proxy/postgres"
)

// A pooler that gives a session's connection to others is not served: what weir sets on
// it, also for itself, would reach the sessions of others, and theirs each other.
func TestPoolerInTheServersPlace(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		mode, auth string
		served     bool
	}{
		{"transaction", postgres.AuthAuto, false},
		{"transaction", postgres.AuthRelay, false},
		{"statement", postgres.AuthAuto, false},
		{"session", postgres.AuthAuto, true},
		{"session", postgres.AuthRelay, true},
	} {
		t.Run(tt.mode+" "+tt.auth, func(t *testing.T) {
			t.Parallel()
			b := labtest.PgBouncer(t, server(t), lab.PgBouncerConfig{PoolMode: tt.mode})
			w := start(t, "postgres", func(cfg *postgres.Config) { cfg.Postgres.Address, cfg.Auth = b.Addr(), tt.auth })
			ctx := ctxFor(t)
			conn, err := pgx.Connect(ctx, w.dsn("postgres"))
			if tt.served {
				if err != nil {
					t.Fatal(err)
				}
				defer func() { _ = conn.Close(ctx) }()
				if _, err := conn.Exec(ctx, "SET search_path = elsewhere"); err != nil {
					t.Error(err)
				}
				return
			}
			var refused *pgconn.PgError
			if !errors.As(err, &refused) || refused.Code != "08004" || !strings.Contains(refused.Message, "pooler at "+b.Addr()) {
				t.Errorf("login: %v; want 08004 that names the pooler", err)
			}
			if err == nil {
				_ = conn.Close(ctx)
			}
			// Nothing of weir's stays for the pooler's other clients.
			direct, err := pgx.ParseConfig(b.DSN("postgres"))
			if err != nil {
				t.Fatal(err)
			}
			direct.DefaultQueryExecMode = pgx.QueryExecModeSimpleProtocol
			other, err := pgx.ConnectConfig(ctx, direct)
			if err != nil {
				t.Fatal(err)
			}
			defer func() { _ = other.Close(ctx) }()
			for name, want := range map[string]string{"search_path": `"$user", public`, "geqo_seed": "0"} {
				var got string
				if err := other.QueryRow(ctx, "SHOW "+name).Scan(&got); err != nil || got != want {
					t.Errorf("%s of another client of the pooler: %q, %v; want %q", name, got, err, want)
				}
			}
		})
	}
}
