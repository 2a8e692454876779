package core

import (
	"context"
	"sync"
	"time"
)

// This file is about a server that is back: pools that could not reach it wait longer
// from one attempt to the next, each for itself. While any of them waits, one question at
// a time is asked for all, and its answer ends their waits.

const (
	// comebackEvery is the time between two questions.
	comebackEvery = 50 * time.Millisecond
	// comebackFor is how long they are asked after the last pool has waited: as long as
	// the longest wait, so that no pool is forgotten that waits on.
	comebackFor = 3 * time.Second
	// comebackPause is how long after an answer none is asked: what answers one question
	// and takes no connection would be stormed.
	comebackPause = time.Second
)

// A comeback knows whether somebody waits for the server.
type comeback struct {
	mu     sync.Mutex
	asking bool      // guarded by mu
	wanted time.Time // guarded by mu: last
	heard  time.Time // guarded by mu: an answer
}

// AwaitComeback has ask called, on a goroutine of its own, until it returns nil; then
// every pool that waits to try the server again does so. Calls of ask do not overlap.
// AwaitComeback may be called for each wait, on any thread.
func (s *Server[L]) AwaitComeback(ask func(context.Context) error) {
	c := &s.comeback
	c.mu.Lock()
	defer c.mu.Unlock()
	c.wanted = time.Now()
	if c.asking {
		return
	}
	c.asking = true
	s.Background.Go(func() {
		if c.ask(s.DialCtx, ask) {
			for _, l := range s.Loops {
				l.Post(l.TryAgain)
			}
		}
	})
}

// ask reports whether the server has answered before nobody waited for it any more.
func (c *comeback) ask(ctx context.Context, ask func(context.Context) error) bool {
	end := func(always bool) bool {
		c.mu.Lock()
		defer c.mu.Unlock()
		if always {
			c.heard = time.Now()
		}
		c.asking = !always && time.Since(c.wanted) < comebackFor
		return !c.asking
	}
	c.mu.Lock()
	pause := comebackPause - time.Since(c.heard)
	c.mu.Unlock()
	if pause > 0 {
		select {
		case <-ctx.Done():
			return false
		case <-time.After(pause):
		}
	}
	tick := time.NewTicker(comebackEvery)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return false
		case <-tick.C:
		}
		asking, cancel := context.WithTimeout(ctx, HealthPatience)
		err := ask(asking)
		cancel()
		if err == nil || end(false) {
			return err == nil && end(true)
		}
	}
}

// TryAgain has the loop's pools try the server again at once.
func (l *Loop[K, P, C]) TryAgain() {
	for _, p := range l.PoolList {
		p.TryAgain()
	}
}

// TryAgain ends the pool's wait after attempts that have failed.
func (p *Base[B, C, U, L, N]) TryAgain() {
	p.Dials.Succeeded()
	p.Wake()
}
