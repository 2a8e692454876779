package replica

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/weirdb/weir/internal/kvd/wal/waltest"
	"github.com/weirdb/weir/internal/testkit"
)

// A leader whose disk hangs, without an error, is no leader soon: another replica
// serves, the hung one says why it is not ready, and comes back with its disk.
func TestHungDiskOfTheLeader(t *testing.T) {
	t.Parallel()
	for _, preset := range []string{"raft-ht", "curp-ho"} {
		t.Run(preset, func(t *testing.T) {
			disks := map[uint64]*waltest.Hanging{}
			r := startRig(t, 3, preset, func(c *Config) {
				disks[c.ID] = &waltest.Hanging{Disk: waltest.NewDisk()}
				c.Dir, c.Disk = "", disks[c.ID]
				c.RequestTimeout = 500 * time.Millisecond // an answer that is not coming is asked for again
			})
			t.Cleanup(func() {
				for _, d := range disks {
					d.Work()
				}
			})
			hung := r.leader()
			r.insist(hung, "k", "before")
			disks[hung].Hang()
			var next uint64
			testkit.Eventually(t, "another replica leads, and serves", func() bool {
				for id, n := range r.nodes {
					_ = n.client.Set(t.Context(), fmt.Sprint("probe", id), "v", 0).Err() // something must go to the disk for it to be noticed
				}
				for id, n := range r.nodes {
					if s := n.Status(); id != hung && s.Leader == id && s.Ready() == nil {
						next = id
					}
				}
				return next != 0
			})
			r.insist(next, "k", "after")
			r.want(next, "k", "after")
			testkit.Eventually(t, "the hung one says why it is not ready", func() bool {
				err := r.nodes[hung].ready()
				return err != nil && strings.Contains(err.Error(), "the disk hangs")
			})
			r.insist(hung, "through the hung one", "v") // which passes it on
			testkit.Eventually(t, "the hung one knows that it does not lead", func() bool { return r.nodes[hung].Status().Leader != hung })
			disks[hung].Work()
			r.leader() // all are ready
			r.want(hung, "k", "after")
			r.converged()
			if log := r.logs[hung].String(); !strings.Contains(log, "the disk hangs") || !strings.Contains(log, "the disk works again") {
				t.Error("the log does not tell of it")
			}
		})
	}
}

// If a follower's disk hangs, the others go on; that replica is not ready.
func TestHungDiskOfAFollower(t *testing.T) {
	t.Parallel()
	disks := map[uint64]*waltest.Hanging{}
	r := startRig(t, 3, "raft-ht", func(c *Config) {
		disks[c.ID] = &waltest.Hanging{Disk: waltest.NewDisk()}
		c.Dir, c.Disk = "", disks[c.ID]
	})
	hung := r.follower()
	defer disks[hung].Work()
	leader := r.leader()
	disks[hung].Hang()
	r.set(leader, "k", "v")
	testkit.Eventually(t, "the hung one says why it is not ready", func() bool {
		err := r.nodes[hung].ready()
		return err != nil && strings.Contains(err.Error(), "the disk hangs")
	})
	r.set(leader, "k", "w")
	if got, err := r.nodes[hung].client.Get(t.Context(), "nothing").Result(); !errors.Is(err, redis.Nil) {
		t.Errorf("a strong read through the hung one: %q, %v", got, err)
	}
	disks[hung].Work()
	r.leader()
	r.converged()
}

// A process that was stopped, or that has nothing to write, has no disk that hangs.
func TestWatchdog(t *testing.T) {
	w := watchdog{patience: 3}
	for i, step := range []struct {
		at   uint64
		want bool
	}{{0, false}, {0, false}, {0, false}, {0, false}, {1, false}, {1, false}, {1, false}, {1, true}, {1, true}, {3, false}, {3, false}, {3, false}, {3, true}, {4, false}, {4, false}} {
		if got := w.hangs(step.at); got != step.want {
			t.Errorf("look %d, at step %d: %v, want %v", i, step.at, got, step.want)
		}
	}
}
