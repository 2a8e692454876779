package replica

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/weirdb/weir/internal/kvd/consensus"
	"github.com/weirdb/weir/internal/kvd/peer"
	"github.com/weirdb/weir/internal/testkit"
)

// A replica that became a cluster by itself, because it was first started alone, is not taken
// for a member of the cluster that the others made: both sides say what to do.
func TestTwoGroupsOfOneName(t *testing.T) {
	r := newRig(t, 3, "raft-ht", nil)
	all := r.cfg[1]
	alone := all
	alone.Members = all.Members[:1]
	r.cfg[1] = alone
	r.start(1)
	r.leader()
	r.set(1, "k", "of one")
	one := r.nodes[1]
	delete(r.nodes, 1)
	r.start(2)
	r.start(3)
	r.leader()
	r.set(2, "k", "of two")
	for id, log := range r.logs {
		testkit.Eventually(t, "each says why it is not connected", func() bool {
			return strings.Contains(log.String(), `belong to two clusters of the name \"weir\"`)
		})
		if n := r.nodes[id]; n != nil && n.peers.up(1) {
			t.Errorf("replica %d is connected with the one of the other cluster", id)
		}
	}
	r.nodes[1] = one
	r.want(1, "k", "of one")
	r.want(3, "k", "of two")

	if err := r.halt(1); err != nil { // what the error says to do
		t.Fatal(err)
	}
	if err := os.RemoveAll(all.Dir); err != nil {
		t.Fatal(err)
	}
	r.cfg[1] = all
	r.start(1)
	r.leader()
	r.want(1, "k", "of two")
}

// All first members note one group, one that joins takes it from a leader, and so does one of
// a directory that knows none, as versions before wrote them.
func TestGroupIsKnownToAll(t *testing.T) {
	r := startRig(t, 3, "raft-ht", nil)
	r.joins(4, 1, 2, 3)
	r.configure(consensus.Change{Kind: consensus.Promote, Member: consensus.Member{ID: 4}})
	want := groupBy([]uint64{1, 2, 3})
	same := func() {
		t.Helper()
		for id, n := range r.nodes {
			testkit.Eventually(t, "all know the group", func() bool {
				noted, err := n.disk.log.Group()
				return err == nil && noted == want.String() && n.peers.ownGroup() == want
			})
			if n.peers.sameGroup(peer.Remote{ID: 9, Group: groupBy([]uint64{1})}) == nil {
				t.Errorf("replica %d lets in one of another group", id)
			}
		}
	}
	same()
	for id := range r.cfg {
		if err := r.halt(id); err != nil {
			t.Fatal(err)
		}
	}
	for id := range uint64(3) {
		if err := os.Remove(filepath.Join(r.cfg[id+1].Dir, "group")); err != nil {
			t.Fatal(err)
		}
	}
	for id := range r.cfg {
		r.start(id)
	}
	r.lead(4)
	same()
}
