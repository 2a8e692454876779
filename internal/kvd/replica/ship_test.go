package replica

import (
	"strings"
	"testing"

	"github.com/weirdb/weir/internal/kvd/consensus"
	"github.com/weirdb/weir/internal/testkit"
)

// The end of a snapshot that gave way to another one is no news for the core: it
// would take it for the end of the other one and order a third, which cancels that.
func TestShipThatGaveWayIsNotReported(t *testing.T) {
	r := startRig(t, 3, "raft-ht", func(c *Config) { c.SnapshotBytes, c.KeepBytes = 64<<10, 16<<10 })
	away := r.follower()
	if err := r.halt(away); err != nil {
		t.Fatal(err)
	}
	leader := r.leader()
	n := r.nodes[leader]
	testkit.Eventually(t, "a snapshot", func() bool {
		r.set(r.leader(), "k", strings.Repeat("v", 8000))
		return len(n.snapshots.files.List()) > 0
	})
	index := n.snapshots.files.List()[0].Index
	s := newSnapshots(n.Replica)
	s.transport = n.peers.transport
	defer s.stop()
	s.ship(&consensus.Ship{To: consensus.Addr(away), Index: index}) // tries for a while: nobody is there
	s.ship(&consensus.Ship{To: consensus.Addr(away), Index: 1 << 40})
	s.wg.Wait()
	if got := s.stats.unshipped.Load(); got != 1 {
		t.Errorf("%d ends were reported, want that of the last order alone", got)
	}
}
