package outbox

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"time"
)

// Relay moves messages from a store to a sink. Any number may run on one store,
// in one process or in many.
type Relay struct {
	store Store
	sink  Sink
	cfg   Config
	rec   recorder
	bell  bell
	gate  gate
	limit *limiter

	shards   atomic.Int64 // number of shards of the table
	circuits *circuits
	dests    destinations
	callLock callLock
}

// NewRelay returns a relay that moves messages from store to sink. It closes
// neither.
func NewRelay(store Store, sink Sink, cfg Config) (*Relay, error) {
	cfg = cfg.withDefaults()
	if err := cfg.validate(); err != nil {
		return nil, err
	}
	return &Relay{store: store, sink: sink, cfg: cfg, limit: newLimiter(cfg.Rate, cfg.Batch), circuits: newCircuits(sink), callLock: newCallLock()}, nil
}

// Waker is a store that is notified of commits, so that a polling relay does
// not have to wait for its next poll.
type Waker interface {
	// Wake returns a channel that receives when messages may have been
	// committed, until ctx ends. A nil channel: the store cannot tell.
	Wake(ctx context.Context) (<-chan struct{}, error)
}

// Nudge makes the relay look for messages at once. Call it after a commit in
// the same process; it costs nothing when the relay is busy.
func (r *Relay) Nudge() { r.bell.ring() }

// Pause stops reading rows until Resume; rows that were read are still
// delivered. The relay keeps its leadership, and its position in the log for as
// long as the server keeps the connection; after that it reads the table first.
func (r *Relay) Pause() { r.gate.shut() }

// Resume ends a Pause.
func (r *Relay) Resume() { r.gate.open(); r.bell.ring() }

// Stats is what the relay has done since it was made.
func (r *Relay) Stats() Stats {
	s := r.rec.stats()
	s.Blocked = r.circuits.waiting()
	s.Destinations = r.dests.stats(r.circuits.isOpen, time.Now())
	if k, ok := r.sink.(Repeater); ok {
		s.Repeated = k.Repeats()
	}
	return s
}

// Run relays until ctx ends, then waits at most Config.DrainTimeout until the
// messages in flight are confirmed and recorded, and returns nil. It waits while
// the database or the broker is unavailable. It returns an error only if
// waiting cannot help: tables that were never migrated or are of a newer
// weir, a window on a table without partitions, SkipLocked on a database that lacks
// it or beside a relay that leads ([ErrMixedClaims]), a pooler that moves sessions
// between connections ([ErrPooled]).
func (r *Relay) Run(ctx context.Context) error {
	desc, err := r.describe(ctx)
	if err != nil || ctx.Err() != nil {
		return err
	}
	if err := r.check(desc); err != nil {
		return err
	}
	r.shards.Store(int64(desc.Shards))
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	var group sync.WaitGroup
	defer group.Wait()
	group.Go(func() { r.forwardWakes(ctx) })
	if r.cfg.Claim == SkipLocked {
		present, err := r.announce(ctx)
		if err != nil || ctx.Err() != nil {
			cancel(nil)
			return err
		}
		group.Go(func() { r.promote(ctx) })
		group.Go(func() {
			if err := r.stayAnnounced(ctx, present); err != nil {
				cancel(err)
			}
		})
		w := newWorkers(r)
		for range r.cfg.Publishers {
			group.Go(func() {
				if err := w.run(ctx); err != nil {
					cancel(err)
				}
			})
		}
	} else {
		group.Go(func() { r.contendForAll(ctx, desc.Shards, cancel) })
	}
	<-ctx.Done()
	group.Wait()
	if cause := context.Cause(ctx); !errors.Is(cause, context.Canceled) && !errors.Is(cause, context.DeadlineExceeded) {
		return cause
	}
	return nil
}

// describe reads how the tables were migrated, waiting for a database that is
// away.
func (r *Relay) describe(ctx context.Context) (Description, error) {
	wait := backoff{least: 100 * time.Millisecond, most: 5 * time.Second}
	for {
		// Before anything is asked: a pooler may lose the statements by which the store asks.
		var desc Description
		var err error
		if c, ok := r.store.(Checker); ok {
			err = c.Check(ctx)
		}
		if err == nil {
			desc, err = r.store.Describe(ctx)
		}
		if err == nil || errors.Is(err, ErrNotMigrated) || errors.Is(err, ErrNewer) || errors.Is(err, ErrPooled) || ctx.Err() != nil {
			if ctx.Err() != nil {
				err = nil
			}
			return desc, err
		}
		r.cfg.Logger.Warn("the outbox cannot be read, trying again", "table", r.store.Name(), "error", err)
		wait.sleep(ctx)
	}
}

func (r *Relay) check(desc Description) error {
	if r.cfg.Claim == SkipLocked && !desc.SkipLocks {
		return fmt.Errorf("%w (%s)", ErrNoSkipLocked, desc.Server)
	}
	if r.cfg.Window > 0 && desc.Period == Unpartitioned {
		return ErrWindowNeedsPartitions
	}
	return nil
}

// describeEvery is how often a relay asks for the number of shards: migrate changes
// it while relays merely stand by.
const describeEvery = time.Minute

// contendForAll contends for each shard that there is, until ctx ends.
func (r *Relay) contendForAll(ctx context.Context, shards int, end context.CancelCauseFunc) {
	var group sync.WaitGroup
	defer group.Wait()
	var running []context.CancelFunc // by shard
	defer func() {
		for _, stop := range running {
			stop()
		}
	}()
	for {
		for shard := len(running); shard < shards; shard++ {
			inner, stop := context.WithCancel(ctx)
			running = append(running, stop)
			group.Go(func() {
				if err := r.contend(inner, shard); err != nil {
					end(err)
				}
			})
		}
		for len(running) > shards {
			running[len(running)-1]()
			running = running[:len(running)-1]
		}
		if sleep(ctx, describeEvery); ctx.Err() != nil {
			return
		}
		desc, err := r.store.Describe(ctx)
		if err == nil && desc.Shards != shards {
			r.cfg.Logger.Info("the number of shards has changed", "table", r.store.Name(), "before", shards, "now", desc.Shards)
			shards = desc.Shards
			r.shards.Store(int64(shards))
		} // an error is that of those who contend, too, and they tell
	}
}

// contend tries to lead a shard, and leads it, until ctx ends. It returns an error
// only if waiting cannot help.
func (r *Relay) contend(ctx context.Context, shard int) error {
	log := r.cfg.Logger.With("table", r.store.Name(), "shard", shard)
	wait := backoff{least: 50 * time.Millisecond, most: 5 * time.Second}
	var owed unrecorded
	for ctx.Err() == nil {
		lease, err := r.store.Lead(ctx, shard)
		switch {
		case ctx.Err() != nil && err != nil:
			return nil
		case errors.Is(err, ErrMixedClaims), errors.Is(err, ErrPooled):
			return err
		case errors.Is(err, ErrHeld):
			wait.reset()
			sleep(ctx, r.cfg.TakeOver/2+rand.N(r.cfg.TakeOver/2+1))
			continue
		case err != nil:
			log.Warn("cannot try to lead, trying again", "error", err)
			wait.sleep(ctx)
			continue
		}
		log.Info("leading")
		r.rec.takeOvers.Add(1)
		began := time.Now()
		err = r.lead(ctx, lease, shard, &owed, log)
		if err := lease.Close(); err != nil && ctx.Err() == nil {
			log.Warn("giving the leadership up failed", "error", err)
		}
		if errors.Is(err, errAfresh) && ctx.Err() == nil {
			log.Warn("leading begins again", "reason", err)
			wait.sleep(ctx)
			continue
		}
		if err != nil && ctx.Err() == nil {
			log.Warn("leading ended, trying again", "error", err)
			if time.Since(began) > 10*time.Second {
				wait.reset()
			}
			wait.sleep(ctx)
		}
	}
	return nil
}

// promote moves scheduled messages whose moment has come, until ctx ends.
func (r *Relay) promote(ctx context.Context) {
	const (
		most    = 1000
		longest = 250 * time.Millisecond
	)
	wait := backoff{least: 100 * time.Millisecond, most: 5 * time.Second}
	for ctx.Err() == nil {
		if r.gate.wait(ctx) != nil {
			return
		}
		moved, next, err := r.store.Promote(ctx, most)
		switch {
		case err != nil:
			if ctx.Err() == nil {
				r.cfg.Logger.Warn("cannot move scheduled messages whose moment has come, trying again", "table", r.store.Name(), "error", err)
			}
			wait.sleep(ctx)
		case moved > 0:
			wait.reset()
			r.bell.ring()
		default:
			wait.reset()
			if next < 0 || next > longest {
				next = longest
			}
			sleep(ctx, max(next, time.Millisecond))
		}
	}
}

// forwardWakes rings the bell for a store that is told of commits.
func (r *Relay) forwardWakes(ctx context.Context) {
	w, ok := r.store.(Waker)
	if !ok {
		return
	}
	wait := backoff{least: 100 * time.Millisecond, most: 5 * time.Second}
	for ctx.Err() == nil {
		wakes, err := w.Wake(ctx)
		switch {
		case err != nil && ctx.Err() != nil: // the relay stops
			return
		case err != nil:
			r.cfg.Logger.Warn("cannot listen for commits, polling goes on", "table", r.store.Name(), "error", err)
			wait.sleep(ctx)
			continue
		case wakes == nil:
			return
		}
		for range wakes {
			r.bell.ring()
		}
	}
}
