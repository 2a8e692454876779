package sqlite_test

import (
	"context"
	"database/sql"
	"fmt"
	"log"
	"os"
	"path/filepath"

	"github.com/weirdb/weir/outbox"
	"github.com/weirdb/weir/outbox/sqlite"
)

// The store and the application share the file and its driver.
func ExampleOpen() {
	ctx := context.Background()
	dir, err := os.MkdirTemp("", "sqlite-example-")
	if err != nil {
		log.Fatal(err)
	}
	defer os.RemoveAll(dir)
	path := filepath.Join(dir, "shop.db")
	store, err := sqlite.Open(ctx, path, sqlite.Options{})
	if err != nil {
		log.Fatal(err)
	}
	defer store.Close()
	if _, err := store.Migrate(ctx, outbox.Plan{}); err != nil {
		log.Fatal(err)
	}

	db, err := sql.Open("sqlite", "file:"+path)
	if err != nil {
		log.Fatal(err)
	}
	defer db.Close()
	if err := outbox.Enqueue(ctx, outbox.SQLite(db), outbox.Message{Topic: "orders", Payload: []byte("{}")}); err != nil {
		log.Fatal(err)
	}

	status, err := store.Status(ctx)
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(status.Pending, "pending")
	// Output: 1 pending
}
