package mysql_test

import (
	"bytes"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/weirdb/weir/internal/lab"
	"github.com/weirdb/weir/internal/proxy/mysql"
	"github.com/weirdb/weir/internal/proxy/proxytest"
	"github.com/weirdb/weir/internal/wire/mywire"
)

// TestWritesWaitForOldFacts ages what weir knows of the server's names, and of the table, as idle
// time does. Grouped writes that come then, all to one locked row, take a lane nevertheless:
// they leave connections to others until the lock is released.
func TestWritesWaitForOldFacts(t *testing.T) {
	t.Parallel()
	perFlavor(t, func(t *testing.T, server *lab.MySQL) {
		for name, aged := range map[string]struct{ names, tables bool }{"names": {names: true}, "tables": {tables: true}, "both": {true, true}} {
			t.Run(name, func(t *testing.T) {
				t.Parallel()
				db := databaseOn(t, server, counters...)
				w := startFor(t, server, db, oneGroupAtATime(nil))
				w.warmCounters()
				blocker := dialAt(t, server.Addr(), db, nil)
				writers, others := w.dials(8), w.dials(7)
				messages := make([][]byte, len(writers))
				for i, c := range writers {
					if i%2 == 0 {
						messages[i] = c.up("batch", 0)
					} else {
						messages[i] = c.prepare("/* batch */ UPDATE n SET n = n + 1 WHERE k = ?").execute(0)
					}
				}
				for _, c := range others { // each opens a connection
					c.must("BEGIN")
				}
				for _, c := range others {
					c.must("COMMIT")
				}
				blocker.must("BEGIN")
				blocker.must("UPDATE n SET n = n + 100 WHERE k = 0")

				w.AgeFacts(ctxFor(t), aged.names, aged.tables)
				answers := make(chan []reply, 1)
				go func() { answers <- together(writers, messages) }()
				eventually(t, "all writes wait", func() bool { p := w.pool(); return p.Owned+p.Waiting == len(writers) && p.Laned == 0 })
				if p := w.pool(); p.Owned > 2 {
					t.Errorf("%d of %d connections wait for one row, want at most a quarter", p.Owned, p.Backends)
				}
				for i, c := range others {
					c.try(c.up("batch", i+1)).mustBe(t, "beside those that wait", oneUpdate)
				}
				blocker.must("COMMIT")
				for i, r := range <-answers {
					r.mustBe(t, fmt.Sprint("writer ", i), oneUpdate)
				}
				if got := blocker.one("SELECT n FROM n WHERE k = 0"); got != "108" {
					t.Errorf("the row was counted to %s, want 108", got)
				}
			})
		}
	})
}

// A heldLoads is a proxy that has begun to load its catalogue after DDL. Each load is held until
// release.
type heldLoads struct {
	*weir
	definer *wire
	release chan struct{} // one load goes on per value
}

func holdLoads(t *testing.T, change func(*mysql.Config)) *heldLoads {
	t.Helper()
	var armed atomic.Bool
	var held atomic.Int64
	h := &heldLoads{release: make(chan struct{})}
	db := database(t, counters...)
	h.weir = start(t, db, oneGroupAtATime(func(c *mysql.Config) {
		change(c)
		c.MySQL.Address = relayed(t, server(t).Addr(), func() (up, down func(p []byte) ([]byte, bool)) {
			return func(p []byte) ([]byte, bool) {
				if bytes.Contains(p, []byte("information_schema.VIEWS")) && armed.Load() {
					held.Add(1)
					<-h.release
				}
				return p, true
			}, func(p []byte) ([]byte, bool) { return p, true }
		})
	}))
	t.Cleanup(sync.OnceFunc(func() { armed.Store(false); close(h.release) }))
	h.warmCounters()
	h.WaitForFacts(ctxFor(t), time.Hour)
	h.definer = h.dial(nil)
	armed.Store(true)
	h.definer.must("CREATE TABLE first (i INT)")
	h.definer.must("DO 1")
	eventually(t, "the catalogue is being loaded", func() bool { return held.Load() > 0 })
	return h
}

// waits has a client send a grouped write, which then waits for the catalogue.
func (h *heldLoads) waits(t *testing.T, c *wire) {
	t.Helper()
	c.send(c.up("batch", 7))
	h.areWaiting(t, 1)
}

func (h *heldLoads) areWaiting(t *testing.T, n int) {
	t.Helper()
	eventually(t, fmt.Sprint("writes that wait for the catalogue: ", n), func() bool {
		got, _ := h.FactsWaits(ctxFor(t))
		return got == n
	})
}

// TestAWriteWaitsForOneLoad: if the catalogue is stale again after the load, the write runs alone.
// Its time includes the wait.
func TestAWriteWaitsForOneLoad(t *testing.T) {
	t.Parallel()
	const slow = 50 * time.Millisecond
	log := new(proxytest.Lines)
	h := holdLoads(t, func(c *mysql.Config) {
		c.SlowLog, c.Log = slow, slog.New(slog.NewJSONHandler(log, nil))
	})
	writer := h.dial(nil)
	h.waits(t, writer)
	h.dial(nil).must("CREATE TABLE second (i INT)")
	eventually(t, "the wait is long", func() bool { _, longest := h.FactsWaits(ctxFor(t)); return longest > 2*slow })
	h.release <- struct{}{} // a load from before the second table, or one while another is held
	r, _ := writer.hear(mywire.ComQuery)
	r.mustBe(t, "the write", oneUpdate)
	line := `"statement":"update n set n = n + ? where k = ?"`
	eventually(t, "the write is logged as slow", func() bool { return len(log.With(line)) == 1 })
}

// TestNoWriteWaitsForASlowLoad: when a write has waited in vain, later ones run alone at once.
func TestNoWriteWaitsForASlowLoad(t *testing.T) {
	t.Parallel()
	h := holdLoads(t, func(*mysql.Config) {})
	h.WaitForFacts(ctxFor(t), time.Millisecond)
	first, second := h.dial(nil), h.dial(nil)
	first.try(first.up("batch", 1)).mustBe(t, "the first write", oneUpdate)
	h.WaitForFacts(ctxFor(t), time.Hour)
	second.try(second.up("batch", 2)).mustBe(t, "the second write", oneUpdate)
}

// TestWaitsForFactsCount for --queue-timeout, but not for --max-waiting: these writes do not wait
// for a connection, and a lane may take all of them.
func TestWaitsForFactsCount(t *testing.T) {
	t.Parallel()
	h := holdLoads(t, func(c *mysql.Config) { twoBackends(c); c.MaxWaiting = 1 })
	holder, writer, other := h.dial(nil), h.dial(nil), h.dial(nil)
	holder.must("BEGIN") // on the other of two connections
	h.waits(t, writer)
	other.send(other.up("batch", 1))
	h.areWaiting(t, 2)
	_ = other.Close()
	h.areWaiting(t, 1)
	h.QueueFor(ctxFor(t), time.Hour/2) // which is less than it waits for the catalogue
	h.AgeFactsWaits(ctxFor(t), time.Hour*3/4)
	if r, _ := writer.hear(mywire.ComQuery); r.code() != 1040 || !strings.Contains(r.text, "became free within") {
		t.Errorf("after the queue timeout: %s", r.text)
	}
}

// TestEndedWaitsForFactsLeaveTheQueue at once, not with the next answer of the server.
func TestEndedWaitsForFactsLeaveTheQueue(t *testing.T) {
	t.Parallel()
	h := holdLoads(t, func(*mysql.Config) {})
	killed, gone, killer := h.dial(nil), h.dial(nil), h.dial(nil)
	h.waits(t, killed)
	killer.must("KILL QUERY " + killed.id())
	if r, _ := killed.hear(mywire.ComQuery); r.code() != 1317 {
		t.Errorf("after a KILL QUERY: %s", r.text)
	}
	h.areWaiting(t, 0)
	h.waits(t, gone)
	_ = gone.Close()
	h.areWaiting(t, 0)
}
