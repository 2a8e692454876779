package wal_test

import (
	"fmt"
	"testing"

	"github.com/weirdb/weir/internal/kvd/wal"
	"github.com/weirdb/weir/internal/kvd/wal/waltest"
)

// FuzzSegment replaces a part of the last segment with any bytes.
func FuzzSegment(f *testing.F) {
	base := sample(f)
	f.Add(0, []byte("weirwal\n"))
	f.Add(130, []byte{0xff, 0xff, 0xff, 0xff})
	f.Add(300, base.Bytes(seg3)[128:])
	f.Fuzz(func(t *testing.T, at int, b []byte) {
		replace(t, base.Clone(), seg3, at, b)
	})
}

// FuzzSnapshot does the same to a snapshot.
func FuzzSnapshot(f *testing.F) {
	base := sample(f)
	f.Add(0, []byte("weirsnap"))
	f.Add(32, []byte{0xff, 0xff, 0xff, 0xff})
	f.Add(len(base.Bytes(snap2)), []byte{0})
	f.Fuzz(func(t *testing.T, at int, b []byte) {
		replace(t, base.Clone(), snap2, at, b)
	})
}

// replace overwrites a file from a place on. Whatever the bytes are, opening
// and verifying come to an end, and what is streamed was written.
func replace(t *testing.T, disk *waltest.Disk, file string, at int, b []byte) {
	t.Helper()
	content := disk.Bytes(file)
	if at < 0 || at > len(content) {
		return
	}
	content = append(content[:at], append(b, content[min(len(content), at+len(b)):]...)...)
	disk.SetBytes(file, content)
	if _, err := wal.VerifyDisk(disk, func(wal.Finding) {}); err != nil {
		t.Fatal(err)
	}
	l, r, err := openOn(disk)
	if err != nil {
		return
	}
	written := map[string]bool{}
	for _, line := range withoutSnapshot {
		written[line] = true
	}
	for _, line := range show(t, r) {
		if !written[line] {
			t.Fatal(fmt.Errorf("%s was never written", line))
		}
	}
	must(t, l.Close())
}
