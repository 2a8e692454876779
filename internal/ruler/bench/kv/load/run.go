package kvload

import (
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"runtime"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/weirdb/weir/internal/measure"
	"github.com/weirdb/weir/internal/ruler/bench"
)

// Config is the configuration of a run.
type Config struct {
	// Driver opens the sessions. Required.
	Driver Driver
	// Workload is what they do.
	Workload Workload
	// Streams is the number of sessions, and Pendings the number of operations that each has in
	// flight. Default: 1.
	Streams, Pendings int
	// Warmup is the time from the first operation to the window. Default: none.
	Warmup time.Duration
	// Duration of the window. Duration or Count is required; with both, the first one reached
	// ends the run.
	Duration time.Duration
	// Count of the operations that start within the window, over all streams.
	Count int64
	// Drain is how long to wait for answers after the window. Default: 10 s.
	Drain time.Duration
	// Watch reads the usage of each role's processes at both ends of the window.
	// bench.RoleClient need not be given: it is this process.
	Watch map[string]func() (measure.Usage, error)
	// Live, if not nil, counts operations as they are answered.
	Live *atomic.Int64
}

func (c Config) withDefaults() Config {
	c.Streams, c.Pendings, c.Drain = cmp.Or(c.Streams, 1), cmp.Or(c.Pendings, 1), cmp.Or(c.Drain, 10*time.Second)
	c.Workload = c.Workload.withDefaults()
	return c
}

// Validate returns what is missing or invalid.
func (c Config) Validate() error {
	switch {
	case c.Driver == nil:
		return errors.New("load needs a driver")
	case c.Duration <= 0 && c.Count <= 0:
		return errors.New("load needs a duration or a count")
	case c.Streams < 0 || c.Pendings < 0 || c.Warmup < 0 || c.Duration < 0 || c.Count < 0 || c.Drain < 0:
		return errors.New("load: streams, pendings, counts and times must not be negative")
	}
	return c.Workload.Validate()
}

// Outcome is the outcome of a run.
type Outcome struct {
	// Sample is the complete sample. Wrong answers make it invalid.
	Sample bench.Sample
	// TotalOps counts all operations answered as expected, including warm-up and drain.
	TotalOps int64
}

// seriesInterval is the interval of the time series.
const seriesInterval = 250 * time.Millisecond

// Run opens all sessions, keeps their operations in flight, closes them and returns the
// outcome. If ctx is done, the run ends early with an error.
func Run(ctx context.Context, c Config) (*Outcome, error) {
	c = c.withDefaults()
	if err := c.Validate(); err != nil {
		return nil, err
	}
	shards := min(c.Streams, 4*runtime.GOMAXPROCS(0))
	ctl := &control{
		workload: c.Workload, run: rand.Text()[:8], names: c.Workload.keyNames(), promises: c.Driver.Promises(), clock: measure.NewClock(),
		limit: c.Count, shards: make([]shard, shards), timeline: measure.NewTimeline(shards, int64(seriesInterval)), live: c.Live,
	}
	ctl.from.Store(never)
	ctl.to.Store(never)
	clients, err := openAll(ctx, c)
	if err != nil {
		return nil, err
	}
	run := &running{config: c, control: ctl, clients: clients, done: make(chan struct{})}
	s, err := run.runPhases(ctx)
	run.closeAll()
	if errors.Is(err, errBroken) {
		err = nil // wait returns the stream's own error
	}
	if err := errors.Join(err, run.wait()); err != nil {
		return nil, err
	}
	return run.collect(s), nil
}

func openAll(ctx context.Context, c Config) ([]Client, error) {
	clients := make([]Client, c.Streams)
	g, gctx := errgroup.WithContext(ctx)
	g.SetLimit(16)
	for i := range clients {
		g.Go(func() (err error) {
			if clients[i], err = c.Driver.Open(gctx, i, c.Pendings); err != nil {
				return fmt.Errorf("open stream %d: %w", i, err)
			}
			return nil
		})
	}
	err := g.Wait()
	if err != nil {
		for _, k := range clients {
			if k != nil {
				err = errors.Join(err, k.Close())
			}
		}
		return nil, err
	}
	return clients, nil
}

// errBroken means that a stream has ended with an error.
var errBroken = errors.New("a stream has failed")

// running is the state of one Run.
type running struct {
	config  Config
	control *control
	clients []Client
	streams sync.WaitGroup
	started bool
	done    chan struct{} // closed when all streams have returned
	giveUp  context.CancelCauseFunc

	mu         sync.Mutex // guards all below
	errs       []error
	unfinished int64
	givenUp    bool // the sessions were closed before all answers had come
}

// start starts the streams.
func (r *running) start() {
	r.started = true
	for i, client := range r.clients {
		s := newStream(r.control, i, r.config.Pendings, client)
		r.streams.Go(func() {
			err := s.run()
			r.mu.Lock()
			defer r.mu.Unlock()
			r.unfinished += int64(s.underway)
			if err != nil && !r.givenUp {
				r.errs = append(r.errs, err)
				r.giveUp(errBroken)
			}
		})
	}
	go func() { r.streams.Wait(); close(r.done) }()
}

// runPhases takes the run through warm-up, window and drain.
func (r *running) runPhases(ctx context.Context) (s bench.Sample, err error) {
	c, k := r.config, r.control
	s.InFlight = c.Streams * c.Pendings
	defer k.stop.Store(true)
	ctx, r.giveUp = context.WithCancelCause(ctx)
	defer r.giveUp(nil)
	window := bench.Window{
		Warmup: c.Warmup, Duration: c.Duration, Drain: c.Drain, Watch: c.Watch, Clock: k.clock,
		Start: r.start, Open: k.from.Store, Close: func(now int64) { k.to.Store(now); k.stop.Store(true) }, Done: r.done,
	}
	if err = window.Run(ctx, &s); s.Seconds > 0 {
		cores := min(runtime.GOMAXPROCS(0), runtime.NumCPU())
		s.Generator = &measure.Generator{CPUShare: s.Processes[bench.RoleClient].CPUSeconds() / max(s.Seconds, 1e-9) / float64(cores)}
	}
	return s, err
}

// closeAll closes the sessions, which ends the streams that still wait.
func (r *running) closeAll() {
	r.mu.Lock()
	r.givenUp = true
	r.mu.Unlock()
	for _, k := range r.clients {
		if err := k.Close(); err != nil {
			r.mu.Lock()
			r.errs = append(r.errs, fmt.Errorf("close session: %w", err))
			r.mu.Unlock()
		}
	}
}

func (r *running) wait() error {
	if r.started {
		<-r.done
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	return errors.Join(r.errs...)
}

// collect adds up the streams' records.
func (r *running) collect(s bench.Sample) *Outcome {
	o := &Outcome{Sample: s}
	part, all := r.control.kv()
	o.Sample.Parts, o.Sample.Latency = []bench.Part{part}, all
	o.Sample.Ops = int64(o.Sample.Latency.Count())
	o.Sample.Series = r.control.timeline.Series()
	o.Sample.Generator.Unfinished = r.unfinished
	failed := &measure.Hist{}
	errs := make(map[string]int64)
	for i := range r.control.shards {
		k := &r.control.shards[i]
		o.TotalOps += k.total
		failed.Merge(&k.failed)
		for class, n := range k.errors {
			errs[class] += n
		}
	}
	if len(errs) > 0 {
		o.Sample.Errors, o.Sample.FailedLatency = errs, failed
	}
	o.Sample.Invalid = part.Broken()
	return o
}
