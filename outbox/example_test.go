package outbox_test

import (
	"context"
	"database/sql"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/weirdb/weir/outbox"
	"github.com/weirdb/weir/outbox/postgres"
	"github.com/weirdb/weir/outbox/sink/nats"
)

// With database/sql and any driver.
func ExampleEnqueue() {
	placeOrder := func(ctx context.Context, db *sql.DB, id string, body []byte) error {
		tx, err := db.BeginTx(ctx, nil)
		if err != nil {
			return err
		}
		defer func() { _ = tx.Rollback() }() // after Commit it does nothing
		if _, err := tx.ExecContext(ctx, "INSERT INTO orders (id, body) VALUES (?, ?)", id, body); err != nil {
			return err
		}
		err = outbox.Enqueue(ctx, outbox.MySQL(tx),
			outbox.Message{Topic: "orders", Key: id, Payload: body, Headers: map[string]string{"type": "order.placed"}},
			outbox.Message{Topic: "reminders", Key: id, AvailableAt: time.Now().Add(24 * time.Hour)},
		)
		if err != nil {
			return err
		}
		return tx.Commit()
	}
	_ = placeOrder
}

// With pgx: a transaction of a pool or of a connection.
func ExamplePgx() {
	placeOrder := func(ctx context.Context, pool *pgxpool.Pool, id string, body []byte) error {
		return pgx.BeginFunc(ctx, pool, func(tx pgx.Tx) error {
			if _, err := tx.Exec(ctx, "INSERT INTO orders (id, body) VALUES ($1, $2)", id, body); err != nil {
				return err
			}
			return outbox.Enqueue(ctx, outbox.Pgx(tx), outbox.Message{Topic: "orders", Key: id, Payload: body})
		})
	}
	_ = placeOrder
}

// Messages that belong to no other transaction share commits.
func ExampleGroup() {
	collect := func(ctx context.Context, pool *pgxpool.Pool, readings <-chan []byte) error {
		group := outbox.NewGroup(outbox.Pgx(pool))
		defer group.Close()
		for body := range readings { // in many goroutines at once
			if err := group.Enqueue(ctx, outbox.Message{Topic: "readings", Payload: body}); err != nil {
				return err
			}
		}
		return nil
	}
	_ = collect
}

// A relay in your own program. Any number of them may run.
func ExampleRelay() {
	run := func(ctx context.Context) error {
		store, err := postgres.Open(ctx, "postgres://relay@db.example.com/shop", postgres.Options{})
		if err != nil {
			return fmt.Errorf("open the outbox: %w", err)
		}
		defer store.Close()
		sink, err := nats.Open(ctx, "nats://broker.example.com?stream=SHOP")
		if err != nil {
			return fmt.Errorf("open the sink: %w", err)
		}
		defer sink.Close()
		relay, err := outbox.NewRelay(store, sink, outbox.Config{Retry: outbox.RetryPolicy{MaxAttempts: 20}})
		if err != nil {
			return err
		}
		return relay.Run(ctx) // until ctx ends and the messages in flight are recorded as delivered
	}
	_ = run
}
