package mysql_test

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	goldap "github.com/go-ldap/ldap/v3"

	"github.com/weirdb/weir/internal/lab"
	"github.com/weirdb/weir/internal/lab/labtest"
	"github.com/weirdb/weir/internal/proxy/ldap"
	"github.com/weirdb/weir/internal/proxy/mysql"
	"github.com/weirdb/weir/internal/wire/mywire"
)

func directoryAt(t *testing.T, server *lab.LDAP, patience time.Duration) *ldap.Directory {
	t.Helper()
	o, err := ldap.Parse(fmt.Sprintf(`ldapserver=%s ldapport=%d ldapprefix="uid=" ldapsuffix=",ou=people,%s"`, server.Host(), server.Port(), lab.LDAPBase))
	if err != nil {
		t.Fatal(err)
	}
	d, err := ldap.New(o, "", patience)
	if err != nil {
		t.Fatal(err)
	}
	return d
}

func TestLoginsByLDAP(t *testing.T) {
	t.Parallel()
	server(t)
	own := ownServer(t)
	sqlOn(t, own, "CREATE USER bob@'%' IDENTIFIED BY 'secret'", "CREATE USER ann@'%' IDENTIFIED BY 'at the server'", "CREATE USER eve@'%' IDENTIFIED BY 'another'")
	people := labtest.LDAP(t, lab.LDAPUser{UID: "bob", Password: "secret"}, lab.LDAPUser{UID: "ann", Password: "in the directory"}, lab.LDAPUser{UID: "eve", Password: "secret"})
	listed, err := mywire.ParseSecret("at the server")
	if err != nil {
		t.Fatal(err)
	}
	w := startFor(t, own, "", func(c *mysql.Config) {
		c.ClientTLS = serverTLS(t)
		c.Auth, c.LDAP = mysql.AuthLDAP, directoryAt(t, people, labtest.Patience)
		c.Users = []mysql.User{{Name: "ann", Secret: listed}}
		c.AdminUsers = []string{"bob"}
	})
	for range 2 { // the second time the server need not be asked
		for _, x := range []struct {
			user, password string
			refused        bool
		}{
			{"bob", "secret", false},
			{"bob", "wrong", true},
			{"bob", "", true},
			{"nobody", "secret", true},
			// The server is logged in to by the list, whatever the directory's password is.
			{"ann", "in the directory", false},
			{"ann", "at the server", true},
			// The server decides about users whom the directory knows.
			{"eve", "secret", true},
		} {
			c, err := w.tryDial(as(x.user, x.password, mywire.TLSRequired))
			switch {
			case !x.refused && err != nil:
				t.Errorf("%s: %v", x.user, err)
			case !x.refused:
				if got := c.one("SELECT SUBSTRING_INDEX(USER(), '@', 1)"); got != x.user {
					t.Errorf("user %s, want %s", got, x.user)
				}
			case code(err) != mywire.ErrAccessDenied:
				t.Errorf("%s with password %q: %v", x.user, x.password, err)
			}
		}
		// The password would travel in clear.
		if _, err := w.tryDial(as("bob", "secret", mywire.TLSDisabled)); code(err) != mywire.ErrAccessDenied || !strings.Contains(err.Error(), "connect with TLS") {
			t.Errorf("without TLS: %v", err)
		}
		// The list's password, where the directory has another one, lets nobody in.
		if _, err := w.tryDial(as("ann", "at the server", mywire.TLSDisabled)); code(err) != mywire.ErrAccessDenied {
			t.Errorf("the list's password without TLS: %v", err)
		}
	}
	admin := as("bob", "secret", mywire.TLSRequired)
	if _, err := w.tryDial(func(c *mywire.ConnectConfig) { admin(c); c.Database = "weir" }); err != nil {
		t.Errorf("the console: %v", err)
	}

	people.Pause()
	hasty := startFor(t, own, "", func(c *mysql.Config) {
		c.ClientTLS = serverTLS(t)
		c.Auth, c.LDAP = mysql.AuthLDAP, directoryAt(t, people, 100*time.Millisecond)
	})
	away := func(what string, w *weir) {
		t.Helper()
		_, err := w.tryDial(as("bob", "secret", mywire.TLSRequired))
		var e *mywire.Error
		if !errors.As(err, &e) || e.Code != mywire.ErrUnknown || !strings.Contains(e.Message, "cannot ask the LDAP server") {
			t.Errorf("%s: %v", what, err)
		}
	}
	away("it hangs", hasty)
	people.Resume()
	people.Kill()
	away("it is down", w)
}

func TestLDAPConfig(t *testing.T) {
	t.Parallel()
	for want, c := range map[string]mysql.Config{
		"add --ldap":         {},
		"--mysql-auth-query": {LDAP: new(ldap.Directory), AuthQuery: "SELECT ?, ''"},
	} {
		c.MySQL.Address, c.Auth = "127.0.0.1:1", mysql.AuthLDAP
		if err := c.Validate(); err == nil || !strings.Contains(err.Error(), want) {
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
	server(t)
	own := ownServer(t)
	sqlOn(t, own, "CREATE USER bob@'%' IDENTIFIED BY 'secret'")
	people := labtest.LDAP(t, lab.LDAPUser{UID: "bob", Password: "secret"})
	w := startFor(t, own, "", func(c *mysql.Config) {
		c.ClientTLS = serverTLS(t)
		c.Auth, c.LDAP = mysql.AuthLDAP, directoryAt(t, people, labtest.Patience)
	})
	kept, admin := w.dial(as("bob", "secret", mywire.TLSRequired)), dialAt(t, own.Addr(), "", nil)
	works := func(what string) {
		t.Helper()
		closed := w.poolOf("bob").Closed
		for id := range strings.SplitSeq(admin.one("SELECT GROUP_CONCAT(id) FROM information_schema.processlist WHERE user = 'bob'"), ",") {
			_ = admin.try(admin.query("KILL " + id)) // it may have ended by itself
		}
		eventually(t, "weir has seen it", func() bool { return w.poolOf("bob").Closed > closed })
		if got := kept.one("SELECT SUBSTRING_INDEX(USER(), '@', 1)"); got != "bob" {
			t.Errorf("%s: user %s on a new connection", what, got)
		}
	}
	kept.one("SELECT 1")
	works("at first")
	setPassword(t, people, "bob", "newer")
	if _, err := w.tryDial(as("bob", "newer", mywire.TLSRequired)); code(err) != mywire.ErrAccessDenied {
		t.Errorf("a password that the server does not take: %v", err)
	}
	works("behind a password that the server does not take")
	sqlOn(t, own, "SET PASSWORD FOR bob@'%' = PASSWORD('newer')")
	w.dial(as("bob", "newer", mywire.TLSRequired))
	works("by the newer password")
}
