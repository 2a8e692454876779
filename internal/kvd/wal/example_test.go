package wal_test

import (
	"fmt"
	"io"

	"github.com/weirdb/weir/internal/kvd/wal"
	"github.com/weirdb/weir/internal/kvd/wal/waltest"
)

// A replica writes what must not be forgotten, and reads it back after a crash.
func Example() {
	disk := waltest.NewDisk()
	opts := wal.Options{SegmentBytes: 4096, Disk: disk}
	who := wal.Identity{Cluster: "shop", Replica: 1}
	log, _, err := wal.Open("", who, opts)
	if err != nil {
		panic(err)
	}
	records := []wal.Record{
		{Kind: wal.Hard, Data: []byte("term 1, voted for 1")},
		{Kind: wal.Entry, Term: 1, Index: 1, Data: []byte("set a 1")},
		{Kind: wal.Entry, Term: 1, Index: 2, Data: []byte("set b 2")},
	}
	if err := log.Append(records...); err != nil {
		panic(err)
	}
	if err := log.Sync(); err != nil { // one write, one flush
		panic(err)
	}
	_, err = log.Snapshots().Create(wal.SnapshotInfo{Index: 1, Term: 1}, func(w io.Writer) error {
		_, err := io.WriteString(w, "a=1")
		return err
	})
	if err != nil {
		panic(err)
	}
	if err := log.Roll(records[:1]); err != nil { // what is alive besides entries
		panic(err)
	}
	disk.Kill()

	_, found, err := wal.Open("", who, opts)
	if err != nil {
		panic(err)
	}
	fmt.Println("closed properly:", found.Clean)
	fmt.Println("snapshot of entries up to", found.Snapshot.Index)
	for record, err := range found.Records() {
		if err != nil {
			panic(err)
		}
		fmt.Println(record.Kind, record.Index, string(record.Data))
	}
	// Output:
	// closed properly: false
	// snapshot of entries up to 1
	// entry 2 set b 2
	// hard 0 term 1, voted for 1
}
