package inbox_test

import (
	"context"
	"database/sql"
	"fmt"
	"log"
	"os"
	"path/filepath"

	"github.com/weirdb/weir/outbox/inbox"
)

// The second message comes twice, and takes effect once.
func Example() {
	ctx := context.Background()
	dir, err := os.MkdirTemp("", "inbox-example-")
	if err != nil {
		log.Fatal(err)
	}
	defer os.RemoveAll(dir)
	db, err := sql.Open("sqlite", "file:"+filepath.Join(dir, "shipping.db"))
	if err != nil {
		log.Fatal(err)
	}
	defer db.Close()
	if err := inbox.Migrate(ctx, inbox.SQLite(db)); err != nil {
		log.Fatal(err)
	}

	consume := func(identity string) error {
		tx, err := db.BeginTx(ctx, nil)
		if err != nil {
			return err
		}
		defer func() { _ = tx.Rollback() }() // after Commit it does nothing
		first, err := inbox.Once(ctx, inbox.SQLite(tx), "orders", identity)
		if err != nil {
			return err
		}
		if first {
			fmt.Println("ship", identity) // the effects, through tx
		}
		return tx.Commit() // then acknowledge to the broker
	}
	for _, identity := range []string{"order-1", "order-2", "order-2"} {
		if err := consume(identity); err != nil {
			log.Fatal(err)
		}
	}
	// Output:
	// ship order-1
	// ship order-2
}
