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

// What a connection has written weakly, the next one with its line would see
// before it is committed.
func TestLineRestsWhenItsWritesAreCommitted(t *testing.T) {
	r := startRig(t, 1, "raft-ht", nil)
	g := r.nodes[r.leader()].gateway
	l := &line{g: g, s: session.New(session.Config{ID: 7})}
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
