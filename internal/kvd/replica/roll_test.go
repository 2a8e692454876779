package replica

import (
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/weirdb/weir/internal/kvd/wal"
	"github.com/weirdb/weir/internal/testkit"
)

// slowToGrow is a disk on which a new file takes until the gate opens.
type slowToGrow struct {
	wal.Disk
	gate atomic.Pointer[chan struct{}] // nil while none does
}

func (d *slowToGrow) Create(name string) (wal.File, error) {
	if gate := d.gate.Load(); gate != nil && strings.HasPrefix(name, "spare-") {
		<-*gate
	}
	return d.Disk.Create(name)
}

// The next segment of the log is made beside the writes, the first time, too: they go
// on in the old one however long that takes.
func TestFirstRollHoldsNobodyUp(t *testing.T) {
	var disk *slowToGrow
	r := newRig(t, 1, "raft-ht", func(c *Config) {
		under, err := wal.Directory(c.Dir)
		if err != nil {
			t.Fatal(err)
		}
		disk = &slowToGrow{Disk: under}
		c.Disk, c.SegmentBytes = disk, 64<<10
	})
	r.startAll()
	n := r.nodes[r.leader()]
	gate := make(chan struct{})
	open := sync.OnceFunc(func() { close(gate) })
	defer open()
	disk.gate.Store(&gate)
	for i := range 40 {
		r.set(1, fmt.Sprint("k", i), strings.Repeat("v", 4000))
	}
	if n := n.disk.stats.rolls.Load(); n != 0 {
		t.Fatalf("%d segments were begun though none could be made", n)
	}
	open()
	testkit.Eventually(t, "the next segment", func() bool {
		r.set(1, "more", "v")
		return n.disk.stats.rolls.Load() > 0
	})
}
