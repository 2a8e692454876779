package mysql_test

import (
	"fmt"
	"testing"

	"github.com/weirdb/weir/internal/lab"
	"github.com/weirdb/weir/internal/lab/labtest"
	"github.com/weirdb/weir/internal/proxy/mysql"
	"github.com/weirdb/weir/internal/proxy/proxytest"
	"github.com/weirdb/weir/internal/wire/mywire"
)

// Settings of the server's init_connect hold for each client, also on a connection that was
// reset after the one before.
func TestInitConnectHoldsForEachClient(t *testing.T) {
	t.Parallel()
	cfg := serverConfig()
	cfg.Settings = map[string]string{"init-connect": "SET div_precision_increment = 7, @from_init = 'yes'"}
	secret, err := mywire.ParseSecret(bobPassword)
	if err != nil {
		t.Fatal(err)
	}
	for flavor, start := range map[string]func(testing.TB, lab.MySQLConfig) *lab.MySQL{"mariadb": labtest.MariaDB, "mysql": labtest.MySQL} {
		t.Run(flavor, func(t *testing.T) {
			t.Parallel()
			server := start(t, cfg)
			sqlOn(t, server, "CREATE USER bob@'%' IDENTIFIED BY '"+"bob''s secret"+"'")
			w := startFor(t, server, "", func(c *mysql.Config) {
				c.PoolSize, c.Users = 1, []mysql.User{{Name: bob, Secret: secret}}
			})
			for range 3 {
				c := w.dial(func(c *mywire.ConnectConfig) { c.User, c.Password = bob, bobPassword })
				if got := c.one("SELECT CONCAT(@@div_precision_increment, @from_init)"); got != "7yes" {
					t.Errorf("%s, want 7yes", got)
				}
				c.must("SET @mine = 1") // so that the connection is reset
				if err := c.Close(); err != nil {
					t.Fatal(err)
				}
			}
			// The server runs it for nobody with that privilege.
			if got := w.dial(nil).one("SELECT @@div_precision_increment"); got != "4" {
				t.Errorf("root: %s, want 4", got)
			}
		})
	}
}

// COM_RESET_CONNECTION brings back the server's settings, and not those that the login
// has asked for.
func TestResetForgetsTheModeOfTheLogin(t *testing.T) {
	t.Parallel()
	perFlavor(t, func(t *testing.T, server *lab.MySQL) {
		w := startFor(t, server, databaseOn(t, server), nil)
		for _, held := range []bool{false, true} {
			var got [2]string
			for i, addr := range []string{server.Addr(), w.Addr().String()} {
				c := dialAt(t, addr, w.db, func(c *mywire.ConnectConfig) { c.Caps |= mywire.CapIgnoreSpace })
				c.must("SET SESSION lc_time_names = 'de_DE'")
				if held {
					c.must("SET @a = 1")
				}
				got[i] = c.one("SELECT @@sql_mode")
				c.send(mywire.AppendResetConnection(nil))
				if _, answer := c.packet(); !mywire.IsOK(answer) {
					t.Fatalf("reset: %q", answer)
				}
				for range 3 { // shared, at the end
					got[i] += " " + c.one("SELECT CONCAT(@@sql_mode, ' ', @@lc_time_names)")
				}
			}
			if got[0] != got[1] {
				t.Errorf("held %v: through weir\n%s\ndirect\n%s", held, got[1], got[0])
			}
		}
	})
}

// So it does with the character sets: MySQL's are the server's then, MariaDB's those of
// the login.
func TestResetAndTheCharacterSetOfTheLogin(t *testing.T) {
	t.Parallel()
	perFlavor(t, func(t *testing.T, server *lab.MySQL) {
		w := startFor(t, server, databaseOn(t, server), nil)
		const ask = "SELECT CONCAT_WS(' ', @@character_set_client, @@character_set_results, @@character_set_connection, @@collation_connection)"
		for _, charset := range []byte{8, 33, mywire.CharsetUTF8MB4, 47} {
			for _, first := range []string{"", "DO 0", "SET NAMES cp1251", "SET @a = 1"} {
				var got [2]string
				for i, addr := range []string{server.Addr(), w.Addr().String()} {
					c := dialAt(t, addr, w.db, func(c *mywire.ConnectConfig) { c.Charset = charset })
					if first != "" {
						c.must(first)
					}
					c.send(mywire.AppendResetConnection(nil))
					if _, answer := c.packet(); !mywire.IsOK(answer) {
						t.Fatalf("reset: %q", answer)
					}
					for range 3 {
						got[i] += " " + c.one(ask)
					}
				}
				if got[0] != got[1] {
					t.Errorf("login with %d, %q: through weir%s, direct%s", charset, first, got[1], got[0])
				}
			}
		}
	})
}

// A session that is reset is as the server's begin, also where these have autocommit off
// and another sql_mode: no write counts as committed that its connection rolls back.
func TestResetWhereSessionsBeginWithoutAutocommit(t *testing.T) {
	t.Parallel()
	cfg := serverConfig()
	cfg.Settings = map[string]string{"autocommit": "0", "sql_mode": "NO_BACKSLASH_ESCAPES,ANSI_QUOTES"}
	for flavor, start := range map[string]func(testing.TB, lab.MySQLConfig) *lab.MySQL{"mariadb": labtest.MariaDB, "mysql": labtest.MySQL} {
		t.Run(flavor, func(t *testing.T) {
			t.Parallel()
			server := start(t, cfg)
			db := databaseOn(t, server, "CREATE TABLE t (who INT, a INT)", "COMMIT")
			w := startFor(t, server, db, nil)
			for _, first := range []string{"", "DO 0", "SET autocommit = 1", "SET sql_mode = ''"} { // before the reset
				var got [2]string
				for who, addr := range []string{server.Addr(), w.Addr().String()} {
					c := dialAt(t, addr, db, nil)
					if first != "" {
						c.must(first)
						c.must("COMMIT")
					}
					told := func(ok mywire.OK) {
						flags := mywire.StatusAutocommit | mywire.StatusInTrans | mywire.StatusNoBackslashEscapes | mywire.StatusANSIQuotes
						if flavor == "mysql" {
							flags &^= mywire.StatusAutocommit // set by a login or reset, though it is off, until a session sets it
						}
						got[who] += fmt.Sprintf(" %#x", uint16(ok.Status&flags))
					}
					c.send(mywire.AppendResetConnection(nil))
					_, answer := c.packet()
					ok, err := mywire.ParseOK(answer, c.Caps)
					if err != nil {
						t.Fatalf("reset: %q, %v", answer, err)
					}
					told(ok)
					for a := range 4 { // in a group, and alone
						hint := []string{"/* batch */ ", ""}[a/2]
						told(c.must(fmt.Sprintf("%sINSERT INTO t (who, a) VALUES (%d, %d)", hint, who, a)))
						told(c.must([]string{"COMMIT", "ROLLBACK"}[a%2]))
					}
					got[who] += c.one(fmt.Sprintf("SELECT GROUP_CONCAT(a ORDER BY a) FROM t WHERE who = %d", who))
				}
				if got[0] != got[1] {
					t.Errorf("%q before: through weir\n%s\ndirect\n%s", first, got[1], got[0])
				}
				sqlOn(t, server, "DELETE FROM "+db+".t", "COMMIT")
			}
		})
	}
}

// Where connections stay that were opened before the server's autocommit changed, each
// session goes on as it began, on whichever connection: what one has written is committed,
// what another has taken back is not.
func TestAutocommitOfSessionsBeforeAndAfterAChange(t *testing.T) {
	t.Parallel()
	server := labtest.MariaDB(t, serverConfig())
	proxytest.Need(t, makeUsers(ctxFor(t), server))
	db := databaseOn(t, server, "CREATE TABLE t (k INT PRIMARY KEY)")
	w := startFor(t, server, db, func(c *mysql.Config) { c.Auth = mysql.AuthRelay })
	login := as(bob, bobPassword, mywire.TLSDisabled)
	root := dialAt(t, server.Addr(), db, nil)
	const ids = "SELECT GROUP_CONCAT(ID) FROM information_schema.PROCESSLIST WHERE USER = 'bob'"
	before := w.dial(login)
	k := 0
	write := func(hint string) {
		k++
		before.must(fmt.Sprintf("%sINSERT INTO t VALUES (%d)", hint, k))
		if got := root.one(fmt.Sprintf("SELECT COUNT(*) FROM t WHERE k = %d", k)); got != "1" {
			t.Fatalf("an acknowledged write is not there: %sINSERT of %d", hint, k)
		}
	}
	eventually(t, "a write joins a group", func() bool {
		write("/* batch */ ")
		return w.poolOf(bob).Grouped > 0
	})
	old := root.one(ids)
	root.must("SET GLOBAL autocommit = 0")
	after := w.dial(login)
	eventually(t, "the new connection is known", func() bool { return w.poolOf(bob).Free == 2 })
	root.must("KILL " + old) // where only logins bring connections, the new one serves both now
	eventually(t, "the old connection is gone", func() bool { return w.poolOf(bob).Backends == 1 })
	for range 3 {
		write("/* batch */ ")
		write("")
		for _, end := range []string{"ROLLBACK", "COMMIT"} {
			k++
			after.must(fmt.Sprintf("INSERT INTO t VALUES (%d)", k))
			after.must(end)
			want := map[string]string{"ROLLBACK": "0", "COMMIT": "1"}[end]
			if got := root.one(fmt.Sprintf("SELECT COUNT(*) FROM t WHERE k = %d", k)); got != want {
				t.Errorf("%s rows of a session without autocommit after %s", got, end)
			}
		}
	}
}

// Where connections are replaced after such a change, the sessions of before go on as they
// began all the same.
func TestAutocommitOfSessionsThatOutliveTheirConnections(t *testing.T) {
	t.Parallel()
	server := labtest.MariaDB(t, serverConfig())
	db := databaseOn(t, server, "CREATE TABLE t (k INT PRIMARY KEY)")
	w := startFor(t, server, db, nil)
	root := dialAt(t, server.Addr(), db, nil)
	before := w.dial(nil)
	before.must("INSERT INTO t VALUES (0)")
	root.must("SET GLOBAL autocommit = 0")
	opened := w.pool().Opened
	eventually(t, "the change is noticed", func() bool {
		c := w.dial(nil)
		defer func() { _ = c.Close() }()
		c.must("DO 0")
		return c.OK.Status&mywire.StatusAutocommit == 0 && w.pool().Opened > opened
	})
	for k := range 6 {
		hint := []string{"", "/* batch */ "}[k%2]
		before.must(fmt.Sprintf("%sINSERT INTO t VALUES (%d)", hint, k+1))
		if got := root.one(fmt.Sprintf("SELECT COUNT(*) FROM t WHERE k = %d", k+1)); got != "1" {
			t.Fatalf("%sINSERT %d, acknowledged to a session with autocommit, is not committed", hint, k+1)
		}
	}
	after := w.dial(nil)
	after.must("INSERT INTO t VALUES (-1)")
	after.must("ROLLBACK")
	if got := root.one("SELECT COUNT(*) FROM t WHERE k < 0"); got != "0" {
		t.Error("a session without autocommit has committed what it took back")
	}
	if got := before.one("SELECT @@autocommit"); got != "1" {
		t.Errorf("autocommit of a session of before: %s", got)
	}
}

// LASTVAL never tells of a value that another client was given, even where a sequence
// is used by a column's DEFAULT, of which a text shows nothing.
func TestSequencesInDefaultsAreNeverAnothers(t *testing.T) {
	t.Parallel()
	needsMariaDB(t, "sequences")
	db := database(t, "CREATE SEQUENCE s", "CREATE TABLE d (a INT, b BIGINT DEFAULT NEXTVAL(s))")
	for _, insert := range []string{"INSERT INTO d (a) VALUES (1)", "/* batch */ INSERT INTO d (a) VALUES (1)"} {
		t.Run(insert, func(t *testing.T) {
			w := start(t, db, func(c *mysql.Config) { c.PoolSize = 2 })
			other := w.dial(nil)
			for range 4 {
				other.must(insert)
			}
			asks := w.dial(nil)
			if got := asks.one("SELECT LASTVAL(s)"); got != "NULL" {
				t.Errorf("who has used none is told %s", got)
			}
			if err := asks.Close(); err != nil {
				t.Fatal(err)
			}
			uses := w.dial(nil)
			uses.must(insert)
			if _, err := uses.Query(ctxFor(t), "SELECT LASTVAL(s)"); code(err) != mywire.ErrNotSupportedYet {
				t.Errorf("what was not kept: %v, want %d", err, mywire.ErrNotSupportedYet)
			}
			for range 3 { // from now on it is
				uses.must(insert)
				other.must(insert)
				if got := uses.one("SELECT LASTVAL(s) = MAX(b) - 1 FROM d"); got != "1" {
					t.Errorf("its own last value: %s", uses.one("SELECT LASTVAL(s)"))
				}
			}
		})
	}
}
