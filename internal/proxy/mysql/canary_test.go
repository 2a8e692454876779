package mysql_test

import (
	"bytes"
	"database/sql"
	"io"
	"net"
	"sync/atomic"
	"testing"

	"github.com/weirdb/weir/internal/proxy/mysql"
	"github.com/weirdb/weir/internal/proxy/proxytest"
)

// gateway stands before a server. If it is silent the server is not told that the
// client understands reports of the session's state, although it has promised them.
func gateway(t *testing.T, server string, silent bool) (addr string) {
	t.Helper()
	return proxytest.Gateway(t, server, func(client, be net.Conn) {
		go func() {
			_, _ = io.Copy(client, be)
			_ = client.Close()
		}()
		go func() {
			defer be.Close()
			const sessionTrack = 1 << 7 // of the third byte of the capabilities
			head := make([]byte, 4+4)
			if _, err := io.ReadFull(client, head); err != nil {
				return
			}
			if silent {
				head[4+2] &^= sessionTrack
			}
			if _, err := be.Write(head); err == nil {
				_, _ = io.Copy(be, client)
			}
		}()
	})
}

// TestServerThatDoesNotReport: behind a gateway that reports no changes of sessions
// each keeps its connection, nothing is shared or grouped, and nothing of one session
// reaches another. Behind one that does, sessions share as ever.
func TestServerThatDoesNotReport(t *testing.T) {
	t.Parallel()
	for _, silent := range []bool{false, true} {
		db := database(t, "CREATE TABLE r (id int)", "CREATE PROCEDURE sets() SET SESSION max_error_count = 7")
		addr := gateway(t, server(t).Addr(), silent)
		w := start(t, db, func(c *mysql.Config) { c.MySQL.Address, c.PoolSize = addr, 4 })
		ctx := ctxFor(t)
		exec := func(c *sql.Conn, text string) {
			t.Helper()
			if _, err := c.ExecContext(ctx, text); err != nil {
				t.Fatalf("%s: %v", text, err)
			}
		}
		show := func(c *sql.Conn, text string) (value string) {
			t.Helper()
			if err := c.QueryRowContext(ctx, text).Scan(&value); err != nil {
				t.Fatalf("%s: %v", text, err)
			}
			return value
		}
		one, two := w.connect(nil), w.connect(nil)
		for range 10 {
			exec(one, "SELECT 1")
			exec(two, "SELECT 1")
			exec(one, "/* batch */ INSERT INTO r VALUES (1)")
		}
		exec(one, "CALL sets()")
		exec(one, "SET time_zone = '+03:00'")
		const ask = "SELECT concat(@@max_error_count = 7, ' ', @@time_zone = '+03:00')"
		for range 5 {
			if got := show(two, ask); got != "0 0" {
				t.Errorf("silent %v: another session has %q", silent, got)
			}
			if got := show(one, ask); got != "1 1" {
				t.Errorf("silent %v: the session has %q", silent, got)
			}
		}
		count := func() (untracked, reads, grouped uint64) {
			snap := w.snapshot()
			for i := range snap.Pools {
				untracked += snap.Pools[i].Pins["untracked"]
				reads += snap.Pools[i].Reads
				grouped += snap.Pools[i].Grouped
			}
			return untracked, reads, grouped
		}
		untracked, reads, grouped := count()
		if (untracked >= 2) != silent {
			t.Errorf("silent %v: %d sessions pinned as untracked", silent, untracked)
		}
		if silent && (reads > 0 || grouped > 0) {
			t.Errorf("%d statements were shared and %d grouped", reads, grouped)
		}
		if !silent { // reads of a shape are shared once it is known to be fast
			eventually(t, "reads are shared behind a gateway that reports", func() bool {
				exec(two, "SELECT 1")
				_, reads, _ = count()
				return reads > 0
			})
		}
		if err := one.Close(); err != nil {
			t.Fatal(err)
		}
		if got := show(w.connect(nil), ask); got != "0 0" {
			t.Errorf("silent %v: a new session has %q", silent, got)
		}
	}
}

// TestServerThatRefusesOnce: a server that cannot tell what weir has to know of it is asked again,
// which costs one connection, and once it tells, its writes are grouped.
func TestServerThatRefusesOnce(t *testing.T) {
	t.Parallel()
	needsMariaDB(t, "@@wsrep_on")
	var (
		refuses atomic.Bool
		asked   atomic.Int64
	)
	refuses.Store(true)
	addr := proxytest.Gateway(t, server(t).Addr(), func(client, be net.Conn) {
		go func() {
			_, _ = io.Copy(client, be)
			_ = client.Close()
		}()
		go func() {
			defer be.Close()
			buf := make([]byte, 32<<10)
			for {
				n, err := client.Read(buf)
				if err != nil {
					return
				}
				if at := bytes.Index(buf[:n], []byte("@@wsrep_on")); at >= 0 && refuses.Load() {
					copy(buf[at:], "@@wsrep_no")
					asked.Add(1)
				}
				if _, err := be.Write(buf[:n]); err != nil {
					return
				}
			}
		}()
	})
	w := start(t, database(t, "CREATE TABLE r (id int)"), func(c *mysql.Config) { c.MySQL.Address, c.PoolSize = addr, 16 })
	c := w.dial(nil)
	write := func() (grouped uint64) {
		c.must("/* batch */ INSERT INTO r VALUES (1)")
		return w.pool().Grouped
	}
	for range 10 {
		if write() > 0 {
			t.Fatal("a write was grouped at a server of which weir knows nothing")
		}
	}
	const size = 12
	holders := w.dials(size)
	for _, h := range holders {
		h.must("BEGIN")
	}
	for _, h := range holders {
		h.must("COMMIT")
	}
	eventually(t, "all connections are free", func() bool { p := w.pool(); return p.Free >= size && p.Free == p.Backends && p.Dialing == 0 })
	have, before := w.pool().Backends, asked.Load()
	w.AskForFactsAgain(ctxFor(t))
	eventually(t, "it is asked again", func() bool { return asked.Load() > before || w.pool().Backends < have-1 })
	if n := w.pool().Backends; n < have-1 {
		t.Errorf("%d of %d connections are left", n, have)
	}
	refuses.Store(false)
	w.AskForFactsAgain(ctxFor(t))
	eventually(t, "writes are grouped", func() bool { return write() > 0 })
}
