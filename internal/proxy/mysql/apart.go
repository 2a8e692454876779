package mysql

import (
	"strconv"
	"time"

	"github.com/weirdb/weir/internal/proxy/core"
	"github.com/weirdb/weir/internal/proxy/session"
	"github.com/weirdb/weir/internal/wire/mywire"
)

// This file runs statements apart; see apart.go of core. A write's turn ends with the lock wait
// timeouts, which weir sets to the length of the turn, and the server rolls it back; a read is
// killed.
//
// If the server can be told not to wait at all (MariaDB), weir tries writes without a slot from
// time to time in a group: those whose lock is free by now succeed, whatever the locks of those
// before them.

// alone runs statements of a pool on backends that their clients do not own.
type alone struct {
	p           *pool
	lockDefault lockWait // of a new session
}

const (
	// firstPoll is the time after which a write without a slot is tried again; it doubles up to
	// lastPoll.
	firstPoll = 10 * time.Millisecond
	lastPoll  = 320 * time.Millisecond
	// maxPoll bounds the writes that are tried at once.
	maxPoll = 64
)

// queue queues a unit to run apart, without linking its client.
func (a *alone) queue(u *unit) {
	u.c.reader = nil
	if u.Tries > 0 {
		u.pollWait = min(max(2*u.pollWait, firstPoll), lastPoll)
		u.pollAt = a.p.l.Now + u.pollWait
	}
	a.p.QueueApart(u)
}

// feed gives slots to those who wait for one.
func (a *alone) feed() {
	p := a.p
	for u, s, ok := p.Apart.Next(p.Slots()); ok; u, s, ok = p.Apart.Next(p.Slots()) {
		switch {
		case u.Left():
		case u.read && u.Tries == 0 && u.shape != nil && u.shape.Sharable() && !u.shape.Stalled(p.l.Now):
			p.sharing.send(u) // what held up reads like it is over
		default:
			p.Hold(&u.Turn, s)
			p.Enqueue(waiter{Unit: u})
		}
	}
}

// poll tries writes that wait for a slot again, in groups, if the server can do that without a
// wait.
func (a *alone) poll() {
	p := a.p
	apart := &p.Apart
	if len(apart.Patient) == 0 || !p.facts.nowait() {
		return
	}
	var again []*unit
	keep := apart.Patient[:0]
	for _, u := range apart.Patient {
		if u.read || u.Left() || p.l.Now < u.pollAt || len(again) >= maxPoll {
			keep = append(keep, u)
			continue
		}
		again = append(again, u)
	}
	clear(apart.Patient[len(keep):])
	apart.Patient = keep
	for _, u := range again {
		p.lanes.transaction(u.c.set, 0).push(u)
	}
}

// A lockWait is how long a session waits for locks.
type lockWait struct {
	rows   time.Duration // innodb_lock_wait_timeout
	tables time.Duration // lock_wait_timeout: for metadata locks of other statements
}

// lockSQL queries it.
const lockSQL = "SELECT @@innodb_lock_wait_timeout, @@lock_wait_timeout"

func (a *alone) learnLocks(u *unit) {
	if rows := u.result(a.p.key.caps); len(rows) == 1 && len(rows[0]) == 2 {
		seconds := func(v []byte) time.Duration { return time.Duration(parseUint(v)) * time.Second }
		a.lockDefault = lockWait{rows: seconds(rows[0][0]), tables: seconds(rows[0][1])}
	}
}

// nowait reports whether the server accepts 0 for a lock wait timeout, which means not to wait
// at all.
func (f *poolFacts) nowait() bool { return f.mariadb && f.version >= 100300 }

// hasRoles reports whether the server has roles.
func (f *poolFacts) hasRoles() bool { return f.mariadb || f.version >= 80000 }

// lockWait returns the client's own.
func (a *alone) lockWait(set *session.Set) lockWait {
	w := a.lockDefault
	if s, ok := set.Get("innodb_lock_wait_timeout"); ok {
		w.rows = time.Duration(parseUint([]byte(s.Value))) * time.Second
	}
	if s, ok := set.Get("lock_wait_timeout"); ok {
		w.tables = time.Duration(parseUint([]byte(s.Value))) * time.Second
	}
	return w
}

// withLockWait returns the settings with other lock wait timeouts, in whole seconds.
func (a *alone) withLockWait(set *session.Set, w lockWait) *session.Set {
	for _, s := range [...]struct {
		name string
		d    time.Duration
	}{{"innodb_lock_wait_timeout", w.rows}, {"lock_wait_timeout", w.tables}} {
		set = a.p.settings.With(set, session.Setting{Name: s.name, Value: strconv.FormatInt(int64(s.d/time.Second), 10), Literal: true})
	}
	return set
}

// tellApart is the distance between the two lock wait timeouts of a turn, if weir must tell by
// the time of the error which of them has ended it.
const tellApart = 6 * time.Second

// set returns the settings for u's next turn: those of its client, and for a write a limit on
// its lock waits. The answer is held until it is complete: if the turn ends first, the client
// has seen nothing of it.
func (a *alone) set(u *unit) *session.Set {
	u.hold, u.bounded, u.owned = false, false, 0
	if u.read {
		return u.c.set
	}
	bound := max(u.Length().Round(time.Second), time.Second)
	if u.Tries == 0 && a.p.facts.nowait() {
		bound = 0
	}
	own, waited := a.lockWait(u.c.set), a.p.l.Now-u.queuedAt
	left := func(d time.Duration) (time.Duration, bool) {
		rest := max(d-waited, 0)
		if d == 0 || rest > bound {
			return bound, d == 0 // 0 means not to wait, and stays 0
		}
		return max(rest.Round(time.Second), time.Second), true
	}
	rows, ownRows := left(own.rows)
	tables, ownTables := left(own.tables)
	if own.rows == 0 {
		rows = 0
	}
	if own.tables == 0 {
		tables = 0
	}
	switch {
	case ownRows && ownTables:
		return a.withLockWait(u.c.set, lockWait{rows, tables})
	case ownRows:
		tables = rows + tellApart
		u.owned = rows + tellApart/2
	case ownTables:
		rows = tables + tellApart
		u.owned = tables + tellApart/2
	}
	u.bounded, u.hold = true, true
	return a.withLockWait(u.c.set, lockWait{rows, tables})
}

// run runs one whole unit on a taken backend.
func (a *alone) run(b *backend, u *unit) {
	p := a.p
	b.Mode, b.alone = core.ModeOwn, u
	c := u.c
	b.readied(a.set(u), u.st, func(b *backend, err *mywire.Error) {
		b.alone = nil
		switch {
		case u.c != c || u.dead || c.s.Closed:
			p.FreeSlot(&u.Turn)
		case err != nil && b.s.Closed && !p.l.Draining() && u.losses.Again(p.l.Now, b.Born):
			p.Enqueue(waiter{Unit: u}) // nothing was sent yet
		case err != nil && b.s.Closed:
			p.FreeSlot(&u.Turn)
			c.lost(u, errLostUnsent())
		case err != nil && u.turnOver(err.Code, p.l.Now-b.Answered):
			p.FreeSlot(&u.Turn)
			u.again()
			a.queue(u)
		case err != nil:
			p.FreeSlot(&u.Turn)
			c.lost(u, err)
		default:
			b.lastUser = nil
			b.saveID(nil)
			b.send(u)
			return
		}
		p.release(b)
	})
}

// turnOver reports whether an ERR is the end of a turn, due to weir's limit and not the
// client's, so that the unit runs again.
func (u *unit) turnOver(code uint16, took time.Duration) bool {
	switch {
	case code == mywire.ErrLockWaitTimeout && u.bounded && took >= u.owned:
	case code == mywire.ErrQueryInterrupted && u.preempted:
	default:
		return false
	}
	u.Over()
	return true
}
