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
	// maxLanes is the number of lanes of a pool above which unused ones are dropped: if
	// settings or texts are never the same twice, there is no end to new lanes.
	maxLanes = 1000
	// MaxGroup is the largest group that can be configured.
	MaxGroup = session.MaxGroup
	// lateAfter is how long a run may take before a waiting group gets another place:
	// a statement in the run is slow, or waits for a lock in a way that no timeout bounds.
	lateAfter = 50 * time.Millisecond
)

// A Run is the common part of a group in flight on one backend. A side embeds it in its own
// type.
type Run struct {
	Began time.Duration
	Count int  // number of clients' writes
	Sent  bool // all of it was sent, or waits only for weir's own query
	late  bool // its place among the lane's runs was given to another
}

// AsRun returns the Run itself, for generic code that has the run that embeds it.
func (r *Run) AsRun() *Run { return r }

// A Lane is a queue in which writes wait to go to the server as a group. B is the side's
// backend, U its unit and R its run. A side embeds it in its own lane.
type Lane[B comparable, U any, R interface{ AsRun() *Run }] struct {
	Q      *batch.Queue[U]
	Queued bool    // in the pool's queue, or about to get a backend
	Limit  int     // of a rows lane: present maximum of a group; falls when groups fail
	Taken  []U     // the group that is being sent
	taken  int     // how many items it had at first
	Runs   map[B]R // in flight

	Groups, Members, Fallbacks, Retried uint64

	task   netloop.Task // the side's lane
	loop   *netloop.Loop
	agenda *netloop.Agenda
	late   *int          // of the pool: runs whose places were given to others
	hot    bool          // on the agenda
	timed  bool          // on the agenda, for when its window ends
	used   time.Duration // when it was last used
}

// LaneConfig is the configuration of a lane's queue: window is what a client or the
// configuration asks for, maxBytes bounds the messages of one group.
func LaneConfig(o *session.Options, window time.Duration, size, maxBytes int) batch.Config {
	c := batch.Config{Window: window, MaxItems: o.GroupLimit, MaxBytes: maxBytes, MaxLanes: o.WriteLanes, Capacity: o.MaxClients + 1}
	if window > 0 {
		c.MaxLanes = max(1, size)
	}
	return c
}

// Init initializes an empty lane of a loop, whose task looks at it. late counts the
// pool's runs whose places were given to others.
func (ln *Lane[B, U, R]) Init(task netloop.Task, c batch.Config, loop *netloop.Loop, agenda *netloop.Agenda, late *int) {
	ln.task, ln.loop, ln.agenda, ln.late = task, loop, agenda, late
	ln.Limit = c.MaxItems
	ln.Q = batch.NewQueue[U](c)
	ln.Runs = make(map[B]R)
}

// Push adds a unit whose message has size bytes. The lane is looked at when all input of the
// turn has been read.
func (ln *Lane[B, U, R]) Push(u U, size int) error {
	ln.used = ln.loop.Now
	if err := ln.Q.Push(ln.loop.Now, u, size); err != nil {
		return err
	}
	ln.Touch()
	return nil
}

// Touch schedules a look at the lane for later in this turn.
func (ln *Lane[B, U, R]) Touch() {
	if !ln.hot {
		ln.hot = true
		ln.agenda.Lane(ln.task)
	}
}

// Awake is called when that look begins.
func (ln *Lane[B, U, R]) Awake() { ln.hot = false }

// Deadline is when the lane's window ends.
func (ln *Lane[B, U, R]) Deadline() (time.Duration, bool) { return ln.Q.Deadline() }

// Due makes the lane's task look at it: its window has ended.
func (ln *Lane[B, U, R]) Due() {
	ln.timed = false
	ln.Touch()
}

// Ready reports whether a group may be sent now; otherwise the loop wakes up when it may.
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

// Take moves the next group to Taken. It returns false if no group may be sent.
func (ln *Lane[B, U, R]) Take() bool {
	if !ln.Ready() {
		return false
	}
	var reason batch.Reason
	ln.Taken, reason = ln.Q.Take(ln.loop.Now, ln.Taken[:0])
	ln.taken = len(ln.Taken)
	return reason != batch.ReasonNone
}

// None frees the place of a group whose clients have all left.
func (ln *Lane[B, U, R]) None() {
	ln.Q.Back(ln.taken)
	ln.Q.Done(ln.loop.Now, 0, 0)
	ln.Touch() // more may wait behind those that have left
}

// Begin adds a run of count writes of the taken group on a backend. r is the Run of run.
func (ln *Lane[B, U, R]) Begin(b B, run R, r *Run, count int) {
	ln.Q.Back(ln.taken - count)
	r.Began, r.Count = ln.loop.Now, count
	ln.Groups++
	ln.Members += uint64(count)
	ln.Runs[b] = run
}

// Unsent removes n writes from a run: they go elsewhere, or wait in the lane again.
func (ln *Lane[B, U, R]) Unsent(r *Run, n int) {
	r.Count -= n
	ln.Members -= uint64(n)
	ln.Q.Back(n)
}

// End removes the run on a backend, and frees its place in the lane. r is its Run.
func (ln *Lane[B, U, R]) End(b B, r *Run) {
	delete(ln.Runs, b)
	if r.late {
		*ln.late--
		return
	}
	ln.Q.Done(ln.loop.Now, r.Count, ln.loop.Now-r.Began)
}

// Relieve gives the places of late runs to waiting groups, on at most slots backends. Two
// groups of one lane that update the same rows may then wait for each other, but only for
// the lock timeout of groups.
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

// Find returns the last waiting unit for which is returns true; ok is false if there is none.
func (ln *Lane[B, U, R]) Find(is func(u U) bool) (found U, ok bool) {
	ln.Q.Remove(func(u U) bool {
		if is(u) {
			found, ok = u, true
		}
		return false
	})
	return found, ok
}

// Lanes are the lanes of a pool, by what their writes have in common.
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

// Tick relieves the lanes, and drops those that were unused for long.
func (ls Lanes[K, L]) Tick(now time.Duration, slots int) {
	for k, ln := range ls {
		ln.Relieve(slots)
		if ln.IdleFor(now) > laneKeep {
			delete(ls, k)
		}
	}
}
