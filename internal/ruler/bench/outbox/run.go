package outboxbench

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"time"

	"github.com/weirdb/weir/internal/lab"
	"github.com/weirdb/weir/internal/ruler/bench"
)

// Options is how the scenario is run.
type Options struct {
	// Engine is the database system. Default: PostgreSQL.
	Engine Engine
	// DSN names a database to use; tables called weir_bench_queue and the like are
	// made there and dropped. Default: a server of our own.
	DSN string
	// Durability and FsyncLatency are those of a server of our own.
	Durability   lab.Durability
	FsyncLatency time.Duration
	Plan         Plan
	Out          string // directory for results; required
	Resume       bool
	// Peers is the program that runs other outboxes. Default: they are left out.
	Peers string
	// Progress and Say tell how it goes; both may be nil.
	Progress func(bench.Progress)
	Say      func(format string, args ...any)
}

// Outcome is everything that the scenario measured.
type Outcome struct {
	Engine  Engine
	Results []*bench.Result
	// Left is what was left out, and why.
	Left []string
}

// Invalid lists the rounds in which a promise was broken.
func (o *Outcome) Invalid() []string { return Invalid(o.Results) }

// scenario is the state of one Run.
type scenario struct {
	*rig
	out *Outcome
	// best are the two combinations of the customary design with the highest
	// rates, the best first.
	best []Combination
}

// Run runs the phases of the plan. With an error it returns what was measured
// until then.
func Run(ctx context.Context, o Options) (_ *Outcome, err error) {
	o.Engine = cmp.Or(o.Engine, PostgreSQL)
	if o.Say == nil {
		o.Say = func(string, ...any) {}
	}
	if err := o.Validate(); err != nil {
		return nil, err
	}
	if err := os.MkdirAll(o.Out, 0o755); err != nil {
		return nil, fmt.Errorf("make result directory: %w", err)
	}
	r, err := startRig(ctx, o)
	if err != nil {
		return nil, err
	}
	s := &scenario{rig: r, out: &Outcome{Engine: o.Engine}, best: []Combination{{4, 200}}}
	defer func() { err = errors.Join(err, r.stop()) }()
	for _, phase := range []struct {
		name Phase
		run  func(context.Context) error
	}{
		{Screen, s.screen},
		{Focus, s.focus},
		{Payload, s.payload},
		{Enqueue, s.enqueue},
		{Mixed, s.mixed},
		{Partition, s.partition},
		{Peers, s.peers},
	} {
		if !o.Plan.has(phase.name) {
			continue
		}
		if e := phase.run(ctx); ctx.Err() != nil {
			return s.out, errors.Join(err, e)
		} else if e != nil {
			// The other phases do not depend on it.
			s.leave("phase %s: %v", phase.name, e)
			err = errors.Join(err, fmt.Errorf("phase %s: %w", phase.name, e))
		}
	}
	return s.out, err
}

// Validate returns what makes no sense.
func (o *Options) Validate() error {
	switch {
	case !slices.Contains(Engines(), o.Engine):
		return fmt.Errorf("no engine %q", o.Engine)
	case o.FsyncLatency > 0 && (o.Engine == SQLite || o.DSN != "" || o.Durability == lab.Fast):
		return errors.New("a slower disk needs a server of our own that flushes: PostgreSQL, MariaDB or MySQL with profile prod")
	}
	return nil
}

// leave notes what is left out.
func (s *scenario) leave(format string, args ...any) {
	text := fmt.Sprintf(format, args...)
	s.out.Left = append(s.out.Left, text)
	s.o.Say("left out: %s", text)
}

// do runs an experiment and keeps its result, also that of one that ended early.
func (s *scenario) do(ctx context.Context, e bench.Experiment) (*bench.Result, error) {
	res, err := s.run(ctx, e)
	if res != nil {
		s.out.Results = append(s.out.Results, res)
	}
	return res, err
}
