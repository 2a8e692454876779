package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strconv"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/riverqueue/river"
	"github.com/riverqueue/river/riverdriver/riverpgxv5"
	"github.com/riverqueue/river/rivermigrate"

	outboxload "github.com/weirdb/weir/internal/ruler/bench/outbox/load"
)

// Settings of River that serve it well here: its defaults fetch ten times a second.
const (
	riverWorkers  = 200
	riverCooldown = time.Millisecond
	riverPoll     = 50 * time.Millisecond
	riverConns    = 100 // for producers and workers together
)

// riverSubject is River, a job queue in PostgreSQL, used as an outbox: a job is
// inserted with the transaction, and its worker publishes.
type riverSubject struct {
	pool     *pgxpool.Pool
	inserter *river.Client[pgx.Tx]
}

func openRiver(ctx context.Context, dsn string) (subject, error) {
	cfg, err := pgxpool.ParseConfig(dsn)
	if err != nil {
		return nil, err
	}
	cfg.MaxConns = riverConns
	pool, err := pgxpool.NewWithConfig(ctx, cfg)
	if err != nil {
		return nil, err
	}
	driver := riverpgxv5.New(pool)
	m, err := rivermigrate.New(driver, &rivermigrate.Config{Logger: slog.New(slog.DiscardHandler)})
	if err == nil {
		_, err = m.Migrate(ctx, rivermigrate.DirectionUp, nil)
	}
	if err != nil {
		pool.Close()
		return nil, fmt.Errorf("migrate: %w", err)
	}
	inserter, err := river.NewClient(driver, &river.Config{Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		pool.Close()
		return nil, err
	}
	return &riverSubject{pool, inserter}, nil
}

// Close closes the pool.
func (s *riverSubject) Close() { s.pool.Close() }

// Reset implements outboxload.Subject.
func (s *riverSubject) Reset(ctx context.Context) error {
	_, err := s.pool.Exec(ctx, "TRUNCATE river_job RESTART IDENTITY")
	return err
}

// args are those of a job.
type args struct {
	Payload string `json:"p"`
}

// Kind names the jobs.
func (args) Kind() string { return "bench" }

// Seed implements outboxload.Subject.
func (s *riverSubject) Seed(ctx context.Context, msgs []outboxload.Message) error {
	jobs := make([]river.InsertManyParams, len(msgs))
	for i, m := range msgs {
		jobs[i] = river.InsertManyParams{Args: args{string(m.Payload)}}
	}
	return s.inTx(ctx, func(tx pgx.Tx) error {
		_, err := s.inserter.InsertManyFastTx(ctx, tx, jobs)
		return err
	})
}

// Enqueue implements outboxload.Subject.
func (s *riverSubject) Enqueue(ctx context.Context, m outboxload.Message) error {
	return s.inTx(ctx, func(tx pgx.Tx) error {
		_, err := s.inserter.InsertTx(ctx, tx, args{string(m.Payload)}, nil)
		return err
	})
}

func (s *riverSubject) inTx(ctx context.Context, f func(pgx.Tx) error) error {
	tx, err := s.pool.Begin(ctx)
	if err != nil {
		return err
	}
	if err := f(tx); err != nil {
		return errors.Join(err, tx.Rollback(context.WithoutCancel(ctx)))
	}
	return tx.Commit(ctx)
}

// Pending implements outboxload.Subject.
func (s *riverSubject) Pending(ctx context.Context) (n int64, err error) {
	err = s.pool.QueryRow(ctx, "SELECT count(*) FROM river_job WHERE state NOT IN ('completed', 'cancelled', 'discarded')").Scan(&n)
	return n, err
}

// Settings implements outboxload.Subject.
func (*riverSubject) Settings() map[string]string {
	return map[string]string{
		"outbox": "river", "workers": strconv.Itoa(riverWorkers), "fetch_cooldown": riverCooldown.String(), "fetch_poll": riverPoll.String(),
	}
}

// worker publishes a job.
type worker struct {
	river.WorkerDefaults[args]
	deliver func([][]byte)
}

// Work implements river.Worker.
func (w *worker) Work(_ context.Context, j *river.Job[args]) error {
	w.deliver([][]byte{[]byte(j.Args.Payload)})
	return nil
}

// Relay implements outboxload.Subject.
func (s *riverSubject) Relay(deliver func([][]byte)) (outboxload.Relay, error) {
	return &engine{start: func(ctx context.Context) (func(context.Context) error, error) {
		workers := river.NewWorkers()
		river.AddWorker(workers, &worker{deliver: deliver})
		c, err := river.NewClient(riverpgxv5.New(s.pool), &river.Config{
			Queues:        map[string]river.QueueConfig{river.QueueDefault: {MaxWorkers: riverWorkers}},
			FetchCooldown: riverCooldown, FetchPollInterval: riverPoll, Workers: workers, Logger: slog.New(slog.DiscardHandler),
		})
		if err != nil {
			return nil, err
		}
		if err := c.Start(ctx); err != nil {
			return nil, err
		}
		return c.Stop, nil
	}}, nil
}
