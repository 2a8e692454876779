package mysql_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/weirdb/weir/internal/lab"
	"github.com/weirdb/weir/internal/lab/labtest"
	"github.com/weirdb/weir/internal/proxy/mysql"
	"github.com/weirdb/weir/internal/wire/mywire"
)

// TestLastInsertIDAfterGroupedInserts asks for it after inserts that generate an
// id, and after some that do not: the answer is right or refused, never wrong.
func TestLastInsertIDAfterGroupedInserts(t *testing.T) {
	t.Parallel()
	perFlavor(t, func(t *testing.T, server *lab.MySQL) {
		for _, lane := range writeLanes {
			t.Run(lane.kind, func(t *testing.T) {
				t.Parallel()
				lastInsertIDs(t, server, lane.kind, oneGroupAtATime(lane.change))
			})
		}
	})
}

func lastInsertIDs(t *testing.T, server *lab.MySQL, kind string, change func(*mysql.Config)) {
	w := startFor(t, server, databaseOn(t, server, autoG, "CREATE UNIQUE INDEX u ON g (k)"), func(c *mysql.Config) {
		change(c)
		c.PoolSize = 4
	})
	all := w.dials(12)
	last := make([]string, len(all)) // what LAST_INSERT_ID() must be
	k := 0
	asked, told := 0, 0
	w.mustGather(kind, func(round int) {
		// The inserts of one round are of one kind.
		form := []string{
			"INSERT INTO g (k) VALUES (%[1]d)", "INSERT INTO g (id, k) VALUES (%[1]d + 1000000, %[1]d)",
			"INSERT INTO g (k) VALUES (%[1]d)", "INSERT IGNORE INTO g (k) VALUES (-1)",
			"INSERT INTO g (k) VALUES (%[1]d)", "INSERT INTO g (k) VALUES (-1) ON DUPLICATE KEY UPDATE v = v + 1",
			"INSERT INTO g (k) VALUES (%[1]d)", "UPDATE g SET v = v + 1 WHERE k = %[1]d - 1",
			"INSERT INTO g (k) VALUES (%[1]d)", "INSERT INTO g (id, k) VALUES (1, %[1]d)",
		}
		for i, f := range form {
			messages := make([][]byte, len(all))
			for j, c := range all {
				k++
				sql := f
				if strings.Contains(f, "%") {
					sql = fmt.Sprintf(f, k)
				}
				messages[j] = c.query("/* batch */ " + sql)
			}
			for j, r := range together(all, messages) {
				if i%2 == 0 {
					if r.err != nil || r.lost != nil || r.ok.LastInsertID == 0 {
						t.Fatalf("%s: %s %v", f, r.text, r.lost)
					}
					last[j] = fmt.Sprint(r.ok.LastInsertID)
				}
			}
			if round == 0 && i == 0 {
				all[0].must("INSERT INTO g (k) VALUES (-1)")
				last[0] = all[0].one("SELECT LAST_INSERT_ID()")
			}
			for j, c := range all {
				if (j+i+round)%3 > 0 {
					continue // so that others come in between
				}
				asked++
				rows, err := c.Query(ctxFor(t), "SELECT LAST_INSERT_ID()")
				switch {
				case code(err) == mywire.ErrNotSupportedYet:
				case err != nil:
					t.Errorf("after %s: %v", f, err)
				case i == 3 || i == 5:
					// Servers differ in what ignored and updated rows leave.
					last[j] = rows[0][0].String
				case rows[0][0].String != last[j]:
					t.Errorf("after %s: LAST_INSERT_ID() is %s, want %s", f, rows[0][0].String, last[j])
				default:
					told++
				}
			}
		}
	})
	if told*3 < asked {
		t.Errorf("asked %d times for the last id, %d answers were right", asked, told)
	}
}

// TestLastInsertIDOfAMemberThatRanAgain has one member wait for a row of another
// transaction, which makes it run again alone.
func TestLastInsertIDOfAMemberThatRanAgain(t *testing.T) {
	t.Parallel()
	w := start(t, database(t, autoG, "CREATE UNIQUE INDEX u ON g (k)"), oneGroupAtATime(nil))
	c, other := w.dial(nil), w.dial(nil)
	insert := func(c *wire, k int) reply {
		return c.try(c.query(fmt.Sprintf("/* batch */ INSERT INTO g (k) VALUES (%d)", k)))
	}
	k := 100
	eventually(t, "there is a lane", func() bool {
		k++
		insert(c, k)
		insert(other, -k)
		return len(w.snapshot().Lanes) > 0
	})
	blocker := dialAt(t, server(t).Addr(), w.db, nil)
	for i := range 3 {
		before := insert(other, 1000+i)
		blocker.must("BEGIN")
		blocker.must(fmt.Sprintf("INSERT INTO g (k) VALUES (%d)", i))
		answered := make(chan reply, 1)
		go func() { answered <- insert(c, i) }()
		eventually(t, "it runs alone", func() bool { return w.pool().Owned == 1 && w.pool().Laned == 0 })
		blocker.must("ROLLBACK")
		r := <-answered
		if r.err != nil || r.ok.LastInsertID == 0 {
			t.Fatalf("%s %v", r.text, r.lost)
		}
		if got, want := c.one("SELECT LAST_INSERT_ID()"), fmt.Sprint(r.ok.LastInsertID); got != want {
			t.Errorf("LAST_INSERT_ID() is %s, want %s", got, want)
		}
		if got, want := other.one("SELECT LAST_INSERT_ID()"), fmt.Sprint(before.ok.LastInsertID); got != want {
			t.Errorf("LAST_INSERT_ID() of another is %s, want %s", got, want)
		}
	}
}

// TestIDsFollowTheServersStep changes the step for new connections.
func TestIDsFollowTheServersStep(t *testing.T) {
	t.Parallel()
	server(t) // skips without one
	cfg := serverConfig()
	cfg.Settings = map[string]string{"auto_increment_increment": "5", "auto_increment_offset": "2"}
	server := labtest.MariaDB(t, cfg)
	w := startFor(t, server, databaseOn(t, server, autoG), oneGroupAtATime(nil))
	all := w.dials(10)
	root := dialAt(t, server.Addr(), w.db, nil)
	k := int64(0)
	for _, step := range []string{"", "SET GLOBAL auto_increment_increment = 3", "SET GLOBAL auto_increment_increment = 1, GLOBAL auto_increment_offset = 1"} {
		if step != "" {
			root.must(step)
			for _, id := range w.backends(root) {
				// One that weir asks the server with may have ended by itself.
				if _, err := root.Exec(ctxFor(t), "KILL "+id); err != nil && code(err) != mywire.ErrNoSuchThread {
					t.Fatal(err)
				}
			}
			eventually(t, "weir's connections are new", func() bool { return w.pool().Backends == 0 })
		}
		w.mustGather(rowsLane, func(int) {
			messages := make([][]byte, len(all))
			first := k
			for i, c := range all {
				messages[i] = c.query(fmt.Sprintf("/* batch */ INSERT INTO g (k) VALUES (%d)", k))
				k++
			}
			for i, r := range together(all, messages) {
				(&groupedCase{}).checkID(t, root, w.db, first+int64(i), &r)
			}
		})
	}
}

// backends are the server's numbers of the connections in w's database, except
// root's own.
func (w *weir) backends(root *wire) (ids []string) {
	w.tb.Helper()
	rows, err := root.Query(ctxFor(w.tb), "SELECT id FROM information_schema.processlist WHERE db = '"+w.db+"' AND id <> CONNECTION_ID()")
	if err != nil {
		w.tb.Fatal(err)
	}
	for _, r := range rows {
		ids = append(ids, r[0].String)
	}
	return ids
}

// TestMalformedExecutionsHarmOnlyTheirSender has a client lie about the length of
// its values, and about their types, beside others that do not.
func TestMalformedExecutionsHarmOnlyTheirSender(t *testing.T) {
	t.Parallel()
	for _, lane := range writeLanes {
		t.Run(lane.kind, func(t *testing.T) {
			t.Parallel()
			db := database(t, "CREATE TABLE g (k BIGINT, v VARCHAR(20))", "INSERT INTO g VALUES (0, '')")
			w := start(t, db, oneGroupAtATime(lane.change))
			all, liars := w.dials(8), w.dials(4)
			const sql = "/* batch */ INSERT INTO g VALUES (?, ?)"
			var statements, lies []prepared
			for _, c := range all {
				statements = append(statements, c.prepare(sql))
			}
			for _, c := range liars {
				lies = append(lies, c.prepare(sql))
			}
			one := []byte{1, 0, 0, 0, 0, 0, 0, 0}
			long := []byte{8, 0, 253, 0}
			good := append(one[:8:8], "\x04good"...)
			sent := 0
			attempt := func(int) {
				messages := make([][]byte, 0, len(all)+len(liars))
				wires := make([]*wire, 0, len(all)+len(liars))
				for i, p := range lies {
					values := append(one[:8:8], "\x10mal"...) // whose length takes in what comes behind
					if i%2 == 1 {
						values = append(append(one[:8:8], "\x03mal"...), "\x02\x00\x00\x00\x00\x00\x00\x00\x04evil"...)
					}
					m := mywire.AppendExecute(nil, p.c.Caps, p.id, 0, make([]byte, 1), long, values)
					wires, messages = append(wires, p.c), append(messages, m)
				}
				for i, p := range statements {
					m := mywire.AppendExecute(nil, p.c.Caps, p.id, 0, make([]byte, 1), long, good)
					wires, messages = append(wires, all[i]), append(messages, m)
					sent++
				}
				for i, r := range together(wires, messages) {
					if i >= len(lies) {
						r.mustBe(t, "beside a liar", oneRow)
					}
				}
			}
			for range 10 {
				w.mustGather(lane.kind, attempt)
			}
			if got, want := all[0].one("SELECT COUNT(*) FROM g WHERE k = 1 AND v = 'good'"), fmt.Sprint(sent); got != want {
				t.Errorf("%s rows, want %s", got, want)
			}
			if got := all[0].one("SELECT COUNT(*) FROM g WHERE v = 'evil'"); got != "0" {
				t.Errorf("%s rows that nobody was allowed to write", got)
			}
		})
	}
}

// TestDiagnosticsOfMembers asks what a grouped write left: the answer is that of a
// direct connection, or it is refused.
func TestDiagnosticsOfMembers(t *testing.T) {
	t.Parallel()
	perFlavor(t, func(t *testing.T, server *lab.MySQL) {
		for _, lane := range writeLanes {
			t.Run(lane.kind, func(t *testing.T) {
				t.Parallel()
				questions := []string{
					"SHOW WARNINGS", "SHOW ERRORS", "SELECT ROW_COUNT()", "SELECT @@warning_count, @@error_count", "SHOW COUNT(*) WARNINGS",
				}
				var setup []string
				for i := range questions { // a table for each, of which weir has to learn
					setup = append(setup, fmt.Sprintf("CREATE TABLE g%d (k INT PRIMARY KEY, n DECIMAL(6,1))", i), fmt.Sprintf("INSERT INTO g%d VALUES (-1, 1)", i))
				}
				w := startFor(t, server, databaseOn(t, server, setup...), oneGroupAtATime(func(c *mysql.Config) {
					lane.change(c)
					c.PoolSize = 16 // who asks keeps a connection
				}))
				one := dialAt(t, server.Addr(), databaseOn(t, server, setup...), nil)
				k, right, asked := 0, 0, 0
				for number, ask := range questions {
					for range 3 {
						fresh := w.dials(8)
						var writes, asks [][]byte
						var want []string
						for i, c := range fresh {
							k++
							key, n := k, "1.5"
							switch i % 4 {
							case 1:
								n = "1.55"
							case 3:
								key = -1
							}
							sql := fmt.Sprintf("/* batch */ INSERT INTO g%d VALUES (%d, %s)", number, key, n)
							writes, asks = append(writes, c.query(sql)), append(asks, c.query(ask))
							one.try(one.query(sql))
							want = append(want, one.try(one.query(ask)).text)
						}
						together(fresh, writes)
						for i, r := range together(fresh, asks) {
							asked++
							if r.code() == mywire.ErrNotSupportedYet {
								continue
							}
							right++
							r.mustBe(t, ask, want[i])
						}
						for _, c := range fresh {
							_ = c.Close()
						}
					}
				}
				if w.pool().Grouped == 0 {
					t.Error("no write was grouped")
				}
				t.Logf("%d of %d questions were answered", right, asked)
			})
		}
	})
}
