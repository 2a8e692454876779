package main

import (
	"context"
	"errors"
	"strconv"
	"time"

	wmsql "github.com/ThreeDotsLabs/watermill-sql/v4/pkg/sql"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	outboxload "github.com/weirdb/weir/internal/ruler/bench/outbox/load"
)

// Settings of Watermill-SQL that serve it well here: its defaults read 100 rows
// and poll once a second.
const (
	watermillTopic = "bench"
	watermillBatch = 1000
	watermillPoll  = 5 * time.Millisecond
)

// watermillSubject is Watermill-SQL in its queue mode: rows are deleted when they
// are acknowledged. Its other mode keeps rows and an offset.
type watermillSubject struct {
	pool   *pgxpool.Pool
	schema wmsql.PostgreSQLQueueSchema
}

func openWatermill(ctx context.Context, dsn string) (subject, error) {
	cfg, err := pgxpool.ParseConfig(dsn)
	if err != nil {
		return nil, err
	}
	cfg.MaxConns = riverConns
	pool, err := pgxpool.NewWithConfig(ctx, cfg)
	if err != nil {
		return nil, err
	}
	s := &watermillSubject{pool, wmsql.PostgreSQLQueueSchema{
		GeneratePayloadType: func(string) string { return "BYTEA" }, SubscribeBatchSize: watermillBatch,
	}}
	queries, err := s.schema.SchemaInitializingQueries(wmsql.SchemaInitializingQueriesParams{Topic: watermillTopic})
	if err == nil {
		for _, q := range queries {
			_, execErr := pool.Exec(ctx, q.Query, q.Args...)
			err = errors.Join(err, execErr)
		}
	}
	if err != nil {
		pool.Close()
		return nil, err
	}
	return s, nil
}

// Close closes the pool.
func (s *watermillSubject) Close() { s.pool.Close() }

func (s *watermillSubject) table() string { return s.schema.MessagesTable(watermillTopic) }

// Reset implements outboxload.Subject.
func (s *watermillSubject) Reset(ctx context.Context) error {
	_, err := s.pool.Exec(ctx, "TRUNCATE "+s.table()+" RESTART IDENTITY")
	return err
}

// Seed implements outboxload.Subject.
func (s *watermillSubject) Seed(ctx context.Context, msgs []outboxload.Message) error {
	rows := make([]*message.Message, len(msgs))
	for i, m := range msgs {
		rows[i] = message.NewMessage(watermill.NewUUID(), m.Payload)
	}
	return s.inTx(ctx, rows...)
}

// Enqueue implements outboxload.Subject.
func (s *watermillSubject) Enqueue(ctx context.Context, m outboxload.Message) error {
	return s.inTx(ctx, message.NewMessage(watermill.NewUUID(), m.Payload))
}

func (s *watermillSubject) inTx(ctx context.Context, msgs ...*message.Message) error {
	tx, err := s.pool.BeginTx(ctx, pgx.TxOptions{})
	if err != nil {
		return err
	}
	p, err := wmsql.NewPublisher(wmsql.TxFromPgx(tx), wmsql.PublisherConfig{SchemaAdapter: s.schema}, watermill.NopLogger{})
	if err == nil {
		err = p.Publish(watermillTopic, msgs...)
	}
	if err != nil {
		return errors.Join(err, tx.Rollback(context.WithoutCancel(ctx)))
	}
	return tx.Commit(ctx)
}

// Pending implements outboxload.Subject.
func (s *watermillSubject) Pending(ctx context.Context) (n int64, err error) {
	err = s.pool.QueryRow(ctx, "SELECT count(*) FROM "+s.table()).Scan(&n)
	return n, err
}

// Settings implements outboxload.Subject.
func (*watermillSubject) Settings() map[string]string {
	return map[string]string{
		"outbox": "watermill-sql", "mode": "queue, deleted when acknowledged", "batch": strconv.Itoa(watermillBatch), "poll": watermillPoll.String(),
	}
}

// Relay implements outboxload.Subject.
func (s *watermillSubject) Relay(deliver func([][]byte)) (outboxload.Relay, error) {
	return &engine{start: func(ctx context.Context) (func(context.Context) error, error) {
		sub, err := wmsql.NewSubscriber(wmsql.BeginnerFromPgx(s.pool), wmsql.SubscriberConfig{
			PollInterval: watermillPoll, ResendInterval: watermillPoll, RetryInterval: watermillPoll,
			SchemaAdapter: s.schema, OffsetsAdapter: wmsql.PostgreSQLQueueOffsetsAdapter{DeleteOnAck: true},
		}, watermill.NopLogger{})
		if err != nil {
			return nil, err
		}
		messages, err := sub.Subscribe(ctx, watermillTopic)
		if err != nil {
			return nil, errors.Join(err, sub.Close())
		}
		done := make(chan struct{})
		go func() {
			defer close(done)
			for m := range messages {
				deliver([][]byte{m.Payload})
				m.Ack()
			}
		}()
		return func(context.Context) error {
			err := sub.Close()
			<-done
			return err
		}, nil
	}}, nil
}
