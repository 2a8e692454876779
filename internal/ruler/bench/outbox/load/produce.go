package outboxload

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/weirdb/weir/internal/measure"
	"github.com/weirdb/weir/internal/measure/loop"
	"github.com/weirdb/weir/internal/ruler/bench"
	"github.com/weirdb/weir/internal/ruler/bench/subject/messages"
)

// ProduceConfig is the configuration of Produce.
type ProduceConfig struct {
	// Producers is the number of goroutines that enqueue; in an open loop, the largest number.
	// Required.
	Producers int
	// Rate selects an open loop with that many messages per second, at random intervals.
	// Default: closed.
	Rate float64
	// Relay reports whether a relay runs.
	Relay bool
	// Payload in bytes. Required.
	Payload int
	// Warmup and Duration are the lengths of the warm-up and of the window. Duration is
	// required.
	Warmup, Duration time.Duration
	// Drain is the time without a delivery, after the producers have ended, after which missing
	// messages are given up. Default: 30 s.
	Drain time.Duration
	// Classify returns the class of an error. Default: "error".
	Classify func(error) string
	// Watch reads the usage of processes other than this one.
	Watch Watch
	// Begin and End, if not nil, are called before the first message and after the last
	// delivery, for example to read counters.
	Begin, End func(context.Context) error
}

// keysEach is how many keys a producer has, which it uses in turn: messages of different keys
// need not wait for each other.
const keysEach = 8

// Produce enqueues for a time, with or without a relay. The sample's operations and its latency
// are those of the producers, from the intended start until the commit; times until delivery
// are in the part of the sample about messages. Its rates cover both.
func Produce(ctx context.Context, s Subject, c ProduceConfig) (*Outcome, error) {
	c.Drain = cmp.Or(c.Drain, 30*time.Second)
	p, err := newPayloads(c.Payload)
	if err != nil {
		return nil, err
	}
	if err := s.Reset(ctx); err != nil {
		return nil, fmt.Errorf("empty the tables: %w", err)
	}
	run := &production{
		ProduceConfig: c, subject: s, payloads: p,
		clock: measure.NewClock(), ledger: NewLedger(c.Producers * keysEach), at: make([]producer, c.Producers),
	}
	if c.Relay {
		if run.relay, err = startRelay(ctx, s, run.ledger, run.clock); err != nil {
			return nil, err
		}
	}
	out, err := run.measure(ctx)
	if run.relay != nil {
		err = errors.Join(err, run.relay.end())
	}
	if err != nil {
		return nil, err
	}
	books, err := run.books(ctx)
	if err != nil {
		return nil, err
	}
	messages.Of(out.Sample.Parts).Ledger = books
	return out, nil
}

// production is the state of one Produce.
type production struct {
	ProduceConfig
	subject  Subject
	payloads payloads
	clock    measure.Clock
	ledger   *Ledger
	relay    *running // nil for none
	opened   atomic.Int64
	at       []producer
}

// producer is the state of one goroutine of the loop. No other goroutine accesses it.
type producer struct {
	turn, key int
	n         int64
	committed int64 // when its last message was committed
	_         [64]byte
}

func (p *production) measure(ctx context.Context) (*Outcome, error) {
	if err := call(ctx, p.Begin); err != nil {
		return nil, err
	}
	cfg := loop.Config{
		Workers: p.Producers, Warmup: p.Warmup, FixedWarmup: true, Duration: p.Duration, Interval: 100 * time.Millisecond,
		Classify: p.Classify, Watch: p.Watch,
		Window: func() { p.opened.Store(p.clock.Now()) },
		Ended:  p.ended,
	}
	if p.Rate > 0 {
		arrivals, err := loop.Poisson(p.Rate, 1)
		if err != nil {
			return nil, err
		}
		cfg.Arrivals = arrivals
	}
	got, err := loop.Run(ctx, cfg, p.enqueue)
	if err != nil {
		return nil, fmt.Errorf("enqueue: %w", err)
	}
	if p.relay != nil {
		if err := p.relay.arrived(ctx, p.ledger, max(p.ledger.committed.Load(), 1), p.Drain); err != nil {
			return nil, err
		}
	}
	if err := call(ctx, p.End); err != nil {
		return nil, err
	}
	return p.outcome(got), nil
}

// enqueue is one operation of the loop.
func (p *production) enqueue(ctx context.Context, worker int) error {
	w := &p.at[worker]
	w.key, w.turn = worker*keysEach+w.turn%keysEach, w.turn+1
	w.n = p.ledger.Hand(w.key)
	if err := p.subject.Enqueue(ctx, p.payloads.message(w.key, w.n)); err != nil {
		p.ledger.Unknown(w.key, w.n)
		return err
	}
	w.committed = p.clock.Now()
	p.ledger.Committed(w.key, w.n, w.committed)
	return nil
}

// ended is called by the worker after each operation that was answered.
func (p *production) ended(e loop.Ended) {
	if w := &p.at[e.Worker]; !e.Cold {
		p.ledger.Timed(w.key, w.n, w.committed-(e.Completed-e.Intended))
	}
}

func (p *production) outcome(got *loop.Outcome) *Outcome {
	s := bench.SampleOf(got)
	if p.Rate == 0 {
		s.InFlight = p.Producers
	}
	if s.Cold != nil {
		s.Cold.Steady = true // its length was fixed, and settling was not checked
	}
	from := p.opened.Load()
	t := p.ledger.times(from, from+int64(got.Seconds*1e9))
	s.Rates = map[string]float64{"enqueue": float64(s.Ops) / s.Seconds}
	s.Parts = []bench.Part{&messages.Outbox{PayloadBytes: p.Payload, Settings: p.subject.Settings()}}
	if p.relay != nil {
		s.Rates["consume"] = float64(t.delivered) / s.Seconds
		messages.Of(s.Parts).FromStart, messages.Of(s.Parts).FromCommit = &t.fromStart, &t.fromCommit
		messages.Of(s.Parts).Lag, messages.Of(s.Parts).MaxLag = t.lag, t.maxLag
	}
	return &Outcome{Sample: s, TotalOps: p.ledger.committed.Load()}
}

// books closes the ledger. Without a relay everything must be in the table.
func (p *production) books(ctx context.Context) (messages.Ledger, error) {
	if p.relay != nil {
		return p.ledger.Books(0), nil
	}
	left, err := p.subject.Pending(ctx)
	if err != nil {
		return messages.Ledger{}, fmt.Errorf("count the rows of the table: %w", err)
	}
	return p.ledger.Books(left), nil
}
