package mysql_test

import (
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/weirdb/weir/internal/lab"
	"github.com/weirdb/weir/internal/lab/labtest"
	"github.com/weirdb/weir/internal/proxy/mysql"
	"github.com/weirdb/weir/internal/wire/mywire"
)

// eachServer runs f with a MariaDB and, where it is installed, a MySQL.
func eachServer(t *testing.T, f func(t *testing.T, server *lab.MySQL)) {
	for name, begin := range map[string]func(testing.TB, lab.MySQLConfig) *lab.MySQL{"mariadb": labtest.MariaDB, "mysql": labtest.MySQL} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f(t, begin(t, serverConfig()))
		})
	}
}

// passwordOf is what the account of a plugin proves to know.
func passwordOf(plugin string) string { return "secret of " + plugin }

// accounts makes one account for each plugin that asks for a password, by the
// plugin's name, and returns the plugins.
func accounts(t *testing.T, server *lab.MySQL) (plugins []string) {
	t.Helper()
	for _, plugin := range server.AuthPlugins() {
		if strings.HasSuffix(plugin, "socket") || plugin == "parsec" { // which this package's client does not speak
			continue
		}
		if err := server.CreateUser(ctxFor(t), lab.MySQLUser{Name: plugin, Password: passwordOf(plugin), Plugin: plugin}); err != nil {
			t.Fatal(err)
		}
		plugins = append(plugins, plugin)
	}
	return plugins
}

// as logs in by a user and password, with TLS or without.
func as(user, password string, mode mywire.TLSMode) func(*mywire.ConnectConfig) {
	return func(c *mywire.ConnectConfig) { c.User, c.Password, c.TLSMode = user, password, mode }
}

// Every plugin, with TLS on either side or none: who gets in direct gets in
// through weir, and who does not does not.
func TestRelayedLoginsByEachPlugin(t *testing.T) {
	t.Parallel()
	eachServer(t, func(t *testing.T, server *lab.MySQL) {
		plugins := accounts(t, server)
		for _, toServer := range []mywire.TLSMode{mywire.TLSDisabled, mywire.TLSRequired} {
			w := startFor(t, server, "", func(c *mysql.Config) {
				c.MySQL.TLSMode, c.ClientTLS = toServer, serverTLS(t)
			})
			for _, plugin := range plugins {
				for _, fromClient := range []mywire.TLSMode{mywire.TLSDisabled, mywire.TLSRequired} {
					t.Run(fmt.Sprintf("%s/client %s/server %s", plugin, fromClient, toServer), func(t *testing.T) {
						w := w.within(t)
						for range 2 { // caching_sha2_password has another path once the server knows the password
							c, err := w.tryDial(as(plugin, passwordOf(plugin), fromClient))
							if plugin == mywire.PluginSHA256 && fromClient != toServer {
								if code(err) != mywire.ErrAccessDenied || !strings.Contains(err.Error(), "use TLS on both sides or none") {
									t.Errorf("a password that travels in clear on one side: %v", err)
								}
								return
							}
							if err != nil {
								t.Fatal(err)
							}
							if got := c.one("SELECT SUBSTRING_INDEX(USER(), '@', 1)"); got != plugin {
								t.Errorf("user %s", got)
							}
						}
						if _, err := w.tryDial(as(plugin, "wrong", fromClient)); code(err) != mywire.ErrAccessDenied {
							t.Errorf("wrong password: %v", err)
						}
					})
				}
			}
		}
	})
}

// Users that weir checks itself, by what a server keeps of their passwords.
func TestListedUsers(t *testing.T) {
	t.Parallel()
	eachServer(t, func(t *testing.T, server *lab.MySQL) {
		plugin := mywire.PluginNative
		hash := mywire.NewNativeSecret(passwordOf(plugin))
		const byQuery = "SELECT User, authentication_string FROM mysql.user WHERE User = ? LIMIT 1"
		if server.Flavor() == lab.FlavorMySQL {
			plugin = mywire.PluginSHA2
			hash = mywire.NewSHA2Secret(passwordOf(plugin))
		}
		accounts(t, server)
		list := func(text string) func(*mysql.Config) {
			secret, err := mywire.ParseSecret(text)
			if err != nil {
				t.Fatal(err)
			}
			return func(c *mysql.Config) { c.Auth, c.Users = plugin, []mysql.User{{Name: plugin, Secret: secret}} }
		}
		for name, change := range map[string]func(*mysql.Config){
			"password":       list(passwordOf(plugin)),
			"hash":           list(hash),
			"auth query":     func(c *mysql.Config) { c.Auth, c.AuthQuery = plugin, byQuery },
			"query in relay": func(c *mysql.Config) { c.AuthQuery = byQuery },
		} {
			for _, mode := range []mywire.TLSMode{mywire.TLSDisabled, mywire.TLSRequired} {
				t.Run(fmt.Sprintf("%s/%s", name, mode), func(t *testing.T) {
					w := startFor(t, server, "", func(c *mysql.Config) {
						c.ClientTLS = serverTLS(t)
						change(c)
					})
					for range 2 {
						c := w.dial(as(plugin, passwordOf(plugin), mode))
						if got := c.one("SELECT SUBSTRING_INDEX(USER(), '@', 1)"); got != plugin {
							t.Errorf("user %s", got)
						}
					}
					for _, wrong := range []string{"wrong", ""} {
						if _, err := w.tryDial(as(plugin, wrong, mode)); code(err) != mywire.ErrAccessDenied {
							t.Errorf("password %q: %v", wrong, err)
						}
					}
					if _, err := w.tryDial(as(`x' OR 1=1 -- `, "", mode)); code(err) != mywire.ErrAccessDenied {
						t.Errorf("a user that nobody has: %v", err)
					}
				})
			}
		}
	})
}

func TestTLSModesForClients(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		mode       mywire.TLSMode
		plain, tls bool
	}{
		{mywire.TLSDisabled, true, false},
		{mywire.TLSPreferred, true, true},
		{mywire.TLSRequired, false, true},
	} {
		w := start(t, database(t), func(c *mysql.Config) { c.ClientTLS, c.ClientTLSMode = serverTLS(t), tt.mode })
		if _, err := w.tryDial(as(bob, bobPassword, mywire.TLSDisabled)); (err == nil) != tt.plain {
			t.Errorf("%s: without TLS: %v", tt.mode, err)
		}
		c, err := w.tryDial(as(bob, bobPassword, mywire.TLSRequired))
		if (err == nil) != tt.tls {
			t.Errorf("%s: with TLS: %v", tt.mode, err)
		}
		if err == nil {
			if got := c.one("SELECT REPEAT('x', 100000)"); len(got) != 100000 {
				t.Errorf("%s: %d bytes", tt.mode, len(got))
			}
		}
	}
}

// foreignAddress is an address of this machine that is none of loopback: clients
// who use it look as if they came from elsewhere.
func foreignAddress(t *testing.T) string {
	t.Helper()
	addrs, err := net.InterfaceAddrs()
	if err != nil {
		t.Fatal(err)
	}
	for _, a := range addrs {
		if ip, ok := a.(*net.IPNet); ok && !ip.IP.IsLoopback() && ip.IP.To4() != nil {
			return ip.IP.String()
		}
	}
	t.Skip("this machine has no address but loopback")
	return ""
}

// The server trusts weir's host, and over a Unix socket weir itself. Neither is
// for clients from elsewhere to use.
func TestTrustOfWeirIsNotLent(t *testing.T) {
	t.Parallel()
	host := foreignAddress(t)
	server := server(t)
	elsewhere := func(w *weir) func(*mywire.ConnectConfig) {
		_, port, err := net.SplitHostPort(w.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		return func(c *mywire.ConnectConfig) { c.Address = net.JoinHostPort(host, port) }
	}
	t.Run("account without a password", func(t *testing.T) {
		w := start(t, "", func(c *mysql.Config) { c.Listen = "0.0.0.0:0" })
		if _, err := w.tryDial(elsewhere(w)); code(err) != mywire.ErrAccessDenied || !strings.Contains(err.Error(), "--trust-loopback") {
			t.Errorf("root from elsewhere: %v", err)
		}
		both := func(c *mywire.ConnectConfig) {
			elsewhere(w)(c)
			as(bob, bobPassword, mywire.TLSDisabled)(c)
		}
		if got := w.dial(both).one("SELECT 1"); got != "1" {
			t.Errorf("bob from elsewhere: %s", got)
		}
		if got := w.dial(nil).one("SELECT 1"); got != "1" {
			t.Errorf("root from here: %s", got)
		}
	})
	t.Run("Unix socket", func(t *testing.T) {
		w := start(t, "", func(c *mysql.Config) { c.Listen, c.MySQL.Address = "0.0.0.0:0", server.Socket() })
		for _, user := range []string{"root", bob} {
			_, err := w.tryDial(func(c *mywire.ConnectConfig) {
				elsewhere(w)(c)
				as(user, bobPassword, mywire.TLSDisabled)(c)
			})
			if code(err) != mywire.ErrAccessDenied || !strings.Contains(err.Error(), "--trust-loopback") {
				t.Errorf("%s from elsewhere: %v", user, err)
			}
		}
		if got := w.dial(as(bob, bobPassword, mywire.TLSDisabled)).one("SELECT 1"); got != "1" {
			t.Errorf("bob from here: %s", got)
		}
	})
}

// A loopback address says nothing of where a client is: a balancer on weir's host
// hands on those of the whole world. Who is at the other end of a Unix socket the
// kernel says.
func TestTrustOfWeirIsNotLentToTheLoopback(t *testing.T) {
	t.Parallel()
	strict := func(c *mysql.Config) { c.TrustLoopback = false }
	w := start(t, "", strict)
	for _, database := range []string{"", "weir"} {
		_, err := w.tryDial(func(c *mywire.ConnectConfig) { c.Database = database })
		if code(err) != mywire.ErrAccessDenied || !strings.Contains(err.Error(), "--trust-loopback") {
			t.Errorf("root without a password, database %q: %v", database, err)
		}
	}
	c := w.dial(as(bob, bobPassword, mywire.TLSDisabled))
	if got := c.one("SELECT CURRENT_USER()"); got != bob+"@%" {
		t.Errorf("bob: %s", got)
	}
	c.send(mywire.AppendChangeUser(nil, c.Caps, &mywire.ChangeUser{User: "root", Charset: uint16(mywire.CharsetUTF8MB4), Plugin: mywire.PluginNative}))
	seq, asked := c.packet()
	for asked[0] == 0xfe { // the server's question, which a user without a password answers by nothing
		c.send(mywire.AppendPacket(nil, seq+1, nil))
		seq, asked = c.packet()
	}
	if !mywire.IsError(asked) {
		t.Errorf("COM_CHANGE_USER to root: %q", asked)
	}
	socket := filepath.Join(t.TempDir(), "weir.sock")
	local := start(t, "", func(c *mysql.Config) {
		strict(c)
		c.Listen = socket
	})
	if got := local.dial(nil).one("SELECT CURRENT_USER()"); !strings.HasPrefix(got, "root@") {
		t.Errorf("weir's own user over a Unix socket: %s", got)
	}
}

// A change of an account by another connection holds for the next login, although the pool is
// warm.
func TestAccountsThatMayNotLogInAnyMore(t *testing.T) {
	t.Parallel()
	for what, change := range map[string]string{
		"locked": "ALTER USER %s ACCOUNT LOCK", "expired": "ALTER USER %s PASSWORD EXPIRE", "other password": "ALTER USER %s IDENTIFIED BY 'other'", "dropped": "DROP USER %s",
	} {
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			name := fmt.Sprintf("a%d", shared.serial.Add(1))
			sqlOn(t, server(t), "CREATE USER "+name+"@'%' IDENTIFIED BY 'secret'")
			t.Cleanup(func() { sqlOn(t, server(t), "DROP USER IF EXISTS "+name+"@'%'") })
			secret, err := mywire.ParseSecret("secret")
			if err != nil {
				t.Fatal(err)
			}
			w := start(t, "", func(c *mysql.Config) { c.Users = []mysql.User{{Name: name, Secret: secret}} })
			login := as(name, "secret", mywire.TLSDisabled)
			w.dial(login).one("SELECT 1")
			sqlOn(t, server(t), fmt.Sprintf(change, name+"@'%'"))
			eventually(t, "logins are refused", func() bool {
				c, err := w.tryDial(login)
				if err == nil {
					_ = c.Close()
				}
				return err != nil
			})
		})
	}
}

// Privileges that are taken away by another connection are gone for anyone who logs in
// afterwards, although the pool is warm.
func TestPrivilegesThatWereTakenAway(t *testing.T) {
	t.Parallel()
	db := database(t, "CREATE TABLE t (a INT)")
	own, password := account(t)
	sqlOn(t, server(t), "GRANT SELECT ON *.* TO "+own+"@'%'")
	secret, err := mywire.ParseSecret(password)
	if err != nil {
		t.Fatal(err)
	}
	for name, users := range map[string][]mysql.User{"listed": {{Name: own, Secret: secret}}} {
		t.Run(name, func(t *testing.T) {
			w := start(t, "", func(c *mysql.Config) { c.Users = users })
			login := as(own, password, mywire.TLSDisabled)
			read := "SELECT COUNT(*) FROM " + db + ".t"
			w.dial(login).one(read)
			sqlOn(t, server(t), "REVOKE SELECT ON *.* FROM "+own+"@'%'")
			eventually(t, "reads are refused", func() bool {
				c := w.dial(login)
				defer c.Close()
				_, err := c.Query(ctxFor(t), read)
				return code(err) == 1142
			})
			sqlOn(t, server(t), "GRANT SELECT ON *.* TO "+own+"@'%'")
			eventually(t, "reads are allowed", func() bool {
				c := w.dial(login)
				defer c.Close()
				_, err := c.Query(ctxFor(t), read)
				return err == nil
			})
		})
	}
}

func TestTrustMode(t *testing.T) {
	t.Parallel()
	w := start(t, database(t), func(c *mysql.Config) { c.Auth = mysql.AuthTrust })
	if got := w.dial(as("root", "whatever", mywire.TLSDisabled)).one("SELECT 1"); got != "1" {
		t.Errorf("root: %s", got)
	}
	// weir lets bob in, but has nothing to be bob with at the server.
	if _, err := w.tryDial(as(bob, bobPassword, mywire.TLSDisabled)); code(err) != mywire.ErrAccessDenied {
		t.Errorf("bob: %v", err)
	}
}

// A user whose secret weir does not hold lives from the connections that logins
// bring.
func TestUserThatWeirCannotLogInAs(t *testing.T) {
	t.Parallel()
	w := start(t, "", func(c *mysql.Config) { c.ConnectPatience = 50 * time.Millisecond })
	own, password := account(t)
	login := as(own, password, mywire.TLSDisabled)
	c := w.dial(login)
	if got := c.one("SELECT 1"); got != "1" { // the backend has been found to work
		t.Error(got)
	}
	backend := func() int { return w.poolOf(own).Backends }
	if n := backend(); n != 1 {
		t.Errorf("%d backends, want the one of the login", n)
	}
	killAll(t, "CONNECTION", own)
	eventually(t, "the backend is gone", func() bool { return backend() == 0 })
	if _, err := c.Query(ctxFor(t), "SELECT 1"); err == nil || !strings.Contains(err.Error(), "nothing to log in with") {
		t.Errorf("without a backend and without a secret: %v", err)
	}
	// A driver's pool would keep a session that answers, if with errors, and never log in
	// again.
	var e *mywire.Error
	if _, err := c.Query(ctxFor(t), "SELECT 1"); err == nil || errors.As(err, &e) {
		t.Errorf("a session for which there is no connection, and none to come, goes on: %v", err)
	}
	if got := w.dial(login).one("SELECT 1"); got != "1" {
		t.Errorf("after another login: %s", got)
	}
}

// A password that has been changed is forgotten, and learned anew.
func TestChangedPassword(t *testing.T) {
	t.Parallel()
	server(t)
	own := ownServer(t)
	sqlOn(t, own, "CREATE USER ann@'%'", "GRANT ALL ON *.* TO ann@'%'")
	w := startFor(t, own, "", nil)
	first := w.dial(as("ann", "", mywire.TLSDisabled)) // teaches weir that she has none
	if got := first.one("SELECT 1"); got != "1" {
		t.Fatal(got)
	}
	// A session whose statement is not judged yet ends with its connection.
	eventually(t, "her connections are free", func() bool { p := w.poolOf("ann"); return p.Free > 0 && p.Free == p.Backends })
	sqlOn(t, own, "SET PASSWORD FOR ann@'%' = PASSWORD('new')", "KILL CONNECTION USER ann")
	if _, err := w.tryDial(as("ann", "", mywire.TLSDisabled)); code(err) != mywire.ErrAccessDenied {
		t.Errorf("the old password: %v", err)
	}
	c := w.dial(as("ann", "new", mywire.TLSDisabled))
	for _, c := range []*wire{c, first} {
		eventually(t, "statements run again", func() bool {
			_, err := c.Query(ctxFor(t), "SELECT 1")
			return err == nil
		})
	}
}

func TestSetUsers(t *testing.T) {
	t.Parallel()
	listed := func(password string) []mysql.User {
		secret, err := mywire.ParseSecret(password)
		if err != nil {
			t.Fatal(err)
		}
		return []mysql.User{{Name: bob, Secret: secret}}
	}
	w := start(t, "", func(c *mysql.Config) { c.Auth, c.Users = mywire.PluginNative, listed(bobPassword) })
	before := w.dial(as(bob, bobPassword, mywire.TLSDisabled))
	w.SetUsers(listed("another"))
	if _, err := w.tryDial(as(bob, bobPassword, mywire.TLSDisabled)); code(err) != mywire.ErrAccessDenied {
		t.Errorf("a password that is listed no more: %v", err)
	}
	w.SetUsers(nil)
	if _, err := w.tryDial(as(bob, bobPassword, mywire.TLSDisabled)); code(err) != mywire.ErrAccessDenied {
		t.Errorf("a user who is listed no more: %v", err)
	}
	if got := before.one("SELECT 1"); got != "1" {
		t.Errorf("a session from before: %s", got)
	}
}

func TestUnixSocketOfWeir(t *testing.T) {
	t.Parallel()
	socket := filepath.Join(t.TempDir(), "weir.sock")
	w := start(t, database(t), func(c *mysql.Config) {
		c.Listen, c.ClientTLS, c.ClientTLSMode = socket, serverTLS(t), mywire.TLSRequired
	})
	c := w.dial(func(c *mywire.ConnectConfig) {
		c.Address, c.User, c.Password, c.TLSConfig = socket, bob, bobPassword, &tls.Config{MinVersion: tls.VersionTLS12}
	})
	if got := c.one("SELECT 1"); got != "1" {
		t.Errorf("over a Unix socket, which needs no TLS: %s", got)
	}
	if err := c.changeUser("root", "", w.db); err != nil {
		t.Errorf("change of the user: %v", err)
	}
}
