package consensus

import (
	"slices"
	"strings"
	"testing"

	pb "go.etcd.io/raft/v3/raftpb"
	"google.golang.org/protobuf/proto"

	"github.com/weirdb/weir/internal/kvd/wire"
)

// change asks the leader for a change of the members and returns what it says,
// "" if the change is in force.
func (r *rig) change(g Change) string {
	r.t.Helper()
	r.inbox = nil
	r.deliver(r.leader(), wire.Message{Kind: wire.Configure, Request: 77, Data: g.Append(nil)})
	r.tick(10)
	for _, m := range r.inbox {
		switch {
		case m.Request != 77:
		case m.Kind == wire.Refused:
			return string(m.Data)
		case m.Kind == wire.ReadDone:
			return ""
		}
	}
	r.t.Fatalf("no answer to %+v: %v", g, r.inbox)
	return ""
}

// joins starts a replica that knows no other and adds it as a learner.
func (r *rig) joins(id uint64) {
	r.t.Helper()
	cfg := r.nodes[1].core.cfg
	cfg.ID, cfg.Members = id, nil
	r.nodes[id] = &rigNode{}
	r.order = append(r.order, id)
	r.start(id, cfg)
	if why := r.change(Change{Kind: AddLearner, Member: Member{ID: id, Addr: "new"}}); why != "" {
		r.t.Fatal(why)
	}
	r.tick(10)
}

// A number that a member had is not given again, however the member left, and
// whichever replica leads: what it voted for, and its messages, may still be about.
func TestNumbersAreNeverUsedAgain(t *testing.T) {
	r := newRig(t, 3, "raft")
	cfg := r.nodes[1].core.cfg
	cfg.SnapshotBytes, cfg.KeepBytes = 100, 1
	for _, id := range r.order {
		cfg.ID = id
		r.start(id, cfg)
	}
	lead := r.leader()
	s := r.session(lead)
	refused := func(when string, ids ...uint64) {
		t.Helper()
		for _, id := range ids {
			why := r.change(Change{Kind: AddLearner, Member: Member{ID: id, Addr: "again"}})
			if !strings.Contains(why, "never used again; give the new replica another, such as 6") {
				t.Errorf("%s: adding %d: %q", when, id, why)
			}
		}
	}
	r.joins(4) // a learner leaves
	if why := r.change(Change{Kind: Remove, Member: Member{ID: 4}}); why != "" {
		t.Fatal(why)
	}
	r.nodes[4].down = true
	if why := r.change(Change{Kind: AddLearner, Member: Member{ID: 4, Addr: "again"}}); !strings.Contains(why, "such as 5") {
		t.Errorf("adding 4: %q", why)
	}
	r.joins(5) // and takes the place of a voter that does not lead
	old := lead%3 + 1
	if why := r.change(Change{Kind: Replace, Member: Member{ID: 5}, Old: old}); why != "" {
		t.Fatal(why)
	}
	r.nodes[old].down = true
	refused("at once", 4, old)

	for i := uint64(1); i <= 40; i++ {
		r.deliver(lead, wire.Message{Kind: wire.Strong, Session: s, Seq: i, Ack: i - 1, Data: []byte("set a xxxxxxxxxx")})
		r.settle()
	}
	for _, id := range r.order {
		if n := r.nodes[id]; !n.down {
			if n.snapshot == nil {
				t.Fatalf("replica %d made no snapshot", id)
			}
			r.start(id, n.core.cfg)
		}
	}
	refused("after a restart from snapshots", 4, old)

	r.nodes[r.leader()].down = true
	r.tick(100)
	refused("at the next leader", 4, old)
}

// A change to the members of the beginning is in force already, and not under way, in a cluster
// whose members have never changed.
func TestFirstMembersAreMembers(t *testing.T) {
	r := newRig(t, 3, "raft")
	lead := r.leader()
	for _, g := range []Change{
		{Kind: AddLearner, Member: Member{ID: 2, Addr: "replica-2"}},
		{Kind: Promote, Member: Member{ID: 2}},
		{Kind: Remove, Member: Member{ID: lead%3 + 1}},
	} {
		if why := r.change(g); why != "" {
			t.Errorf("%+v: %s", g, why)
		}
	}
}

// A voter that is replaced is needed until the change has ended, which takes a majority
// of those before it: it does not take itself for removed, and reads are answered, however
// long that takes.
func TestAReplacedVoterIsNeededUntilTheEnd(t *testing.T) {
	r := newRig(t, 3, "raft")
	lead := r.leader()
	old, away := lead%3+1, (lead+1)%3+1
	r.joins(4)
	r.nodes[away].down = true
	l := r.nodes[lead].core
	r.lose = func(from uint64, s *Send) bool {
		return from == old && s.Message.Kind == wire.Raft && l.state.members.joint()
	}
	ask := Change{Kind: Replace, Member: Member{ID: 4}, Old: old}
	r.deliver(lead, wire.Message{Kind: wire.Configure, Request: 77, Data: ask.Append(nil)})
	r.tick(3)
	r.inbox = nil
	for _, id := range []uint64{lead, old, 4} {
		s := r.nodes[id].core.Status()
		if !s.Joint || len(s.Leaves) != 1 || s.Leaves[0] != old || s.Removed {
			t.Errorf("replica %d in the middle of the change: joint %v, %v leave, removed %v", id, s.Joint, s.Leaves, s.Removed)
		}
	}
	r.deliver(lead, wire.Message{Kind: wire.Read, Request: 78, Data: []byte("get a")})
	r.tick(3)
	if got := r.one(wire.ReadDone); got.Request != 78 {
		t.Errorf("in the middle of the change the read gives %v", got)
	}
	r.lose = nil
	r.tick(30)
	if got := r.one(wire.ReadDone); got.Request != 77 {
		t.Errorf("at the end of the change: %v", got)
	}
	for _, id := range []uint64{lead, 4} {
		if s := r.nodes[id].core.Status(); s.Joint || len(s.Leaves) > 0 {
			t.Errorf("replica %d after the change: joint %v, %v leave", id, s.Joint, s.Leaves)
		}
	}
}

// A commit index alone waits for the next sync; that of a change of members asks
// for one.
func TestChangesOfMembersAreSynced(t *testing.T) {
	r := newRig(t, 3, "raft")
	lead := r.leader()
	seen := map[uint64]uint64{}
	r.taken = func(id uint64, e *Effects) {
		index := r.nodes[id].core.state.members.index
		if index != seen[id] && !e.Sync {
			t.Errorf("replica %d has applied the change of entry %d and does not sync it", id, index)
		}
		seen[id] = index
	}
	if why := r.change(Change{Kind: Remove, Member: Member{ID: lead%3 + 1}}); why != "" {
		t.Fatal(why)
	}
	if len(seen) != 3 || seen[lead] == 0 || seen[lead] != seen[(lead+1)%3+1] {
		t.Errorf("changes by replica: %v", seen)
	}
}

// A change is answered when a majority knows of it for good: the one who asked may
// then destroy a replica that has left.
func TestChangeIsAnsweredWhenAMajorityKnows(t *testing.T) {
	r := newRig(t, 4, "raft")
	lead := r.leader()
	gone, near, far := lead%4+1, (lead+1)%4+1, (lead+2)%4+1
	g := Change{Kind: Remove, Member: Member{ID: gone}}
	r.deliver(lead, wire.Message{Kind: wire.Configure, Request: 3, Data: g.Append(nil)})
	// No replica learns that the change is committed.
	r.lose = func(_ uint64, s *Send) bool {
		m := &pb.Message{}
		if s.Message.Kind != wire.Raft || proto.Unmarshal(s.Message.Data, m) != nil {
			return false
		}
		return m.GetCommit() > r.nodes[near].core.state.applied && (m.GetType() == pb.MsgApp || m.GetType() == pb.MsgHeartbeat)
	}
	r.settle()
	r.tick(6)
	if c := r.nodes[lead].core; len(c.state.members.voters()) != 3 || len(r.nodes[near].core.state.members.voters()) != 4 {
		t.Fatalf("the leader knows %v, the others %v", c.state.members.voters(), r.nodes[near].core.state.members.voters())
	}
	if got := r.take(wire.ReadDone); len(got) > 0 {
		t.Fatalf("answered while only the leader knows: %v", got)
	}
	r.deliver(lead, wire.Message{Kind: wire.Configure, Request: 4, Data: Change{Kind: Remove, Member: Member{ID: far}}.Append(nil)})
	r.settle()
	if got := r.one(wire.Refused); got.Request != 4 {
		t.Errorf("another change: %v", got)
	}
	r.lose = nil
	r.cut[[2]uint64{lead, far}] = true
	r.tick(10)
	if got := r.one(wire.ReadDone); got.Request != 3 {
		t.Errorf("answered: %v", got)
	}
}

// A voter that leaves must not take the quorum with it: the leader refuses that, and
// does it when it is told to.
func TestRemovalThatWouldEndTheQuorum(t *testing.T) {
	r := newRig(t, 3, "raft")
	lead := r.leader()
	r.tick(40)
	alive, dead := lead%3+1, (lead+1)%3+1
	r.nodes[dead].down = true
	r.tick(60)
	for _, who := range []uint64{alive, lead} {
		why := r.change(Change{Kind: Remove, Member: Member{ID: who}})
		if !strings.Contains(why, "no majority of the voters would be left: 1 of 2 answer") || !strings.Contains(why, "--force") {
			t.Errorf("removing replica %d: %q", who, why)
		}
	}
	r.joins(4)
	if why := r.change(Change{Kind: Replace, Member: Member{ID: 4}, Old: alive}); why != "" {
		t.Errorf("two of three are reached: %q", why)
	}
	if why := r.change(Change{Kind: Remove, Member: Member{ID: dead}}); why != "" {
		t.Errorf("removing the one that is down: %q", why)
	}
}

func TestForcedRemoval(t *testing.T) {
	r := newRig(t, 3, "raft")
	lead := r.leader()
	r.tick(40)
	alive, dead := lead%3+1, (lead+1)%3+1
	r.nodes[dead].down = true
	r.tick(60)
	r.deliver(lead, wire.Message{Kind: wire.Configure, Request: 77, Data: Change{Kind: Remove, Member: Member{ID: alive}, Force: true}.Append(nil)})
	r.settle()
	if got := r.nodes[lead].core.state.members.voters(); len(got) != 2 || r.nodes[lead].core.state.members.votes(alive) {
		t.Errorf("voters after a forced removal: %v", got)
	}
}

// Where an operator says that a member is counts; where Redis clients find it, if he says it.
func TestMembersAreRelocated(t *testing.T) {
	var m members
	m.init([]Member{{ID: 1, Addr: "a:1", Client: "a:2"}, {ID: 2, Addr: "b:1", Client: "b:2"}, {ID: 3, Addr: "c:1"}})
	m.relocate([]Member{{ID: 1, Addr: "x:1", Client: "x:2"}, {ID: 2, Addr: "y:1"}, {ID: 4, Addr: "z:1"}})
	want := []Member{{ID: 1, Addr: "x:1", Client: "x:2"}, {ID: 2, Addr: "y:1", Client: "b:2"}, {ID: 3, Addr: "c:1"}}
	if !slices.Equal(m.list, want) {
		t.Errorf("members are %v, want %v", m.list, want)
	}
}

// A replica that was first started with itself among the first members, and was added then,
// lists itself once; a snapshot in which a version before has listed it twice is mended.
func TestAddedMemberIsListedOnce(t *testing.T) {
	var m members
	m.init([]Member{{ID: 1}, {ID: 4}})
	m.list = append(m.list, Member{ID: 4, Addr: "again", Learner: true})
	m.conf = &pb.ConfState{Voters: []uint64{1}, Learners: []uint64{4}}
	b, err := m.append(nil)
	if err != nil {
		t.Fatal(err)
	}
	read, err := readMembers(&reader{b: b})
	if err != nil {
		t.Fatal(err)
	}
	m.init([]Member{{ID: 1}, {ID: 4}})
	add := Change{Kind: AddLearner, Member: Member{ID: 4, Addr: "again"}}
	if err := m.applied(7, &pb.ConfState{Voters: []uint64{1}, Learners: []uint64{4}}, add.Append(nil)); err != nil {
		t.Fatal(err)
	}
	for how, list := range map[string][]Member{"read": read.list, "added": m.list} {
		if len(list) != 2 || list[1].ID != 4 || !list[1].Learner {
			t.Errorf("%s: %+v", how, list)
		}
	}
}

// A change that would leave no voter, by the list of a replica that is wrong, is an error and
// no panic.
func TestRemovalOfTheLastVoterListed(t *testing.T) {
	r := newRig(t, 1, "raft")
	r.leader()
	c := r.nodes[1].core
	g := Change{Kind: Remove, Member: Member{ID: 1}}
	data, err := proto.Marshal(confChange(g))
	if err != nil {
		t.Fatal(err)
	}
	c.state.applyChange(&pb.Entry{Index: proto.Uint64(99), Data: data, Type: pb.EntryConfChangeV2.Enum()})
	if err := c.Take(r.now).Fatal; err == nil || !strings.Contains(err.Error(), "removes the last voter that this replica lists") {
		t.Errorf("ends with %v", err)
	}
}
