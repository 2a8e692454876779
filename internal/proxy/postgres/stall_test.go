package postgres_test

import (
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	gosync "sync"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/weirdb/weir/internal/proxy/postgres"
	"github.com/weirdb/weir/internal/testkit"
)

// warm runs texts on a client until their shapes are known to be cheap, so that
// they are shared from then on.
func warm(w *weir, c *wire, texts ...string) {
	w.tb.Helper()
	for _, sql := range texts {
		eventually(w.tb, sql+" is shared", func() bool {
			before := w.pool().Reads
			c.send(query(sql))
			c.ready()
			return w.pool().Reads > before
		})
	}
}

const (
	readA = "SELECT x FROM a"
	readB = "SELECT x FROM b"
	rowB  = "[x] (1) SELECT_1 I"
)

// locked makes tables a and b, and a connection beside weir that holds a.
func locked(t *testing.T, change func(*postgres.Config)) (w *weir, lock, unlock func()) {
	db := database(t, "CREATE TABLE a (x int)", "CREATE TABLE b (x int)", "INSERT INTO b VALUES (1)")
	w = start(t, db, change)
	warm(w, w.wire(), readA, readB)
	holder := dialWire(t, server(t).Addr(), db)
	lock = func() {
		holder.want("BEGIN", "BEGIN T")
		holder.want("LOCK TABLE a", "LOCK_TABLE T")
	}
	return w, lock, func() { holder.want("COMMIT", "COMMIT I") }
}

// TestLockedTableHoldsUpNoOtherReader has more readers of a locked table than the
// pool has backends. Readers of another table, and transactions, go on: they are
// waited for while the lock is held.
func TestLockedTableHoldsUpNoOtherReader(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ pool, lanes, blocked int }{{20, 4, 30}, {8, 4, 12}, {8, 1, 3}, {4, 2, 12}} {
		t.Run(fmt.Sprintf("pool %d lanes %d", c.pool, c.lanes), func(t *testing.T) {
			w, lock, unlock := locked(t, func(cfg *postgres.Config) { cfg.PoolSize, cfg.ReadLanes = c.pool, c.lanes })
			var blocked, others []*wire
			for i := range c.blocked {
				blocked = append(blocked, w.wire())
				if i < 12 {
					others = append(others, w.wire())
				}
			}
			for range 3 {
				lock()
				for i, b := range blocked {
					b.send(query(readA))
					if i < len(others) {
						others[i].send(query(readB))
					}
				}
				for _, o := range others {
					if got := render(o.ready()); got != rowB {
						t.Errorf("beside a locked table: %s", got)
					}
				}
				for range 5 {
					others[0].want(readB, rowB)
				}
				others[1].want("BEGIN", "BEGIN T")
				others[1].want(readB, "[x] (1) SELECT_1 T")
				others[1].want("COMMIT", "COMMIT I")
				unlock()
				for _, b := range blocked {
					if got := render(b.ready()); got != "[x] SELECT_0 I" {
						t.Errorf("when the lock is gone: %s", got)
					}
				}
			}
		})
	}
}

// TestMovedReadsKeepTheirOrder has clients that pipeline reads themselves, behind
// and beside one that waits: each gets its answers in the order of its questions.
func TestMovedReadsKeepTheirOrder(t *testing.T) {
	t.Parallel()
	w, lock, unlock := locked(t, func(cfg *postgres.Config) { cfg.PoolSize, cfg.ReadLanes = 8, 1 })
	number := "SELECT x FROM b WHERE x = 1 OR x <> $1::int"
	warmed := w.wire()
	for range 3 {
		warmed.send(run(number, "1"))
		warmed.ready()
	}
	blocked, mixed, plain := w.wire(), w.wire(), w.wire()
	for range 5 {
		lock()
		blocked.send(query(readA))
		plain.send(query(readB), run(number, "7"), query(readB), run(number, "8"))
		mixed.send(query(readB), query(readA), run(number, "9"), query(readB))
		for _, want := range []string{rowB, "parsed bound [x] (1) SELECT_1 I", rowB, "parsed bound [x] (1) SELECT_1 I"} {
			if got := render(plain.ready()); got != want {
				t.Errorf("a pipeline beside the lock: %s, want %s", got, want)
			}
		}
		if got := render(mixed.ready()); got != rowB {
			t.Errorf("before its own locked read: %s", got)
		}
		unlock()
		for _, want := range []string{"[x] SELECT_0 I", "parsed bound [x] (1) SELECT_1 I", rowB} {
			if got := render(mixed.ready()); got != want {
				t.Errorf("from its own locked read on: %s, want %s", got, want)
			}
		}
		if got := render(blocked.ready()); got != "[x] SELECT_0 I" {
			t.Errorf("the locked read: %s", got)
		}
	}
}

// TestReadSlowForItsParametersHoldsUpNobody has a statement that is cheap as a rule
// run for as long as the test likes.
func TestReadSlowForItsParametersHoldsUpNobody(t *testing.T) {
	t.Parallel()
	w := start(t, database(t), func(c *postgres.Config) { c.ReadLanes = 2 })
	count := "SELECT count(*) AS n FROM (SELECT generate_series(1, $1::bigint)) AS s"
	quick := []*wire{w.wire(), w.wire(), w.wire(), w.wire()}
	eventually(t, "it is shared", func() bool {
		before := w.pool().Reads
		quick[0].send(run(count, "1"))
		quick[0].ready()
		return w.pool().Reads > before
	})
	slow := w.wire()
	slow.send(run(count, "1000000000000"))
	for range 20 {
		for _, q := range quick {
			q.send(run(count, "1"))
		}
		for _, q := range quick {
			if got := render(q.ready()); got != "parsed bound [n] (1) SELECT_1 I" {
				t.Fatalf("beside a slow one: %s", got)
			}
		}
	}
	cancelUntilAnswered(t, w, slow)
	slow.want("SELECT 1 AS x", "[x] (1) SELECT_1 I")
}

// TestWaitingReadsEndByCancelAndQueueTimeout: of many readers of a locked table a
// few hold backends and the others wait in weir; all can be cancelled, and those
// that wait in weir are told after the queue timeout.
func TestWaitingReadsEndByCancelAndQueueTimeout(t *testing.T) {
	t.Parallel()
	w, lock, unlock := locked(t, func(cfg *postgres.Config) { cfg.PoolSize, cfg.QueueTimeout = 4, 3*time.Second })
	lock()
	var blocked []*wire
	for range 6 {
		c := w.firstWire()
		c.send(query(readA))
		blocked = append(blocked, c)
	}
	codes := make(chan string, len(blocked))
	for _, c := range blocked[:3] {
		go func() { codes <- render(c.ready()) }()
		cancelled := false
		eventually(t, "a waiting read is cancelled", func() bool {
			cancel(t, w, c)
			select {
			case got := <-codes:
				cancelled = got == "ERROR:57014 I" || got == "ERROR:53300 I"
				return true
			default:
				return false
			}
		})
		if !cancelled {
			t.Error("a waiting read ended otherwise than by a cancel or the queue timeout")
		}
	}
	for _, c := range blocked[3:] {
		go func() { codes <- render(c.ready()) }()
	}
	if got := <-codes; got != "ERROR:53300 I" {
		t.Errorf("the first of those that wait: %s", got)
	}
	unlock()
	for range blocked[4:] {
		if got := <-codes; got != "[x] SELECT_0 I" && got != "ERROR:53300 I" {
			t.Errorf("the others: %s", got)
		}
	}
}

// TestReadsShareAgainWhenALockIsGone has clients read a table without a pause
// while it is locked, and afterwards.
func TestReadsShareAgainWhenALockIsGone(t *testing.T) {
	t.Parallel()
	w, lock, unlock := locked(t, nil)
	var (
		readers []*wire
		busy    gosync.WaitGroup
		stop    = make(chan struct{})
	)
	for range 24 {
		readers = append(readers, w.wire())
	}
	for _, r := range readers {
		busy.Go(func() {
			for {
				select {
				case <-stop:
					return
				default:
				}
				r.send(query(readA))
				if got, _ := r.until('Z'); render(got) != "[x] SELECT_0 I" {
					t.Errorf("a reader got %s", render(got))
					return
				}
			}
		})
	}
	lock()
	stalls := w.pool().Stalls
	eventually(t, "the readers wait apart", func() bool { return w.pool().Stalls > stalls || w.pool().Waiting > 0 })
	unlock()
	reads := uint64(testkit.Rounds(1500, 5000))
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

// TestCancelThatCameTooEarlyIsSentAgain has weir end reads that the server has not
// begun with: the server's processes are stopped, and find the cancel request
// before the statement. Each read is a statement of its own: of one that is known to be held
// up no other is sent, so that it depended on time how many are.
func TestCancelThatCameTooEarlyIsSentAgain(t *testing.T) {
	t.Parallel()
	w, lock, unlock := locked(t, func(c *postgres.Config) { c.PoolSize, c.ReadLanes = 4, 2 })
	var blocked []*wire
	var reads []string
	for i := range 12 {
		blocked = append(blocked, w.wire())
		reads = append(reads, fmt.Sprintf("SELECT x AS x%d FROM a", i))
	}
	warm(w, blocked[0], reads...)
	other := w.wire()
	for _, b := range blocked[:4] { // weir has all its connections
		b.want("BEGIN", "BEGIN T")
	}
	for _, b := range blocked[:4] {
		b.want("COMMIT", "COMMIT I")
	}
	lock()
	direct := connect(t, server(t).DSN(w.db))
	var stopped []int
	eventually(t, "weir has four idle connections, on none of which it asks something", func() bool {
		rows, err := direct.Query(ctxFor(t), "SELECT pid FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid() AND state = 'idle'")
		if err != nil {
			t.Fatal(err)
		}
		if stopped, err = pgx.CollectRows(rows, pgx.RowTo[int]); err != nil {
			t.Fatal(err)
		}
		return len(stopped) == 4
	})
	signal := func(sig syscall.Signal) {
		for _, pid := range stopped {
			if err := syscall.Kill(pid, sig); err != nil && !errors.Is(err, syscall.ESRCH) {
				t.Fatal(err)
			}
		}
	}
	signal(syscall.SIGSTOP)
	defer signal(syscall.SIGCONT)
	for i, b := range blocked {
		b.send(query(reads[i]))
	}
	n := 0
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("%d of %d had a cancel request waiting for them", n, len(stopped))
		}
	})
	eventually(t, "all but one, at least, have a cancel request waiting for them", func() bool {
		n = 0
		for _, pid := range stopped {
			if pending(t, pid, syscall.SIGINT) {
				n++
			}
		}
		return n >= len(stopped)-1
	})
	signal(syscall.SIGCONT)
	for range 10 {
		other.want(readB, rowB)
		other.want("BEGIN", "BEGIN T")
		other.want("COMMIT", "COMMIT I")
	}
	unlock()
	for i, b := range blocked {
		if got, want := render(b.ready()), fmt.Sprintf("[x%d] SELECT_0 I", i); got != want {
			t.Errorf("when the lock is gone: %s, want %s", got, want)
		}
	}
}

// pending reports whether a signal waits for a process to take it.
func pending(t *testing.T, pid int, sig syscall.Signal) bool {
	t.Helper()
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		t.Fatal(err)
	}
	_, rest, _ := strings.Cut(string(status), "\nShdPnd:")
	line, _, _ := strings.Cut(rest, "\n")
	set, err := strconv.ParseUint(strings.TrimSpace(line), 16, 64)
	if err != nil {
		t.Fatal(err)
	}
	return set&(1<<(sig-1)) != 0
}
