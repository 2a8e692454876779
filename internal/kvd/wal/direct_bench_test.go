//go:build linux

package wal

import (
	"fmt"
	"sync"
	"testing"
)

// BenchmarkFlush is a round of 200 bytes made durable in a file that has its blocks,
// by one replica and by three of one disk at once: through the page cache and past it.
func BenchmarkFlush(b *testing.B) {
	for _, direct := range []bool{false, true} {
		for _, writers := range []int{1, 3} {
			b.Run(fmt.Sprintf("direct=%t/writers=%d", direct, writers), func(b *testing.B) {
				var files []*dirFile
				for range writers {
					made, err := (dirDisk{b.TempDir()}).Create("file")
					if err != nil {
						b.Fatal(err)
					}
					f := made.(*dirFile)
					if _, err := f.WriteAt(make([]byte, 4<<20), 0); err != nil {
						b.Fatal(err)
					}
					if err := f.Sync(); err != nil {
						b.Fatal(err)
					}
					f.cached = !direct
					files = append(files, f)
				}
				round := make([]byte, 200)
				b.ResetTimer()
				var all sync.WaitGroup
				for _, f := range files {
					all.Go(func() {
						for i := range b.N {
							if _, err := f.WriteSync(round, int64(i%20_000)*200, false); err != nil {
								b.Error(err)
								return
							}
						}
					})
				}
				all.Wait()
				for _, f := range files {
					if err := f.Close(); err != nil {
						b.Fatal(err)
					}
				}
			})
		}
	}
}
