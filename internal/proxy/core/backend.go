package core

import (
	"slices"
	"time"

	"github.com/weirdb/weir/internal/proxy/upstream"
)

// A Mode is what a backend does at present.
type Mode uint8

// The modes.
const (
	ModeFree   Mode = iota // nothing is in flight; the pool has it among the free ones
	ModeShared             // pipelines reads of several clients
	ModeOwned              // serves one client: a statement, a transaction or a pinned session
	ModeLaned              // runs one group of writes
	ModeOwn                // runs one of weir's own queries, or a statement whose client does not own it
)

func (m Mode) String() string {
	return [...]string{"free", "shared", "owned", "laned", "own"}[m]
}

// A Conn is the part of a backend, one connection to the server, that both sides of
// the proxy have. U is the side's unit. A side embeds it in its own backend, and a
// Base looks after it. It belongs to the loop's thread.
type Conn[U any] struct {
	Flight[U]

	Endpoint upstream.Endpoint // where it is connected to

	Mode      Mode
	Born      time.Duration
	FreeSince time.Duration
	NotBefore time.Duration // its head does not count as stalled before this
	Cancels   int           // cancel requests in flight for what it runs: nothing more is sent to it
	Held      bool          // its session is being prepared for a client
	Ghosts    bool          // runs reads whose clients were served elsewhere
	Doomed    bool          // close when free: its session cannot be reused
	Retired   bool          // close when free: it is out of date
	Leaving   bool          // has said goodbye, and closes after one more answer
	Settling  bool          // new, and not free yet: weir runs its own queries on it
}

// Pooled returns the Conn itself, for generic code that has the backend that embeds it.
func (c *Conn[U]) Pooled() *Conn[U] { return c }

// Info describes the connection; id is the number that the server gave it.
func (c *Conn[U]) Info(id uint32) ServerInfo {
	return ServerInfo{
		Address: c.Endpoint.Address, ID: id, Mode: c.Mode.String(), Free: c.Mode == ModeFree, Retired: c.Retired || c.Doomed,
		InFlight: c.Depth(), Born: c.Born, Last: c.Answered,
	}
}

// Feedable reports whether more may be sent behind what is in flight.
func (c *Conn[U]) Feedable() bool { return c.Cancels == 0 && !c.Held && !c.Doomed && !c.Retired }

// A Flight is the queue of units that were sent on a connection and are not answered yet.
// The zero value is empty.
type Flight[U any] struct {
	// Since is when the server began to work on the head: when it was sent, or when the
	// unit before it was answered.
	Since time.Duration
	// Resumed is when the server could last continue with the head after it had to wait for
	// more of its messages. For a group it is also when weir last paused or resumed reading
	// the answer because of a slow client. 0 if neither happened.
	Resumed time.Duration
	// Answered is when the last answer ended, 0 if there was none.
	Answered time.Duration

	units []U // from first on
	first int
	then  []func() // see Then
}

// compactAt is the number of answered units for which a flight that never empties keeps room.
const compactAt = 256

// Depth is the number of units in flight.
func (f *Flight[U]) Depth() int { return len(f.units) - f.first }

// running is how long the server has worked on the head.
func (f *Flight[U]) running(now time.Duration) time.Duration { return now - max(f.Since, f.Resumed) }

// Head is the unit whose answer comes next, or the zero value.
func (f *Flight[U]) Head() (u U) {
	if f.first < len(f.units) {
		u = f.units[f.first]
	}
	return u
}

// Units are the units in flight, the head first. The slice is valid until the next Push or Pop.
func (f *Flight[U]) Units() []U { return f.units[f.first:] }

// First is the first unit for which is returns true, or the zero value.
func (f *Flight[U]) First(is func(u U) bool) (none U) {
	for _, u := range f.Units() {
		if is(u) {
			return u
		}
	}
	return none
}

// Then calls f when the head is answered or lost, while that is being processed.
func (f *Flight[U]) Then(then func()) { f.then = append(f.then, then) }

// headLeft calls the functions that Then has added.
func (f *Flight[U]) headLeft() {
	then := f.then
	f.then = nil
	for _, g := range then {
		g()
	}
}

// A Task is a function on an agenda.
type Task func()

// Look implements netloop.Task.
func (f Task) Look() { f() }

// Push appends a unit that is sent now.
func (f *Flight[U]) Push(u U, now time.Duration) {
	switch {
	case f.first == len(f.units):
		f.units, f.first, f.Since = f.units[:0], 0, now
	case f.first > compactAt:
		n := copy(f.units, f.units[f.first:])
		clear(f.units[n:])
		f.units, f.first = f.units[:n], 0
	}
	f.units = append(f.units, u)
}

// Pop removes the head, which has been answered, and returns how long it took.
func (f *Flight[U]) Pop(now time.Duration) (took time.Duration) {
	var none U
	f.units[f.first] = none
	f.first++
	if f.first == len(f.units) {
		f.units, f.first = f.units[:0], 0
	}
	took = now - f.Since
	f.Since, f.Answered = now, now
	f.headLeft()
	return took
}

// Withdraw removes the i-th unit behind the head: another unit's answer serves for it.
func (f *Flight[U]) Withdraw(i int) {
	f.units = slices.Delete(f.units, f.first+i, f.first+i+1)
}

// Lose empties the flight and returns its units: the connection has ended.
func (f *Flight[U]) Lose() []U {
	units := f.units[f.first:]
	f.units, f.first = nil, 0
	f.headLeft()
	return units
}
