package peer

import (
	"bytes"
	"errors"
	"io"
	"testing"
	"time"

	"github.com/weirdb/weir/internal/kvd/wire"
	"github.com/weirdb/weir/internal/testkit"
)

// TestQueueOnItsOwnTime drives the queue by hand. Times are microseconds.
func TestQueueOnItsOwnTime(t *testing.T) {
	type add struct{ at, due int64 } // due: of the first chunk, after adding
	const us = int64(time.Microsecond)
	for _, tt := range []struct {
		name           string
		delay, latency int64
		adds           []add
		chunks         []int // messages in each
	}{
		{"neither", 0, 0, []add{{0, 0}, {5, 5}, {9000, 9000}}, []int{3}},
		{"delay", 150, 0, []add{{10, 160}, {100, 160}, {159, 160}, {170, 170}}, []int{4}},
		{"latency", 0, 1000, []add{{10, 1010}, {29, 1029}, {30, 1029}, {900, 1029}}, []int{2, 1, 1}},
		{"both", 100, 1000, []add{{10, 1110}, {109, 1110}, {110, 1110}}, []int{2, 1}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			q, none := queue{delay: tt.delay * us, latency: tt.latency * us}, &flow{}
			for i, a := range tt.adds {
				m := numbered(i+1, 1)[0]
				q.add(a.at*us, &m, m.Size(), none)
				if got := q.due() / us; got != a.due {
					t.Errorf("after message %d the first is due at %d, want %d", i+1, got, a.due)
				}
			}
			var all []wire.Message
			for _, want := range tt.chunks {
				run := q.take(none)
				checksum(run)
				ms, _, err := readAll(bytes.NewReader(run), maxFrame)
				if len(ms) != want || !errors.Is(err, io.EOF) {
					t.Errorf("chunk of %d messages, %v, want %d", len(ms), err, want)
				}
				all = append(all, ms...)
				q.recycle(run)
			}
			checkNumbered(t, all, len(tt.adds))
			if !q.empty() || q.bytes != 0 {
				t.Errorf("%d chunks and %d bytes are left", len(q.chunks), q.bytes)
			}
			if got := none.messages.Load(); got != uint64(len(tt.adds)) {
				t.Errorf("%d messages counted", got)
			}
		})
	}
}

func TestQueueKeepsLittleMemory(t *testing.T) {
	const keepSpare = 64 << 10
	q := queue{keep: keepSpare}
	none := &flow{}
	m := wire.Message{Kind: wire.Raft, Data: make([]byte, 2*keepSpare)}
	q.add(0, &m, m.Size(), none)
	q.recycle(q.take(none))
	if cap(q.spare) != 0 {
		t.Errorf("%d bytes kept", cap(q.spare))
	}
	m.Data = m.Data[:1000]
	q.add(0, &m, m.Size(), none)
	q.recycle(q.take(none))
	if got := testing.AllocsPerRun(100, func() {
		q.add(0, &m, m.Size(), none)
		q.recycle(q.take(none))
	}); got != 0 {
		t.Errorf("%v allocations for a message", got)
	}
}

// TestArtificialLatency wants round trips to take as long as asked, and order to
// be kept. How much longer they take is for the benchmark to say.
func TestArtificialLatency(t *testing.T) {
	far := func(from, to uint64) time.Duration { return time.Duration(from*10+to) * time.Millisecond }
	nodes := mesh(t, 3, func(o *Options) { o.Latency = far })
	for i, n := range nodes {
		for j := range nodes {
			if i != j {
				testkit.Eventually(t, "a round trip", func() bool { return n.RTT(Addr(j+1)).Min > 0 })
				if got, least := n.RTT(Addr(j+1)).Min, far(uint64(i+1), uint64(j+1))+far(uint64(j+1), uint64(i+1)); got < least {
					t.Errorf("round trip of %v from %d to %d, must be at least %v", got, i+1, j+1, least)
				}
			}
		}
	}
	for i := range 1000 {
		mustSend(t, nodes[0].to(2), numbered(1+i*5, 5))
	}
	checkNumbered(t, nodes[1].awaitCount(t, 1, 5000), 5000)

	// A client asks for its own, both ways.
	nodes[0].on(func(from Addr, ms []wire.Message) {
		if from.Client() {
			_, _ = nodes[0].Send(from, ms)
		}
	})
	c, r := dialClient(t, nodes[0].Addr(), func(o *ClientOptions) { o.Latency = 15 * time.Millisecond })
	begin := time.Now()
	mustSend(t, c.Send, numbered(1, 1))
	r.awaitCount(t, 0, 1)
	if took := time.Since(begin); took < 30*time.Millisecond {
		t.Errorf("answer after %v", took)
	}
	testkit.Eventually(t, "a round trip", func() bool { return c.RTT().Min >= 30*time.Millisecond })
}

// TestFixedDelay wants messages to gather for as long as asked.
func TestFixedDelay(t *testing.T) {
	const delay = 5 * time.Millisecond
	nodes := mesh(t, 2, func(o *Options) { o.Delay = delay })
	testkit.Eventually(t, "a round trip", func() bool { return nodes[0].RTT(2).Min > 0 })
	// The answer may go with what has been gathering there for a while.
	if got := nodes[0].RTT(2).Min; got < delay {
		t.Errorf("round trip of %v, must be at least %v", got, delay)
	}
	for range 20 {
		before := nodes[0].Stats().Peers[0].Sent.Calls
		begin := time.Now()
		for i := range 10 {
			mustSend(t, nodes[0].to(2), numbered(i+1, 1))
		}
		took := time.Since(begin)
		nodes[1].await(t, "all", func() bool { return len(nodes[1].got[1]) == 10 })
		nodes[1].recorder.lock.Lock()
		nodes[1].got[1] = nil
		nodes[1].recorder.lock.Unlock()
		testkit.Eventually(t, "the count", func() bool { return nodes[0].Stats().Peers[0].Sent.Calls > before })
		// Sent within the delay, they go together; a ping may go with its own.
		if calls := nodes[0].Stats().Peers[0].Sent.Calls - before; took < delay && calls > 3 {
			t.Errorf("%d calls for 10 messages sent within %v", calls, took)
		}
	}
}

// A delay that is changed while connections last holds for them from then on, and for
// those to come.
func TestDelayIsChangedWhileItRuns(t *testing.T) {
	const delay = 5 * time.Millisecond
	nodes := mesh(t, 2, nil)
	echo := func(n *node) func(Addr, []wire.Message) {
		return func(from Addr, ms []wire.Message) { _, _ = n.Send(from, ms) }
	}
	nodes[1].on(echo(nodes[1]))
	sent := 0
	trip := func() time.Duration {
		sent++
		begin := time.Now()
		mustSend(t, nodes[0].to(2), numbered(sent, 1))
		nodes[0].await(t, "the echo", func() bool { return len(nodes[0].got[2]) == sent })
		return time.Since(begin)
	}
	trip()
	for _, n := range nodes {
		if err := n.SetDelay(delay); err != nil {
			t.Fatal(err)
		}
	}
	slowest := func() time.Duration { return max(trip(), trip(), trip()) } // one may meet pings that have been waiting
	if took := slowest(); took < delay {
		t.Errorf("round trip of %v with a delay of %v each way", took, delay)
	}
	nodes[0].Disconnect(2, errors.New("a test"))
	nodes[0].await(t, "a new connection", func() bool { return nodes[0].ups[2] == 2 })
	nodes[0].recorder.lock.Lock()
	nodes[0].got[2], sent = nil, 0
	nodes[0].recorder.lock.Unlock()
	if slowest() < delay {
		t.Errorf("a connection that came later has no delay")
	}
	if err := nodes[0].SetDelay(time.Second); err == nil || nodes[0].Delay() != delay {
		t.Errorf("a delay of 1s: %v, and it is %v", err, nodes[0].Delay())
	}
	for _, n := range nodes {
		if err := n.SetDelay(0); err != nil {
			t.Fatal(err)
		}
	}
	testkit.Eventually(t, "a round trip that is quicker than the delay that was taken away", func() bool { return trip() < delay })
}

func TestPacerIsNeverEarly(t *testing.T) {
	for _, exact := range []bool{false, true} {
		p := &pacer{}
		p.open(time.Now(), exact)
		defer p.close()
		for _, d := range []time.Duration{0, time.Microsecond, 100 * time.Microsecond, 300 * time.Microsecond, 25 * time.Millisecond} {
			due := int64(time.Since(p.origin) + d)
			naps := 1
			for ; !p.nap(due); naps++ {
			}
			if now := int64(time.Since(p.origin)); now < due {
				t.Errorf("%v, exact %v: woke %d ns early", d, exact, due-now)
			}
			if d > napAtMost && naps < 2 {
				t.Errorf("%v in one nap", d)
			}
		}
	}
}
