package consensus

import (
	"strings"
	"testing"

	pb "go.etcd.io/raft/v3/raftpb"

	"github.com/weirdb/weir/internal/kvd/wire"
)

// otherState and otherMembers make a replica differ from the others.
func otherState(n *rigNode) { n.words.m["a mistake"] = "is here" }

func otherMembers(n *rigNode) {
	n.core.state.members.conf = &pb.ConfState{Voters: []uint64{1, 2, 3}, Learners: []uint64{9}}
}

// differing makes a cluster of three in which some replicas are not what their logs say,
// and lets the leader notice. It returns who stopped, and why.
func differing(t *testing.T, down bool, differ func(*rigNode), wrong func(lead uint64) []uint64) (r *rig, lead uint64, stopped map[uint64]error) {
	t.Helper()
	r = newRig(t, 3, "raft")
	lead = r.leader()
	s := r.session(lead)
	stopped = map[uint64]error{}
	if down {
		r.nodes[lead%3+1].down = true
	}
	for _, id := range wrong(lead) {
		differ(r.nodes[id])
	}
	// settle would fail the test at the first that stops.
	r.deliver(lead, wire.Message{Kind: wire.Strong, Session: s, Seq: 1, Data: []byte("set a b")})
	for range 60 {
		r.now.Mono += 10e6
		for _, id := range r.order {
			n := r.nodes[id]
			if n.down {
				continue
			}
			n.core.Tick(r.now)
		}
		for range 6 {
			for _, id := range r.order {
				n := r.nodes[id]
				if n.down {
					continue
				}
				e := n.core.Take(r.now)
				if e.Fatal != nil {
					stopped[id], n.down = e.Fatal, true
					continue
				}
				if e.Ticket != 0 {
					n.core.Persisted(r.now, e.Ticket)
				}
				for _, s := range e.Sends {
					if to := r.nodes[uint64(s.To)]; s.To < FirstClient && to != nil && !to.down {
						m := s.Message
						to.core.Deliver(r.now, Addr(id), &m)
					}
				}
			}
		}
	}
	return r, lead, stopped
}

// A replica whose state, or list of members, differs from that of a majority stops, be it a
// follower or the leader.
func TestWhoDiffersStops(t *testing.T) {
	for what, differ := range map[string]func(*rigNode){"state": otherState, "list of members": otherMembers} {
		_, lead, stopped := differing(t, false, differ, func(lead uint64) []uint64 { return []uint64{lead%3 + 1} })
		if err := stopped[lead%3+1]; len(stopped) != 1 || err == nil || !strings.Contains(err.Error(), "differs from that of leader") || !strings.Contains(err.Error(), "its "+what) {
			t.Errorf("%s of a follower differs; stopped: %v", what, stopped)
		}
		_, lead, stopped = differing(t, false, differ, func(lead uint64) []uint64 { return []uint64{lead} })
		if err := stopped[lead]; len(stopped) != 1 || err == nil || !strings.Contains(err.Error(), "differs from that of a majority") || !strings.Contains(err.Error(), "its "+what) {
			t.Errorf("%s of the leader differs; stopped: %v", what, stopped)
		}
	}
	if _, _, stopped := differing(t, false, otherState, func(uint64) []uint64 { return nil }); len(stopped) != 0 {
		t.Errorf("nobody differs; stopped: %v", stopped)
	}
}

// A learner that differs does not become a voter, though it has caught up.
func TestLearnerThatDiffersIsNotPromoted(t *testing.T) {
	r := newRig(t, 3, "raft")
	r.leader()
	r.joins(4)
	otherMembers(r.nodes[4])
	r.lose = func(_ uint64, s *Send) bool { return s.Message.Code == wire.CodeDiverged } // it would stop
	r.now.Mono++                                                                         // what it answered before does not count
	if why := r.change(Change{Kind: Promote, Member: Member{ID: 4}}); !strings.Contains(why, "replica 4: its list of members at entry") {
		t.Errorf("it is promoted: %q", why)
	}
}

// If no majority says which state is right, the leader serves no requests.
func TestNobodyIsServedInDoubt(t *testing.T) {
	r, lead, stopped := differing(t, true, otherState, func(lead uint64) []uint64 { return []uint64{(lead+1)%3 + 1} })
	if len(stopped) != 0 {
		t.Fatalf("stopped: %v", stopped)
	}
	c := r.nodes[lead].core
	if c.lead == nil || !strings.Contains(c.Status().Doubt, "no majority says which is right") {
		t.Fatalf("the leader has no doubt: %q", c.Status().Doubt)
	}
	c.Deliver(r.now, client, &wire.Message{Kind: wire.Read, Request: 9, Data: []byte("get a")})
	for _, s := range c.Take(r.now).Sends {
		if s.To == client && s.Message.Request == 9 && s.Message.Code != wire.CodeDoubt {
			t.Errorf("a read in doubt is answered: %v", &s.Message)
		}
	}
}
