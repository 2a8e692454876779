package replica

import (
	"slices"
	"strings"
	"testing"

	"github.com/weirdb/weir/internal/kvd/consensus"
	"github.com/weirdb/weir/internal/kvd/peer"
	"github.com/weirdb/weir/internal/testkit"
)

// joiner is the configuration of a replica that waits to be added, and knows only
// some of the members.
func (r *rig) joiner(id uint64, knows ...uint64) consensus.Member {
	r.t.Helper()
	m := newMember(r.t, id)
	c := r.cfg[1]
	c.ID, c.Join, c.Dir, c.Redis = id, true, r.t.TempDir(), m.Client
	c.Members = []consensus.Member{m}
	for _, k := range knows {
		for _, of := range r.cfg[k].Members {
			if of.ID == k {
				c.Members = append(c.Members, of)
			}
		}
	}
	c.Listen = ""
	r.cfg[id] = c
	return m
}

// joins adds a replica that is started with the addresses of some members only, and
// waits until it serves.
func (r *rig) joins(id uint64, knows ...uint64) {
	r.t.Helper()
	r.leader()
	m := r.joiner(id, knows...)
	x := r.start(id)
	delete(r.nodes, id) // it is not ready yet
	ask := consensus.Change{Kind: consensus.AddLearner, Member: m}
	r.configure(ask)
	testkit.Eventually(r.t, "the new replica is ready", func() bool { return x.Status().Ready() == nil && x.Status().Leader != 0 })
	r.nodes[id] = x
}

func (r *rig) lead(id uint64) {
	r.t.Helper()
	testkit.Eventually(r.t, "the leader that the test wants", func() bool {
		if r.leader() == id {
			return true
		}
		r.configure(consensus.Change{Kind: consensus.Transfer, Member: consensus.Member{ID: id}})
		return r.leader() == id
	})
}

// A replica that joins finds the leader though its options do not name it: it is
// connected to by a leader with a larger number, and learns the address of one with
// a smaller number from a member that it was told of.
func TestAReplicaJoinsThatWasNotToldOfTheLeader(t *testing.T) {
	t.Parallel()
	r := startRig(t, 3, "raft-ht", nil)
	r.joins(9, 1, 2, 3)
	r.configure(consensus.Change{Kind: consensus.Promote, Member: consensus.Member{ID: 9}})
	r.lead(9)
	r.joins(5, 2) // 9 connects to it
	r.lead(1)
	r.joins(6, 3) // 6 connects to 1, of which it was told by 3
	r.set(1, "k", "v")
	r.want(5, "k", "v")
	r.want(6, "k", "v")
	r.converged()
}

// A member that was away while all the others were replaced is let in by them, and
// lets them in.
func TestAMemberThatWasAwayFindsTheNewMembers(t *testing.T) {
	t.Parallel()
	r := startRig(t, 3, "raft-ht", nil)
	r.lead(3)
	r.set(3, "k", "before")
	r.halt(1)
	for _, change := range []struct{ old, id uint64 }{{2, 4}, {3, 5}} {
		r.joins(change.id, r.leader())
		old := r.nodes[change.old]
		delete(r.nodes, change.old) // it will not be ready any more
		r.configure(consensus.Change{Kind: consensus.Replace, Old: change.old, Member: consensus.Member{ID: change.id}})
		r.nodes[change.old] = old
		_ = r.halt(change.old) // it says that it was removed
		r.lead(change.id)
	}
	at := r.leader()
	r.set(at, "k", "after")
	away := r.start(1)
	testkit.Eventually(t, "the one that was away follows", func() bool { return away.Status().Leader != 0 })
	r.leader()
	r.want(1, "k", "after")
	r.converged()
}

// A voter that is replaced is told that it was removed when the change has ended, not
// before: until then the others may need its vote, and it may connect again.
func TestAReplacedVoterIsToldAtTheEnd(t *testing.T) {
	r := startRig(t, 3, "raft-ht", nil)
	leader, old := r.leader(), r.follower()
	n := r.nodes[leader]
	says := func(ticks int, leaves ...uint64) {
		t.Helper()
		if err := n.inLoop(func(consensus.Clock) {
			s := *n.Status()
			s.Members = slices.DeleteFunc(slices.Clone(s.Members), func(m consensus.Member) bool { return m.ID == old })
			s.Left, s.Leaves = []uint64{old}, leaves
			n.status.Store(&s)
			for range ticks {
				n.peers.members(&s)
			}
			if err := n.peers.allow(peer.Remote{ID: old}, false); (err == nil) != (len(leaves) > 0) {
				t.Errorf("while %v leave, the replaced one that connects again: %v", leaves, err)
			}
		}); err != nil {
			t.Fatal(err)
		}
	}
	says(farewellTicks+10, old)
	r.set(old, "k", "v") // it goes on
	if !n.peers.up(old) {
		t.Error("the leader has cut the connection")
	}
	says(1)
	if err := r.ended(old); err == nil || !strings.Contains(err.Error(), "was removed") {
		t.Errorf("the replaced one ends with %v", err)
	}
}
