package mysql_test

import (
	"database/sql"
	"fmt"
	gosync "sync"
	"sync/atomic"
	"testing"

	driver "github.com/go-sql-driver/mysql"

	"github.com/weirdb/weir/internal/lab"
	"github.com/weirdb/weir/internal/lab/labtest"
	"github.com/weirdb/weir/internal/proxy/mysql"
	"github.com/weirdb/weir/internal/proxy/session"
	"github.com/weirdb/weir/internal/wire/mywire"
)

// counters is a table of ten rows, whose counters are incremented.
var counters = []string{
	"CREATE TABLE n (k INT PRIMARY KEY, n INT DEFAULT 0)",
	"INSERT INTO n (k) VALUES (0), (1), (2), (3), (4), (5), (6), (7), (8), (9)",
	"CREATE TABLE locked (k INT)",
}

// up returns a grouped write that increments one row.
func (c *wire) up(hint string, k int) []byte {
	return c.query(fmt.Sprintf("/* %s */ UPDATE n SET n = n + 1 WHERE k = %d", hint, k))
}

const oneUpdate = `1:OK affected=1 id=0 warnings=0 status=0x2 info="Rows matched: 1  Changed: 1  Warnings: 0"`

// warmCounters makes the proxy look up the tables.
func (w *weir) warmCounters() {
	w.tb.Helper()
	eventually(w.tb, "writes go through lanes", func() bool {
		c := w.dial(nil) // another test's table of the same name may have pinned the last one
		defer func() { _ = c.Close() }()
		before := w.pool().Grouped
		c.try(c.query("/* batch */ UPDATE n SET n = n WHERE k = 9")).mustBe(w.tb, "warm", `1:OK affected=0 id=0 warnings=0 status=0x2 info="Rows matched: 1  Changed: 0  Warnings: 0"`)
		c.try(c.query("/* batch */ DELETE FROM locked"))
		return w.pool().Grouped == before+2
	})
}

func TestLocksOfOthersHoldUpOnlyWhoNeedsThem(t *testing.T) {
	t.Parallel()
	perFlavor(t, func(t *testing.T, server *lab.MySQL) {
		db := databaseOn(t, server, counters...)
		w := startFor(t, server, db, oneGroupAtATime(nil))
		w.warmCounters()
		row, table := dialAt(t, server.Addr(), db, nil), dialAt(t, server.Addr(), db, nil)
		row.must("BEGIN")
		row.must("UPDATE n SET n = n + 100 WHERE k = 0")
		table.must("LOCK TABLES locked WRITE")

		patient := w.dials(3)
		waits := []chan reply{make(chan reply, 1), make(chan reply, 1), make(chan reply, 1)}
		for i, m := range [][]byte{patient[0].up("batch", 0), patient[1].up("batch", 0), patient[2].query("/* batch */ INSERT INTO locked VALUES (1)")} {
			go func() { waits[i] <- patient[i].try(m) }()
		}
		eventually(t, "three wait apart", func() bool { p := w.pool(); return p.Owned+p.Waiting == 3 && p.Laned == 0 })
		all := w.dials(6)
		for range 20 {
			messages := make([][]byte, len(all))
			for i, c := range all {
				messages[i] = c.up("batch", i+1)
			}
			for _, r := range together(all, messages) {
				r.mustBe(t, "beside those that wait", oneUpdate)
			}
		}
		// One of the waiting writes is killed, and only that one.
		if r := all[0].try(all[0].query(fmt.Sprint("KILL QUERY ", patient[1].Greeting.ConnectionID))); r.err != nil {
			t.Errorf("KILL: %s", r.text)
		}
		if r := <-waits[1]; r.code() != mywire.ErrQueryInterrupted {
			t.Errorf("the killed one: %s %v", r.text, r.lost)
		}
		select {
		case r := <-waits[0]:
			t.Errorf("it did not wait: %s %v", r.text, r.lost)
		case r := <-waits[2]:
			t.Errorf("it did not wait: %s %v", r.text, r.lost)
		default:
		}
		row.must("COMMIT")
		table.must("UNLOCK TABLES")
		(<-waits[0]).mustBe(t, "who waited for a row", oneUpdate)
		(<-waits[2]).mustBe(t, "who waited for a table", oneRow)
		for k, want := range []string{"101", "20", "20", "20", "20", "20", "20", "0"} {
			if got := row.one(fmt.Sprintf("SELECT n FROM n WHERE k = %d", k)); got != want {
				t.Errorf("row %d: %s, want %s", k, got, want)
			}
		}
	})
}

// A client with its own lock wait timeout gets its error after that time, and others are not
// affected.
func TestLockTimeoutOfAClientIsItsOwn(t *testing.T) {
	t.Parallel()
	db := database(t, counters...)
	w := start(t, db, oneGroupAtATime(nil))
	w.warmCounters()
	blocker := dialAt(t, server(t).Addr(), db, nil)
	blocker.must("BEGIN")
	blocker.must("UPDATE n SET n = 5 WHERE k = 0")
	hasty := w.dial(nil)
	hasty.must("SET innodb_lock_wait_timeout = 1")
	direct := dialAt(t, server(t).Addr(), db, nil)
	direct.must("SET innodb_lock_wait_timeout = 1")
	for range 2 {
		want := direct.try(direct.query("UPDATE n SET n = n + 1 WHERE k = 0"))
		hasty.try(hasty.up("batch", 0)).mustBe(t, "hasty", want.text)
		hasty.try(hasty.up("batch", 1)).mustBe(t, "hasty", oneUpdate)
	}
	if got := hasty.one("SELECT @@innodb_lock_wait_timeout"); got != "1" {
		t.Errorf("its own setting is %s", got)
	}
	if got := w.dial(nil).one("SELECT @@innodb_lock_wait_timeout"); got != "50" {
		t.Errorf("the setting of others is %s", got)
	}
}

// TestDeadlocksLoseNothingAndDoNothingTwice lets groups and transactions on direct connections
// lock the same rows in opposite orders, with several groups at once.
func TestDeadlocksLoseNothingAndDoNothingTwice(t *testing.T) {
	t.Parallel()
	perFlavor(t, func(t *testing.T, server *lab.MySQL) {
		db := databaseOn(t, server, counters...)
		w := startFor(t, server, db, nil)
		w.warmCounters()
		before := deadlocks(t, server)
		var done [10]atomic.Int64
		var wg gosync.WaitGroup
		var writing atomic.Int64
		const clients = 12
		writing.Add(clients)
		for i := range clients {
			c := w.dial(nil)
			hint := "batch"
			if i%2 == 0 {
				hint = "batch:1" // a lane that runs several groups at once
			}
			wg.Go(func() {
				defer writing.Add(-1)
				for j := range 30 {
					k := (i + j*(1+2*(i%2))) % 3
					r := c.try(c.up(hint, k))
					if r.text != oneUpdate {
						t.Errorf("a grouped write: %s %v", r.text, r.lost)
						return
					}
					done[k].Add(1)
				}
			})
		}
		for i := range 2 {
			c := dialAt(t, server.Addr(), db, nil)
			wg.Go(func() {
				for j := 0; writing.Load() > 0; j++ {
					ok := c.try(c.query("BEGIN")).err == nil
					a, b := (i+j)%3, (i+j+1+j%2)%3
					for _, k := range []int{a, b} {
						ok = ok && c.try(c.query(fmt.Sprintf("UPDATE n SET n = n + 1 WHERE k = %d", k))).err == nil
					}
					end := "ROLLBACK"
					if ok {
						end = "COMMIT"
					}
					if c.try(c.query(end)).err == nil && ok {
						done[a].Add(1)
						done[b].Add(1)
					}
				}
			})
		}
		wg.Wait()
		root := dialAt(t, server.Addr(), db, nil)
		for k := range 3 {
			if got, want := root.one(fmt.Sprintf("SELECT n FROM n WHERE k = %d", k)), fmt.Sprint(done[k].Load()); got != want {
				t.Errorf("row %d was counted to %s, want %s", k, got, want)
			}
		}
		var again uint64
		for _, l := range w.snapshot().Lanes {
			again += l.Retried
		}
		if again == 0 {
			t.Error("no grouped write met a lock of another")
		}
		t.Logf("%d deadlocks, %d writes ran again", deadlocks(t, server)-before, again)
	})
}

// deadlocks returns how many the server has counted; MySQL does not count them.
func deadlocks(t *testing.T, server *lab.MySQL) (n int) {
	if isMariaDB(server) {
		rows, err := dialAt(t, server.Addr(), "", nil).Query(ctxFor(t), "SHOW GLOBAL STATUS LIKE 'Innodb_deadlocks'")
		if err != nil {
			t.Fatal(err)
		}
		if _, err := fmt.Sscan(rows[0][1].String, &n); err != nil {
			t.Fatal(err)
		}
	}
	return n
}

// TestDeadlockInAGroup makes a deadlock for certain: the group has locked a row and needs
// another, whose owner needs the first.
func TestDeadlockInAGroup(t *testing.T) {
	t.Parallel()
	perFlavor(t, func(t *testing.T, server *lab.MySQL) {
		db := databaseOn(t, server, counters...)
		w := startFor(t, server, db, oneGroupAtATime(nil))
		w.warmCounters()
		other := dialAt(t, server.Addr(), db, nil)
		all := w.dials(8)
		rounds := 0
		w.mustGather(txLane, func(int) {
			rounds++
			other.must("BEGIN")
			// Its transaction is the heavier one, so that it is not the victim.
			other.must("UPDATE n SET n = n + 1000 WHERE k > 3")
			messages := make([][]byte, len(all))
			for i, c := range all {
				messages[i] = c.up("batch:50", (i+2)%5) // k = 4 among others
			}
			answers := make(chan []reply, 1)
			go func() { answers <- together(all, messages) }()
			eventually(t, "one waits for the other's row", func() bool { return w.pool().Owned+w.pool().Laned > 0 || len(answers) > 0 })
			ok := other.try(other.query("UPDATE n SET n = n + 1000 WHERE k < 4")).err == nil
			if ok {
				other.must("COMMIT")
			} else {
				other.must("ROLLBACK")
				rounds--
			}
			for _, r := range <-answers {
				r.mustBe(t, "a member", oneUpdate)
			}
		})
		total := other.one("SELECT SUM(n % 1000) FROM n")
		var calls int
		if _, err := fmt.Sscan(total, &calls); err != nil || calls%len(all) != 0 {
			t.Errorf("%s updates by members, want a multiple of %d", total, len(all))
		}
	})
}

// TestTimeoutThatEndsTheTransaction uses a server that rolls back the whole transaction when a
// statement cannot get a lock (innodb_rollback_on_timeout): the group's earlier members must run
// again, and the later ones ran outside the transaction.
func TestTimeoutThatEndsTheTransaction(t *testing.T) {
	t.Parallel()
	server(t) // skips without one
	cfg := serverConfig()
	cfg.Settings = map[string]string{"innodb_rollback_on_timeout": "1"}
	server := labtest.MariaDB(t, cfg)
	db := databaseOn(t, server, counters...)
	w := startFor(t, server, db, oneGroupAtATime(nil))
	w.warmCounters()
	other := dialAt(t, server.Addr(), db, nil)
	all := w.dials(9)
	rounds := 0
	for range 5 {
		w.mustGather(txLane, func(int) {
			rounds++
			other.must("BEGIN")
			other.must("UPDATE n SET n = n + 1 WHERE k = 4")
			messages := make([][]byte, len(all))
			for i, c := range all {
				messages[i] = c.up("batch:20", i)
			}
			answers := make(chan []reply, 1)
			go func() { answers <- together(all, messages) }()
			eventually(t, "one waits", func() bool { return w.pool().Owned == 1 && w.pool().Laned == 0 })
			other.must("COMMIT")
			for _, r := range <-answers {
				r.mustBe(t, "a member", oneUpdate)
			}
		})
	}
	for k := range all {
		want := rounds
		if k == 4 {
			want *= 2
		}
		if got := other.one(fmt.Sprintf("SELECT n FROM n WHERE k = %d", k)); got != fmt.Sprint(want) {
			t.Errorf("row %d was counted to %s, want %d", k, got, want)
		}
	}
}

// TestContextsNeverShareAGroup has clients of other users, databases and settings
// write at the same time: each row must be written in its own context.
func TestContextsNeverShareAGroup(t *testing.T) {
	t.Parallel()
	table := "CREATE TABLE c (u VARCHAR(99), d VARCHAR(99), z VARCHAR(99), m VARCHAR(999), b BIGINT, k INT, t TIMESTAMP)"
	one, two := database(t, table), database(t, table)
	sqlOn(t, server(t), "GRANT ALL ON "+one+".* TO "+bob+"@'%'", "GRANT ALL ON "+two+".* TO "+bob+"@'%'")
	w := start(t, one, oneGroupAtATime(nil))
	// A text that reads its context is not grouped, so each row shows the context by its effect
	// on constants.
	type context struct {
		c              *wire
		db, zone, mode string
		user           string
	}
	var all []context
	for i := range 48 {
		i %= 24                                             // each context twice
		c := context{db: one, zone: "+05:30", user: "root"} // the server's own
		login := w.within(t)
		if i%2 == 1 {
			c.db = two
		}
		login.db = c.db
		change := func(cfg *mywire.ConnectConfig) {
			if i%3 == 2 {
				c.user = bob
				cfg.User, cfg.Password = bob, bobPassword
			}
		}
		c.c = login.dial(change)
		if i%4 >= 2 {
			c.zone = fmt.Sprintf("+%02d:00", 1+i/4)
			c.c.must("SET time_zone = '" + c.zone + "'")
		}
		if i%8 >= 4 {
			c.mode = "ANSI_QUOTES,STRICT_TRANS_TABLES,NO_BACKSLASH_ESCAPES"
			c.c.must("SET sql_mode = '" + c.mode + "'")
		}
		if i%12 >= 10 { // changes to the other one
			c.db = map[string]string{one: two, two: one}[c.db]
			c.c.must("USE " + c.db)
		}
		all = append(all, c)
	}
	k := 0
	w.mustGather(rowsLane, func(int) {
		var wires []*wire
		var messages [][]byte
		for i, c := range all {
			k++
			wires = append(wires, c.c)
			messages = append(messages, c.c.query(fmt.Sprintf(`/* batch */ INSERT INTO c (u, d, z, m, b, k, t) VALUES ('%s', '%s', '%s', '\\', 0, %d, '2020-01-01 12:00:00')`, c.user, c.db, c.zone, 1000*k+i%24)))
		}
		for _, r := range together(wires, messages) {
			if r.ok.AffectedRows != 1 {
				t.Errorf("a member: %s %v", r.text, r.lost)
			}
		}
	})
	for _, db := range []string{one, two} {
		root := dialAt(t, server(t).Addr(), db, nil)
		if got := root.one("SELECT COUNT(*) FROM c WHERE d <> DATABASE()"); got != "0" {
			t.Errorf("%s rows in the wrong database", got)
		}
		if got := root.one("SELECT COUNT(*) FROM c WHERE UNIX_TIMESTAMP(t) <> 1577880000 - TIME_TO_SEC(SUBSTR(z, 2))"); got != "0" {
			t.Errorf("%s rows of another time zone", got)
		}
		if got := root.one(`SELECT COUNT(*) FROM c WHERE LENGTH(m) <> IF(k % 1000 % 8 >= 4, 2, 1)`); got != "0" {
			t.Errorf("%s rows of another SQL mode", got)
		}
	}
}

// TestRightsAreTheMembersOwn lets a user write to a table to which only another user may write.
func TestRightsAreTheMembersOwn(t *testing.T) {
	t.Parallel()
	db := database(t, ledgerTable)
	sqlOn(t, server(t), "GRANT SELECT ON "+db+".* TO "+eve+"@'%'")
	w := start(t, db, oneGroupAtATime(nil))
	asEve := func(cfg *mywire.ConnectConfig) { cfg.User, cfg.Password = eve, evePassword }
	all := append(w.dials(6), w.dial(asEve), w.dial(asEve), w.dial(asEve))
	w.mustGather(rowsLane, func(k int) {
		messages := make([][]byte, len(all))
		for i, c := range all {
			messages[i] = c.query(fmt.Sprintf("/* batch */ INSERT INTO ledger VALUES (%d)", i))
		}
		for i, r := range together(all, messages) {
			if i < 6 {
				r.mustBe(t, "root", oneRow)
			} else if r.code() != 1142 {
				t.Errorf("eve: %s %v", r.text, r.lost)
			}
		}
	})
	if got := all[0].one("SELECT COUNT(*) FROM ledger WHERE k >= 6"); got != "0" {
		t.Errorf("%s rows written by who may not", got)
	}
}

// TestModesAndSwitches checks which lanes are used under which flags.
func TestModesAndSwitches(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name     string
		change   func(c *mysql.Config, db string)
		sql      string
		rows, tx bool
	}{
		{"auto", func(*mysql.Config, string) {}, "/* batch */ INSERT INTO ledger VALUES (1)", true, false},
		{"auto, fixed window", func(*mysql.Config, string) {}, "/* batch:5 */ INSERT INTO ledger VALUES (1)", true, false},
		{"auto, another write", func(*mysql.Config, string) {}, "/* batch */ DELETE FROM ledger WHERE k = 2", false, true},
		{"auto, another write, fixed window", func(*mysql.Config, string) {}, "/* batch:5 */ DELETE FROM ledger WHERE k = 2", false, true},
		{"auto, no hint", func(*mysql.Config, string) {}, "INSERT INTO ledger VALUES (1)", false, false},
		{"auto, by rule", func(c *mysql.Config, db string) { c.Batch = []session.BatchRule{{Database: db, Batch: true}} }, "INSERT INTO ledger VALUES (1)", true, false},
		{"auto, by rule, but off", func(c *mysql.Config, db string) { c.Batch = []session.BatchRule{{Database: db, Batch: true}} }, "/* batch:off */ INSERT INTO ledger VALUES (1)", false, false},
		{"auto, by another's rule", func(c *mysql.Config, _ string) { c.Batch = []session.BatchRule{{User: bob, Batch: true}} }, "INSERT INTO ledger VALUES (1)", false, false},
		{"no rows", func(c *mysql.Config, _ string) { c.NoRowsLane = true }, "/* batch */ INSERT INTO ledger VALUES (1)", false, true},
		{"no transactions", func(c *mysql.Config, _ string) { c.NoSoloLane = true }, "/* batch */ DELETE FROM ledger WHERE k = 2", false, false},
		{"no lanes", func(c *mysql.Config, _ string) { c.NoRowsLane, c.NoSoloLane = true, true }, "/* batch */ INSERT INTO ledger VALUES (1)", false, false},
		{"transaction", func(c *mysql.Config, _ string) { c.Mode = session.ModeTransaction }, "/* batch */ INSERT INTO ledger VALUES (1)", true, false},
		{"statement", func(c *mysql.Config, _ string) { c.Mode = session.ModeStatement }, "/* batch */ INSERT INTO ledger VALUES (1)", true, false},
		{"session", func(c *mysql.Config, _ string) { c.Mode = session.ModeSession }, "/* batch */ INSERT INTO ledger VALUES (1)", false, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			db := database(t, ledgerTable) // its own, so that no rows of others are locked
			w := start(t, db, oneGroupAtATime(func(cfg *mysql.Config) {
				cfg.PoolSize = 16
				c.change(cfg, db)
			}))
			all := w.dials(8)
			burst := func(int) {
				messages := make([][]byte, len(all))
				for i, c2 := range all {
					messages[i] = c2.query(c.sql)
				}
				for _, r := range together(all, messages) {
					if r.err != nil || r.lost != nil {
						t.Errorf("%s %v", r.text, r.lost)
					}
				}
			}
			switch {
			case c.rows:
				w.mustGather(rowsLane, burst)
			case c.tx:
				w.mustGather(txLane, burst)
			default:
				for i := range 15 {
					burst(i)
				}
			}
			if n := w.extras(rowsLane); !c.rows && n > 0 {
				t.Errorf("%d rows were written with others", n)
			}
			if n := w.extras(txLane); !c.tx && n > 0 {
				t.Errorf("%d statements ran with others", n)
			}
		})
	}
}

// TestClientsGoneWhileTheyWait lets members disconnect before their group is sent, or while it
// is in flight.
func TestClientsGoneWhileTheyWait(t *testing.T) {
	t.Parallel()
	for _, lane := range writeLanes {
		t.Run(lane.kind, func(t *testing.T) {
			t.Parallel()
			db := database(t, ledgerTable)
			w := start(t, db, oneGroupAtATime(lane.change))
			stay := w.dials(6)
			l := newLedger()
			for range 15 {
				var wg gosync.WaitGroup
				for _, c := range w.dials(6) {
					wg.Go(func() {
						k := l.next.Add(1)
						l.mu.Lock()
						l.unknown[k] = true
						l.mu.Unlock()
						_, err := c.Conn.Write(c.query(fmt.Sprintf("/* batch:3 */ INSERT INTO ledger VALUES (%d)", k)))
						if err != nil {
							t.Errorf("write: %v", err)
						}
						_ = c.Close()
					})
				}
				for _, c := range stay {
					wg.Go(func() {
						r := l.write(func(k int64) []byte { return c.query(fmt.Sprintf("/* batch:3 */ INSERT INTO ledger VALUES (%d)", k)) }, c)
						if r.text != oneRow {
							t.Errorf("who stayed: %s %v", r.text, r.lost)
						}
					})
				}
				wg.Wait()
			}
			eventually(t, "nothing is left of them", func() bool { p := w.pool(); return p.Clients == 6 && p.Laned == 0 && p.Owned == 0 })
			l.check(t, server(t), db)
		})
	}
}

// TestKillOfMembersThatWait kills waiting members. The kill either prevents the write or comes
// too late, and the victim's answer says which.
func TestKillOfMembersThatWait(t *testing.T) {
	t.Parallel()
	for _, lane := range writeLanes {
		t.Run(lane.kind, func(t *testing.T) {
			t.Parallel()
			db := database(t, ledgerTable)
			w := start(t, db, oneGroupAtATime(lane.change))
			all, killer := w.dials(6), w.dial(nil)
			l := newLedger()
			for round := 0; len(l.refused) == 0; round++ {
				if round == 500 {
					t.Fatal("no KILL met a write that waited")
				}
				var wg gosync.WaitGroup
				var answered atomic.Int64
				for i, c := range all {
					wg.Go(func() {
						r := l.write(func(k int64) []byte { return c.query(fmt.Sprintf("/* batch:20 */ INSERT INTO ledger VALUES (%d)", k)) }, c)
						answered.Add(1)
						if r.text != oneRow && (i != 3 || r.code() != mywire.ErrQueryInterrupted) {
							t.Errorf("member %d: %s %v", i, r.text, r.lost)
						}
					})
				}
				victim := all[3].Greeting.ConnectionID
				eventually(t, "the victim waits, or has waited", func() bool {
					return w.waitingInLanes() > 3 || answered.Load() > 3
				})
				killer.must(fmt.Sprint("KILL QUERY ", victim))
				wg.Wait()
			}
			l.check(t, server(t), db)
		})
	}
}

// waitingInLanes counts the writes that wait for their group.
func (w *weir) waitingInLanes() (n int) {
	for _, l := range w.snapshot().Lanes {
		n += l.Waiting
	}
	return n
}

// TestTransactionsStayOutOfGroups runs hinted writes in transactions, which commit or roll back
// as their clients ask, beside grouped writes.
func TestTransactionsStayOutOfGroups(t *testing.T) {
	t.Parallel()
	db := database(t, ledgerTable)
	w := start(t, db, oneGroupAtATime(func(c *mysql.Config) { c.PoolSize = 16 }))
	all := w.dials(8)
	l := newLedger()
	insert := func(c *wire) func(k int64) []byte {
		return func(k int64) []byte { return c.query(fmt.Sprintf("/* batch */ INSERT INTO ledger VALUES (%d)", k)) }
	}
	round := func(int) {
		var wg gosync.WaitGroup
		for i, c := range all {
			wg.Go(func() {
				switch i {
				case 0:
					c.try(c.query("BEGIN"))
				case 1:
					c.try(c.query("SET autocommit = 0"))
				default:
					if r := l.write(insert(c), c); r.text != oneRow {
						t.Errorf("%s %v", r.text, r.lost)
					}
					return
				}
				k := l.next.Add(1)
				if r := c.try(insert(c)(k)); r.ok.AffectedRows != 1 || r.ok.Status&mywire.StatusInTrans == 0 {
					t.Errorf("in a transaction: %s %v", r.text, r.lost)
				}
				c.try(c.query("ROLLBACK")) // k was not acknowledged: it must not be there
				c.try(c.query("SET autocommit = 1"))
			})
		}
		wg.Wait()
	}
	w.mustGather(rowsLane, round)
	for i := range 10 {
		round(i)
	}
	// DDL commits what came before it, implicitly.
	all[0].must("BEGIN")
	l.write(insert(all[0]), all[0])
	all[0].must("CREATE TABLE implicit (k INT)")
	if r := all[0].try(all[0].query("ROLLBACK")); r.err != nil {
		t.Error(r.text)
	}
	l.check(t, server(t), db)
}

// TestOwnWritesAreSeen lets each client read what it has just written in a group.
func TestOwnWritesAreSeen(t *testing.T) {
	t.Parallel()
	for _, lane := range writeLanes {
		t.Run(lane.kind, func(t *testing.T) {
			t.Parallel()
			db := database(t, "CREATE TABLE g (k BIGINT PRIMARY KEY, who INT)")
			w := start(t, db, oneGroupAtATime(lane.change))
			conns := make([]*sql.Conn, 12)
			for i := range conns {
				conns[i] = w.connect(func(cfg *driver.Config) { cfg.InterpolateParams = i%2 == 0 })
			}
			w.mustGather(lane.kind, func(round int) {
				var wg gosync.WaitGroup
				for i, c := range conns {
					wg.Go(func() {
						for j := range 10 {
							writeAndRead(t, c, 100000*i+10*round+j, i)
						}
					})
				}
				wg.Wait()
			})
		})
	}
}

func writeAndRead(t *testing.T, c *sql.Conn, k, who int) {
	ctx := ctxFor(t)
	res, err := c.ExecContext(ctx, "/* batch */ INSERT INTO g VALUES (?, ?)", k, who)
	if err != nil {
		t.Error(err)
		return
	}
	if n, err := res.RowsAffected(); n != 1 {
		t.Errorf("%d rows affected, %v", n, err)
	}
	var got int
	if err := c.QueryRowContext(ctx, "SELECT who FROM g WHERE k = ?", k).Scan(&got); err != nil || got != who {
		t.Errorf("row %d: %d, %v", k, got, err)
	}
}
