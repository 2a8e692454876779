package mysql_test

import (
	"fmt"
	"testing"

	"github.com/weirdb/weir/internal/lab/labtest"
	"github.com/weirdb/weir/internal/proxy/mysql"
	"github.com/weirdb/weir/internal/wire/mywire"
)

// A client that logs in after a change of the defaults of new sessions gets the new ones, as
// directly, and not a connection from before.
func TestNewSessionsAreNew(t *testing.T) {
	server := labtest.MariaDB(t, serverConfig())
	sqlOn(t, server, "CREATE USER some@'%' IDENTIFIED BY 'some'", "CREATE DATABASE d CHARACTER SET latin1",
		"CREATE TABLE d.t (id INT)", "CREATE ROLE r", "GRANT r TO some@'%'", "GRANT SELECT ON *.* TO some@'%'")
	secret, err := mywire.ParseSecret("some")
	if err != nil {
		t.Fatal(err)
	}
	w := startFor(t, server, "d", func(c *mysql.Config) { c.Users = []mysql.User{{Name: "some", Secret: secret}} })
	prepared := w.dial(nil)
	change := prepared.prepare("SET GLOBAL div_precision_increment=7")
	for _, test := range []struct {
		name, change, ask, before, after string
		prepared                         bool
	}{
		{name: "SET GLOBAL", change: "SET GLOBAL lock_wait_timeout=77", ask: "SELECT @@lock_wait_timeout", before: "86400", after: "77"},
		{name: "SET GLOBAL among others", change: "SET @a=1, GLOBAL net_read_timeout=77", ask: "SELECT @@net_read_timeout", before: "30", after: "77"},
		{name: "SET GLOBAL prepared", ask: "SELECT @@div_precision_increment", before: "4", after: "7", prepared: true},
		{name: "ALTER DATABASE", change: "ALTER DATABASE d CHARACTER SET utf8mb4", ask: "SELECT @@character_set_database", before: "latin1", after: "utf8mb4"},
		{name: "SET DEFAULT ROLE", change: "/* for all */ SET DEFAULT ROLE r FOR some", ask: "SELECT CURRENT_ROLE()", before: "NULL", after: "r"},
		{name: "REVOKE", change: "REVOKE SELECT ON *.* FROM some@'%'", ask: "SELECT COUNT(*) FROM d.t", before: "0", after: "error 1044"},
	} {
		t.Run(test.name, func(t *testing.T) {
			as := func() string {
				c, err := w.within(t).tryDial(func(cfg *mywire.ConnectConfig) { cfg.User, cfg.Password = "some", "some" })
				if err != nil {
					return fmt.Sprintf("error %d", mywire.CodeOf(err))
				}
				return c.one(test.ask)
			}
			if got := as(); got != test.before {
				t.Fatalf("before: %s, want %s", got, test.before)
			}
			if test.prepared {
				if r := prepared.try(change.execute(0)); r.err != nil || r.lost != nil {
					t.Fatal(r.err, r.lost)
				}
			} else {
				c := w.within(t).dial(nil)
				if _, err := c.Exec(ctxFor(t), test.change); err != nil {
					t.Fatal(err)
				}
			}
			if got := as(); got != test.after {
				t.Errorf("after: %s, want %s", got, test.after)
			}
		})
	}
}

// Changes that the server refuses renew no connections: otherwise a client without rights could
// renew those of all by trying.
func TestRefusedChangesRenewNothing(t *testing.T) {
	t.Parallel()
	server := ownServer(t)
	sqlOn(t, server, "CREATE USER low@'%' IDENTIFIED BY 'low'", "CREATE USER victim@'%'")
	w := startFor(t, server, databaseOn(t, server), nil)
	victim := w.dial(nil)
	low := w.dial(func(c *mywire.ConnectConfig) { c.User, c.Password, c.Database = "low", "low", "" })
	victim.must("DO 1")
	opened := func() uint64 { return w.pool().Opened }
	eventually(t, "the pool is at rest", func() bool { p := w.pool(); return p.Dialing == 0 && p.Free > 0 })
	before := opened()
	for _, sql := range []string{
		"SET GLOBAL time_zone='+01:00'", "ALTER USER victim IDENTIFIED BY 'x'", "REVOKE ALL ON *.* FROM victim",
		"GRANT SELECT ON *.* TO low", "DROP USER victim", "FLUSH PRIVILEGES", "CREATE ROLE r", "SET GLOBAL no_such_variable=1",
		"ALTER DATABASE mysql CHARACTER SET latin1", "SET GLOBAL time_zone=",
	} {
		if _, err := low.Exec(ctxFor(t), sql); err == nil {
			t.Errorf("%s: is allowed", sql)
		}
		victim.must("DO 1")
	}
	if after := opened(); after != before {
		t.Errorf("%d connections opened anew", after-before)
	}
	if _, err := victim.Exec(ctxFor(t), "FLUSH PRIVILEGES"); err != nil {
		t.Fatal(err)
	}
	eventually(t, "a change that took place renews connections", func() bool { // once the catalogue, which is read now and then, has judged it
		victim.must("DO 1")
		return opened() != before
	})
}
