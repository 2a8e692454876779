package outboxctl

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"syscall"
	"time"

	"github.com/redis/go-redis/v9"
	"golang.org/x/sync/errgroup"

	"github.com/weirdb/weir/internal/admin"
	"github.com/weirdb/weir/internal/version"
	"github.com/weirdb/weir/outbox"
	"github.com/weirdb/weir/outbox/sink/open"
	"github.com/weirdb/weir/outbox/sink/stdout"
)

// RelayOptions configure a relay process.
type RelayOptions struct {
	DB    Database
	Store StoreOptions
	Sink  string // address of the sink

	// Service configures the relay and what runs beside it. Its Log is required.
	Service Config

	// Admin is the address of the HTTP server. Default: none.
	Admin string

	// Stdout is where a stdout sink writes. Required for one.
	Stdout io.Writer

	// Show is called every ShowEvery with a line of rates, and with "" at the end.
	// Default: rates are not shown.
	Show      func(line string)
	ShowEvery time.Duration
}

// ConfigError is the error about a [Config] that cannot be.
type ConfigError struct{ Err error }

func (e *ConfigError) Error() string { return e.Err.Error() }

// Unwrap returns what is wrong.
func (e *ConfigError) Unwrap() error { return e.Err }

// relayProcess is one run of RunRelay.
type relayProcess struct {
	o       RelayOptions
	log     *slog.Logger
	service *Service
}

// RunRelay relays until ctx ends and the messages in flight are done, which is no error. It
// waits for the database and the broker, and serves the admin address from the start.
func RunRelay(ctx context.Context, o RelayOptions) (err error) {
	r := &relayProcess{o: o, log: o.Service.Log}
	var ln net.Listener
	if o.Admin != "" {
		if ln, err = net.Listen("tcp", o.Admin); err != nil {
			if !errors.Is(err, syscall.EADDRINUSE) {
				return fmt.Errorf("listen for --admin: %w", err)
			}
			return fmt.Errorf("listen for --admin: %w (another relay or program has it: give each relay of a machine an address of its own, or --admin off)", err)
		}
	}
	front := &Front{}
	// It outlives the relay's context, so that a drain can be watched.
	watched, end := context.WithCancel(context.WithoutCancel(ctx))
	var serving errgroup.Group
	defer func() {
		end()
		if failed := serving.Wait(); err == nil {
			err = failed
		}
	}()
	if ln != nil {
		serving.Go(func() error { return front.Serve(watched, ln, r.log) })
	}
	store, err := Retry(ctx, r.log, "the database", front.SetWaiting, func() (outbox.Store, error) {
		return o.DB.Open(ctx, o.Store)
	})
	if r.stopped(ctx, err) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("open %s: %w", o.DB.Address, err)
	}
	defer func() { err = joinClose(err, store) }()
	sink, err := Retry(ctx, r.log, "the broker", front.SetWaiting, func() (open.Sink, error) { return r.openSink(ctx) })
	if r.stopped(ctx, err) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("open the sink: %w", err)
	}
	defer func() { err = joinClose(err, sink) }()
	if r.service, err = NewService(store, sink, o.Service); err != nil {
		return &ConfigError{err}
	}
	r.announce(sink, ln)
	if ln != nil {
		front.SetService(r.service, admin.Registry(r.service.Collector()), ln.Addr())
	}
	if err := r.serve(ctx); err != nil {
		return err
	}
	s := r.service.Snapshot().Stats
	r.log.Info("weir outbox relay has stopped", "delivered", s.Delivered, "recorded", s.Acked)
	return nil
}

// stopped reports whether the relay was stopped while it waited: nothing was in flight, so that
// is no error.
func (r *relayProcess) stopped(ctx context.Context, err error) bool {
	if err == nil || ctx.Err() == nil {
		return false
	}
	r.log.Info("weir outbox relay has stopped before it began", "awaited", err)
	return true
}

// joinClose closes c. An earlier error takes precedence.
func joinClose(err error, c io.Closer) error {
	if closing := c.Close(); err == nil && closing != nil {
		return closing
	}
	return err
}

// openSink connects to the broker.
func (r *relayProcess) openSink(ctx context.Context) (open.Sink, error) {
	if o, err := stdout.ParseURL(r.o.Sink); err == nil {
		o.To = r.o.Stdout
		return stdout.New(ctx, o)
	}
	redis.SetLogger(discardLogger{}) // it would write each failure beside the relay's own log
	return open.Open(ctx, r.o.Sink)
}

// discardLogger is a logger for package redis that logs nothing.
type discardLogger struct{}

func (discardLogger) Printf(context.Context, string, ...any) {}

func (r *relayProcess) announce(sink fmt.Stringer, admin net.Listener) {
	attrs := []any{
		"db", r.o.DB.Address, "table", r.service.Table(), "sink", sink.String(), "claim", r.o.Service.Relay.Claim.String(),
		"version", version.Current().Version,
	}
	if admin != nil {
		attrs = append(attrs, "admin", "http://"+admin.Addr().String()+"/")
	}
	r.log.Info("weir outbox relay starts", attrs...)
}

// serve runs the relay and shows its rates.
func (r *relayProcess) serve(ctx context.Context) error {
	g, around := errgroup.WithContext(ctx)
	// It outlives the relay's context, so that a drain can be watched.
	display, stop := context.WithCancel(context.WithoutCancel(ctx))
	g.Go(func() error {
		defer stop()
		return r.service.Run(around)
	})
	if r.o.Show != nil {
		g.Go(func() error { r.show(display); return nil })
	}
	stopped := context.AfterFunc(ctx, func() {
		r.log.Info("weir outbox relay stops: what is in flight is delivered first", "patience", r.o.Service.Relay.DrainTimeout.String())
	})
	defer stopped()
	return g.Wait()
}

// show shows rates until ctx ends.
func (r *relayProcess) show(ctx context.Context) {
	defer r.o.Show("")
	tick := time.NewTicker(r.o.ShowEvery)
	defer tick.Stop()
	for earlier := r.service.Snapshot(); ; {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		now := r.service.Snapshot()
		r.o.Show(Line(&earlier, &now, r.service.Claim()))
		earlier = now
	}
}
