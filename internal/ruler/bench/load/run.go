package load

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/weirdb/weir/internal/measure"
	"github.com/weirdb/weir/internal/ruler/bench"
)

// Config is one run of the generator.
type Config struct {
	// DSN names the server, in the form of the engine. It must not request TLS. Required.
	DSN string
	// Workload is what to run. Required.
	Workload Workload
	// Connections is the number of clients, each with one operation in flight.
	// Default: 1.
	Connections int
	// Threads drive the connections. Default: 2, but never more than Connections.
	Threads int
	// Text sends each operation as its own statement with literals (PostgreSQL's simple
	// protocol, MySQL's COM_QUERY) instead of executing a statement that was prepared once per
	// connection. Default: prepared.
	Text bool
	// Warmup is the time from the first operation to the measured window.
	// Default: none.
	Warmup time.Duration
	// Duration of the measured window. Duration or Count is required; with both, the first one
	// reached ends the run.
	Duration time.Duration
	// Count of the operations sent within the measured window.
	Count int64
	// Drain is how long to wait for answers after the window. Operations without an answer by
	// then count as unknown. Default: 10 s.
	Drain time.Duration
	// Watch reads the usage of each role's processes at both ends of the window.
	// bench.RoleClient need not be given: it is this process.
	Watch map[string]func() (measure.Usage, error)
	// Live, if not nil, counts the operations answered as expected, including warm-up and
	// drain.
	Live *atomic.Int64
}

func (c Config) withDefaults() Config {
	c.Connections = cmp.Or(c.Connections, 1)
	c.Threads = min(cmp.Or(c.Threads, 2), c.Connections)
	c.Drain = cmp.Or(c.Drain, 10*time.Second)
	return c
}

// Validate returns what is missing or invalid.
func (c Config) Validate() error {
	switch {
	case c.DSN == "" || c.Workload == nil:
		return errors.New("load needs a DSN and a workload")
	case c.Duration <= 0 && c.Count <= 0:
		return errors.New("load needs a duration or a count")
	case c.Connections < 0 || c.Threads < 0 || c.Warmup < 0 || c.Drain < 0:
		return errors.New("load: connections, threads and times must not be negative")
	}
	return nil
}

// Outcome is the outcome of a run.
type Outcome struct {
	// Sample is complete except for Server and Groups. Ops counts answers as expected,
	// including expected failures.
	Sample bench.Sample
	// TotalOps counts all operations answered as expected, including warm-up and drain: the
	// divisor for server counters over the whole run.
	TotalOps int64
	Ledger   *Ledger
	// Clients are the clients of the run, by number, with the state that they have kept.
	Clients []Client
	// WrongExamples describes the first answers that were not as expected.
	WrongExamples []string
}

// The phases of a run. Each thread checks the phase once per operation.
const (
	phaseWarmup int32 = iota
	phaseMeasure
	phaseDrain // wait for answers, send nothing
	phaseAbort // stop immediately
)

// control is shared by the threads of a run.
type control struct {
	phase atomic.Int32
	limit int64        // of tickets; 0 for none
	sent  atomic.Int64 // tickets taken, when there is a limit
	clock measure.Clock
	live  *atomic.Int64 // nil if unused
}

// ticket reports whether one more operation may be sent.
func (c *control) ticket(phase int32) bool {
	switch {
	case phase >= phaseDrain:
		return false
	case c.limit == 0 || phase == phaseWarmup:
		return true
	default:
		return c.sent.Add(1) <= c.limit
	}
}

// Run opens all connections, drives them, closes them and returns the outcome. If ctx is done,
// the run ends early with an error. The tables must exist. Callers use pgload.Run or
// myload.Run, which call it.
func Run(ctx context.Context, c Config, dial Dial) (*Outcome, error) {
	if err := c.Validate(); err != nil {
		return nil, err
	}
	c = c.withDefaults()
	ctl := &control{limit: c.Count, clock: measure.NewClock(), live: c.Live}
	loops := make([]*loop, c.Threads)
	for i := range loops {
		l, err := newLoop(ctl)
		if err != nil {
			return nil, err
		}
		defer l.close()
		loops[i] = l
	}
	if err := connectAll(ctx, c, loops, dial); err != nil {
		return nil, err
	}
	threads := &threadGroup{loops: loops, control: ctl, done: make(chan struct{})}
	sample, err := threads.runPhases(ctx, c)
	if err := errors.Join(err, threads.wait()); err != nil {
		return nil, err
	}
	return collect(c, loops, sample), nil
}

// threadGroup is the threads of a run.
type threadGroup struct {
	loops   []*loop
	control *control
	started bool
	err     error         // set before done is closed
	done    chan struct{} // closed when all threads have returned
}

func (w *threadGroup) start() {
	w.started = true
	var threads errgroup.Group
	for _, l := range w.loops {
		threads.Go(l.run)
	}
	go func() {
		w.err = threads.Wait()
		close(w.done)
	}()
}

// wait waits for all threads to return.
func (w *threadGroup) wait() error {
	if !w.started {
		return nil
	}
	<-w.done
	return w.err
}

func (w *threadGroup) enter(phase int32) {
	w.control.phase.Store(phase)
	for _, l := range w.loops {
		l.wake()
	}
}

// connectAll opens the connections and distributes them over the threads.
func connectAll(ctx context.Context, c Config, loops []*loop, dial Dial) error {
	conns := make([]net.Conn, c.Connections)
	clients := make([]Client, c.Connections)
	g, gctx := errgroup.WithContext(ctx)
	g.SetLimit(16) // the server starts a process or a thread for each
	for i := range conns {
		g.Go(func() (err error) {
			if conns[i], clients[i], err = dial(gctx, i); err != nil {
				return fmt.Errorf("connect client %d: %w", i, err)
			}
			return nil
		})
	}
	if err := g.Wait(); err != nil {
		for _, nc := range conns {
			if nc != nil {
				_ = nc.Close() // the run does not start
			}
		}
		return err
	}
	var err error
	for i, nc := range conns {
		err = errors.Join(err, loops[i%len(loops)].adopt(i, nc, clients[i]))
	}
	return err
}

// runPhases starts the threads and moves them through the phases.
func (w *threadGroup) runPhases(ctx context.Context, c Config) (bench.Sample, error) {
	s := bench.Sample{InFlight: c.Connections}
	defer w.enter(phaseAbort)
	window := bench.Window{
		Warmup: c.Warmup, Duration: c.Duration, Drain: c.Drain, Watch: c.Watch, Clock: w.control.clock,
		Start: w.start, Open: func(int64) { w.enter(phaseMeasure) }, Close: func(int64) { w.enter(phaseDrain) }, Done: w.done,
	}
	err := window.Run(ctx, &s)
	return s, err
}

// collect adds up the counts of the threads.
func collect(c Config, loops []*loop, s bench.Sample) *Outcome {
	o := &Outcome{Sample: s, Ledger: &Ledger{clients: make([]clientLedger, c.Connections)}, Clients: make([]Client, c.Connections)}
	o.Sample.Latency = &measure.Hist{}
	errs := make(map[string]int64)
	for _, l := range loops {
		o.Sample.Ops += l.ops
		o.TotalOps += l.totalOps
		o.Sample.Latency.Merge(&l.latency)
		for class, n := range l.errors {
			errs[class] += n
		}
		o.WrongExamples = append(o.WrongExamples, l.examples...)
		for _, conn := range l.conns {
			conn.settle()
			o.Ledger.clients[conn.id] = conn.ledger
			o.Clients[conn.id] = conn.client
		}
	}
	if len(errs) > 0 {
		o.Sample.Errors = errs
	}
	return o
}
