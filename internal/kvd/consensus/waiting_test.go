package consensus

import (
	"testing"

	"github.com/weirdb/weir/internal/kvd/wire"
)

// A leader bounds what waits by bytes, too: a few large writes are as much as many.
func TestLeaderBoundsBytes(t *testing.T) {
	r := newRig(t, 3, "raft")
	lead := r.leader()
	s := r.session(lead)
	r.nodes[lead].stuck = true // nothing is committed
	large := append([]byte("set k "), make([]byte, 32<<20)...)
	for seq := uint64(1); seq <= 16; seq++ {
		r.deliver(lead, wire.Message{Kind: wire.Strong, Session: s, Seq: seq, Data: large})
	}
	l := r.nodes[lead].core.lead
	if got := l.queue.Bytes(); got > maxWaitingBytes+2*len(large) {
		t.Errorf("%d bytes wait, want about %d", got, maxWaitingBytes)
	}
	refused := 0
	e := r.nodes[lead].core.Take(r.now)
	for _, m := range e.Sends {
		if m.Message.Kind == wire.Refused && m.Message.Code == wire.CodeBusy {
			refused++
		}
	}
	if refused == 0 {
		t.Error("nobody was told that too much waits")
	}

	l = newLeadership(r.nodes[lead].core)
	for range 16 {
		l.delay(client, &wire.Message{Kind: wire.Strong, Session: s, Seq: 1, Data: large}, nil)
	}
	if n := len(l.delayed); n == 0 || n > maxWaitingBytes/len(large)+1 {
		t.Errorf("%d large requests wait for the view", n)
	}
}

// Writes that wait for an earlier one of their session are bounded by bytes, of each session
// and of all of them, and are taken in once that is here.
func TestEarlyWritesAreBounded(t *testing.T) {
	r := newRig(t, 3, "raft")
	lead := r.leader()
	l := r.nodes[lead].core.lead
	large := append([]byte("set k "), make([]byte, 8<<20)...)
	var sessions []uint64
	for range maxWaitingBytes/maxHeldBytes + 2 {
		sessions = append(sessions, r.session(lead))
	}
	write := func(s, seq uint64) {
		r.deliver(lead, wire.Message{Kind: wire.Strong, Session: s, Seq: seq, Request: seq, Data: large})
	}
	refused := func() (n int) {
		r.settle()
		for _, m := range r.take(wire.Refused) {
			if m.Code == wire.CodeBusy {
				n++
			}
		}
		return n
	}
	const each = 6
	for seq := uint64(each); seq > 1; seq-- {
		write(sessions[0], seq)
		write(sessions[0], seq) // again
	}
	held := l.early.of[sessions[0]]
	if held.bytes > maxHeldBytes+2*len(large) || len(held.writes) != (maxHeldBytes-1)/weight(&wire.Message{Data: large})+1 {
		t.Errorf("%d writes of %d bytes of one session wait", len(held.writes), held.bytes)
	}
	if n := refused(); n == 0 {
		t.Error("nobody was told that too much waits")
	}
	for _, s := range sessions[1:] {
		for seq := uint64(each); seq > 1; seq-- {
			write(s, seq)
		}
	}
	if got := l.early.bytes; got > maxWaitingBytes+2*len(large) {
		t.Errorf("%d bytes of all sessions wait", got)
	}
	refused()

	// The one that they wait for is taken in, and so are they.
	first := sessions[0]
	for seq := uint64(1); seq <= each; seq++ {
		r.deliver(lead, wire.Message{Kind: wire.Strong, Session: first, Seq: seq, Request: seq, Data: []byte("set k v")})
		r.settle()
	}
	if l.early.of[first] != nil || l.nextSeq(l.c.state.sessions.get(first)) != each+1 {
		t.Errorf("the session's next write is %d", l.nextSeq(l.c.state.sessions.get(first)))
	}
	sum := 0
	for _, s := range l.early.of {
		own := 0
		for _, w := range s.writes {
			own += weight(w.m)
		}
		if own != s.bytes {
			t.Errorf("%d bytes of a session, counted as %d", own, s.bytes)
		}
		sum += own
	}
	if sum != l.early.bytes {
		t.Errorf("%d bytes wait, counted as %d", sum, l.early.bytes)
	}
}
