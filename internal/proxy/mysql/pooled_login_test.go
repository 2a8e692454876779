package mysql_test

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/weirdb/weir/internal/lab"
	"github.com/weirdb/weir/internal/proxy/mysql"
	"github.com/weirdb/weir/internal/wire/mywire"
)

// checked is how logins were decided.
func (w *weir) checked() map[string]uint64 {
	counts := make(map[string]uint64)
	for _, c := range w.snapshot().Checks {
		counts[c.Way] += c.Count
	}
	return counts
}

// connections is how many the server has taken since its start.
func connections(t *testing.T, server *lab.MySQL) int {
	t.Helper()
	n, err := strconv.Atoi(direct(t, server, "").one("SELECT VARIABLE_VALUE FROM " + statusTable(server) + " WHERE VARIABLE_NAME = 'Connections'"))
	if err != nil {
		t.Fatal(err)
	}
	return n
}

func statusTable(server *lab.MySQL) string {
	if server.Flavor() == lab.FlavorMySQL {
		return "performance_schema.global_status"
	}
	return "information_schema.GLOBAL_STATUS"
}

// A login costs the server a connection only where weir cannot know what it would say,
// whatever the plugin.
func TestLoginsArePooled(t *testing.T) {
	t.Parallel()
	eachServer(t, func(t *testing.T, server *lab.MySQL) {
		const logins = 20
		for _, plugin := range accounts(t, server) {
			relayed := !slices.Contains([]string{mywire.PluginNative, mywire.PluginSHA2, "ed25519", mywire.PluginEd25519}, plugin)
			for _, auth := range []string{mysql.AuthAuto, mysql.AuthRelay} {
				t.Run(plugin+"/"+auth, func(t *testing.T) {
					w := startFor(t, server, "", func(c *mysql.Config) { c.Auth, c.ClientTLS = auth, serverTLS(t) })
					mode := mywire.TLSRequired
					if plugin == mywire.PluginSHA256 {
						mode = mywire.TLSDisabled // as on the way to the server
					}
					before := connections(t, server)
					for range logins {
						c, err := w.tryDial(as(plugin, passwordOf(plugin), mode))
						if err != nil {
							t.Fatal(err)
						}
						if got := c.one("SELECT SUBSTRING_INDEX(USER(), '@', 1)"); got != plugin {
							t.Errorf("user %s", got)
						}
						_ = c.Close()
					}
					for _, wrong := range []string{"wrong", ""} {
						if _, err := w.tryDial(as(plugin, wrong, mode)); code(err) != mywire.ErrAccessDenied {
							t.Errorf("password %q: %v", wrong, err)
						}
					}
					opened := connections(t, server) - before
					counts := w.checked()
					// One a second is let through to the server.
					if auth == mysql.AuthAuto && !relayed && (counts["pooled"] < logins/2 || opened > logins*3/4) {
						t.Errorf("%d logins were decided %v, over %d connections", logins, counts, opened)
					} else if auth == mysql.AuthRelay && counts["relayed"] != logins {
						t.Errorf("%d logins were decided %v", logins, counts)
					}
				})
			}
		}
	})
}

// A pooled login sees the changes that one at the server would.
func TestPooledLoginsSeeWhatHasChanged(t *testing.T) {
	t.Parallel()
	eachServer(t, func(t *testing.T, server *lab.MySQL) {
		admin := direct(t, server, "")
		exec := func(sql string) {
			t.Helper()
			admin.must(sql)
		}
		for _, plugin := range accounts(t, server) {
			if plugin != mywire.PluginNative && plugin != mywire.PluginSHA2 && plugin != "ed25519" {
				continue
			}
			t.Run(plugin, func(t *testing.T) {
				w := startFor(t, server, "", func(c *mysql.Config) { c.ClientTLS, c.LoginCheckInterval = serverTLS(t), -1 })
				want := func(what, password string, number uint16) {
					t.Helper()
					c, err := w.tryDial(as(plugin, password, mywire.TLSRequired))
					if code(err) != number {
						t.Errorf("%s: %v, want error %d", what, err, number)
					}
					if err == nil {
						_ = c.Close()
					}
				}
				secret := passwordOf(plugin)
				name := "'" + plugin + "'@'%'"
				if got := admin.one("SELECT Host FROM mysql.user WHERE User = '" + plugin + "'"); got != "%" {
					name = "'" + plugin + "'@'" + got + "'"
				}
				set := func(password string) string {
					switch {
					case server.Flavor() == lab.FlavorMySQL:
						return "ALTER USER " + name + " IDENTIFIED WITH " + plugin + " BY '" + password + "'"
					case plugin == mywire.PluginNative:
						return "ALTER USER " + name + " IDENTIFIED BY '" + password + "'"
					}
					return "ALTER USER " + name + " IDENTIFIED VIA " + plugin + " USING PASSWORD('" + password + "')"
				}
				for range 3 {
					want("an account in good standing", secret, 0)
				}
				exec(set("other"))
				want("the old password", secret, mywire.ErrAccessDenied)
				want("the new password", "other", 0)
				want("the new password, again", "other", 0)
				want("the old password, again", secret, mywire.ErrAccessDenied)
				exec(set(secret))
				want("the old password is the new one", secret, 0)
				exec("ALTER USER " + name + " ACCOUNT LOCK")
				locked := uint16(4151) // ER_ACCOUNT_HAS_BEEN_LOCKED
				if server.Flavor() == lab.FlavorMySQL {
					locked = 3118
				}
				want("a locked account", secret, locked)
				exec("ALTER USER " + name + " ACCOUNT UNLOCK")
				want("an unlocked account", secret, 0)
				want("an unlocked account, again", secret, 0)
				if server.Flavor() == lab.FlavorMySQL {
					exec("ALTER USER " + name + " IDENTIFIED BY 'second' RETAIN CURRENT PASSWORD")
					for range 2 {
						want("the password that was kept", secret, 0)
						want("the one that came to it", "second", 0)
					}
					exec("ALTER USER " + name + " DISCARD OLD PASSWORD")
					want("the password that was discarded", secret, mywire.ErrAccessDenied)
					exec(set(secret))
					exec("ALTER USER " + name + " FAILED_LOGIN_ATTEMPTS 2 PASSWORD_LOCK_TIME UNBOUNDED")
					want("an account that wrong passwords lock", secret, 0)
					want("a wrong one", "wrong", mywire.ErrAccessDenied)
					want("another", "wrong", 3955) // ER_USER_ACCESS_DENIED_FOR_USER_ACCOUNT_BLOCKED_BY_PASSWORD_LOCK
					want("the right one", secret, 3955)
					exec("ALTER USER " + name + " FAILED_LOGIN_ATTEMPTS 0 PASSWORD_LOCK_TIME 0 ACCOUNT UNLOCK")
					want("an account that they do not lock any more", secret, 0)
				}
				// An account that fits better comes first.
				closer := "'" + plugin + "'@'127.0.0.1'"
				if name != closer {
					exec(strings.Replace(strings.Replace(set("closer"), "ALTER USER", "CREATE USER", 1), name, closer, 1))
					want("the account that does not count any more", secret, mywire.ErrAccessDenied)
					want("the one that does", "closer", 0)
					want("the one that does, again", "closer", 0)
					exec("DROP USER " + closer)
					want("the first account again", secret, 0)
				}
				exec("DROP USER " + name)
				want("an account that was dropped", secret, mywire.ErrAccessDenied)
				want("an account that was dropped, again", secret, mywire.ErrAccessDenied)
			})
		}
	})
}

// A storm of right and wrong logins and of names that nobody has.
func TestAStormOfPooledLogins(t *testing.T) {
	t.Parallel()
	eachServer(t, func(t *testing.T, server *lab.MySQL) {
		plugins := accounts(t, server)
		plugin := mywire.PluginNative
		if !slices.Contains(plugins, plugin) {
			plugin = mywire.PluginSHA2
		}
		w := startFor(t, server, "", func(c *mysql.Config) { c.ClientTLS = serverTLS(t) })
		w.dial(as(plugin, passwordOf(plugin), mywire.TLSRequired))
		var wg sync.WaitGroup
		for i := range 30 {
			wg.Go(func() {
				if _, err := w.tryDial(as(plugin, passwordOf(plugin), mywire.TLSRequired)); err != nil {
					t.Errorf("right password: %v", err)
				}
			})
			wg.Go(func() {
				if _, err := w.tryDial(as(plugin, fmt.Sprint("wrong", i), mywire.TLSRequired)); code(err) != mywire.ErrAccessDenied {
					t.Errorf("wrong password: %v", err)
				}
			})
			wg.Go(func() {
				if _, err := w.tryDial(as("nobody_here", "x", mywire.TLSRequired)); code(err) != mywire.ErrAccessDenied {
					t.Errorf("unknown user: %v", err)
				}
			})
		}
		wg.Wait()
	})
}

// When another account of the name counts, nobody gets a connection of the one before.
func TestPooledConnectionsAreOfTheAccount(t *testing.T) {
	t.Parallel()
	eachServer(t, func(t *testing.T, server *lab.MySQL) {
		admin := direct(t, server, "")
		create := func(host, password string) string {
			return fmt.Sprintf("CREATE USER two@'%s' IDENTIFIED BY '%s'", host, password)
		}
		admin.must(create("%", "any"))
		w := startFor(t, server, "", func(c *mysql.Config) { c.ClientTLS, c.Loops, c.LoginCheckInterval = serverTLS(t), 1, -1 })
		// see has several sessions hold connections at once.
		see := func(what, password, want string) {
			t.Helper()
			for range 4 {
				c, err := w.tryDial(as("two", password, mywire.TLSRequired))
				if err != nil {
					t.Errorf("%s: %v", what, err)
					continue
				}
				defer func() { _ = c.Close() }()
				c.must("BEGIN")
				if got := c.one("SELECT CURRENT_USER()"); got != want {
					t.Errorf("%s: a session of %s", what, got)
				}
			}
		}
		see("one account", "any", "two@%")
		admin.must(create("127.0.0.1", "here"))
		admin.must(create("localhost", "here")) // as which the server may know this machine
		host := "two@127.0.0.1"
		if c, err := w.tryDial(as("two", "here", mywire.TLSRequired)); err != nil {
			t.Fatal(err)
		} else if got := c.one("SELECT CURRENT_USER()"); got == "two@localhost" {
			host = got
		} else if got != host {
			t.Errorf("a nearer account: a session of %s", got)
		}
		see("a nearer account", "here", host)
		admin.must("DROP USER two@'127.0.0.1', two@localhost")
		see("the nearer one was dropped", "any", "two@%")
		admin.must("DROP USER two@'%'")
	})
}

// A database that is dropped over weir takes no further login.
func TestLoginsToADatabaseThatWasDropped(t *testing.T) {
	t.Parallel()
	secret, err := mywire.ParseSecret("own")
	if err != nil {
		t.Fatal(err)
	}
	sqlOn(t, server(t), "CREATE USER dropper@'%' IDENTIFIED BY 'own'", "GRANT ALL ON *.* TO dropper@'%'")
	t.Cleanup(func() { sqlOn(t, server(t), "DROP USER dropper@'%'") })
	w := start(t, "", func(c *mysql.Config) { c.Users = []mysql.User{{Name: "dropper", Secret: secret}} })
	login := func(db string) (*wire, error) {
		return w.tryDial(func(c *mywire.ConnectConfig) {
			as("dropper", "own", mywire.TLSDisabled)(c)
			c.Database = db
		})
	}
	admin, err := login("")
	if err != nil {
		t.Fatal(err)
	}
	for i := range 5 {
		db := fmt.Sprintf("to_be_dropped_%d", i)
		admin.must("CREATE DATABASE " + db)
		for range 2 {
			if _, err := login(db); err != nil {
				t.Fatal(err)
			}
		}
		admin.must("DROP DATABASE " + db)
		if _, err := login(db); code(err) != mywire.ErrUnknownDatabase {
			t.Errorf("a login to a database that was dropped: %v", err)
		}
	}
}

// The accounts that one login has asked for serve others who prove themselves by them; a
// new password holds at once, and so does what is changed over weir.
func TestLoginsShareAnAnswerAboutAccounts(t *testing.T) {
	t.Parallel()
	eachServer(t, func(t *testing.T, server *lab.MySQL) {
		admin := direct(t, server, "")
		admin.must("CREATE USER shares@'%' IDENTIFIED BY 'first'")
		admin.must("CREATE USER shares_admin@'%' IDENTIFIED BY 'admin'")
		admin.must("GRANT CREATE USER ON *.* TO shares_admin@'%'")
		defer admin.must("DROP USER shares@'%', shares_admin@'%'")
		w := startFor(t, server, "", func(c *mysql.Config) { c.ClientTLS, c.LoginCheckInterval = serverTLS(t), time.Hour })
		in := func(password string) uint16 {
			c, err := w.tryDial(as("shares", password, mywire.TLSRequired))
			if err != nil {
				return code(err)
			}
			_ = c.Close()
			return 0
		}
		want := func(what, password string, number uint16) {
			t.Helper()
			if got := in(password); got != number {
				t.Errorf("%s: %d, want %d", what, got, number)
			}
		}
		for range 5 {
			want("the password", "first", 0)
		}
		want("a wrong password", "wrong", mywire.ErrAccessDenied)
		want("the password, again", "first", 0)
		admin.must("ALTER USER shares@'%' IDENTIFIED BY 'second'") // not over weir
		want("a new password", "second", 0)
		want("the one before", "first", mywire.ErrAccessDenied)
		for range 3 {
			want("the new password, again", "second", 0)
		}
		over := w.dial(as("shares_admin", "admin", mywire.TLSRequired))
		over.must("ALTER USER shares@'%' IDENTIFIED BY 'third'")
		want("a password that was changed over weir", "second", mywire.ErrAccessDenied)
		want("the one that holds", "third", 0)
		want("the one that holds, again", "third", 0)
		over.must("ALTER /* no blank */ USER shares@'%' IDENTIFIED BY 'fourth'")
		want("one that was changed behind a comment", "third", mywire.ErrAccessDenied)
		want("the fourth", "fourth", 0)
		want("the fourth, again", "fourth", 0)
		set := "SET PASSWORD = 'third'"
		if server.Flavor() == lab.FlavorMariaDB {
			set = "SET PASSWORD = PASSWORD('third')"
		}
		w.dial(as("shares", "fourth", mywire.TLSRequired)).must(set)
		want("one that its user has changed", "fourth", mywire.ErrAccessDenied)
		want("the new one", "third", 0)
		want("the new one, again", "third", 0)
		// Effects that the text of a statement does not show.
		admin.must("CREATE DATABASE hides_accounts")
		defer admin.must("DROP DATABASE hides_accounts")
		sets := strings.ReplaceAll(strings.Replace(set, "PASSWORD =", "PASSWORD FOR shares@'%' =", 1), "third", "sixth")
		admin.must("CREATE PROCEDURE hides_accounts.alters() ALTER USER shares@'%' IDENTIFIED BY 'fifth'")
		admin.must("CREATE PROCEDURE hides_accounts.sets() " + sets)
		admin.must("GRANT EXECUTE ON hides_accounts.* TO shares_admin@'%'")
		is := "third"
		for _, change := range []struct{ password, prepare, does string }{
			{"fifth", "", "CALL hides_accounts.alters()"},
			{"sixth", "", "CALL hides_accounts.sets()"},
			{"seventh", "PREPARE p FROM 'ALTER USER shares@''%'' IDENTIFIED BY ''seventh'''", "EXECUTE p"},
			{"eighth", "SET @x = 'ALTER USER shares@''%'' IDENTIFIED BY ''eighth'''", "EXECUTE IMMEDIATE @x"},
		} {
			if strings.Contains(change.does, "IMMEDIATE") && server.Flavor() != lab.FlavorMariaDB {
				continue
			}
			want("before "+change.does, is, 0)
			if change.prepare != "" {
				over.must(change.prepare)
			}
			over.must(change.does)
			want(change.does+" over weir", is, mywire.ErrAccessDenied)
			is = change.password
			want("the password of "+change.does, is, 0)
			want("the password of "+change.does+", again", is, 0)
		}
		admin.must("ALTER USER shares@'%' IDENTIFIED BY 'third'")
		want("the third", "third", 0)
		over.must("DROP USER shares@'%'")
		want("an account that was dropped over weir", "third", mywire.ErrAccessDenied)
		admin.must("CREATE USER shares@'%' IDENTIFIED BY 'third'")
		want("one that was made anew", "third", 0)
	})
}
