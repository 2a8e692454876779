package mysql

import (
	"slices"
	"time"

	"github.com/weirdb/weir/internal/proxy/sqlscan"
	"github.com/weirdb/weir/internal/wire/mywire"
)

// A factsWait is a write that asks for a group, and waits until weir knows again whether it may
// join one: the catalogue is out of date, or the facts about its table are. If it ran alone
// instead, each of several such writes to one locked row would hold a connection until its own
// lock timeout ends; in a lane one waits for all.
//
// A write waits at most once for the catalogue, and then for its table. Otherwise DDL that comes
// faster than weir asks would have it wait again and again.
type factsWait struct {
	c     *client
	p     *pool
	q     *factsQueue
	since time.Duration
}

// A factsQueue is the writes that wait for one answer of the server.
type factsQueue struct {
	waiting []*factsWait
	slow    bool // the last answer took longer than a write waits, or still does: none waits for the next
}

// factsPatience bounds the wait, and so does half of --queue-timeout. Then the write runs alone.
const factsPatience = time.Second

// notReady handles a write whose effects are not known completely: if it asks for a group, it
// waits for the catalogue. It returns 0, as needBackend does.
func (rt *router) notReady(to route, h *sqlscan.Hints) int {
	c := rt.c
	if to == routeWrite && c.inflight == 0 && rt.again == nil && !c.p.catalogue.ready() {
		if _, ok := rt.batchWindow(h); ok {
			return rt.awaitFacts(&c.p.catalogue.writes)
		}
	}
	return rt.needBackend()
}

// awaitFacts has the write that the client's buffer begins with wait until more is known. It
// returns 0: the write is looked at again then.
func (rt *router) awaitFacts(q *factsQueue) int {
	c := rt.c
	w := &factsWait{c: c, p: c.p, q: q, since: rt.arrived()}
	c.p.catalogue.refresh(c.p)
	if q.slow || w.until() <= c.l.Now {
		return rt.needBackend()
	}
	rt.facts = w
	c.state.enter(stateWaiting)
	c.queuedAt = w.since
	q.waiting = append(q.waiting, w)
	c.l.Agenda.At(w)
	return 0
}

// stopAwaiting takes the client's write out of the queue that it waits in, if it waits for facts.
func (rt *router) stopAwaiting() {
	w := rt.facts
	if w == nil {
		return
	}
	rt.facts = nil
	if i := slices.Index(w.q.waiting, w); i >= 0 {
		w.q.waiting = slices.Delete(w.q.waiting, i, i+1)
	}
}

// arrived returns when the command that the router looks at was first looked at.
func (rt *router) arrived() time.Duration {
	if rt.again != nil {
		return rt.again.since
	}
	return rt.c.l.Now
}

// until returns when the write stops waiting.
func (w *factsWait) until() time.Duration {
	patience := w.p.l.patience
	if limit := w.p.Limits.QueueTimeout; limit > 0 {
		patience = min(patience, limit/2) // the rest is for its own connection
	}
	return w.since + patience
}

// Deadline implements netloop.Timed.
func (w *factsWait) Deadline() (time.Duration, bool) { return w.until(), w.c.router.facts == w }

// Due implements netloop.Timed.
func (w *factsWait) Due() {
	if w.c.router.facts == w {
		w.q.slow = true
		w.end(false)
	}
}

// end ends the wait: if more is known, the write is looked at again; otherwise it runs alone.
func (w *factsWait) end(known bool) {
	c := w.c
	rt := &c.router
	if rt.facts != w { // a KILL has ended it, or the client has left
		return
	}
	rt.stopAwaiting()
	c.state.leave(stateWaiting)
	rt.again = w
	if known {
		c.s.Consume()
	} else {
		rt.needBackend()
	}
	rt.again = nil
}

// tell ends the waits after an answer, for which the server was asked at a time: known says
// whether more is known by it.
func (q *factsQueue) tell(l *loop, asked time.Duration, known bool) {
	q.slow = l.Now-asked > l.patience
	for _, w := range q.waiting {
		l.Post(func() { w.end(known) }) // after the current answer is processed
	}
	q.waiting = nil
}

// refresh makes the catalogue ready, on the next free backend of p, unless that is being done.
func (k *accountCatalogue) refresh(p *pool) {
	if k.ready() || k.loading > 0 || k.polling || p.refreshing {
		return
	}
	p.refreshing = true
	p.Enqueue(waiter{Ask: func(b *backend) {
		b.readied(p.settings.Empty(), nil, func(b *backend, err *mywire.Error) {
			p.refreshing = false
			if err == nil && !k.ready() && k.loading == 0 && !k.polling {
				k.look(b)
				return
			}
			p.release(b)
			if err != nil {
				k.writes.tell(k.l, k.l.Now, false)
			}
		})
	}})
}
