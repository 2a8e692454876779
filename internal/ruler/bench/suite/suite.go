// Package suite runs the benchmark of a product: it chooses the experiments, stores, saves and
// loads what they measure, judges its targets and prints the report. The package of each
// product, next to this one, says what is started and compared.
//
// A suite is a list of steps. Each step names the experiments that it makes, so that
// --experiments can choose among them before anything is started. Each experiment writes a
// directory of its name; a file next to those directories is about the whole run.
package suite

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/weirdb/weir/internal/measure"
	"github.com/weirdb/weir/internal/ruler/bench"
	"github.com/weirdb/weir/internal/ruler/bench/subject"
)

// Options is how a suite is run.
type Options struct {
	Out    string // directory for results; required
	Resume bool   // continue with the samples in Out
	// Experiments are the names or groups to run. Default: all of the plan.
	Experiments []string
	// Progress and Say report progress; both may be nil.
	Progress func(bench.Progress)
	Say      func(format string, args ...any)
}

// Step is a part of a suite.
type Step struct {
	// Group is a common name of several steps, such as "wan". May be empty.
	Group string
	// Names are the experiments that Run makes.
	Names []string
	Run   func(context.Context) error
}

// name is the name of the step in an error.
func (s *Step) name() string {
	if s.Group != "" {
		return s.Group
	}
	return s.Names[0]
}

// Choose returns the steps that have at least one of the named experiments, and the set of
// those experiments. Without names it returns all steps and nil.
func Choose(steps []Step, names []string) (chosen []Step, only map[string]bool, err error) {
	if len(names) == 0 {
		return steps, nil, nil
	}
	for _, n := range names {
		if !slices.ContainsFunc(steps, func(s Step) bool { return s.Group == n || slices.Contains(s.Names, n) }) {
			return nil, nil, fmt.Errorf("no experiment %q: want one or more of %s", n, strings.Join(Known(steps), ", "))
		}
	}
	only = make(map[string]bool)
	for _, s := range steps {
		wanted := false
		for _, n := range s.Names {
			if slices.Contains(names, s.Group) || slices.Contains(names, n) {
				only[n], wanted = true, true
			}
		}
		if wanted {
			chosen = append(chosen, s)
		}
	}
	return chosen, only, nil
}

// Known lists the names that Choose accepts: each group with its experiments in brackets.
func Known(steps []Step) []string {
	var out []string
	for i := 0; i < len(steps); {
		group, names := steps[i].Group, []string(nil)
		for ; i < len(steps) && steps[i].Group == group; i++ {
			names = append(names, steps[i].Names...)
		}
		switch {
		case group == "":
			out = append(out, names...)
		case len(names) == 1 && names[0] == group:
			out = append(out, group)
		default:
			out = append(out, group+" ("+strings.Join(names, ", ")+")")
		}
	}
	return out
}

// Outcome is what every suite returns.
type Outcome struct {
	Engine  Engine // "" if there is none
	Results []*bench.Result
	// Left lists what was left out, and why.
	Left []string
}

// Common returns the outcome itself, for types that embed it.
func (o *Outcome) Common() *Outcome { return o }

// Find returns the result of an experiment, or nil.
func (o *Outcome) Find(name string) *bench.Result {
	i := slices.IndexFunc(o.Results, func(r *bench.Result) bool { return r.Experiment.Name == name })
	if i < 0 {
		return nil
	}
	return o.Results[i]
}

// Of returns the results whose experiment has the value for the factor.
func (o *Outcome) Of(factor, value string) []*bench.Result {
	return bench.Where(o.Results, factor, value)
}

// Invalid lists the rounds that broke a promise.
func (o *Outcome) Invalid() []string {
	var out []string
	for _, r := range o.Results {
		for c, s := range r.Rounds() {
			for _, text := range s.Invalid {
				out = append(out, fmt.Sprintf("%s, %s, round %d: %s", r.Experiment.Name, c.Name, s.Round, text))
			}
		}
	}
	return out
}

// Runner runs the steps of a suite. It is not safe for concurrent use.
type Runner struct {
	Options
	Outcome *Outcome
	// Independent keeps a failed step from stopping the others.
	Independent bool
	only        map[string]bool // experiments to run; nil for all
}

// NewRunner creates the directory for results. Unless the run is resumed, it refuses one that
// holds samples of any experiment, before anything is measured.
func NewRunner(o Options, out *Outcome) (*Runner, error) {
	if o.Say == nil {
		o.Say = func(string, ...any) {}
	}
	if o.Out == "" {
		return nil, errors.New("want a directory for results")
	}
	if err := os.MkdirAll(o.Out, 0o755); err != nil {
		return nil, fmt.Errorf("make directory of results: %w", err)
	}
	if !o.Resume {
		held, err := fs.Glob(os.DirFS(o.Out), "*/"+samplesFile)
		if err != nil {
			return nil, fmt.Errorf("look for earlier results: %w", err)
		}
		if len(held) > 0 {
			return nil, fmt.Errorf("%s already holds results (%s): resume them with --resume, or name another directory", o.Out, held[0])
		}
	}
	return &Runner{Options: o, Outcome: out}, nil
}

// Run runs the chosen steps in order. It stops at the first error, unless the steps are
// independent: then it leaves out what failed and returns the errors at the end.
func (r *Runner) Run(ctx context.Context, steps []Step) error {
	chosen, only, err := Choose(steps, r.Experiments)
	if err != nil {
		return err
	}
	r.only = only
	var failed []error
	for _, s := range chosen {
		err := s.Run(ctx)
		switch {
		case err == nil:
		case ctx.Err() != nil || !r.Independent:
			return errors.Join(append(failed, err)...)
		default:
			r.Leave("%s: %v", s.name(), err)
			failed = append(failed, fmt.Errorf("%s: %w", s.name(), err))
		}
	}
	return errors.Join(failed...)
}

// Measure runs an experiment if it was chosen, and keeps its samples and its result, even of
// one that ended early. flushDir is the directory whose disk is calibrated, "" for none.
func (r *Runner) Measure(ctx context.Context, e bench.Experiment, env measure.Environment, flushDir string) (*bench.Result, error) {
	if r.only != nil && !r.only[e.Name] {
		return nil, nil
	}
	store, err := bench.OpenStore(filepath.Join(r.Out, e.Name), r.Resume, subject.All()...)
	if err != nil {
		return nil, err
	}
	r.Say("%s", e.Title)
	res, err := bench.Run(ctx, e, bench.Options{Store: store, Env: &env, FlushDir: flushDir, Progress: r.Progress})
	if res != nil {
		r.Outcome.Results = append(r.Outcome.Results, res)
	}
	return res, errors.Join(err, store.Close())
}

// Leave records what is left out, and why, once per text.
func (r *Runner) Leave(format string, args ...any) {
	text := fmt.Sprintf(format, args...)
	if !slices.Contains(r.Outcome.Left, text) {
		r.Outcome.Left = append(r.Outcome.Left, text)
		r.Say("left out: %s", text)
	}
}
