package postgres

import (
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/weirdb/weir/internal/proxy/core"
	"github.com/weirdb/weir/internal/proxy/session"
	"github.com/weirdb/weir/internal/wire/pgwire"
)

// This file runs statements apart; see apart.go of core. A write's turn ends
// with lock_timeout, which weir sets to the length of the turn, and it is rolled back; a
// read is cancelled.

// alone runs statements of a pool on backends that their clients do not own.
type alone struct{ p *pool }

// feed gives slots to waiting statements.
func (a *alone) feed() {
	p := a.p
	for u, s, ok := p.Apart.Next(p.Slots()); ok; u, s, ok = p.Apart.Next(p.Slots()) {
		switch {
		case u.Left():
		case u.read && u.shape != nil && u.shape.Sharable() && !u.shape.Stalled(p.l.Now):
			p.sharing.queue(u) // reads like it are no longer held up
		default:
			p.Hold(&u.Turn, s)
			p.Enqueue(waiter{Unit: u})
		}
	}
}

// queue queues a unit to run alone, without linking its client.
func (a *alone) queue(u *unit) {
	p := a.p
	u.c.reader = nil
	p.QueueApart(u)
}

// withLockTimeout returns the settings with another lock_timeout.
func withLockTimeout(t *session.Table, set *session.Set, d time.Duration) *session.Set {
	return t.With(set, session.Setting{Name: "lock_timeout", Value: strconv.FormatInt(max(1, d.Milliseconds()), 10) + "ms", Literal: true})
}

// set is the settings for u's next turn. A grouped write's answer is held
// until it is complete: if the turn ends first, the client has seen nothing of it.
func (a *alone) set(u *unit) *session.Set {
	p := a.p
	u.bound, u.hold = 0, false
	if u.read {
		return u.c.set
	}
	d, ours := p.facts.lockBound(u.c.set, u.Length(), u.waited)
	if !ours {
		if d > 0 && u.waited > 0 {
			return withLockTimeout(p.settings, u.c.set, d)
		}
		return u.c.set
	}
	u.bound, u.hold = d, true
	return withLockTimeout(p.settings, u.c.set, d)
}

// run runs one whole unit on a taken backend.
func (a *alone) run(b *backend, u *unit) {
	p := a.p
	b.Mode = core.ModeOwn
	c, set, app := u.c, a.set(u), b.app
	if u.read {
		app = b.appFor(c.app)
	}
	p.Watch()
	if b.in(set, app) {
		a.send(b, u)
		return
	}
	b.prepare(set, app, func(err *pgwire.Error) {
		left := u.c != c || u.dead || c.s.Closed
		if err != nil && !left && b.died(err) && u.retries < core.MostLost && !p.l.Draining() {
			if b.Born > u.queuedAt {
				u.retries++
			}
			p.release(b)
			p.Enqueue(waiter{Unit: u}) // nothing was sent yet
			return
		}
		if err != nil || left {
			p.FreeSlot(&u.Turn)
		}
		switch {
		case err != nil:
			p.release(b)
			if !left {
				c.lost(u, refused(err))
			}
		case left:
			p.release(b)
		default:
			a.send(b, u)
		}
	})
}

// send sends a unit on a backend in its settings.
func (a *alone) send(b *backend, u *unit) {
	p := a.p
	if b.bytewise {
		b.Retired = b.Retired || p.catalogue.outgrew(u)
		b.send(u)
		return
	}
	p.FreeSlot(&u.Turn)
	p.release(b)
	u.c.lost(u, misread())
}

// lockTimedOut reports whether an error is the lock_timeout that weir has set for the unit.
// NOWAIT, which refuses to wait at all, has the same code and another routine.
func (u *unit) lockTimedOut(e *pgwire.Error) bool {
	return e.Code == pgwire.CodeLockNotAvailable && u.bound > 0 && ofTimeout(e)
}

// ofTimeout reports whether an error for a lock ended a wait.
func ofTimeout(e *pgwire.Error) bool { return e.Routine == "" || e.Routine == "ProcessInterrupts" }

// errLockBehindRows is for a grouped write that has met a lock after a part of its rows was
// passed on.
func errLockBehindRows() *pgwire.Error {
	e := pgwire.NewError(pgwire.CodeLockNotAvailable, "canceling statement due to lock timeout (of weir, which waits for no lock within a group)")
	e.Detail = fmt.Sprintf("More than %d MB of its rows had been sent: weir cannot run it again, alone. Nothing of it has taken effect.", maxHeld>>20)
	e.Hint = "Write such statements with the hint batch:off."
	return e
}

// turnOver reports whether an error is the end of a turn, set by weir and not by
// the client, and whether the unit must run again.
func (u *unit) turnOver(e *pgwire.Error) (again, over bool) {
	switch {
	case u.lockTimedOut(e):
		u.waited += u.bound
	case e.Code == pgwire.CodeQueryCanceled && u.preempted && u.c.responder.cancelled != u:
	case e.Code == pgwire.CodeQueryCanceled && u.bound > 0 && u.c.responder.cancelled != u && u.retries < 3 &&
		!strings.Contains(e.Message, "statement timeout"):
		// A lock_timeout that fires when the lock is granted, and is noticed in the
		// next wait, is reported as a cancel request.
		u.retries++
	default:
		return false, false
	}
	u.Over()
	return true, true
}
