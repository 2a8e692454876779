package archive

import (
	"context"
	"sync"
	"time"
)

// rateBurst is how far the bytes may run ahead of the clock: long enough that timers, which are
// late by a millisecond, do not lower the rate.
const rateBurst = 50 * time.Millisecond

// A limiter limits the bytes per second of all writers that share it. Its state is one number:
// the time at which the bytes let through so far are due at that rate.
type limiter struct {
	perSecond int64 // 0: no limit

	mu   sync.Mutex
	paid time.Time
}

// reserve takes n bytes at the time now and returns how long to wait first.
func (l *limiter) reserve(n int, now time.Time) time.Duration {
	if l.perSecond == 0 {
		return 0
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.paid.Before(now) {
		l.paid = now
	}
	wait := l.paid.Sub(now) - rateBurst
	l.paid = l.paid.Add(time.Duration(float64(n) / float64(l.perSecond) * float64(time.Second)))
	return max(0, wait)
}

// wait waits until n bytes may pass.
func (l *limiter) wait(ctx context.Context, n int) error {
	d := l.reserve(n, time.Now())
	if d == 0 {
		return nil
	}
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}
