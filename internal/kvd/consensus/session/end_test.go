package session

import (
	"errors"
	"testing"

	"github.com/weirdb/weir/internal/kvd/wire"
)

func (p *script) end(tag uint64) error {
	err := p.s.End(p.now, tag)
	p.take()
	return err
}

func TestEnd(t *testing.T) {
	p := play(t, 3, "curp-ht", Config{Fast: Always})
	p.weak(1, "a")
	p.strong(2, "b")
	if err := p.end(3); !errors.Is(err, ErrFull) {
		t.Errorf("an end while writes are under way: %v", err)
	}
	p.receive(1, wire.Message{Kind: wire.WeakDone, Seq: 1})
	p.receive(1, spec(2, 3))
	p.receive(2, yes(2))
	p.receive(3, yes(2))
	if err := p.end(3); !errors.Is(err, ErrFull) {
		t.Errorf("an end while a weak write waits for its commit: %v", err)
	}
	p.receive(1, wire.Message{Kind: wire.WeakDone, Seq: 1, Stable: 2})
	p.sent()
	p.ended()
	if err := p.end(3); err != nil {
		t.Fatal(err)
	}
	p.sent("1 Strong 2/0 #3 end ack=2") // not on the fast path
	if err := p.end(4); !errors.Is(err, ErrFull) {
		t.Errorf("a second end: %v", err)
	}
	p.after(int64(p.s.cfg.Retry))
	p.sent("1 Strong 2/0 #3 end ack=2")
	p.done(3, 3, 9, "")
	p.ended("3 revision=9")
	if err := p.s.Write(p.now, 5, wire.Command{Verb: wire.Set, Key: "c"}, false); !errors.Is(err, ErrExpired) {
		t.Errorf("a write after the end: %v", err)
	}
	if err := p.end(6); !errors.Is(err, ErrExpired) {
		t.Errorf("an end after the end: %v", err)
	}
}

// The first answer to the end was lost, or the session was idle for too long:
// either way it is gone.
func TestEndOfAnExpiredSession(t *testing.T) {
	p := play(t, 3, "raft", Config{})
	if err := p.end(1); err != nil {
		t.Fatal(err)
	}
	p.receive(1, wire.Message{Kind: wire.Refused, Code: wire.CodeExpired, Seq: 1})
	p.ended("1")
}

// A session that is not registered has nothing to end.
func TestEndBeforeTheBeginning(t *testing.T) {
	s := New(Config{})
	if err := s.End(1, 7); err != nil {
		t.Fatal(err)
	}
	sends, ends := s.Take()
	if len(sends) != 0 || len(ends) != 1 || told(&ends[0]) != "7" || s.Open() != 0 {
		t.Errorf("sends %v, ends %v, %d under way", sends, ends, s.Open())
	}
}

// A replica of another version may not know a command. The writes after it are
// executed all the same.
func TestRefusedWriteLeavesNoGap(t *testing.T) {
	invalid := func(seq uint64) wire.Message {
		return wire.Message{Kind: wire.Refused, Code: wire.CodeInvalid, Seq: seq, Data: []byte("why")}
	}
	t.Run("weak", func(t *testing.T) {
		p := play(t, 3, "raft-ht", Config{})
		p.weak(1, "a")
		p.sent()
		p.receive(1, invalid(1))
		p.ended("1 invalid")
		p.sent("1 Strong 2/0 #1 ()") // nothing, in its place
		p.weak(2, "b")
		p.sent("1 Weak 2/0 #2 b")
		p.read(3, "a", false)
		p.sent("1 Read 2/0 a request=1") // nothing to wait for
		p.done(1, 1, 5, "nobody wants to know")
		p.receive(1, wire.Message{Kind: wire.WeakDone, Seq: 2, Stable: 2})
		p.ended("2")
		if p.s.Unstable() != 0 || p.s.Open() != 1 {
			t.Errorf("%d unstable, %d under way", p.s.Unstable(), p.s.Open())
		}
	})
	t.Run("weak, others after it", func(t *testing.T) {
		p := play(t, 3, "curp-ho", Config{Fast: Never})
		p.weak(1, "a")
		p.strong(2, "b") // carries the first along
		p.sent()
		p.receive(1, invalid(1))
		p.ended("1 invalid unknown")
		p.sent("1 Strong 2/0 #1 ()")
		p.receive(1, invalid(1)) // it came twice
		p.silent()
		p.done(2, 2, 6, "r")
		p.done(1, 2, 5, "")
		p.ended("2 result=r revision=6")
	})
	t.Run("strong on the fast path", func(t *testing.T) {
		p := play(t, 3, "curp", Config{Fast: Always})
		p.strong(1, "a")
		p.strong(2, "b")
		p.sent()
		p.receive(1, invalid(1))
		p.ended("1 invalid unknown")
		p.sent("1 Strong 2/0 #1 ()")
		p.strong(3, "c")
		p.sent("2 Record 2/0 #3 c prior=2 with 1s(())", "3 Record 2/0 #3 c prior=2 with 1s(())", "1 Strong 2/0 #3 c fast prior=2 with 1s(())")
		p.after(int64(p.s.cfg.Retry))
		p.done(1, 1, 5, "")
		p.ended()
	})
}

// An answer that is not kept ends the write all the same.
func TestAnswerThatIsNotKept(t *testing.T) {
	p := play(t, 3, "raft", Config{})
	p.strong(1, "a")
	p.strong(2, "b")
	p.receive(1, wire.Message{Kind: wire.Refused, Code: wire.CodeUnkept, Seq: 1})
	p.ended("1 executed, but the answer is lost unknown")
	p.sent()
	p.strong(3, "c")
	p.sent("1 Strong 2/0 #3 c ack=1")
}

// A registration that was sent twice may be granted twice. What is too much is
// given back.
func TestSecondGrantIsGivenBack(t *testing.T) {
	p := &script{t: t, s: New(Config{Requests: 9 << 32}), now: 1}
	p.s.Connected(p.now, 1)
	p.view(2, 1, "raft")
	p.after(int64(p.s.cfg.Retry))
	p.sent()
	granted := func(id uint64) {
		p.receive(1, wire.Message{Kind: wire.ReadDone, View: 2, Request: 9<<32 + 1, Revision: id, Count: 1})
	}
	granted(5)
	p.silent()
	granted(5) // the same once more
	p.silent()
	granted(6)
	p.sent("1 Strong 0/0 #1 end")
	if p.s.ID() != 5 {
		t.Errorf("session %d, want 5", p.s.ID())
	}
	p.read(1, "a", false)
	p.receive(1, wire.Message{Kind: wire.ReadDone, View: 2, Request: 9<<32 + 2})
	p.receive(1, wire.Message{Kind: wire.ReadDone, View: 2, Request: 9<<32 + 2, Revision: 3}) // no grant
	p.sent("1 Read 2/0 a request=38654705666")
}
