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
	t.Parallel()
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
	t.Parallel()
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
			if n.peers.sameGroup(peer.Remote{ID: 9, Index: 5, Group: groupBy([]uint64{1})}) == nil {
				t.Errorf("replica %d lets in one of another group", id)
			}
			n.peers.Up(9, peer.Remote{ID: 9, Index: 5, Group: groupBy([]uint64{1})}) // let in before the group was known
			if !n.peers.deaf(9) {
				t.Errorf("replica %d listens to one of another group", id)
			}
			n.peers.Down(9, peer.ErrClosed)
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

// A replica that does not know its group does not take it from one that has the number of
// the leader, and has lost what the leader had. Nor does it let in one that has a list, and
// nothing else.
func TestGroupOfALeaderThatLostItsDirectory(t *testing.T) {
	t.Parallel()
	r := startRig(t, 1, "raft-ht", nil)
	p := r.nodes[1].peers
	r.set(1, "k", "v")
	testkit.Eventually(t, "its log has entries", func() bool { return p.Status().Commit > 3 })
	other := groupBy([]uint64{1, 5})
	forget := func() {
		p.mu.Lock()
		defer p.mu.Unlock()
		p.group = group{}
	}
	s := *p.Status()
	for _, test := range []struct {
		name         string
		leader       uint64
		acked, index uint64
		want         group
	}{
		{"refused", 2, 5, 3, group{}},
		{"with less than was committed", 1, 0, 3, group{}},
		{"with all", 1, 0, s.Commit + 1000, other},
	} {
		forget()
		s.Leader = test.leader
		p.acknowledged(test.leader, test.acked)
		p.Up(peer.Addr(test.leader), peer.Remote{ID: test.leader, Index: test.index, Group: other})
		p.joinGroup(&s)
		if got := p.ownGroup(); got != test.want {
			t.Errorf("%s: the group is %x, want %x", test.name, got, test.want)
		}
		p.Down(peer.Addr(test.leader), peer.ErrClosed)
	}
	forget()
	if err := p.sameGroup(peer.Remote{ID: 7, Index: firstIndex, Group: other}); err == nil || !strings.Contains(err.Error(), "Replica 7 has nothing yet") {
		t.Errorf("one that has nothing and was started without --join: %v", err)
	}
	if err := p.sameGroup(peer.Remote{ID: 7}); err != nil {
		t.Errorf("one that joins: %v", err)
	}
}

// Nothing but the note is lost where the disk takes no group.
func TestGroupIsNotNoted(t *testing.T) {
	r := newRig(t, 1, "raft-ht", nil)
	if err := os.MkdirAll(filepath.Join(r.cfg[1].Dir, "group.tmp"), 0o700); err != nil {
		t.Fatal(err)
	}
	r.startAll()
	r.leader()
	if got := r.nodes[1].peers.ownGroup(); got != groupBy([]uint64{1}) {
		t.Errorf("the group is %x", got)
	}
	if log := r.logs[1].String(); !strings.Contains(log, "the group of replicas is not noted") {
		t.Error("the log does not say that the group is not noted")
	}
}

// A replica that was first started with a list of members instead of --join is not let in,
// also where it was added: the changes of the members would be made to its own list, by which
// it would count votes. Both sides say what to do.
func TestAddedReplicaStartedWithoutJoin(t *testing.T) {
	t.Parallel()
	r := startRig(t, 3, "raft-ht", nil)
	m := r.joiner(4, 1, 2, 3)
	join := r.cfg[4]
	list := join
	list.Join = false
	r.cfg[4] = list
	x := r.start(4)
	delete(r.nodes, 4)
	r.configure(consensus.Change{Kind: consensus.AddLearner, Member: m})
	for id, log := range r.logs {
		testkit.Eventually(t, "each says what to do", func() bool {
			return strings.Contains(log.String(), "Replica 4 has nothing yet: stop it and remove its directory; then start it with --join")
		})
		if n := r.nodes[id]; n != nil && n.peers.up(4) {
			t.Errorf("replica %d is connected with the one that has another list", id)
		}
	}
	if s := x.Status(); s.Leader != 0 {
		t.Errorf("the one that has another list follows %d", s.Leader)
	}
	r.nodes[4] = x
	if err := r.halt(4); err != nil {
		t.Fatal(err)
	}
	r.cfg[4] = join
	if _, err := r.tryStart(4); err == nil || !strings.Contains(err.Error(), "remove it and start again with --join") {
		t.Fatalf("started with --join in the same directory: %v", err)
	}
	if err := os.RemoveAll(join.Dir); err != nil { // what the error says to do
		t.Fatal(err)
	}
	x = r.start(4)
	testkit.Eventually(t, "it serves", func() bool { return x.Status().Ready() == nil && x.Status().Leader != 0 })
	r.configure(consensus.Change{Kind: consensus.Promote, Member: consensus.Member{ID: 4}})
	r.set(4, "k", "v")
}

// A directory that has nothing yet can be read, and is started after that.
func TestRescueOfNothing(t *testing.T) {
	r := newRig(t, 3, "raft-ht", nil)
	r.start(1)
	if err := r.halt(1); err != nil {
		t.Fatal(err)
	}
	if _, _, err := Rescue(r.cfg[1].Dir); err != nil {
		t.Error(err)
	}
	r.startAll()
	r.leader()
}
