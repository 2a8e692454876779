package replica

import (
	"errors"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/weirdb/weir/internal/kvd/consensus"
	"github.com/weirdb/weir/internal/kvd/wal/waltest"
	"github.com/weirdb/weir/internal/lab/labtest"
	"github.com/weirdb/weir/internal/testkit"
)

func TestFirstMembersAreReadAsWritten(t *testing.T) {
	for _, members := range []string{
		"1=127.0.0.1:7401",
		"1=10.0.0.1:7401/6379,2=10.0.0.2:7401/6379,3=db.example:7401/redis.example:6380",
	} {
		want, err := ParseMembers(members)
		if err != nil {
			t.Fatal(err)
		}
		c := Config{Members: want}
		got, err := firstMembers(c.first())
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("%s: %s", members, diff)
		}
	}
	c := Config{Join: true, Members: []consensus.Member{{ID: 1, Addr: "127.0.0.1:1"}}}
	if got, err := firstMembers(c.first()); err != nil || len(got) > 0 {
		t.Errorf("a replica that joins: %v, %v", got, err)
	}
}

// A first start with a wrong list is put right by a start with the right one: where the
// numbers were right, whatever has happened meanwhile; where they were wrong, if nothing
// has.
func TestWrongPeersAtTheFirstStart(t *testing.T) {
	r := newRig(t, 3, "raft-ht", nil)
	right := r.cfg[1].Members
	wrong := func(id uint64, change func(m []consensus.Member) []consensus.Member) {
		c := r.cfg[id]
		c.Members = change(slices.Clone(right))
		r.cfg[id] = c
	}
	nobody := labtest.Addrs(t, 2)
	wrong(3, func(m []consensus.Member) []consensus.Member { m[1].Addr, m[1].Client = nobody[0], nobody[1]; return m })
	wrong(2, func(m []consensus.Member) []consensus.Member { m[2].ID = 4; return m })
	wrong(1, func(m []consensus.Member) []consensus.Member { m[0].Addr = "192.0.2.1:7401"; return m }) // of a network for examples
	if _, err := r.tryStart(1); err == nil {
		t.Error("a replica listens at an address that is not this machine's")
	}
	r.start(2)
	if err := r.halt(2); err != nil {
		t.Fatal(err)
	}
	for _, id := range []uint64{1, 2} {
		wrong(id, func(m []consensus.Member) []consensus.Member { return m })
	}
	r.startAll()
	r.insist(1, "k", "v") // who of 2 and 3 leads is not known to the other
	if err := r.halt(3); err != nil {
		t.Fatal(err)
	}
	wrong(3, func(m []consensus.Member) []consensus.Member { return m })
	r.start(3)
	testkit.Eventually(t, "replica 3 finds replica 2", func() bool { return r.nodes[3].peers.up(2) })
	for id, n := range r.nodes {
		if diff := cmp.Diff(right, n.Status().Members); diff != "" {
			t.Errorf("members as replica %d knows them: %s", id, diff)
		}
	}
}

// What cannot be written of a list that is put right, the start reports.
func TestFirstMembersAreNotWritten(t *testing.T) {
	disk := waltest.NewDisk()
	r := newRig(t, 3, "raft-ht", func(c *Config) { c.Dir, c.Disk = "", disk })
	c := r.cfg[1]
	right := c.Members
	c.Members = slices.Clone(right)
	c.Members[2].ID = 4
	r.cfg[1] = c
	r.start(1)
	if err := r.halt(1); err != nil {
		t.Fatal(err)
	}
	c.Members = right
	full, reported := errors.New("no space left on device"), false
	for n := 1; ; n++ {
		c.Disk = disk.Clone()
		c.Disk.(*waltest.Disk).FailAt(n, full)
		r.cfg[1] = c
		_, err := r.tryStart(1)
		if err == nil {
			break
		}
		if !errors.Is(err, full) {
			t.Errorf("call %d fails: %v", n, err)
		}
		reported = reported || strings.Contains(err.Error(), "identity")
	}
	if !reported {
		t.Error("no start says that identity was not written")
	}
}

// A replica that was first started alone runs with the names of those that were added
// since, at the addresses that the options say.
func TestAddedMemberAtAnotherAddress(t *testing.T) {
	t.Parallel()
	r := startRig(t, 1, "raft-ht", nil)
	r.configure(consensus.Change{Kind: consensus.AddLearner, Member: newMember(t, 2)})
	if err := r.halt(1); err != nil {
		t.Fatal(err)
	}
	c, now := r.cfg[1], newMember(t, 2)
	c.Members = append(slices.Clone(c.Members), now, newMember(t, 3))
	r.cfg[1] = c
	r.start(1)
	r.leader()
	now.Learner = true
	if diff := cmp.Diff([]consensus.Member{c.Members[0], now}, r.nodes[1].Status().Members); diff != "" {
		t.Error(diff)
	}
}

// A replica that has become a cluster by itself does not run when it is one of several: the
// others would be another cluster of the same name.
func TestClusterOfOneByMistake(t *testing.T) {
	t.Parallel()
	r := newRig(t, 3, "raft-ht", nil)
	all := r.cfg[1]
	alone := all
	alone.Members = all.Members[:1]
	r.cfg[1] = alone
	r.start(1)
	r.leader()
	r.set(1, "k", "v")
	if err := r.halt(1); err != nil {
		t.Fatal(err)
	}
	r.cfg[1] = all
	if _, err := r.tryStart(1); err == nil || !strings.Contains(err.Error(), "a cluster of replica 1 alone") {
		t.Errorf("started with the others: %v", err)
	}
	r.cfg[1] = alone
	r.start(1)
	r.leader()
	r.want(1, "k", "v")
}
