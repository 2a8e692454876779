package binlog_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log"

	"github.com/weirdb/weir/internal/wire/binlog"
)

// A File is read like a Stream: only where the events come from differs.
func ExampleReader() {
	f, err := binlog.OpenFile("testdata/mysql-plain.binlog")
	if err != nil {
		log.Fatal(err)
	}
	defer f.Close()
	r := binlog.NewReader(f, binlog.ReaderConfig{
		Want: func(_, table string) bool { return table == "u" },
	})
	for {
		rec, err := r.Next(context.Background())
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			log.Fatal(err)
		}
		switch rec.Kind {
		case binlog.Changes:
			for rec.Rows.Next() {
				fmt.Println(rec.Rows.Action, rec.Rows.Table.Name, rec.Rows.After[0].Int64())
			}
			if err := rec.Rows.Err(); err != nil {
				log.Fatal(err)
			}
		case binlog.Statement:
			fmt.Printf("%.12s…\n", rec.Query.SQL)
		case binlog.Commit:
			fmt.Println("committed at", rec.Position.Pos)
		}
	}
	// Output:
	// CREATE TABLE…
	// committed at 657
	// XA ROLLBACK …
	// committed at 3717
	// CREATE TABLE…
	// INSERT u 1
	// committed at 4180
}

// A log is cut after a transaction, to be replayed up to there: what is written
// is a log that the servers' own programs read.
func ExampleTracker() {
	f, err := binlog.OpenFile("testdata/mariadb-plain.binlog")
	if err != nil {
		log.Fatal(err)
	}
	defer f.Close()
	last := binlog.GTID{Domain: 0, Server: 1, Seq: 8}
	out := bytes.NewBufferString(binlog.Magic)
	var tracker binlog.Tracker
	for tracker.GTID() != last {
		e, err := f.Next(context.Background())
		if err != nil {
			log.Fatal(err)
		}
		if _, err := tracker.Observe(e); err != nil {
			log.Fatal(err)
		}
		out.Write(e.Raw)
	}
	fmt.Println(tracker.GTID(), "ends at", tracker.Position())
	fmt.Println(out.Len(), "bytes")
	// Output:
	// 0-1-8 ends at mariadb-plain.binlog:3424
	// 3424 bytes
}
