package dash

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"time"
)

const (
	// tick is the time between two samples.
	tick = 500 * time.Millisecond
	// historySpan is what the charts show.
	historySpan = 2 * time.Minute
	// rateTicks is over how many ticks the rate of a statement is taken: long
	// enough to be read, short enough to follow.
	rateTicks = 6
	// maxViewers bounds the open event streams.
	maxViewers = 64
)

// sampler looks at the source once per tick while anybody watches, and for the
// span of the charts afterwards, so that a reloaded page is not empty. A proxy
// that nobody watches pays nothing.
type sampler struct {
	source Source
	log    *slog.Logger
	wake   chan struct{} // holds a token when somebody begins to watch

	mu      sync.Mutex
	viewers map[*viewer]struct{} // guarded by mu
	points  []Point              // guarded by mu: oldest first
	last    []byte               // guarded by mu: the latest event; nil while asleep
}

// viewer is one open event stream. Its channel holds the latest event; a viewer
// who is slow misses events, and never holds up others.
type viewer struct{ events chan []byte }

func newSampler(source Source, log *slog.Logger) *sampler {
	return &sampler{source: source, log: log, wake: make(chan struct{}, 1), viewers: make(map[*viewer]struct{})}
}

// join adds a viewer and returns the points so far; nil if there are too many.
func (s *sampler) join() (*viewer, []Point) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.viewers) >= maxViewers {
		return nil, nil
	}
	v := &viewer{events: make(chan []byte, 1)}
	s.viewers[v] = struct{}{}
	if s.last != nil {
		v.events <- s.last // so that the page is full at once
	}
	select {
	case s.wake <- struct{}{}:
	default:
	}
	return v, slices.Clone(s.points)
}

func (s *sampler) leave(v *viewer) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.viewers, v)
}

func (s *sampler) watched() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.viewers) > 0
}

// run samples until ctx ends.
func (s *sampler) run(ctx context.Context) {
	ticker := time.NewTicker(tick)
	defer ticker.Stop()
	for {
		s.mu.Lock()
		s.last = nil // it would be old when the next viewer comes
		s.mu.Unlock()
		select { // asleep
		case <-s.wake:
		case <-ctx.Done():
			return
		}
		var recent []*State // the latest last, at most rateTicks+1
		seen := time.Now()
		for time.Since(seen) < historySpan {
			if s.watched() {
				seen = time.Now()
			}
			if state := s.look(ctx); state != nil {
				recent = append(recent, state)
				recent = recent[max(0, len(recent)-rateTicks-1):]
				s.publish(recent)
			}
			select {
			case <-ticker.C:
			case <-ctx.Done():
				return
			}
		}
	}
}

// look takes one sample, nil if the source has none.
func (s *sampler) look(ctx context.Context) *State {
	ctx, cancel := context.WithTimeout(ctx, stateTimeout)
	defer cancel()
	state, err := s.source.State(ctx)
	if err != nil {
		s.log.Debug("live page: no sample", "error", err)
		return nil
	}
	state.complete(time.Now())
	return &state
}

// event is what a tick sends to every viewer.
type event struct {
	Point *Point `json:"point,omitempty"` // none with the first sample
	State *State `json:"state"`
}

// publish derives the point of the latest sample and sends it to the viewers.
func (s *sampler) publish(recent []*State) {
	now := recent[len(recent)-1]
	e := event{State: now}
	if len(recent) > 1 {
		p := between(recent[len(recent)-2], now)
		e.Point = &p
		rateStatements(recent[0], now)
	}
	text, err := json.Marshal(e)
	if err != nil {
		s.log.Error("live page: encode sample", "error", fmt.Errorf("encode state: %w", err))
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if e.Point != nil {
		s.points = append(s.points, *e.Point)
		old := now.Time.Add(-historySpan).UnixMilli()
		s.points = slices.DeleteFunc(s.points, func(p Point) bool { return p.UnixMs < old })
	}
	s.last = text
	for v := range s.viewers {
		select {
		case <-v.events: // make room: the latest counts
		default:
		}
		v.events <- text
	}
}
