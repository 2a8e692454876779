package mysql_test

import (
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/weirdb/weir/internal/lab"
	"github.com/weirdb/weir/internal/lab/labtest"
	"github.com/weirdb/weir/internal/proxy/mysql"
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
		held, entered := make(chan struct{}), make(chan struct{})
		go func() {
			_ = w.Loops[0].Call(t.Context(), func() { close(entered); <-held })
		}()
		<-entered
		c.send(c.query(read))
		relay.Cut()
		eventually(t, "the reset has arrived", func() bool { return !connectedTo(t, relay.Port()) })
		close(held)
		if r, _ := c.hear(mywire.ComQuery); r.err != nil || r.lost != nil {
			t.Fatalf("a read that was not sent: %v, %v", r.err, r.lost)
		}
	}
}

// connectedTo reports whether a connection to a port of this machine is open, as far as
// the side that has opened it knows.
func connectedTo(t *testing.T, port int) bool {
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
