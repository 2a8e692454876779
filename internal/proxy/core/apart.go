package core

import "time"

// This file handles statements that run apart because they have held up others: shared reads
// that did not answer in time (stall.go), and members of a group that wait for a lock
// (lane.go). Each runs on a backend that its client does not own.
//
// Their number is bounded. Each statement apart holds a slot. A pool has slots for a quarter
// of its size, so that a thousand clients behind one lock leave three quarters of the pool to
// the others. Without a slot a statement waits in weir:
//
//	held up others ─► fresh ──► slot ──► answered
//	                             │
//	                   its turn is over, and others wait
//	                             ▼
//	                          patient ──► slot, for longer
//
// The server itself ends a turn: a write fails with a lock timeout, which weir sets to the
// length of the turn, and is rolled back; a read is cancelled, which loses only its work so
// far. weir never cancels a write: the cancel request could end its wait for a standby, and
// the server would acknowledge a write that no standby has. One slot is reserved for fresh
// statements, and their turns are short, so that a statement whose lock is held for a moment
// does not queue behind statements whose lock is held for an hour.

// A Slot is the right to run apart.
type Slot uint8

// The slots.
const (
	SlotNone Slot = iota
	SlotFresh
	SlotPatient
)

// A Turn is the state of a unit that runs apart. A side embeds it in its unit.
type Turn struct {
	Slot    Slot          // the slot that it holds
	Tries   uint8         // turns so far
	ApartAt time.Duration // when it began to wait for a slot
}

// AsTurn returns the Turn itself, for generic code that has the unit that embeds it.
func (t *Turn) AsTurn() *Turn { return t }

// Length is how long the statement may run apart while others wait for a slot.
func (t *Turn) Length() time.Duration {
	return min(50*time.Millisecond<<(2*min(t.Tries, 4)), 8*time.Second)
}

// Over counts a turn that ended without an answer.
func (t *Turn) Over() { t.Tries += min(1, 100-t.Tries) }

// A Unit is a side's unit, which embeds a Turn.
type Unit interface {
	comparable
	AsTurn() *Turn
	// Left reports whether no client waits for its answer any more.
	Left() bool
	// Queued is when the client's statement was complete.
	Queued() time.Duration
}

// Apart holds a pool's statements that run apart, and those that wait for a slot.
type Apart[U Unit] struct {
	Fresh, Patient List[U] // wait for a slot: for the first turn, for a further one
	Used           int     // slots in use, of both kinds
	Ghosts         int     // backends that run reads whose clients were served elsewhere

	usedPatient int
}

// Waiting is the number of statements that wait for a slot.
func (a *Apart[U]) Waiting() int { return len(a.Fresh) + len(a.Patient) }

// Active reports whether any statement runs apart or waits for a slot.
func (a *Apart[U]) Active() bool { return a.Used > 0 || a.Ghosts > 0 || a.Waiting() > 0 }

// Next removes the unit that gets the next slot, and says which slot, if one of this number
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

// Drop removes the waiting statements for which drop returns true.
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

// QueueApart queues a unit to run alone on a backend when a slot is free.
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

// Hold gives a slot to a unit; FreeSlot takes it back. t is the unit's Turn.
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

// Haunt notes that a backend runs reads whose clients were served elsewhere; EndGhosts
// notes that it has finished them.
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
