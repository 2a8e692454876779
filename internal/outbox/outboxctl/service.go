package outboxctl

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/weirdb/weir/internal/admin/live"
	"github.com/weirdb/weir/outbox"
)

// Config configures a [Service]. The zero value is right for most.
type Config struct {
	Relay outbox.Config

	// Maintenance of partitions and history while relaying.
	Maintenance Maintenance

	// StatusEvery is how often the tables are counted. A count reads them
	// completely, so a slow count is repeated less often: at most a twentieth
	// of the time is spent on it. Default: 5 s.
	StatusEvery time.Duration

	// UntilEmpty ends the service when nothing is pending.
	// Default: it runs until its context ends.
	UntilEmpty bool

	// Journal has the latest warnings for the live page. Default: none are shown.
	Journal *live.Journal

	// Log receives messages for operators. Default: nothing is logged.
	Log *slog.Logger
}

func (c Config) withDefaults() Config {
	c.StatusEvery = cmp.Or(c.StatusEvery, 5*time.Second)
	if c.Log == nil {
		c.Log = slog.New(slog.DiscardHandler)
	}
	c.Relay.Logger = c.Log
	return c
}

// Snapshot is the state of an outbox and its relay at one time.
type Snapshot struct {
	At    time.Time
	Stats outbox.Stats

	// Description of the tables; zero until it is known.
	Description outbox.Description

	// Status is the last count of the tables, CountedAt its time, zero if there
	// was none. StatusErr is the error of the latest count.
	Status       outbox.Status
	CountedAt    time.Time
	StatusErr    error
	StatusErrors uint64

	// CatchAllRows are the rows of the catch-all partition, counted up to 1000.
	// Horizon is the end of the last partition. Both only with partitions.
	CatchAllRows int64
	Horizon      time.Time
}

// Service is a relay with counts of the tables and maintenance. It is safe for concurrent use.
type Service struct {
	store outbox.Store
	relay *outbox.Relay
	cfg   Config
	began time.Time
	page  *live.Server

	mu    sync.Mutex // guards what follows
	last  Snapshot
	asked time.Time     // when the count began that is under way; zero: none is
	took  time.Duration // the last one that was answered
}

// NewService returns a service that relays from store to sink. It does not close them.
func NewService(store outbox.Store, sink outbox.Sink, cfg Config) (*Service, error) {
	cfg = cfg.withDefaults()
	relay, err := outbox.NewRelay(store, sink, cfg.Relay)
	if err != nil {
		return nil, err
	}
	s := &Service{store: store, relay: relay, cfg: cfg, began: time.Now()}
	s.page = live.New(live.Config{Page: page(), Source: &panels{s: s}, Journal: cfg.Journal, Words: s.describe, Log: cfg.Log})
	return s, nil
}

// Snapshot returns the current state.
func (s *Service) Snapshot() Snapshot {
	s.mu.Lock()
	out := s.last
	s.mu.Unlock()
	out.At, out.Stats = time.Now(), s.relay.Stats()
	return out
}

// Table returns the name of the outbox table.
func (s *Service) Table() string { return s.store.Name() }

// Run relays until ctx ends and the messages in flight are done, or, with Config.UntilEmpty,
// until nothing is pending. It returns the errors of outbox.Relay.Run, and one if the tables do
// not allow the maintenance.
func (s *Service) Run(ctx context.Context) error {
	// The page records until the end, so that it shows the drain.
	recording, end := context.WithCancel(context.WithoutCancel(ctx))
	recorded := make(chan struct{})
	go func() {
		defer close(recorded)
		s.page.Run(recording)
	}()
	defer func() {
		end()
		<-recorded
	}()
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	g, around := errgroup.WithContext(ctx)
	g.Go(func() error {
		defer stop()
		return s.relay.Run(around)
	})
	allowed := make(chan struct{})
	empty := func() {
		select {
		case <-allowed: // or what the tables do not allow would not be told
		case <-around.Done():
		}
		stop()
	}
	g.Go(func() error { return s.count(around, empty) })
	g.Go(func() error { return s.maintain(around, func() { close(allowed) }) })
	return g.Wait()
}

// Pauses between counts that wait for an empty table.
const (
	emptyPoll  = 20 * time.Millisecond
	countShare = 20
)

// count counts the tables repeatedly until ctx ends.
func (s *Service) count(ctx context.Context, empty func()) error {
	for {
		began := time.Now()
		s.mu.Lock()
		s.asked = began
		s.mu.Unlock()
		snap := s.Snapshot()
		s.readTables(ctx, &snap)
		if ctx.Err() != nil {
			return nil
		}
		if snap.StatusErr != nil {
			s.cfg.Log.Warn("the tables cannot be counted, trying again", "table", s.store.Name(), "error", snap.StatusErr)
		}
		s.mu.Lock()
		s.last, s.asked = snap, time.Time{}
		if snap.StatusErr == nil {
			s.took = time.Since(began)
		}
		s.mu.Unlock()
		rest := countShare * time.Since(began)
		if s.cfg.UntilEmpty && snap.StatusErr == nil {
			if snap.Status.Pending == 0 && s.relay.Stats().InFlight == 0 {
				empty()
				return nil
			}
			if !s.untilIdle(ctx, doneWith(&snap.Stats), max(emptyPoll, rest)) {
				return nil
			}
			continue
		}
		if !sleep(ctx, max(s.cfg.StatusEvery, rest)) {
			return nil
		}
	}
}

// untilIdle waits until the relay has completed more messages than done and then none for a
// while: the table may be empty, which the next count shows. It waits at most for most, and
// returns false if ctx has ended.
func (s *Service) untilIdle(ctx context.Context, done uint64, most time.Duration) bool {
	end := time.Now().Add(most)
	for last := done; time.Now().Before(end); {
		if !sleep(ctx, emptyPoll) {
			return false
		}
		now := s.relay.Stats()
		if now.InFlight == 0 && doneWith(&now) > done && doneWith(&now) == last {
			return true
		}
		last = doneWith(&now)
	}
	return true
}

// doneWith counts the messages that are recorded as delivered or buried.
func doneWith(s *outbox.Stats) uint64 {
	n := s.Acked
	for _, buried := range s.Buried {
		n += buried
	}
	return n
}

// readTables updates snap from the database.
func (s *Service) readTables(ctx context.Context, snap *Snapshot) {
	err := func() (err error) {
		if snap.Description, err = s.store.Describe(ctx); err != nil {
			return err
		}
		status, err := s.store.Status(ctx)
		if err != nil {
			return err
		}
		snap.Status, snap.CountedAt = status, time.Now()
		p, ok := s.store.(outbox.Partitioner)
		if !ok || snap.Description.Period == outbox.Unpartitioned {
			return nil
		}
		parts, err := p.Partitions(ctx)
		if err != nil {
			return err
		}
		snap.CatchAllRows, snap.Horizon = Reach(parts)
		return nil
	}()
	if snap.StatusErr = err; err != nil {
		snap.StatusErrors++
	}
}

// Reach returns the rows of the catch-all and the end of the last partition.
func Reach(parts []outbox.Partition) (catchAllRows int64, horizon time.Time) {
	for _, p := range parts {
		if p.CatchAll {
			catchAllRows += p.Rows
		} else if p.To.After(horizon) {
			horizon = p.To
		}
	}
	return catchAllRows, horizon
}

// A server that hangs, for instance because of its disk, answers a count neither with a result nor
// with an error. A count may take countPatience, or countFactor times as long as the last one.
const (
	countPatience = 30 * time.Second
	countFactor   = 5
)

// unresponsive returns for how long the tables have not answered, 0 if that is normal for a count.
func (s *Service) unresponsive() time.Duration {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.asked.IsZero() {
		return 0
	}
	if d := time.Since(s.asked); d > max(countPatience, countFactor*s.took) {
		return d
	}
	return 0
}

// Ready returns nil if messages are delivered, or would be if this relay led, and otherwise the
// reason.
func (s *Service) Ready() error {
	snap := s.Snapshot()
	switch silent := s.unresponsive(); {
	case snap.StatusErr != nil:
		return snap.StatusErr
	case silent > 0:
		return fmt.Errorf("the tables have not answered for %v", silent.Round(time.Second))
	case snap.CountedAt.IsZero():
		return errors.New("the tables have not been read yet")
	case snap.Stats.BrokerDown:
		return errors.New("the broker cannot take messages")
	}
	return nil
}

// sleep waits for d, and returns false if ctx ends first.
func sleep(ctx context.Context, d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return true
	case <-ctx.Done():
		return false
	}
}

// Retry repeats open until it succeeds, ctx ends, or it fails for a reason that does not pass (see
// [IsAway]). what names the thing to wait for, in the log and for awaits.
func Retry[T any](ctx context.Context, log *slog.Logger, what string, awaits func(string), open func() (T, error)) (T, error) {
	for pause := 100 * time.Millisecond; ; pause = min(2*pause, 5*time.Second) {
		v, err := open()
		if err == nil || !IsAway(err) {
			return v, err
		}
		awaits(what + ": " + err.Error())
		log.Warn("waiting for "+what, "error", err)
		if !sleep(ctx, pause) {
			return v, fmt.Errorf("%w: %w", ctx.Err(), err)
		}
	}
}
