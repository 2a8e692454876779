package postgres

import (
	"strconv"
	"strings"
	"time"

	"github.com/weirdb/weir/internal/proxy/session"
	"github.com/weirdb/weir/internal/wire/pgwire"
)

// This file is the statements that run alone because they have held up others:
// shared reads that did not answer in time (stall.go), members of a group that
// wait for a lock (lane.go). Each runs on a backend that its client does not own.
//
// They are bounded. A statement apart holds a slot, of which a pool has a quarter
// of its size, so that a thousand clients behind one lock leave the others three
// quarters of the pool. Without a slot it waits in weir:
//
//	held up others ─► fresh ──► slot ──► answered
//	                             │
//	                   its turn is over, and others wait
//	                             ▼
//	                          patient ──► slot, for four times as long
//
// A turn is over by the server's own word: a write ends with lock_timeout, which
// weir sets to the length of the turn, and was rolled back; a read is cancelled,
// which only costs its work so far. A write is never cancelled: the request could
// hit its wait for a synchronous standby, and the server would acknowledge what
// no standby has. One slot is for fresh statements only, and their turns are
// short, so those whose lock is held for a moment do not stand behind those whose
// lock is held for an hour.

// A slot is the right to run apart.
type slot uint8

const (
	slotNone slot = iota
	slotFresh
	slotPatient
)

// apart is a pool's statements that run alone, and those that wait for that.
type apart struct {
	fresh, patient []*unit
	used           int // slots, of both kinds
	usedPatient    int
	ghosts         int           // backends that run reads whose clients were served elsewhere
	check          time.Duration // when the turns are looked at next
	watched        bool          // on the agenda
	probed         time.Duration // when the server was last asked who waits for a lock
	probing        bool
}

func (a *apart) waiting() int { return len(a.fresh) + len(a.patient) }

func (a *apart) active() bool { return a.used > 0 || a.ghosts > 0 || a.waiting() > 0 }

// slots is how many statements of the pool may run apart.
func (p *pool) slots() int { return max(1, p.size/4) }

// turn is how long a statement may run apart while others wait for a slot.
func turn(tries uint8) time.Duration {
	return min(50*time.Millisecond<<(2*min(tries, 4)), 8*time.Second)
}

// queueSolo runs one whole unit alone on a backend, without linking its client,
// when there is a slot for it.
func (p *pool) queueSolo(u *unit) {
	u.c.reader = nil
	u.apartAt = p.l.Now
	if u.tries == 0 {
		p.apart.fresh = append(p.apart.fresh, u)
	} else {
		p.apart.patient = append(p.apart.patient, u)
	}
	p.watch()
	p.wake()
}

// feedApart gives slots to what waits for one.
func (p *pool) feedApart() {
	a, n := &p.apart, p.slots()
	for len(a.fresh) > 0 && a.used < n {
		a.fresh = p.takeSlot(a.fresh, slotFresh)
	}
	for len(a.patient) > 0 && a.used < n && a.usedPatient < max(1, n-1) {
		a.patient = p.takeSlot(a.patient, slotPatient)
	}
}

// takeSlot lets the first unit of the list have a slot and returns the others.
func (p *pool) takeSlot(list []*unit, s slot) []*unit {
	u := list[0]
	n := copy(list, list[1:])
	list[n] = nil
	list = list[:n]
	switch {
	case u.c == nil || u.c.s.Closed || u.dead:
	case u.read && u.shape != nil && u.shape.Sharable() && !u.shape.Stalled(p.l.Now):
		p.queueRead(u) // what held up those like it is over
	default:
		p.hold(u, s)
		p.enqueue(waiter{u: u})
	}
	return list
}

// hold has u occupy a slot, freeSlot ends that.
func (p *pool) hold(u *unit, s slot) {
	u.slot = s
	p.apart.used++
	if s == slotPatient {
		p.apart.usedPatient++
	}
	p.watch()
}

func (p *pool) freeSlot(u *unit) {
	if u.slot == slotNone {
		return
	}
	p.apart.used--
	if u.slot == slotPatient {
		p.apart.usedPatient--
	}
	u.slot = slotNone
	if p.apart.waiting() > 0 {
		p.wake()
	}
}

// dropApart removes those of the statements that wait for a slot for which drop
// is true.
func (p *pool) dropApart(drop func(u *unit) bool) {
	for _, list := range []*[]*unit{&p.apart.fresh, &p.apart.patient} {
		old := *list
		*list = nil
		for _, u := range old {
			if !drop(u) {
				*list = append(*list, u)
			}
		}
	}
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
	d, ours := p.lockBound(u.c.set, turn(u.tries), u.waited)
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
	u.tries += min(1, 100-u.tries)
	return true, true
}
