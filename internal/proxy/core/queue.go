package core

import (
	"slices"
	"time"

	"github.com/weirdb/weir/internal/proxy/session"
)

// A Waiter waits for a free backend: exactly one of its first four fields is set.
type Waiter[B, C, U, L any] struct {
	Client C
	Unit   U
	Lane   L
	Ask    func(b B)
	Any    bool // of Ask: a backend with any settings will do
	Since  time.Duration
}

// Waiters wait for a backend, in order of arrival.
type Waiters[B, C, U, L any] []Waiter[B, C, U, L]

// asks counts weir's own queries.
func (ws Waiters[B, C, U, L]) asks() (n int) {
	for i := range ws {
		if ws[i].Ask != nil {
			n++
		}
	}
	return n
}

// Crowded reports whether the limit of waiting statements is reached, by these and so many
// others. weir's own queries do not count.
func (ws Waiters[B, C, U, L]) Crowded(l *session.Limits, others int) bool {
	waiting := len(ws) + others
	return l.Crowded(waiting) && l.Crowded(waiting-ws.asks())
}

// Long reports whether a client's statement, whose client has not left, waits for a backend
// longer than a busy one takes to become free. weir's own queries can wait.
func (ws Waiters[B, C, U, L]) Long(now time.Duration, left func(w *Waiter[B, C, U, L]) bool) bool {
	for i := range ws {
		if w := &ws[i]; w.Ask == nil && !left(w) && now-w.Since > longWait {
			return true
		}
	}
	return false
}

// Pass begins a pass through the waiters.
func (ws *Waiters[B, C, U, L]) Pass() Pass[B, C, U, L] { return Pass[B, C, U, L]{ws: ws} }

// A Pass goes through the waiters once, including those that arrive meanwhile. Each waiter
// that Next returns is removed, unless Keep follows. A Pass does not allocate; End must be
// called.
//
//	[ wait on | dropped | not looked at ]
//	          kept      at
type Pass[B, C, U, L any] struct {
	ws       *Waiters[B, C, U, L]
	kept, at int
}

// Next returns the next waiter; ok is false after the last one.
func (t *Pass[B, C, U, L]) Next() (w Waiter[B, C, U, L], ok bool) {
	if t.at >= len(*t.ws) {
		return w, false
	}
	w = (*t.ws)[t.at]
	t.at++
	return w, true
}

// Keep leaves the waiter that Next returned in the queue.
func (t *Pass[B, C, U, L]) Keep() {
	(*t.ws)[t.kept] = (*t.ws)[t.at-1]
	t.kept++
}

// Back undoes Next: that waiter, and all after it, remain in the queue.
func (t *Pass[B, C, U, L]) Back() { t.at-- }

// End removes those that were not kept.
func (t *Pass[B, C, U, L]) End() {
	if t.kept < t.at {
		*t.ws = slices.Delete(*t.ws, t.kept, t.at)
	}
}

// A List is units in order.
type List[U any] []U

// Drop removes the units for which drop is true. It may be called, and units may be
// appended, while drop runs.
func (l *List[U]) Drop(drop func(u U) bool) {
	old := *l
	*l = nil
	for _, u := range old {
		if !drop(u) {
			*l = append(*l, u)
		}
	}
}

// Shift removes the first unit and returns it.
func (l *List[U]) Shift() U {
	u := (*l)[0]
	*l = slices.Delete(*l, 0, 1)
	return u
}

// Skip removes the first n units.
func (l *List[U]) Skip(n int) {
	if n > 0 {
		*l = slices.Delete(*l, 0, n)
	}
}

// Enqueue adds a waiter for a backend. It waits from now on, unless its Since is earlier.
func (p *Base[B, C, U, L, N]) Enqueue(w Waiter[B, C, U, L]) {
	if w.Since == 0 {
		w.Since = p.loop.Now
	}
	p.Excl = append(p.Excl, w)
	p.Stats.Waits++
	p.Watch()
	p.Wake()
}

// Forget handles a waiter that has left: the slot of its unit becomes free.
func (p *Base[B, C, U, L, N]) Forget(w *Waiter[B, C, U, L]) {
	var none U
	if w.Unit != none {
		p.FreeSlot(w.Unit.AsTurn())
	}
}

// Expire refuses everything that has waited for at least that long, except weir's own
// queries: it calls refuse for waiters for a backend, and lose for units that wait for a
// slot or a pipeline.
func (p *Base[B, C, U, L, N]) Expire(least time.Duration, refuse func(w Waiter[B, C, U, L]), lose func(u U)) {
	now := p.loop.Now
	old := p.Excl
	p.Excl = nil
	for _, w := range old {
		switch {
		case p.side.Left(&w):
			p.Forget(&w)
		case now-w.Since < least || w.Ask != nil:
			p.Excl = append(p.Excl, w)
		default:
			p.Stats.Timeouts++
			refuse(w)
		}
	}
	expire := func(u U, since time.Duration) bool {
		switch {
		case u.Left():
		case now-since < least:
			return false
		default:
			p.Stats.Timeouts++
			lose(u)
		}
		return true
	}
	p.Apart.Drop(func(u U) bool {
		return (u.Left() || p.side.Expires(u)) && expire(u, u.AsTurn().ApartAt)
	})
	p.Reads.Drop(func(u U) bool { return expire(u, u.Queued()) })
}

// Waits returns the first waiting unit for which is returns true; ok is false if there is
// none.
func (p *Base[B, C, U, L, N]) Waits(is func(u U) bool) (u U, ok bool) {
	for _, list := range []List[U]{p.Apart.Fresh, p.Apart.Patient, p.Reads} {
		for _, u := range list {
			if is(u) {
				return u, true
			}
		}
	}
	var none U
	for i := range p.Excl {
		if u := p.Excl[i].Unit; u != none && is(u) {
			return u, true
		}
	}
	return none, false
}

// MaxOvertake is how long reads may keep a pipeline busy while a client waits for
// a backend of its own: some round trips, so that short waits cost nothing.
const MaxOvertake = 5 * time.Millisecond

// longWait is longer than a busy backend usually takes to become free.
const longWait = 20 * MaxOvertake

// Starving reports whether a client that needs a backend alone has waited too long
// while none becomes free by itself.
func (p *Base[B, C, U, L, N]) Starving() bool {
	return len(p.Excl) > 0 && p.conns.Spent(true) && (len(p.Backends) >= p.Size || p.conns.denied) && p.loop.Now-p.Excl[0].Since > MaxOvertake
}

// ReadsFirst reports whether queued reads go before the waiters for a backend of their own.
// While there is no pipeline, there might otherwise always be such a waiter.
func (p *Base[B, C, U, L, N]) ReadsFirst() bool {
	return len(p.Reads) > 0 && len(p.Excl) > 0 && p.Shared.Len() == 0 && p.Reads[0].Queued() <= p.Excl[0].Since
}

// MayShareMore reports whether one more backend may become a pipeline. readLanes is the
// maximum; if there are several backends, one is left for waiters that need one alone.
func (p *Base[B, C, U, L, N]) MayShareMore(readLanes int) bool {
	if len(p.Excl) > 0 && readLanes > 1 {
		readLanes--
	}
	return p.Shared.Len() < readLanes && (len(p.Excl) == 0 || p.Shared.Len() == 0)
}

// MaxPipeline bounds the reads in flight on one backend: enough to fill a
// write and a read of the socket, few enough that the last one waits about as
// long as the network takes anyway.
const MaxPipeline = 64

// deepest and deepTime bound what is sent to one pipeline before the next one is used, on
// machines with few processors: a number of reads, and the time that they take the server.
const (
	deepest  = MaxPipeline / 2
	deepTime = 500 * time.Microsecond
)

// Deep is how many reads of this cost may go to one pipeline before the next one is used,
// on machines with few processors.
func Deep(cost time.Duration) int {
	if cost <= deepTime/deepest {
		return deepest
	}
	return int(deepTime / cost)
}

// Pipelines are the backends that are shared by reads of several clients. Conns are those
// of Backends, for code that visits all of them in every turn.
type Pipelines[B Backend[U], U any] struct {
	Backends []B
	conns    []*Conn[U]
}

// Len is the number of pipelines.
func (l *Pipelines[B, U]) Len() int { return len(l.Backends) }

// Add makes a backend a pipeline. c is the backend's Conn.
func (l *Pipelines[B, U]) Add(b B, c *Conn[U]) {
	c.Mode = ModeShared
	l.Backends, l.conns = append(l.Backends, b), append(l.conns, c)
}

// Remove removes a backend, if it is a pipeline.
func (l *Pipelines[B, U]) Remove(b B) {
	if i := slices.Index(l.Backends, b); i >= 0 {
		l.Backends, l.conns = slices.Delete(l.Backends, i, i+1), slices.Delete(l.conns, i, i+1)
	}
}
