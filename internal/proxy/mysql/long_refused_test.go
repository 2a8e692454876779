package mysql_test

import (
	"strings"
	"testing"
	"time"

	"github.com/weirdb/weir/internal/proxy/mysql"
	"github.com/weirdb/weir/internal/wire/mywire"
)

// TestErrorsBehindLongMessages: weir's own error to a command of several packets has the
// sequence number that the server's would have, and comes when the command is read.
func TestErrorsBehindLongMessages(t *testing.T) {
	t.Parallel()
	w := start(t, database(t), func(c *mysql.Config) {
		c.PoolSize, c.QueueTimeout, c.MaxMessage = 1, 300*time.Millisecond, 40<<20
	})
	holder, c := w.dial(nil), w.dial(nil)
	refused := func(what, sql string, code uint16, want byte) {
		t.Helper()
		c.patient()
		c.send(c.query(sql))
		seq, payload := c.packet()
		if e, err := mywire.ParseError(payload); err != nil || e.Code != code || seq != want {
			t.Errorf("%s: packet %d %.80q, want error %d in packet %d", what, seq, payload, code, want)
		}
	}
	comment := func(size int) string { return "SELECT /*" + strings.Repeat("x", size) + "*/ 1" }
	eventually(t, "it has the backend, which may take longer than the queue's time", func() bool {
		r := holder.try(holder.query("BEGIN"))
		return r.lost == nil && r.code() == 0
	})
	refused("no backend is free", "SELECT @a := 1", mywire.ErrTooManyConnections, 1)
	refused("no backend is free for a command of two packets", comment(17<<20), mywire.ErrTooManyConnections, 2)
	refused("no backend is free for a command of three packets", comment(34<<20), mywire.ErrTooManyConnections, 3)
	refused("no backend is free for a command that fills two packets", comment(2*mywire.MaxPayload-len(comment(0))-1), mywire.ErrTooManyConnections, 3)
	holder.must("ROLLBACK")
	if got := c.one("SELECT 5"); got != "5" {
		t.Errorf("then: %s", got)
	}
	refused("it is too long", comment(41<<20), mywire.ErrPacketTooLarge, 3)
	if _, _, err := c.tryPacket(); err == nil {
		t.Error("the connection goes on")
	}
}

// TestClientsThatStopInARefusedMessageAreEnded: a client that stops in the middle of a message
// which is refused once it has arrived keeps no place.
func TestClientsThatStopInARefusedMessageAreEnded(t *testing.T) {
	t.Parallel()
	w := start(t, database(t), func(c *mysql.Config) { c.PoolSize, c.QueueTimeout, c.MaxMessage = 1, 300*time.Millisecond, 1<<20 })
	w.RestWithin(ctxFor(t), 300*time.Millisecond)
	holder := w.dial(nil)
	eventually(t, "it has the backend, which may take longer than the queue's time", func() bool {
		r := holder.try(holder.query("BEGIN"))
		return r.lost == nil && r.code() == 0
	})
	for what, size := range map[string]int{"too long": 2 << 20, "no backend is free": 1<<20 - 100} {
		c := w.dial(nil)
		message := c.query("SELECT /*" + strings.Repeat("x", size) + "*/ 1")
		c.send(message[:len(message)-1])
		for {
			_, payload, err := c.tryPacket()
			if err != nil {
				break
			}
			if e, err := mywire.ParseError(payload); what != "no backend is free" || err != nil || e.Code != mywire.ErrTooManyConnections {
				t.Errorf("%s: %.80q", what, payload)
			}
		}
	}
	eventually(t, "no other session is left", func() bool { return w.snapshot().Clients == 1 })
	holder.must("ROLLBACK")
}
