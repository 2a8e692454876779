package replica

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/weirdb/weir/internal/kvd/consensus"
	"github.com/weirdb/weir/internal/kvd/peer"
	"github.com/weirdb/weir/internal/kvd/wal"
	"github.com/weirdb/weir/internal/kvd/wal/waltest"
	"github.com/weirdb/weir/internal/lab"
	"github.com/weirdb/weir/internal/testkit"
)

// All replicas lose their power again and again, with whatever was not flushed:
// nothing that was acknowledged is gone.
func TestPowerFailures(t *testing.T) {
	t.Parallel()
	random := rand.New(rand.NewPCG(1, 2))
	disks := map[uint64]*waltest.Disk{}
	r := newRig(t, 3, "curp-ho", func(c *Config) {
		disks[c.ID] = waltest.NewDisk()
		c.Dir, c.Disk = "", disks[c.ID]
		c.SegmentBytes, c.SnapshotBytes, c.KeepBytes = 16<<10, 20<<10, 8<<10
	})
	r.startAll()
	want := map[string]string{}
	for life := range testkit.Rounds(4, 6) {
		leader := r.leader()
		for i := range 60 {
			key, value := fmt.Sprint("k", i%40), fmt.Sprintf("%d.%d.%s", life, i, strings.Repeat("x", 100))
			r.set(uint64(i%3+1), key, value)
			want[key] = value
		}
		victims := []uint64{1, 2, 3}
		if life%2 == 1 {
			victims = []uint64{leader}
		}
		for _, id := range victims {
			disks[id].PowerAt(1 + random.IntN(3))
		}
		for _, id := range victims {
			r.poke(id)
			var disk *DiskError
			if err := r.ended(id); !errors.As(err, &disk) || !errors.Is(err, waltest.ErrPower) {
				t.Fatalf("replica %d ended with %v", id, err)
			}
			disks[id].Restart(random)
		}
		for _, id := range victims {
			r.start(id)
		}
		at := r.leader()
		for key, value := range want {
			r.want(at, key, value)
		}
	}
	r.converged()
}

// poke makes a replica write what it has written before, until its disk fails.
func (r *rig) poke(id uint64) {
	n := r.nodes[id]
	testkit.Eventually(r.t, "the replica notices that its disk has failed", func() bool {
		return n.inLoop(func(consensus.Clock) { n.disk.put(order{records: n.core.Carry(), sync: true}) }) != nil
	})
}

// A failed flush stops the replica, with words; the others go on.
func TestFailedFlush(t *testing.T) {
	t.Parallel()
	disks := map[uint64]*waltest.Disk{}
	r := startRig(t, 3, "raft-ht", func(c *Config) {
		disks[c.ID] = waltest.NewDisk()
		c.Dir, c.Disk = "", disks[c.ID]
	})
	victim := r.leader()
	failure := errors.New("input/output error")
	disks[victim].FailAt(2, failure)
	_ = r.nodes[victim].client.Set(t.Context(), "k", "v", 0).Err() // its answer may come from the next leader
	var disk *DiskError
	err := r.ended(victim)
	if !errors.As(err, &disk) || !errors.Is(err, failure) || !strings.Contains(err.Error(), "acknowledges nothing") {
		t.Fatalf("the replica ended with %v", err)
	}
	at := r.leader()
	r.set(at, "k", "w")
	disks[victim].Kill()
	r.start(victim)
	r.leader()
	r.want(victim, "k", "w")
}

// A full disk stops the replica that has it; with space it comes back.
func TestFullDisk(t *testing.T) {
	dir := t.TempDir()
	if err := unix.Mount("tmpfs", dir, "tmpfs", 0, "size=3m"); err != nil {
		t.Skipf("a small file system cannot be mounted here: %v", err)
	}
	t.Cleanup(func() { _ = unix.Unmount(dir, unix.MNT_DETACH) })
	r := startRig(t, 3, "raft-ht", func(c *Config) {
		if c.ID == 2 {
			c.Dir = filepath.Join(dir, "data")
		}
	})
	value := strings.Repeat("v", 64<<10)
	full := r.nodes[2]
	for i := 0; ; i++ {
		at := uint64(1 + 2*(i%2))
		r.set(at, fmt.Sprint("k", i%8), value)
		select {
		case <-full.ended:
		default:
			continue
		}
		break
	}
	err := r.ended(2)
	if !errors.Is(err, syscall.ENOSPC) || !strings.Contains(err.Error(), "free some space") {
		t.Fatalf("the replica ended with %v", err)
	}
	r.set(r.leader(), "k", "without it")
	if err := unix.Mount("tmpfs", dir, "tmpfs", unix.MS_REMOUNT, "size=64m"); err != nil {
		t.Fatal(err)
	}
	r.start(2)
	r.leader()
	r.want(2, "k", "without it")
	r.converged()
}

// segments are the files of a replica's log, oldest first.
func segments(t *testing.T, dir string) []string {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(dir, "*.wal"))
	if err != nil || len(files) == 0 {
		t.Fatalf("segments in %s: %v, %v", dir, files, err)
	}
	return files
}

// damage changes one byte of a file.
func damage(t *testing.T, file string, offset int64) {
	t.Helper()
	f, err := os.OpenFile(file, os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	var b [1]byte
	if _, err := f.ReadAt(b[:], offset); err != nil {
		t.Fatal(err)
	}
	b[0] ^= 0x40
	if _, err := f.WriteAt(b[:], offset); err != nil {
		t.Fatal(err)
	}
}

// A log that is damaged in the middle is refused, with what to do; what a crash
// tore off at its end is cut off.
func TestDamagedLog(t *testing.T) {
	r := startRig(t, 3, "raft-ht", nil)
	id := r.follower()
	for i := range 20 {
		r.set(id, fmt.Sprint("k", i), "v")
	}
	r.converged() // the others may have acknowledged without it
	if err := r.halt(id); err != nil {
		t.Fatal(err)
	}
	file := segments(t, r.cfg[id].Dir)[0]
	damage(t, file, 600)
	var corrupt *wal.CorruptError
	if _, err := r.tryStart(id); !errors.As(err, &corrupt) || !strings.Contains(err.Error(), "weir kv member replace") {
		t.Fatalf("a damaged log: %v", err)
	}
	damage(t, file, 600) // as it was
	r.start(id)
	r.leader()
	r.want(id, "k19", "v")
}

func TestWrongDirectory(t *testing.T) {
	r := startRig(t, 1, "raft-ht", nil)
	cfg := r.cfg[1]
	var locked *wal.LockedError
	if _, err := Open(cfg); !errors.As(err, &locked) {
		t.Errorf("a directory in use: %v", err)
	}
	if err := r.halt(1); err != nil {
		t.Fatal(err)
	}
	var identity *wal.IdentityError
	other := cfg
	other.Cluster = "other"
	if _, err := Open(other); !errors.As(err, &identity) || identity.Field != "cluster" {
		t.Errorf("another cluster's directory: %v", err)
	}
	other = cfg
	other.ID, other.Members = 9, []consensus.Member{newMember(t, 9)}
	if _, err := Open(other); !errors.As(err, &identity) || identity.Field != "replica" {
		t.Errorf("another replica's directory: %v", err)
	}
}

// Replicas of other clusters, and those that do not know the secret, are refused
// and named.
func TestStrangers(t *testing.T) {
	for name, change := range map[string]func(*Config){
		"cluster": func(c *Config) { c.Cluster = "other" },
		"secret":  func(c *Config) { c.Secret = []byte("not the right secret") },
	} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t, 3, "raft-ht", func(c *Config) {
				c.Secret = []byte("the secret of this test")
				if c.ID == 3 {
					change(c)
				}
			})
			r.startAll()
			stranger := r.nodes[3]
			testkit.Eventually(t, "the stranger is refused", func() bool {
				s := r.nodes[1].peers.transport.Stats()
				return s.Refused[peer.CodeCluster]+s.Refused[peer.CodeUnauthenticated] > 0
			})
			delete(r.nodes, 3)
			r.set(r.leader(), "k", "v")
			if stranger.Status().Leader != 0 {
				t.Error("the stranger follows a leader")
			}
			r.nodes[3] = stranger
		})
	}
}

// remembered returns when all others know what a replica has. Leaders remember:
// whichever it meets first when it comes back is to be one that has led.
func (r *rig) remembered(id uint64) {
	r.t.Helper()
	for other, n := range r.nodes {
		if other == id {
			continue
		}
		testkit.Eventually(r.t, fmt.Sprintf("replica %d leads and remembers what replica %d has", other, id), func() bool {
			if r.leader() != other {
				r.configure(consensus.Change{Kind: consensus.Transfer, Member: consensus.Member{ID: other}})
				return false
			}
			n.peers.mu.Lock()
			defer n.peers.mu.Unlock()
			return n.peers.acked[id] >= n.Status().Last
		})
	}
}

// A replica whose directory was put back from an older copy is refused.
func TestOldDisk(t *testing.T) {
	t.Parallel()
	for _, lowest := range []bool{true, false} {
		t.Run(fmt.Sprint("lowest=", lowest), func(t *testing.T) {
			r := startRig(t, 3, "raft-ht", nil)
			// The replica with the larger id dials: both ways are tried.
			id := uint64(3)
			if lowest {
				id = 1
			}
			if r.leader() == id {
				testkit.Eventually(t, "another one leads", func() bool {
					r.configure(consensus.Change{Kind: consensus.Transfer, Member: consensus.Member{ID: 2}})
					return r.leader() != id
				})
			}
			r.set(2, "k", "v")
			if err := r.halt(id); err != nil {
				t.Fatal(err)
			}
			dir := r.cfg[id].Dir
			old := t.TempDir()
			if err := os.CopyFS(filepath.Join(old, "data"), os.DirFS(dir)); err != nil {
				t.Fatal(err)
			}
			r.start(id)
			r.leader()
			for range 20 {
				r.set(id, "k", "w")
			}
			r.remembered(id)
			if err := r.halt(id); err != nil {
				t.Fatal(err)
			}
			if err := os.RemoveAll(dir); err != nil {
				t.Fatal(err)
			}
			if err := os.CopyFS(dir, os.DirFS(filepath.Join(old, "data"))); err != nil {
				t.Fatal(err)
			}
			r.start(id)
			if err := r.ended(id); err == nil || !strings.Contains(err.Error(), "weir kv member replace") {
				t.Errorf("the replica with the old disk ended with %v", err)
			}
		})
	}
}

// relayed puts a relay into each link between replicas, which those with larger
// ids dial.
func relayed(t *testing.T, n int, change func(*Config)) (*rig, map[[2]uint64]*lab.Relay) {
	t.Helper()
	relays := map[[2]uint64]*lab.Relay{}
	r := newRig(t, n, "raft-ht", func(c *Config) {
		own := append([]consensus.Member(nil), c.Members...)
		for i := range own {
			if m := &own[i]; m.ID < c.ID {
				relay, err := lab.StartRelay(m.Addr)
				if err != nil {
					t.Fatal(err)
				}
				t.Cleanup(func() { _ = relay.Close() })
				relays[[2]uint64{c.ID, m.ID}] = relay
				m.Addr = relay.Addr()
			}
		}
		for i := range own {
			if own[i].ID == c.ID {
				c.Listen = own[i].Addr
			}
		}
		c.Members = own
		if change != nil {
			change(c)
		}
	})
	r.startAll()
	r.leader()
	return r, relays
}

// A leader that is cut off from the others answers no strong read and
// acknowledges no write; the others elect another one. Healed, it follows.
func TestPartitionedLeader(t *testing.T) {
	t.Parallel()
	r, relays := relayed(t, 3, func(c *Config) { c.RequestTimeout = time.Second })
	old := r.leader()
	r.insist(old, "k", "v")
	for ends, relay := range relays {
		if ends[0] == old || ends[1] == old {
			relay.Stall()
		}
	}
	cut := r.nodes[old]
	delete(r.nodes, old)
	next := r.leader()
	r.insist(next, "k", "w")
	// From here on the old leader's answer may be an error, or "w" after it was
	// healed, and never "v".
	if got, err := cut.client.Get(t.Context(), "k").Result(); err == nil {
		t.Errorf("a strong read at the leader that was cut off: %q", got)
	}
	if err := cut.client.Set(t.Context(), "k", "x", 0).Err(); err == nil {
		t.Error("the leader that was cut off acknowledged a write")
	}
	for _, relay := range relays {
		relay.Heal()
	}
	r.nodes[old] = cut
	r.leader()
	r.converged()
	// The write that failed with an unknown outcome may have happened since.
	var got string
	testkit.Eventually(t, "a strong read after healing", func() (read bool) {
		var err error
		got, err = cut.client.Get(t.Context(), "k").Result()
		return err == nil
	})
	if got != "w" && got != "x" {
		t.Errorf("after healing: %q", got)
	}
}

// A follower behind a slow link delays no other replica, and catches up.
func TestSlowFollower(t *testing.T) {
	t.Parallel()
	r, relays := relayed(t, 3, nil)
	slow := r.follower()
	for ends, relay := range relays {
		if ends[0] == slow || ends[1] == slow {
			relay.SetDelay(100 * time.Millisecond)
			relay.SetLink(lab.ToServer, lab.Link{Delay: 100 * time.Millisecond, BytesPerSecond: 256 << 10})
			relay.SetLink(lab.ToClient, lab.Link{Delay: 100 * time.Millisecond, BytesPerSecond: 256 << 10})
		}
	}
	leader := r.leader()
	value := strings.Repeat("v", 2000)
	for i := range 100 {
		r.set(leader, fmt.Sprint("k", i), value)
	}
	for _, relay := range relays {
		relay.SetDelay(0)
		relay.SetLink(lab.ToServer, lab.Link{})
		relay.SetLink(lab.ToClient, lab.Link{})
	}
	r.converged()
	r.want(slow, "k99", value)
}

// A replica that cannot listen gives its directory up again.
func TestAddressInUse(t *testing.T) {
	r := newRig(t, 1, "raft-ht", nil)
	cfg := r.cfg[1]
	for _, addr := range []string{cfg.Members[0].Addr, cfg.Redis} {
		ln, err := net.Listen("tcp", addr)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := Open(cfg); !errors.Is(err, syscall.EADDRINUSE) {
			t.Errorf("an address in use: %v", err)
		}
		if err := ln.Close(); err != nil {
			t.Fatal(err)
		}
	}
	r.start(1)
	r.leader()
}
