package outbox

import (
	"context"
	"math/rand/v2"
	"sync"
	"time"
)

// sleep waits for d or until ctx ends.
func sleep(ctx context.Context, d time.Duration) {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
	case <-ctx.Done():
	}
}

// tailPacer decides how long a tail waits before it reads on. Each read has a fixed cost, most
// of it the check whether its rows are visible, and a relay is faster than its producers: read
// at once, each message would cost a read, on CPUs and connections that the producers need.
// While two or more messages arrive per pause, the tail lets them gather; rare messages are read
// at once.
type tailPacer struct {
	pause        time.Duration
	window       time.Time // start of the current window
	rows, before int       // of this window and the one before
}

const (
	pacerWindow = 100 * time.Millisecond
	pacerRows   = 256 // so many rows in one read need no pause
)

// next records a read and returns the pause before the next one.
func (r *tailPacer) next(now time.Time, rows int) time.Duration {
	switch age := now.Sub(r.window); {
	case age >= 2*pacerWindow:
		r.window, r.before, r.rows = now, 0, 0
	case age >= pacerWindow:
		r.window, r.before, r.rows = r.window.Add(pacerWindow), r.rows, 0
	}
	r.rows += rows
	if rows >= pacerRows || time.Duration(r.before)*r.pause < 2*pacerWindow {
		return 0
	}
	return r.pause
}

// backoff doubles a wait each time, up to a bound, less a random part of up to
// half.
type backoff struct {
	least, most, next time.Duration
}

func (b *backoff) reset() { b.next = 0 }

func (b *backoff) take() time.Duration {
	if b.next == 0 {
		b.next = b.least
	}
	d := b.next
	b.next = min(2*d, b.most)
	return d - rand.N(d/2+1)
}

func (b *backoff) sleep(ctx context.Context) { sleep(ctx, b.take()) }

// bell wakes all listeners, without ever blocking the caller of ring.
type bell struct {
	mu        sync.Mutex
	listeners map[chan struct{}]struct{}
}

// listen returns a channel that receives after a ring; rings that were not
// received yet are one.
func (b *bell) listen() (rings <-chan struct{}, leave func()) {
	c := make(chan struct{}, 1)
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.listeners == nil {
		b.listeners = map[chan struct{}]struct{}{}
	}
	b.listeners[c] = struct{}{}
	return c, func() {
		b.mu.Lock()
		defer b.mu.Unlock()
		delete(b.listeners, c)
	}
}

func (b *bell) ring() {
	b.mu.Lock()
	defer b.mu.Unlock()
	for c := range b.listeners {
		ring(c)
	}
}

// ring leaves a token in c unless one is there.
func ring(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}

// gate lets all callers pass while it is open.
type gate struct {
	mu     sync.Mutex
	closed chan struct{} // closed when the gate opens; nil while open
}

func (g *gate) shut() {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.closed == nil {
		g.closed = make(chan struct{})
	}
}

func (g *gate) open() {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.closed != nil {
		close(g.closed)
		g.closed = nil
	}
}

// wait returns when the gate is open, or ctx's error.
func (g *gate) wait(ctx context.Context) error {
	g.mu.Lock()
	opened := g.closed
	g.mu.Unlock()
	if opened != nil {
		select {
		case <-opened:
		case <-ctx.Done():
		}
	}
	return ctx.Err()
}

// limiter is a token bucket: rate messages per second, a burst of some.
type limiter struct {
	rate, burst float64

	mu     sync.Mutex
	tokens float64
	at     time.Time
}

// newLimiter returns nil, which limits nothing, for rate 0.
func newLimiter(rate float64, burst int) *limiter {
	if rate <= 0 {
		return nil
	}
	b := min(float64(burst), max(1, rate/10))
	return &limiter{rate: rate, burst: b, tokens: b, at: time.Now()}
}

// most is how many messages one call to wait may ask for.
func (l *limiter) most(n int) int {
	if l == nil {
		return n
	}
	return max(1, min(n, int(l.burst)))
}

// wait takes n tokens, going into debt, and waits until the debt is paid.
func (l *limiter) wait(ctx context.Context, n int) error {
	if l == nil {
		return nil
	}
	l.mu.Lock()
	now := time.Now()
	l.tokens = min(l.burst, l.tokens+now.Sub(l.at).Seconds()*l.rate) - float64(n)
	l.at = now
	debt := -l.tokens
	l.mu.Unlock()
	if debt > 0 {
		sleep(ctx, time.Duration(debt/l.rate*float64(time.Second)))
	}
	return ctx.Err()
}
