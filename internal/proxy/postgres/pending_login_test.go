package postgres_test

import (
	"context"
	"net"
	"strings"
	gosync "sync"
	"testing"

	"github.com/weirdb/weir/internal/lab"
	"github.com/weirdb/weir/internal/proxy/postgres"
	"github.com/weirdb/weir/internal/wire/pgwire"
)

// plainSecret is a user's secret.
func plainSecret(tb testing.TB, password string) pgwire.Secret {
	tb.Helper()
	s, err := pgwire.ParseSecret(password)
	if err != nil {
		tb.Fatal(err)
	}
	return s
}

// Logins whose secret weir knows are met on the loop, but for the first few.
func TestLoginsOnTheLoop(t *testing.T) {
	t.Parallel()
	servers := loggedServers(t)
	for _, c := range []struct {
		name   string
		auth   lab.Auth
		change func(*postgres.Config)
	}{
		{"stored SCRAM", lab.SCRAM, nil},
		{"stored md5", lab.MD5, nil},
		{"trusting server", lab.Trust, nil},
		{"listed", lab.SCRAM, func(c *postgres.Config) {
			c.Users = []postgres.User{{Name: "bob", Secret: plainSecret(t, "secret")}}
		}},
		{"listed, md5", lab.SCRAM, func(c *postgres.Config) {
			c.Auth, c.Users = "md5", []postgres.User{{Name: "bob", Secret: plainSecret(t, "secret")}}
		}},
		{"listed, cleartext", lab.SCRAM, func(c *postgres.Config) {
			c.Auth, c.Users = "password", []postgres.User{{Name: "bob", Secret: plainSecret(t, "secret")}}
		}},
		{"auth query", lab.SCRAM, func(c *postgres.Config) {
			c.AuthQuery = "SELECT usename, passwd FROM pg_catalog.pg_shadow WHERE usename = $1"
		}},
		{"trust", lab.Trust, func(c *postgres.Config) { c.Auth = "trust" }},
	} {
		t.Run(c.name, func(t *testing.T) {
			own, _ := servers(c.auth)
			w := startFor(t, own, "postgres", func(cfg *postgres.Config) {
				if c.change != nil {
					c.change(cfg)
				}
				cfg.LoginCheckInterval = -1
			})
			const logins = 5
			wait := gosync.WaitGroup{}
			for range 4 {
				wait.Go(func() {
					for range logins {
						if err := login(w.Addr().String(), "bob", "secret", ""); err != nil {
							t.Error(err)
						}
					}
				})
			}
			wait.Wait()
			eventually(t, "a login is met on the loop", func() bool {
				if err := login(w.Addr().String(), "bob", "secret", ""); err != nil {
					t.Error(err)
				}
				return w.MetOnLoops(ctxFor(t)) > 0
			})
			if c.name == "trust" || c.auth == lab.Trust {
				return
			}
			if err := login(w.Addr().String(), "bob", "wrong", ""); sqlState(err) != pgwire.CodeInvalidPassword {
				t.Errorf("with a wrong password: %v", err)
			}
			admin := sqlOver(t, own.DSN("postgres"))
			// From the next login on.
			admin("ALTER ROLE bob NOLOGIN")
			want := pgwire.CodeInvalidAuthorization
			if c.name == "auth query" {
				want = pgwire.CodeInvalidPassword // pg_shadow does not have it then
			}
			if err := login(w.Addr().String(), "bob", "secret", ""); sqlState(err) != want {
				t.Errorf("of a role with NOLOGIN: %v", err)
			}
			admin("ALTER ROLE bob LOGIN VALID UNTIL '2000-01-01'")
			if err := login(w.Addr().String(), "bob", "secret", ""); sqlState(err) != pgwire.CodeInvalidPassword {
				t.Errorf("with an expired password: %v", err)
			}
			admin("ALTER ROLE bob VALID UNTIL 'infinity'")
			// The connection that is asked on may go at any time.
			admin("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE pid <> pg_backend_pid() AND usename = 'postgres'")
			for range logins {
				if err := login(w.Addr().String(), "bob", "secret", ""); err != nil {
					t.Errorf("when connections were ended: %v", err)
				}
			}
		})
	}
}

// Whatever portions a client's bytes come in, and if it does not wait for answers, the
// login and its first statement are the same.
func TestLoginInAnyPortions(t *testing.T) {
	t.Parallel()
	db := database(t)
	trusting := start(t, db, func(c *postgres.Config) { c.Auth = "trust" })
	asking := start(t, db, func(c *postgres.Config) {
		c.Auth, c.Users = "password", []postgres.User{{Name: "postgres", Secret: plainSecret(t, "secret")}}
	})
	startup := pgwire.AppendStartup(nil, pgwire.Version30, []pgwire.Param{{Name: "user", Value: "postgres"}, {Name: "database", Value: db}})
	password := pgwire.AppendMessage(nil, pgwire.ClientPassword, []byte("secret\x00"))
	all := func(parts ...[]byte) (out []byte) {
		for _, p := range parts {
			out = append(out, p...)
		}
		return out
	}
	for _, c := range []struct {
		name string
		w    *weir
		said []byte
		told string // before AuthenticationOk
	}{
		{"trust", trusting, all(startup, query("SELECT 1 AS x")), ""},
		{"trust, TLS declined", trusting, all(pgwire.AppendSSLRequest(nil), startup, query("SELECT 1 AS x")), "N"},
		{"password", asking, all(startup, password, query("SELECT 1 AS x")), "R\x00\x00\x00\x08\x00\x00\x00\x03"},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			for _, portion := range []int{1, 5, 1 << 10} {
				for range 3 { // elsewhere first, then on the loop
					conn, err := net.Dial("tcp", c.w.Addr().String())
					if err != nil {
						t.Fatal(err)
					}
					be := &pgwire.Backend{Conn: conn}
					client := newWire(t, be)
					for said := c.said; len(said) > 0; {
						n := min(portion, len(said))
						client.send(said[:n])
						said = said[n:]
					}
					told := make([]byte, len(c.told))
					for i := range told {
						if _, err := conn.Read(told[i : i+1]); err != nil {
							t.Fatal(err)
						}
					}
					if string(told) != c.told {
						t.Errorf("%d bytes at a time: told %q, want %q", portion, told, c.told)
					}
					if got := render(client.ready()); !strings.HasSuffix(got, "I") {
						t.Errorf("%d bytes at a time: greeted with %s", portion, got)
					}
					if got := render(client.ready()); got != "[x] (1) SELECT_1 I" {
						t.Errorf("%d bytes at a time: answered %s", portion, got)
					}
					client.close()
				}
			}
			if n := c.w.MetOnLoops(ctxFor(t)); n == 0 {
				t.Error("no login was met on the loop")
			}
		})
	}
}

// A database that is paused holds logins on the loop back, and one that is disabled
// refuses them.
func TestLoginsOnTheLoopAndTheConsole(t *testing.T) {
	t.Parallel()
	db := database(t)
	w := start(t, db, func(c *postgres.Config) { c.Auth = "trust" })
	console := dialWire(t, w.Addr().String(), "weir")
	met := func() uint64 { return w.MetOnLoops(context.Background()) }
	eventually(t, "a login is met on the loop", func() bool { w.wire().close(); return met() > 0 })
	console.want("DISABLE "+db, "DISABLE I")
	if _, err := tryWireAs(t, w.Addr().String(), db, "postgres"); pgwire.CodeOf(err) != pgwire.CodeCannotConnectNow {
		t.Errorf("a login to a disabled database: %v", err)
	}
	console.want("ENABLE "+db, "ENABLE I")
	console.want("PAUSE "+db, "PAUSE I")
	in := make(chan *wire)
	go func() { in <- w.wire() }()
	eventually(t, "the login waits", func() bool { return w.Sessions.Load() == 2 })
	select {
	case <-in:
		t.Error("a login to a paused database came through")
	default:
	}
	console.want("RESUME "+db, "RESUME I")
	(<-in).want("SELECT 1 AS x", "[x] (1) SELECT_1 I")
}

// Logins one after the other are asked about on one connection, also where a loop takes it
// over between two of them.
func TestLoginsOneAfterTheOtherTakeOneConnection(t *testing.T) {
	t.Parallel()
	own := trusting(t)
	w := startFor(t, own, "postgres", func(c *postgres.Config) { c.PoolSize, c.LoginCheckInterval = 1, -1 })
	for range 4 {
		w.wire().want("SELECT 1 AS n", "[n] (1) SELECT_1 I")
	}
	dialWire(t, own.Addr(), "postgres").want("SELECT count(*) AS n FROM pg_stat_activity WHERE backend_type = 'client backend' AND pid <> pg_backend_pid()",
		"[n] (2) SELECT_1 I") // one of these is the pool's
}
