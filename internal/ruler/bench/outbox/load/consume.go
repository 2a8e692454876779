package outboxload

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/weirdb/weir/internal/measure"
	"github.com/weirdb/weir/internal/ruler/bench"
	"github.com/weirdb/weir/internal/ruler/bench/subject/messages"
)

// ConsumeConfig is the configuration of Consume.
type ConsumeConfig struct {
	// Records is the size of the backlog. Required.
	Records int64
	// Target returns how many messages to wait for, once they are in the table: others are
	// outside the relay's window, or do not matter. Default: all.
	Target func(context.Context) (int64, error)
	// Payload in bytes. Required.
	Payload int
	// Keys is the number of different message keys. Default: 400.
	Keys int
	// Seed fills the table instead of Subject.Seed, for example with old rows; it records what
	// it inserts in the ledger. Default: as if enqueued now.
	Seed func(ctx context.Context, l *Ledger, clock measure.Clock) error
	// Patience is the time without a delivery after which missing messages are given up.
	// Default: 30 s.
	Patience time.Duration
	// Watch reads the usage of processes other than this one.
	Watch Watch
	// Begin and End, if not nil, are called right before and after the window, for example to
	// read counters.
	Begin, End func(context.Context) error
}

const (
	seeders   = 4
	seedBatch = 250
)

func (c ConsumeConfig) withDefaults() ConsumeConfig {
	c.Keys = cmp.Or(c.Keys, 400)
	c.Patience = cmp.Or(c.Patience, 30*time.Second)
	return c
}

// Consume makes a relay deliver a backlog. The relay runs, is paused while the rows are seeded,
// and is resumed. The window lasts from then until the last delivery, and
// Outbox.AckedSeconds until the last delivery is recorded.
//
//	Ready      Pause     Resume                delivered    acknowledged
//	  |----------|-- seed --|---- Sample.Seconds ---|            |
//	                        |---------- AckedSeconds ------------|
func Consume(ctx context.Context, s Subject, c ConsumeConfig) (_ *Outcome, err error) {
	c = c.withDefaults()
	if err := s.Reset(ctx); err != nil {
		return nil, fmt.Errorf("empty the tables: %w", err)
	}
	clock, ledger := measure.NewClock(), NewLedger(c.Keys)
	relay, err := startRelay(ctx, s, ledger, clock)
	if err != nil {
		return nil, err
	}
	ended := false
	defer func() {
		if !ended {
			err = errors.Join(err, relay.end())
		}
	}()
	if err := relay.Pause(ctx); err != nil {
		return nil, fmt.Errorf("pause the relay: %w", err)
	}
	if err := c.seed(ctx, s, ledger, clock); err != nil {
		return nil, fmt.Errorf("seed %d rows: %w", c.Records, err)
	}
	target, err := c.target(ctx)
	if err != nil {
		return nil, err
	}
	if n := ledger.Delivered(); n > 0 {
		return nil, fmt.Errorf("%d messages were delivered while the relay was paused", n)
	}
	if err := call(ctx, c.Begin); err != nil {
		return nil, err
	}
	before, err := c.Watch.read()
	if err != nil {
		return nil, fmt.Errorf("read usage: %w", err)
	}
	from := clock.Now()
	if err := relay.Resume(ctx); err != nil {
		return nil, fmt.Errorf("resume the relay: %w", err)
	}
	if err := relay.arrived(ctx, ledger, target, c.Patience); err != nil {
		return nil, err
	}
	to := ledger.lastDelivery(clock)
	after, err := c.Watch.read()
	if err != nil {
		return nil, fmt.Errorf("read usage: %w", err)
	}
	acked := int64(0)
	if c.Target == nil {
		acked = relay.acked(ctx, c.Records, c.Patience, clock)
	}
	if err := call(ctx, c.End); err != nil {
		return nil, err
	}
	ended = true
	if err := relay.end(); err != nil {
		return nil, err
	}
	left, err := c.left(ctx, s)
	if err != nil {
		return nil, err
	}
	return c.outcome(s, ledger, before, after, from, to, acked, left), nil
}

// target is how many messages to wait for.
func (c ConsumeConfig) target(ctx context.Context) (int64, error) {
	if c.Target == nil {
		return c.Records, nil
	}
	n, err := c.Target(ctx)
	if err != nil {
		return 0, fmt.Errorf("count the rows to wait for: %w", err)
	}
	if n < 1 {
		return 0, errors.New("no rows to wait for")
	}
	return n, nil
}

// left counts the messages that the run was not meant to deliver.
func (c ConsumeConfig) left(ctx context.Context, s Subject) (int64, error) {
	if c.Target == nil {
		return 0, nil
	}
	n, err := s.Pending(ctx)
	if err != nil {
		return 0, fmt.Errorf("count the remaining messages: %w", err)
	}
	return n, nil
}

func (c ConsumeConfig) outcome(s Subject, l *Ledger, before, after usage, from, to, acked, left int64) *Outcome {
	t := l.times(from, to)
	out := &Outcome{Sample: bench.Sample{
		Seconds: float64(to-from) / 1e9, Ops: t.delivered,
		Parts: []bench.Part{&messages.Outbox{PayloadBytes: c.Payload, Ledger: l.Books(left), Settings: s.Settings()}},
	}}
	if acked > 0 {
		messages.Of(out.Sample.Parts).AckedSeconds = float64(acked-from) / 1e9
	}
	out.Sample.Rates = map[string]float64{"consume": float64(out.Sample.Ops) / out.Sample.Seconds}
	after.since(before, &out.Sample)
	out.TotalOps = l.Delivered()
	return out
}

// seed commits the backlog: every seeder has its own keys, and takes them in turn.
func (c ConsumeConfig) seed(ctx context.Context, s Subject, l *Ledger, clock measure.Clock) error {
	if c.Seed != nil {
		return c.Seed(ctx, l, clock)
	}
	make, err := newPayloads(c.Payload)
	if err != nil {
		return err
	}
	// Large payloads use smaller transactions: the size of a statement is limited.
	batch := min(seedBatch, max(1, 4<<20/c.Payload))
	var group sync.WaitGroup
	errs := [seeders]error{}
	for w := range seeders {
		share := c.Records/seeders + min(1, max(0, c.Records%seeders-int64(w)))
		keys := c.Keys/seeders + min(1, max(0, c.Keys%seeders-w))
		group.Go(func() {
			for done := int64(0); done < share && errs[w] == nil; {
				var msgs []Message
				for ; len(msgs) < batch && done < share; done++ {
					key := w + seeders*int(done%int64(max(keys, 1)))
					msgs = append(msgs, make.message(key, l.Hand(key)))
				}
				if errs[w] = s.Seed(ctx, msgs); errs[w] != nil {
					return
				}
				at := clock.Now()
				for _, m := range msgs {
					l.Committed(m.Key, m.N, at)
				}
			}
		})
	}
	group.Wait()
	return errors.Join(errs[:]...)
}

// lastDelivery is when the latest message was delivered, or now if none was.
func (l *Ledger) lastDelivery(clock measure.Clock) int64 {
	last := int64(0)
	for i := range l.keys {
		k := &l.keys[i]
		k.mu.Lock()
		for j := range k.entries {
			last = max(last, k.entries[j].delivered)
		}
		k.mu.Unlock()
	}
	if last == 0 {
		return clock.Now()
	}
	return last
}

func call(ctx context.Context, f func(context.Context) error) error {
	if f == nil {
		return nil
	}
	return f(ctx)
}
