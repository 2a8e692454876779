package mysql_test

import (
	"fmt"
	"strings"
	"sync"
	"testing"

	"github.com/weirdb/weir/internal/lab"
	"github.com/weirdb/weir/internal/proxy/mysql"
	"github.com/weirdb/weir/internal/wire/mywire"
)

// lockable is what tests of locks have: a table to be locked and another.
var lockable = []string{
	"CREATE TABLE a (x INT PRIMARY KEY, n INT DEFAULT 0)", "INSERT INTO a (x) VALUES (1), (2), (3)",
	"CREATE TABLE b (x INT PRIMARY KEY, n INT DEFAULT 0)", "INSERT INTO b (x) VALUES (1), (2), (3)",
}

// readerOf is a read of a table in its i-th shape.
func readerOf(table string, i int) string {
	return fmt.Sprintf("SELECT x%s FROM %s WHERE x = 2", strings.Repeat(", x", i), table)
}

// warmReads has the proxy pipeline the reads.
func (w *weir) warmReads(queries ...string) {
	w.tb.Helper()
	c := w.dial(nil)
	for _, q := range queries {
		eventually(w.tb, "shared: "+q, func() bool {
			before := w.pool().Reads
			if _, err := c.Query(ctxFor(w.tb), q); err != nil {
				w.tb.Fatal(err)
			}
			return w.pool().Reads > before
		})
	}
}

// A read that waits for a lock delays only its own client, and is answered when the lock is
// released. There are fewer readers than backends, because on a slow machine reads are not
// shared and each needs its own backend.
func TestLockedTableHoldsUpItsReadersAlone(t *testing.T) {
	t.Parallel()
	for size, waiting := range map[int]int{8: 5, 20: 12} {
		for _, shapes := range []int{1, 8} {
			t.Run(fmt.Sprintf("pool of %d, %d shapes", size, shapes), func(t *testing.T) {
				t.Parallel()
				w := start(t, database(t, lockable...), func(c *mysql.Config) { c.PoolSize = size })
				other := readerOf("b", 0)
				queries := []string{other}
				for i := range shapes {
					queries = append(queries, readerOf("a", i))
				}
				w.warmReads(queries...)
				locker := dialAt(t, server(t).Addr(), w.db, nil)
				locker.must("LOCK TABLES a WRITE")
				var readers []*wire
				var waits []*running
				for i := range waiting {
					c := w.dial(nil)
					readers, waits = append(readers, c), append(waits, c.begin(readerOf("a", i%shapes)))
				}
				free, killer := w.dial(nil), w.dial(nil)
				for range 20 {
					if got := free.one(other); got != "2" {
						t.Fatalf("read of another table: %s", got)
					}
				}
				const victim = 3
				killer.must("KILL QUERY " + readers[victim].id())
				if err := waits[victim].wait(); code(err) != mywire.ErrQueryInterrupted {
					t.Errorf("the killed reader: %v, want 1317", err)
				}
				for i, r := range waits {
					select {
					case <-r.done:
						if i != victim {
							t.Errorf("reader %d did not wait: %v", i, r.err)
						}
					default:
					}
				}
				locker.must("UNLOCK TABLES")
				for i, r := range waits {
					if err := r.wait(); i != victim && (err != nil || len(r.rows) != 1 || r.rows[0][0].String != "2") {
						t.Errorf("reader %d: %v %v", i, r.rows, err)
					}
				}
				for i, c := range readers {
					if got := c.one(other); got != "2" {
						t.Errorf("reader %d afterwards: %s", i, got)
					}
				}
			})
		}
	}
}

// Prepared reads wait as well when they are prepared on another connection: the
// server opens the tables then.
func TestLockedTableHoldsUpWhatIsPrepared(t *testing.T) {
	t.Parallel()
	w := start(t, database(t, lockable...), func(c *mysql.Config) { c.PoolSize = 8 })
	clients := w.dials(10)
	var onA, onB []prepared
	for _, c := range clients {
		onA = append(onA, c.prepare("SELECT x FROM a WHERE x = ?"))
		onB = append(onB, c.prepare("SELECT x FROM b WHERE x = ?"))
	}
	for i, c := range clients {
		for range 3 {
			c.try(onA[i].execute(2))
			c.try(onB[i].execute(2))
		}
	}
	wantA, wantB := clients[0].try(onA[0].execute(2)).text, clients[0].try(onB[0].execute(2)).text
	locker := dialAt(t, server(t).Addr(), w.db, nil)
	locker.must("LOCK TABLES a WRITE")
	waits := make([]chan reply, 6)
	for i := range waits {
		waits[i] = make(chan reply, 1)
		go func() { waits[i] <- clients[i].try(onA[i].execute(2)) }()
	}
	for range 20 {
		for i := len(waits); i < len(clients); i++ {
			clients[i].try(onB[i].execute(2)).mustBe(t, "another table", wantB)
		}
	}
	for i, wait := range waits {
		select {
		case r := <-wait:
			t.Errorf("reader %d did not wait: %s %v", i, r.text, r.lost)
		default:
		}
	}
	locker.must("UNLOCK TABLES")
	for i := range waits {
		(<-waits[i]).mustBe(t, "after the lock", wantA)
	}
}

// Answers of a client that sends ahead come in order, also if what it sent first
// waits for a lock and the rest could go on.
func TestReadsSentAheadStayInOrder(t *testing.T) {
	t.Parallel()
	w := start(t, database(t, lockable...), nil)
	w.warmReads(readerOf("a", 0), readerOf("b", 0))
	locker := dialAt(t, server(t).Addr(), w.db, nil)
	for range 5 {
		locker.must("LOCK TABLES a WRITE")
		c, free := w.dial(nil), w.dial(nil)
		var all []byte
		for _, x := range []string{"b", "a", "b", "b", "a", "b"} {
			all = append(all, c.query("SELECT x FROM "+x+" WHERE x = 2")...)
		}
		c.send(all)
		for range 3 {
			if got := free.one(readerOf("b", 0)); got != "2" {
				t.Fatal(got)
			}
		}
		locker.must("UNLOCK TABLES")
		for i, table := range []string{"b", "a", "b", "b", "a", "b"} {
			r, _ := c.hear(mywire.ComQuery)
			if r.err != nil || r.lost != nil || !strings.Contains(r.text, table) {
				t.Fatalf("answer %d, of table %s: %s %v %v", i, table, r.text, r.err, r.lost)
			}
		}
	}
}

// Grouped writes that wait for a row hold a bounded part of the pool: reads,
// transactions and other grouped writes go on, and each write takes effect once.
func TestLockedRowHoldsUpItsWritersAlone(t *testing.T) {
	t.Parallel()
	perFlavor(t, func(t *testing.T, server *lab.MySQL) {
		db := databaseOn(t, server, counters...)
		w := startFor(t, server, db, func(c *mysql.Config) { c.PoolSize = 4 })
		w.warmCounters()
		row := dialAt(t, server.Addr(), db, nil)
		row.must("BEGIN")
		row.must("UPDATE n SET n = n + 100 WHERE k = 0")
		const writers = 16
		clients := w.dials(writers)
		waits := make([]chan reply, writers)
		for i, c := range clients {
			waits[i] = make(chan reply, 1)
			go func() { waits[i] <- c.try(c.up("batch", 0)) }()
		}
		eventually(t, "all wait", func() bool { p := w.pool(); return p.Waiting+p.Owned >= writers })
		free := w.dial(nil)
		for range 5 {
			free.one("SELECT n FROM n WHERE k = 1")
			free.try(free.up("batch", 1)).mustBe(t, "another row", oneUpdate)
			free.must("BEGIN")
			free.must("UPDATE n SET n = n + 1 WHERE k = 2")
			free.must("COMMIT")
		}
		const victim = 3
		free.must("KILL QUERY " + clients[victim].id())
		if r := <-waits[victim]; r.code() != mywire.ErrQueryInterrupted {
			t.Errorf("the killed writer: %s %v", r.text, r.lost)
		}
		row.must("COMMIT")
		for i := range waits {
			if i != victim {
				(<-waits[i]).mustBe(t, "after the lock", oneUpdate)
			}
		}
		for k, want := range []string{fmt.Sprint(100 + writers - 1), "5", "5"} {
			if got := row.one(fmt.Sprintf("SELECT n FROM n WHERE k = %d", k)); got != want {
				t.Errorf("row %d: %s, want %s", k, got, want)
			}
		}
	})
}

// Each of several writers to a locked row gives up by its own lock wait timeout.
func TestWaitingWritersGiveUpByTheirOwnTimeout(t *testing.T) {
	t.Parallel()
	db := database(t, counters...)
	w := start(t, db, func(c *mysql.Config) { c.PoolSize = 4 })
	w.warmCounters()
	row := dialAt(t, server(t).Addr(), db, nil)
	row.must("BEGIN")
	row.must("UPDATE n SET n = n + 100 WHERE k = 0")
	const writers = 6
	clients := w.dials(writers)
	waits := make([]chan reply, writers)
	for i, c := range clients {
		c.must("SET innodb_lock_wait_timeout = 2")
		waits[i] = make(chan reply, 1)
		go func() { waits[i] <- c.try(c.up("batch", 0)) }()
	}
	for i := range waits {
		if r := <-waits[i]; r.code() != mywire.ErrLockWaitTimeout {
			t.Errorf("writer %d: %s %v, want 1205", i, r.text, r.lost)
		}
	}
	row.must("ROLLBACK")
	if got := row.one("SELECT n FROM n WHERE k = 0"); got != "0" {
		t.Errorf("%s updates of writers that gave up", got)
	}
}

// A statement that takes long in a group does not hold up the writes behind it.
func TestSlowWriteHoldsUpItsGroupAlone(t *testing.T) {
	t.Parallel()
	// A write locks what it reads, so that is another table.
	db := database(t, append(counters, "CREATE TABLE m AS SELECT k FROM n")...)
	w := start(t, db, oneGroupAtATime(func(c *mysql.Config) { c.NoRowsLane = true }))
	w.warmCounters()
	slow, quick := w.dial(nil), w.dial(nil)
	wait := make(chan reply, 1)
	go func() {
		wait <- slow.try(slow.query("/* batch */ UPDATE n SET n = n + 1 WHERE k = 5 AND (SELECT SUM(a.k) FROM m a, m b, m c, m d, m e, m f, m g, m h, m i, m j) > 0"))
	}()
	w.onServer(t, "%m i, m j%", 1)
	if p := w.pool(); p.Laned != 1 {
		t.Fatalf("the slow write runs in no group: %+v", p)
	}
	for range 5 {
		quick.try(quick.up("batch", 6)).mustBe(t, "behind a slow write", oneUpdate)
	}
	select {
	case r := <-wait:
		t.Fatalf("it was not slow: %s", r.text)
	default:
	}
	// A KILL at the server is meant: the statement is not run again.
	direct := dialAt(t, server(t).Addr(), db, nil)
	killed := 0
	eventually(t, "the slow write has ended", func() bool {
		rows, err := direct.Query(ctxFor(t), "SELECT id FROM information_schema.processlist WHERE info LIKE '%UPDATE%m i, m j%' AND db = '"+db+"' AND id <> CONNECTION_ID()")
		if err != nil {
			t.Fatal(err)
		}
		for _, r := range rows {
			if _, err := direct.Query(ctxFor(t), "KILL QUERY "+r[0].String); err != nil && code(err) != mywire.ErrNoSuchThread {
				t.Fatal(err)
			}
			killed++
		}
		select {
		case r := <-wait:
			if r.code() != mywire.ErrQueryInterrupted {
				t.Errorf("the killed write: %s %v, want 1317", r.text, r.lost)
			}
			return true
		default:
			return false
		}
	})
	if killed == 0 {
		t.Error("it ended by itself")
	}
	if got := direct.one("SELECT n FROM n WHERE k = 5"); got != "0" {
		t.Errorf("the killed write took effect: %s", got)
	}
}

// TestReadsShareAgainWhenALockIsGone has clients read a table without a pause
// while it is locked, and afterwards.
func TestReadsShareAgainWhenALockIsGone(t *testing.T) {
	t.Parallel()
	w := start(t, database(t, lockable...), nil)
	read := readerOf("a", 0)
	w.warmReads(read)
	var (
		busy sync.WaitGroup
		stop = make(chan struct{})
	)
	for _, c := range w.dials(24) {
		busy.Go(func() {
			for {
				select {
				case <-stop:
					return
				default:
				}
				if r := c.try(c.query(read)); r.err != nil || r.lost != nil {
					t.Errorf("a reader got %v %v", r.err, r.lost)
					return
				}
			}
		})
	}
	locker := dialAt(t, server(t).Addr(), w.db, nil)
	locker.must("LOCK TABLES a WRITE")
	eventually(t, "the readers wait", func() bool { return w.pool().Waiting > 0 })
	locker.must("UNLOCK TABLES")
	const reads = 2000
	var waits uint64
	for range 3 { // a machine that is busy elsewhere may make reads late again
		before := w.pool()
		eventually(t, "they are answered", func() bool { return w.pool().Reads > before.Reads+reads })
		if waits = w.pool().Waits - before.Waits; waits < reads/2 {
			break
		}
	}
	if waits >= reads/2 {
		t.Errorf("%d waits for a backend among %d reads of a table that is free", waits, reads)
	}
	close(stop)
	busy.Wait()
}

// Reads that do not share, for nothing is known of their cost, wait for a locked table on
// backends of their clients' own. They hold a part of the pool, too, be it small.
func TestLockedTableLeavesRoomForOthers(t *testing.T) {
	t.Parallel()
	perFlavor(t, func(t *testing.T, server *lab.MySQL) {
		for _, prepares := range []bool{false, true} {
			t.Run(fmt.Sprintf("prepared %v", prepares), func(t *testing.T) {
				t.Parallel()
				w := startFor(t, server, databaseOn(t, server, lockable...), func(c *mysql.Config) { c.PoolSize = 4 })
				const readers = 10
				clients := w.dials(readers)
				reads := make([][]byte, readers)
				for i, c := range clients {
					reads[i] = c.query(readerOf("a", i))
					if prepares {
						reads[i] = c.prepare(strings.Replace(readerOf("a", i), "= 2", "= ?", 1)).execute(2)
					}
				}
				locker := dialAt(t, server.Addr(), w.db, nil)
				locker.must("LOCK TABLES a WRITE")
				waits := make([]chan reply, readers)
				for i, c := range clients {
					waits[i] = make(chan reply, 1)
					go func() { waits[i] <- c.try(reads[i]) }()
				}
				eventually(t, "all wait", func() bool { p := w.pool(); return p.Waiting+p.Owned >= readers })
				free := w.dial(nil)
				for range 5 {
					free.must("BEGIN")
					free.must("UPDATE b SET n = n + 1 WHERE x = 1")
					free.must("COMMIT")
					if got := free.one(readerOf("b", 0)); got != "2" {
						t.Errorf("read of another table: %s", got)
					}
				}
				locker.must("UNLOCK TABLES")
				for i := range waits {
					if r := <-waits[i]; r.err != nil || r.lost != nil || len(r.text) == 0 {
						t.Errorf("reader %d: %s %v %v", i, r.text, r.err, r.lost)
					}
				}
				for i, c := range clients {
					if got := c.one(readerOf("b", 0)); got != "2" {
						t.Errorf("reader %d afterwards: %s", i, got)
					}
				}
			})
		}
	})
}

// A shared read gets a connection even if blocked reads own all of them and no other client
// waits.
func TestLockedTableLeavesRoomForSharedReads(t *testing.T) {
	t.Parallel()
	const size = 4
	w := start(t, database(t, lockable...), func(c *mysql.Config) { c.PoolSize = size })
	w.warmReads(readerOf("b", 0))
	free := w.dial(nil)
	locker := dialAt(t, server(t).Addr(), w.db, nil)
	locker.must("LOCK TABLES a WRITE")
	clients := w.dials(size)
	waits := make([]chan reply, size)
	for i, c := range clients {
		waits[i] = make(chan reply, 1)
		go func() { waits[i] <- c.try(c.query(readerOf("a", i))) }()
	}
	eventually(t, "all connections are theirs", func() bool { return w.pool().Owned == size })
	if got := free.one(readerOf("b", 0)); got != "2" {
		t.Errorf("read of another table: %s", got)
	}
	locker.must("UNLOCK TABLES")
	for i := range waits {
		if r := <-waits[i]; r.err != nil || r.lost != nil {
			t.Errorf("reader %d: %v %v", i, r.err, r.lost)
		}
	}
}
