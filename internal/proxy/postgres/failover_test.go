package postgres_test

import (
	"fmt"
	"strconv"
	gosync "sync"
	"sync/atomic"
	"testing"

	"github.com/weirdb/weir/internal/proxy/upstream"
	"github.com/weirdb/weir/internal/wire/pgwire"
)

// A failoverLedger is what clients were told of their writes while the primary died.
type failoverLedger struct {
	mu    gosync.Mutex
	acked map[int64]int  // guarded by mu: writes, and how many rows each has
	codes map[string]int // guarded by mu: of errors; "" is a connection that broke
	next  atomic.Int64
}

func (l *failoverLedger) told(write int64, rows int, got []message, err error) (ok bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	switch e := errorIn(got); {
	case e != nil:
		l.codes[e.Code]++
	case err != nil:
		l.codes[""]++
	default:
		l.acked[write] = rows
	}
	return err == nil
}

func (l *failoverLedger) count() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return len(l.acked)
}

// TestFailoverLosesNothingThatWasAcknowledged kills a primary whose standby confirms each
// commit, in the middle of grouped writes, pipelines and COPYs, and promotes the standby. What
// was acknowledged, before and after, must exist once; what was not must exist completely or not
// at all, and its client must have been told that the outcome is unknown.
func TestFailoverLosesNothingThatWasAcknowledged(t *testing.T) {
	t.Parallel()
	primary, standby, w := cluster(t, upstream.TargetReadWrite)
	sqlOn(t, primary.DSN("postgres"), "CREATE TABLE f (write bigint, row int, PRIMARY KEY (write, row))",
		"ALTER SYSTEM SET synchronous_standby_names = '*'", "SELECT pg_reload_conf()")
	eventually(t, "the standby confirms commits", func() bool {
		direct := dialWire(t, primary.Addr(), "postgres")
		defer direct.close()
		direct.send(query("SELECT 1 FROM pg_stat_replication WHERE sync_state = 'sync'"))
		return len(direct.ready()) > 3 // a row among the rest
	})

	const (
		pipelined = 10
		copied    = 100
	)
	l := &failoverLedger{acked: map[int64]int{}, codes: map[string]int{}}
	insert := func(hint string, write int64) []byte {
		return run(hint+"INSERT INTO f VALUES ($1, 0)", strconv.FormatInt(write, 10))
	}
	grouped := func(c *wire) bool {
		n := l.next.Add(1)
		c.send(insert("/* batch */ ", n))
		got, err := c.until(pgwire.ServerReady)
		return l.told(n, 1, got, err)
	}
	pipeline := func(c *wire) bool {
		last := l.next.Add(pipelined)
		var all []byte
		for n := last - pipelined + 1; n <= last; n++ {
			all = append(all, insert("", n)...)
		}
		c.send(all)
		for n := last - pipelined + 1; n <= last; n++ {
			if got, err := c.until(pgwire.ServerReady); !l.told(n, 1, got, err) {
				return false
			}
		}
		return true
	}
	copying := func(c *wire) bool {
		n := l.next.Add(1)
		c.send(query("COPY f FROM STDIN"))
		for row := range copied {
			c.send(pgwire.AppendCopyData(nil, fmt.Appendf(nil, "%d\t%d\n", n, row)))
		}
		c.send(pgwire.AppendCopyDone(nil))
		got, err := c.until(pgwire.ServerReady)
		return l.told(n, copied, got, err)
	}
	stop := make(chan struct{})
	var clients gosync.WaitGroup
	for i, write := range []func(*wire) bool{grouped, grouped, grouped, grouped, grouped, grouped, pipeline, pipeline, copying, copying, copying} {
		c := w.wire()
		clients.Go(func() {
			defer func() { c.close() }()
			for {
				select {
				case <-stop:
					return
				default:
				}
				if write(c) {
					continue
				}
				c.close()
				again, err := tryWireAs(t, w.Addr().String(), "postgres", "postgres")
				if err != nil {
					t.Errorf("client %d logs in again: %v", i, err)
					return
				}
				c = again
			}
		})
	}
	eventually(t, "writes on the primary", func() bool { return l.count() > 300 })
	primary.Kill()
	sqlOn(t, standby.DSN("postgres"), "SELECT pg_promote()")
	before := l.count()
	eventually(t, "writes on the promoted server", func() bool { return l.count() > before+300 })
	close(stop)
	clients.Wait()

	direct := dialWire(t, standby.Addr(), "postgres")
	direct.send(query("SELECT write, count(*) FROM f GROUP BY write"))
	there := make(map[int64]int)
	for _, m := range direct.ready() {
		if m.typ != pgwire.ServerDataRow {
			continue
		}
		values, err := pgwire.ParseDataRow(m.body, nil)
		if err != nil {
			t.Fatal(err)
		}
		write, _ := strconv.ParseInt(string(values[0]), 10, 64)
		there[write], _ = strconv.Atoi(string(values[1]))
	}
	for write, rows := range l.acked {
		if there[write] != rows {
			t.Errorf("write %d was acknowledged, and %d of its %d rows are there", write, there[write], rows)
		}
	}
	for write, rows := range there {
		if rows != 1 && rows != copied {
			t.Errorf("write %d was done by halves: %d rows", write, rows)
		}
	}
	if len(l.codes) == 0 {
		t.Error("nobody was told that the primary died under its write")
	}
	for code := range l.codes {
		switch code {
		case "", pgwire.CodeConnectionFailure, pgwire.CodeAdminShutdown, "57P02", pgwire.CodeCannotConnectNow:
		default:
			t.Errorf("errors %v: %s does not say what happened", l.codes, code)
		}
	}
	t.Logf("%d writes acknowledged, %d there, errors %v", len(l.acked), len(there), l.codes)
}
