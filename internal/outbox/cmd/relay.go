package outboxcmd

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"sync"
	"time"

	"github.com/spf13/cobra"

	"github.com/weirdb/weir/internal/admin/live"
	"github.com/weirdb/weir/internal/cli"
	"github.com/weirdb/weir/internal/outbox/outboxctl"
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

// relayVerb is the configuration of `weir outbox relay`.
type relayVerb struct {
	cfg                 outboxConfig
	untilEmpty, verbose bool
	stdout              io.Writer
}

// Times between two lines of rates, on a terminal and in a log.
const (
	livePause = 500 * time.Millisecond
	logPause  = 5 * time.Second
)

func (r *relayVerb) run(ctx context.Context, stderr io.Writer) error {
	log := r.cfg.log(stderr)
	var line *lastLine // nil without a terminal
	if cli.IsTerminal(stderr) {
		line = &lastLine{w: stderr}
		log = slog.New(slog.NewTextHandler(line, &slog.HandlerOptions{Level: r.cfg.logLevel}))
		if r.cfg.logFormat == "json" {
			log = cli.NewLog(line, "json", r.cfg.logLevel)
		}
	}
	journal := live.NewJournal(log.Handler())
	log = slog.New(journal)
	r.cfg.warnOfPasswords(log)
	o := outboxctl.RelayOptions{
		DB: r.cfg.db, Store: r.cfg.store, Sink: r.cfg.sink, Stdout: r.stdout, Admin: r.cfg.admin,
		Service: outboxctl.Config{
			Relay: r.cfg.relay, Maintenance: r.cfg.maintenance, StatusEvery: r.cfg.statusEvery, UntilEmpty: r.untilEmpty,
			Journal: journal, Log: log,
		},
	}
	switch {
	case line != nil:
		o.Show, o.ShowEvery = line.set, livePause
	case r.verbose:
		o.ShowEvery = logPause
		o.Show = func(rates string) {
			if rates != "" {
				log.Info("relaying: " + rates)
			}
		}
	}
	err := outboxctl.RunRelay(ctx, o)
	var wrong *outboxctl.ConfigError
	if errors.As(err, &wrong) {
		return cli.UsageError(err)
	}
	return err
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
