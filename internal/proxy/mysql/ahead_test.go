package mysql_test

import (
	"bytes"
	"sync/atomic"
	"testing"
	"time"

	"github.com/weirdb/weir/internal/proxy/mysql"
	"github.com/weirdb/weir/internal/proxy/session"
	"github.com/weirdb/weir/internal/wire/mywire"
)

// ahead sends commands without waiting for an answer, and returns the numbers of the
// errors that come before the connection ends; 0 is an OK.
func (c *wire) ahead(texts ...string) (codes []uint16) {
	c.tb.Helper()
	var all []byte
	for _, sql := range texts {
		all = append(all, c.query(sql)...)
	}
	c.send(all)
	for range texts {
		r, _ := c.hear(mywire.ComQuery)
		if r.lost != nil {
			break
		}
		codes = append(codes, r.code())
	}
	return codes
}

// TestWhatWasSentBehindARefusedBegin: what a client has sent ahead, to run in a transaction
// that weir does not begin, does not run in transactions of its own.
func TestWhatWasSentBehindARefusedBegin(t *testing.T) {
	t.Parallel()
	db := database(t, "CREATE TABLE t (k INT)", "CREATE DATABASE IF NOT EXISTS weir_elsewhere")
	refused := func(what string, codes []uint16, want uint16) {
		t.Helper()
		if len(codes) != 1 || codes[0] != want {
			t.Errorf("%s: the answers are %d, want %d and the end", what, codes, want)
		}
	}
	behind := func(first string) []string { return []string{first, "INSERT INTO t VALUES (1)", "COMMIT"} }

	t.Run("no backend", func(t *testing.T) {
		w := start(t, db, func(c *mysql.Config) { c.PoolSize, c.QueueTimeout = 1, 300*time.Millisecond })
		hold := func() *wire {
			c := w.dial(nil)
			eventually(t, "it has the backend, which may take longer than the queue's time", func() bool {
				r := c.try(c.query("BEGIN"))
				return r.lost == nil && r.code() == 0
			})
			return c
		}
		for _, first := range []string{"BEGIN", "START TRANSACTION READ ONLY", "SET autocommit = 0", "USE weir_elsewhere", "SET SESSION TRANSACTION READ ONLY"} {
			holder := hold()
			c := w.dial(nil)
			before := w.pool().Timeouts
			codes := make(chan []uint16, 1)
			go func() { codes <- c.ahead(behind(first)...) }()
			eventually(t, "it waits, then it is refused", func() bool { return w.pool().Timeouts > before })
			holder.must("ROLLBACK") // what is behind it could run now
			refused(first, <-codes, mywire.ErrTooManyConnections)
		}
		_ = hold()
		c := w.dial(nil)
		got := c.ahead("INSERT INTO t VALUES (2), (NULL)", "BEGIN")
		if len(got) != 2 || got[0] != mywire.ErrTooManyConnections {
			t.Errorf("what nothing relies on: %d", got)
		}
	})
	t.Run("mode statement", func(t *testing.T) {
		w := start(t, db, func(c *mysql.Config) { c.Mode = session.ModeStatement })
		c := w.dial(nil)
		refused("BEGIN", c.ahead(behind("BEGIN")...), mywire.ErrNotSupportedYet)
		c = w.dial(nil)
		for range 2 { // the waiter for the answer goes on
			if r := c.try(c.query("BEGIN")); r.code() != mywire.ErrNotSupportedYet {
				t.Errorf("BEGIN: %s %v", r.text, r.lost)
			}
		}
	})
	t.Run("lost", func(t *testing.T) {
		var armed atomic.Bool
		address := relayed(t, server(t).Addr(), func() (up, down func(p []byte) ([]byte, bool)) {
			up = func(p []byte) ([]byte, bool) {
				if bytes.Contains(p, []byte("START TRANSACTION")) && armed.CompareAndSwap(true, false) {
					return nil, false // the server must not answer it before the end
				}
				return p, true
			}
			return up, func(p []byte) ([]byte, bool) { return p, true }
		})
		w := start(t, db, func(c *mysql.Config) { c.MySQL.Address = address })
		c := w.dial(nil)
		c.must("DO 1")
		armed.Store(true)
		refused("START TRANSACTION", c.ahead(behind("START TRANSACTION")...), mywire.ErrNetRead)
	})
	if got := dialAt(t, server(t).Addr(), db, nil).one("SELECT COUNT(*) FROM t WHERE k = 1"); got != "0" {
		t.Errorf("%s rows were written outside the transaction", got)
	}
}
