package live

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"strconv"
	"sync"
	"time"
)

// maxViewers limits the number of open event streams.
const maxViewers = 64

// sampler records a sample per second, and sends it to viewers.
type sampler struct {
	page   Page
	source Source
	log    *slog.Logger
	notes  *Journal
	wake   chan struct{} // has a token when a viewer connects

	// Used by the goroutine of run only.
	sample *Sample
	failed bool // whether the last call of the source failed

	mu      sync.Mutex
	ring    *Ring                // guarded by mu
	viewers map[*viewer]struct{} // guarded by mu
}

// viewer is one open event stream. Its channel holds the latest event; a slow viewer misses
// events, and does not delay others.
type viewer struct{ events chan []byte }

func newSampler(cfg *Config) *sampler {
	return &sampler{
		page: cfg.Page, source: cfg.Source, log: cfg.Log, notes: cfg.Journal, wake: make(chan struct{}, 1),
		sample: newSample(cfg.Page.Series), ring: NewRing(cfg.Page.Series), viewers: make(map[*viewer]struct{}),
	}
}

// join adds a viewer, which soon gets the current state; nil if there are too many.
func (s *sampler) join() *viewer {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.viewers) >= maxViewers {
		return nil
	}
	v := &viewer{events: make(chan []byte, 1)}
	s.viewers[v] = struct{}{}
	select {
	case s.wake <- struct{}{}:
	default:
	}
	return v
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

func (s *sampler) history(span time.Duration) []byte {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.ring.AppendJSON(nil, time.Now(), span)
}

// run samples until ctx ends.
func (s *sampler) run(ctx context.Context) {
	ticker := time.NewTicker(fineEvery)
	defer ticker.Stop()
	s.look(ctx)
	for {
		select {
		case <-ticker.C:
			s.look(ctx)
		case <-s.wake: // send the last sample with the current tables
		case <-ctx.Done():
			return
		}
		if s.watched() {
			s.publish(ctx)
		}
	}
}

// look takes one sample. If that fails, the charts have a gap.
func (s *sampler) look(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, sourceTimeout)
	defer cancel()
	s.sample.begin(time.Now())
	err := s.source.Sample(ctx, s.sample)
	if (err != nil) != s.failed {
		s.log.Debug("live page: the source", "error", err)
	}
	if s.failed = err != nil; s.failed {
		return
	}
	process(s.sample)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.ring.Add(s.sample.at, s.sample.values)
}

// publish sends the last sample and the current tables to the viewers.
func (s *sampler) publish(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, sourceTimeout)
	defer cancel()
	detail, err := s.source.Detail(ctx)
	if err != nil {
		detail.Problems = append(detail.Problems, "this page cannot be updated: "+err.Error())
	}
	if s.notes != nil {
		detail.Tables = append(detail.Tables, s.notes.tables()...)
	}
	rest, err := json.Marshal(detail)
	if err != nil {
		s.log.Error("live page: encode", "error", fmt.Errorf("encode tables: %w", err))
		return
	}
	text := append([]byte(`{"t":`), strconv.FormatInt(s.sample.at.UnixMilli(), 10)...)
	text = append(text, `,"v":`...)
	if s.failed {
		text = append(text, "null"...)
	} else {
		for i, series := range s.page.Series {
			if i == 0 {
				text = append(text, '{')
			} else {
				text = append(text, ',')
			}
			text = strconv.AppendQuote(text, series.Key)
			text = appendValue(append(text, ':'), s.sample.values[i])
		}
		text = append(text, '}')
	}
	text = append(append(append(text, `,"detail":`...), rest...), '}')
	s.mu.Lock()
	defer s.mu.Unlock()
	for v := range s.viewers {
		select {
		case <-v.events: // make room: only the latest event matters
		default:
		}
		v.events <- text
	}
}
