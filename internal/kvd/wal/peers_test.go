package wal_test

import (
	"errors"
	"os"
	"path/filepath"
	"testing"

	"github.com/weirdb/weir/internal/kvd/wal"
)

// Which log another replica has is known after a restart, and does not change.
func TestLogRemembersPeers(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	l, _ := open(t, dir)
	one, other := wal.LogTag{1, 2, 3}, wal.LogTag{4}
	must(t, l.Meet(2, one, []uint64{1, 2, 3}))
	must(t, l.Meet(3, other, []uint64{1, 2, 3}))
	must(t, l.Meet(2, other, []uint64{1, 2, 3}))
	must(t, l.Close())
	l, _ = open(t, dir)
	if tag, met := l.Met(2); !met || tag != one {
		t.Errorf("replica 2 has log %x, %v", tag, met)
	}
	must(t, l.Meet(4, one, []uint64{2, 4})) // 3 has left
	if _, met := l.Met(3); met {
		t.Error("one that has left is not forgotten")
	}
	must(t, l.Close())
	name := filepath.Join(dir, "peers")
	b, err := os.ReadFile(name)
	must(t, err)
	b[len(b)/2] ^= 1
	must(t, os.WriteFile(name, b, 0o600))
	var corrupt *wal.CorruptError
	if _, _, err := wal.Open(dir, me, small()); !errors.As(err, &corrupt) {
		t.Errorf("a damaged file of peers: %v", err)
	}
}
