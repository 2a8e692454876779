package postgres_test

import (
	"bytes"
	"crypto/tls"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	goldap "github.com/go-ldap/ldap/v3"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/weirdb/weir/internal/lab"
	"github.com/weirdb/weir/internal/lab/labtest"
	"github.com/weirdb/weir/internal/proxy/ldap"
	"github.com/weirdb/weir/internal/proxy/postgres"
	"github.com/weirdb/weir/internal/proxy/sight"
	"github.com/weirdb/weir/internal/wire/pgwire"
)

// directoryAt is an LDAP server of the lab, by search+bind.
func directoryAt(t *testing.T, server *lab.LDAP, patience time.Duration) *ldap.Directory {
	t.Helper()
	o, err := ldap.Parse(fmt.Sprintf(`ldapserver=%s ldapport=%d ldapbasedn="%s" ldapbinddn="%s" ldapbindpasswd=weir ldaptls=1`,
		server.Host(), server.Port(), lab.LDAPBase, lab.LDAPManager))
	if err != nil {
		t.Fatal(err)
	}
	d, err := ldap.New(o, server.CACert(), patience)
	if err != nil {
		t.Fatal(err)
	}
	return d
}

func TestLoginsByLDAP(t *testing.T) {
	t.Parallel()
	server := authServer(t, lab.SCRAM, lab.TLSOff)
	sqlOn(t, server.DSN("postgres"), "CREATE ROLE ann LOGIN PASSWORD 'at the server'", "CREATE ROLE eve LOGIN PASSWORD 'another'", "CREATE ROLE locked NOLOGIN PASSWORD 'secret'")
	people := labtest.LDAP(t, lab.LDAPUser{UID: "bob", Password: "secret"}, lab.LDAPUser{UID: "ann", Password: "in the directory"},
		lab.LDAPUser{UID: "eve", Password: "secret"}, lab.LDAPUser{UID: "locked", Password: "secret"}, lab.LDAPUser{UID: "norole", Password: "secret"})
	listed, err := pgwire.ParseSecret("at the server")
	if err != nil {
		t.Fatal(err)
	}
	pair, err := tls.LoadX509KeyPair(people.ServerCert().Cert, people.ServerCert().Key)
	if err != nil {
		t.Fatal(err)
	}
	var audit bytes.Buffer
	w := startFor(t, server, "postgres", func(c *postgres.Config) {
		c.Auth, c.LDAP = postgres.AuthLDAP, directoryAt(t, people, labtest.Patience)
		c.Users = []postgres.User{{Name: "ann", Secret: listed}}
		c.AdminUsers, c.TrustLoopback = []string{"bob"}, false
		c.ClientTLS, c.ClientTLSMode = &tls.Config{Certificates: []tls.Certificate{pair}, MinVersion: tls.VersionTLS12}, pgwire.TLSPrefer
		c.Audit = sight.NewAudit(&audit, c.Log)
	})
	addr := w.Addr().String()
	for range 2 { // the second time the server need not be asked
		for _, x := range []struct{ user, password, mode, code, words string }{
			{"bob", "secret", "", "", ""},
			{"bob", "secret", "&sslmode=require", "", ""},
			{"bob", "wrong", "", pgwire.CodeInvalidAuthorization, `LDAP authentication failed for user "bob"`},
			{"bob", "wrong", "&sslmode=require", pgwire.CodeInvalidAuthorization, `LDAP authentication failed for user "bob"`},
			{"nobody_here", "secret", "", pgwire.CodeInvalidAuthorization, `LDAP authentication failed for user "nobody_here"`},
			{"bob", "", "", pgwire.CodeInvalidPassword, "empty password"},
			{"*", "secret", "", pgwire.CodeInvalidAuthorization, "LDAP authentication failed"},
			// The server is logged in to by the list, whatever the directory's password is.
			{"ann", "in the directory", "", "", ""},
			{"ann", "at the server", "", pgwire.CodeInvalidAuthorization, "LDAP authentication failed"},
			// The server decides about users whom the directory knows.
			{"eve", "secret", "", pgwire.CodeInvalidPassword, `password authentication failed for user "eve"`},
			{"locked", "secret", "", pgwire.CodeInvalidAuthorization, "not permitted to log in"},
			{"norole", "secret", "", pgwire.CodeInvalidAuthorization, `role "norole" does not exist`},
		} {
			err := login(addr, x.user, x.password, x.mode)
			if got := sqlState(err); got != x.code || err != nil && !strings.Contains(err.Error(), x.words) {
				t.Errorf("%s with password %q%s: %v, want %s %s", x.user, x.password, x.mode, err, x.code, x.words)
			}
		}
	}
	console := func(user, password string) error {
		conn, err := pgconn.Connect(ctxFor(t), fmt.Sprintf("postgres://%s:%s@%s/weir?sslmode=disable", user, password, addr))
		if err != nil {
			return err
		}
		defer func() { _ = conn.Close(ctxFor(t)) }()
		_, err = conn.Exec(ctxFor(t), "SHOW POOLS").ReadAll()
		return err
	}
	if err := console("bob", "secret"); err != nil {
		t.Errorf("the console: %v", err)
	}
	for user, password := range map[string]string{"bob": "wrong", "eve": "secret"} {
		if err := console(user, password); err == nil {
			t.Errorf("%s is in the console with %q", user, password)
		}
	}
	_ = w.stop()
	for _, want := range []string{`"bob"`, "LDAP authentication failed"} {
		if !strings.Contains(audit.String(), want) {
			t.Errorf("the audit log has no %s:\n%s", want, audit.String())
		}
	}
	if strings.Contains(audit.String(), "at the server") || strings.Contains(audit.String(), "in the directory") {
		t.Errorf("the audit log has a password:\n%s", audit.String())
	}
}

// If the LDAP server is down or hangs, logins are refused with an error that says so, and no
// other client is delayed.
func TestLDAPServerThatIsAway(t *testing.T) {
	t.Parallel()
	server := authServer(t, lab.SCRAM, lab.TLSOff)
	people := labtest.LDAP(t, lab.LDAPUser{UID: "bob", Password: "secret"})
	w := startFor(t, server, "postgres", func(c *postgres.Config) {
		c.Auth, c.LDAP = postgres.AuthLDAP, directoryAt(t, people, labtest.Patience)
	})
	addr := w.Addr().String()
	dsn := fmt.Sprintf("postgres://bob:secret@%s/postgres?sslmode=disable", addr)
	bob, err := pgconn.Connect(ctxFor(t), dsn)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = bob.Close(ctxFor(t)) }()

	people.Pause()
	const waiting = 20
	ended := make(chan error, waiting)
	for range waiting {
		go func() {
			conn, err := pgconn.Connect(ctxFor(t), dsn)
			if err == nil {
				err = conn.Close(ctxFor(t))
			}
			ended <- err
		}()
	}
	for range 10 {
		if _, err := bob.Exec(ctxFor(t), "SELECT 1").ReadAll(); err != nil {
			t.Fatalf("a session beside logins that hang: %v", err)
		}
	}
	people.Resume()
	for range waiting {
		if err := <-ended; err != nil {
			t.Errorf("a login that has waited: %v", err)
		}
	}

	people.Pause()
	hasty := startFor(t, server, "postgres", func(c *postgres.Config) {
		c.Auth, c.LDAP = postgres.AuthLDAP, directoryAt(t, people, 100*time.Millisecond)
	})
	if err := login(hasty.Addr().String(), "bob", "secret", ""); sqlState(err) != pgwire.CodeConnectionFailure || !strings.Contains(err.Error(), "cannot ask the LDAP server") {
		t.Errorf("it hangs: %v", err)
	}
	people.Resume()
	people.Kill()
	if err := login(addr, "bob", "secret", ""); sqlState(err) != pgwire.CodeConnectionFailure || !strings.Contains(err.Error(), "cannot ask the LDAP server") {
		t.Errorf("it is down: %v", err)
	}
	if err := people.Restart(ctxFor(t)); err != nil {
		t.Fatal(err)
	}
	if err := login(addr, "bob", "secret", ""); err != nil {
		t.Errorf("it is back: %v", err)
	}
}

func TestLDAPConfig(t *testing.T) {
	t.Parallel()
	o, err := ldap.Parse("ldapserver=a ldapprefix=x")
	if err != nil {
		t.Fatal(err)
	}
	d, err := ldap.New(o, "", 0)
	if err != nil {
		t.Fatal(err)
	}
	for want, change := range map[string]func(*postgres.Config){
		"add --ldap":   func(c *postgres.Config) { c.LDAP = nil },
		"--auth-query": func(c *postgres.Config) { c.AuthQuery, c.AuthUser = "SELECT $1, ''", "x" },
		"":             func(*postgres.Config) {},
	} {
		c := postgres.Config{Postgres: pgwire.ConnectConfig{Address: "127.0.0.1:1"}, Auth: postgres.AuthLDAP, LDAP: d}
		change(&c)
		if err := c.Validate(); want == "" && err != nil || want != "" && (err == nil || !strings.Contains(err.Error(), want)) {
			t.Errorf("%v, want %q", err, want)
		}
	}
}

// setPassword changes a person's password at an LDAP server.
func setPassword(t *testing.T, people *lab.LDAP, uid, password string) {
	t.Helper()
	conn, err := goldap.DialURL("ldap://" + people.Addr())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.Close() }()
	change := goldap.NewModifyRequest("uid="+uid+",ou=people,"+lab.LDAPBase, nil)
	change.Replace("userPassword", []string{password})
	if err := errors.Join(conn.Bind(lab.LDAPManager, "weir"), conn.Modify(change)); err != nil {
		t.Fatal(err)
	}
}

// A password that LDAP takes and the server does not is none to open connections with: the
// one that is known serves on. One that both take is learned.
func TestPasswordThatOnlyLDAPTakes(t *testing.T) {
	t.Parallel()
	server := authServer(t, lab.SCRAM, lab.TLSOff)
	sqlOn(t, server.DSN("postgres"), "ALTER ROLE bob PASSWORD 'secret'")
	people := labtest.LDAP(t, lab.LDAPUser{UID: "bob", Password: "secret"})
	w := startFor(t, server, "postgres", func(c *postgres.Config) {
		c.Auth, c.LDAP = postgres.AuthLDAP, directoryAt(t, people, labtest.Patience)
	})
	addr := w.Addr().String()
	kept, err := pgconn.Connect(ctxFor(t), fmt.Sprintf("postgres://bob:secret@%s/postgres?sslmode=disable", addr))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = kept.Close(ctxFor(t)) }()
	works := func(what string) {
		t.Helper()
		closed := w.closedBackends("bob")
		sqlOn(t, server.DSN("postgres"), "SELECT pg_terminate_backend(pid, 10000) FROM pg_stat_activity WHERE usename = 'bob'")
		eventually(t, "weir has seen it", func() bool { return w.closedBackends("bob") > closed })
		if _, err := kept.Exec(ctxFor(t), "SELECT 1").ReadAll(); err != nil {
			t.Fatalf("%s: on a new connection: %v", what, err)
		}
	}
	if _, err := kept.Exec(ctxFor(t), "SELECT 1").ReadAll(); err != nil {
		t.Fatal(err)
	}
	works("at first")
	setPassword(t, people, "bob", "newer")
	if got := sqlState(login(addr, "bob", "newer", "")); got != pgwire.CodeInvalidPassword {
		t.Errorf("a password that the server does not take: %s", got)
	}
	works("behind a password that the server does not take")
	sqlOn(t, server.DSN("postgres"), "ALTER ROLE bob PASSWORD 'newer'")
	if err := login(addr, "bob", "newer", ""); err != nil {
		t.Fatal(err)
	}
	works("by the newer password")
}
