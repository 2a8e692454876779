package session

import (
	"testing"
	"time"

	"github.com/weirdb/weir/internal/kvd/wire"
)

// A strong write that waits for its commit travels in the bundles of later fast
// ones, between the weak writes, in the order of their numbers. One whose votes
// are being gathered is named by Prior.
func TestBundleAndPrior(t *testing.T) {
	p := play(t, 3, "curp-ht", Config{Fast: Always})
	p.weak(1, "w")
	p.strong(2, "a")
	p.weak(3, "x")
	p.strong(4, "b")
	p.sent("1 Weak 2/0 #1 w",
		"2 Record 2/0 #2 a with 1w(w)", "3 Record 2/0 #2 a with 1w(w)", "1 Strong 2/0 #2 a fast with 1w(w)",
		"1 Weak 2/0 #3 x",
		"2 Record 2/0 #4 b prior=2 with 1w(w) 3w(x)", "3 Record 2/0 #4 b prior=2 with 1w(w) 3w(x)", "1 Strong 2/0 #4 b fast prior=2 with 1w(w) 3w(x)")

	p.receive(2, no(4)) // 4 waits for its commit, 2 does not yet
	p.strong(5, "c")
	p.sent("2 Record 2/0 #5 c prior=2 with 1w(w) 3w(x) 4s(b)", "3 Record 2/0 #5 c prior=2 with 1w(w) 3w(x) 4s(b)",
		"1 Strong 2/0 #5 c fast prior=2 with 1w(w) 3w(x) 4s(b)")

	p.receive(3, no(2))
	p.receive(1, wire.Message{Kind: wire.Spec, View: 2, Seq: 5}) // the leader declines, too
	p.strong(6, "d")
	p.sent("2 Record 2/0 #6 d with 1w(w) 2s(a) 3w(x) 4s(b) 5s(c)", "3 Record 2/0 #6 d with 1w(w) 2s(a) 3w(x) 4s(b) 5s(c)",
		"1 Strong 2/0 #6 d fast with 1w(w) 2s(a) 3w(x) 4s(b) 5s(c)")

	p.done(2, 2, 20, "") // and w with it
	p.strong(7, "e")
	p.sent("2 Record 2/0 #7 e prior=6 ack=2 with 3w(x) 4s(b) 5s(c)", "3 Record 2/0 #7 e prior=6 ack=2 with 3w(x) 4s(b) 5s(c)",
		"1 Strong 2/0 #7 e fast prior=6 ack=2 with 3w(x) 4s(b) 5s(c)")
	p.ended("1", "2 revision=20")
}

// A no of an older view says nothing about the votes that are being gathered.
func TestANoOfAnotherViewDeclinesNothing(t *testing.T) {
	p := play(t, 3, "curp", Config{Fast: Always})
	p.strong(1, "a")
	old := no(1)
	old.View = 1
	p.receive(2, old)
	p.sent()
	p.strong(2, "b")
	p.sent("2 Record 2/0 #2 b prior=1", "3 Record 2/0 #2 b prior=1", "1 Strong 2/0 #2 b fast prior=1")
}

// A write that is complete is no longer named: who holds it is settled.
func TestPriorOfACompleteWrite(t *testing.T) {
	p := play(t, 3, "curp", Config{Fast: Always})
	p.strong(1, "a")
	p.receive(1, spec(1, 3))
	p.receive(2, yes(1))
	p.receive(3, yes(1))
	p.sent()
	p.strong(2, "b")
	p.sent("2 Record 2/0 #2 b ack=1", "3 Record 2/0 #2 b ack=1", "1 Strong 2/0 #2 b fast ack=1")
}

// Weak writes are not sent again to a leader that has them; but when a write is sent again, the
// client does not know what the leader has, so they are.
func TestSlowWritesBringWeakOnesAlongWhenSentAgain(t *testing.T) {
	p := play(t, 3, "raft-ht", Config{})
	p.weak(1, "w")
	p.strong(2, "a")
	p.weak(3, "x")
	p.sent("1 Weak 2/0 #1 w", "1 Strong 2/0 #2 a", "1 Weak 2/0 #3 x")
	p.s.Connected(p.now, 1)
	p.sent("1 Weak 2/0 #1 w", "1 Strong 2/0 #2 a with 1w(w)", "1 Weak 2/0 #3 x")
}

// The nearest replica acknowledges a weak write only if all before it is known
// there. The strong ones it has never seen.
func TestWeakWritesAtTheNearest(t *testing.T) {
	p := play(t, 3, "curp-ho", Config{Fast: Never})
	p.s.Distance(1, 30)
	p.s.Distance(2, 20)
	p.s.Distance(3, 10)
	p.strong(1, "a")
	p.weak(2, "w")
	p.weak(3, "x")
	p.sent("1 Strong 2/0 #1 a", "3 Weak 2/0 #2 w nearest with 1s(a)", "3 Weak 2/0 #3 x nearest with 1s(a)")
	p.strong(4, "b") // what is at the nearest is not at the leader
	p.sent("1 Strong 2/0 #4 b with 2w(w) 3w(x)")
	p.done(1, 1, 9, "")
	p.s.Disconnected(p.now, 3)
	p.sent("2 Weak 2/0 #2 w nearest ack=1", "2 Weak 2/0 #3 x nearest ack=1")
}

// A weak read brings those of its session's uncommitted weak writes along that
// touch what it reads and were issued before it, also when it is sent again.
func TestWeakReadsBringOwnWrites(t *testing.T) {
	p := play(t, 3, "curp-ho", Config{})
	p.s.Distance(1, 30)
	p.s.Distance(2, 20)
	p.s.Distance(3, 10)
	p.weak(1, "a")
	p.weak(2, "b")
	p.weak(3, "a")
	p.sent()
	p.read(4, "a", true)
	if err := p.s.Read(p.now, 5, wire.Command{Verb: wire.Range, Key: "b"}, true); err != nil {
		t.Fatal(err)
	}
	p.read(6, "z", true)
	p.weak(7, "a")
	p.sent("3 WeakRead 0/0 a request=1 with 1w(a) 3w(a)", "3 WeakRead 0/0 b request=2 with 2w(b)", "3 WeakRead 0/0 z request=3", "3 Weak 2/0 #4 a nearest")
	p.receive(3, wire.Message{Kind: wire.WeakDone, View: 2, Seq: 3, Stable: 1, Index: 17})
	p.s.Disconnected(p.now, 3)
	p.sent("2 Weak 2/0 #2 b nearest ack=1", "2 WeakRead 2/17 a ack=1 request=1 with 3w(a)",
		"2 WeakRead 2/17 b ack=1 request=2 with 2w(b)", "2 WeakRead 2/17 z ack=1 request=3", "2 Weak 2/0 #4 a nearest ack=1")
}

// A weak read that touches a strong write under way would not see it.
func TestReadsAfterStrongWritesUnderWay(t *testing.T) {
	p := play(t, 3, "curp-ho", Config{Fast: Never})
	p.strong(1, "a")
	p.weak(2, "b")
	p.sent()
	p.read(3, "a", true)
	p.read(4, "b", false)
	p.read(5, "c", false) // 2 is not acknowledged, and touches something else
	p.sent("1 Read 2/0 #1 a request=1", "1 Read 2/0 #2 b request=2 with 2w(b)", "1 Read 2/0 c request=3")
	p.receive(1, wire.Message{Kind: wire.WeakDone, View: 2, Seq: 2, Index: 4})
	p.read(6, "c", false)
	p.sent("1 Read 2/0 #2 c request=4 with 2w(b)")
	p.done(1, 1, 5, "")
	p.read(7, "a", true)
	p.sent("1 WeakRead 2/5 a ack=2 request=5")
}

func TestWeakReadsAreStrongWhereTheClusterSaysSo(t *testing.T) {
	for _, preset := range []string{"raft", "curp"} {
		p := play(t, 3, preset, Config{})
		p.s.Distance(1, 30)
		p.read(1, "a", true)
		p.sent("1 Read 2/0 a request=1")
	}
}

// All that has no answer goes to the new leader in its order, and before it the
// weak writes that only the old one may have.
func TestNewViewSendsAgainInOrder(t *testing.T) {
	p := play(t, 3, "curp-ht", Config{Fast: Always})
	p.weak(1, "w")
	p.receive(1, wire.Message{Kind: wire.WeakDone, View: 2, Seq: 1, Index: 4})
	p.strong(2, "a")
	p.strong(3, "b")
	p.read(4, "z", true)
	p.read(5, "z", false)
	if err := p.s.Wait(p.now, 6); err != nil {
		t.Fatal(err)
	}
	p.receive(1, spec(2, 3))
	p.receive(2, yes(2))
	p.sent()
	p.ended("1")
	p.view(4, 3, "curp-ht")
	p.sent("3 Weak 4/0 #1 w ack=1",
		"1 Record 4/0 #2 a ack=1 with 1w(w)", "2 Record 4/0 #2 a ack=1 with 1w(w)", "3 Strong 4/0 #2 a fast ack=1 with 1w(w)",
		"1 Record 4/0 #3 b prior=2 ack=1 with 1w(w)", "2 Record 4/0 #3 b prior=2 ack=1 with 1w(w)", "3 Strong 4/0 #3 b fast prior=2 ack=1 with 1w(w)",
		"3 Read 4/0 #1 z ack=1 request=2 with 1w(w)",
		"3 Stable 0/0 #3 request=3")
	p.view(4, 3, "curp-ht") // told again
	p.view(2, 1, "curp-ht") // somebody who is late
	p.silent()
}

// A leader that the session cannot reach changes the view and nothing else.
func TestNewViewOfAStranger(t *testing.T) {
	p := play(t, 2, "raft", Config{})
	p.strong(1, "a")
	p.sent()
	p.view(3, 9, "raft")
	p.silent()
	p.s.Connected(p.now, 9)
	p.sent("9 Strong 3/0 #1 a")
}

func TestDisconnectedLeader(t *testing.T) {
	p := play(t, 3, "raft", Config{})
	p.strong(1, "a")
	p.read(2, "a", false)
	p.sent()
	p.s.Disconnected(p.now, 1)
	p.sent("2 Strong 2/0 #1 a", "2 Read 2/0 #1 a request=1")
	p.s.Disconnected(p.now, 2)
	p.s.Disconnected(p.now, 3)
	p.sent("3 Strong 2/0 #1 a", "3 Read 2/0 #1 a request=1") // and then nobody is left
	p.strong(3, "b")
	p.after(int64(time.Second))
	p.silent()
	p.s.Connected(p.now, 2)
	p.sent("2 Strong 2/0 #1 a", "2 Read 2/0 #1 a request=1", "2 Strong 2/0 #2 b")
}

// The wait doubles, up to sixteen times the first. A leader that does not answer three times in
// a row is no longer asked.
func TestRetries(t *testing.T) {
	p := play(t, 3, "raft", Config{Retry: 100})
	p.strong(1, "a")
	p.sent()
	var at []int64
	for p.now < 6000 {
		p.after(25)
		if len(p.sends) > 1 {
			t.Fatalf("at %d: %v", p.now, p.sends)
		}
		if len(p.sends) == 1 {
			at = append(at, p.now)
		}
		if lead, _ := p.s.Leader(); (lead == 1) != (len(at) < 3) {
			t.Errorf("after %d retries the leader is %d", len(at), lead)
		}
		p.sent()
	}
	last := int64(1)
	for i, want := range []int64{100, 200, 400, 800, 1600, 1600} {
		if i >= len(at) {
			t.Fatalf("retries at %v", at)
		}
		// Ticks look once per quarter of Retry.
		if d := at[i] - last; i > 0 && (d < want/2 || d > want+50) {
			t.Errorf("retry %d comes after %d, want %d; all: %v", i+1, d, want, at)
		}
		last = at[i]
	}
}

// An operation that its replica does not answer goes to the leader.
func TestWeakOperationsTurnToTheLeader(t *testing.T) {
	p := play(t, 3, "curp-ho", Config{Retry: 100})
	p.s.Distance(1, 30)
	p.s.Distance(2, 10)
	p.s.Distance(3, 20)
	p.weak(1, "a")
	p.read(2, "a", true)
	p.read(3, "b", true)
	p.sent("2 Weak 2/0 #1 a nearest", "2 WeakRead 0/0 a request=1 with 1w(a)", "2 WeakRead 0/0 b request=2")
	p.after(110)
	p.sent("1 Weak 2/0 #1 a", "1 Read 2/0 #1 a request=1 with 1w(a)", "1 Read 2/0 b request=2", "1 Weak 2/0 #1 a")
	p.receive(2, wire.Message{Kind: wire.ReadDone, View: 2, Index: 9, Request: 2, Data: []byte("late")})
	p.ended("3 result=late at=2/9") // it is what was asked for
}

func TestWait(t *testing.T) {
	p := play(t, 3, "curp-ht", Config{})
	wait := func(tag uint64) {
		t.Helper()
		if err := p.s.Wait(p.now, tag); err != nil {
			t.Fatal(err)
		}
	}
	wait(1)
	p.ended("1") // there is nothing to wait for
	p.weak(2, "a")
	p.receive(1, wire.Message{Kind: wire.WeakDone, View: 2, Seq: 1, Index: 4})
	p.sent()
	wait(3)
	p.weak(4, "b")
	wait(5)
	p.sent("1 Stable 0/0 #1 request=1", "1 Weak 2/0 #2 b ack=1", "1 Stable 0/0 #2 request=2")
	p.receive(1, wire.Message{Kind: wire.ReadDone, View: 2, Index: 6, Request: 1, Stable: 1})
	p.ended("2", "3 at=2/6")
	p.receive(1, wire.Message{Kind: wire.ReadDone, View: 2, Index: 7, Request: 2, Stable: 2})
	p.ended("4", "5 at=2/7")
	wait(6)
	p.ended("6")
}

// A write that is sent again brings along what comes before it, and nothing else.
func TestSentAgainAsItWasIssued(t *testing.T) {
	p := play(t, 3, "curp-ht", Config{Fast: Always})
	p.strong(1, "a")
	p.weak(2, "w")
	p.strong(3, "b")
	p.receive(2, no(1))
	p.receive(2, no(3))
	p.sent()
	p.s.Connected(p.now, 1)
	p.sent("2 Record 2/0 #1 a", "3 Record 2/0 #1 a", "1 Strong 2/0 #1 a fast",
		"1 Weak 2/0 #2 w",
		// Whether 1 gets its votes this time is open again.
		"2 Record 2/0 #3 b prior=1 with 2w(w)", "3 Record 2/0 #3 b prior=1 with 2w(w)", "1 Strong 2/0 #3 b fast prior=1 with 2w(w)")
}

// A view that is told again changes nothing, for weak operations either.
func TestTheSameViewAgain(t *testing.T) {
	p := play(t, 3, "curp-ho", Config{Fast: Never})
	p.s.Distance(1, 30)
	p.s.Distance(2, 10)
	p.s.Distance(3, 20)
	p.weak(1, "a")
	p.read(2, "a", true)
	p.strong(3, "b")
	p.sent()
	p.view(2, 1, "curp-ho")
	p.silent()
}

// While no leader is known, all waiting operations go to one replica after the other, and stay
// in order.
func TestAskingAround(t *testing.T) {
	p := play(t, 3, "raft", Config{Retry: 100})
	p.s.Disconnected(p.now, 1)
	p.s.Connected(p.now, 1)
	if lead, _ := p.s.Leader(); lead != 0 {
		t.Fatalf("leader %d", lead)
	}
	for i, key := range []string{"a", "b", "c"} {
		p.strong(uint64(i), key)
	}
	p.sent("2 Strong 2/0 #1 a", "2 Strong 2/0 #2 b", "2 Strong 2/0 #3 c")
	p.after(100)
	p.sent("3 Strong 2/0 #1 a", "3 Strong 2/0 #2 b", "3 Strong 2/0 #3 c")
	p.after(200)
	p.sent("1 Strong 2/0 #1 a", "1 Strong 2/0 #2 b", "1 Strong 2/0 #3 c")
	p.receive(1, wire.Message{Kind: wire.Redirect, View: 2, Seq: 1, Leader: 3})
	p.sent("3 Strong 2/0 #1 a")
	p.receive(1, wire.Message{Kind: wire.Redirect, View: 2, Seq: 2, Leader: 3})
	p.sent("3 Strong 2/0 #2 b")
}

// Round trips fluctuate: the same replica serves the session until another is clearly nearer,
// or until it is gone.
func TestTheNearestStaysTheSame(t *testing.T) {
	p := play(t, 3, "curp-ho", Config{})
	far := func(a, b, c time.Duration) {
		p.s.Distance(1, int64(a))
		p.s.Distance(2, int64(b))
		p.s.Distance(3, int64(c))
	}
	for i, c := range []struct {
		a, b, c time.Duration
		want    uint64
	}{
		{10 * time.Millisecond, 20 * time.Millisecond, 30 * time.Millisecond, 1},
		{10 * time.Millisecond, 8 * time.Millisecond, 30 * time.Millisecond, 1},
		{10 * time.Millisecond, 6 * time.Millisecond, 30 * time.Millisecond, 2},
		{8 * time.Millisecond, 9 * time.Millisecond, 7 * time.Millisecond, 2},
		{80 * time.Microsecond, 90 * time.Microsecond, 20 * time.Microsecond, 2},
		{time.Hour, time.Hour, time.Microsecond, 3},
	} {
		far(c.a, c.b, c.c)
		if got := p.s.nearest(); got != c.want {
			t.Errorf("step %d: nearest is %d, want %d", i, got, c.want)
		}
	}
	for _, c := range []struct{ gone, want uint64 }{{3, 1}, {1, 2}, {2, 0}} {
		p.s.Disconnected(p.now, c.gone)
		if got := p.s.nearest(); got != c.want {
			t.Errorf("when %d is gone: nearest is %d, want %d", c.gone, got, c.want)
		}
	}
}

// Weak operations stay weak however long no replica is connected: the first one that comes back
// may serve them, even without a leader.
func TestWeakOperationsWaitForAConnection(t *testing.T) {
	p := play(t, 1, "curp-ho", Config{Retry: 100})
	p.s.Disconnected(p.now, 1)
	p.weak(1, "a")
	p.read(2, "a", true)
	p.after(1000)
	p.silent()
	p.s.Connected(p.now, 2)
	p.sent("2 Weak 2/0 #1 a nearest", "2 WeakRead 0/0 a request=1 with 1w(a)")
}
