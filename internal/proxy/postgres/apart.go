package postgres

import (
	"strconv"
	"strings"
	"time"

	"github.com/weirdb/weir/internal/proxy/session"
	"github.com/weirdb/weir/internal/wire/pgwire"
)

// This file is how statements run apart; see apart.go of core. A write's turn ends
// with lock_timeout, which weir sets to the length of the turn, and was rolled back; a
// read is cancelled.

// feedApart gives slots to what waits for one.
func (p *pool) feedApart() {
	for u, s, ok := p.Apart.Next(p.Slots()); ok; u, s, ok = p.Apart.Next(p.Slots()) {
		switch {
		case u.Left():
		case u.read && u.shape != nil && u.shape.Sharable() && !u.shape.Stalled(p.l.Now):
			p.queueRead(u) // what held up those like it is over
		default:
			p.Hold(&u.Turn, s)
			p.Enqueue(waiter{Unit: u})
		}
	}
}

// queueApart has a unit run alone, without linking its client.
func (p *pool) queueApart(u *unit) {
	u.c.reader = nil
	p.QueueApart(u)
}

// lockBound is how long a write may wait for a lock in its present turn, and
// whether that bound is weir's: if it is the client's own, or what is left of
// that, the error that ends the wait is the client's, too.
func (p *pool) lockBound(set *session.Set, turn, waited time.Duration) (bound time.Duration, ours bool) {
	own, ok := p.lockTimeout(set)
	if !ok {
		return 0, false
	}
	if own > 0 && own-waited <= turn {
		return max(own-waited, time.Millisecond), false
	}
	return turn, true
}

// lockTimeout is lock_timeout in the given settings, 0 if there is none; ok is
// false where weir cannot tell.
func (p *pool) lockTimeout(set *session.Set) (d time.Duration, ok bool) {
	own, has := set.Get("lock_timeout")
	if !has {
		return p.lockDefault, true
	}
	return readTimeout(own.Value)
}

// readTimeout reads a setting in milliseconds as SET and startup packets spell it.
func readTimeout(value string) (time.Duration, bool) {
	v := strings.TrimSpace(value)
	if len(v) >= 2 && v[0] == '\'' && v[len(v)-1] == '\'' {
		v = strings.TrimSpace(v[1 : len(v)-1])
	}
	unit := time.Millisecond
	for _, u := range []struct {
		name string
		d    time.Duration
	}{{"ms", time.Millisecond}, {"us", time.Microsecond}, {"min", time.Minute}, {"s", time.Second}, {"h", time.Hour}, {"d", 24 * time.Hour}} {
		if strings.HasSuffix(v, u.name) {
			v, unit = strings.TrimSpace(strings.TrimSuffix(v, u.name)), u.d
			break
		}
	}
	n, err := strconv.Atoi(v)
	if err != nil || n < 0 {
		return 0, false
	}
	return time.Duration(n) * unit, true
}

// withLockTimeout is the settings with another lock_timeout.
func (p *pool) withLockTimeout(set *session.Set, d time.Duration) *session.Set {
	return p.settings.With(set, session.Setting{Name: "lock_timeout", Value: strconv.FormatInt(max(1, d.Milliseconds()), 10) + "ms", Literal: true})
}

// apartSet is the settings for u's next turn. A grouped write's answer is held
// until it is whole: if the turn ends first, the client has seen nothing of it.
func (p *pool) apartSet(u *unit) *session.Set {
	u.bound, u.hold = 0, false
	if u.read {
		return u.c.set
	}
	d, ours := p.lockBound(u.c.set, u.Length(), u.waited)
	if !ours {
		if d > 0 && u.waited > 0 {
			return p.withLockTimeout(u.c.set, d)
		}
		return u.c.set
	}
	u.bound, u.hold = d, true
	return p.withLockTimeout(u.c.set, d)
}

// turnOver reports whether an error is the end of a turn, set by weir and not by
// the client, and then whether the unit is to run again.
func (u *unit) turnOver(e *pgwire.Error) (again, over bool) {
	switch {
	case e.Code == pgwire.CodeLockNotAvailable && u.bound > 0:
		u.waited += u.bound
	case e.Code == pgwire.CodeQueryCanceled && u.preempted && u.c.cancelled != u:
	case e.Code == pgwire.CodeQueryCanceled && u.bound > 0 && u.c.cancelled != u && u.retries < 3 &&
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
