package replica

import (
	"os"
	"strings"
	"testing"

	"github.com/weirdb/weir/internal/kvd/consensus"
	"github.com/weirdb/weir/internal/testkit"
)

// A first member whose directory was lost does not vote when all others have been
// restarted, too: with the one that lags it would be a majority that has forgotten
// what was acknowledged.
func TestEmptiedFounderAfterARestartOfAll(t *testing.T) {
	r := startRig(t, 3, "raft-ht", nil)
	lost := r.follower()
	lags := 6 - r.leader() - lost
	if err := r.halt(lags); err != nil {
		t.Fatal(err)
	}
	stays := r.leader()
	r.set(stays, "k", "v")
	for _, id := range []uint64{1, 2, 3} {
		if err := r.halt(id); err != nil {
			t.Fatal(err)
		}
	}
	if stays == lost { // it was handed the lead
		lost = 6 - lags - stays
	}
	stays = 6 - lags - lost
	if err := os.RemoveAll(r.cfg[lost].Dir); err != nil {
		t.Fatal(err)
	}
	r.start(lags)
	r.start(lost)
	if err := r.ended(lost); err == nil || !strings.Contains(err.Error(), "another log than it was met with") || !strings.Contains(err.Error(), "weir kv member replace") {
		t.Errorf("the emptied replica ended with %v", err)
	}
	r.start(stays)
	r.want(r.leader(), "k", "v")
}

// So it is with one that joined: its log is noted when it becomes a voter.
func TestEmptiedJoinerAfterARestartOfAll(t *testing.T) {
	r := startRig(t, 3, "raft-ht", nil)
	r.joins(4, 1, 2, 3)
	r.configure(consensus.Change{Kind: consensus.Promote, Member: consensus.Member{ID: 4}})
	for id, n := range r.nodes {
		testkit.Eventually(t, "all have noted its log", func() bool {
			_, met := n.disk.log.Met(4)
			return met || id == 4
		})
	}
	for _, id := range []uint64{1, 2, 3, 4} {
		if err := r.halt(id); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.RemoveAll(r.cfg[4].Dir); err != nil {
		t.Fatal(err)
	}
	r.start(1)
	r.start(4)
	if err := r.ended(4); err == nil || !strings.Contains(err.Error(), "another log than it was met with") {
		t.Errorf("the emptied replica ended with %v", err)
	}
}
