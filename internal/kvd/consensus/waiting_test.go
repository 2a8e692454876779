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
		l.later(client, &wire.Message{Kind: wire.Strong, Session: s, Seq: 1, Data: large}, nil)
	}
	if n := len(l.delayed); n == 0 || n > maxWaitingBytes/len(large)+1 {
		t.Errorf("%d large requests wait for the view", n)
	}
}
