package consensus

import (
	"strings"
	"testing"

	"github.com/weirdb/weir/internal/kvd/wire"
)

func (r *rig) write(to, session, seq uint64, command string) {
	r.deliver(to, wire.Message{Kind: wire.Strong, Session: session, Seq: seq, Data: []byte(command)})
}

func (r *rig) end(to, session, seq uint64) {
	r.deliver(to, wire.Message{Kind: wire.Strong, Flags: wire.FlagEnd, Session: session, Seq: seq, Ack: seq - 1})
}

// A session ends after its writes, is forgotten everywhere, and nothing of it is
// executed afterwards, however late it comes.
func TestSessionEnds(t *testing.T) {
	r := newRig(t, 3, "curp-ho")
	lead := r.leader()
	s, other := r.session(lead), r.session(lead)
	r.end(lead, s, 3) // earlier than what comes before it
	r.deliver(lead, wire.Message{Kind: wire.Weak, Session: s, Seq: 2, Data: []byte("set b 1")})
	r.settle()
	if len(r.take(wire.Done))+len(r.take(wire.WeakDone)) > 0 {
		t.Fatal("an end, or a write, overtook the write before it")
	}
	r.write(lead, s, 1, "add a x")
	r.tick(10)
	done := r.take(wire.Done)
	if len(done) != 2 || done[0].Seq != 1 || done[1].Seq != 3 || done[1].Revision != 0 {
		t.Fatalf("answers: %v", done)
	}
	for _, id := range r.order {
		n := r.nodes[id]
		if st := n.core.Status(); st.Sessions != 1 || st.Counters.Ended != 1 || n.core.state.sessions.get(other) == nil {
			t.Errorf("replica %d has %d sessions, %d ended", id, st.Sessions, st.Counters.Ended)
		}
		if got := strings.Join(n.words.log, ", "); got != "add a x, set b 1" {
			t.Errorf("replica %d has applied %s", id, got)
		}
	}
	r.inbox = nil
	r.end(lead, s, 3)
	r.write(lead, s, 1, "add a x")
	r.write(lead, s, 4, "add a x")
	r.deliver(lead, wire.Message{Kind: wire.Weak, Session: s, Seq: 2, Data: []byte("set b 1")})
	r.settle()
	if got := r.take(wire.Refused); len(got) != 4 || got[0].Code != wire.CodeExpired {
		t.Errorf("after the end: %v", got)
	}
	if n := len(r.nodes[lead].words.log); n != 2 {
		t.Errorf("%d writes are applied, want 2", n)
	}
}

// A write that follows the end, before that is committed, is refused.
func TestWriteAfterTheEnd(t *testing.T) {
	r := newRig(t, 3, "raft")
	lead := r.leader()
	s := r.session(lead)
	r.end(lead, s, 1)
	r.write(lead, s, 2, "add a x")
	r.settle()
	if got := r.one(wire.Refused); got.Code != wire.CodeExpired || got.Seq != 2 {
		t.Errorf("refused: %v", got)
	}
	if done := r.one(wire.Done); done.Seq != 1 || len(r.nodes[lead].words.log) != 0 {
		t.Errorf("done: %v, applied %q", done, r.nodes[lead].words.log)
	}
}

// A record of a session that is gone does not come back into the pool from the
// disk, nor stay there when a snapshot says that the session is gone: it would keep
// its keys off the fast path until the next view.
func TestPoolForgetsSessionsThatAreGone(t *testing.T) {
	r := newRig(t, 3, "curp")
	for _, id := range r.order {
		cfg := r.nodes[id].core.cfg
		cfg.SnapshotBytes, cfg.KeepBytes = 200, 1
		r.start(id, cfg)
	}
	lead := r.leader()
	gone, busy := r.session(lead), r.session(lead)
	r.tick(2)
	view := r.nodes[lead].core.witness.view
	witness := lead%3 + 1
	r.deliver(witness, wire.Message{Kind: wire.Record, View: view, Session: gone, Seq: 1, Data: []byte("add a x")})
	r.settle()
	if n := len(r.nodes[witness].core.witness.pool.records); n != 1 {
		t.Fatalf("%d records in the pool, want 1", n)
	}
	// The witness hears of nothing until its leader has only a snapshot for it.
	r.cut[[2]uint64{lead, witness}] = true
	r.write(lead, gone, 1, "add a x")
	r.settle()
	r.end(lead, gone, 2)
	for seq := uint64(1); seq <= 40; seq++ {
		r.deliver(lead, wire.Message{Kind: wire.Strong, Session: busy, Seq: seq, Ack: seq - 1, Data: []byte("set b xxxxxxxxxxxxxxx")})
		r.settle()
	}
	delete(r.cut, [2]uint64{lead, witness})
	r.tick(20)
	c := r.nodes[witness].core
	if c.counters.Installed == 0 || c.state.sessions.get(gone) != nil {
		t.Fatalf("%d snapshots installed, session %v", c.counters.Installed, c.state.sessions.get(gone))
	}
	if n := len(c.witness.pool.records); n != 0 {
		t.Errorf("%d records of a session that is gone are in the pool after a snapshot", n)
	}
	r.start(witness, c.cfg)
	if n := len(r.nodes[witness].core.witness.pool.records); n != 0 {
		t.Errorf("%d records of a session that is gone are in the pool after a restart", n)
	}
}

// A weak write that makes no sense is refused and leaves its number free: the
// writes after it wait for any write of that number.
func TestRefusedWriteLeavesItsNumberFree(t *testing.T) {
	r := newRig(t, 3, "raft-ht")
	lead := r.leader()
	s := r.session(lead)
	r.deliver(lead, wire.Message{Kind: wire.Weak, Session: s, Seq: 1, Data: []byte("add a x")})
	r.deliver(lead, wire.Message{Kind: wire.Weak, Session: s, Seq: 2, Data: []byte("set b 1")})
	r.settle()
	if got := r.one(wire.Refused); got.Code != wire.CodeInvalid || got.Seq != 1 || len(r.take(wire.WeakDone)) != 0 {
		t.Fatalf("refused: %v", got)
	}
	r.write(lead, s, 1, "set c 1")
	r.settle()
	if got := r.one(wire.WeakDone); got.Seq != 2 || r.nodes[lead].words.m["b"] != "1" || r.nodes[lead].words.m["a"] != "" {
		t.Errorf("acknowledged %v, state %v", got, r.nodes[lead].words.m)
	}
}
