package mysql_test

import (
	"context"
	"database/sql"
	"log"

	_ "github.com/go-sql-driver/mysql"

	"github.com/weirdb/weir/outbox"
	"github.com/weirdb/weir/outbox/mysql"
)

// The outbox is in the application's own database. A test of the package sets another.
var database = "app@tcp(db.example.com:3306)/shop"

// An order and its message are committed together. The example of outbox.Relay delivers it.
func ExampleOpen() {
	ctx := context.Background()
	store, err := mysql.Open(ctx, database, mysql.Options{})
	if err != nil {
		log.Fatalf("open the outbox: %v", err)
	}
	defer store.Close()
	if _, err := store.Migrate(ctx, outbox.Plan{}); err != nil { // creates the tables
		log.Fatalf("create the outbox: %v", err)
	}

	app, err := sql.Open("mysql", database)
	if err != nil {
		log.Fatal(err)
	}
	defer app.Close()
	tx, err := app.BeginTx(ctx, nil)
	if err != nil {
		log.Fatal(err)
	}
	defer tx.Rollback() // after Commit it does nothing
	if _, err := tx.ExecContext(ctx, "INSERT INTO orders (number) VALUES (42)"); err != nil {
		log.Fatalf("place the order: %v", err)
	}
	err = outbox.Enqueue(ctx, outbox.MySQL(tx), outbox.Message{Topic: "orders", Key: "42", Payload: []byte("{}")})
	if err != nil {
		log.Fatalf("place the order: %v", err)
	}
	if err := tx.Commit(); err != nil {
		log.Fatalf("place the order: %v", err)
	}
}
