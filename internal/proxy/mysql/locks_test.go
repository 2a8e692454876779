package mysql_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/weirdb/weir/internal/lab"
	"github.com/weirdb/weir/internal/proxy/mysql"
)

// A session keeps its connection as long as it holds a lock, whatever a text that has not
// released it says.
func TestLocksThatOnlySeemReleased(t *testing.T) {
	t.Parallel()
	onFlavors(t, func(t *testing.T, server *lab.MySQL) {
		db := databaseOn(t, server, "CREATE TABLE t (a INT)", "INSERT INTO t VALUES (1)",
			"CREATE FUNCTION takes() RETURNS INT NOT DETERMINISTIC READS SQL DATA RETURN GET_LOCK(CONCAT(DATABASE(), '_lock'), 0)",
			"CREATE VIEW v AS SELECT GET_LOCK(CONCAT(DATABASE(), '_lock'), 0) AS got")
		lock := db + "_lock"
		w := startFor(t, server, db, nil)
		direct := dialAt(t, server.Addr(), db, nil)
		named := strings.NewReplacer("{lock}", lock)
		const take = "DO GET_LOCK('{lock}', 0)"
		for _, steps := range [][]string{
			{take, "SELECT RELEASE_ALL_LOCKS() FROM t WHERE 0"},
			{take, "SELECT IF(0, RELEASE_ALL_LOCKS(), 1)"},
			{take, "SELECT 0 AND RELEASE_ALL_LOCKS()"},
			{take, "DO RELEASE_LOCK('another') /* RELEASE_ALL_LOCKS() */"},
			{take, "SELECT 'RELEASE_ALL_LOCKS()', RELEASE_LOCK('another')"},
			{take, "SET sql_select_limit = 0", "SELECT RELEASE_ALL_LOCKS()"},
			{"SELECT GET_LOCK('{lock}2', 0), takes()", "DO RELEASE_LOCK('{lock}2')"},
			{"SELECT GET_LOCK('{lock}2', 0), got FROM v", "DO RELEASE_LOCK('{lock}2')"},
			{"PREPARE p FROM 'DO GET_LOCK(''{lock}'', 0)'", "EXECUTE p /* GET_LOCK('{lock}2', 0) */", "DEALLOCATE PREPARE p", "DO RELEASE_LOCK('{lock}2')"},
		} {
			c := w.dial(nil)
			for _, sql := range steps {
				if _, err := c.Query(ctxFor(t), named.Replace(sql)); err != nil {
					t.Fatalf("%s: %v", sql, err)
				}
			}
			if got := direct.one("SELECT IS_FREE_LOCK('" + lock + "')"); got != "0" {
				t.Fatalf("%q: the lock is free", steps)
			}
			if p := w.pool(); p.Pinned != 1 {
				t.Errorf("%q: the session does not keep the connection that holds its lock", steps)
			}
			for _, sql := range []string{"SET sql_select_limit = DEFAULT", "SELECT RELEASE_ALL_LOCKS()"} {
				if _, err := c.Query(ctxFor(t), sql); err != nil {
					t.Fatalf("%s: %v", sql, err)
				}
			}
			eventually(t, "the session has released its locks", func() bool { return w.pool().Pinned == 0 })
			_ = c.Close()
		}
	})
}

// LOCK TABLES ends with UNLOCK TABLES and not with another UNLOCK.
func TestTablesStayLocked(t *testing.T) {
	t.Parallel()
	onFlavors(t, func(t *testing.T, server *lab.MySQL) {
		w := startFor(t, server, databaseOn(t, server, "CREATE TABLE t (a INT)"), nil)
		unlock := "UNLOCK INSTANCE /* tables */"
		if isMariaDB(server) {
			unlock = "BACKUP UNLOCK /* tables */"
		}
		c := w.dial(nil)
		c.must("LOCK TABLES t WRITE")
		_, err := c.Query(ctxFor(t), unlock)
		if p := w.pool(); p.Pinned != 1 {
			t.Errorf("%s (%v): the session does not keep the connection that holds its lock", unlock, err)
		}
		c.must("UNLOCK TABLES")
		eventually(t, "the session has released its lock", func() bool { return w.pool().Pinned == 0 })
	})
}

// A lock that a view or a trigger takes before weir knows of it stays with its
// client, or ends soon.
func TestLocksThatAreTakenUnseen(t *testing.T) {
	t.Parallel()
	onFlavors(t, func(t *testing.T, server *lab.MySQL) {
		for kind, how := range map[string]struct{ create, run string }{
			"view":       {"CREATE VIEW v%d AS SELECT GET_LOCK('%s', 0) AS got", "SELECT * FROM v%d"},
			"other view": {"ALTER VIEW f%d AS SELECT GET_LOCK('%s', 0) AS got", "SELECT * FROM f%d"},
			"trigger":    {"CREATE TRIGGER g%[1]d BEFORE INSERT ON t%[1]d FOR EACH ROW SET NEW.a = GET_LOCK('%[2]s', 0)", "INSERT INTO t%d VALUES (2)"},
		} {
			t.Run(kind, func(t *testing.T) {
				t.Parallel()
				db := databaseOn(t, server)
				w := startFor(t, server, db, twoBackends)
				direct, other := dialAt(t, server.Addr(), db, nil), w.dial(nil)
				for i := 0; ; i++ {
					lock := fmt.Sprintf("%s_%d", db, i)
					direct.must(fmt.Sprintf("CREATE VIEW f%d AS SELECT 1 AS got", i))
					direct.must(fmt.Sprintf("CREATE TABLE t%d (a INT)", i))
					c := w.dial(nil)
					c.must(fmt.Sprintf("INSERT INTO t%d VALUES (1)", i))
					if got := c.one(fmt.Sprintf("SELECT * FROM f%d", i)); got != "1" {
						t.Fatal(got)
					}
					direct.must(fmt.Sprintf(how.create, i, lock))
					r := c.try(c.query(fmt.Sprintf(how.run, i)))
					if r.err != nil || r.lost != nil {
						t.Fatal(r.err, r.lost)
					}
					taken := strings.Contains(r.text, `"\x011"`) // it may be free again by now
					if kind == "trigger" {
						taken = direct.one(fmt.Sprintf("SELECT MIN(a) FROM t%d", i)) == "1"
					}
					if !taken {
						t.Fatalf("the lock was not taken: %s", r.text)
					}
					free := func() bool { return direct.one("SELECT IS_FREE_LOCK('"+lock+"')") == "1" }
					eventually(t, "the lock is kept, or free", func() bool {
						other.one("SELECT 1") // the catalogue is looked at while it is used
						return w.pool().Pinned > 0 || free()
					})
					pinned := w.pool().Pinned > 0
					_ = c.Close()
					eventually(t, "the client has left, and its lock with it", func() bool { return w.pool().Pinned == 0 && free() })
					if !pinned {
						return
					}
				}
			})
		}
	})
}

// TestLocksOfWhatWasPreparedUnjudged: a statement that was prepared in SQL while weir did not
// know what the procedures in it do may take a lock, and is no more seen when it is executed.
func TestLocksOfWhatWasPreparedUnjudged(t *testing.T) {
	t.Parallel()
	onFlavors(t, func(t *testing.T, server *lab.MySQL) {
		db := databaseOn(t, server, "CREATE PROCEDURE locks(l TEXT) DO GET_LOCK(l, 0)")
		w := startFor(t, server, db, func(c *mysql.Config) { c.PoolSize = 3 })
		c, others := w.dial(nil), w.dials(2)
		c.must("CREATE VIEW v AS SELECT 1") // after which the catalogue is read again
		c.must("PREPARE s FROM 'CALL locks(''" + db + "'')'")
		c.must("EXECUTE s")
		c.must("DEALLOCATE PREPARE s")
		for _, other := range others {
			if got := other.one("SELECT IS_USED_LOCK('" + db + "') <=> CONNECTION_ID()"); got != "0" {
				t.Error("another client has the lock")
			}
		}
		if got := others[0].one("SELECT IS_FREE_LOCK('" + db + "')"); got != "0" {
			t.Error("the lock is free")
		}
	})
}
