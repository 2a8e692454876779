package main

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"io"

	"github.com/weirdb/weir/outbox"
)

// shop sells tea.
type shop struct {
	db     *sql.DB
	outbox func(outbox.Execer) outbox.Tx // outbox.SQLite or outbox.Postgres
	out    io.Writer
}

// order is the content of a message.
type order struct {
	Number   int    `json:"number"`
	Customer string `json:"customer"`
	Tins     int    `json:"tins"`
}

var errSoldOut = errors.New("sold out")

// day opens the shop, takes some orders, and returns how many were placed.
func (s *shop) day(ctx context.Context, store outbox.Store) (placed int, err error) {
	if _, err := store.Migrate(ctx, outbox.Plan{}); err != nil {
		return 0, err
	}
	for _, text := range []string{
		"CREATE TABLE orders (number INTEGER PRIMARY KEY, customer VARCHAR(50) NOT NULL, tins INTEGER NOT NULL)",
		"CREATE TABLE stock (tins INTEGER NOT NULL CHECK (tins >= 0))",
		"INSERT INTO stock VALUES (10)",
	} {
		if _, err := s.db.ExecContext(ctx, text); err != nil {
			return 0, err
		}
	}
	for _, o := range []order{{1, "ada", 3}, {2, "bob", 9}, {3, "ada", 2}, {4, "bob", 5}} {
		switch err := s.place(ctx, o); {
		case errors.Is(err, errSoldOut):
			fmt.Fprintf(s.out, "order %d of %s: sold out, rolled back with its message\n", o.Number, o.Customer)
		case err != nil:
			return placed, err
		default:
			fmt.Fprintf(s.out, "order %d of %s: committed with its message\n", o.Number, o.Customer)
			placed++
		}
	}
	return placed, nil
}

// place writes an order and its message in one transaction. The messages of one customer are
// delivered in the order of their commits.
func (s *shop) place(ctx context.Context, o order) error {
	tx, err := s.db.BeginTx(ctx, nil)
	if err != nil {
		return err
	}
	defer func() { _ = tx.Rollback() }() // after Commit it does nothing
	if _, err := tx.ExecContext(ctx, "INSERT INTO orders (number, customer, tins) VALUES ($1, $2, $3)", o.Number, o.Customer, o.Tins); err != nil {
		return err
	}
	body, err := json.Marshal(o)
	if err != nil {
		return err
	}
	err = outbox.Enqueue(ctx, s.outbox(tx), outbox.Message{
		Topic: "orders", Key: o.Customer, Payload: body,
		Headers: map[string]string{"type": "order.placed", "content-type": "application/json"},
	})
	if err != nil {
		return err
	}
	result, err := tx.ExecContext(ctx, "UPDATE stock SET tins = tins - $1 WHERE tins >= $2", o.Tins, o.Tins)
	if err != nil {
		return err
	}
	if n, err := result.RowsAffected(); err != nil || n == 0 {
		return errors.Join(errSoldOut, err)
	}
	return tx.Commit()
}
