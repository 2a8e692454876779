package wal_test

import (
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"path/filepath"
	"testing"

	"github.com/weirdb/weir/internal/kvd/wal"
)

// BenchmarkSync appends and flushes rounds of records of 128 bytes, and rolls
// like a replica does: into files that were written before, into a file that
// grows, and without flushing.
func BenchmarkSync(b *testing.B) {
	for _, kind := range []string{"recycled", "growing", "nosync"} {
		for _, n := range []int{1, 16, 256} {
			b.Run(fmt.Sprintf("%s/records=%d", kind, n), func(b *testing.B) {
				opts := wal.Options{SegmentBytes: 8 << 20, NoSync: kind == "nosync"}
				if kind == "growing" {
					opts.SegmentBytes = 1 << 10
				}
				l, _, err := wal.Open(b.TempDir(), me, opts)
				must(b, err)
				must(b, l.Prepare())
				round := make([]wal.Record, n)
				for i := range round {
					round[i] = wal.Record{Kind: wal.Other, Data: make([]byte, 128)}
				}
				b.SetBytes(int64(n * 128))
				b.ReportAllocs()
				for b.Loop() {
					must(b, l.Append(round...))
					must(b, l.Sync())
					if kind != "growing" && l.Full() {
						must(b, l.Roll(nil))
						must(b, l.Release(0))
					}
				}
				must(b, l.Close())
			})
		}
	}
}

// BenchmarkFile is what the file system takes for the same: writes and flushes
// of 4 KiB into blocks that exist, and at the end of a file.
func BenchmarkFile(b *testing.B) {
	const size = 8 << 20
	for _, kind := range []string{"overwrite", "grow"} {
		b.Run(kind, func(b *testing.B) {
			f, err := os.Create(filepath.Join(b.TempDir(), "file"))
			must(b, err)
			block := make([]byte, 4096)
			if kind == "overwrite" {
				_, err := f.Write(make([]byte, size))
				must(b, err)
				must(b, f.Sync())
			}
			at := int64(0)
			for b.Loop() {
				_, err := f.WriteAt(block, at)
				must(b, err)
				must(b, fdatasync(f))
				at += int64(len(block))
				if kind == "overwrite" {
					at %= size
				}
			}
			must(b, f.Close())
		})
	}
}

// BenchmarkOpen recovers 32 MiB in rounds of 4 KiB.
func BenchmarkOpen(b *testing.B) {
	dir := b.TempDir()
	opts := wal.Options{SegmentBytes: 8 << 20, NoSync: true}
	l, _, err := wal.Open(dir, me, opts)
	must(b, err)
	random := rand.New(rand.NewPCG(1, 2))
	data := make([]byte, 128)
	for i := uint64(1); i <= 32<<20/4096*32; i++ {
		data[random.IntN(len(data))]++
		must(b, l.Append(wal.Record{Kind: wal.Entry, Term: 1, Index: i, Data: data}))
		if i%32 == 0 {
			must(b, l.Sync())
		}
		if l.Full() {
			must(b, l.Roll(nil))
		}
	}
	must(b, l.Close())
	b.SetBytes(32 << 20)
	for b.Loop() {
		l, r, err := wal.Open(dir, me, opts)
		must(b, err)
		for _, err := range r.Records() {
			must(b, err)
		}
		must(b, l.Close())
	}
}

// BenchmarkSnapshot writes 64 MiB and verifies them.
func BenchmarkSnapshot(b *testing.B) {
	l, _, err := wal.Open(b.TempDir(), me, wal.Options{SegmentBytes: 1 << 20})
	must(b, err)
	piece := make([]byte, 64<<10)
	b.SetBytes(64 << 20)
	for b.Loop() {
		info, err := l.Snapshots().Create(wal.SnapshotInfo{Index: 1, Term: 1}, func(w io.Writer) error {
			for range 1024 {
				if _, err := w.Write(piece); err != nil {
					return err
				}
			}
			return nil
		})
		must(b, err)
		must(b, l.Snapshots().Verify(info))
	}
	must(b, l.Close())
}
