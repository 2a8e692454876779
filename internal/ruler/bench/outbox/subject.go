package outboxbench

import (
	"cmp"
	"context"
	"database/sql"
	"errors"
	"fmt"
	"log/slog"
	"strconv"
	"sync"
	"time"

	outboxload "github.com/weirdb/weir/internal/ruler/bench/outbox/load"
	"github.com/weirdb/weir/outbox"
)

// topic of all messages.
const topic = "bench"

// shape is a form of weir's tables. Each shape has its own tables, created once.
type shape struct {
	layout outbox.Layout
	period outbox.Period
}

// table is the name of its outbox table.
func (s shape) table() string {
	switch {
	case s.layout == outbox.Queue:
		return "weir_bench_queue"
	case s.period == outbox.Unpartitioned:
		return "weir_bench_history"
	default:
		return "weir_bench_daily"
	}
}

// plan is how the table is migrated.
func (s shape) plan(days int) outbox.Plan {
	p := outbox.Plan{Layout: s.layout}
	if s.period != outbox.Unpartitioned {
		p.Partition = outbox.PartitionSpec{Period: s.period, Ahead: 48 * time.Hour, Lookback: time.Duration(days+2) * 24 * time.Hour}
	}
	return p
}

// Ways of enqueuing.
const (
	withTx    = "tx"    // its own transaction: begin, insert, commit
	withoutTx = "no tx" // the statement is the transaction
	grouped   = "group" // outbox.Group
)

// subject is weir's outbox in one configuration.
type subject struct {
	rig     *rig
	shape   shape
	config  outbox.Config
	enqueue string // one of the ways above
	floor   bool   // the relay records no deliveries: see forgetful
	// Set by open.
	store outbox.Store
	group *outbox.Group

	log warnings
}

// customaryShape is the shape that the customary design uses in reference report 5.
var customaryShape = shape{layout: outbox.History}

// subject makes a subject for a claim mode. Without a combination it uses the defaults.
func (r *rig) subject(claim outbox.ClaimMode, c Combination) *subject {
	s := &subject{rig: r, enqueue: withTx, config: outbox.Config{Claim: claim, Publishers: c.Workers, Batch: c.Batch}}
	if claim == outbox.SkipLocked {
		s.shape = customaryShape
	}
	return s
}

// open creates the tables unless they exist.
func (s *subject) open(ctx context.Context) error {
	if s.store != nil {
		return nil
	}
	store, err := s.rig.store(ctx, s.shape)
	if err != nil {
		return err
	}
	s.store = store
	if s.floor {
		s.store = noAckStore{store}
	}
	if s.enqueue == grouped {
		s.group = outbox.NewGroup(s.tx(s.rig.producers))
	}
	return nil
}

// close closes what open opened for the subject alone.
func (s *subject) close() error {
	if s.group == nil {
		return nil
	}
	return s.group.Close()
}

func (s *subject) tx(h outbox.Execer) outbox.Tx { return engine(s.rig.o.Engine).tx(h, s.shape.table()) }

// Reset implements [outboxload.Subject].
func (s *subject) Reset(ctx context.Context) error {
	if err := s.open(ctx); err != nil {
		return err
	}
	return s.rig.exec(ctx, engine(s.rig.o.Engine).emptied(s.shape.table())...)
}

func message(m outboxload.Message) outbox.Message {
	return outbox.Message{Topic: topic, Key: outboxload.KeyName(m.Key), Payload: m.Payload}
}

// Seed implements [outboxload.Subject].
func (s *subject) Seed(ctx context.Context, msgs []outboxload.Message) error {
	rows := make([]outbox.Message, len(msgs))
	for i, m := range msgs {
		rows[i] = message(m)
	}
	return s.inTx(ctx, rows...)
}

func (s *subject) inTx(ctx context.Context, rows ...outbox.Message) error {
	tx, err := s.rig.producers.BeginTx(ctx, nil)
	if err != nil {
		return fmt.Errorf("begin: %w", err)
	}
	if err := outbox.Enqueue(ctx, s.tx(tx), rows...); err != nil {
		return errors.Join(err, rolledBack(tx))
	}
	if err := tx.Commit(); err != nil {
		return fmt.Errorf("commit: %w", err)
	}
	return nil
}

func rolledBack(tx *sql.Tx) error {
	if err := tx.Rollback(); !errors.Is(err, sql.ErrTxDone) {
		return err
	}
	return nil
}

// Enqueue implements [outboxload.Subject].
func (s *subject) Enqueue(ctx context.Context, m outboxload.Message) error {
	switch s.enqueue {
	case withoutTx:
		return outbox.Enqueue(ctx, s.tx(s.rig.producers), message(m))
	case grouped:
		return s.group.Enqueue(ctx, message(m))
	}
	return s.inTx(ctx, message(m))
}

// Pending implements [outboxload.Subject].
func (s *subject) Pending(ctx context.Context) (int64, error) {
	st, err := s.store.Status(ctx)
	return st.Pending, err
}

// Settings implements [outboxload.Subject]. "default" stands for the default of this build's
// relay.
func (s *subject) Settings() map[string]string {
	number := func(n int) string {
		if n == 0 {
			return "default"
		}
		return strconv.Itoa(n)
	}
	out := map[string]string{
		"outbox": "weir", "claim": s.config.Claim.String(), "layout": s.shape.layout.String(), "partition": s.shape.period.String(),
		"publishers": number(s.config.Publishers), "batch": number(s.config.Batch), "enqueue": s.enqueue,
	}
	if s.config.Window > 0 {
		out["window"] = s.config.Window.String()
	}
	if s.floor {
		out["notes"] = "none"
	}
	return out
}

// said is what the relay of the last round logged.
func (s *subject) said() []string { return s.log.lines() }

// Relay implements [outboxload.Subject].
func (s *subject) Relay(deliver func([][]byte)) (outboxload.Relay, error) {
	c := s.config
	s.log.reset()
	c.Logger = slog.New(&s.log)
	return s.relay(c, &sink{deliver})
}

// relay makes a relay that publishes to a sink.
func (s *subject) relay(c outbox.Config, to outbox.Sink) (outboxload.Relay, error) {
	r, err := outbox.NewRelay(s.store, to, c)
	if err != nil {
		return nil, err
	}
	return &relay{Relay: r, claim: c.Claim, maxPoll: cmp.Or(c.MaxPoll, 100*time.Millisecond)}, nil
}

// sink is a broker that confirms at once.
type sink struct{ deliver func([][]byte) }

// Publish implements [outbox.Sink].
func (s *sink) Publish(_ context.Context, msgs []outbox.Message) []error {
	payloads := make([][]byte, len(msgs))
	for i := range msgs {
		payloads[i] = msgs[i].Payload
	}
	s.deliver(payloads)
	return nil
}

// Close implements [outbox.Sink].
func (*sink) Close() error { return nil }

// relay is a relay of weir's.
type relay struct {
	*outbox.Relay
	claim   outbox.ClaimMode
	maxPoll time.Duration
}

// pollInterval is the interval at which the state of a relay is checked.
const pollInterval = 2 * time.Millisecond

// Ready implements [outboxload.Relay].
func (r *relay) Ready(ctx context.Context) error {
	for r.claim != outbox.SkipLocked {
		switch st := r.Stats(); {
		case r.claim == outbox.Log && st.TailReason != "":
			return fmt.Errorf("the log cannot be followed: %s", st.TailReason)
		case st.Leading > 0 && (r.claim != outbox.Log || st.Tailing > 0):
			return nil
		}
		if err := wait(ctx, pollInterval); err != nil {
			return err
		}
	}
	return nil
}

// Pause implements [outboxload.Relay]. The relay does not report when it has paused: it counts
// as paused when it has not read for half a second, and for twice the longest time between two
// reads. A wait for the log lasts 200 ms and does not count as a read.
func (r *relay) Pause(ctx context.Context) error {
	r.Relay.Pause()
	rest := max(500*time.Millisecond, 2*r.maxPoll)
	last, since := r.Stats().Rounds, time.Now()
	for time.Since(since) < rest {
		if err := wait(ctx, pollInterval); err != nil {
			return err
		}
		if now := r.Stats().Rounds; now != last {
			last, since = now, time.Now()
		}
	}
	return nil
}

// Resume implements [outboxload.Relay].
func (r *relay) Resume(context.Context) error {
	r.Relay.Resume()
	return nil
}

// Acked implements [outboxload.Relay].
func (r *relay) Acked() int64 { return int64(r.Stats().Acked) }

func wait(ctx context.Context, d time.Duration) error {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// warnings counts a relay's warnings by text. It is a slog.Handler.
type warnings struct {
	mu    sync.Mutex
	count map[string]int
	order []string
}

func (w *warnings) reset() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.count, w.order = map[string]int{}, nil
}

// Enabled implements slog.Handler.
func (*warnings) Enabled(_ context.Context, l slog.Level) bool { return l >= slog.LevelWarn }

// Handle implements slog.Handler.
func (w *warnings) Handle(_ context.Context, r slog.Record) error {
	text := r.Message
	r.Attrs(func(a slog.Attr) bool {
		if a.Key == "error" {
			text += ": " + a.Value.String()
		}
		return true
	})
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.count[text] == 0 {
		w.order = append(w.order, text)
	}
	w.count[text]++
	return nil
}

// WithAttrs implements slog.Handler.
func (w *warnings) WithAttrs([]slog.Attr) slog.Handler { return w }

// WithGroup implements slog.Handler.
func (w *warnings) WithGroup(string) slog.Handler { return w }

// lines are the first warnings and their counts.
func (w *warnings) lines() []string {
	w.mu.Lock()
	defer w.mu.Unlock()
	var out []string
	for i, text := range w.order {
		if i == 5 {
			out = append(out, fmt.Sprintf("relay: %d more kinds of warnings", len(w.order)-i))
			break
		}
		out = append(out, fmt.Sprintf("relay: %s (%d times)", text, w.count[text]))
	}
	return out
}
