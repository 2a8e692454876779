package loop

import (
	"context"
	"errors"
	"math"
	"runtime"
	"runtime/metrics"
	"sync"
	"sync/atomic"
	"time"

	"github.com/weirdb/weir/internal/measure"
)

// errOver is the cause for cancelling operations without an answer after Config.Drain.
var errOver = errors.New("the run is over")

// Run runs op as configured and returns the outcome. If ctx ends before the run does, it
// returns both the outcome so far, marked as interrupted, and ctx's cause; the outcome is nil
// if the window had not opened.
func Run(ctx context.Context, c Config, op Op) (*Outcome, error) {
	if err := c.validate(op); err != nil {
		return nil, err
	}
	c = c.withDefaults()
	clock := measure.NewClock()
	r := &run{config: c, op: op, clock: clock, recorder: newRecorder(c, clock)}
	return r.conduct(ctx)
}

// run is the state of a call of Run.
type run struct {
	config   Config
	op       Op
	clock    measure.Clock
	recorder *recorder
	workers  sync.WaitGroup

	stop    atomic.Bool  // no further operation is started
	over    atomic.Bool  // operations that end now do not count
	tickets atomic.Int64 // taken within the window

	// These belong to the dispatcher of an open loop, and are read when it has returned.
	jobs              chan int64 // intended starts
	late              measure.Hist
	intended, dropped int64
	maxBacklog        int64
}

// conduct leads the run through its phases:
//
//	| warm-up | window | drain |
//	          from     to
func (r *run) conduct(ctx context.Context) (*Outcome, error) {
	opCtx, giveUp := context.WithCancelCause(ctx)
	defer giveUp(nil)
	startCtx, stopStarts := context.WithCancel(opCtx)
	defer stopStarts()
	idle := make(chan struct{}) // closed when all goroutines have returned
	start := func() {
		r.start(opCtx, startCtx)
		go func() { r.workers.Wait(); close(idle) }()
	}
	finish := func() { r.stop.Store(true); r.over.Store(true); giveUp(errOver); <-idle }

	var cold *Cold
	if r.config.Warmup > 0 {
		start()
		cold = r.warmUp(ctx)
		if ctx.Err() != nil {
			finish()
			return nil, context.Cause(ctx)
		}
	}
	o, closeWindow, err := r.openWindow()
	if err != nil {
		if r.config.Warmup > 0 {
			finish()
		}
		return nil, err
	}
	o.Cold = cold
	if r.config.Warmup == 0 {
		start()
	}
	window := r.config.Duration
	if window == 0 {
		window = math.MaxInt64 // Count ends it
	}
	wait(ctx, window, idle)
	to := r.recorder.mark(&r.recorder.to)
	r.stop.Store(true)
	stopStarts()
	err = closeWindow(o, to)
	if ctx.Err() == nil {
		wait(ctx, r.config.Drain, idle)
	}
	o.Generator.Unfinished = r.recorder.unfinished()
	finish()
	r.fill(o)
	if ctx.Err() != nil {
		o.Interrupted = true
		return o, errors.Join(context.Cause(ctx), err)
	}
	return o, err
}

// wait returns after d, when the goroutines are idle, or when ctx is done.
func wait(ctx context.Context, d time.Duration, idle <-chan struct{}) {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
	case <-idle:
	case <-ctx.Done():
	}
}

// start starts the workers and, in an open loop, the dispatcher.
func (r *run) start(opCtx, startCtx context.Context) {
	if r.config.Arrivals == nil {
		for w := range r.config.Workers {
			r.workers.Go(func() { r.closedWorker(opCtx, w) })
		}
		return
	}
	r.jobs = make(chan int64, r.config.MaxBacklog)
	for w := range r.config.Workers {
		r.workers.Go(func() {
			for intended := range r.jobs {
				if r.over.Load() {
					continue // drains the starts that are left
				}
				r.once(opCtx, w, intended, r.clock.Now())
			}
		})
	}
	r.workers.Go(func() { r.dispatch(opCtx, startCtx) })
}

func (r *run) closedWorker(ctx context.Context, w int) {
	for !r.stop.Load() && r.ticket() {
		now := r.clock.Now()
		r.recorder.started(w, now)
		r.once(ctx, w, now, now)
	}
}

// ticket reports whether one more operation may be started.
func (r *run) ticket() bool {
	if r.config.Count == 0 || r.recorder.from.Load() == never {
		return true
	}
	return r.tickets.Add(1) <= r.config.Count
}

func (r *run) once(ctx context.Context, w int, intended, began int64) {
	err := r.op(ctx, w)
	end := r.clock.Now()
	given := r.over.Load() || err != nil && ctx.Err() != nil // cancelled, not answered
	if !given {
		r.recorder.ended(w, intended, began, end, err)
	}
}

// dispatch hands out starts when they are due, until startCtx ends or the count is reached. It
// never waits for a worker: that makes the loop open. If it is late at the end of the window,
// it still hands out what was due before, unless opCtx ends: a generator that stalls must not
// silently reduce its load.
func (r *run) dispatch(opCtx, startCtx context.Context) {
	defer close(r.jobs)
	s := r.config.sleeper()
	for {
		at := r.config.Arrivals.Next()
		over := s.Until(startCtx, r.clock, at) != nil || r.stop.Load()
		if opCtx.Err() != nil || over && at >= r.recorder.to.Load() {
			return
		}
		within := r.recorder.opened(at)
		if within && !r.ticket() {
			return
		}
		late := r.clock.Now() - at
		select {
		case r.jobs <- at:
			r.recorder.started(0, at)
		default:
			if within {
				r.dropped++
			}
		}
		if within {
			r.intended++
			r.late.Record(late)
			r.maxBacklog = max(r.maxBacklog, int64(len(r.jobs)))
		}
	}
}

// warmUp returns when the run has settled or Warmup has passed.
func (r *run) warmUp(ctx context.Context) *Cold {
	steady := false
	tick := time.NewTicker(time.Duration(warmInterval))
	defer tick.Stop()
	limit := time.NewTimer(r.config.Warmup)
	defer limit.Stop()
	for over := false; !over && !(steady && !r.config.FixedWarmup); {
		select {
		case <-ctx.Done():
			over = true
		case <-limit.C:
			over = true
		case <-tick.C:
			// The current interval does not count yet.
			seen := r.recorder.warm.Series().Between(0, float64(r.clock.Now())/1e9)
			_, steady = seen.SteadySince()
		}
	}
	return &Cold{Seconds: float64(r.clock.Now()) / 1e9, Steady: steady}
}

// openWindow reads all counters and opens the window. It returns a function that fills in the
// differences when the window has closed, and when that was.
func (r *run) openWindow() (*Outcome, func(o *Outcome, to int64) error, error) {
	used, err := measure.Usages(r.config.Watch)
	if err != nil {
		return nil, nil, err
	}
	machine, pauses := measure.ReadMachine(), readPauses()
	if r.config.Window != nil {
		r.config.Window()
	}
	o := &Outcome{Started: time.Now().UTC()}
	from := r.recorder.mark(&r.recorder.from)
	inFlight := r.recorder.inFlightNs(from)
	return o, func(o *Outcome, to int64) error {
		o.Seconds = float64(to-from) / 1e9
		o.MeanInFlight = float64(r.recorder.inFlightNs(to)-inFlight) / float64(max(to-from, 1))
		o.Machine = measure.ReadMachine().Since(machine)
		if o.Processes, err = used(); err != nil {
			return err
		}
		cores := min(runtime.GOMAXPROCS(0), runtime.NumCPU())
		o.Generator.CPUShare = o.Processes[measure.ClientRole].CPUSeconds() / max(o.Seconds, 1e-9) / float64(cores)
		o.Generator.PauseShare, o.Generator.PauseMaxNs = readPauses().since(pauses, o.Seconds)
		return nil
	}, nil
}

// fill adds what the goroutines recorded, all of which have returned.
func (r *run) fill(o *Outcome) {
	r.recorder.fill(o)
	if r.config.Arrivals == nil {
		return
	}
	g := &o.Generator
	g.TargetRate, g.Intended, g.Dropped, g.MaxBacklog = r.config.Arrivals.Rate(), r.intended, r.dropped, r.maxBacklog
	g.LateP50Ns, g.LateP99Ns, g.LateMaxNs = r.late.Quantile(.5), r.late.Quantile(.99), r.late.Max()
}

// pauses is the distribution of the garbage collector's pauses so far, as the runtime records
// it: in buckets of seconds.
type pauses metrics.Float64Histogram

func readPauses() *pauses {
	s := []metrics.Sample{{Name: "/sched/pauses/total/gc:seconds"}}
	metrics.Read(s)
	if s[0].Value.Kind() != metrics.KindFloat64Histogram {
		return &pauses{}
	}
	h := s[0].Value.Float64Histogram()
	return &pauses{Counts: append([]uint64(nil), h.Counts...), Buckets: h.Buckets}
}

// since returns the share of the time that pauses took, by the upper ends of their buckets, and
// the upper end of the longest pause's bucket.
func (p *pauses) since(earlier *pauses, seconds float64) (share float64, maxNs int64) {
	var total float64
	for i, n := range p.Counts {
		if i < len(earlier.Counts) {
			n -= earlier.Counts[i]
		}
		if n == 0 {
			continue
		}
		end := p.Buckets[i+1]
		if math.IsInf(end, 1) {
			end = p.Buckets[i]
		}
		total += float64(n) * end
		maxNs = int64(end * 1e9)
	}
	return total / max(seconds, 1e-9), maxNs
}
