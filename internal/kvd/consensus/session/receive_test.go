package session

import (
	"fmt"
	"testing"

	"github.com/weirdb/weir/internal/kvd/wire"
)

// said is a message on its way from a replica.
type said struct {
	from uint64
	m    wire.Message
}

func with(m wire.Message, change func(*wire.Message)) wire.Message {
	change(&m)
	return m
}

func inView(view uint64) func(*wire.Message) { return func(m *wire.Message) { m.View = view } }

// since is the position of the last change of the members that the sender knows.
func since(index uint64) func(*wire.Message) { return func(m *wire.Message) { m.Revision = index } }

// A write completes on votes only with the leader's word and, with it, a fast
// quorum of different replicas, all in one view and of one configuration (S4).
func TestFastCompletion(t *testing.T) {
	const never = -1
	applied := func(m *wire.Message) { m.Flags |= wire.FlagApplied }
	for _, c := range []struct {
		name   string
		n      int // connected replicas
		events []said
		at     int // which event completes it
	}{
		{"three of three", 3, []said{{1, spec(1, 3)}, {2, yes(1)}, {3, yes(1)}}, 2},
		{"votes come first", 3, []said{{3, yes(1)}, {2, yes(1)}, {1, spec(1, 3)}}, 2},
		{"four of five", 5, []said{{2, yes(1)}, {5, yes(1)}, {1, spec(1, 5)}, {3, yes(1)}}, 3},
		{"three of four", 4, []said{{2, yes(1)}, {1, spec(1, 4)}, {4, yes(1)}}, 2},
		{"two of three", 3, []said{{1, spec(1, 3)}, {2, yes(1)}, {3, no(1)}}, never},
		{"a no and enough others", 5, []said{{2, no(1)}, {1, spec(1, 5)}, {3, yes(1)}, {4, yes(1)}, {5, yes(1)}}, 4},
		{"a witness that has applied it", 3, []said{{1, spec(1, 3)}, {2, with(yes(1), applied)}, {3, yes(1)}}, 2},
		{"no word of the leader", 3, []said{{2, yes(1)}, {3, yes(1)}, {1, yes(1)}}, never},
		{"the leader declines", 3, []said{{2, yes(1)}, {3, yes(1)}, {1, wire.Message{Kind: wire.Spec, View: 2, Seq: 1, Count: 3}}}, never},
		{"the word of another", 3, []said{{2, spec(1, 3)}, {2, yes(1)}, {3, yes(1)}, {1, yes(1)}}, never},
		{"a vote twice", 3, []said{{1, spec(1, 3)}, {2, yes(1)}, {2, yes(1)}}, never},
		{"the leader's word twice", 3, []said{{1, spec(1, 3)}, {1, spec(1, 3)}, {2, yes(1)}}, never},
		{"the leader as a witness", 3, []said{{1, spec(1, 3)}, {1, yes(1)}, {2, yes(1)}}, never},
		{"a vote of an older view", 3, []said{{1, spec(1, 3)}, {2, with(yes(1), inView(1))}, {3, yes(1)}}, never},
		{"a vote of a newer view", 3, []said{{1, spec(1, 3)}, {2, with(yes(1), inView(3))}, {3, yes(1)}}, never},
		{"all of a view that is not this one", 3, []said{{1, with(spec(1, 3), inView(3))}, {2, with(yes(1), inView(3))}, {3, with(yes(1), inView(3))}}, never},
		{"a voter before the change of members", 3, []said{{1, with(spec(1, 3), since(8))}, {2, with(yes(1), since(8))}, {3, yes(1)}}, never},
		{"a leader before the change of members", 3, []said{{1, spec(1, 3)}, {2, with(yes(1), since(8))}, {3, with(yes(1), since(8))}}, never},
		{"all after the change of members", 3, []said{{1, with(spec(1, 3), since(8))}, {2, with(yes(1), since(8))}, {3, with(yes(1), since(8))}}, 2},
		{"a learner says no", 4, []said{{4, no(1)}, {1, spec(1, 3)}, {2, yes(1)}, {3, yes(1)}}, 3},
		{"of another session", 3, []said{{1, spec(1, 3)}, {2, yes(1)}, {3, with(yes(1), func(m *wire.Message) { m.Session = 8 })}}, never},
		{"of another write", 3, []said{{1, spec(1, 3)}, {2, yes(1)}, {3, yes(2)}}, never},
	} {
		t.Run(c.name, func(t *testing.T) {
			p := play(t, c.n, "curp", Config{Fast: Always})
			p.strong(1, "a")
			p.strong(2, "b")
			for i, e := range c.events {
				p.receive(e.from, e.m)
				if i == c.at {
					p.ended("1 fast result=early")
				} else {
					p.silentEnd(i)
				}
			}
			// Without the votes, the commit completes it; it never does twice.
			p.done(1, 1, 30, "late")
			if c.at == never {
				p.ended("1 result=late revision=30")
			} else {
				p.silentEnd(len(c.events))
			}
		})
	}
}

// silentEnd says that nothing has ended after an event.
func (p *script) silentEnd(event int) {
	p.t.Helper()
	if len(p.ends) > 0 {
		p.t.Errorf("event %d ends %v", event, p.ends)
		p.ends = nil
	}
}

// The leader whose word came counts once, also when it is no longer known as the
// leader by the time the last vote arrives.
func TestTheLeadersVoteCountsOnceWhicheverReplicaLeads(t *testing.T) {
	p := play(t, 5, "curp", Config{Fast: Always})
	p.strong(1, "a")
	p.read(2, "b", false)
	p.receive(1, spec(1, 5))
	p.receive(1, yes(1))
	p.receive(2, yes(1))
	p.receive(1, wire.Message{Kind: wire.Redirect, View: 2, Request: 1})
	if lead, _ := p.s.Leader(); lead != 0 {
		t.Fatalf("leader %d", lead)
	}
	p.receive(3, yes(1))
	p.silentEnd(0)
	p.receive(4, yes(1))
	p.ended("1 fast result=early")
}

// Votes that were gathered in the old view are no use in the new one.
func TestVotesBeforeANewView(t *testing.T) {
	p := play(t, 3, "curp", Config{Fast: Always})
	p.strong(1, "a")
	p.receive(2, yes(1))
	p.receive(3, yes(1))
	p.view(3, 1, "curp")
	p.receive(1, with(spec(1, 3), inView(3)))
	p.receive(2, yes(1)) // of the old view, late
	p.receive(2, with(yes(1), inView(3)))
	p.silentEnd(3)
	p.receive(3, with(yes(1), inView(3)))
	p.ended("1 fast result=early")
	if got := p.s.Token(); got != (Token{3, 11}) {
		t.Errorf("token %v, want that of the word in the new view", got)
	}
}

// A write that did not ask for votes has none.
func TestVotesForASlowWrite(t *testing.T) {
	p := play(t, 3, "curp", Config{Fast: Never})
	p.strong(1, "a")
	p.receive(1, spec(1, 3))
	p.receive(2, yes(1))
	p.receive(3, yes(1))
	p.silentEnd(2)
}

// Neither part of a token goes back, whatever comes late.
func TestTokensNeverGoBack(t *testing.T) {
	p := play(t, 3, "curp-ho", Config{Fast: Never})
	want := func(view, index uint64) {
		t.Helper()
		if got := p.s.Token(); got != (Token{view, index}) {
			t.Errorf("token %v, want %d/%d", got, view, index)
		}
	}
	for i := range uint64(5) {
		p.read(i, "a", i%2 == 0)
	}
	p.strong(6, "b")
	answer := func(request, view, index uint64) {
		p.receive(2, wire.Message{Kind: wire.ReadDone, Request: request, View: view, Index: index})
	}
	answer(1, 2, 10)
	want(2, 10)
	answer(2, 1, 15) // a replica that has not heard of the view, and is ahead
	want(2, 15)
	answer(3, 2, 5)
	want(2, 15)
	answer(4, 0, 0)
	want(2, 15)
	p.done(1, 1, 12, "")
	want(2, 15)
	p.receive(1, wire.Message{Kind: wire.WeakDone, View: 3, Seq: 9, Index: 4})
	want(3, 15)
	p.s.Join(Token{1, 40})
	want(3, 40)
	p.receive(1, wire.Message{Kind: wire.Done, View: 9, Index: 90, Session: 8, Seq: 1}) // another session's
	want(3, 40)
	p.sent()
	p.read(7, "z", true)
	p.sent("1 WeakRead 3/40 z ack=1 request=6")
	p.ended("0 at=2/10", "1 at=1/15", "2 at=2/5", "3", "6 revision=12")
}

// A weak write that is no longer brought along is one that the token covers.
func TestStableWritesAreCoveredByTheToken(t *testing.T) {
	for _, kind := range []wire.Kind{wire.WeakDone, wire.Done} {
		p := play(t, 3, "curp-ho", Config{Fast: Never})
		p.weak(1, "a")
		p.weak(2, "a")
		p.sent()
		p.receive(2, wire.Message{Kind: kind, View: 2, Seq: 1, Stable: 1, Index: 33})
		p.read(3, "a", true)
		p.sent("1 WeakRead 2/33 a ack=1 request=1 with 2w(a)")
	}
}

func TestRedirects(t *testing.T) {
	redirect := func(from, request, view, leader uint64) said {
		return said{from, wire.Message{Kind: wire.Redirect, View: view, Request: request, Leader: leader}}
	}
	for _, c := range []struct {
		name   string
		event  said
		leader uint64
		want   []string
	}{
		{"to another", redirect(1, 1, 2, 3), 3, []string{"3 Read 2/0 a request=1"}},
		{"to a stranger", redirect(1, 1, 2, 9), 0, nil},
		{"to nobody", redirect(1, 1, 2, 0), 0, nil},
		{"to itself", redirect(1, 1, 2, 1), 0, nil},
		{"by one who is late", redirect(1, 1, 1, 3), 1, nil},
		{"by one who was not asked", redirect(2, 1, 2, 3), 1, nil},
		{"of another request", redirect(1, 5, 2, 3), 1, nil},
	} {
		t.Run(c.name, func(t *testing.T) {
			p := play(t, 3, "curp-ho", Config{})
			p.read(1, "a", false)
			p.sent()
			p.receive(c.event.from, c.event.m)
			if lead, _ := p.s.Leader(); lead != c.leader {
				t.Errorf("leader %d, want %d", lead, c.leader)
			}
			if c.want == nil {
				p.silent()
			} else {
				p.sent(c.want...)
			}
		})
	}
}

// A weak operation that its replica cannot serve goes to the leader, as a read
// with the same sight.
func TestRedirectsOfWeakOperations(t *testing.T) {
	p := play(t, 3, "curp-ho", Config{})
	p.s.Distance(1, 30)
	p.s.Distance(2, 10)
	p.s.Distance(3, 20)
	p.weak(1, "a")
	p.weak(2, "b")
	p.read(3, "a", true)
	p.sent()
	p.receive(2, wire.Message{Kind: wire.Redirect, View: 2, Seq: 1, Leader: 1})
	p.sent("1 Weak 2/0 #1 a")
	p.receive(2, wire.Message{Kind: wire.Redirect, View: 2, Request: 1})
	p.sent("1 Read 2/0 #1 a request=1 with 1w(a)")
}

func TestRefusals(t *testing.T) {
	t.Run("busy is asked again", func(t *testing.T) {
		p := play(t, 3, "raft", Config{Retry: 100})
		p.strong(1, "a")
		p.read(2, "a", false)
		p.sent()
		p.receive(1, wire.Message{Kind: wire.Refused, Code: wire.CodeBusy, Seq: 1})
		p.receive(1, wire.Message{Kind: wire.Refused, Code: wire.CodeBusy, Request: 1})
		p.silent()
		p.after(100)
		p.sent("1 Strong 2/0 #1 a", "1 Read 2/0 #1 a request=1")
	})
	t.Run("invalid ends one operation", func(t *testing.T) {
		p := play(t, 3, "raft", Config{})
		p.read(1, "a", false)
		p.read(2, "a", false)
		p.receive(1, wire.Message{Kind: wire.Refused, Code: wire.CodeInvalid, Request: 1, Data: []byte("why")})
		p.ended("1 invalid")
		if n := p.s.Open(); n != 1 {
			t.Errorf("%d under way, want 1", n)
		}
	})
	t.Run("expired of another session", func(t *testing.T) {
		p := play(t, 3, "raft", Config{})
		p.strong(1, "a")
		p.sent()
		p.receive(1, wire.Message{Kind: wire.Refused, Code: wire.CodeExpired, Session: 8, Seq: 1})
		p.silent()
	})
}

// A write that is refused where it was sent, once, did not happen: the session had
// expired before, as after an hour without a write; nor did those after it. One that was
// sent again may have happened, and so may those before the refused one.
func TestExpiredBeforeItWasSent(t *testing.T) {
	for _, preset := range []string{"raft", "raft-ht", "curp", "curp-ht", "curp-ho"} {
		p := play(t, 3, preset, Config{})
		p.strong(1, "a")
		p.strong(2, "b")
		p.strong(3, "c")
		p.sent()
		p.receive(1, wire.Message{Kind: wire.Refused, Code: wire.CodeExpired, Seq: 2})
		p.ended("1 expired unknown", "2 expired", "3 expired")
	}
	p := play(t, 3, "raft", Config{})
	p.strong(1, "a")
	p.after(3e8) // it is sent again
	p.sent()
	p.receive(1, wire.Message{Kind: wire.Refused, Code: wire.CodeExpired, Seq: 1})
	p.ended("1 expired unknown")
}

// Requests that were sent may have happened; those that were never announced have not. Reads and
// waits change nothing either way.
func TestExpiredEndsEverything(t *testing.T) {
	p := play(t, 1, "curp-ho", Config{Fast: Never})
	p.strong(1, "a")
	p.weak(2, "b")
	p.read(3, "a", false)
	p.read(4, "b", true)
	if err := p.s.Wait(p.now, 5); err != nil {
		t.Fatal(err)
	}
	p.s.Disconnected(p.now, 1)
	p.strong(6, "c")
	p.weak(7, "d")
	p.after(3e8)
	p.sent()
	p.receive(1, wire.Message{Kind: wire.Refused, Code: wire.CodeExpired, Seq: 1})
	p.ended("1 expired unknown", "2 expired unknown", "3 expired", "4 expired", "5 expired", "6 expired", "7 expired")
	if p.s.Open() != 0 || p.s.Unstable() != 0 {
		t.Errorf("%d under way, %d weak writes left", p.s.Open(), p.s.Unstable())
	}
	for i, err := range []error{
		p.s.Write(p.now, 8, wire.Command{Verb: wire.Set, Key: "a"}, false),
		p.s.Read(p.now, 8, wire.Command{Verb: wire.Get, Key: "a"}, false),
		p.s.Wait(p.now, 8),
	} {
		if fmt.Sprint(err) != ErrExpired.Error() {
			t.Errorf("call %d of an expired session: %v", i, err)
		}
	}
	p.after(1e12)
	p.done(1, 1, 9, "too late")
	p.silent()
}

// Answers end what they are for, once, and nothing else.
func TestStrayAnswers(t *testing.T) {
	p := play(t, 3, "raft-ht", Config{})
	p.strong(1, "a")
	p.read(2, "a", false)
	p.sent()
	p.receive(1, wire.Message{Kind: wire.WeakDone, View: 2, Seq: 1}) // it is not weak
	p.receive(1, wire.Message{Kind: wire.ReadDone, View: 2, Request: 7})
	p.receive(1, wire.Message{Kind: wire.ReadDone, View: 2})
	p.receive(1, wire.Message{Kind: wire.ReadDone, View: 2, Request: 1, Session: 8})
	p.receive(1, wire.Message{Kind: wire.Done, View: 2, Seq: 2})
	p.receive(1, wire.Message{Kind: wire.Inspect})
	p.silent()
	p.receive(1, wire.Message{Kind: wire.ReadDone, View: 2, Request: 1, Index: 5})
	p.done(1, 1, 6, "ok")
	p.done(1, 1, 6, "ok")
	p.ended("2 at=2/5", "1 result=ok revision=6")
}
