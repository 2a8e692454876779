package profile

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"runtime"
	"sync"
	"sync/atomic"
	"time"

	"github.com/weirdb/weir/internal/measure/loop"
)

// Mode is how the workers run.
type Mode string

// The modes.
const (
	// Sequential is one operation after another.
	Sequential Mode = "sequential"
	// Threads locks each worker to an operating system thread, as in programs without a
	// scheduler of their own.
	Threads Mode = "threads"
	// Async runs workers as goroutines, which Go's scheduler and network poller multiplex onto
	// few threads.
	Async Mode = "async"
)

const (
	// failurePause keeps workers from spinning when the server is gone.
	failurePause = 5 * time.Millisecond
	// A run is given up when this many operations in a row have failed: hopelessEach per
	// worker, and at least hopelessLeast.
	hopelessEach, hopelessLeast = 20, 200
	// patience is how long operations may continue after the run should end.
	patience = 2 * time.Second
)

// errHopeless ends a run in which no operation succeeds.
var errHopeless = errors.New("nothing but failures")

// load is what the loop's workers run: operations of a workload over a pool.
type load struct {
	mode     Mode
	clock    clock
	dial     *dialer
	workload *Workload
	workers  []worker
	// cold and warm hold the segments of the operations that the loop records.
	cold, warm *recorder
	// traced switches the timelines on or off. The rest of the harness stays.
	traced atomic.Bool
	// ended counts all successful operations, recorded or not.
	ended atomic.Int64

	failed    atomic.Int64 // in a row, over all workers
	giveUp    context.CancelCauseFunc
	onceBegun sync.Once
	over      chan struct{} // closed when all operations have ended
}

func newLoad(ctx context.Context, giveUp context.CancelCauseFunc, mode Mode, workers int, dial *dialer, p pool, w *Workload) *load {
	l := &load{
		mode: mode, clock: dial.clock, dial: dial, workload: w, workers: make([]worker, workers),
		cold: newRecorder(workers), warm: newRecorder(workers), giveUp: giveUp,
		over: make(chan struct{}),
	}
	l.traced.Store(true)
	ctx = context.WithoutCancel(ctx)
	for i := range l.workers {
		t := newTimeline()
		l.workers[i] = worker{
			load: l, client: p.client(), timeline: t,
			rng:   rand.New(rand.NewPCG(rand.Uint64(), uint64(i))),
			plain: ctx, traced: context.WithValue(ctx, timelineKey{}, t),
			values: make([]any, len(w.Script.params)),
		}
	}
	return l
}

// op is the loop's operation. Drivers pay for a cancellable context with every statement, so
// they get one that cannot be cancelled; when ctx ends, the connections are closed instead.
func (l *load) op(ctx context.Context, index int) error {
	l.onceBegun.Do(func() { context.AfterFunc(ctx, l.closeLater) })
	w := &l.workers[index]
	if l.mode == Threads && !w.tied {
		runtime.LockOSThread() // never unlocked: the thread ends with the worker
		w.tied = true
	}
	err := w.one()
	if err == nil {
		l.ended.Add(1)
		if l.failed.Load() != 0 {
			l.failed.Store(0)
		}
		return nil
	}
	if n := l.failed.Add(1); n == int64(max(hopelessEach*len(l.workers), hopelessLeast)) {
		l.giveUp(fmt.Errorf("%w: %d operations in a row, the last one with: %w", errHopeless, n, err))
	}
	if connectionLost(err) {
		time.Sleep(failurePause)
	}
	return err
}

// closeLater closes all connections, unless all operations end soon on their own.
func (l *load) closeLater() {
	t := time.NewTimer(patience)
	defer t.Stop()
	select {
	case <-l.over:
	case <-t.C:
		l.dial.closeAll()
	}
}

// record adds the segments of an operation that the loop has recorded.
func (l *load) record(e loop.Ended) {
	w := &l.workers[e.Worker]
	if !w.wasTraced {
		return
	}
	s := &w.spent
	s[segSchedule] = e.Began - e.Intended
	// The time that the loop measures before the timeline starts and after it ends.
	s[segHarness] = e.Completed - e.Intended - s.total()
	into := l.warm
	if e.Cold {
		into = l.cold
	}
	into.enter(e.Worker, w)
}

// worker runs operations one at a time.
type worker struct {
	load     *load
	client   client
	rng      *rand.Rand
	timeline *timeline
	traced   context.Context
	plain    context.Context
	values   []any
	args     []any
	tied     bool // to its thread

	// About the last operation.
	wasTraced             bool
	spent                 split
	roundTrips, overtaken int64
}

// one runs an operation, and leaves its split in the worker.
func (w *worker) one() error {
	l := w.load
	l.workload.Script.drawAll(w.rng, w.values)
	if w.wasTraced = l.traced.Load(); !w.wasTraced {
		return w.operate(w.plain, nil)
	}
	w.timeline.start(l.clock.Now())
	err := w.operate(w.traced, w.timeline)
	w.spent, w.roundTrips, w.overtaken = w.timeline.end(l.clock.Now())
	return err
}

// operate takes a connection, runs the script on it, and returns it.
func (w *worker) operate(ctx context.Context, t *timeline) error {
	if err := w.client.acquire(ctx, t); err != nil {
		return err
	}
	script := w.load.workload.Script
	var err error
	for _, st := range script.statements {
		if t != nil {
			t.callBegins(w.load.clock.Now())
		}
		w.args = st.args(w.values, w.args)
		if err = w.client.run(ctx, st, w.args); err != nil {
			break
		}
	}
	if t != nil {
		t.done(w.load.clock.Now())
	}
	if err != nil && len(script.statements) > 1 && !connectionLost(err) {
		// A transaction that the script began must not leak into the next operation. If there
		// is nothing to roll back, servers answer with a warning at most.
		_ = w.client.run(ctx, rollback, nil)
	}
	w.client.release(ctx)
	return err
}

var rollback = &statement{text: "ROLLBACK"}
