package outboxload

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/weirdb/weir/internal/measure"
	"github.com/weirdb/weir/internal/ruler/bench"
)

// Outcome is the outcome of a run.
type Outcome struct {
	Sample bench.Sample
	// TotalOps is the number of messages that server counters cover: those of the whole run,
	// including the warm-up.
	TotalOps int64
}

// running is a running relay.
type running struct {
	Relay
	stop  func()
	ended chan error
}

// startRelay starts a relay that delivers into a ledger, and returns when it is ready.
func startRelay(ctx context.Context, s Subject, l *Ledger, clock measure.Clock) (*running, error) {
	relay, err := s.Relay(func(payloads [][]byte) {
		at := clock.Now()
		for _, p := range payloads {
			l.Deliver(p, at)
		}
	})
	if err != nil {
		return nil, fmt.Errorf("make the relay: %w", err)
	}
	// The relay outlives ctx for as long as it needs to finish.
	inner, stop := context.WithCancel(context.WithoutCancel(ctx))
	r := &running{Relay: relay, stop: stop, ended: make(chan error, 1)}
	go func() { r.ended <- relay.Run(inner) }()
	if err := r.ready(ctx); err != nil {
		return nil, errors.Join(fmt.Errorf("wait for the relay: %w", err), r.end())
	}
	return r, nil
}

// ready waits until the relay is ready or has ended.
func (r *running) ready(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, readyTimeout)
	defer cancel()
	done := make(chan error, 1)
	go func() { done <- r.Ready(ctx) }()
	select {
	case err := <-done:
		return err
	case err := <-r.ended:
		r.ended <- err
		if err == nil {
			err = errors.New("it ended by itself")
		}
		cancel()
		<-done
		return err
	}
}

// readyTimeout is generous: a relay is ready in a second, but on a busy machine the search for
// the first message of a large backlog can take long.
const readyTimeout = 2 * time.Minute

// end stops the relay and returns when it has finished what it had begun.
func (r *running) end() error {
	r.stop()
	err := <-r.ended
	r.ended <- err
	if err != nil {
		return fmt.Errorf("relay: %w", err)
	}
	return nil
}

// acked waits until n deliveries are recorded, at most for the given time, and returns the time
// of the clock at which that happened; 0 if it did not, or if the relay does not report it.
func (r *running) acked(ctx context.Context, n int64, most time.Duration, clock measure.Clock) int64 {
	deadline := time.NewTimer(most)
	defer deadline.Stop()
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	for {
		switch got := r.Acked(); {
		case got < 0:
			return 0
		case got >= n:
			return clock.Now()
		}
		select {
		case <-tick.C:
		case <-deadline.C:
			return 0
		case <-ctx.Done():
			return 0
		}
	}
}

// arrived waits until n messages have been delivered. It gives up, without an error, if none
// has come for the time patience: the ledger then reports the missing ones. The error is that
// of ctx, or of a relay that has ended.
func (r *running) arrived(ctx context.Context, l *Ledger, n int64, patience time.Duration) error {
	reached := l.Reached(n)
	tick := time.NewTicker(max(patience/20, time.Millisecond))
	defer tick.Stop()
	last, since := l.Delivered(), time.Now()
	for {
		select {
		case <-reached:
			return nil
		case err := <-r.ended:
			r.ended <- err
			if err == nil {
				err = errors.New("it ended by itself")
			}
			return fmt.Errorf("relay: %w", err)
		case <-ctx.Done():
			return ctx.Err()
		case <-tick.C:
			if now := l.Delivered(); now != last {
				last, since = now, time.Now()
			} else if time.Since(since) >= patience {
				return nil
			}
		}
	}
}
