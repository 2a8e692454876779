package session

import (
	"errors"
	"strings"
	"testing"

	"github.com/weirdb/weir/internal/kvd/consensus"
	"github.com/weirdb/weir/internal/kvd/wire"
)

func TestSwitchesOfPresets(t *testing.T) {
	for _, name := range consensus.PresetNames() {
		want, err := consensus.Preset(name)
		if err != nil {
			t.Fatal(err)
		}
		got := decodeSwitches(want.Encode())
		if got.fast != want.Fast || uint8(got.weakWrites) != uint8(want.WeakWrites) || uint8(got.weakReads) != uint8(want.WeakReads) {
			t.Errorf("%s: %+v is read as %+v", name, want, got)
		}
	}
	if uint8(quorum) != uint8(consensus.Quorum) || uint8(leader) != uint8(consensus.Leader) || uint8(nearest) != uint8(consensus.Nearest) {
		t.Error("levels are numbered in another way than in package consensus")
	}
}

func TestWritesOfBothLevelsShareTheNumbers(t *testing.T) {
	p := play(t, 3, "raft-ht", Config{})
	p.strong(1, "a")
	p.weak(2, "b")
	p.strong(3, "c")
	p.sent("1 Strong 2/0 #1 a", "1 Weak 2/0 #2 b", "1 Strong 2/0 #3 c")
}

// A number that is never sent would hold back all that come after it.
func TestRefusedCallsTakeNoNumber(t *testing.T) {
	p := play(t, 3, "raft-ht", Config{MaxOpen: 2, MaxUnstable: 150})
	set := func(key string, size int) wire.Command {
		return wire.Command{Verb: wire.Set, Key: key, Value: make([]byte, size)}
	}
	refused := func(what string, want, err error) {
		t.Helper()
		if !errors.Is(err, want) {
			t.Errorf("%s: %v, want %v", what, err, want)
		}
	}
	refused("a query as a write", ErrInvalid, p.s.Write(1, 1, wire.Command{Verb: wire.Get, Key: "a"}, false))
	refused("a write as a query", ErrInvalid, p.s.Read(1, 1, set("a", 1), false))
	refused("nonsense", ErrInvalid, p.s.Write(1, 1, wire.Command{Verb: 99}, false))
	refused("a long key", ErrInvalid, p.s.Write(1, 1, set(strings.Repeat("k", wire.MaxKey+1), 1), false))
	refused("a weak write with an answer", ErrInvalid, p.s.Write(1, 1, wire.Command{Verb: wire.Increment, Key: "a", Delta: 1}, true))
	p.silent()

	if err := p.s.Write(1, 1, set("a", 100), true); err != nil {
		t.Fatal(err)
	}
	refused("bytes of weak writes", ErrFull, p.s.Write(1, 2, set("b", 100), true))
	p.strong(3, "c")
	refused("a third write", ErrFull, p.s.Write(1, 4, set("d", 1), false))
	refused("a third read", ErrFull, p.s.Read(1, 4, wire.Command{Verb: wire.Get, Key: "d"}, true))
	refused("a third wait", ErrFull, p.s.Wait(1, 4))
	p.sent("1 Weak 2/0 #1 a", "1 Strong 2/0 #2 c")

	p.done(2, 2, 10, "ok") // and the weak write with it
	p.ended("1", "3 result=ok revision=10")
	p.strong(5, "d")
	p.sent("1 Strong 2/0 #3 d ack=2")
}

// One weak write may be larger than the bound, or it could never be written.
func TestALargeWeakWriteGoesAlone(t *testing.T) {
	p := play(t, 3, "raft-ht", Config{MaxUnstable: 1})
	p.weak(1, "a")
	if err := p.s.Write(1, 2, wire.Command{Verb: wire.Set, Key: "b"}, true); !errors.Is(err, ErrFull) {
		t.Fatalf("a second one: %v", err)
	}
	p.receive(1, wire.Message{Kind: wire.WeakDone, View: 2, Seq: 1, Stable: 0, Index: 3})
	if err := p.s.Write(1, 2, wire.Command{Verb: wire.Set, Key: "b"}, true); !errors.Is(err, ErrFull) {
		t.Fatalf("a second one while the first is acknowledged and not committed: %v", err)
	}
	p.receive(1, wire.Message{Kind: wire.WeakDone, View: 2, Seq: 1, Stable: 1, Index: 4})
	p.weak(2, "b")
	p.ended("1")
	if n := p.s.Unstable(); n != 1 {
		t.Errorf("%d weak writes wait for their commit, want 1", n)
	}
}

// The leader forgets the answers up to Ack: it must have no gap.
func TestAckHasNoGap(t *testing.T) {
	p := play(t, 3, "raft", Config{})
	for i := range uint64(4) {
		p.strong(i+1, "a")
	}
	p.sent()
	p.done(2, 3, 11, "x")
	p.done(3, 3, 12, "x")
	p.strong(5, "a")
	p.sent("1 Strong 2/0 #5 a")
	p.done(1, 3, 10, "x")
	p.strong(6, "a")
	p.sent("1 Strong 2/0 #6 a ack=3")
	p.done(3, 3, 12, "x") // a stray copy
	p.ended("2 result=x revision=11", "3 result=x revision=12", "1 result=x revision=10")
}

// A replica can tell which writes of a session it has only when the session has
// a number. A read that comes before all writes needs none.
func TestOnlyFirstReadsGoBeforeTheRegistration(t *testing.T) {
	p := &script{t: t, s: New(Config{Requests: 5 << 32}), now: 1}
	p.silent()
	p.s.Connected(1, 1)
	p.s.Connected(1, 2)
	p.view(2, 1, "curp-ho")
	const first = "21474836481" // 5<<32 + 1
	p.sent("1 Register 0/0 request="+first, "1 Register 0/0 request="+first)
	p.read(1, "a", true)
	p.read(2, "a", false)
	p.sent("1 WeakRead 0/0 a request=21474836482", "1 Read 2/0 a request=21474836483")
	p.strong(3, "a")
	p.weak(4, "b")
	p.read(5, "b", true)
	p.silent()
	p.receive(1, wire.Message{Kind: wire.ReadDone, View: 2, Index: 8, Request: 5<<32 + 1, Revision: 30})
	p.sent("1 Strong 2/0 #1 a", "1 Weak 2/0 #2 b nearest with 1s(a)", "1 WeakRead 0/0 b request=21474836484 with 2w(b)")
	p.receive(1, wire.Message{Kind: wire.ReadDone, View: 2, Index: 8, Request: 5<<32 + 1, Revision: 31})
	if got := p.s.ID(); got != 30 {
		t.Errorf("session %d, want 30, the one granted first", got)
	}
	p.ended()
}

func TestMaxOpenIsFreedByOutcomes(t *testing.T) {
	p := play(t, 3, "curp", Config{Fast: Always, MaxOpen: 1})
	p.strong(1, "a")
	if err := p.s.Write(1, 2, wire.Command{Verb: wire.Set, Key: "a"}, false); !errors.Is(err, ErrFull) {
		t.Fatalf("the second of one: %v", err)
	}
	p.receive(2, yes(1))
	p.receive(3, yes(1))
	p.receive(1, spec(1, 3))
	p.ended("1 fast result=early")
	p.strong(2, "a")
	if n := p.s.Open(); n != 1 {
		t.Errorf("%d under way, want 1", n)
	}
}
