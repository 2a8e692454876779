package core

import "time"

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
// A turn is over by the server's own word: a write ends with a lock timeout, which
// weir sets to the length of the turn, and was rolled back; a read is cancelled,
// which only costs its work so far. A write is never cancelled: the request could
// hit its wait for a standby, and the server would acknowledge what no standby has.
// One slot is for fresh statements only, and their turns are short, so those whose
// lock is held for a moment do not stand behind those whose lock is held for an
// hour.

// A Slot is the right to run apart.
type Slot uint8

// The slots.
const (
	SlotNone Slot = iota
	SlotFresh
	SlotPatient
)

// A Turn is what a unit has to do with running apart. A side embeds it in its unit.
type Turn struct {
	Slot    Slot          // that it holds
	Tries   uint8         // turns that it has had
	ApartAt time.Duration // when it began to wait for a slot
}

// AsTurn returns the Turn itself: of a unit that embeds it.
func (t *Turn) AsTurn() *Turn { return t }

// Length is how long the statement may run apart while others wait for a slot.
func (t *Turn) Length() time.Duration {
	return min(50*time.Millisecond<<(2*min(t.Tries, 4)), 8*time.Second)
}

// Over counts a turn that has ended without an answer.
func (t *Turn) Over() { t.Tries += min(1, 100-t.Tries) }

// A Unit is a side's unit, which embeds a Turn.
type Unit interface {
	comparable
	AsTurn() *Turn
	// Left reports whether nobody waits for its answer any more.
	Left() bool
	// Queued is when the client's statement was complete.
	Queued() time.Duration
}

// Apart is a pool's statements that run alone, and those that wait for that.
type Apart[U Unit] struct {
	Fresh, Patient List[U] // wait for a slot: for their first turn, for another one
	Used           int     // slots, of both kinds
	Ghosts         int     // backends that run reads whose clients were served elsewhere

	usedPatient int
}

// Waiting is the number of statements that wait for a slot.
func (a *Apart[U]) Waiting() int { return len(a.Fresh) + len(a.Patient) }

// Active reports whether anything runs apart, or waits for that.
func (a *Apart[U]) Active() bool { return a.Used > 0 || a.Ghosts > 0 || a.Waiting() > 0 }

// Next removes the unit that may have a slot next, and says which, if one of so many
// is free.
func (a *Apart[U]) Next(slots int) (u U, s Slot, ok bool) {
	switch {
	case a.Used >= slots:
	case len(a.Fresh) > 0:
		return a.Fresh.Shift(), SlotFresh, true
	case len(a.Patient) > 0 && a.usedPatient < max(1, slots-1):
		return a.Patient.Shift(), SlotPatient, true
	}
	return u, SlotNone, false
}

// Drop removes those of the statements that wait for a slot for which drop is true.
func (a *Apart[U]) Drop(drop func(u U) bool) {
	a.Fresh.Drop(drop)
	a.Patient.Drop(drop)
}

func (a *Apart[U]) hold(t *Turn, s Slot) {
	t.Slot = s
	a.Used++
	if s == SlotPatient {
		a.usedPatient++
	}
}

func (a *Apart[U]) free(t *Turn) {
	a.Used--
	if t.Slot == SlotPatient {
		a.usedPatient--
	}
	t.Slot = SlotNone
}

// Slots is how many statements of the pool may run apart.
func (p *Base[B, C, U, L, N]) Slots() int { return max(1, p.Size/4) }

// OverSlots reports whether more run apart than may.
func (p *Base[B, C, U, L, N]) OverSlots() bool { return p.Apart.Used > p.Slots() }

// QueueApart has a unit run alone on a backend when there is a slot for it.
func (p *Base[B, C, U, L, N]) QueueApart(u U) {
	t := u.AsTurn()
	t.ApartAt = p.loop.Now
	if t.Tries == 0 {
		p.Apart.Fresh = append(p.Apart.Fresh, u)
	} else {
		p.Apart.Patient = append(p.Apart.Patient, u)
	}
	p.Watch()
	p.Wake()
}

// Hold has a unit occupy a slot, FreeSlot ends that. t is the unit's.
func (p *Base[B, C, U, L, N]) Hold(t *Turn, s Slot) {
	p.Apart.hold(t, s)
	p.Watch()
}

// FreeSlot ends the unit's turn, if it has one.
func (p *Base[B, C, U, L, N]) FreeSlot(t *Turn) {
	if t.Slot != SlotNone {
		p.freeSlot(t)
	}
}

func (p *Base[B, C, U, L, N]) freeSlot(t *Turn) {
	p.Apart.free(t)
	if p.Apart.Waiting() > 0 {
		p.Wake()
	}
}

// Haunt notes that a backend runs reads whose clients are served elsewhere,
// EndGhosts that it runs no such reads any more.
func (a *Apart[U]) Haunt(c *Conn[U]) {
	if !c.Ghosts {
		c.Ghosts = true
		a.Ghosts++
	}
}

// EndGhosts ends what Haunt has noted.
func (a *Apart[U]) EndGhosts(c *Conn[U]) {
	if c.Ghosts {
		c.Ghosts = false
		a.Ghosts--
	}
}
