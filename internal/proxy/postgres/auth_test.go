package postgres_test

import (
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/weirdb/weir/internal/lab"
	"github.com/weirdb/weir/internal/proxy/postgres"
	"github.com/weirdb/weir/internal/wire/pgwire"
)

// authServer is a server whose clients must prove who they are: the superuser and bob, whose
// password is secret.
func authServer(t *testing.T, auth lab.Auth, tlsMode lab.TLSMode) *lab.Postgres {
	t.Helper()
	own, _ := loggedServer(t, auth, tlsMode)
	return own
}

// login runs one query as a user with a password.
func login(addr, user, password, query string) error {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	conn, err := pgconn.Connect(ctx, fmt.Sprintf("postgres://%s:%s@%s/postgres?sslmode=disable%s", user, strings.ReplaceAll(password, " ", "%20"), addr, query))
	if err != nil {
		return err
	}
	defer func() { _ = conn.Close(ctx) }()
	for range 3 {
		results, err := conn.Exec(ctx, "SELECT current_user").ReadAll()
		if err != nil {
			return err
		}
		if got := string(results[0].Rows[0][0]); got != user {
			return fmt.Errorf("logged in as %s, want %s", got, user)
		}
	}
	return nil
}

func sqlState(err error) string {
	for e := err; e != nil; {
		if pe, ok := e.(*pgconn.PgError); ok {
			return pe.Code
		}
		u, ok := e.(interface{ Unwrap() error })
		if !ok {
			break
		}
		e = u.Unwrap()
	}
	if err == nil {
		return ""
	}
	if i := strings.Index(err.Error(), "SQLSTATE "); i >= 0 {
		return err.Error()[i+9 : i+14]
	}
	return err.Error()
}

func TestLoginsAreDecidedAsTheServerWould(t *testing.T) {
	t.Parallel()
	for _, auth := range []lab.Auth{lab.Password, lab.MD5, lab.SCRAM} {
		t.Run(string(auth), func(t *testing.T) {
			t.Parallel()
			server := authServer(t, auth, lab.TLSOff)
			var shadow string
			ctx := ctxFor(t)
			if err := connect(t, server.DSN("postgres")).QueryRow(ctx, "SELECT passwd FROM pg_shadow WHERE usename = 'bob'").Scan(&shadow); err != nil {
				t.Fatal(err)
			}
			plain, err := pgwire.ParseSecret("secret")
			if err != nil {
				t.Fatal(err)
			}
			stored, err := pgwire.ParseSecret(shadow)
			if err != nil {
				t.Fatal(err)
			}
			const byQuery = "SELECT usename, passwd FROM pg_catalog.pg_shadow WHERE usename = $1"
			for _, c := range []struct {
				name   string
				change func(*postgres.Config)
				skip   bool
			}{
				{"relay", func(c *postgres.Config) { c.Postgres.Password = "" }, false},
				{"user list with passwords", func(c *postgres.Config) {
					c.Auth, c.Users = "scram-sha-256", []postgres.User{{Name: "bob", Secret: plain}}
				}, false},
				{"user list as in pg_shadow", func(c *postgres.Config) {
					c.Auth, c.Users = "md5", []postgres.User{{Name: "bob", Secret: stored}}
				}, auth != lab.SCRAM},
				{"auth query", func(c *postgres.Config) { c.Auth, c.AuthQuery = "md5", byQuery }, auth != lab.SCRAM},
			} {
				if c.skip {
					continue // only SCRAM keys pass through; other secrets do not yield what the server wants
				}
				t.Run(c.name, func(t *testing.T) {
					w := startFor(t, server, "postgres", c.change)
					for range 2 {
						if err := login(w.Addr().String(), "bob", "secret", ""); err != nil {
							t.Errorf("right password: %v", err)
						}
					}
					for _, bad := range []struct{ user, password string }{{"bob", "wrong"}, {"bob", ""}, {"nobody_here", "secret"}} {
						if got := sqlState(login(w.Addr().String(), bad.user, bad.password, "")); got != pgwire.CodeInvalidPassword && !(bad.password == "" && got != "") {
							t.Errorf("%s with password %q: %s", bad.user, bad.password, got)
						}
					}
					if err := login(w.Addr().String(), "bob", "secret", ""); err != nil {
						t.Errorf("right password after wrong ones: %v", err)
					}
				})
			}
		})
	}
}

func TestTrustedUsersComeInByRelay(t *testing.T) {
	t.Parallel()
	w := start(t, database(t), nil)
	dialWireAs(t, w.Addr().String(), w.db, "weir_other").want("SELECT current_user AS u", "[u] (weir_other) SELECT_1 I")
	for _, c := range []struct{ user, db string }{{"nobody_here", w.db}, {"weir_other", "no_such_database"}} {
		var codes []string
		for _, addr := range []string{server(t).Addr(), w.Addr().String()} {
			_, err := pgwire.Connect(t.Context(), pgwire.ConnectConfig{Address: addr, User: c.user, Database: c.db, TLSMode: pgwire.TLSDisable})
			codes = append(codes, pgwire.CodeOf(err))
		}
		if codes[0] != codes[1] || codes[0] == "" {
			t.Errorf("%s on %s: the server says %q, weir %q", c.user, c.db, codes[0], codes[1])
		}
	}
}

func TestAdminConsoleAsksForItsPassword(t *testing.T) {
	t.Parallel()
	secret, err := pgwire.ParseSecret("admin pass")
	if err != nil {
		t.Fatal(err)
	}
	w := start(t, database(t), func(c *postgres.Config) {
		c.Users = []postgres.User{{Name: "boss", Secret: secret}, {Name: "clerk", Secret: secret}}
		c.AdminUsers = []string{"boss"}
	})
	console := func(user, password string) error {
		conn, err := pgconn.Connect(ctxFor(t), fmt.Sprintf("postgres://%s:%s@%s/weir?sslmode=disable", user, strings.ReplaceAll(password, " ", "%20"), w.Addr()))
		if err != nil {
			return err
		}
		defer func() { _ = conn.Close(context.Background()) }()
		for _, show := range []string{"SHOW POOLS", "SHOW CLIENTS", "SHOW SERVERS", "SHOW STATS", "SHOW BATCHES"} {
			if _, err := conn.Exec(context.Background(), show).ReadAll(); err != nil {
				return fmt.Errorf("%s: %w", show, err)
			}
		}
		return nil
	}
	if err := console("boss", "admin pass"); err != nil {
		t.Errorf("the administrator: %v", err)
	}
	for _, bad := range []struct{ user, password string }{{"boss", "wrong"}, {"clerk", "admin pass"}, {"weir_other", "admin pass"}} {
		if err := console(bad.user, bad.password); err == nil {
			t.Errorf("%s got in with %q", bad.user, bad.password)
		}
	}
}

func TestTLSOnBothSidesCarriesCopies(t *testing.T) {
	t.Parallel()
	server := authServer(t, lab.SCRAM, lab.TLSRequired)
	sqlOn(t, server.DSN("postgres"), "CREATE TABLE blob (k int, v text)")
	pair, err := tls.LoadX509KeyPair(server.ServerCert().Cert, server.ServerCert().Key)
	if err != nil {
		t.Fatal(err)
	}
	secret, err := pgwire.ParseSecret(server.Password())
	if err != nil {
		t.Fatal(err)
	}
	w := startFor(t, server, "postgres", func(c *postgres.Config) {
		c.Postgres.TLSMode = pgwire.TLSRequire
		c.ClientTLS = &tls.Config{Certificates: []tls.Certificate{pair}, MinVersion: tls.VersionTLS12}
		c.ClientTLSMode = pgwire.TLSRequire
		c.Auth, c.Users = "scram-sha-256", []postgres.User{{Name: "postgres", Secret: secret}}
	})
	dsn := fmt.Sprintf("postgres://postgres:%s@%s/postgres?sslmode=", strings.ReplaceAll(server.Password(), " ", "%20"), w.Addr())
	ctx := ctxFor(t)
	if _, err := pgconn.Connect(ctx, dsn+"disable"); err == nil {
		t.Error("a client without TLS got in")
	}
	conn, err := pgconn.Connect(ctx, dsn+"require")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.Close(ctx) }()
	var in bytes.Buffer
	for i := range 4000 {
		fmt.Fprintf(&in, "%d\t%s\n", i, strings.Repeat(string(rune('a'+i%26)), 1000))
	}
	want := bytes.Clone(in.Bytes())
	tag, err := conn.CopyFrom(ctx, &in, "COPY blob FROM STDIN")
	if err != nil || tag.RowsAffected() != 4000 {
		t.Fatalf("copy in: %s, %v", tag, err)
	}
	var out bytes.Buffer
	if _, err := conn.CopyTo(ctx, &out, "COPY (SELECT * FROM blob ORDER BY k) TO STDOUT"); err != nil {
		t.Fatalf("copy out: %v", err)
	}
	if !bytes.Equal(out.Bytes(), want) {
		t.Errorf("copied %d bytes in and other %d bytes out", len(want), out.Len())
	}
	results, err := conn.Exec(ctx, "SELECT count(*) FROM pg_stat_ssl s JOIN pg_stat_activity a USING (pid) WHERE a.datname IS NOT NULL AND NOT s.ssl").ReadAll()
	if err != nil || string(results[0].Rows[0][0]) != "0" {
		t.Errorf("connections to the server without TLS: %v, %v", results, err)
	}
}

// A session for which there is no connection, and none to come but by another login, ends:
// a driver's pool would keep one that answers, if with errors, and never log in again.
func TestUserThatWeirCannotLogInAsIsToldSo(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name     string
		auth     lab.Auth
		password string // that bob has meanwhile
		code     string
	}{
		{"relayed login", lab.MD5, "secret", pgwire.CodeConnectionUnable},
		{"another SCRAM secret", lab.SCRAM, "another", pgwire.CodeInvalidPassword},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			auth := c.auth
			server := authServer(t, auth, lab.TLSOff)
			w := startFor(t, server, "postgres", func(c *postgres.Config) {
				if auth == lab.MD5 {
					c.Postgres.Password = "" // only the clients' own logins bring backends
				}
				c.ConnectPatience = 50 * time.Millisecond
			})
			ctx := ctxFor(t)
			open := func(password string) *pgconn.PgConn {
				conn, err := pgconn.Connect(ctx, fmt.Sprintf("postgres://bob:%s@%s/postgres?sslmode=disable", password, w.Addr()))
				if err != nil {
					t.Fatal(err)
				}
				t.Cleanup(func() { _ = conn.Close(context.Background()) })
				return conn
			}
			sessions := map[string]*pgconn.PgConn{
				"SELECT 1": open("secret"), "BEGIN": open("secret"), "/* batch */ DELETE FROM pg_class WHERE false": open("secret"),
			}
			sqlOn(t, server.DSN("postgres"), "ALTER ROLE bob PASSWORD '"+c.password+"'", "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE usename = 'bob'")
			eventually(t, "the backends are gone", func() bool {
				for _, p := range w.snapshot().Pools {
					if p.User == "bob" {
						return p.Backends == 0
					}
				}
				return false
			})
			for sql, conn := range sessions {
				_, err := conn.Exec(ctx, sql).ReadAll()
				var e *pgconn.PgError
				if !errors.As(err, &e) || e.Code != c.code || e.SeverityUnlocalized != "FATAL" {
					t.Errorf("%s without a backend and without a secret: %+v", sql, err)
				}
				if _, err := conn.Exec(ctx, sql).ReadAll(); err == nil || errors.As(err, &e) && e.Code != c.code {
					t.Errorf("%s: a session for which there is no connection goes on: %v", sql, err)
				}
			}
			if _, err := open(c.password).Exec(ctx, "SELECT 1").ReadAll(); err != nil {
				t.Errorf("after another login: %v", err)
			}
		})
	}
}
