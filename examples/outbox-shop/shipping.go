package main

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"io"

	natsgo "github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/weirdb/weir/outbox/inbox"
)

// shipping gets orders from the broker, which delivers each at least once. It processes an
// order in the transaction that records its message, and therefore once.
type shipping struct {
	db  *sql.DB
	out io.Writer
}

// receive processes n messages, each twice, as after a crash.
func (s shipping) receive(ctx context.Context, broker string, n int) (err error) {
	if err := inbox.Migrate(ctx, inbox.Postgres(s.db)); err != nil {
		return err
	}
	if _, err := s.db.ExecContext(ctx, "CREATE TABLE parcels (number INTEGER NOT NULL, tins INTEGER NOT NULL)"); err != nil {
		return err
	}
	conn, err := natsgo.Connect(broker)
	if err != nil {
		return err
	}
	defer conn.Close()
	js, err := jetstream.New(conn)
	if err != nil {
		return err
	}
	consumer, err := js.CreateConsumer(ctx, "SHOP", jetstream.ConsumerConfig{Durable: "shipping", AckPolicy: jetstream.AckExplicitPolicy})
	if err != nil {
		return err
	}
	messages, err := consumer.Messages()
	if err != nil {
		return err
	}
	defer messages.Stop()
	for range n {
		m, err := messages.Next(jetstream.NextContext(ctx))
		if err != nil {
			return err
		}
		for range 2 {
			if err := s.handle(ctx, m); err != nil {
				return errors.Join(err, m.Nak()) // the broker delivers it again
			}
		}
		if err := m.Ack(); err != nil { // not before the commit
			return err
		}
	}
	var parcels int
	if err := s.db.QueryRowContext(ctx, "SELECT count(*) FROM parcels").Scan(&parcels); err != nil {
		return err
	}
	fmt.Fprintf(s.out, "shipping: %d messages came twice, %d parcels were sent\n", n, parcels)
	return nil
}

// handle sends a parcel, unless that was done before.
func (s shipping) handle(ctx context.Context, m jetstream.Msg) error {
	var o order
	if err := json.Unmarshal(m.Data(), &o); err != nil {
		return err
	}
	tx, err := s.db.BeginTx(ctx, nil)
	if err != nil {
		return err
	}
	defer func() { _ = tx.Rollback() }() // after Commit it does nothing
	first, err := inbox.Once(ctx, inbox.Postgres(tx), "SHOP", m.Headers().Get(natsgo.MsgIdHdr))
	if err != nil {
		return err
	}
	if !first {
		fmt.Fprintf(s.out, "shipping: order %d came again, nothing to do\n", o.Number)
		return tx.Commit()
	}
	if _, err := tx.ExecContext(ctx, "INSERT INTO parcels VALUES ($1, $2)", o.Number, o.Tins); err != nil {
		return err
	}
	if err := tx.Commit(); err != nil {
		return err
	}
	fmt.Fprintf(s.out, "shipping: order %d: a parcel for %s\n", o.Number, o.Customer)
	return nil
}
