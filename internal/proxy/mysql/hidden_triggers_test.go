package mysql_test

import (
	"bytes"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/weirdb/weir/internal/proxy/mysql"
	"github.com/weirdb/weir/internal/wire/mywire"
)

// TestTriggersThatTheDSNsUserSees: what an account may not see, the DSN's user may.
func TestTriggersThatTheDSNsUserSees(t *testing.T) {
	t.Parallel()
	db := database(t, append(leakSetup, "CREATE TABLE logged (i INT)", "CREATE TRIGGER harmless BEFORE INSERT ON logged FOR EACH ROW SET NEW.i = 1")...)
	name, password := account(t)
	sqlOn(t, server(t), fmt.Sprintf("GRANT SELECT, INSERT, EXECUTE ON %s.* TO %s@'%%'", db, name))
	secret, err := mywire.ParseSecret(password)
	if err != nil {
		t.Fatal(err)
	}
	w := start(t, db, func(c *mysql.Config) { // whose DSN's user is root
		twoBackends(c)
		c.Users = []mysql.User{{Name: name, Secret: secret}}
	})
	as := func(cfg *mywire.ConnectConfig) { cfg.User, cfg.Password = name, password }
	w.dial(as).one("SELECT 1") // the catalogue is read
	for _, c := range []struct {
		table           string
		pinned, grouped bool
	}{{"locked", true, false}, {"n", false, true}, {"logged", false, false}} {
		session := w.dial(as)
		idle := func() bool { p := w.poolOf(name); return p.Pinned > 0 || p.Backends == p.Free }
		before := w.poolOf(name).Grouped
		var pinned int
		eventually(t, "whether writes to "+c.table+" are grouped is known", func() bool {
			session.must("/* batch */ INSERT INTO " + c.table + " (i) VALUES (0)")
			eventually(t, "what it did is judged", idle)
			pinned = w.poolOf(name).Pinned
			return !c.grouped || pinned > 0 || w.poolOf(name).Grouped > before
		})
		if (pinned > 0) != c.pinned {
			t.Errorf("after a write to %s %d sessions keep their connection", c.table, pinned)
		}
		for range 20 {
			session.must("/* batch */ INSERT INTO " + c.table + " (i) VALUES (0)")
		}
		if got := w.poolOf(name).Grouped > before; got != c.grouped {
			t.Errorf("writes to %s are grouped: %v", c.table, got)
		}
		_ = session.Close()
		eventually(t, "the session has left", func() bool { return w.poolOf(name).Clients == 1 })
	}
}

// TestHiddenTriggersAreAskedForAgain breaks connections of the DSN's user while it asks for
// triggers. Within one load of the catalogue weir asks again, and after that at the next polls.
func TestHiddenTriggersAreAskedForAgain(t *testing.T) {
	t.Parallel()
	for _, broken := range []int64{1, 3} { // 3: as often as one load asks
		t.Run(fmt.Sprint(broken, " times"), func(t *testing.T) {
			t.Parallel()
			db := database(t, "CREATE TABLE n (i INT)")
			name, password := account(t)
			sqlOn(t, server(t), fmt.Sprintf("GRANT SELECT, INSERT ON %s.* TO %s@'%%'", db, name))
			secret, err := mywire.ParseSecret(password)
			if err != nil {
				t.Fatal(err)
			}
			var asked atomic.Int64
			w := start(t, db, func(c *mysql.Config) { // whose DSN's user is root
				twoBackends(c)
				c.Users = []mysql.User{{Name: name, Secret: secret}}
				c.MySQL.Address = relayed(t, server(t).Addr(), func() (up, down func(p []byte) ([]byte, bool)) {
					up = func(p []byte) ([]byte, bool) {
						asks := bytes.Contains(p, []byte("\x03SELECT 1 FROM information_schema.USER_PRIVILEGES"))
						return p, !asks || asked.Add(1) > broken
					}
					return up, func(p []byte) ([]byte, bool) { return p, true }
				})
			})
			as := func(cfg *mywire.ConnectConfig) { cfg.User, cfg.Password = name, password }
			writes := func() (pinned int) {
				c := w.dial(as)
				defer func() { _ = c.Close() }()
				c.must("INSERT INTO n VALUES (0)")
				eventually(t, "what it did is judged", func() bool { p := w.poolOf(name); return p.Pinned > 0 || p.Backends == p.Free })
				return w.poolOf(name).Pinned
			}
			if broken == 1 && writes() > 0 {
				t.Error("a session keeps its connection because one lookup failed")
			}
			eventually(t, "a session that writes does not keep its connection", func() bool { return writes() == 0 })
			if n := asked.Load(); n <= broken {
				t.Errorf("the DSN's user was asked %d times", n)
			}
		})
	}
}

// TestLogSaysWhatToGrant: once for each account, whatever it has loops and pools.
func TestLogSaysWhatToGrant(t *testing.T) {
	t.Parallel()
	db := database(t, "CREATE TABLE t (i INT)")
	name, password := account(t)
	sqlOn(t, server(t), fmt.Sprintf("GRANT SELECT, INSERT ON %s.* TO %s@'%%'", db, name))
	var log safeLog
	w := start(t, db, func(c *mysql.Config) {
		c.Loops = 2
		c.MySQL.User, c.MySQL.Password = name, password
		c.Log = slog.New(slog.NewTextHandler(&log, nil))
	})
	as := func(cfg *mywire.ConnectConfig) { cfg.User, cfg.Password = name, password }
	for range 4 {
		w.dial(as).must("INSERT INTO t VALUES (1)")
	}
	eventually(t, "writers keep their connections", func() bool { return w.poolOf(name).Pinned == 4 })
	grant := fmt.Sprintf("GRANT TRIGGER ON `%s`.* TO `%s`@`%%`;", db, name)
	if got := strings.Count(log.String(), grant); got != 1 {
		t.Errorf("%q stands %d times in the log, want once:\n%s", grant, got, log.String())
	}
	// It is what helps.
	sqlOn(t, server(t), grant)
	eventually(t, "a writer does not keep its connection", func() bool {
		c := w.dial(as)
		defer c.Close()
		before := w.poolOf(name)
		c.must("INSERT INTO t VALUES (1)")
		eventually(t, "what it did is judged", func() bool {
			p := w.poolOf(name)
			return p.Pinned > before.Pinned || p.Backends-p.Free == before.Pinned
		})
		return w.poolOf(name).Pinned == before.Pinned
	})
}

// A safeLog gathers what several goroutines write.
type safeLog struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

func (l *safeLog) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.buf.Write(p)
}

func (l *safeLog) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.buf.String()
}

// TestWarnsOfARefusedLoginOfItsOwn: clients with the right password of their own log in
// nevertheless.
func TestWarnsOfARefusedLoginOfItsOwn(t *testing.T) {
	t.Parallel()
	db := database(t)
	name, password := account(t)
	weirs, _ := account(t)
	var log safeLog
	w := start(t, db, func(c *mysql.Config) {
		c.MySQL.User, c.MySQL.Password = weirs, "wrong"
		c.Log = slog.New(slog.NewTextHandler(&log, nil))
	})
	w.dial(func(cfg *mywire.ConnectConfig) { cfg.User, cfg.Password, cfg.Database = name, password, "" }).must("DO 1")
	eventually(t, "a warning", func() bool {
		return strings.Count(log.String(), `level=WARN msg="the server refuses weir's own login`) == 1
	})
}

// TestTriggersByEvent: an INSERT is judged by the triggers that INSERTs fire, unless it may
// change rows that are there.
func TestTriggersByEvent(t *testing.T) {
	t.Parallel()
	db := database(t, "CREATE TABLE t (k INT PRIMARY KEY, a INT)", "INSERT INTO t VALUES (0, 0)",
		"CREATE TRIGGER u BEFORE UPDATE ON t FOR EACH ROW SET @fired = 'update'",
		"CREATE TRIGGER d BEFORE DELETE ON t FOR EACH ROW SET @fired = 'delete'")
	w := start(t, db, func(c *mysql.Config) { c.PoolSize, c.ReadLanes = 1, -1 })
	for _, x := range []struct{ sql, fired string }{
		{"INSERT INTO t VALUES (1, 0)", "NULL"},
		{"INSERT INTO t (k) SELECT 2", "NULL"},
		{"INSERT INTO t VALUES (0, 0) ON DUPLICATE KEY UPDATE a = 1", "update"},
		{"INSERT INTO t VALUES (0, 0) /*!50000 ON DUPLICATE KEY UPDATE a = 2 */", "update"},
		{"REPLACE INTO t VALUES (0, 0)", "delete"},
		{"DELETE FROM t WHERE k = 0", "delete"},
		{"UPDATE t SET a = 1 WHERE k = 1", "update"},
	} {
		c := w.dial(nil)
		c.must(x.sql)
		if x.fired == "NULL" { // what was not judged yet keeps its connection until then
			eventually(t, x.sql+": the connection is free", func() bool { return w.pool().Free > 0 })
		} else if w.pool().Free > 0 {
			t.Errorf("%s: the connection is free", x.sql)
		}
		if got := c.one("SELECT @fired"); got != x.fired {
			t.Errorf("%s: the trigger has set %s, want %s", x.sql, got, x.fired)
		}
		_ = c.Conn.Close()
	}
}
