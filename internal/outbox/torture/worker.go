package torture

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/weirdb/weir/internal/outbox/outboxctl"
	"github.com/weirdb/weir/outbox"
	"github.com/weirdb/weir/outbox/sink/open"
)

// WorkerConfig configures a relay process. It is sent as one line of JSON on standard input, so that
// no process list shows a password.
type WorkerConfig struct {
	Database string `json:"database"`
	Table    string `json:"table"`
	Sink     string `json:"sink"`
	Claim    string `json:"claim"`
	// MaxInFlight is outbox.Config.MaxInFlight.
	MaxInFlight int `json:"max_in_flight"`
	// SweepEvery is outbox.Config.SweepEvery. It is long so that a sweep does not
	// hide a lost message.
	SweepEvery time.Duration `json:"sweep_every"`
}

// WorkerReport is the state of a relay process. It is written as one line of JSON on standard output
// after every change.
type WorkerReport struct {
	Leading   int64             `json:"leading"`
	Tailing   int64             `json:"tailing"`
	TakeOvers uint64            `json:"take_overs"`
	Stray     uint64            `json:"stray"`
	Retries   uint64            `json:"retries"`
	Outages   uint64            `json:"outages"`
	Buried    map[string]uint64 `json:"buried,omitempty"`
}

// Worker is a relay process: it reads a WorkerConfig from in, relays until in or ctx ends, and
// writes WorkerReports to out. It is made to be killed.
func Worker(ctx context.Context, in io.Reader, out io.Writer, log *slog.Logger) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	lines := bufio.NewReader(in)
	line, err := lines.ReadBytes('\n')
	if err != nil {
		return fmt.Errorf("read the configuration: %w", err)
	}
	var o WorkerConfig
	if err := json.Unmarshal(line, &o); err != nil {
		return fmt.Errorf("read the configuration: %w", err)
	}
	go func() { // ends with the process at the latest
		_, _ = io.Copy(io.Discard, lines) // it ends when the parent process does
		cancel()
	}()
	return o.relay(ctx, out, log)
}

func (o *WorkerConfig) relay(ctx context.Context, out io.Writer, log *slog.Logger) error {
	claim, err := outbox.ParseClaimMode(o.Claim)
	if err != nil {
		return err
	}
	db, err := outboxctl.ParseDatabase(o.Database, func(string) string { return "" })
	if err != nil {
		return err
	}
	store, err := retryOpen(ctx, log, "database", func() (outbox.Store, error) {
		return db.Open(ctx, outboxctl.StoreOptions{Table: o.Table})
	})
	if err != nil {
		return err
	}
	defer store.Close()
	sink, err := retryOpen(ctx, log, "broker", func() (outbox.Sink, error) { return openSink(ctx, o.Sink) })
	if err != nil {
		return err
	}
	defer sink.Close()
	relay, err := outbox.NewRelay(store, sink, o.config(claim, log))
	if err != nil {
		return err
	}
	g, ctx := errgroup.WithContext(ctx)
	g.Go(func() error { return relay.Run(ctx) })
	g.Go(func() error { return report(ctx, relay, out) })
	return g.Wait()
}

// config has shorter times than the defaults, so that a run of many kills is fast.
func (o *WorkerConfig) config(claim outbox.ClaimMode, log *slog.Logger) outbox.Config {
	return outbox.Config{
		Claim: claim, Logger: log, MaxInFlight: o.MaxInFlight, SweepEvery: o.SweepEvery, TakeOver: 20 * time.Millisecond,
		Retry: outbox.RetryPolicy{MaxAttempts: 1000, Base: 10 * time.Millisecond, Max: 200 * time.Millisecond},
	}
}

// retryOpen repeats open until it succeeds or ctx ends: killed servers are restarted.
func retryOpen[T any](ctx context.Context, log *slog.Logger, what string, open func() (T, error)) (T, error) {
	for {
		v, err := open()
		if err == nil || ctx.Err() != nil {
			return v, err
		}
		log.Warn("waiting for the "+what, "error", err)
		pause(ctx, 20*time.Millisecond)
	}
}

func openSink(ctx context.Context, address string) (outbox.Sink, error) {
	if addr, ok := strings.CutPrefix(address, ledgerScheme); ok {
		return &ledgerSink{addr: addr}, nil
	}
	return open.Open(ctx, address)
}

// reportEvery is the time between checks for changes to report.
const reportEvery = 5 * time.Millisecond

// report writes a WorkerReport after every change.
func report(ctx context.Context, relay *outbox.Relay, out io.Writer) error {
	var said string
	for ctx.Err() == nil {
		s := relay.Stats()
		text, err := json.Marshal(WorkerReport{s.Leading, s.Tailing, s.TakeOvers, s.Stray, s.Retries, s.Outages, s.Buried})
		if err != nil {
			return fmt.Errorf("report: %w", err)
		}
		if string(text) != said {
			said = string(text)
			if _, err := fmt.Fprintf(out, "%s\n", text); err != nil {
				return fmt.Errorf("report: %w", err)
			}
		}
		pause(ctx, reportEvery)
	}
	return nil
}

// pause waits for d or until ctx ends.
func pause(ctx context.Context, d time.Duration) {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
	case <-ctx.Done():
	}
}
