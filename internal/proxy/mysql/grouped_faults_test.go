package mysql_test

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	gosync "sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/weirdb/weir/internal/lab"
	"github.com/weirdb/weir/internal/lab/labtest"
	"github.com/weirdb/weir/internal/proxy/mysql"
	"github.com/weirdb/weir/internal/testkit"
	"github.com/weirdb/weir/internal/wire/mywire"
)

// A ledger remembers what clients were told of the rows that they wrote into
// table ledger (k BIGINT), which has no key: a row written twice is there twice.
type ledger struct {
	next atomic.Int64

	mu      gosync.Mutex
	acked   map[int64]bool // guarded by mu
	unknown map[int64]bool // guarded by mu: their clients were told that the outcome is not known
	refused map[int64]bool // guarded by mu: their clients were told that nothing was written
}

func newLedger() *ledger {
	return &ledger{acked: make(map[int64]bool), unknown: make(map[int64]bool), refused: make(map[int64]bool)}
}

// write inserts a new row, and takes note of the answer.
func (l *ledger) write(message func(k int64) []byte, c *wire) reply {
	k := l.next.Add(1)
	r := c.try(message(k))
	l.mu.Lock()
	defer l.mu.Unlock()
	switch {
	case r.lost != nil || r.code() == mywire.ErrNetRead:
		l.unknown[k] = true
	case r.err != nil:
		l.refused[k] = true
	default:
		l.acked[k] = true
	}
	return r
}

// check compares with what is there.
func (l *ledger) check(t *testing.T, server *lab.MySQL, db string) {
	t.Helper()
	rows, err := dialAt(t, server.Addr(), db, nil).Query(ctxFor(t), "SELECT k, COUNT(*) FROM ledger GROUP BY k")
	if err != nil {
		t.Fatal(err)
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	there := make(map[int64]bool)
	for _, r := range rows {
		k, err := strconv.ParseInt(r[0].String, 10, 64)
		if err != nil {
			t.Fatal(err)
		}
		there[k] = true
		if r[1].String != "1" {
			t.Errorf("row %d is there %s times", k, r[1].String)
		}
		if !l.acked[k] && !l.unknown[k] {
			t.Errorf("row %d is there, but its client was told otherwise", k)
		}
	}
	for _, k := range slices.Sorted(maps.Keys(l.acked)) {
		if !there[k] {
			t.Errorf("acknowledged row %d is lost", k)
		}
	}
	t.Logf("%d rows acknowledged, %d there, %d of unknown outcome, %d refused", len(l.acked), len(there), len(l.unknown), len(l.refused))
}

const ledgerTable = "CREATE TABLE ledger (k BIGINT)"

// mixed is the k-th of a mix of texts that write one row.
func (c *wire) mixed(k int64) []byte {
	return c.query(fmt.Sprintf([]string{
		"/* batch */ INSERT INTO ledger VALUES (%d)",
		"/* batch */ INSERT INTO ledger SELECT %d",
		"INSERT /* not a hint: batch */ INTO ledger VALUES (%d)",
		"/* batch */ INSERT INTO ledger SET k = %d",
		"/* batch:1 */ INSERT INTO ledger (k) VALUES (%d)",
	}[k%5], k))
}

// TestServerKilledMidGroupLosesNoAcknowledgedRow crashes the server under load. Afterwards every
// acknowledged row must exist, none may exist twice, and none that was not written. An
// unacknowledged row may exist only if its client was told that the outcome is unknown.
func TestServerKilledMidGroupLosesNoAcknowledgedRow(t *testing.T) {
	t.Parallel()
	server(t) // skips without one
	for _, lane := range writeLanes {
		t.Run(lane.kind, func(t *testing.T) {
			t.Parallel()
			server := ownServer(t)
			db := databaseOn(t, server, ledgerTable)
			w := startFor(t, server, db, func(c *mysql.Config) {
				c.ConnectPatience = time.Second // for those that were not sent
				oneGroupAtATime(lane.change)(c)
			})
			l := newLedger()
			for range testkit.Rounds(2, 12) {
				const clients, rows = 24, 400
				var wg gosync.WaitGroup
				var total atomic.Int64
				var crashed atomic.Bool
				crash := make(chan struct{})
				for range clients {
					c := w.dial(nil)
					st := c.prepare("/* batch */ INSERT INTO ledger VALUES (?)")
					wg.Go(func() {
						for {
							r := l.write(st.execute, c)
							// On a busy machine the little patience may not be enough before the crash, too.
							if r.text != oneRow && (crashed.Load() || r.lost != nil || r.code() == mywire.ErrNetRead) {
								break
							}
							if r.text == oneRow && total.Add(1) == rows {
								close(crash)
							}
						}
						_ = c.Close()
					})
				}
				select {
				case <-crash:
				case <-time.After(patience):
					t.Fatal("no progress")
				}
				crashed.Store(true)
				server.Kill()
				wg.Wait()
				ctx, cancel := context.WithTimeout(context.Background(), patience)
				err := server.Restart(ctx)
				cancel()
				if err != nil {
					t.Fatal(err)
				}
			}
			if w.extras(lane.kind) == 0 {
				t.Errorf("no group of two and more came about in the %s lane", lane.kind)
			}
			l.check(t, server, db)
		})
	}
}

// TestCutConnectionIsReportedNeverRetried cuts the connections to the server, not
// the server: what it has received it completes.
func TestCutConnectionIsReportedNeverRetried(t *testing.T) {
	t.Parallel()
	for _, lane := range writeLanes {
		t.Run(lane.kind, func(t *testing.T) {
			t.Parallel()
			relay := labtest.Relay(t, server(t).Addr())
			db := database(t, ledgerTable)
			w := start(t, db, func(c *mysql.Config) {
				c.MySQL.Address = relay.Addr()
				lane.change(c)
			})
			l := newLedger()
			for range 2 {
				var wg gosync.WaitGroup
				var done, failed atomic.Int64
				const clients = 12
				for range clients {
					c := w.dial(nil)
					wg.Go(func() {
						for {
							r := l.write(c.mixed, c)
							if r.lost != nil || r.err != nil {
								// Clients whose rows were not sent, because there was no
								// connection, are told so.
								if r.err != nil && r.code() != mywire.ErrNetRead && r.code() != mywire.ErrTooManyConnections {
									t.Errorf("a client was told %v", r.err)
								}
								failed.Add(1)
								_ = c.Close()
								return
							}
							done.Add(1)
						}
					})
				}
				eventually(t, "writes are under way", func() bool { return done.Load() > 50 })
				eventually(t, "all clients have met a cut", func() bool {
					if w.pool().Backends > 0 { // else there would never be one
						relay.Cut()
					}
					return failed.Load() == clients
				})
				wg.Wait()
			}
			// Statements that weir had sent when it was cut off have ended by then, or never
			// will.
			eventually(t, "the server is done", func() bool {
				return dialAt(t, server(t).Addr(), "", nil).one("SELECT COUNT(*) FROM information_schema.processlist WHERE db = '"+db+"'") == fmt.Sprint(w.pool().Backends)
			})
			l.check(t, server(t), db)
			if got := w.dial(nil).one("SELECT 1"); got != "1" { // and it goes on
				t.Errorf("afterwards: %s", got)
			}
		})
	}
}

// TestLaneTakesAnotherConnectionWhenNothingWasSent has the free backends go away
// just when a group wants to bring one of them into its settings.
func TestLaneTakesAnotherConnectionWhenNothingWasSent(t *testing.T) {
	t.Parallel()
	relay := labtest.Relay(t, server(t).Addr())
	w := start(t, database(t, ledgerTable), func(c *mysql.Config) {
		c.MySQL.Address = relay.Addr()
		c.PoolSize, c.ReadLanes = 1, -1
	})
	c, plain := w.dial(nil), w.dial(nil)
	l := newLedger()
	text := func(k int64) []byte { return c.query(fmt.Sprintf("/* batch */ INSERT INTO ledger VALUES (%d)", k)) }
	eventually(t, "the lane is there", func() bool {
		l.write(text, c).mustBe(t, "before", oneRow)
		return len(w.snapshot().Lanes) > 0
	})
	for range 5 {
		plain.one("SELECT COUNT(*) FROM ledger") // in other settings than the lane's
		relay.Stall(lab.ToServer)
		answered := make(chan reply, 1)
		go func() { answered <- l.write(text, c) }()
		eventually(t, "the settings are on their way", func() bool { return w.pool().Owned == 1 })
		relay.Cut()
		relay.Heal()
		(<-answered).mustBe(t, "nothing of it was sent", oneRow)
	}
	l.check(t, server(t), w.db)
}

// TestFailuresAmongManyMembers has one statement of a hundred fail.
func TestFailuresAmongManyMembers(t *testing.T) {
	t.Parallel()
	for _, lane := range writeLanes {
		t.Run(lane.kind, func(t *testing.T) {
			t.Parallel()
			db := database(t, ledgerTable, "ALTER TABLE ledger ADD CONSTRAINT c CHECK (k % 100 <> 0)")
			w := start(t, db, oneGroupAtATime(lane.change))
			l := newLedger()
			var wg gosync.WaitGroup
			for range 16 {
				c := w.dial(nil)
				st := c.prepare("/* batch */ INSERT INTO ledger VALUES (?)")
				wg.Go(func() {
					for range 60 {
						r := l.write(func(k int64) []byte {
							if k%3 == 0 {
								return st.execute(k)
							}
							return c.mixed(k)
						}, c)
						if r.text != oneRow && r.code() != 4025 && r.code() != 3819 && r.ok.AffectedRows != 1 { // of MariaDB and of MySQL
							t.Errorf("%s %v", r.text, r.lost)
							return
						}
					}
				})
			}
			wg.Wait()
			if w.extras(lane.kind) == 0 {
				t.Errorf("no group of two and more came about in the %s lane", lane.kind)
			}
			if len(l.refused) != 9 {
				t.Errorf("%d of %d failed, want 9", len(l.refused), l.next.Load())
			}
			l.check(t, server(t), db)
		})
	}
}

// TestSchemaChangesWhileGroupsRun alters the table under them, through weir and
// past it.
func TestSchemaChangesWhileGroupsRun(t *testing.T) {
	t.Parallel()
	perFlavor(t, func(t *testing.T, server *lab.MySQL) {
		db := databaseOn(t, server, ledgerTable, "CREATE TABLE log (k BIGINT)")
		w := startFor(t, server, db, nil)
		l := newLedger()
		var wg gosync.WaitGroup
		var stop atomic.Bool
		var rows atomic.Int64
		for range 8 {
			c := w.dial(nil)
			st := c.prepare("/* batch */ INSERT INTO ledger (k) VALUES (?)")
			wg.Go(func() {
				for !stop.Load() {
					r := l.write(func(k int64) []byte {
						if k%2 == 0 {
							return st.execute(k)
						}
						return c.query(fmt.Sprintf("/* batch */ INSERT INTO ledger (k) VALUES (%d)", k))
					}, c)
					rows.Add(1)
					if r.ok.AffectedRows != 1 {
						t.Errorf("%s %v", r.text, r.lost)
						return
					}
				}
			})
		}
		through, past := w.dial(nil), dialAt(t, server.Addr(), db, nil)
		for i, ddl := range []string{
			"ALTER TABLE ledger ADD COLUMN a INT DEFAULT 1",
			"CREATE TRIGGER g AFTER INSERT ON ledger FOR EACH ROW INSERT INTO log VALUES (NEW.k)",
			"ALTER TABLE ledger DROP COLUMN a", "DROP TRIGGER g",
			"ALTER TABLE ledger ADD COLUMN id BIGINT AUTO_INCREMENT UNIQUE FIRST",
			"ALTER TABLE ledger DROP COLUMN id, ENGINE = InnoDB", "TRUNCATE TABLE log",
		} {
			for j, by := range []*wire{through, past} {
				if j == 1 && i%2 == 1 || j == 0 && i%2 == 0 {
					continue
				}
				by.must(ddl)
			}
			seen := rows.Load()
			eventually(t, "more rows are written", func() bool { return rows.Load() > seen+30 || t.Failed() })
		}
		stop.Store(true)
		wg.Wait()
		l.check(t, server, db)
		if got := past.one("SELECT COUNT(*) - COUNT(DISTINCT k) FROM log"); got != "0" {
			t.Errorf("the trigger ran %s times too often", got)
		}
		past.must("DROP TABLE ledger")
		for range 3 {
			if r := l.write(through.mixed, through); r.code() != 1146 {
				t.Errorf("a dropped table: %s %v", r.text, r.lost)
			}
		}
	})
}

// TestOversizedMembersGoAlone has a server that takes little at once: groups stay
// below that, and the one that is too long fails alone.
func TestOversizedMembersGoAlone(t *testing.T) {
	t.Parallel()
	server(t) // skips without one
	cfg := serverConfig()
	cfg.Settings = map[string]string{"max_allowed_packet": "16384"}
	small := labtest.MariaDB(t, cfg)
	for _, lane := range writeLanes {
		t.Run(lane.kind, func(t *testing.T) {
			db := databaseOn(t, small, "CREATE TABLE g (k BIGINT, v TEXT)", ledgerTable)
			w := startFor(t, small, db, oneGroupAtATime(lane.change))
			all := w.dials(24)
			text := func(c *wire, n int) []byte {
				return c.query(fmt.Sprintf("/* batch */ INSERT INTO g VALUES (%d, '%0*d')", n, n, 1))
			}
			statements := make([]prepared, len(all))
			for i, c := range all {
				statements[i] = c.prepare("/* batch */ INSERT INTO g VALUES (?, '" + strings.Repeat("a constant of many rows ", 60) + "')")
			}
			w.mustGather(lane.kind, func(int) {
				for _, ofText := range []bool{true, false} {
					messages := make([][]byte, len(all))
					for i, c := range all {
						if messages[i] = statements[i].execute(int64(i)); ofText {
							messages[i] = text(c, 1500)
						}
					}
					for _, r := range together(all, messages) {
						r.mustBe(t, "below the limit", oneRow)
					}
				}
			})
			messages := make([][]byte, len(all))
			for i, c := range all {
				messages[i] = text(c, 1500)
			}
			messages[5] = text(all[5], 20000)
			for i, r := range together(all, messages) {
				if i != 5 {
					r.mustBe(t, "beside one above the limit", oneRow)
				} else if r.code() != 1153 && r.code() != mywire.ErrNetRead && r.lost == nil {
					t.Errorf("above the limit: %s %v", r.text, r.lost)
				}
			}
			if got := all[0].one("SELECT COUNT(*) FROM g WHERE LENGTH(v) > 10000"); got != "0" {
				t.Errorf("%s rows above the limit", got)
			}
		})
	}
}
