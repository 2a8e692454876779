package mysql_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/weirdb/weir/internal/proxy/mysql"
	"github.com/weirdb/weir/internal/proxy/session"
	"github.com/weirdb/weir/internal/wire/mywire"
)

// asBob logs in as the user who has a password.
func asBob(c *mywire.ConnectConfig) { c.User, c.Password = bob, bobPassword }

// knowsBob has weir open connections for that user by itself.
func knowsBob(tb testing.TB, c *mysql.Config) {
	tb.Helper()
	secret, err := mywire.ParseSecret(bobPassword)
	if err != nil {
		tb.Fatal(err)
	}
	c.Users = append(c.Users, mysql.User{Name: bob, Secret: secret})
}

// One user's many statements wait for the connections of a database, which wait for
// locks. One that ends is enough for another user.
func TestUserWithManyWaitersLeavesOthersTheirShare(t *testing.T) {
	t.Parallel()
	const places, many = 3, 200
	db := database(t, "CREATE TABLE t (k INT PRIMARY KEY)", fmt.Sprintf(longRows, "t", many))
	sqlOn(t, server(t), "GRANT ALL ON "+db+".* TO bob@'%'")
	w := start(t, db, func(c *mysql.Config) {
		c.PoolSize, c.MaxDBConnections = 2*places, places
		knowsBob(t, c)
	})
	other := w.speaker(asBob)
	other.must("DELETE FROM t WHERE FALSE") // what is asked of a table first is asked now
	first, rest := speakerTo(t, server(t).Addr(), db, nil), speakerTo(t, server(t).Addr(), db, nil)
	for c, which := range map[*speaker]string{&first: "= 1", &rest: "> 1"} {
		c.must("BEGIN")
		c.ask("SELECT * FROM t WHERE k " + which + " FOR UPDATE")
	}
	clients := make([]speaker, many)
	for i := range clients {
		clients[i] = w.speaker(nil)
		clients[i].send(mywire.AppendCommand(nil, mywire.ComQuery, fmt.Sprintf("UPDATE t SET k = k WHERE k = %d", i+1)))
		if i == 0 {
			eventually(t, "the first has a connection", func() bool { return w.pool().Owned > 0 })
		}
	}
	eventually(t, "all others wait", func() bool { p := w.pool(); return p.Waiting >= many-places && p.Backends == places })
	before := w.pool().Statements
	other.send(mywire.AppendCommand(nil, mywire.ComQuery, "UPDATE t SET k = k WHERE FALSE"))
	eventually(t, "the other user waits", func() bool { return w.poolOf(bob).Waiting > 0 })
	first.must("COMMIT")
	if got, _ := other.answerTo(mywire.ComQuery); !strings.HasPrefix(got, "OK") {
		t.Errorf("the other user: %s", got)
	}
	if p, o := w.pool(), w.poolOf(bob); p.Statements != before+1 || p.Backends+o.Backends > places || p.Limited["connections"] == 0 {
		t.Errorf("meanwhile %d statements of the many were answered, %d wait, %d and %d connections are open, %v", p.Statements-before, p.Waiting, p.Backends, o.Backends, p.Limited)
	}
	rest.must("COMMIT")
	for _, c := range clients {
		if got, _ := c.answerTo(mywire.ComQuery); !strings.HasPrefix(got, "OK") {
			t.Fatalf("one of the many: %s", got)
		}
	}
}

func TestReserveAndLeastNumberOfConnections(t *testing.T) {
	t.Parallel()
	w := start(t, database(t), func(c *mysql.Config) {
		c.PoolSize, c.MinPoolSize, c.ReservePoolSize, c.ReservePoolTimeout = 2, 2, 1, 50*time.Millisecond
		c.ServerIdleTimeout = 50 * time.Millisecond
	})
	var all []speaker
	for range 3 {
		c := w.speaker(nil)
		c.must("BEGIN")
		c.must("DO 1")
		all = append(all, c)
	}
	if p := w.pool(); p.Backends != 3 {
		t.Errorf("%d connections for three transactions", p.Backends)
	}
	for _, c := range all {
		c.must("COMMIT")
	}
	eventually(t, "the reserve is closed, and the least number stays", func() bool { p := w.pool(); return p.Closed > 0 && p.Backends == 2 && p.Free == 2 })
}

func TestLimitsOfUsersAndDatabases(t *testing.T) {
	t.Parallel()
	db := database(t)
	sqlOn(t, server(t), "GRANT ALL ON "+db+".* TO bob@'%'")
	var cfg mysql.Config
	w := start(t, db, func(c *mysql.Config) {
		knowsBob(t, c)
		c.LimitRules = []session.LimitRule{
			{User: bob, Set: func(l *session.Limits) { l.PoolSize, l.MaxUserClients = 1, 2 }},
			{Database: db, Set: func(l *session.Limits) { l.MaxDBClients = 3 }},
		}
		cfg = *c
	})
	refused := func(as func(*mywire.ConnectConfig)) bool {
		c, err := w.tryDial(as)
		if err == nil {
			_ = c.Close()
			return false
		}
		if mywire.CodeOf(err) != mywire.ErrTooManyConnections || !strings.Contains(err.Error(), "client-connections") {
			t.Errorf("a login: %v", err)
		}
		return true
	}
	one, two := w.speaker(asBob), w.speaker(asBob)
	if !refused(asBob) {
		t.Error("a third client of a user who may have two")
	}
	root := w.dial(nil)
	if !refused(nil) {
		t.Error("a fourth client of a database that may have three")
	}
	_ = root.Close()
	eventually(t, "there is room again", func() bool { return !refused(nil) })
	if n := w.pool().Limited["clients"] + w.poolOf(bob).Limited["clients"]; n < 2 {
		t.Errorf("%d refused logins are counted", n)
	}
	one.must("BEGIN")
	two.send(mywire.AppendCommand(nil, mywire.ComQuery, "BEGIN"))
	eventually(t, "the second transaction of the user waits for the first", func() bool { return w.poolOf(bob).Waiting > 0 })
	cfg.LimitRules = nil
	if err := w.Reload(cfg); err != nil {
		t.Fatal(err)
	}
	if got, _ := two.answerTo(mywire.ComQuery); !strings.HasPrefix(got, "OK") {
		t.Errorf("after the reload: %s", got)
	}
	if refused(asBob) {
		t.Error("the limit holds after a reload without it")
	}
}
