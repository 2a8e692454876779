package mysql

import (
	"slices"
	"strconv"
	"time"

	"github.com/weirdb/weir/internal/proxy/session"
	"github.com/weirdb/weir/internal/wire/mywire"
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
//	                          patient ──► slot, for longer
//
// A turn is over by the server's own word: a write ends with the lock wait
// timeouts that weir sets to the length of the turn, and was taken back; a read is
// killed, which only costs its work so far. A write is never killed: the KILL could
// hit its wait for a replica, and the server would acknowledge what no replica has.
// One slot is for fresh statements only, and their turns are short, so those whose
// lock is held for a moment do not stand behind those whose lock is held for an
// hour.
//
// Where the server can be asked not to wait at all (MariaDB), writes without a slot
// are tried from time to time in a group: those whose lock is free by now go
// through, whatever the locks of those before them.

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
	probing        bool          // the server is asked who waits for a lock
	probeAt        time.Duration // when it may be asked again
	probeWait      time.Duration
}

func (a *apart) waiting() int { return len(a.fresh) + len(a.patient) }

func (a *apart) active() bool { return a.used > 0 || a.ghosts > 0 || a.waiting() > 0 }

// slots is how many statements of the pool may run apart.
func (p *pool) slots() int { return max(1, p.size/4) }

// turn is how long a statement may run apart while others wait for a slot.
func turn(tries uint8) time.Duration {
	return min(50*time.Millisecond<<(2*min(tries, 4)), 8*time.Second)
}

const (
	// firstPoll is the time after which a write without a slot is tried again, and
	// lastPoll what that grows to, by doubling.
	firstPoll = 10 * time.Millisecond
	lastPoll  = 320 * time.Millisecond
	// maxPoll bounds the writes that are tried at once.
	maxPoll = 64
)

// queueSolo runs one whole unit alone on a backend, without linking its client,
// when there is a slot for it.
func (p *pool) queueSolo(u *unit) {
	u.c.reader = nil
	u.apartAt = p.l.Now
	a := &p.apart
	if u.tries == 0 {
		a.fresh = append(a.fresh, u)
	} else {
		a.patient = append(a.patient, u)
		u.pollWait = min(max(2*u.pollWait, firstPoll), lastPoll)
		u.pollAt = p.l.Now + u.pollWait
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
	list = slices.Delete(list, 0, 1)
	switch {
	case u.c == nil || u.c.s.Closed || u.dead:
	case u.read && u.tries == 0 && u.shape != nil && u.shape.Sharable() && !u.shape.Stalled(p.l.Now):
		p.queueRead(u) // what held up those like it is over
	default:
		p.hold(u, s)
		p.enqueue(waiter{u: u})
	}
	return list
}

// poll tries writes that wait for a slot again, in groups, where that costs no
// wait.
func (p *pool) poll() {
	a := &p.apart
	if len(a.patient) == 0 || !p.facts.nowait() {
		return
	}
	var again []*unit
	keep := a.patient[:0]
	for _, u := range a.patient {
		if u.read || u.dead || u.c == nil || u.c.s.Closed || p.l.Now < u.pollAt || len(again) >= maxPoll {
			keep = append(keep, u)
			continue
		}
		again = append(again, u)
	}
	clear(a.patient[len(keep):])
	a.patient = keep
	for _, u := range again {
		p.transaction(u.c.set, 0).push(u)
	}
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

// A lockWait is how long a session waits for locks.
type lockWait struct {
	rows   time.Duration // innodb_lock_wait_timeout
	tables time.Duration // lock_wait_timeout: for metadata, by other statements
}

// lockSQL asks for it.
const lockSQL = "SELECT @@innodb_lock_wait_timeout, @@lock_wait_timeout"

func (p *pool) learnLocks(u *unit) {
	if rows := u.result(p.key.caps); len(rows) == 1 && len(rows[0]) == 2 {
		seconds := func(v []byte) time.Duration { return time.Duration(parseUint(v)) * time.Second }
		p.lockDefault = lockWait{rows: seconds(rows[0][0]), tables: seconds(rows[0][1])}
	}
}

// nowait tells whether the server knows 0 for a lock wait timeout, which is not to
// wait at all.
func (f *poolFacts) nowait() bool { return f.mariadb && f.version >= 100300 }

// lockWait is the client's own.
func (p *pool) lockWait(set *session.Set) lockWait {
	w := p.lockDefault
	if s, ok := set.Get("innodb_lock_wait_timeout"); ok {
		w.rows = time.Duration(parseUint([]byte(s.Value))) * time.Second
	}
	if s, ok := set.Get("lock_wait_timeout"); ok {
		w.tables = time.Duration(parseUint([]byte(s.Value))) * time.Second
	}
	return w
}

// withLockWait is the settings with others, in whole seconds.
func (p *pool) withLockWait(set *session.Set, w lockWait) *session.Set {
	for _, s := range [...]struct {
		name string
		d    time.Duration
	}{{"innodb_lock_wait_timeout", w.rows}, {"lock_wait_timeout", w.tables}} {
		set = p.settings.With(set, session.Setting{Name: s.name, Value: strconv.FormatInt(int64(s.d/time.Second), 10), Literal: true})
	}
	return set
}

// tellApart is the distance between the two lock wait timeouts of a turn if the
// error must tell by its time which of them has ended it.
const tellApart = 6 * time.Second

// apartSet is the settings for u's next turn: those of its client, and for a write
// a bound on its lock waits. Its answer is held until it is whole: if the turn ends
// first, the client has seen nothing of it.
func (p *pool) apartSet(u *unit) *session.Set {
	u.hold, u.bounded, u.owned = false, false, 0
	if u.read {
		return u.c.set
	}
	bound := max(turn(u.tries).Round(time.Second), time.Second)
	if u.tries == 0 && p.facts.nowait() {
		bound = 0
	}
	own, waited := p.lockWait(u.c.set), p.l.Now-u.queuedAt
	left := func(d time.Duration) (time.Duration, bool) {
		rest := max(d-waited, 0)
		if d == 0 || rest > bound {
			return bound, d == 0 // 0 is not to wait, and then so it is
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
		return p.withLockWait(u.c.set, lockWait{rows, tables})
	case ownRows:
		tables = rows + tellApart
		u.owned = rows + tellApart/2
	case ownTables:
		rows = tables + tellApart
		u.owned = tables + tellApart/2
	}
	u.bounded, u.hold = true, true
	return p.withLockWait(u.c.set, lockWait{rows, tables})
}

// turnOver reports whether an ERR is the end of a turn, set by weir and not by the
// client, so that the unit is to run again.
func (u *unit) turnOver(code uint16, took time.Duration) bool {
	switch {
	case code == mywire.ErrLockWaitTimeout && u.bounded && took >= u.owned:
	case code == mywire.ErrQueryInterrupted && u.preempted:
	default:
		return false
	}
	u.tries += min(1, 100-u.tries)
	return true
}
