package postgres_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/weirdb/weir/internal/lab"
	"github.com/weirdb/weir/internal/proxy/postgres"
	"github.com/weirdb/weir/internal/wire/pgwire"
)

// One answer serves the logins of --login-check-interval: they cost the server no query, still
// need the password, and see new roles and changes that go through weir.
func TestLoginsShareAnAnswer(t *testing.T) {
	t.Parallel()
	const logins = 20
	secret, err := pgwire.ParseSecret("secret")
	if err != nil {
		t.Fatal(err)
	}
	listed := func(c *postgres.Config) {
		c.Users = []postgres.User{{Name: "bob", Secret: secret}, {Name: "late", Secret: secret}}
	}
	for _, c := range []struct {
		name   string
		auth   lab.Auth
		change func(*postgres.Config)
		wrong  string // what a wrong password is answered with
	}{
		{"listed, scram", lab.SCRAM, listed, "28P01"},
		{"listed, md5", lab.MD5, func(c *postgres.Config) { listed(c); c.Auth = "md5" }, "28P01"},
		{"trust to weir", lab.SCRAM, func(c *postgres.Config) { listed(c); c.Auth = "trust" }, ""},
		{"trust as the server has it", lab.Trust, nil, ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			own, log := loggedServer(t, c.auth, lab.TLSOff)
			admin := sqlOver(t, own.DSN("postgres"))
			admin("ALTER SYSTEM SET log_statement = 'all'", "SELECT pg_reload_conf()")
			t.Cleanup(func() { admin("ALTER SYSTEM RESET ALL", "SELECT pg_reload_conf()") })
			w := startFor(t, own, "postgres", func(cfg *postgres.Config) {
				if c.change != nil {
					c.change(cfg)
				}
				cfg.LoginCheckInterval = time.Hour
			})
			addr := w.Addr().String()
			in := func(user string) string { return sqlState(login(addr, user, "secret", "")) }
			eventually(t, "the server logs questions", func() bool {
				if state := in("bob"); state != "" {
					t.Fatalf("SQLSTATE %q", state)
				}
				admin("COMMENT ON ROLE bob IS ''") // not over weir
				return log.count("COMMENT ON ROLE bob") > 0
			})
			if got := in("bob"); got != "" { // decided anew, as the server has read its files
				t.Fatalf("SQLSTATE %q", got)
			}
			const question = "execute weir_role_status"
			before := log.count(question)
			for range logins {
				if got := in("bob"); got != "" {
					t.Fatalf("SQLSTATE %q", got)
				}
			}
			if asked := log.count(question) - before; asked > 2 {
				t.Errorf("%d logins had the server asked %d times", logins, asked)
			}
			if got := sqlState(login(addr, "bob", "wrong", "")); got != c.wrong {
				t.Errorf("a wrong password: SQLSTATE %q, want %q", got, c.wrong)
			}
			// A role that is not there yet.
			if got := in("late"); got == "" {
				t.Error("a role that does not exist is let in")
			}
			admin("CREATE ROLE late LOGIN PASSWORD 'secret'")
			if got := in("late"); got != "" {
				t.Errorf("a role that was just made: SQLSTATE %q", got)
			}
			// A change through weir holds at once, also at the end of a transaction.
			over, err := pgconn.Connect(ctxFor(t), fmt.Sprintf("postgres://postgres:super%%20secret@%s/postgres?sslmode=disable", addr))
			if err != nil {
				t.Fatal(err)
			}
			defer func() { _ = over.Close(ctxFor(t)) }()
			admin("CREATE PROCEDURE unlocks() LANGUAGE sql AS 'ALTER ROLE bob LOGIN'", "CREATE PROCEDURE locks() LANGUAGE sql AS 'ALTER ROLE bob NOLOGIN'")
			for _, change := range []struct{ does, state string }{
				{"ALTER ROLE bob NOLOGIN", "28000"},
				{"ALTER ROLE bob LOGIN", ""},
				{"ALTER ROLE bob NOLOGIN", "28000"},
				{"DO $$ BEGIN ALTER ROLE bob LOGIN; END $$", ""}, // a refusal serves nobody else
				{"DO $$ BEGIN ALTER ROLE bob NOLOGIN; END $$", "28000"},
				{"CALL unlocks()", ""},
				{"CALL locks()", "28000"},
				{"ALTER ROLE bob LOGIN", ""},
			} {
				for _, sql := range []string{"BEGIN", change.does, "COMMIT"} {
					if _, err := over.Exec(ctxFor(t), sql).ReadAll(); err != nil {
						t.Fatalf("%s: %v", sql, err)
					}
				}
				for range 2 {
					if got := in("bob"); got != change.state {
						t.Errorf("after %s over weir: SQLSTATE %q, want %q", change.does, got, change.state)
					}
				}
			}
			if _, err := over.Exec(ctxFor(t), "DROP ROLE late").ReadAll(); err != nil {
				t.Fatal(err)
			}
			if got := in("late"); got == "" {
				t.Error("a role that was dropped over weir is let in")
			}
		})
	}
}

// A change at the server holds from the next login on with an interval of 0, and soon with a
// longer one: dropped, expired, locked, another password, another database.
func TestSharedAnswersEnd(t *testing.T) {
	t.Parallel()
	secret, err := pgwire.ParseSecret("secret")
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		name, auth string
		interval   time.Duration
	}{
		{"never shared, scram", "auto", -1},
		{"never shared, trust", "trust", -1},
		{"shared, scram", "auto", 100 * time.Millisecond},
		{"shared, trust", "trust", 100 * time.Millisecond},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			own, _ := loggedServer(t, lab.SCRAM, lab.TLSOff)
			admin := sqlOver(t, own.DSN("postgres"))
			w := startFor(t, own, "postgres", func(cfg *postgres.Config) {
				cfg.Auth, cfg.LoginCheckInterval = c.auth, c.interval
				cfg.Users = []postgres.User{{Name: "bob", Secret: secret}}
			})
			in := func() string { return sqlState(login(w.Addr().String(), "bob", "secret", "")) }
			want := func(what, state string) {
				t.Helper()
				if c.interval >= 0 {
					eventually(t, what, func() bool { return in() == state })
				}
				for range 2 {
					if got := in(); got != state {
						t.Errorf("%s: SQLSTATE %q, want %q", what, got, state)
					}
				}
			}
			for _, change := range []struct{ does, state string }{
				{"SELECT 1", ""},
				{"ALTER ROLE bob NOLOGIN", "28000"},
				{"ALTER ROLE bob LOGIN", ""},
				{"ALTER ROLE bob VALID UNTIL '2001-01-01'", "28P01"}, // weir itself does not get in
				{"ALTER ROLE bob VALID UNTIL 'infinity'", ""},
				{"ALTER ROLE bob PASSWORD 'other'", "28P01"}, // weir cannot log in by what the file has
				{"ALTER ROLE bob PASSWORD 'secret'", ""},
				{"ALTER ROLE bob RENAME TO rob", "28000"},
				{"ALTER ROLE rob RENAME TO bob", ""},
				{"REVOKE CONNECT ON DATABASE postgres FROM public", "42501"},
				{"GRANT CONNECT ON DATABASE postgres TO public", ""},
				{"DROP ROLE bob", "28000"},
				{"CREATE ROLE bob LOGIN PASSWORD 'secret'", ""},
			} {
				admin(change.does)
				want(change.does, change.state)
			}
		})
	}
}
