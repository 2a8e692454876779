package replica

import (
	"runtime"
	"slices"
	"sync"
	"testing"

	"github.com/weirdb/weir/internal/kvd/consensus/session"
	"github.com/weirdb/weir/internal/kvd/resp"
	"github.com/weirdb/weir/internal/kvd/wire"
)

// A line that is handed to a connection may be looked at by the gateway in the
// same moment. It has one connection at a time nevertheless.
func TestLineHasOneConnection(t *testing.T) {
	r := startRig(t, 1, "raft-ht", nil)
	g := r.nodes[r.leader()].gateway
	stop := make(chan struct{})
	var looking sync.WaitGroup
	looking.Go(func() {
		for {
			select {
			case <-stop:
				return
			default:
			}
			g.mu.Lock()
			lines := make([]*line, 0, len(g.lines))
			for _, l := range g.lines {
				lines = append(lines, l)
			}
			g.mu.Unlock()
			for _, l := range lines {
				g.retire(l, g.clock())
			}
			runtime.Gosched() // where there is one processor, the others go on
		}
	})
	var mu sync.Mutex
	open := map[resp.Session]bool{}
	var connections sync.WaitGroup
	for range 8 {
		connections.Go(func() {
			for range 500 {
				s := g.Open(&caller{t: t})
				mu.Lock()
				twice := open[s]
				open[s] = true
				mu.Unlock()
				if twice {
					t.Error("two connections have the same line")
					return
				}
				for range 20 {
					runtime.Gosched()
				}
				mu.Lock()
				delete(open, s)
				mu.Unlock()
				s.Close()
			}
		})
	}
	connections.Wait()
	close(stop)
	looking.Wait()
}

// A new connection with the session of an earlier one would see its weak writes before they are
// committed.
func TestLineRestsWhenItsWritesAreCommitted(t *testing.T) {
	r := startRig(t, 1, "raft-ht", nil)
	g := r.nodes[r.leader()].gateway
	l := &line{g: g, window: firstReads, s: session.New(session.Config{ID: 7})}
	if err := l.s.Write(1, 1, set("k", "v"), true); err != nil {
		t.Fatal(err)
	}
	idle := func() bool {
		g.retire(l, g.clock())
		g.mu.Lock()
		defer g.mu.Unlock()
		return slices.Contains(g.idle, l)
	}
	l.s.Receive(1, 1, &wire.Message{Kind: wire.WeakDone, Session: 7, Seq: 1})
	if l.s.Open() != 0 || idle() {
		t.Fatal("the line is given away while its write is not committed")
	}
	l.s.Receive(1, 1, &wire.Message{Kind: wire.WeakDone, Session: 7, Seq: 1, Stable: 1})
	if !idle() {
		t.Fatal("the line does not rest")
	}
}

// A WAIT comes after the writes before it, also after those that the session has not
// taken yet.
func TestWaitBehindQueuedWrites(t *testing.T) {
	r := startRig(t, 1, "raft-ht", nil)
	l := &line{g: r.nodes[r.leader()].gateway, window: firstReads, s: session.New(session.Config{ID: 7})}
	var read, written, waited resp.Reply
	l.Do([]resp.Request{
		{Command: wire.Command{Verb: wire.Get, Key: "k"}, Reply: &read},
		{Command: set("k", "v"), Reply: &written}, // behind the read, which must not see it
	})
	if len(l.queue) != 1 {
		t.Fatalf("%d requests are queued, want the write", len(l.queue))
	}
	l.Wait(0, 0, &waited)
	if _, done, err := waited.Outcome(); done {
		t.Fatalf("WAIT is answered (%v) before the write is sent", err)
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.s.Receive(1, 1, &wire.Message{Kind: wire.ReadDone, Request: 1, Data: (&wire.Result{Code: wire.NotFound}).Append(nil)})
	l.settle()
	if _, done, _ := read.Outcome(); !done {
		t.Fatal("the read is not answered")
	}
	if _, done, _ := waited.Outcome(); done {
		t.Fatal("WAIT is answered before the write is committed")
	}
	l.s.Receive(1, 1, &wire.Message{Kind: wire.Done, Session: 7, Seq: 1, Index: 9, Stable: 1, Data: new(wire.Result).Append(nil)})
	l.s.Receive(1, 1, &wire.Message{Kind: wire.ReadDone, Session: 7, Request: 2, Index: 9, Stable: 1})
	l.settle()
	if _, done, err := waited.Outcome(); !done || err != nil {
		t.Fatalf("WAIT after the commit: answered %v, %v", done, err)
	}
}

// A line has as many reads under way as the size of their answers lets expect to arrive.
func TestReadsUnderWay(t *testing.T) {
	r := startRig(t, 1, "raft-ht", nil)
	l := &line{g: r.nodes[r.leader()].gateway, window: firstReads, s: session.New(session.Config{ID: 7})}
	var batch []resp.Request
	for range 100 {
		batch = append(batch, resp.Request{Command: wire.Command{Verb: wire.Get, Key: "k"}, Reply: new(resp.Reply)})
	}
	l.Do(batch)
	l.mu.Lock()
	defer l.mu.Unlock()
	for i, tt := range []struct{ size, want int }{
		{0, firstReads + 1}, {100, firstReads + 2}, {6 << 20, firstReads + 1}, {6 << 20, firstReads}, {100, firstReads - 1},
	} {
		answer := wire.Result{Found: true, Value: make([]byte, tt.size)}
		l.s.Receive(1, 1, &wire.Message{Kind: wire.ReadDone, Request: uint64(i) + 1, Data: answer.Append(nil)})
		l.settle()
		if n := l.s.Reads(); n != tt.want {
			t.Errorf("%d reads are under way after an answer of %d bytes, want %d", n, tt.size, tt.want)
		}
	}
}
