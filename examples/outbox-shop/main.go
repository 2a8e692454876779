// Command outbox-shop takes orders and publishes them through an outbox: an order and its
// message are written in one transaction, so either both exist or neither.
//
//	go run ./examples/outbox-shop        SQLite in a temporary file, messages to standard output
//	go run ./examples/outbox-shop -lab   a private PostgreSQL and NATS, and shipping as a consumer
//
// The first needs nothing installed. The second is the same shop; see shipping.go
// for a consumer whose effects happen once.
package main

import (
	"context"
	"database/sql"
	"errors"
	"flag"
	"fmt"
	"io"
	"net/url"
	"os"
	"os/signal"
	"path/filepath"
	"time"

	_ "github.com/jackc/pgx/v5/stdlib"

	"github.com/weirdb/weir/internal/lab"
	"github.com/weirdb/weir/outbox"
	"github.com/weirdb/weir/outbox/postgres"
	"github.com/weirdb/weir/outbox/sink/nats"
	"github.com/weirdb/weir/outbox/sink/stdout"
	"github.com/weirdb/weir/outbox/sqlite"
)

func main() {
	inLab := flag.Bool("lab", false, "PostgreSQL and NATS, started for this run, instead of SQLite and standard output")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	run := onSQLite
	if *inLab {
		run = inTheLab
	}
	if err := run(ctx, os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, "outbox-shop:", err)
		os.Exit(1)
	}
}

// onSQLite runs the shop on SQLite, which only needs a directory.
func onSQLite(ctx context.Context, out io.Writer) (err error) {
	dir, err := os.MkdirTemp("", "outbox-shop-")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	path := filepath.Join(dir, "shop.db")
	store, err := sqlite.Open(ctx, path, sqlite.Options{})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, store.Close()) }()
	db, err := sql.Open("sqlite", (&url.URL{Scheme: "file", OmitHost: true, Path: path}).String()+"?_pragma=busy_timeout(5000)&_txlock=immediate")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, db.Close()) }()
	sink, err := stdout.New(ctx, stdout.Options{To: out})
	if err != nil {
		return err
	}
	s := &shop{db: db, outbox: outbox.SQLite, out: out}
	placed, err := s.day(ctx, store)
	if err != nil {
		return err
	}
	return relay(ctx, store, sink, placed)
}

// inTheLab runs the shop on private servers like those in production.
func inTheLab(ctx context.Context, out io.Writer) (err error) {
	pg, err := lab.StartPostgres(ctx, lab.PostgresConfig{Settings: map[string]string{"wal_level": "logical"}})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, pg.Stop(context.WithoutCancel(ctx))) }()
	broker, err := lab.StartNATS(ctx, lab.BrokerConfig{})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, broker.Stop(context.WithoutCancel(ctx))) }()

	store, err := postgres.Open(ctx, pg.DSN("postgres"), postgres.Options{})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, store.Close()) }()
	db, err := sql.Open("pgx", pg.DSN("postgres"))
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, db.Close()) }()
	sink, err := nats.Open(ctx, broker.URL()+"?stream=SHOP&subjects=orders&create=true")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, sink.Close()) }()

	s := &shop{db: db, outbox: outbox.Postgres, out: out}
	placed, err := s.day(ctx, store)
	if err != nil {
		return err
	}
	if err := relay(ctx, store, sink, placed); err != nil {
		return err
	}
	return shipping{db: db, out: out}.receive(ctx, broker.URL(), placed)
}

// relay delivers until n messages are recorded as delivered. In production, a service
// (`weir outbox relay`) does so continuously.
func relay(ctx context.Context, store outbox.Store, sink outbox.Sink, n int) error {
	r, err := outbox.NewRelay(store, sink, outbox.Config{})
	if err != nil {
		return err
	}
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	ended := make(chan error, 1)
	go func() { ended <- r.Run(ctx) }()
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for r.Stats().Acked < uint64(n) {
		select {
		case err := <-ended:
			return errors.Join(err, context.Cause(ctx))
		case <-tick.C:
		}
	}
	stop()
	return <-ended
}
