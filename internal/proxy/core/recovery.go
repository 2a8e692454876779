package core

import (
	"context"
	"sync"
	"time"
)

// This file finds out when an unreachable server is back. Pools that could not reach it back
// off, each by itself. While any of them waits, weir asks one question at a time for all of
// them, and an answer ends their waits.

const (
	// comebackEvery is the pause between two questions.
	recoveryEvery = 50 * time.Millisecond
	// comebackFor is how long weir goes on asking after a pool last began to wait: as long as
	// the longest backoff, so that no waiting pool is forgotten.
	recoveryFor = 3 * time.Second
	// comebackPause is how long weir does not ask after an answer: a server that answers a
	// question but accepts no connection would be flooded.
	recoveryPause = time.Second
)

// A recovery knows whether any pool waits for the server.
type recovery struct {
	mu     sync.Mutex
	asking bool      // guarded by mu
	wanted time.Time // guarded by mu: when a pool last began to wait
	heard  time.Time // guarded by mu: when an answer came
}

// AwaitRecovery calls ask, on a goroutine of its own, until it returns nil; then every pool
// that waits to try the server again does so. Calls of ask do not overlap. AwaitRecovery may
// be called for each wait, on any thread.
func (s *Server[L]) AwaitRecovery(ask func(context.Context) error) {
	c := &s.recovery
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

// ask returns whether the server answered; false if every wait ended before that.
func (c *recovery) ask(ctx context.Context, ask func(context.Context) error) bool {
	end := func(always bool) bool {
		c.mu.Lock()
		defer c.mu.Unlock()
		if always {
			c.heard = time.Now()
		}
		c.asking = !always && time.Since(c.wanted) < recoveryFor
		return !c.asking
	}
	c.mu.Lock()
	pause := recoveryPause - time.Since(c.heard)
	c.mu.Unlock()
	if pause > 0 {
		select {
		case <-ctx.Done():
			return false
		case <-time.After(pause):
		}
	}
	tick := time.NewTicker(recoveryEvery)
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

// TryAgain makes the loop's pools try the server again at once.
func (l *Loop[K, P, C]) TryAgain() {
	for _, p := range l.PoolList {
		p.TryAgain()
	}
}

// TryAgain ends the pool's backoff after failed attempts.
func (p *Base[B, C, U, L, N]) TryAgain() {
	p.Dials.Succeeded()
	p.Wake()
}
