package replica

import (
	"errors"
	"runtime"
	"slices"
	"sync"
	"testing"

	"github.com/weirdb/weir/internal/kvd/consensus/session"
	"github.com/weirdb/weir/internal/kvd/resp"
	"github.com/weirdb/weir/internal/kvd/wire"
	"github.com/weirdb/weir/internal/testkit"
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

// Local reads, and those that are asked again, are under way as many at a time as others.
func TestReadsUnderWayAgain(t *testing.T) {
	r := startRig(t, 1, "raft-ht", nil)
	for _, level := range []resp.Level{resp.Strong, resp.Local} {
		l := &line{g: r.nodes[r.leader()].gateway, window: firstReads, s: session.New(session.Config{ID: 7})}
		get := wire.Command{Verb: wire.Get, Key: "k"}
		l.mu.Lock()
		for i := range uint64(100) {
			l.entries = append(l.entries, entry{reply: new(resp.Reply), level: level, waits: true})
			l.park(unfit{tag: i, command: get.Append(nil), size: 1 << 20})
		}
		l.settle()
		if n := l.s.Reads() + l.locally(); n != firstReads {
			t.Errorf("level %v: %d reads are asked for again at a time, want %d", level, n, firstReads)
		}
		l.mu.Unlock()
	}
	l := &line{g: r.nodes[r.leader()].gateway, window: firstReads, s: session.New(session.Config{ID: 7})}
	replies := make([]resp.Reply, 100)
	l.mu.Lock()
	for i := range replies {
		read := resp.Request{Command: wire.Command{Verb: wire.Get, Key: "k"}, Level: resp.Local, Reply: &replies[i]}
		if err := l.issue(l.g.clock(), &read, false); err != nil {
			t.Fatal(err)
		}
	}
	l.settle()
	if n := l.locally(); n != firstReads {
		t.Errorf("%d local reads are under way, want %d", n, firstReads)
	}
	l.mu.Unlock()
	testkit.Eventually(t, "all are answered", func() bool {
		l.mu.Lock()
		defer l.mu.Unlock()
		return len(l.entries) == 0
	})
}

// Reads that wait for those before them have no second time of their own: all end when
// nothing was answered for as long as a request may take.
func TestTimeOfReadsThatWait(t *testing.T) {
	r := startRig(t, 1, "raft-ht", nil)
	l := &line{g: r.nodes[r.leader()].gateway, window: firstReads, s: session.New(session.Config{ID: 7})}
	replies := make([]resp.Reply, 3*firstReads)
	var batch []resp.Request
	for i := range replies {
		batch = append(batch, resp.Request{Command: wire.Command{Verb: wire.Get, Key: "k"}, Reply: &replies[i]})
	}
	begin := l.g.clock()
	l.Do(batch)
	l.mu.Lock()
	defer l.mu.Unlock()
	l.moved, l.marked = begin, true // nobody is to flush the replies
	get := wire.Command{Verb: wire.Get, Key: "k"}
	tag := l.first + uint64(len(l.entries))
	var parked resp.Reply
	l.entries = append(l.entries, entry{reply: &parked, waits: true, deadline: begin + int64(patience)})
	l.park(unfit{tag: tag, command: get.Append(nil)})
	end := l.g.clock() + int64(patience)
	for now := begin; now <= end; now += int64(patience) / 10 {
		l.expire(now)
	}
	l.expire(end)
	for i := range replies {
		if _, done, err := replies[i].Outcome(); !done || !errors.Is(err, resp.ErrNoQuorum) {
			t.Fatalf("read %d: answered %v, %v", i, done, err)
		}
	}
	if _, done, err := parked.Outcome(); !done || !errors.Is(err, resp.ErrNoQuorum) {
		t.Fatalf("the read that is to be asked again: answered %v, %v", done, err)
	}
	l.settle()
	if len(l.again) > 0 {
		t.Error("a read whose time has passed is to be asked again")
	}
}

// A read that was under way when one before it was put off is asked again, too: else the
// client would see the state go back.
func TestReadsBehindOneThatIsPutOff(t *testing.T) {
	r := startRig(t, 1, "raft-ht", nil)
	l := &line{g: r.nodes[r.leader()].gateway, window: firstReads, s: session.New(session.Config{ID: 7})}
	var replies [2]resp.Reply
	l.Do([]resp.Request{
		{Command: wire.Command{Verb: wire.Get, Key: "k"}, Reply: &replies[0]},
		{Command: wire.Command{Verb: wire.Get, Key: "k"}, Reply: &replies[1]},
	})
	l.mu.Lock()
	defer l.mu.Unlock()
	answer := func(request uint64, value string) {
		result := wire.Result{Found: true, Value: []byte(value)}
		l.s.Receive(1, 1, &wire.Message{Kind: wire.ReadDone, Request: request, Data: result.Append(nil)})
		l.settle()
	}
	l.entries[0].stale = true // it is put off
	answer(1, "old")
	answer(2, "old")
	if result, done, _ := replies[1].Outcome(); done {
		t.Fatalf("the second read is answered with %q, before the first", result.Value)
	}
	answer(3, "new")
	answer(4, "new")
	if result, done, _ := replies[1].Outcome(); !done || string(result.Value) != "new" {
		t.Fatalf("the second read, asked again: answered %v with %q", done, result.Value)
	}
}

// Weak reads are answered though strong ones before them had their time: those are cancelled,
// and leave their places in the window to others.
func TestWeakReadsBehindStrongOnesThatFailed(t *testing.T) {
	r := startRig(t, 1, "raft-ht", nil)
	l := &line{g: r.nodes[r.leader()].gateway, window: firstReads, s: session.New(session.Config{ID: 7})}
	get := wire.Command{Verb: wire.Get, Key: "k"}
	var batch []resp.Request
	strong := make([]resp.Reply, 2*firstReads)
	for i := range strong {
		batch = append(batch, resp.Request{Command: get, Reply: &strong[i]})
	}
	weak := make([]resp.Reply, 2*firstReads)
	for i := range weak {
		batch = append(batch, resp.Request{Command: get, Level: resp.OwnSession, Reply: &weak[i]})
	}
	l.Do(batch)
	l.mu.Lock()
	defer l.mu.Unlock()
	l.marked = true // nobody is to flush the replies
	now := l.g.clock() + int64(patience)
	l.expire(now)
	for i := range strong {
		if _, done, err := strong[i].Outcome(); !done || !errors.Is(err, resp.ErrNoQuorum) {
			t.Fatalf("strong read %d: answered %v, %v", i, done, err)
		}
	}
	l.settle()
	l.expire(now + int64(patience)/2)
	for i := range weak {
		if _, done, err := weak[i].Outcome(); done {
			t.Fatalf("weak read %d is given up with the strong ones: %v", i, err)
		}
	}
	if n := l.s.Reads(); n != firstReads || len(l.queue) != firstReads {
		t.Errorf("%d reads are under way and %d wait, want %d and %d weak ones", n, len(l.queue), firstReads, firstReads)
	}
	answer := wire.Result{Found: true, Value: []byte("v")}
	for request := range uint64(4*firstReads + 1) {
		l.s.Receive(now, 1, &wire.Message{Kind: wire.ReadDone, Request: request, Data: answer.Append(nil)})
		l.settle()
	}
	for i := range weak {
		if result, done, err := weak[i].Outcome(); !done || string(result.Value) != "v" {
			t.Fatalf("weak read %d: answered %v with %q, %v", i, done, result.Value, err)
		}
	}
	if l.s.Open() != 0 {
		t.Errorf("the session pursues %d operations that nobody waits for", l.s.Open())
	}
}
