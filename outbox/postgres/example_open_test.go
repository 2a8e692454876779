package postgres_test

import (
	"context"
	"log"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/weirdb/weir/outbox"
	"github.com/weirdb/weir/outbox/postgres"
)

// The outbox is in the application's own database. A test of the package sets another.
var database = "postgres://app@db.example.com/shop"

// An order and its message are committed together. The example of outbox.Relay delivers it.
func ExampleOpen() {
	ctx := context.Background()
	store, err := postgres.Open(ctx, database, postgres.Options{})
	if err != nil {
		log.Fatalf("open the outbox: %v", err)
	}
	defer store.Close()
	if _, err := store.Migrate(ctx, outbox.Plan{}); err != nil { // creates the tables
		log.Fatalf("create the outbox: %v", err)
	}

	app, err := pgxpool.New(ctx, database)
	if err != nil {
		log.Fatal(err)
	}
	defer app.Close()
	err = pgx.BeginFunc(ctx, app, func(tx pgx.Tx) error {
		if _, err := tx.Exec(ctx, "INSERT INTO orders (number) VALUES (42)"); err != nil {
			return err
		}
		return outbox.Enqueue(ctx, outbox.Pgx(tx), outbox.Message{Topic: "orders", Key: "42", Payload: []byte("{}")})
	})
	if err != nil {
		log.Fatalf("place the order: %v", err)
	}
}
