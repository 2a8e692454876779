package examine_test

import (
	"errors"
	"slices"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/weirdb/weir/internal/lab"
	"github.com/weirdb/weir/internal/lab/labtest"
	"github.com/weirdb/weir/internal/measure/check"
	"github.com/weirdb/weir/internal/proxy/examine"
	"github.com/weirdb/weir/internal/proxy/postgres"
	"github.com/weirdb/weir/internal/wire/pgwire"
)

// An account without privileges is told what it lacks.
func TestPrivileges(t *testing.T) {
	pg := labtest.Postgres(t, lab.PostgresConfig{Durability: lab.Fast})
	conn, err := pgx.Connect(t.Context(), pg.DSN("postgres"))
	if err != nil {
		t.Fatal(err)
	}
	_, err = conn.Exec(t.Context(), "CREATE ROLE app LOGIN")
	if err = errors.Join(err, conn.Close(t.Context())); err != nil {
		t.Fatal(err)
	}
	for user, want := range map[string]check.Check{
		pg.User(): {State: check.Yes},
		"app":     {State: check.Limited, Hint: `GRANT SELECT ON pg_authid TO "app", or --auth-query, or --auth-file`},
	} {
		dsn := "postgres://" + user + "@" + pg.Addr() + "/postgres"
		hosts, _, err := pgwire.ParseHosts(dsn)
		if err != nil {
			t.Fatal(err)
		}
		checks := examine.Servers(t.Context(), examine.Config{DSN: dsn, Postgres: &postgres.Config{Hosts: hosts}})
		i := slices.IndexFunc(checks, func(c check.Check) bool { return c.Name == "postgres "+pg.Addr()+" logins" })
		if i < 0 || checks[i].State != want.State || checks[i].Hint != want.Hint {
			t.Errorf("as %s: %+v, want the state %s and the hint %q", user, checks, want.State, want.Hint)
		}
	}
}
