package consensus

import (
	"fmt"
	"testing"
	"time"

	pb "go.etcd.io/raft/v3/raftpb"
	"google.golang.org/protobuf/proto"

	"github.com/weirdb/weir/internal/kvd/wire"
)

// others are the replicas besides id.
func (r *rig) others(id uint64) []uint64 {
	var out []uint64
	for _, other := range r.order {
		if other != id {
			out = append(out, other)
		}
	}
	return out
}

// isolate loses what a replica sends to the others.
func (r *rig) isolate(id uint64) {
	for _, other := range r.others(id) {
		r.cut[[2]uint64{id, other}] = true
	}
}

// A write completes on votes at a position of the old leader's log. The new one
// has its own first entry there: a replica that has applied that, and does not
// know the new view, must not take the old token for reached.
func TestTokenOfOlderViewWaitsForTheNewOne(t *testing.T) {
	r := newRig(t, 3, "curp-ho")
	lead := r.leader()
	s := r.session(lead)
	r.tick(6)
	view := r.nodes[lead].core.View().View
	r.isolate(lead)
	w := wire.Message{Kind: wire.Strong, Flags: wire.FlagFast, View: view, Session: s, Seq: 1, Data: []byte("add a x")}
	r.deliver(lead, w)
	w.Kind, w.Flags = wire.Record, 0
	for _, id := range r.others(lead) {
		r.deliver(id, w)
	}
	r.settle()
	spec := r.one(wire.Spec)
	if votes := r.take(wire.Vote); spec.Flags != wire.FlagYes || len(votes) != 2 {
		t.Fatalf("spec %v, votes %v", spec, votes)
	}
	// The next leader cannot collect pools, but its first entry commits.
	r.nodes[lead].down = true
	r.lose = func(_ uint64, s *Send) bool { return s.Message.Kind == wire.PoolCollect }
	r.tick(150)
	for _, id := range r.others(lead) {
		c := r.nodes[id].core
		if c.state.applied < spec.Index || c.witness.openView != view {
			t.Fatalf("replica %d has applied %d of %d, in view %d", id, c.state.applied, spec.Index, c.witness.openView)
		}
		r.deliver(id, wire.Message{Kind: wire.WeakRead, Session: s, View: spec.View, Index: spec.Index, Request: id, Data: []byte("get a")})
	}
	r.settle()
	if got := r.take(wire.ReadDone); len(got) > 0 {
		t.Fatalf("a session does not see its own write: %+v", got)
	}
	r.lose = nil
	r.leader()
	r.tick(6)
	r.take(wire.ReadDone) // of those that waited
	for _, id := range r.others(lead) {
		r.deliver(id, wire.Message{Kind: wire.WeakRead, Session: s, View: spec.View, Index: spec.Index, Request: id, Data: []byte("get a")})
	}
	r.settle()
	got := r.take(wire.ReadDone)
	if len(got) != 2 || string(got[0].Data) != "x" || string(got[1].Data) != "x" {
		t.Fatalf("in the new view: %+v", got)
	}
}

// A majority without the leader's disk has committed a weak write, and its
// session has heard of it from a follower: it no longer brings the write along.
func TestSpeculationKnowsWeakWritesCommittedElsewhere(t *testing.T) {
	r := newRig(t, 3, "curp-ho")
	lead := r.leader()
	s := r.session(lead)
	r.tick(6)
	view := r.nodes[lead].core.View().View
	r.nodes[lead].stuck = true
	r.deliver(lead, wire.Message{Kind: wire.Weak, Session: s, Seq: 1, Data: []byte("set a 1")})
	r.tick(6)
	near := r.others(lead)[0]
	r.deliver(near, wire.Message{Kind: wire.WeakRead, Session: s, Request: 3, Data: []byte("get a")})
	r.settle()
	if d := r.one(wire.ReadDone); d.Stable != 1 || string(d.Data) != "1" {
		t.Fatalf("at the follower: %+v", d)
	}
	r.deliver(lead, wire.Message{Kind: wire.Strong, Flags: wire.FlagFast, View: view, Session: s, Seq: 2, Data: []byte("add a 2")})
	r.settle()
	r.nodes[lead].stuck = false
	r.settle()
	if spec := r.one(wire.Spec); spec.Flags == wire.FlagYes && string(spec.Data) != "12" {
		t.Fatalf("the result that may be told early is %q", spec.Data)
	}
	if d := r.one(wire.Done); string(d.Data) != "12" {
		t.Fatalf("done: %+v", d)
	}
}

// Others can elect a replica before its own vote counts; a term that it leads
// must be on its disk nevertheless, since it would lead it a second time.
func TestCandidateAsksWhenItsTermIsDurable(t *testing.T) {
	r := newRig(t, 3, "raft")
	asked := map[uint64]bool{}
	r.lose = func(from uint64, s *Send) bool {
		m := &pb.Message{}
		if s.Message.Kind == wire.Raft {
			if err := proto.Unmarshal(s.Message.Data, m); err != nil {
				t.Fatal(err)
			}
		}
		if m.GetType() == pb.MsgVote {
			asked[from] = true
			if r.nodes[from].stuck {
				t.Errorf("replica %d asks for votes in term %d, which is not on its disk", from, m.GetTerm())
			}
		}
		return false
	}
	r.nodes[1].stuck = true
	r.nodes[2].core.election.timeout, r.nodes[3].core.election.timeout = 1<<30, 1<<30
	r.tick(100)
	if r.nodes[1].core.counters.Elections == 0 || r.nodes[1].core.engine.term <= bootTerm {
		t.Fatalf("replica 1 did not stand for election: %+v", r.nodes[1].core.counters)
	}
	r.nodes[1].stuck = false
	r.settle()
	if !asked[1] {
		t.Fatal("no votes were asked for")
	}
}

// A write moves from the pool into the bundle of the next one when it turns out
// that it waits for its commit. Two witnesses may know it in either way.
func TestRecoveryFindsEarlierWritesInAnyForm(t *testing.T) {
	r := newRig(t, 5, "curp")
	lead := r.leader()
	s := r.session(lead)
	r.tick(6)
	view := r.nodes[lead].core.View().View
	r.isolate(lead)
	rest := r.others(lead)
	bundled, unaware, pooled, lost := rest[0], rest[1], rest[2], rest[3]
	first := wire.Message{Kind: wire.Record, View: view, Session: s, Seq: 1, Data: []byte("add a x")}
	second := wire.Message{Kind: wire.Record, View: view, Session: s, Seq: 2, Prior: 1, Data: []byte("add b y")}
	again := wire.Message{
		Kind: wire.Record, View: view, Session: s, Seq: 2, Data: []byte("add b y"),
		Bundle: []wire.Write{{Seq: 1, Strong: true, Command: []byte("add a x")}},
	}
	atLeader := func(m wire.Message) wire.Message { m.Kind, m.Flags = wire.Strong, wire.FlagFast; return m }
	r.deliver(lead, atLeader(first))
	r.deliver(lead, atLeader(second))
	r.deliver(pooled, first)
	r.deliver(pooled, second)
	r.deliver(bundled, again)
	r.deliver(lost, again)
	r.settle()
	votes := 0
	for _, m := range r.inbox {
		if m.Seq == 2 && m.Flags == wire.FlagYes && (m.Kind == wire.Vote || m.Kind == wire.Spec) {
			votes++
		}
	}
	if votes != wire.FastQuorum(5) {
		t.Fatalf("the second write has %d votes: %v", votes, r.inbox)
	}
	r.nodes[lead].down, r.nodes[lost].down = true, true
	next := r.leader()
	if m := r.nodes[next].words.m; m["a"] != "x" || m["b"] != "y" {
		t.Fatalf("of two writes, of which the second is complete, the next leader (%d; %d knows nothing) has %v", next, unaware, m)
	}
}

// Replicas may have different settings, as while they are restarted with another setting one by
// one. They must still execute the same.
func TestSessionsExpireByTheLogAlone(t *testing.T) {
	r := newRig(t, 3, "raft")
	for _, id := range r.order {
		cfg := r.nodes[id].core.cfg
		cfg.SessionIdle = time.Duration(id) * time.Minute
		r.start(id, cfg)
	}
	lead := r.leader()
	old, other := r.session(lead), r.session(lead)
	r.now.Wall += int64(90 * time.Second) // longer than one of them wants, and shorter than the others
	for seq := uint64(1); seq <= 10; seq++ {
		r.now.Wall += int64(10 * time.Second)
		r.deliver(lead, wire.Message{Kind: wire.Strong, Session: other, Seq: seq, Data: []byte("add b y")})
		r.settle()
	}
	r.deliver(lead, wire.Message{Kind: wire.Strong, Session: old, Seq: 1, Data: []byte("add a x")})
	r.tick(10)
	want := r.nodes[lead].words.m["a"]
	for _, id := range r.order {
		c := r.nodes[id].core
		if got := r.nodes[id].words.m["a"]; got != want || c.state.revision != r.nodes[lead].core.state.revision || len(c.state.sessions.byID) != len(r.nodes[lead].core.state.sessions.byID) {
			t.Errorf("replica %d: a = %q, revision %d, %d sessions; the leader: %q, %d, %d", id, got, c.state.revision, len(c.state.sessions.byID), want, r.nodes[lead].core.state.revision, len(r.nodes[lead].core.state.sessions.byID))
		}
	}
}

// A client has reached the witnesses and died before it reached the leader.
func TestAbandonedRecordsAreExecuted(t *testing.T) {
	r := newRig(t, 3, "curp")
	lead := r.leader()
	s := r.session(lead)
	r.tick(6)
	view := r.nodes[lead].core.View().View
	for _, id := range r.others(lead) {
		r.deliver(id, wire.Message{Kind: wire.Record, View: view, Session: s, Seq: 1, Data: []byte("add a x")})
	}
	r.settle()
	r.tick(4 * r.nodes[lead].core.cfg.ElectionTicks)
	for _, id := range r.order {
		if st := r.nodes[id].core.Status(); st.Pool != 0 || r.nodes[id].words.m["a"] != "x" {
			t.Errorf("replica %d: a = %q, and %d records in the pool", id, r.nodes[id].words.m["a"], st.Pool)
		}
	}
	// A client that asks again has the answer.
	r.deliver(lead, wire.Message{Kind: wire.Strong, Session: s, Seq: 1, Data: []byte("add a x")})
	r.settle()
	if d := r.one(wire.Done); string(d.Data) != "x" {
		t.Fatalf("asked again: %+v", d)
	}
}

// However little room there is for requests, what may have completed is appended.
func TestRecoveryNeedsNoRoom(t *testing.T) {
	r := newRig(t, 3, "curp")
	for _, id := range r.order {
		cfg := r.nodes[id].core.cfg
		cfg.Batch.Capacity = 2
		r.start(id, cfg)
	}
	lead := r.leader()
	var sessions []uint64
	for range 8 {
		sessions = append(sessions, r.session(lead))
	}
	r.tick(6)
	view := r.nodes[lead].core.View().View
	r.isolate(lead)
	for i, s := range sessions {
		w := wire.Message{Kind: wire.Strong, Flags: wire.FlagFast, View: view, Session: s, Seq: 1, Data: fmt.Appendf(nil, "add k%d x", i)}
		r.deliver(lead, w)
		w.Kind, w.Flags = wire.Record, 0
		for _, id := range r.others(lead) {
			r.deliver(id, w)
		}
		r.settle()
		if spec, votes := r.one(wire.Spec), r.take(wire.Vote); spec.Flags != wire.FlagYes || len(votes) != 2 {
			t.Fatalf("write %d: %+v, %+v", i, spec, votes)
		}
	}
	r.nodes[lead].down = true
	next := r.leader()
	if got := len(r.nodes[next].words.m); got != len(sessions) {
		t.Fatalf("%d of %d complete writes after the change of leader", got, len(sessions))
	}
}

func TestMembersAreFew(t *testing.T) {
	var first []Member
	for id := uint64(1); id <= maxVoters+1; id++ {
		first = append(first, Member{ID: id, Addr: "somewhere"})
	}
	if _, err := New(Config{ID: 1, Members: first}, &words{}, Recovered{}); err == nil {
		t.Error("a cluster of too many voters begins")
	}
	var m members
	m.init(first[:maxVoters])
	m.list = append(m.list, Member{ID: 9, Addr: "somewhere", Learner: true})
	if err := m.check(Change{Kind: Promote, Member: Member{ID: 9}}); err == nil {
		t.Error("one more voter than the most is accepted")
	}
	if err := m.check(Change{Kind: Replace, Member: Member{ID: 9}, Old: 1}); err != nil {
		t.Errorf("replace: %v", err)
	}
}

// A client that asks again whether its writes are committed waits once.
func TestWaitsAreBounded(t *testing.T) {
	r := newRig(t, 3, "raft")
	lead := r.leader()
	s := r.session(lead)
	for range 3 {
		for request := uint64(1); request <= maxHeld+1; request++ {
			r.deliver(lead, wire.Message{Kind: wire.Stable, Session: s, Seq: 1, Request: request})
		}
	}
	r.settle()
	if n := len(r.nodes[lead].core.weak.waiters[s]); n != maxHeld {
		t.Errorf("%d requests wait, want %d", n, maxHeld)
	}
	for _, m := range r.take(wire.Refused) {
		if m.Request != maxHeld+1 || m.Code != wire.CodeBusy {
			t.Fatalf("refused: %+v", m)
		}
	}
	r.deliver(lead, wire.Message{Kind: wire.Strong, Session: s, Seq: 1, Data: []byte("set a 1")})
	r.settle()
	if got := len(r.take(wire.ReadDone)); got != maxHeld {
		t.Fatalf("%d of %d are answered", got, maxHeld)
	}
}
