package replica

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/weirdb/weir/internal/kvd/consensus"
	"github.com/weirdb/weir/internal/testkit"
)

// A first member whose directory was lost does not vote when all others have been
// restarted, too: with the one that lags it would be a majority that has forgotten
// what was acknowledged.
func TestEmptiedFounderAfterARestartOfAll(t *testing.T) {
	t.Parallel()
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

// A replica whose directory was put back from an older copy is refused, too, when all
// others have been restarted: they note what it had acknowledged.
func TestOlderCopyAfterARestartOfAll(t *testing.T) {
	t.Parallel()
	r := startRig(t, 3, "raft-ht", nil)
	id := r.follower()
	r.set(r.leader(), "k", "v")
	if err := r.halt(id); err != nil {
		t.Fatal(err)
	}
	dir, old := r.cfg[id].Dir, filepath.Join(t.TempDir(), "old")
	if err := os.CopyFS(old, os.DirFS(dir)); err != nil {
		t.Fatal(err)
	}
	r.start(id)
	for range 20 {
		r.set(r.leader(), "k", "w")
	}
	r.remembered(id)
	for _, each := range []uint64{1, 2, 3} {
		if err := r.halt(each); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.RemoveAll(dir); err != nil {
		t.Fatal(err)
	}
	if err := os.CopyFS(dir, os.DirFS(old)); err != nil {
		t.Fatal(err)
	}
	other := id%3 + 1
	r.start(other)
	r.start(id)
	if err := r.ended(id); err == nil || !strings.Contains(err.Error(), "older copy") || !strings.Contains(err.Error(), "weir kv member replace") {
		t.Errorf("the older copy ended with %v", err)
	}
	r.start(6 - id - other)
	r.want(r.leader(), "k", "w")
}

// A running replica notes what others have acknowledged, too: it may be killed.
func TestAckedIsNotedMeanwhile(t *testing.T) {
	t.Parallel()
	r := startRig(t, 3, "raft-ht", nil)
	r.set(r.leader(), "k", "v")
	lead := r.nodes[r.leader()]
	testkit.Eventually(t, "the leader's disk says what another replica has", func() bool {
		acked, err := lead.disk.log.Acked()
		if err != nil {
			t.Fatal(err)
		}
		for id := range r.nodes {
			if id != lead.cfg.ID && acked[id] >= 2 {
				return true
			}
		}
		return false
	})
	id := lead.cfg.ID
	if err := r.halt(id); err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(r.cfg[id].Dir, "acked")
	b, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	b[len(b)/2] ^= 1
	if err := os.WriteFile(file, b, 0o600); err != nil {
		t.Fatal(err)
	}
	other := strings.Replace(string(b), `"format":1`, `"format":2`, 1)
	for _, text := range []string{string(b), other} {
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		_, err := r.tryStart(id)
		for _, want := range []string{r.cfg[id].Dir, "acked", "remove this file", "docs/kv-operating.md"} {
			if err == nil || !strings.Contains(err.Error(), want) {
				t.Errorf("with a file of other content: %v, and not %s", err, want)
			}
		}
	}
	if err := os.Remove(file); err != nil {
		t.Fatal(err)
	}
	r.start(id)
	r.want(r.leader(), "k", "v")
}

// Directories put back from copies of different moments refuse each other, and come up without
// the files acked, the newest first: with all that was written up to the newest.
func TestCopiesOfDifferentMoments(t *testing.T) {
	t.Parallel()
	r := startRig(t, 3, "raft-ht", nil)
	newest := r.leader()
	older := []uint64{newest%3 + 1, (newest+1)%3 + 1}
	saved := t.TempDir()
	save := func(id uint64) {
		t.Helper()
		if err := r.halt(id); err != nil {
			t.Fatal(err)
		}
		if err := os.CopyFS(filepath.Join(saved, strconv.FormatUint(id, 10)), os.DirFS(r.cfg[id].Dir)); err != nil {
			t.Fatal(err)
		}
	}
	for _, id := range older { // one after the other, with writes between
		r.set(r.leader(), "k", "v")
		save(id)
		r.start(id)
	}
	testkit.Eventually(t, "the newest has led and knows what the others have", func() bool {
		if lead := r.leader(); lead != newest {
			r.configure(consensus.Change{Kind: consensus.Transfer, Member: consensus.Member{ID: newest}})
			return false
		}
		r.set(newest, "k", "last")
		n := r.nodes[newest]
		n.peers.mu.Lock()
		defer n.peers.mu.Unlock()
		return n.peers.acked[older[0]] >= n.Status().Last && n.peers.acked[older[1]] >= n.Status().Last
	})
	save(newest)
	for _, id := range older {
		if err := r.halt(id); err != nil {
			t.Fatal(err)
		}
	}
	for id := range r.cfg {
		if err := os.RemoveAll(r.cfg[id].Dir); err != nil {
			t.Fatal(err)
		}
		if err := os.CopyFS(r.cfg[id].Dir, os.DirFS(filepath.Join(saved, strconv.FormatUint(id, 10)))); err != nil {
			t.Fatal(err)
		}
	}
	r.start(newest)
	r.start(older[0])
	if err := r.ended(older[0]); err == nil || !strings.Contains(err.Error(), "Directories are put back from copies") {
		t.Errorf("the older copy ended with %v", err)
	}
	if err := r.halt(newest); err != nil {
		t.Fatal(err)
	}
	for id := range r.cfg {
		if err := os.Remove(filepath.Join(r.cfg[id].Dir, "acked")); err != nil && !errors.Is(err, fs.ErrNotExist) {
			t.Fatal(err)
		}
	}
	r.start(newest)
	r.start(older[0])
	r.want(r.leader(), "k", "last")
	r.start(older[1])
	r.want(r.leader(), "k", "last")
}

// So it is with one that joined: its log is noted when it becomes a voter.
func TestEmptiedJoinerAfterARestartOfAll(t *testing.T) {
	t.Parallel()
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
	// If replica 1 has led, it also knows what replica 4 acknowledged, and says that.
	err := r.ended(4)
	if err == nil || !strings.Contains(err.Error(), "another log than it was met with") && !strings.Contains(err.Error(), "acknowledged the log up to entry") {
		t.Errorf("the emptied replica ended with %v", err)
	}
}
