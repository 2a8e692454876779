package mysql

import (
	"time"

	"github.com/weirdb/weir/internal/proxy/sqlscan"
	"github.com/weirdb/weir/internal/wire/mywire"
)

// A factsWait is a write that asks for a group, and waits until weir knows again whether it may
// join one: the catalogue is out of date, or the facts about its table are. If it ran alone
// instead, each of several such writes to one locked row would hold a connection until its own
// lock timeout ends; in a lane one waits for all.
type factsWait struct {
	c     *client
	since time.Duration
}

// factsPatience bounds the wait. Then the write runs alone.
const factsPatience = time.Second

// notReady handles a write whose effects are not known completely: if it asks for a group, it
// waits for the catalogue. It returns 0, as needBackend does.
func (rt *router) notReady(to route, h *sqlscan.Hints) int {
	c := rt.c
	if to == routeWrite && c.inflight == 0 && !c.p.catalogue.ready() {
		if _, ok := rt.batchWindow(h); ok {
			return rt.awaitFacts()
		}
	}
	return rt.needBackend()
}

// awaitFacts has the write that the client's buffer begins with wait until more is known. It
// returns 0: the write is looked at again then.
func (rt *router) awaitFacts() int {
	c := rt.c
	w := &factsWait{c: c, since: c.l.Now}
	if before := rt.again; before != nil {
		if w.since = before.since; c.l.Now-w.since >= factsPatience {
			return rt.needBackend()
		}
	}
	rt.facts = w
	c.state.enter(stateWaiting)
	c.queuedAt = w.since
	c.p.catalogue.callers = append(c.p.catalogue.callers, w)
	c.l.Agenda.At(w)
	c.p.catalogue.refresh(c.p)
	return 0
}

// waitedForFacts returns how long the write that is looked at again has waited.
func (rt *router) waitedForFacts() time.Duration {
	if rt.again == nil {
		return 0
	}
	return rt.c.l.Now - rt.again.since
}

// waits reports whether the client still waits: the wait may have ended by a KILL, or because
// the client has left.
func (w *factsWait) waits() bool {
	return w.c.router.facts == w && w.c.state == stateWaiting && !w.c.s.Closed
}

// Deadline implements netloop.Timed.
func (w *factsWait) Deadline() (time.Duration, bool) { return w.since + factsPatience, w.waits() }

// Due implements netloop.Timed.
func (w *factsWait) Due() { w.end(false) }

// end ends the wait: if more is known, the write is looked at again; otherwise it runs alone.
func (w *factsWait) end(known bool) {
	if !w.waits() {
		return
	}
	c := w.c
	c.router.facts = nil
	c.state.leave(stateWaiting)
	if !known {
		c.router.needBackend()
		c.fwd.askedAt = w.since
		return
	}
	c.router.again = w
	c.s.Consume()
	c.router.again = nil
}

// tell ends the waits of those that need more facts: known says whether there are any.
func (k *accountCatalogue) tell(known bool) {
	callers := k.callers
	k.callers = nil
	for _, w := range callers {
		k.l.Post(func() { w.end(known) }) // after the current answer is processed
	}
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
				k.tell(false)
			}
		})
	}})
}
