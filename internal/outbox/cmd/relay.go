package outboxcmd

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"sync"
	"syscall"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/spf13/cobra"
	"golang.org/x/sync/errgroup"

	"github.com/weirdb/weir/internal/admin"
	"github.com/weirdb/weir/internal/admin/live"
	"github.com/weirdb/weir/internal/cli"
	"github.com/weirdb/weir/internal/outbox/outboxctl"
	"github.com/weirdb/weir/internal/version"
	"github.com/weirdb/weir/outbox"
	"github.com/weirdb/weir/outbox/sink/open"
	"github.com/weirdb/weir/outbox/sink/stdout"
)

func newOutboxRelay() *cobra.Command {
	v := &outboxVerb{}
	var r relayVerb
	cmd := &cobra.Command{
		Use:   "relay --db DSN --sink ADDRESS",
		Short: "Deliver messages to a broker until stopped",
		Long: `Deliver messages to a broker as soon as they are committed. Any number of relays may
run: one leads each shard; the others stand by, and take over when it stops or crashes.
While the database or the broker is unreachable, a relay waits.

On SIGTERM and SIGINT a relay stops reading, waits until the broker has confirmed what
was sent, records that as delivered and exits with 0. A second signal ends it at once;
what was in flight is then delivered again.

On a terminal a line shows rates; elsewhere -v logs them.`,
		Example: `  weir outbox relay --db sqlite:shop.db --sink stdout:
  weir outbox relay --db postgres://relay@db.example.com/shop --sink 'nats://broker.example.com?stream=SHOP'
  weir outbox relay --db mysql://relay@db.example.com/shop --sink kafka://k1.example.com,k2.example.com --claim log
  weir outbox relay -c /etc/weir/outbox.yaml -v`,
	}
	f := cmd.Flags()
	f.BoolVar(&r.untilEmpty, "until-empty", false, "end when nothing is pending")
	f.BoolVarP(&r.verbose, "verbose", "v", false, "log rates every 5 s when there is no terminal")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		r.cfg, r.stdout = v.cfg, cmd.OutOrStdout()
		return r.run(cmd.Context(), cmd.ErrOrStderr())
	}
	return cli.Checked(v.command(cmd, nil))
}

// relayVerb is a running `weir outbox relay`.
type relayVerb struct {
	cfg                 outboxConfig
	untilEmpty, verbose bool
	stdout              io.Writer

	log     *slog.Logger
	live    *lastLine // nil without a terminal
	service *outboxctl.Service
}

func (r *relayVerb) run(ctx context.Context, stderr io.Writer) (err error) {
	if cli.IsTerminal(stderr) {
		r.live = &lastLine{w: stderr}
		r.log = slog.New(slog.NewTextHandler(r.live, &slog.HandlerOptions{Level: r.cfg.logLevel}))
		if r.cfg.logFormat == "json" {
			r.log = cli.NewLog(r.live, "json", r.cfg.logLevel)
		}
	} else {
		r.log = r.cfg.log(stderr)
	}
	journal := live.NewJournal(r.log.Handler())
	r.log = slog.New(journal)
	r.cfg.warnOfPasswords(r.log)
	var ln net.Listener
	if r.cfg.admin != "" {
		if ln, err = net.Listen("tcp", r.cfg.admin); err != nil {
			if !errors.Is(err, syscall.EADDRINUSE) {
				return fmt.Errorf("listen for --admin: %w", err)
			}
			return fmt.Errorf("listen for --admin: %w (another relay or program has it: give each relay of a machine an address of its own, or --admin off)", err)
		}
	}
	front := &outboxctl.Front{}
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
	store, err := outboxctl.Retry(ctx, r.log, "the database", front.SetWaiting, func() (outbox.Store, error) {
		return r.cfg.db.Open(ctx, r.cfg.store)
	})
	if r.stopped(ctx, err) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("open %s: %w", r.cfg.db.Address, err)
	}
	defer func() { err = joinClose(err, store) }()
	sink, err := outboxctl.Retry(ctx, r.log, "the broker", front.SetWaiting, func() (open.Sink, error) { return r.openSink(ctx) })
	if r.stopped(ctx, err) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("open the sink: %w", err)
	}
	defer func() { err = joinClose(err, sink) }()
	r.service, err = outboxctl.NewService(store, sink, outboxctl.Config{
		Relay: r.cfg.relay, Maintenance: r.cfg.maintenance, StatusEvery: r.cfg.statusEvery, UntilEmpty: r.untilEmpty,
		Journal: journal, Log: r.log,
	})
	if err != nil {
		return cli.UsageError(err)
	}
	r.announce(sink, ln)
	if ln != nil {
		front.SetService(r.service, admin.Registry(r.service.Collector()), ln.Addr())
	}
	if err := r.serve(ctx); err != nil {
		return err
	}
	s := r.service.Snapshot().Stats
	r.log.Info("weir outbox relay has stopped", "delivered", s.Delivered, "noted", s.Acked)
	return nil
}

// stopped reports whether the relay was stopped while it waited: nothing was in flight, so that is no
// error.
func (r *relayVerb) stopped(ctx context.Context, err error) bool {
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

// openSink connects to the broker. A stdout sink writes to the command's output.
func (r *relayVerb) openSink(ctx context.Context) (open.Sink, error) {
	if o, err := stdout.ParseURL(r.cfg.sink); err == nil {
		o.To = r.stdout
		return stdout.New(ctx, o)
	}
	redis.SetLogger(discardLogger{}) // it would write each failure beside the relay's own log
	return open.Open(ctx, r.cfg.sink)
}

// discardLogger is a logger for package redis that logs nothing.
type discardLogger struct{}

func (discardLogger) Printf(context.Context, string, ...any) {}

func (r *relayVerb) announce(sink fmt.Stringer, admin net.Listener) {
	attrs := []any{
		"db", r.cfg.db.Address, "table", r.service.Table(), "sink", sink.String(), "claim", r.cfg.relay.Claim.String(),
		"version", version.Current().Version,
	}
	if admin != nil {
		attrs = append(attrs, "admin", "http://"+admin.Addr().String()+"/")
	}
	r.log.Info("weir outbox relay starts", attrs...)
}

// serve runs the relay and its display.
func (r *relayVerb) serve(ctx context.Context) error {
	g, around := errgroup.WithContext(ctx)
	// It outlives the relay's context, so that a drain can be watched.
	display, stop := context.WithCancel(context.WithoutCancel(ctx))
	g.Go(func() error {
		defer stop()
		return r.service.Run(around)
	})
	if r.live != nil || r.verbose {
		g.Go(func() error { r.show(display); return nil })
	}
	stopped := context.AfterFunc(ctx, func() {
		r.log.Info("weir outbox relay stops: what is in flight is delivered first", "patience", r.cfg.relay.DrainTimeout.String())
	})
	defer stopped()
	return g.Wait()
}

// Times between two lines of rates, on a terminal and in a log.
const (
	livePause = 500 * time.Millisecond
	logPause  = 5 * time.Second
)

// show displays rates until ctx ends.
func (r *relayVerb) show(ctx context.Context) {
	pause := logPause
	if r.live != nil {
		pause = livePause
		defer r.live.set("")
	}
	tick := time.NewTicker(pause)
	defer tick.Stop()
	for earlier := r.service.Snapshot(); ; {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		now := r.service.Snapshot()
		line := outboxctl.Line(&earlier, &now, r.service.Claim())
		if r.live != nil {
			r.live.set(line)
		} else {
			r.log.Info("relaying: " + line)
		}
		earlier = now
	}
}

// lastLine is the last line of a terminal, which is overwritten in place. What is written through
// it, such as a log, appears above.
type lastLine struct {
	mu   sync.Mutex
	w    io.Writer
	text string
}

const eraseLine = "\r\x1b[K"

// set replaces the line; "" removes it.
func (l *lastLine) set(text string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if text == "" && l.text == "" {
		return
	}
	l.text = text
	_, _ = io.WriteString(l.w, eraseLine+text) // a terminal that has gone shows nothing
}

// Write prints above the line.
func (l *lastLine) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.text == "" {
		return l.w.Write(p)
	}
	if _, err := io.WriteString(l.w, eraseLine+string(p)+l.text); err != nil {
		return 0, err
	}
	return len(p), nil
}
