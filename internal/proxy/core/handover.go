package core

import (
	"context"
	"fmt"
	"sync/atomic"

	"github.com/weirdb/weir/internal/proxy/handover"
	"github.com/weirdb/weir/internal/proxy/netloop"
)

// This file hands clients over to the process that replaces this one, and takes in those
// of the process that this one replaces.

// Giving is the function that takes the loop's clients that can be handed over; nil: they stay.
func (l *Loop[K, P, C]) Giving() func(*handover.Parcel) { return l.giving }

// Give implements EventLoop.
func (l *Loop[K, P, C]) Give(give func(*handover.Parcel)) {
	l.giving = give
	l.move()
}

// move hands over the clients that can be.
func (l *Loop[K, P, C]) move() {
	if l.giving == nil || l.Move == nil || l.Draining() {
		return
	}
	for _, c := range l.Clients {
		l.Move(c) // which removes it from l.Clients, if it can be handed over
	}
}

// A Handover hands a server's clients over to another process, and takes in those of one. A
// side's handover.Side embeds it. Safe for concurrent use.
type Handover[L EventLoop] struct {
	s *Server[L]

	taken, takenNot atomic.Uint64                // clients that another process has handed over
	before          atomic.Pointer[handover.Ask] // asks the process before this one about clients that it has kept
}

// Listener implements handover.Side.
func (h *Handover[L]) Listener() *netloop.Pausable {
	ln, _ := h.s.Sockets[0].Listener.(*netloop.Pausable)
	return ln
}

// Give implements handover.Side.
func (h *Handover[L]) Give(ctx context.Context, give func(*handover.Parcel)) error {
	return h.s.onLoops(ctx, func(l L) {
		l.Suspend(give == nil && h.s.Control.gates.suspended()) // for the process that takes over everything is paused
		l.Give(give)
	})
}

// Left implements handover.Side. Consoles do not count: they end with the process.
func (h *Handover[L]) Left() int {
	consoles := h.s.Consoles.Load()
	return int(max(0, h.s.Sessions.Load()-consoles, h.s.Arriving.Load()-consoles))
}

// TakeIn returns why no client of another process can be taken in for a database and user,
// or nil; then the client is counted. A database that refuses logins (DISABLE) still takes
// existing sessions.
func (h *Handover[L]) TakeIn(database, user string) error {
	o := h.s.side.Options()
	if h.s.Stopping() {
		return netloop.ErrStopped
	}
	if h.s.Sessions.Add(1) > int64(o.MaxClients) {
		h.s.Sessions.Add(-1)
		return fmt.Errorf("too many clients already (--max-clients is %d)", o.MaxClients)
	}
	if err := h.s.SessionCounts.Enter(o, database, user); err != nil {
		h.s.Sessions.Add(-1)
		return err
	}
	return nil
}

// PutOut undoes TakeIn.
func (h *Handover[L]) PutOut(database, user string) {
	h.s.SessionCounts.Leave(database, user)
	h.s.Sessions.Add(-1)
}

// AskBefore implements handover.Side.
func (h *Handover[L]) AskBefore(ask handover.Ask) {
	if ask == nil {
		h.before.Store(nil)
		return
	}
	h.before.Store(&ask)
}

// Before asks the process that this one replaces about a client that is not here;
// ok is false if there is no such process, or it has not answered.
func (h *Handover[L]) Before(ctx context.Context, question []byte) (answer []byte, ok bool) {
	ask := h.before.Load()
	if ask == nil {
		return nil, false
	}
	return (*ask)(ctx, question)
}

// HasBefore reports whether there is a process to ask.
func (h *Handover[L]) HasBefore() bool { return h.before.Load() != nil }

// HandedOver counts a client that came from another process.
func (h *Handover[L]) HandedOver(taken bool) {
	if taken {
		h.taken.Add(1)
	} else {
		h.takenNot.Add(1)
	}
}

// Gates are the states of databases, as one process hands them to the next.
type Gates struct {
	All       bool // everything is paused
	Databases map[string]Gate
}

// Gates returns the states of databases that are not open.
func (h *Handover[L]) Gates() Gates {
	states, all := h.s.Control.gates.list()
	return Gates{all, states}
}

// SetGates sets the states of databases, before the server serves.
func (h *Handover[L]) SetGates(g Gates) {
	if g.All {
		h.s.Control.gates.setAll(true)
	}
	for name, state := range g.Databases {
		h.s.Control.gates.set(name, func(now *Gate) { *now = state })
	}
}
