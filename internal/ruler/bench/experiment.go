package bench

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"time"

	"github.com/weirdb/weir/internal/measure"
)

// Experiment is a set of sides that are measured in turn.
type Experiment struct {
	Description
	Sides []Side
}

// Side is one way of doing the same thing.
type Side struct {
	Name    string
	Factors map[string]string
	// Setup is called once, before the side's first round, and Teardown once, after all rounds
	// of all sides. Both may be nil. All sides are set up at the same time, so an idle one must
	// cost nothing.
	Setup    func(context.Context) error
	Run      func(ctx context.Context, round int) (Sample, error)
	Teardown func(context.Context) error
}

// Options is how an experiment is run.
type Options struct {
	// Store keeps each sample as soon as it is taken, and returns the samples of an interrupted
	// run. Default: nothing is kept.
	Store *Store
	// Env is recorded in the result. Default: measure.ReadEnvironment().
	Env *measure.Environment
	// FlushDir is the directory whose disk is calibrated before and after. Default: no
	// calibration.
	FlushDir string
	// Progress is called after each sample, also one that came from the store. Default: none.
	Progress func(Progress)
}

// Progress is the state of a run after a sample.
type Progress struct {
	Experiment, Side string
	Round            int // negative in a warm-up round
	Done, Total      int // samples, including those of warm-up rounds
	Sample           Sample
	Cached           bool
}

// Order returns the order of the sides in a round: forwards in even rounds, backwards in odd
// ones (A B B A A B), so that a steady drift of the machine cancels out within two rounds.
func Order(sides, round int) []int {
	out := make([]int, sides)
	for i := range out {
		out[i] = i
	}
	if round%2 != 0 {
		slices.Reverse(out)
	}
	return out
}

// order is Order, or a random order, which is the same in each run, so that a resumed run
// continues with it.
func (e *Experiment) order(round int) []int {
	if !e.Shuffle {
		return Order(len(e.Sides), round)
	}
	return rand.New(rand.NewPCG(bootstrapSeed, uint64(int64(round)))).Perm(len(e.Sides))
}

// Run measures all sides and evaluates the result. If a side fails or ctx is done, it returns
// the error with what was measured until then: a valid result marked as partial, or nil if
// there is no sample yet. The samples are also in the store, and running again with it
// continues from there.
func Run(ctx context.Context, e Experiment, o Options) (_ *Result, err error) {
	if err := e.validate(); err != nil {
		return nil, err
	}
	r := &Result{
		Schema:     Schema,
		ID:         e.Name + "-" + time.Now().UTC().Format("20060102-150405"),
		Started:    time.Now().UTC(),
		Experiment: e.Description,
	}
	r.Experiment.Loop = cmp.Or(e.Loop, "closed")
	r.Experiment.Baseline = cmp.Or(e.Baseline, e.Sides[0].Name)
	if o.Env != nil {
		r.Env = *o.Env
	} else {
		r.Env = measure.ReadEnvironment()
	}
	if r.Env.FsyncBefore, err = calibrate(ctx, o.FlushDir); err != nil {
		return nil, err
	}
	for _, s := range e.Sides {
		r.Cases = append(r.Cases, &Case{Name: s.Name, Factors: s.Factors})
	}
	run := &runner{experiment: e, options: o, result: r, ready: make([]bool, len(e.Sides))}
	err = run.rounds(ctx)
	// Tear the sides down even if ctx is done: that is when it matters.
	err = errors.Join(err, run.teardown(context.WithoutCancel(ctx)))
	if err == nil {
		r.Env.FsyncAfter, err = calibrate(ctx, o.FlushDir)
	}
	r.Env.PressureAfter = measure.ReadPressure()
	r.Finished = time.Now().UTC()
	if err != nil {
		r.Partial = true
		r.Warnings = append(r.Warnings, "the run ended early: "+err.Error())
		r.Cases = slices.DeleteFunc(r.Cases, func(c *Case) bool { return len(c.Samples) == 0 })
		if len(r.Cases) == 0 {
			return nil, err
		}
	}
	r.Warnings = append(r.Warnings, run.foreign...)
	r.Evaluate()
	if o.Store != nil {
		err = errors.Join(err, o.Store.Finish(r))
	}
	return r, err
}

func (e *Experiment) validate() error {
	if e.Name == "" || len(e.Sides) == 0 || e.Rounds < 1 {
		return errors.New("experiment needs a name, at least one side and one round")
	}
	names := make(map[string]bool)
	for _, s := range e.Sides {
		if s.Name == "" || s.Run == nil {
			return fmt.Errorf("experiment %s: a side lacks its name or its Run", e.Name)
		}
		if names[s.Name] {
			return fmt.Errorf("experiment %s: two sides are called %q", e.Name, s.Name)
		}
		names[s.Name] = true
	}
	if e.Baseline != "" && !names[e.Baseline] {
		return fmt.Errorf("experiment %s: baseline %q is not a side", e.Name, e.Baseline)
	}
	return nil
}

// runner is the state of one Run.
type runner struct {
	experiment Experiment
	options    Options
	result     *Result
	ready      []bool // sides that were set up
	done       int
	flush      *measure.Flush // the last calibration; nil if a side has run since
	foreign    []string       // warnings about samples that another program took
}

func (r *runner) rounds(ctx context.Context) error {
	e := r.experiment
	for round := -e.Warmup; round < e.Rounds; round++ {
		for _, i := range e.order(round) {
			if err := ctx.Err(); err != nil {
				return err
			}
			if err := r.one(ctx, i, round); err != nil {
				return fmt.Errorf("experiment %s, side %s, round %d: %w", e.Name, e.Sides[i].Name, round, err)
			}
		}
	}
	return nil
}

// one takes one sample, or finds it in the store.
func (r *runner) one(ctx context.Context, i, round int) error {
	e, o := r.experiment, r.options
	key := Key(e.Description, e.Sides[i], round)
	s, cached := Sample{}, false
	if o.Store != nil {
		if round >= 0 {
			s, cached = o.Store.Sample(key)
			r.checkOrigin(key)
		} else {
			// A side with all its rounds in the store needs no warm-up either.
			cached = r.complete(i)
		}
	}
	if !cached {
		if !r.ready[i] {
			r.ready[i] = true // before Setup: a side whose Setup fails is torn down, too
			if f := e.Sides[i].Setup; f != nil {
				if err := f(ctx); err != nil {
					return fmt.Errorf("set up: %w", err)
				}
			}
		}
		var err error
		if s, err = r.measured(ctx, e.Sides[i], round); err != nil {
			return err
		}
		if round >= 0 && o.Store != nil {
			if err := o.Store.Append(key, e.Sides[i], s, originOf(&r.result.Env)); err != nil {
				return err
			}
		}
	}
	if round >= 0 {
		r.result.Cases[i].Samples = append(r.result.Cases[i].Samples, s)
	}
	r.done++
	if o.Progress != nil {
		total := (e.Warmup + e.Rounds) * len(e.Sides)
		o.Progress(Progress{e.Name, e.Sides[i].Name, round, r.done, total, s, cached})
	}
	return nil
}

// measured takes a sample between two calibrations of the disk. The one after it is also the
// one before the next sample.
func (r *runner) measured(ctx context.Context, side Side, round int) (s Sample, err error) {
	before := r.flush
	if before == nil && round >= 0 {
		if before, err = calibrateBriefly(ctx, r.options.FlushDir); err != nil {
			return s, err
		}
	}
	r.flush = nil
	started := time.Now().UTC()
	if s, err = side.Run(ctx, round); err != nil {
		return s, err
	}
	s.Round, s.Started, s.Pressure = round, started, measure.ReadPressure()
	if round < 0 {
		return s, nil
	}
	if r.flush, err = calibrateBriefly(ctx, r.options.FlushDir); err != nil {
		return s, err
	}
	s.FsyncBefore, s.FsyncAfter = before, r.flush
	return s, nil
}

// checkOrigin notes when a stored sample was taken by another build or on another machine: a
// resumed run would then mix different things.
func (r *runner) checkOrigin(key string) {
	was, ok := r.options.Store.Origin(key)
	if now := originOf(&r.result.Env); ok && was != (Origin{}) && was != now {
		text := fmt.Sprintf("samples that were kept are of %s, those of this run of %s", was, now)
		if !slices.Contains(r.foreign, text) {
			r.foreign = append(r.foreign, text)
		}
	}
}

func (r *runner) complete(side int) bool {
	for round := range r.experiment.Rounds {
		if _, ok := r.options.Store.Sample(Key(r.experiment.Description, r.experiment.Sides[side], round)); !ok {
			return false
		}
	}
	return true
}

func (r *runner) teardown(ctx context.Context) error {
	var errs []error
	for i, s := range r.experiment.Sides {
		if r.ready[i] && s.Teardown != nil {
			if err := s.Teardown(ctx); err != nil {
				errs = append(errs, fmt.Errorf("tear down side %s: %w", s.Name, err))
			}
		}
	}
	return errors.Join(errs...)
}

// Key identifies a sample across runs: by the experiment and its factors, the side and its
// factors, and the round. Changing any of them makes old samples useless, and changes the key.
func Key(d Description, s Side, round int) string {
	var b strings.Builder
	fmt.Fprintf(&b, "%s/%s/%d", d.Name, s.Name, round)
	for _, m := range []map[string]string{d.Factors, s.Factors} {
		b.WriteByte('/')
		for i, k := range slices.Sorted(maps.Keys(m)) {
			if i > 0 {
				b.WriteByte(',')
			}
			fmt.Fprintf(&b, "%s=%s", k, m[k])
		}
	}
	return b.String()
}

func calibrate(ctx context.Context, dir string) (*measure.Flush, error) {
	if dir == "" {
		return nil, nil
	}
	return measure.CalibrateFlush(ctx, dir, 300*time.Millisecond, 1000)
}

// calibrateBriefly takes at most 60 ms, as much as a round can afford: about a hundred flushes
// on a calm disk, two dozen on a slow one.
func calibrateBriefly(ctx context.Context, dir string) (*measure.Flush, error) {
	if dir == "" {
		return nil, nil
	}
	return measure.CalibrateFlush(ctx, dir, 60*time.Millisecond, 200)
}
