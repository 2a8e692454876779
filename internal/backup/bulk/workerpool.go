package bulk

import (
	"cmp"
	"context"
	"sync"
	"time"

	"github.com/weirdb/weir/internal/backup/guard"
)

// A WorkerPool is a set of workers that run the jobs of a graph. Without Most, their number is
// fixed. With Most, the number grows while more workers move more bytes, and shrinks if fewer
// do as well or if there is no work. Which worker runs a job does not change what the job does.
type WorkerPool struct {
	// Start is the number of workers at the beginning, and throughout without Most.
	Start int

	// Least and Most limit the number. Default: Start; the number is fixed.
	Least, Most int

	// Idle is how long a worker waits for a job before it ends, if there are more than Least.
	// Default: DefaultIdle.
	Idle time.Duration

	// Moved returns the number of bytes that the jobs have moved. The number of workers follows
	// its growth; if nil, only idle workers end. It must be safe for concurrent use.
	Moved func() int64

	// Rest is called by a worker that ends before the jobs do, to release its resources, such
	// as a session. A later worker with the same number starts afresh.
	Rest func(worker int) error

	// Window is the length of a measurement, after which the number may change. Default:
	// DefaultWindow.
	Window time.Duration

	// Stats, if not nil, is filled in.
	Stats *WorkerPoolStats
}

// Defaults of a WorkerPool.
const (
	DefaultIdle   = 5 * time.Second
	DefaultWindow = 200 * time.Millisecond
)

// WorkerPoolStats are the metrics of a pool.
type WorkerPoolStats struct {
	// Name says whose jobs these were: the name of a database, for example.
	Name string `json:"name,omitempty"`

	Least int `json:"least"` // the fewest workers allowed
	Start int `json:"start"` // workers at the start
	Most  int `json:"most"`  // the most workers allowed

	// Peak is the largest number of workers at one time.
	Peak int     `json:"peak"`
	Busy float64 `json:"busy"` // how many worked at the same time, on average

	Completed int `json:"completed"`        // jobs that succeeded
	Failed    int `json:"failed,omitempty"` // jobs that failed

	Grown  int `json:"grown,omitempty"`  // how often the throughput added a worker
	Shrunk int `json:"shrunk,omitempty"` // how often the throughput took a worker away
	Idled  int `json:"idled,omitempty"`  // workers that ended because there were no jobs

	// Steps are the first changes of the number, with the measurement before each.
	Steps []WorkerPoolStep `json:"steps,omitempty"`
}

// WorkerPoolStep is a change of the number of workers.
type WorkerPoolStep struct {
	At      time.Duration `json:"at_ns"`   // since the pool started
	Workers int           `json:"workers"` // the number from then on
	Rate    float64       `json:"rate"`    // bytes per second with the number before
}

// maxSteps limits the number of recorded steps.
const maxSteps = 100

// Run runs all jobs as [Run] does.
func (c WorkerPool) Run(ctx context.Context, jobs []Job) error {
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
	t := newRunningPool(ctx, c, g, len(jobs))
	t.start = func(w int) {
		t.all.Go(func() {
			for {
				n := g.take(ctx, w)
				if n == nil {
					break
				}
				err := guard.Run(n.ID, func() error { return n.Do(ctx, w) })
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

// A runningPool is the state of a running WorkerPool, guarded by the graph's mutex.
type runningPool struct {
	WorkerPool
	ctx   context.Context // of the jobs
	g     *graph
	tuner *tuner // nil: WorkerPool.Moved is nil
	begun time.Time
	start func(w int)
	all   sync.WaitGroup

	limit   int            // maximum number of workers at the moment
	alive   []*workerState // by worker; nil: not running
	there   int
	resting int
	stats   WorkerPoolStats

	busy    time.Duration // of all workers together
	changed bool          // a worker started, ended or waited within the window
}

// workerState is the state of one worker.
type workerState struct {
	since   time.Time
	resting bool
	leaving bool // about to end, and not counted any more
}

func newRunningPool(ctx context.Context, c WorkerPool, g *graph, jobs int) *runningPool {
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
	t := &runningPool{WorkerPool: c, ctx: ctx, g: g, begun: time.Now(), limit: c.Start, alive: make([]*workerState, c.Most)}
	t.stats = WorkerPoolStats{Least: c.Least, Start: c.Start, Most: max(c.Most, asked.Most)}
	if adapts && c.Moved != nil {
		t.tuner = newTuner(c.Least, c.Start, c.Most)
	}
	g.pool = t
	return t
}

// fixed reports whether the number of workers is fixed.
func (t *runningPool) fixed() bool { return t.Least == t.Most }

// over reports whether no further job will start.
func (t *runningPool) over() bool { return t.g.left == 0 || t.g.err != nil || t.ctx.Err() != nil }

// staff starts workers for ready jobs, up to the limit.
func (t *runningPool) staff() {
	if t.over() {
		return
	}
	for w := 0; w < len(t.alive) && t.there < t.limit; w++ {
		// The workers of a fixed pool run from the beginning.
		if !t.fixed() && t.there >= t.Least && len(t.g.ready) <= t.resting {
			return
		}
		if t.alive[w] != nil {
			continue
		}
		t.alive[w] = &workerState{since: time.Now(), resting: true}
		t.there++
		t.resting++
		t.changed = true
		t.stats.Peak = max(t.stats.Peak, t.there)
		t.start(w)
	}
}

// leaves reports whether worker w ends now: there are too many workers, or it has been idle for
// too long.
func (t *runningPool) leaves(w int) bool {
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

// rests records that worker w waits for a job.
func (t *runningPool) rests(w int) {
	if a := t.alive[w]; !a.resting {
		a.resting, a.since = true, time.Now()
		t.resting++
		t.changed = true
	}
}

// works records that worker w begins a job.
func (t *runningPool) works(w int) {
	if a := t.alive[w]; a.resting {
		a.resting = false
		t.resting--
		t.changed = true
	}
	t.alive[w].since = time.Now()
}

// ended records that worker w has ended a job.
func (t *runningPool) ended(w int, err error) {
	t.busy += time.Since(t.alive[w].since)
	if err != nil {
		t.stats.Failed++
	} else {
		t.stats.Completed++
	}
}

// leave removes worker w. Its resources are released before another worker with its number can
// start.
func (t *runningPool) leave(w int) error {
	t.g.mu.Lock()
	early := !t.over()
	t.g.mu.Unlock()
	var err error
	if early && t.Rest != nil {
		err = guard.Run("end a worker", func() error { return t.Rest(w) })
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
	t.staff() // a job may have become ready meanwhile
	return err
}

// watch calls look after each window, until the returned function is called.
func (t *runningPool) watch(ctx context.Context) (stop func()) {
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

// look adjusts the number of workers to the rate of a window.
func (t *runningPool) look(rate float64) {
	t.g.mu.Lock()
	defer t.g.mu.Unlock()
	// A window counts only if all workers were busy throughout, and another one would have had
	// a job.
	if t.tuner != nil && !t.changed && t.there == t.limit && t.resting == 0 && len(t.g.ready) > 0 {
		if n := t.tuner.window(rate); n != t.limit {
			if n > t.limit {
				t.stats.Grown++
			} else {
				t.stats.Shrunk++
			}
			if t.limit = n; len(t.stats.Steps) < maxSteps {
				t.stats.Steps = append(t.stats.Steps, WorkerPoolStep{time.Since(t.begun), n, t.tuner.last})
			}
		}
	} else if t.tuner != nil {
		t.tuner.forget()
	}
	t.changed = false
	t.staff()
	t.g.wake.Broadcast() // idle workers check the time
}

// report fills in the statistics.
func (t *runningPool) report() {
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
