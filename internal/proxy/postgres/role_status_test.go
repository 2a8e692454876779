package postgres_test

import (
	"crypto/tls"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/weirdb/weir/internal/lab"
	"github.com/weirdb/weir/internal/proxy/postgres"
	"github.com/weirdb/weir/internal/wire/pgwire"
)

// A change of a role holds from the next login on, although the pool is warm: for every way by
// which weir lets clients in.
func TestLoginsAreDecidedByTheRolesPresentStanding(t *testing.T) {
	t.Parallel()
	const byQuery = "SELECT usename, passwd FROM pg_catalog.pg_shadow WHERE usename = $1"
	plain, err := pgwire.ParseSecret("secret")
	if err != nil {
		t.Fatal(err)
	}
	for _, serverAuth := range []lab.Auth{lab.SCRAM, lab.Trust} {
		server := authServer(t, serverAuth, lab.TLSOff)
		for i, road := range []struct {
			name   string
			change func(*postgres.Config)
			checks bool // weir itself checks the password
		}{
			{"relay", func(c *postgres.Config) { c.Postgres.Password = "" }, false},
			{"user list", func(c *postgres.Config) { c.Auth = "scram-sha-256" }, true},
			{"auth query", func(c *postgres.Config) { c.Auth, c.AuthQuery = "md5", byQuery }, true},
			{"trust", func(c *postgres.Config) { c.Auth = "trust" }, false},
		} {
			if road.name == "trust" && serverAuth != lab.Trust {
				continue // weir has nothing to log in with
			}
			user := fmt.Sprintf("u%d", i)
			t.Run(string(serverAuth)+"/"+road.name, func(t *testing.T) {
				t.Parallel()
				admin := connect(t, server.DSN("postgres"))
				change := func(sql string) {
					if _, err := admin.Exec(ctxFor(t), sql); err != nil {
						t.Fatalf("%s: %v", sql, err)
					}
				}
				change("CREATE ROLE " + user + " LOGIN PASSWORD 'secret'")
				change(server.CreateDatabase(user))
				w := startFor(t, server, user, func(c *postgres.Config) {
					road.change(c)
					c.LoginCheckInterval = -1
					if road.name == "user list" {
						c.Users = []postgres.User{{Name: user, Secret: plain}}
					}
				})
				try := func() string {
					ctx := ctxFor(t)
					conn, err := pgconn.Connect(ctx, fmt.Sprintf("postgres://%s:secret@%s/%s?sslmode=disable", user, w.Addr(), user))
					if err != nil {
						return sqlState(err)
					}
					defer func() { _ = conn.Close(ctx) }()
					_, err = conn.Exec(ctx, "SELECT 1").ReadAll()
					return sqlState(err)
				}
				if got := try(); got != "" {
					t.Fatalf("a role in good standing: SQLSTATE %s", got)
				}
				type lapse struct{ does, undoes, want string }
				lapses := []lapse{
					{"ALTER ROLE " + user + " NOLOGIN", "ALTER ROLE " + user + " LOGIN", "28000"},
					{"REVOKE CONNECT ON DATABASE " + user + " FROM public", "GRANT CONNECT ON DATABASE " + user + " TO public", "42501"},
					{"ALTER ROLE " + user + " CONNECTION LIMIT 0", "ALTER ROLE " + user + " CONNECTION LIMIT -1", "53300"},
					{"ALTER DATABASE " + user + " CONNECTION LIMIT 0", "ALTER DATABASE " + user + " CONNECTION LIMIT -1", "53300"},
					{"ALTER ROLE " + user + " SET local_preload_libraries = 'nowhere'", "ALTER ROLE " + user + " RESET ALL", "58P01"},
				}
				if road.checks || serverAuth != lab.Trust {
					lapses = append(lapses, lapse{"ALTER ROLE " + user + " VALID UNTIL '2001-01-01'", "ALTER ROLE " + user + " VALID UNTIL 'infinity'", "28P01"})
				}
				if serverAuth != lab.Trust || road.name == "auth query" {
					lapses = append(lapses, lapse{"ALTER ROLE " + user + " PASSWORD 'other'", "ALTER ROLE " + user + " PASSWORD 'secret'", "28P01"})
				}
				for _, c := range lapses {
					change(c.does)
					if got := try(); got != c.want && road.name != "auth query" { // whose view leaves such a role out
						t.Errorf("%s: SQLSTATE %q, want %s", c.does, got, c.want)
					}
					change(c.undoes)
					if got := try(); got != "" {
						t.Errorf("%s: SQLSTATE %s", c.undoes, got)
					}
				}
			})
		}
	}
}

// While the server has no room for one more connection, weir asks on one that it
// has.
func TestAFullServerIsAskedOnAConnectionThatThereIs(t *testing.T) {
	t.Parallel()
	server := authServer(t, lab.SCRAM, lab.TLSOff)
	plain, err := pgwire.ParseSecret("secret")
	if err != nil {
		t.Fatal(err)
	}
	sqlOn(t, server.DSN("postgres"), "ALTER ROLE bob CONNECTION LIMIT 1")
	w := startFor(t, server, "postgres", func(c *postgres.Config) {
		c.LoginCheckInterval = -1
		c.Auth, c.Users = "scram-sha-256", []postgres.User{{Name: "bob", Secret: plain}}
	})
	eventually(t, "bob is in", func() bool { return login(w.Addr().String(), "bob", "secret", "") == nil })
	if err := login(w.Addr().String(), "bob", "secret", ""); err != nil {
		t.Errorf("with all of bob's connections in use: %v", err)
	}
	sqlOn(t, server.DSN("postgres"), "ALTER ROLE bob NOLOGIN")
	if got := sqlState(login(w.Addr().String(), "bob", "secret", "")); got != pgwire.CodeInvalidAuthorization {
		t.Errorf("bob, who may not log in any more: SQLSTATE %q", got)
	}
}

// Secrets are looked up for anyone who knocks, so with few connections.
func TestLookupsOfSecretsTakeFewConnections(t *testing.T) {
	t.Parallel()
	server := authServer(t, lab.Trust, lab.TLSOff)
	w := startFor(t, server, "postgres", func(c *postgres.Config) {
		c.Auth, c.AuthQuery = "scram-sha-256", "SELECT usename, passwd FROM pg_catalog.pg_shadow WHERE usename = $1"
	})
	watch := connect(t, server.DSN("postgres"))
	var knocking []net.Conn
	for i := range 60 {
		conn, err := net.Dial("tcp", w.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = conn.Close() }()
		_, _ = conn.Write(pgwire.AppendStartup(nil, pgwire.Version30, []pgwire.Param{{Name: "user", Value: fmt.Sprintf("nobody%d", i)}, {Name: "database", Value: "postgres"}}))
		knocking = append(knocking, conn)
	}
	most := 0
	for _, conn := range knocking {
		var n int
		if err := watch.QueryRow(t.Context(), "SELECT count(*) FROM pg_stat_activity WHERE backend_type = 'client backend' AND pid <> pg_backend_pid()").Scan(&n); err != nil {
			t.Fatal(err)
		}
		most = max(most, n)
		_ = conn.SetReadDeadline(time.Now().Add(patience))
		if _, err := conn.Read(make([]byte, 1)); err != nil { // the question for a password
			t.Fatal(err)
		}
	}
	if most > 8 {
		t.Errorf("%d connections to the server for logins that have proved nothing", most)
	}
}

// A right that the server grants weir for its address or its user is not for every client of
// weir: a balancer on weir's host passes on the world.
func TestTrustInWeirIsNotLentToClientsOnTheLoopback(t *testing.T) {
	t.Parallel()
	db := database(t)
	strict := func(c *postgres.Config) { c.TrustLoopback = false }
	overTCP := start(t, db, strict)
	for _, name := range []string{db, "weir"} {
		_, err := tryWireAs(t, overTCP.Addr().String(), name, "postgres")
		if code := pgwire.CodeOf(err); code != pgwire.CodeInvalidAuthorization {
			t.Errorf("database %s over the loopback: %v", name, err)
		} else if !strings.Contains(err.Error(), "password") {
			t.Errorf("database %s: the refusal does not say why: %v", name, err)
		}
	}
	trusting := start(t, db, nil)
	dialWireAs(t, trusting.Addr().String(), db, "postgres").want("SELECT 1", "[?column?] (1) SELECT_1 I")
	if _, err := tryWireAs(t, trusting.Addr().String(), "weir", "postgres"); err != nil {
		t.Errorf("the console, with loopback addresses trusted: %v", err)
	}

	dir, err := os.MkdirTemp("/tmp", "weir-socket-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	if err := os.Chmod(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(dir, "s")
	start(t, db, func(c *postgres.Config) {
		strict(c)
		c.Listen = path
	})
	for _, name := range []string{db, "weir"} {
		if _, err := tryWireAs(t, path, name, "postgres"); err != nil {
			t.Errorf("database %s over a Unix socket as weir's own user: %v", name, err)
		}
	}
	if os.Geteuid() != 0 {
		return // nobody else to be
	}
	asOther(t, func() {
		for _, name := range []string{db, "weir"} {
			if _, err := tryWireAs(t, path, name, "postgres"); pgwire.CodeOf(err) != pgwire.CodeInvalidAuthorization {
				t.Errorf("database %s over a Unix socket as another user: %v", name, err)
			}
		}
	})
}

// asOther runs f on a thread whose user is another one.
func asOther(t *testing.T, f func()) {
	t.Helper()
	done := make(chan struct{})
	go func() {
		defer close(done)
		// The thread is never unlocked, so it ends with its goroutine.
		runtime.LockOSThread()
		if _, _, errno := syscall.RawSyscall(syscall.SYS_SETRESUID, 65534, 65534, 65534); errno != 0 {
			t.Errorf("become another user: %v", errno)
			return
		}
		f()
	}()
	<-done
}

// With TLS on both sides and SCRAM, clients that know channel binding log in by
// relay, over TLS, and those that insist on it are told.
func TestRelayOverTLSOnBothSides(t *testing.T) {
	t.Parallel()
	server := authServer(t, lab.SCRAM, lab.TLSRequired)
	other, err := server.ClientCert("weir") // not the server's
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		name  string
		files lab.KeyPair
		same  bool
	}{{"weir's own certificate", other, false}, {"the server's certificate", server.ServerCert(), true}} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			pair, err := tls.LoadX509KeyPair(c.files.Cert, c.files.Key)
			if err != nil {
				t.Fatal(err)
			}
			w := startFor(t, server, "postgres", func(cfg *postgres.Config) {
				cfg.Postgres.Password, cfg.Postgres.TLSMode = "", pgwire.TLSRequire
				cfg.ClientTLS = &tls.Config{Certificates: []tls.Certificate{pair}, MinVersion: tls.VersionTLS12}
			})
			for _, client := range []struct {
				mode    pgwire.TLSMode
				binding string
				in      bool
			}{
				{pgwire.TLSRequire, "prefer", true},
				{pgwire.TLSRequire, "disable", true},
				{pgwire.TLSPrefer, "prefer", true},
				{pgwire.TLSRequire, "require", c.same},
			} {
				for _, password := range []string{"secret", "wrong"} {
					be, err := pgwire.Connect(t.Context(), pgwire.ConnectConfig{
						Address: w.Addr().String(), User: "bob", Database: "postgres", Password: password,
						TLSMode: client.mode, ChannelBinding: client.binding,
					})
					switch in := client.in && password == "secret"; {
					case in && err != nil:
						t.Errorf("sslmode %s, channel binding %s: %v", client.mode, client.binding, err)
					case !in && err == nil:
						t.Errorf("sslmode %s, channel binding %s: let in with password %q", client.mode, client.binding, password)
					case in && !be.TLS:
						t.Errorf("sslmode %s, channel binding %s: not over TLS", client.mode, client.binding)
					}
					if err == nil {
						_ = be.Conn.Close()
					}
				}
			}
		})
	}
}
