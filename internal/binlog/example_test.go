package binlog_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log"

	"github.com/weirdb/weir/internal/binlog"
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
