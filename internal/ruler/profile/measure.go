package profile

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/weirdb/weir/internal/lab"
	"github.com/weirdb/weir/internal/measure"
	"github.com/weirdb/weir/internal/measure/loop"
	"github.com/weirdb/weir/internal/ruler/bench"
)

// Transport is how connections reach the server. The zero value means as in the DSN.
type Transport struct {
	// Kind is "", "tcp" or "unix". The latter two need a server on this machine.
	Kind string
	// RTT is the delay that a relay adds to each round trip.
	RTT time.Duration
	// Jitter is the largest further delay of a round trip. Loss is the share of packets, in [0,
	// 1], that are lost and sent again in each direction.
	Jitter time.Duration
	Loss   float64
}

// relayed reports whether connections go through a relay.
func (t Transport) relayed() bool { return t.RTT > 0 || t.Jitter > 0 || t.Loss > 0 }

func (t Transport) String() string {
	switch {
	case t.Jitter > 0 || t.Loss > 0:
		return fmt.Sprintf("netem:delay=%v,jitter=%v,loss=%g%%", t.RTT, t.Jitter, 100*t.Loss)
	case t.RTT > 0:
		return "rtt:" + t.RTT.String()
	case t.Kind == "":
		return "as given"
	default:
		return t.Kind
	}
}

// ParseTransport parses what String returns: tcp, unix, or rtt:1ms.
func ParseTransport(s string) (Transport, error) {
	if s == "tcp" || s == "unix" {
		return Transport{Kind: s}, nil
	}
	if len(s) > 4 && s[:4] == "rtt:" {
		d, err := time.ParseDuration(s[4:])
		if err == nil && d > 0 && d <= time.Minute {
			return Transport{RTT: d}, nil
		}
	}
	return Transport{}, fmt.Errorf("transport %q: want tcp, unix, or rtt: and a time, such as rtt:1ms", s)
}

// ParseNetem parses network impairments in the form of tc netem: delay=10ms,jitter=2ms,loss=1%.
// Omitted ones are zero; delay and jitter are per round trip.
func ParseNetem(s string) (Transport, error) {
	var t Transport
	for _, part := range strings.Split(s, ",") {
		key, value, _ := strings.Cut(strings.TrimSpace(part), "=")
		var err error
		switch key {
		case "delay":
			t.RTT, err = time.ParseDuration(value)
		case "jitter":
			t.Jitter, err = time.ParseDuration(value)
		case "loss":
			number, percent := strings.CutSuffix(value, "%")
			if t.Loss, err = strconv.ParseFloat(number, 64); percent {
				t.Loss /= 100
			}
		default:
			err = errors.New("unknown")
		}
		if err != nil {
			return t, fmt.Errorf("%q: want delay=, jitter= and loss=, such as delay=10ms,jitter=2ms,loss=1%%", s)
		}
	}
	switch {
	case t.RTT < 0 || t.Jitter < 0 || t.RTT > time.Minute || t.Jitter > time.Minute:
		return t, fmt.Errorf("%q: delay and jitter want 0 to 1m", s)
	case t.Loss < 0 || t.Loss > 0.5:
		return t, fmt.Errorf("%q: loss wants 0 to 0.5, or to 50%%", s)
	case !t.relayed():
		return t, fmt.Errorf("%q changes nothing", s)
	}
	return t, nil
}

// Config is one way of running a workload.
type Config struct {
	// Mode is how workers run. Default: Async.
	Mode Mode
	// Concurrency is the number of workers. Default: 10.
	Concurrency int
	// PoolMax is the largest number of connections of the pool. Default: Concurrency.
	PoolMax int
	// Driver is one of the engine's Drivers. Default: the first of them.
	Driver string
	// Transport is how connections reach the server. Default: as in the DSN.
	Transport Transport
	// Rate is the number of operations per second that are started, whether or not others have
	// ended. Default: 0, a closed loop.
	Rate float64
	// Requests ends the window after that many operations, Duration after that time. Default: 2
	// s if there are no Requests.
	Requests int64
	Duration time.Duration
	// Warmup is the longest wait for the rate to settle. Default: 3 s.
	Warmup time.Duration
	// Cold measures from an empty pool, without any warm-up. Default: the connections that the
	// workers can use are opened first.
	Cold bool
	// Deep observes the inside of the server by whatever this machine allows, at a cost that
	// the figures show.
	Deep bool
}

// WithDefaults returns the configuration with defaults for unset fields.
func (c Config) WithDefaults(engine string) Config {
	c.Mode = cmp.Or(c.Mode, Async)
	c.Concurrency = cmp.Or(c.Concurrency, 10)
	if c.Mode == Sequential {
		c.Concurrency = 1
	}
	c.PoolMax = cmp.Or(c.PoolMax, c.Concurrency)
	if d := Drivers(engine); c.Driver == "" && len(d) > 0 {
		c.Driver = d[0]
	}
	if c.Requests == 0 {
		c.Duration = cmp.Or(c.Duration, 2*time.Second)
	}
	c.Warmup = cmp.Or(c.Warmup, 3*time.Second)
	return c
}

// Validate returns why the target cannot be measured with a configuration, which has its
// defaults.
func (t *Target) Validate(c Config) error {
	switch c.Mode {
	case Sequential, Threads, Async:
	default:
		return fmt.Errorf("mode %q: want sequential, threads or async", c.Mode)
	}
	switch {
	case c.Concurrency < 1 || c.Concurrency > maxWorkers:
		return fmt.Errorf("concurrency %d: want 1 to %d", c.Concurrency, maxWorkers)
	case c.PoolMax < 1 || c.PoolMax > maxWorkers:
		return fmt.Errorf("pool of %d: want 1 to %d", c.PoolMax, maxWorkers)
	case c.Requests < 0 || c.Duration < 0 || c.Warmup < 0 || c.Rate < 0:
		return errors.New("requests, duration, warm-up and rate must not be negative")
	case c.Requests == 0 && c.Duration == 0:
		return errors.New("nothing to do: no requests and no duration")
	}
	if err := checkDriver(t.Engine, c.Driver); err != nil {
		return err
	}
	if t.Engine == EngineSleep {
		if c.Transport != (Transport{}) {
			return errors.New("sleep has no transport: there is no server")
		}
		return nil
	}
	switch {
	case c.Transport.Kind == "unix" && t.local.socket == "":
		return errors.New("transport unix: no socket of the server was found on this machine")
	case (c.Transport.Kind == "tcp" || c.Transport.relayed()) && t.local.tcp == "":
		return fmt.Errorf("transport %s: the server was not found on this machine", c.Transport)
	}
	return t.Fits(c.PoolMax)
}

// maxWorkers limits workers and connections: each worker is a goroutine with a stack, and each
// connection is a process or a thread of the server.
const maxWorkers = 10_000

// ErrNothing says that no operation succeeded within a window, or a slice of one.
var ErrNothing = errors.New("no operation succeeded")

// Measure runs the workload once as configured. If ctx ends during the window, the sample
// covers the time until then and the error is ctx's cause; if it ends earlier, the sample has
// no operations.
func (t *Target) Measure(ctx context.Context, w *Workload, c Config) (_ bench.Sample, err error) {
	c = c.WithDefaults(t.Engine)
	if err := t.Validate(c); err != nil {
		return bench.Sample{}, err
	}
	run, err := t.begin(ctx, w, c)
	if err != nil {
		return bench.Sample{}, err
	}
	defer func() { err = errors.Join(err, run.end()) }()
	return run.measure()
}

// run is one run of a workload.
type run struct {
	target *Target
	config Config
	// ctx ends when the caller's context does, or when no operation succeeds.
	ctx    context.Context
	cancel context.CancelCauseFunc
	relay  *lab.Relay
	dial   *dialer
	pool   pool
	load   *load
	// filled counts the connections opened before the loop began, opened those opened before
	// the window.
	filled, opened int64
}

// begin opens what a run needs.
func (t *Target) begin(ctx context.Context, w *Workload, c Config) (_ *run, err error) {
	r := &run{target: t, config: c, dial: &dialer{clock: newClock()}}
	r.ctx, r.cancel = context.WithCancelCause(ctx)
	defer func() {
		if err != nil {
			err = errors.Join(err, r.end())
		}
	}()
	switch {
	case c.Transport.relayed():
		if r.relay, err = lab.StartRelay(t.local.tcp); err != nil {
			return nil, err
		}
		for _, d := range []lab.Direction{lab.ToServer, lab.ToClient} {
			r.relay.SetLink(d, lab.Link{Delay: c.Transport.RTT / 2, Jitter: c.Transport.Jitter / 2, Loss: c.Transport.Loss})
		}
		r.dial.network, r.dial.address = "tcp", r.relay.Addr()
	case c.Transport.Kind == "tcp":
		r.dial.network, r.dial.address = "tcp", t.local.tcp
	case c.Transport.Kind == "unix":
		r.dial.network, r.dial.address = "unix", t.local.socket
	}
	if r.pool, err = t.openPool(ctx, poolConfig{max: c.PoolMax, dial: r.dial, driver: c.Driver}); err != nil {
		return nil, err
	}
	r.load = newLoad(ctx, r.cancel, c.Mode, c.Concurrency, r.dial, r.pool, w)
	return r, nil
}

// end closes what begin opened.
func (r *run) end() error {
	r.cancel(nil)
	if r.pool != nil {
		r.pool.close()
	}
	if r.relay != nil {
		return r.relay.Close()
	}
	return nil
}

// loopConfig is the configuration of the loop for the run.
func (r *run) loopConfig() (loop.Config, error) {
	c := r.config
	out := loop.Config{
		Workers: c.Concurrency, Duration: c.Duration, Count: c.Requests, Warmup: c.Warmup,
		Interval: max(100*time.Millisecond, c.Duration/20), Classify: classify, Ended: r.load.record,
	}
	if c.Cold {
		out.Warmup = 0
	}
	if c.Rate > 0 {
		var err error
		if out.Arrivals, err = loop.Constant(c.Rate); err != nil {
			return out, err
		}
	}
	if _, ok := r.target.usage(); ok {
		out.Watch = map[string]func() (measure.Usage, error){
			bench.RoleServer: func() (measure.Usage, error) {
				u, ok := r.target.usage()
				if !ok {
					return u, errors.New("the server's process is gone")
				}
				return u, nil
			},
		}
	}
	return out, nil
}

// measure runs the loop and converts its outcome to a sample.
func (r *run) measure() (bench.Sample, error) {
	lc, err := r.loopConfig()
	if err != nil {
		return bench.Sample{}, err
	}
	if !r.config.Cold {
		if err := r.pool.fill(r.ctx, min(r.config.PoolMax, r.config.Concurrency)); err != nil {
			return bench.Sample{}, fmt.Errorf("open connections: %w", err)
		}
		r.filled = r.pool.opened()
	}
	inside := r.target.watchServer(r.ctx, r.config)
	lc.Window = func() {
		r.opened = r.pool.opened()
		inside.windowOpens()
	}
	o, err := loop.Run(r.ctx, lc, r.load.op)
	close(r.load.over)
	inside.windowCloses()
	if cause := context.Cause(r.ctx); cause != nil {
		err = cause
	}
	if o == nil {
		return bench.Sample{}, errors.Join(err, inside.close())
	}
	s := r.sample(o)
	// Servers report some counters only when the session ends.
	r.pool.close()
	inside.report(&s, r.load.ended.Load())
	err = errors.Join(err, inside.close())
	if err == nil && s.Ops == 0 {
		return s, fmt.Errorf("%w: %s", ErrNothing, describeErrors(s.Errors))
	}
	return s, err
}

// sample converts a loop's outcome to a sample.
func (r *run) sample(o *loop.Outcome) bench.Sample {
	s := bench.SampleOf(o)
	s.Boundary = r.load.warm.boundary()
	if r.config.Rate == 0 {
		s.InFlight = r.config.Concurrency
	}
	r.describe(s.Boundary)
	s.Boundary.Connects = r.pool.opened() - r.opened
	s.Boundary.Cold = r.config.Cold
	if s.Cold != nil {
		s.Cold.Boundary = r.load.cold.boundary()
		r.describe(s.Cold.Boundary)
		s.Cold.Boundary.Connects = r.opened - r.filled
	}
	return s
}

func (r *run) describe(b *bench.Boundary) {
	b.PoolMax = r.config.PoolMax
	b.ArrivalKnown = r.dial.stamped.Load() || r.target.Engine == EngineSleep
	if !b.ArrivalKnown {
		b.Unavailable = append(b.Unavailable, "arrival of answers: the kernel only stamps TCP packets, so wake is part of server")
	}
}

// describeErrors formats errors by class, the most frequent first.
func describeErrors(errors map[string]int64) string {
	if len(errors) == 0 {
		return "none ended within the window"
	}
	return joinCounts(errors)
}
