package mysql_test

import (
	"bytes"
	"context"
	"net"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/weirdb/weir/internal/proxy/mysql"
	"github.com/weirdb/weir/internal/wire/mywire"
)

// The name of a lock is found behind letters and bytes that change their length with
// their case.
func TestLocksBehindOtherLetters(t *testing.T) {
	t.Parallel()
	w := start(t, database(t), nil)
	for _, before := range []string{"\xff", "Ⱥ", "\u212a", "İ"} {
		c := w.dial(nil)
		if got := c.one("SELECT /* " + strings.Repeat(before, 50) + " */ GET_LOCK('" + w.db + "', 0)"); got != "1" {
			t.Errorf("behind %q: GET_LOCK: %s", before, got)
		}
		if p := w.pool(); p.Pinned != 1 {
			t.Errorf("behind %q: %d sessions are pinned", before, p.Pinned)
		}
		c.one("SELECT RELEASE_LOCK('" + w.db + "')")
		eventually(t, "the pin is gone", func() bool { return w.pool().Pinned == 0 })
	}
}

// A COM_CHANGE_USER of several packets, one of them out of order, ends its session
// alone, also where it came behind a KILL under way. Until that has ended no more of it is
// read than of anything else that waits.
func TestLongChangeUserBehindAKill(t *testing.T) {
	t.Parallel()
	var shut atomic.Pointer[chan struct{}] // keeps weir's next connections waiting
	w := start(t, database(t), func(c *mysql.Config) {
		c.ConnectTimeout = patience
		c.MySQL.Dial = func(ctx context.Context, network, address string) (net.Conn, error) {
			if gate := shut.Load(); gate != nil {
				select {
				case <-*gate:
				case <-ctx.Done():
				}
			}
			return (&net.Dialer{}).DialContext(ctx, network, address)
		}
	})
	victim, killer := w.dial(nil), w.dial(nil)
	r := victim.begin(sleeps(w.db))
	w.onServer(t, "%"+w.db+"%", 1)
	gate := make(chan struct{})
	shut.Store(&gate)
	killer.send(query("KILL QUERY " + victim.id()))
	eventually(t, "the KILL is under way", func() bool { return w.snapshot().Cancels == 1 })
	before := w.snapshot().Loops[0].BytesIn
	long := append(mywire.AppendHeader(nil, mywire.MaxPayload, 0), mywire.ComChangeUser)
	long = append(long, bytes.Repeat([]byte{'u'}, mywire.MaxPayload-1)...)
	long = mywire.AppendPacket(long, 7, []byte("ser")) // 1 is the one in order
	sent := make(chan error, 1)
	go func() {
		_, err := killer.Conn.Write(long)
		sent <- err
	}()
	var read uint64
	eventually(t, "as much is read as waits", func() bool {
		last := read
		read = w.snapshot().Loops[0].BytesIn - before
		return read >= 256<<10 && read == last
	})
	if read > 1<<20 {
		t.Errorf("%d bytes are read for a client that waits", read)
	}
	close(gate)
	if err := <-sent; err != nil {
		t.Errorf("send: %v", err)
	}
	if _, payload := killer.packet(); !mywire.IsOK(payload) {
		t.Errorf("KILL QUERY: %q", payload)
	}
	if err := r.wait(); code(err) != mywire.ErrQueryInterrupted {
		t.Errorf("victim: %v, want 1317", err)
	}
	if _, payload := killer.packet(); mywire.ErrorCode(payload) != mywire.ErrMalformedPacket {
		t.Errorf("a COM_CHANGE_USER with a packet out of order: %.200q", payload)
	}
	if _, _, err := killer.tryPacket(); err == nil {
		t.Error("the session goes on")
	}
	if got := victim.one("SELECT 1"); got != "1" {
		t.Errorf("another session: %s", got)
	}
}
