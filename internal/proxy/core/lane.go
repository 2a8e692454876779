package core

import (
	"time"

	"github.com/weirdb/weir/batch"
	"github.com/weirdb/weir/internal/proxy/netloop"
	"github.com/weirdb/weir/internal/proxy/session"
	"github.com/weirdb/weir/internal/proxy/sight"
)

const (
	// laneKeep is how long an unused lane is kept for its statistics.
	laneKeep = 10 * time.Minute
	// maxLanes is the number of lanes of a pool from which on unused ones are not
	// kept: settings and texts that are never the same again make lanes without end.
	maxLanes = 1000
	// MaxGroup is the most members that a group can be allowed.
	MaxGroup = session.MaxGroup
	// lateAfter is how long a run may take before those that wait get another place:
	// a statement in it is slow, or waits for a lock in a way that no timeout bounds.
	lateAfter = 50 * time.Millisecond
)

// A Run is the part of one group in flight on one backend that both sides have. A
// side embeds it in its own.
type Run struct {
	Began time.Duration
	Count int  // of clients' writes
	Sent  bool // all of it is on its way, or behind a question
	late  bool // its place among the lane's runs was given to another
}

// AsRun returns the Run itself: of a run that embeds it.
func (r *Run) AsRun() *Run { return r }

// A Lane is the part of a lane, where writes wait to go to the server as a group, that
// both sides have. B is the side's backend, U its unit and R its run. A side embeds it
// in its own lane.
type Lane[B comparable, U any, R interface{ AsRun() *Run }] struct {
	Q      *batch.Queue[U]
	Queued bool    // in the pool's queue, or about to be given a backend
	Limit  int     // of a lane of rows: most members of a group now; falls when groups fail
	Taken  []U     // the group that is being sent
	taken  int     // how many items it was of at first
	Runs   map[B]R // under way

	Groups, Members, Fallbacks, Retried uint64

	task   netloop.Task // the side's lane
	loop   *netloop.Loop
	agenda *netloop.Agenda
	late   *int          // of the pool: runs whose places were given to others
	hot    bool          // on the agenda
	timed  bool          // on the agenda, for when its window ends
	used   time.Duration // last
}

// LaneConfig is how a lane's groups are made: window is what a client or the
// configuration asks for, maxBytes bounds the messages of one group.
func LaneConfig(o *session.Options, window time.Duration, size, maxBytes int) batch.Config {
	c := batch.Config{Window: window, MaxItems: o.GroupLimit, MaxBytes: maxBytes, MaxLanes: o.WriteLanes, Capacity: o.MaxClients + 1}
	if window > 0 {
		c.MaxLanes = max(1, size)
	}
	return c
}

// Init makes an empty lane for the side's that embeds it, on a loop. late counts the
// runs of the pool whose places were given to others.
func (ln *Lane[B, U, R]) Init(task netloop.Task, c batch.Config, loop *netloop.Loop, agenda *netloop.Agenda, late *int) {
	ln.task, ln.loop, ln.agenda, ln.late = task, loop, agenda, late
	ln.Limit = c.MaxItems
	ln.Q = batch.NewQueue[U](c)
	ln.Runs = make(map[B]R)
}

// Push adds a unit whose message has so many bytes, and has the lane looked at when
// the turn's reads are done.
func (ln *Lane[B, U, R]) Push(u U, size int) error {
	ln.used = ln.loop.Now
	if err := ln.Q.Push(ln.loop.Now, u, size); err != nil {
		return err
	}
	ln.Touch()
	return nil
}

// Touch has the lane looked at, later in this turn.
func (ln *Lane[B, U, R]) Touch() {
	if !ln.hot {
		ln.hot = true
		ln.agenda.Lane(ln.task)
	}
}

// Awake is called when it is being looked at.
func (ln *Lane[B, U, R]) Awake() { ln.hot = false }

// Deadline is when the lane's window ends.
func (ln *Lane[B, U, R]) Deadline() (time.Duration, bool) { return ln.Q.Deadline() }

// Due has the lane looked at: its window has ended.
func (ln *Lane[B, U, R]) Due() {
	ln.timed = false
	ln.Touch()
}

// Ready reports whether a group may go now, and otherwise has the loop wake up
// when it may.
func (ln *Lane[B, U, R]) Ready() bool {
	at, ok := ln.Q.Deadline()
	if !ok {
		return false
	}
	if at <= ln.loop.Now {
		return true
	}
	if !ln.timed {
		ln.timed = true
		ln.agenda.At(ln)
	}
	return false
}

// Take moves the next group to Taken. It reports false if none may go.
func (ln *Lane[B, U, R]) Take() bool {
	if !ln.Ready() {
		return false
	}
	var reason batch.Reason
	ln.Taken, reason = ln.Q.Take(ln.loop.Now, ln.Taken[:0])
	ln.taken = len(ln.Taken)
	return reason != batch.ReasonNone
}

// None gives up the place of a group of which nobody is left.
func (ln *Lane[B, U, R]) None() {
	ln.Q.Back(ln.taken)
	ln.Q.Done(ln.loop.Now, 0, 0)
	ln.Touch() // more may wait behind those that are gone
}

// Begin counts a run on a backend of so many writes of the group that was taken. r is the Run of
// run.
func (ln *Lane[B, U, R]) Begin(b B, run R, r *Run, count int) {
	ln.Q.Back(ln.taken - count)
	r.Began, r.Count = ln.loop.Now, count
	ln.Groups++
	ln.Members += uint64(count)
	ln.Runs[b] = run
}

// Unsent takes so many writes out of a run: they go elsewhere, or wait in the lane again.
func (ln *Lane[B, U, R]) Unsent(r *Run, n int) {
	r.Count -= n
	ln.Members -= uint64(n)
	ln.Q.Back(n)
}

// End forgets the run on a backend, whose place in the lane is free. r is its Run.
func (ln *Lane[B, U, R]) End(b B, r *Run) {
	delete(ln.Runs, b)
	if r.late {
		*ln.late--
		return
	}
	ln.Q.Done(ln.loop.Now, r.Count, ln.loop.Now-r.Began)
}

// Relieve gives the places of late runs to those that wait, on as many backends as
// slots says. Two groups of one lane that update the same rows then wait for each
// other at most as long as their locks are waited for.
func (ln *Lane[B, U, R]) Relieve(slots int) {
	for _, run := range ln.Runs {
		if ln.Q.Len() == 0 || *ln.late >= slots {
			return
		}
		r := run.AsRun()
		if took := ln.loop.Now - r.Began; r.Sent && !r.late && took > lateAfter {
			ln.Q.Done(ln.loop.Now, r.Count, took)
			r.late = true
			*ln.late++
			ln.Touch()
		}
	}
}

// IdleFor is how long the lane has not been used.
func (ln *Lane[B, U, R]) IdleFor(now time.Duration) time.Duration {
	if ln.Q.Len() > 0 || ln.Q.InFlight() > 0 || ln.Queued {
		return 0
	}
	return now - ln.used
}

// Status describes the lane.
func (ln *Lane[B, U, R]) Status() sight.LaneStatus {
	return sight.LaneStatus{
		Waiting: ln.Q.Len(), InFlight: ln.Q.InFlight(), Lanes: ln.Q.Lanes(), Limit: ln.Limit,
		Groups: ln.Groups, Members: ln.Members, Fallbacks: ln.Fallbacks, Retried: ln.Retried, Batch: ln.Q.Stats(),
	}
}

// Find returns the unit that waits in the lane and for which is is true, the last of several;
// ok is false if there is none.
func (ln *Lane[B, U, R]) Find(is func(u U) bool) (found U, ok bool) {
	ln.Q.Remove(func(u U) bool {
		if is(u) {
			found, ok = u, true
		}
		return false
	})
	return found, ok
}

// Lanes are a pool's, by what their writes have in common.
type Lanes[K comparable, L interface {
	IdleFor(now time.Duration) time.Duration
	Relieve(slots int)
}] map[K]L

// Add keeps a lane, and drops unused ones if there are too many.
func (ls Lanes[K, L]) Add(now time.Duration, k K, ln L) {
	if len(ls) >= maxLanes {
		for k, old := range ls {
			if old.IdleFor(now) > 0 {
				delete(ls, k)
			}
		}
	}
	ls[k] = ln
}

// Tick relieves the lanes, and drops those that were not used for long.
func (ls Lanes[K, L]) Tick(now time.Duration, slots int) {
	for k, ln := range ls {
		ln.Relieve(slots)
		if ln.IdleFor(now) > laneKeep {
			delete(ls, k)
		}
	}
}
