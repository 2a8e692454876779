package outbox_test

import (
	"context"
	"database/sql"
	"fmt"
	"log"
	"os"
	"path/filepath"
	"time"

	"github.com/weirdb/weir/outbox"
	"github.com/weirdb/weir/outbox/sink/stdout"
	"github.com/weirdb/weir/outbox/sqlite"
)

// An order and its message are committed together, and the message is delivered.
func Example() {
	ctx := context.Background()
	db, store, end := openShop(ctx)
	defer end()
	if err := placeOrder(ctx, db); err != nil {
		log.Fatal(err)
	}
	if err := deliver(ctx, store, 1); err != nil {
		log.Fatal(err)
	}
	// Output: {"number":42}
}

// placeOrder is what an application does.
func placeOrder(ctx context.Context, db *sql.DB) error {
	tx, err := db.BeginTx(ctx, nil)
	if err != nil {
		return err
	}
	defer func() { _ = tx.Rollback() }() // after Commit it does nothing
	if _, err := tx.ExecContext(ctx, "INSERT INTO orders VALUES (42)"); err != nil {
		return err
	}
	order := outbox.Message{Topic: "orders", Key: "order-42", Payload: []byte(`{"number":42}`)}
	if err := outbox.Enqueue(ctx, outbox.SQLite(tx), order); err != nil {
		return err
	}
	return tx.Commit()
}

// deliver runs a relay until it has delivered n messages.
func deliver(ctx context.Context, store outbox.Store, n uint64) error {
	sink, err := stdout.New(ctx, stdout.Options{Format: "payload"})
	if err != nil {
		return err
	}
	relay, err := outbox.NewRelay(store, sink, outbox.Config{})
	if err != nil {
		return err
	}
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	ended := make(chan error, 1)
	go func() { ended <- relay.Run(ctx) }() // an application's relay runs until its context ends
	for relay.Stats().Acked < n {
		time.Sleep(time.Millisecond)
	}
	stop()
	return <-ended
}

// openShop creates a database with a table of orders and an outbox.
func openShop(ctx context.Context) (db *sql.DB, store *sqlite.Store, end func()) {
	dir, err := os.MkdirTemp("", "outbox-example-")
	if err != nil {
		log.Fatal(err)
	}
	path := filepath.Join(dir, "shop.db")
	if store, err = sqlite.Open(ctx, path, sqlite.Options{}); err != nil {
		log.Fatal(err)
	}
	if _, err := store.Migrate(ctx, outbox.Plan{}); err != nil {
		log.Fatal(err)
	}
	if db, err = sql.Open("sqlite", "file:"+path+"?_pragma=busy_timeout(5000)"); err != nil {
		log.Fatal(err)
	}
	if _, err := db.ExecContext(ctx, "CREATE TABLE orders (number INTEGER)"); err != nil {
		log.Fatal(err)
	}
	return db, store, func() {
		for _, err := range []error{db.Close(), store.Close(), os.RemoveAll(dir)} {
			if err != nil {
				fmt.Println(err)
			}
		}
	}
}
