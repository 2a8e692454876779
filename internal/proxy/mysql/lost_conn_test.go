package mysql_test

import (
	"bytes"
	"fmt"
	"io"
	"net"
	"os"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/weirdb/weir/internal/lab"
	"github.com/weirdb/weir/internal/lab/labtest"
	"github.com/weirdb/weir/internal/proxy/mysql"
	"github.com/weirdb/weir/internal/proxy/proxytest"
	"github.com/weirdb/weir/internal/proxy/session"
	"github.com/weirdb/weir/internal/wire/mywire"
)

// Reads behind the one that the server was at work on when the connection broke are read
// elsewhere, in their order; that one's client is told.
func TestReadsGoOnElsewhere(t *testing.T) {
	t.Parallel()
	relay := labtest.Relay(t, server(t).Addr())
	w := start(t, database(t, "CREATE TABLE d (k INT)", "INSERT INTO d VALUES (7)"), func(c *mysql.Config) {
		c.MySQL.Address, c.PoolSize, c.ReadLanes = relay.Addr(), 1, 1
	})
	const read = "SELECT k FROM d"
	w.warmReads(read)
	c := w.dial(nil)
	c.one(read)
	relay.CutAfter(lab.ToServer, 5)
	c.send(append(c.query(read), append(c.query(read), c.query(read)...)...))
	for i := range 3 {
		r, _ := c.hear(mywire.ComQuery)
		switch {
		case r.lost != nil:
			t.Fatalf("read %d: %v", i, r.lost)
		case i == 0 && (r.err == nil || r.err.Code != mywire.ErrNetRead):
			t.Errorf("the first read: %+v, want error %d", r, mywire.ErrNetRead)
		case i > 0 && r.err != nil:
			t.Errorf("read %d: %v", i, r.err)
		}
	}
	if got := c.one(read); got != "7" {
		t.Errorf("afterwards: %s", got)
	}
}

// A statement that comes in the turn in which the connection is lost has not left weir.
func TestUnsentReadGoesElsewhere(t *testing.T) {
	t.Parallel()
	relay := labtest.Relay(t, server(t).Addr())
	w := start(t, database(t, "CREATE TABLE d (k INT)", "INSERT INTO d VALUES (7)"), func(c *mysql.Config) {
		c.MySQL.Address, c.PoolSize, c.ReadLanes = relay.Addr(), 1, 1
	})
	const read = "SELECT k FROM d"
	w.warmReads(read)
	c := w.dial(nil)
	c.one(read)
	for range 20 {
		w.cutUnsent(relay, func() { c.send(c.query(read)) })
		if r, _ := c.hear(mywire.ComQuery); r.err != nil || r.lost != nil {
			t.Fatalf("a read that was not sent: %v, %v", r.err, r.lost)
		}
	}
}

// A command whose client has just been given a connection of its own, which is lost before
// anything of it has left weir, runs on another: once.
func TestUnsentCommandGoesElsewhere(t *testing.T) {
	t.Parallel()
	for _, mode := range []session.Mode{session.ModeAuto, session.ModeSession} {
		t.Run(string(mode), func(t *testing.T) {
			t.Parallel()
			relay := labtest.Relay(t, server(t).Addr())
			db := database(t, "CREATE TABLE d (k INT)", "INSERT INTO d VALUES (0)", "CREATE TABLE m (k INT, t TEXT)")
			w := start(t, db, func(c *mysql.Config) { c.MySQL.Address, c.PoolSize, c.Mode = relay.Addr(), 1, mode })
			const rounds = 2
			for range rounds {
				for _, sql := range []string{"UPDATE d SET k = k + 1", "CREATE TEMPORARY TABLE x (k INT)", "SET @v = 7", "BEGIN", "SET NAMES latin1"} {
					before := w.dial(nil)
					before.one("SELECT 1") // that there is a connection
					_ = before.Close()
					c := w.dial(nil)
					w.cutUnsent(relay, func() { c.send(c.query(sql)) })
					if r, _ := c.hear(mywire.ComQuery); r.err != nil || r.lost != nil {
						t.Fatalf("%s, which was not sent: %v, %v", sql, r.err, r.lost)
					}
					switch sql {
					case "SET @v = 7":
						if got := c.one("SELECT @v"); got != "7" {
							t.Errorf("the variable behind %s: %s", sql, got)
						}
					case "BEGIN":
						c.must("INSERT INTO m VALUES (1, '')")
						c.must("ROLLBACK")
					}
					_ = c.Close()
				}
			}
			c := w.dial(nil)
			if got := c.one("SELECT CONCAT(k, ' ', (SELECT COUNT(*) FROM m)) FROM d"); got != fmt.Sprint(rounds, " 0") {
				t.Errorf("updated, and kept of what was rolled back: %s, want %d 0", got, rounds)
			}
		})
	}
}

// A variable that a client sets without a report from the server is lost with the connection on
// which weir was about to ask for its value: the session does not go on without it.
func TestSetWhoseValueIsLost(t *testing.T) {
	t.Parallel()
	needsMariaDB(t, "settings that it does not report")
	var cuts atomic.Bool
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
				if err != nil || bytes.Contains(buf[:n], []byte("SHOW WARNINGS")) && cuts.CompareAndSwap(true, false) {
					return
				}
				if _, err := be.Write(buf[:n]); err != nil {
					return
				}
			}
		}()
	})
	c := start(t, database(t), func(c *mysql.Config) { c.MySQL.Address = addr }).dial(nil)
	before := c.one("SELECT @@sort_buffer_size")
	cuts.Store(true)
	if r := c.try(c.query("SET @@sort_buffer_size = 1")); r.err != nil || r.lost != nil || r.ok.Warnings == 0 {
		t.Fatalf("the SET is answered by %s %v, want a warning", r.text, r.lost)
	}
	if r := c.try(c.query("SELECT @@sort_buffer_size = " + before)); r.err == nil && r.lost == nil {
		t.Errorf("the session goes on, with %s", r.text)
	}
	if cuts.Load() {
		t.Error("weir has asked for no warnings")
	}
}

// State that a session holds on a connection of its own is lost with it: the next command runs
// nowhere else, even if it was not sent.
func TestUnsentCommandOfASessionThatIsLost(t *testing.T) {
	t.Parallel()
	relay := labtest.Relay(t, server(t).Addr())
	w := start(t, database(t, "CREATE TABLE d (k INT)"), func(c *mysql.Config) { c.MySQL.Address, c.PoolSize = relay.Addr(), 1 })
	for _, before := range []string{"SET @v = 7", "BEGIN"} {
		c := w.dial(nil)
		c.must(before)
		w.cutUnsent(relay, func() { c.send(c.query("INSERT INTO d VALUES (1)")) })
		if r, _ := c.hear(mywire.ComQuery); r.err == nil || r.err.Code != mywire.ErrNetRead || strings.Contains(r.err.Message, "unknown") {
			t.Errorf("behind %s: %v, %v; want error %d that names no doubt", before, r.err, r.lost, mywire.ErrNetRead)
		}
	}
	if got := w.dial(nil).one("SELECT COUNT(*) FROM d"); got != "0" {
		t.Errorf("%s rows, want none", got)
	}
}

// cutUnsent has the connections to the server be lost in the turn in which weir reads what
// send sends.
func (w *weir) cutUnsent(relay *lab.Relay, send func()) {
	w.tb.Helper()
	held, entered := make(chan struct{}), make(chan struct{})
	go func() {
		_ = w.Loops[0].Call(w.tb.Context(), func() { close(entered); <-held })
	}()
	<-entered
	defer close(held)
	send()
	relay.Cut()
	eventually(w.tb, "the reset has arrived", func() bool { return !connectedTo(w.tb, relay.Port()) })
}

// connectedTo reports whether a connection to a port of this machine is open, as far as
// the side that has opened it knows.
func connectedTo(t testing.TB, port int) bool {
	t.Helper()
	text, err := os.ReadFile("/proc/net/tcp")
	if err != nil {
		t.Fatal(err)
	}
	const established = "01"
	for line := range strings.Lines(string(text)) {
		if f := strings.Fields(line); strings.HasSuffix(f[2], fmt.Sprintf(":%04X", port)) && f[3] == established {
			return true
		}
	}
	return false
}
