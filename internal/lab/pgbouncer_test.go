package lab_test

import (
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/weirdb/weir/internal/lab"
	"github.com/weirdb/weir/internal/lab/labtest"
)

func TestPgBouncerPools(t *testing.T) {
	t.Parallel()
	for _, cfg := range []lab.PostgresConfig{
		{Durability: lab.Fast},
		{Durability: lab.Fast, Auth: lab.MD5},
		{Durability: lab.Fast, Auth: lab.SCRAM, Password: `a"b`, TLS: lab.TLSRequired},
	} {
		t.Run("auth="+string(cfg.Auth), func(t *testing.T) {
			t.Parallel()
			b := labtest.PgBouncer(t, labtest.Postgres(t, cfg), lab.PgBouncerConfig{PoolSize: 1})
			// Two clients on a pool of one: both see the same server process.
			a, c := simple(t, b.DSN("postgres")), simple(t, b.DSN("postgres"))
			const pid = "SELECT pg_backend_pid()"
			if x, y := query[int](t, a, pid), query[int](t, c, pid); x != y {
				t.Errorf("server processes %d and %d, want one", x, y)
			}
		})
	}
}

// simple connects with the simple protocol: PgBouncer before 1.21 pools no
// prepared statements, and its console knows none at all.
func simple(t *testing.T, dsn string) *pgx.Conn {
	t.Helper()
	return connect(t, dsn+"&default_query_exec_mode=simple_protocol")
}

func TestPgBouncerConfigRefused(t *testing.T) {
	t.Parallel()
	server := labtest.Postgres(t, lab.PostgresConfig{Durability: lab.Fast, TLS: lab.TLSMutual})
	tests := []struct {
		cfg  lab.PgBouncerConfig
		want string
	}{
		{lab.PgBouncerConfig{PoolMode: "magic"}, `pool mode "magic"`},
		{lab.PgBouncerConfig{PoolSize: -1}, "must not be negative"},
		{lab.PgBouncerConfig{Settings: map[string]string{"a": "b\nc"}}, `setting "a"`},
		{lab.PgBouncerConfig{Binary: "/nonexistent"}, "ask PgBouncer for its version"},
	}
	for _, tt := range tests {
		b, err := lab.StartPgBouncer(t.Context(), server, tt.cfg)
		if err == nil {
			_ = b.Stop(t.Context())
		}
		if err == nil || !strings.Contains(err.Error(), tt.want) {
			t.Errorf("%+v: error %v, want one with %q", tt.cfg, err, tt.want)
		}
	}
}

func TestPgBouncerKill(t *testing.T) {
	t.Parallel()
	b := labtest.PgBouncer(t, labtest.Postgres(t, lab.PostgresConfig{Durability: lab.Fast}), lab.PgBouncerConfig{})
	pid := b.PID()
	b.Kill()
	if runs(pid) {
		t.Errorf("process %d still runs after Kill", pid)
	}
}

func TestPgBouncerKeepsPreparedStatements(t *testing.T) {
	t.Parallel()
	b := labtest.PgBouncer(t, labtest.Postgres(t, lab.PostgresConfig{Durability: lab.Fast}), lab.PgBouncerConfig{PoolSize: 1})
	if v := b.Version(); v == "1.18" || v == "1.19" || v == "1.20" {
		t.Skipf("PgBouncer %s keeps none; name a newer one in $%s", v, lab.EnvPgBouncer)
	}
	// The statement of one client is run on the server connection that another
	// client has prepared it on under the same name.
	for range 2 {
		conn := connect(t, b.DSN("postgres"))
		for n := range 3 {
			if got := query[int](t, conn, "SELECT 5"); got != 5 {
				t.Errorf("run %d: got %d", n, got)
			}
		}
	}
}
