package consensus

import (
	"testing"

	"github.com/weirdb/weir/internal/kvd/wire"
)

func TestWriteAndRead(t *testing.T) {
	for _, preset := range PresetNames() {
		t.Run(preset, func(t *testing.T) {
			r := newRig(t, 3, preset)
			lead := r.leader()
			s := r.session(lead)
			r.deliver(lead, wire.Message{Kind: wire.Strong, Session: s, Seq: 1, Data: []byte("set a 1")})
			r.settle()
			if d := r.one(wire.Done); d.Seq != 1 || string(d.Data) != "ok" || d.Stable != 1 {
				t.Fatalf("done: %+v", d)
			}
			r.deliver(lead, wire.Message{Kind: wire.Read, Request: 5, Data: []byte("get a")})
			r.tick(6) // the first read may need the lease
			if d := r.one(wire.ReadDone); string(d.Data) != "1" || d.Request != 5 {
				t.Fatalf("read: %+v", d)
			}
			for _, id := range r.order {
				if got := r.nodes[id].words.m["a"]; got != "1" {
					t.Errorf("replica %d: a = %q", id, got)
				}
			}
			// The same write again has the same answer and no effect.
			r.deliver(lead, wire.Message{Kind: wire.Strong, Session: s, Seq: 1, Data: []byte("set a 1")})
			r.settle()
			if d := r.one(wire.Done); string(d.Data) != "ok" || len(r.nodes[lead].words.log) != 1 {
				t.Fatalf("again: %+v, applied %q", d, r.nodes[lead].words.log)
			}
		})
	}
}

func TestFastPath(t *testing.T) {
	r := newRig(t, 3, "curp")
	lead := r.leader()
	s, other := r.session(lead), r.session(lead)
	view := r.nodes[lead].core.View().View
	// Nothing commits: the followers' disks are stuck for entries, but their
	// votes come after the same disks, so cut only the engine's messages.
	for _, id := range r.order {
		if id != lead {
			r.cut[[2]uint64{lead, id}] = true
		}
	}
	w := wire.Message{Kind: wire.Strong, Flags: wire.FlagFast, View: view, Session: s, Seq: 1, Data: []byte("add a x")}
	r.deliver(lead, w)
	w.Kind, w.Flags = wire.Record, 0
	for _, id := range r.order {
		if id != lead {
			r.deliver(id, w)
		}
	}
	r.settle()
	if spec := r.one(wire.Spec); spec.Flags != wire.FlagYes || string(spec.Data) != "x" {
		t.Fatalf("spec: %+v", spec)
	}
	if votes := r.take(wire.Vote); len(votes) != 2 || votes[0].Flags != wire.FlagYes || votes[1].Flags != wire.FlagYes {
		t.Fatalf("votes: %+v", votes)
	}
	// The operation is complete and not committed. Another one on its key is
	// not told anything before the commit, and no witness votes for it.
	w2 := wire.Message{Kind: wire.Strong, Flags: wire.FlagFast, View: view, Session: other, Seq: 1, Data: []byte("add a y")}
	r.deliver(lead, w2)
	w2.Kind, w2.Flags = wire.Record, 0
	for _, id := range r.order {
		r.deliver(id, w2)
	}
	r.settle()
	if spec := r.one(wire.Spec); spec.Flags != 0 {
		t.Fatalf("spec of the second: %+v", spec)
	}
	for _, v := range r.take(wire.Vote) {
		if v.Flags != 0 {
			t.Errorf("vote for an operation that conflicts: %+v", v)
		}
	}
	// The leader dies with its log; the others still have the operation.
	r.nodes[lead].down = true
	r.cut = map[[2]uint64]bool{}
	next := r.leader()
	if next == lead {
		t.Fatal("the dead replica leads")
	}
	if got := r.nodes[next].words.m["a"]; got != "x" {
		t.Fatalf("after the change of leader a = %q, want x", got)
	}
	r.deliver(next, wire.Message{Kind: wire.Strong, Session: s, Seq: 1, Data: []byte("add a x")})
	r.settle()
	if d := r.one(wire.Done); string(d.Data) != "x" {
		t.Fatalf("asked again: %+v", d)
	}
}

func TestWeakAtNearest(t *testing.T) {
	r := newRig(t, 3, "curp-ho")
	lead := r.leader()
	s := r.session(lead)
	r.tick(1)
	near := r.order[0]
	if near == lead {
		near = r.order[1]
	}
	r.cut[[2]uint64{near, lead}] = true
	r.deliver(near, wire.Message{Kind: wire.Weak, Flags: wire.FlagNearest, Session: s, Seq: 1, Data: []byte("set a 1")})
	r.settle()
	if d := r.one(wire.WeakDone); d.Seq != 1 || d.Stable != 0 {
		t.Fatalf("weak: %+v", d)
	}
	// Its own session sees it there, and no other does.
	own := []wire.Write{{Seq: 1, Command: []byte("set a 1")}}
	r.deliver(near, wire.Message{Kind: wire.WeakRead, Session: s, Bundle: own, Request: 1, Data: []byte("get a")})
	r.deliver(near, wire.Message{Kind: wire.WeakRead, Request: 2, Data: []byte("get a")})
	r.settle()
	if d := r.take(wire.ReadDone); len(d) != 2 || string(d[0].Data) != "1" || string(d[1].Data) != "" {
		t.Fatalf("reads: %+v", d)
	}
	// A strong write of the session takes it along.
	r.deliver(lead, wire.Message{Kind: wire.Strong, Session: s, Seq: 2, Bundle: own, Data: []byte("add a 2")})
	r.settle()
	if d := r.one(wire.Done); string(d.Data) != "12" {
		t.Fatalf("strong after weak: %+v", d)
	}
	// The intent itself arrives late and changes nothing.
	r.cut = map[[2]uint64]bool{}
	r.tick(100)
	if got := r.nodes[lead].words.m["a"]; got != "12" {
		t.Fatalf("a = %q", got)
	}
	if n := r.nodes[near].core.Status().Intents; n != 0 {
		t.Fatalf("%d intents left", n)
	}
}

func TestRestartAll(t *testing.T) {
	r := newRig(t, 3, "curp-ho")
	lead := r.leader()
	s := r.session(lead)
	for i := uint64(1); i <= 50; i++ {
		r.deliver(lead, wire.Message{Kind: wire.Strong, Session: s, Seq: i, Data: []byte("add a x")})
		r.settle()
	}
	r.take(wire.Done)
	for _, id := range r.order {
		cfg := r.nodes[id].core.cfg
		r.start(id, cfg)
	}
	lead = r.leader()
	if got := len(r.nodes[lead].words.m["a"]); got != 50 {
		t.Fatalf("%d of 50 writes after the restart", got)
	}
	r.deliver(lead, wire.Message{Kind: wire.Strong, Session: s, Seq: 50, Data: []byte("add a x")})
	r.deliver(lead, wire.Message{Kind: wire.Strong, Session: s, Seq: 51, Data: []byte("add a x")})
	r.settle()
	if d := r.take(wire.Done); len(d) != 2 || len(d[0].Data) != 50 || len(d[1].Data) != 51 {
		t.Fatalf("after the restart: %+v", d)
	}
}

func TestSnapshotAndJoin(t *testing.T) {
	r := newRig(t, 3, "raft-ht")
	for _, id := range r.order {
		cfg := r.nodes[id].core.cfg
		cfg.SnapshotBytes, cfg.KeepBytes = 200, 50
		r.start(id, cfg)
	}
	lead := r.leader()
	s := r.session(lead)
	for i := uint64(1); i <= 50; i++ {
		r.deliver(lead, wire.Message{Kind: wire.Strong, Session: s, Seq: i, Data: []byte("add a x")})
		r.settle()
	}
	if r.nodes[lead].core.Status().Snapshot == 0 {
		t.Fatal("no snapshot was made")
	}
	cfg := r.nodes[lead].core.cfg
	cfg.ID, cfg.Members = 4, nil
	r.nodes[4] = &rigNode{}
	r.order = append(r.order, 4)
	r.start(4, cfg)
	change := Change{Kind: AddLearner, Member: Member{ID: 4, Addr: "replica-4"}}
	r.deliver(lead, wire.Message{Kind: wire.Configure, Request: 9, Data: change.Append(nil)})
	r.tick(20)
	change.Kind = Promote
	r.deliver(lead, wire.Message{Kind: wire.Configure, Request: 10, Data: change.Append(nil)})
	r.tick(20)
	if got := r.take(wire.ReadDone); len(got) != 2 {
		t.Fatalf("changes: %+v, refused: %s", got, r.inbox[len(r.inbox)-1].Data)
	}
	if got := len(r.nodes[4].words.m["a"]); got != 50 {
		t.Fatalf("the new replica has %d of 50 writes", got)
	}
	if st := r.nodes[4].core.Status(); !st.Voter || len(st.Members) != 4 {
		t.Fatalf("new replica: %+v", st)
	}
	// All replicas restart from snapshot and log.
	for _, id := range r.order {
		r.start(id, r.nodes[id].core.cfg)
	}
	r.leader()
	r.tick(20)
	for _, id := range r.order {
		if got := len(r.nodes[id].words.m["a"]); got != 50 {
			t.Errorf("replica %d has %d of 50 writes after the restart", id, got)
		}
	}
}

// A leader of the past that has been asked for its pool votes in the view of
// another leader from then on. What it would tell before the commit could be
// taken for that leader's word.
func TestLeaderOutOfViewIsSilent(t *testing.T) {
	r := newRig(t, 3, "curp-ho")
	lead := r.leader()
	s := r.session(lead)
	r.tick(1)
	c := r.nodes[lead].core
	view := c.witness.view
	other := r.order[0]
	if other == lead {
		other = r.order[1]
	}
	for _, id := range r.order {
		r.cut[[2]uint64{lead, id}] = true
	}
	early := wire.Message{Kind: wire.Strong, Flags: wire.FlagFast, View: view, Session: s, Seq: 1, Data: []byte("set a x")}
	r.deliver(lead, early)
	c.Deliver(r.now, Addr(other), &wire.Message{Kind: wire.PoolCollect, View: view + 1})
	r.settle()
	late := wire.Message{Kind: wire.Strong, Flags: wire.FlagFast, View: view + 1, Session: s, Seq: 2, Data: []byte("set b x")}
	r.deliver(lead, late)
	r.deliver(lead, wire.Message{Kind: wire.Read, Request: 7, Data: []byte("get a")})
	r.settle()
	for _, m := range r.inbox {
		if m.Kind == wire.ReadDone || m.Kind == wire.Spec && m.Flags&wire.FlagYes != 0 {
			t.Errorf("a leader of term %d in view %d says %+v", c.engine.term, c.witness.view, m)
		}
	}
}
