package bulk

import (
	"cmp"
	"context"
	"fmt"
	"runtime/debug"
	"sync"
	"time"
)

// A Crew is how many workers do the jobs of a graph. Without Most their number is
// fixed. With it, there are more of them while more of them move more bytes, and
// fewer when fewer do as well or when there is nothing to do; which worker does a
// job never changes what the job does.
type Crew struct {
	// Start is how many there are at the beginning, and all the time without Most.
	Start int

	// Least and Most bound their number. Default: Start, and no change.
	Least, Most int

	// Idle is how long one of more than Least waits for a job before it ends.
	// Default: DefaultIdle.
	Idle time.Duration

	// Moved counts the bytes that the jobs have moved. The number of workers follows
	// its growth; without it only idle ones end. It must be safe for concurrent use.
	Moved func() int64

	// Rest is called by a worker that ends before the jobs do, so that it can let go
	// of what it holds, such as a session. A later one of its number begins anew.
	Rest func(worker int) error

	// Window is how long bytes are counted before the number may change. Default:
	// DefaultWindow.
	Window time.Duration

	// Stats is filled in. Default: nil, nobody looks.
	Stats *CrewStats
}

// Defaults of a Crew.
const (
	DefaultIdle   = 5 * time.Second
	DefaultWindow = 200 * time.Millisecond
)

// CrewStats are the metrics of a crew.
type CrewStats struct {
	// Name says whose jobs these were, such as a database.
	Name string `json:"name,omitempty"`

	Least int `json:"least"` // the fewest workers allowed
	Start int `json:"start"` // workers at the start
	Most  int `json:"most"`  // the most workers allowed

	// Peak is how many there were at most.
	Peak int     `json:"peak"`
	Busy float64 `json:"busy"` // how many worked at the same time, on average

	Completed int `json:"completed"`        // jobs that succeeded
	Failed    int `json:"failed,omitempty"` // jobs that failed

	Grown  int `json:"grown,omitempty"`  // how often the throughput added a worker
	Shrunk int `json:"shrunk,omitempty"` // how often the throughput took a worker away
	Idled  int `json:"idled,omitempty"`  // workers that ended for want of jobs

	// Steps are the first changes, and what was measured before each.
	Steps []CrewStep `json:"steps,omitempty"`
}

// CrewStep is a change of the number of workers.
type CrewStep struct {
	At      time.Duration `json:"at_ns"`   // since the crew began
	Workers int           `json:"workers"` // the number from then on
	Rate    float64       `json:"rate"`    // bytes per second with the number before
}

// maxSteps bounds what is kept of them.
const maxSteps = 100

// A PanicError is a job that panicked.
type PanicError struct {
	Job   string
	Value any
	Stack []byte
}

// Error names the job, and asks for a report.
func (e *PanicError) Error() string {
	return fmt.Sprintf("%s: weir panicked: %v; this is an error in weir, please report it with this stack:\n%s", e.Job, e.Value, e.Stack)
}

// Guarded runs f. If it panics, that is a [*PanicError] about a job of this name.
func Guarded(job string, f func() error) (err error) {
	defer func() {
		if v := recover(); v != nil {
			err = &PanicError{job, v, debug.Stack()}
		}
	}()
	return f()
}

// Run does all jobs as [Run] does.
func (c Crew) Run(ctx context.Context, jobs []Job) error {
	g, err := newGraph(jobs)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	stop := context.AfterFunc(ctx, func() {
		g.mu.Lock()
		defer g.mu.Unlock()
		g.wake.Broadcast()
	})
	defer stop()
	t := newCrew(ctx, c, g, len(jobs))
	t.start = func(w int) {
		t.all.Go(func() {
			for {
				n := g.take(ctx, w)
				if n == nil {
					break
				}
				err := Guarded(n.ID, func() error { return n.Do(ctx, w) })
				g.done(n, w, err) // before others fail because of it
				if err != nil {
					cancel(err)
				}
			}
			if err := t.leave(w); err != nil {
				cancel(err)
			}
		})
	}
	g.mu.Lock()
	t.staff()
	g.mu.Unlock()
	watching := t.watch(ctx)
	t.all.Wait()
	watching()
	t.report()
	return g.result(ctx)
}

// crew is the state of a Crew at work. The graph's mutex guards it.
type crew struct {
	Crew
	ctx   context.Context // of the jobs
	g     *graph
	pilot *pilot // nil: nothing is known of bytes
	begun time.Time
	start func(w int)
	all   sync.WaitGroup

	limit   int         // how many there may be
	alive   []*workings // by worker; nil: not there
	there   int
	resting int
	stats   CrewStats

	busy    time.Duration // of all workers together
	changed bool          // within the window somebody came, left or rested
}

// workings is one worker.
type workings struct {
	since   time.Time
	resting bool
	leaving bool // and not counted any more
}

func newCrew(ctx context.Context, c Crew, g *graph, jobs int) *crew {
	asked := c
	c.Start = max(1, min(c.Start, jobs))
	adapts := c.Most > 0
	if adapts {
		c.Most = max(1, min(c.Most, jobs))
		c.Least = max(1, min(c.Least, c.Most))
		c.Start = min(max(c.Start, c.Least), c.Most)
	} else {
		c.Least, c.Most = c.Start, c.Start
	}
	c.Idle, c.Window = cmp.Or(c.Idle, DefaultIdle), cmp.Or(c.Window, DefaultWindow)
	t := &crew{Crew: c, ctx: ctx, g: g, begun: time.Now(), limit: c.Start, alive: make([]*workings, c.Most)}
	t.stats = CrewStats{Least: c.Least, Start: c.Start, Most: max(c.Most, asked.Most)}
	if adapts && c.Moved != nil {
		t.pilot = newPilot(c.Least, c.Start, c.Most)
	}
	g.crew = t
	return t
}

// fixed reports whether nothing ever changes.
func (t *crew) fixed() bool { return t.Least == t.Most }

// over reports whether no further job starts.
func (t *crew) over() bool { return t.g.left == 0 || t.g.err != nil || t.ctx.Err() != nil }

// staff starts workers for jobs that wait for one, as many as there may be.
func (t *crew) staff() {
	if t.over() {
		return
	}
	for w := 0; w < len(t.alive) && t.there < t.limit; w++ {
		// Those of a fixed crew are there from the beginning on.
		if !t.fixed() && t.there >= t.Least && len(t.g.ready) <= t.resting {
			return
		}
		if t.alive[w] != nil {
			continue
		}
		t.alive[w] = &workings{since: time.Now(), resting: true}
		t.there++
		t.resting++
		t.changed = true
		t.stats.Peak = max(t.stats.Peak, t.there)
		t.start(w)
	}
}

// leaves reports whether worker w ends now: there are more than there may be, or
// it has had nothing to do for too long.
func (t *crew) leaves(w int) bool {
	a := t.alive[w]
	idle := !t.fixed() && t.there > t.Least && len(t.g.ready) == 0 && a.resting && time.Since(a.since) >= t.Idle
	if idle {
		t.stats.Idled++
	}
	if a.leaving = idle || t.there > t.limit; a.leaving {
		t.there--
	}
	return a.leaving
}

// rests says that worker w waits for a job.
func (t *crew) rests(w int) {
	if a := t.alive[w]; !a.resting {
		a.resting, a.since = true, time.Now()
		t.resting++
		t.changed = true
	}
}

// works says that worker w begins a job.
func (t *crew) works(w int) {
	if a := t.alive[w]; a.resting {
		a.resting = false
		t.resting--
		t.changed = true
	}
	t.alive[w].since = time.Now()
}

// ended says that worker w has ended a job.
func (t *crew) ended(w int, err error) {
	t.busy += time.Since(t.alive[w].since)
	if err != nil {
		t.stats.Failed++
	} else {
		t.stats.Completed++
	}
}

// leave counts worker w out. What it holds is let go of before another one of its
// number can come.
func (t *crew) leave(w int) error {
	t.g.mu.Lock()
	early := !t.over()
	t.g.mu.Unlock()
	var err error
	if early && t.Rest != nil {
		err = Guarded("end a worker", func() error { return t.Rest(w) })
	}
	t.g.mu.Lock()
	defer t.g.mu.Unlock()
	if err != nil && t.g.err == nil {
		t.g.err = err
	}
	a := t.alive[w]
	if a.resting {
		t.resting--
	}
	if !a.leaving {
		t.there--
	}
	t.alive[w] = nil
	t.changed = true
	t.staff() // a job may have become ready just now
	return err
}

// watch looks at the crew after each window, until the function that it returns is
// called.
func (t *crew) watch(ctx context.Context) (stop func()) {
	if t.fixed() {
		return func() {}
	}
	done, ended := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(ended)
		clock := time.NewTicker(t.Window)
		defer clock.Stop()
		var before int64
		if t.Moved != nil {
			before = t.Moved()
		}
		for last := time.Now(); ; {
			select {
			case <-done:
				return
			case <-ctx.Done():
				return
			case now := <-clock.C:
				var bytes int64
				if t.Moved != nil {
					bytes = t.Moved()
				}
				t.look(float64(bytes-before) / now.Sub(last).Seconds())
				before, last = bytes, now
			}
		}
	}()
	return func() {
		close(done)
		<-ended
	}
}

// look takes the rate of a window and changes the number of workers by it.
func (t *crew) look(rate float64) {
	t.g.mu.Lock()
	defer t.g.mu.Unlock()
	// A window tells what so many workers do if all of them worked all the time, and
	// another one would have had something to do.
	if t.pilot != nil && !t.changed && t.there == t.limit && t.resting == 0 && len(t.g.ready) > 0 {
		if n := t.pilot.window(rate); n != t.limit {
			if n > t.limit {
				t.stats.Grown++
			} else {
				t.stats.Shrunk++
			}
			if t.limit = n; len(t.stats.Steps) < maxSteps {
				t.stats.Steps = append(t.stats.Steps, CrewStep{time.Since(t.begun), n, t.pilot.last})
			}
		}
	} else if t.pilot != nil {
		t.pilot.forget()
	}
	t.changed = false
	t.staff()
	t.g.wake.Broadcast() // those that idle look at the clock
}

// report fills in the statistics.
func (t *crew) report() {
	if t.Stats == nil {
		return
	}
	t.g.mu.Lock()
	defer t.g.mu.Unlock()
	if e := time.Since(t.begun); e > 0 {
		t.stats.Busy = t.busy.Seconds() / e.Seconds()
	}
	t.stats.Name = t.Stats.Name
	*t.Stats = t.stats
}
