package lab_test

import (
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/weirdb/weir/internal/lab"
	"github.com/weirdb/weir/internal/lab/labtest"
	"github.com/weirdb/weir/internal/testkit"
)

// Every server of the lab has these settings in common with those of production, unless a test
// asks otherwise. Software that was only ever run on a bare server fails on the first real one:
// anyone who removes a line here has all suites run on something kinder than the world.

func TestPostgresIsLikeProduction(t *testing.T) {
	t.Parallel()
	for _, durability := range []lab.Durability{lab.Prod, lab.Fast} {
		p := labtest.Postgres(t, lab.PostgresConfig{Durability: durability})
		conn := connect(t, p.DSN("postgres"))
		for name, want := range map[string]string{"wal_level": "logical", "ssl": "on", "timezone": "Asia/Kolkata"} {
			if got := query[string](t, conn, "SELECT current_setting('"+name+"')"); got != want {
				t.Errorf("%s: %s = %q, want %q", durability, name, got, want)
			}
		}
		for _, name := range []string{"max_wal_senders", "max_replication_slots"} {
			if got := query[int](t, conn, "SELECT current_setting('"+name+"')::int"); got < 10 {
				t.Errorf("%s: %s = %d, want at least 10", durability, name, got)
			}
		}
		if got := query[string](t, conn, "SELECT current_setting('shared_preload_libraries')"); !strings.Contains(got, "pg_stat_statements") {
			t.Errorf("%s: shared_preload_libraries = %q, want pg_stat_statements among them", durability, got)
		}
		if query[bool](t, conn, "SELECT ssl FROM pg_stat_ssl WHERE pid = pg_backend_pid()") {
			t.Errorf("%s: the server's own DSN asks for TLS, which every figure would pay for", durability)
		}
		cfg, err := pgx.ParseConfig(strings.Replace(p.DSN("postgres"), "sslmode=disable", "sslmode=require", 1))
		if err != nil {
			t.Fatal(err)
		}
		encrypted, err := pgx.ConnectConfig(t.Context(), cfg)
		if err != nil {
			t.Fatalf("%s: connect with TLS: %v", durability, err)
		}
		if err := encrypted.Close(t.Context()); err != nil {
			t.Error(err)
		}
	}
}

func TestMySQLIsLikeProduction(t *testing.T) {
	eachFlavor(t, func(t *testing.T, start func(lab.MySQLConfig) *lab.MySQL) {
		for _, durability := range []lab.Durability{lab.Prod, lab.Fast} {
			m := start(lab.MySQLConfig{Durability: durability})
			s := openMySQL(t, m)
			want := map[string]string{
				"log_bin": "1", "binlog_format": "ROW", "performance_schema": "1", "time_zone": "+05:30",
				"log_slave_updates": "1", "gtid_strict_mode": "1",
			}
			if m.Flavor() == lab.FlavorMySQL {
				delete(want, "log_slave_updates")
				delete(want, "gtid_strict_mode")
				want["log_replica_updates"], want["gtid_mode"], want["enforce_gtid_consistency"] = "1", "ON", "ON"
			}
			for name, want := range want {
				if got := s.text(t, "SELECT @@global."+name); got != want {
					t.Errorf("%s: %s = %q, want %q", durability, name, got, want)
				}
			}
			cfg := clientConfig(t, m.DSN(""))
			cfg.TLSConfig = "skip-verify"
			if _, err := tryMySQL(t, cfg); err != nil {
				t.Errorf("%s: connect with TLS: %v", durability, err)
			}
		}
	})
}

func TestPostgresStandbyFollows(t *testing.T) {
	t.Parallel()
	p := labtest.Postgres(t, lab.PostgresConfig{Durability: lab.Fast})
	s := labtest.Standby(t, p, lab.PostgresConfig{Durability: lab.Fast})
	primary, standby := connect(t, p.DSN("postgres")), connect(t, s.DSN("postgres"))
	if !query[bool](t, standby, "SELECT pg_is_in_recovery()") {
		t.Fatal("the standby is not in recovery")
	}
	if _, err := primary.Exec(t.Context(), "CREATE TABLE t AS SELECT 7 AS n"); err != nil {
		t.Fatal(err)
	}
	testkit.Eventually(t, "the table reaches the standby", func() bool {
		var n int
		return standby.QueryRow(t.Context(), "SELECT n FROM t").Scan(&n) == nil && n == 7
	})
	p.Kill()
	if !query[bool](t, standby, "SELECT pg_promote()") {
		t.Fatal("the standby was not promoted")
	}
	if _, err := standby.Exec(t.Context(), "INSERT INTO t VALUES (8)"); err != nil {
		t.Errorf("write after promotion: %v", err)
	}
}
