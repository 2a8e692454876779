package outboxbench

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/weirdb/weir/internal/lab"
	"github.com/weirdb/weir/internal/ruler/bench/suite"
)

// Options is how the benchmark is run.
type Options struct {
	suite.Options
	// Engine is the database system. Default: PostgreSQL.
	Engine suite.Engine
	// DSN names a database to use; tables called weir_bench_queue and the like are created
	// there and dropped. Default: a private server.
	DSN string
	// Durability and FsyncLatency are settings of a private server.
	Durability   lab.Durability
	FsyncLatency time.Duration
	Plan         Plan
	// Peers is the program that runs other outboxes. Default: they are left out.
	Peers string
	// Floor adds a relay that follows the log and records no deliveries to the experiments that
	// compare the customary design at its best with weir's claim modes.
	Floor bool
}

// Outcome is everything that the benchmark measured.
type Outcome struct {
	suite.Outcome `json:"-"`
}

// Targets returns none: outboxes have no targets.
func (*Outcome) Targets() []suite.Target { return nil }

// run is the state of one Run.
type run struct {
	*suite.Runner
	*rig
	// best are the two combinations of the customary design with the highest rates, the best
	// first.
	best []Combination
}

// Run runs the steps of the plan. With an error it returns what was measured until then.
func Run(ctx context.Context, o Options) (_ *Outcome, err error) {
	o.Engine = cmp.Or(o.Engine, suite.PostgreSQL)
	if err := o.Validate(); err != nil {
		return nil, err
	}
	out := &Outcome{suite.Outcome{Engine: o.Engine}}
	s := &run{best: []Combination{{4, 200}}}
	if s.Runner, err = suite.NewRunner(o.Options, &out.Outcome); err != nil {
		return nil, err
	}
	s.Independent = true
	o.Options = s.Options
	if s.rig, err = startRig(ctx, o); err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, s.stop()) }()
	return out, s.Run(ctx, s.steps())
}

// Steps are the steps of a plan, in order.
func Steps(o Options) []suite.Step { return (&run{rig: &rig{o: o}}).steps() }

func (s *run) steps() []suite.Step {
	p := s.o.Plan
	out := []suite.Step{
		{Group: Screen, Names: []string{"screen"}, Run: s.screen},
		{Group: Focus, Names: []string{"focus"}, Run: s.focus},
	}
	add := func(group, name string, run func(context.Context) error) {
		out = append(out, suite.Step{Group: group, Names: []string{name}, Run: run})
	}
	for _, n := range p.Lengths {
		name := fmt.Sprintf("records-%d", n)
		add(Records, name, func(ctx context.Context) error { return s.length(ctx, name, n) })
	}
	for _, sweep := range []struct {
		sizes   []int
		records int64
	}{{p.Payloads, p.Records}, {p.LargePayloads, p.LargeRecords}} {
		for _, size := range sweep.sizes {
			name := fmt.Sprintf("payload-%d", size)
			add(Payload, name, func(ctx context.Context) error { return s.payload(ctx, name, size, sweep.records) })
		}
	}
	for _, n := range p.Producers {
		name := fmt.Sprintf("enqueue-%d", n)
		add(Enqueue, name, func(ctx context.Context) error { return s.enqueue(ctx, name, n) })
	}
	for _, n := range p.MixedProducers {
		name := fmt.Sprintf("mixed-%d", n)
		add(Mixed, name, func(ctx context.Context) error { return s.mixed(ctx, name, n) })
	}
	for _, rate := range p.Rates {
		name := fmt.Sprintf("rate-%g", rate)
		add(Mixed, name, func(ctx context.Context) error { return s.offered(ctx, name, rate) })
	}
	for _, n := range p.GridProducers {
		name := fmt.Sprintf("grid-%d", n)
		add(Grid, name, func(ctx context.Context) error { return s.mixedGrid(ctx, name, n) })
	}
	for _, size := range p.OutOfBand {
		name := fmt.Sprintf("out-of-band-%d", size)
		add(OutOfBand, name, func(ctx context.Context) error { return s.outOfBand(ctx, name, size) })
	}
	if n := len(p.OutOfBand); n > 0 {
		size := p.OutOfBand[n/2]
		name := fmt.Sprintf("out-of-band-enqueue-%d", size)
		add(OutOfBand, name, func(ctx context.Context) error { return s.outOfBandEnqueue(ctx, name, size) })
	}
	add(Partition, "partition", s.partition)
	peers := suite.Step{Group: Peers, Names: []string{"peers"}, Run: s.peers}
	for _, n := range p.MixedProducers {
		peers.Names = append(peers.Names, fmt.Sprintf("peers-mixed-%d", n))
	}
	return append(out, peers)
}

// Validate returns an error for contradictory options.
func (o *Options) Validate() error {
	switch {
	case !slices.Contains(Engines(), o.Engine):
		return fmt.Errorf("no engine %q", o.Engine)
	case o.FsyncLatency > 0 && (o.Engine == suite.SQLite || o.DSN != "" || o.Durability == lab.Fast):
		return errors.New("a slower disk needs a private server that flushes: PostgreSQL, MariaDB or MySQL with durability prod")
	}
	return nil
}
