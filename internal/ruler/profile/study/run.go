package study

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"

	"github.com/weirdb/weir/internal/measure"
	"github.com/weirdb/weir/internal/ruler/bench"
	"github.com/weirdb/weir/internal/ruler/profile"
)

// Study is a workload, and the ways of running it that are compared.
type Study struct {
	// Name is that of the result file, Title that of the report.
	Name, Title string
	Axes        Axes
	// Workload is a built-in workload, with tables of Rows rows. If Script is given, it is that
	// script's name.
	Workload, Script string
	Rows             int
	// Rounds of each case. Default: 3.
	Rounds int
	// OverheadPairs is the number of pairs of slices with which the cost of tracing is
	// measured, at the smallest and at the largest concurrency. Default: 0, not measured.
	OverheadPairs int
	// Tools are those under which one case is run again at the end: strace, perf.
	Tools []string

	// Passes are the results of these runs.
	Passes []Pass
}

// Options is how a study is run.
type Options struct {
	// Store keeps samples and results. Default: nothing is kept.
	Store *bench.Store
	// Durability is the durability setting of the server, if known.
	Durability string
	// FlushDir is a directory on the disk of the server's data. Default: no calibration.
	FlushDir string
	Progress func(bench.Progress)
	// Say reports slow steps. Default: none.
	Say func(format string, args ...any)
}

// cleanUpPatience limits the cleaning up after an interruption.
const cleanUpPatience = 10e9

// Run creates the workload's tables, measures all cases in turn, and drops the tables. An
// interrupted run returns what was measured, marked as partial, with the cause.
func (s *Study) Run(ctx context.Context, t *profile.Target, o Options) (_ *bench.Result, err error) {
	if s.Rounds == 0 {
		s.Rounds = 3
	}
	if o.Say == nil {
		o.Say = func(string, ...any) {}
	}
	list := s.Axes.cases(t.Engine)
	if err := validate(t, list); err != nil {
		return nil, err
	}
	w, err := s.prepare(ctx, t)
	if err != nil {
		return nil, err
	}
	defer func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), cleanUpPatience)
		defer cancel()
		err = errors.Join(err, w.Drop(ctx))
	}()
	overhead, missing, err := s.overhead(ctx, t, w, list, o)
	if err != nil {
		return nil, err
	}
	env := measure.ReadEnvironment()
	env.Durability = o.Durability
	if t.Engine != profile.EngineSleep {
		env.Servers = []measure.Server{t.Server()}
	}
	r, err := bench.Run(ctx, s.experiment(t, w, list), bench.Options{Store: o.Store, Env: &env, FlushDir: o.FlushDir, Progress: o.Progress})
	if err == nil && r != nil {
		s.Passes, err = s.passes(ctx, t, w, list, o)
	}
	if r != nil {
		r.Overhead = overhead
		r.Warnings = append(r.Warnings, missing...)
		if note := profile.Verification(t.Engine); note != "" {
			r.Warnings = append(r.Warnings, t.Engine+": "+note)
		}
		if o.Store != nil {
			err = errors.Join(err, o.Store.Finish(r))
		}
	}
	return r, err
}

func (s *Study) prepare(ctx context.Context, t *profile.Target) (*profile.Workload, error) {
	if s.Script != "" {
		return t.ScriptWorkload(s.Workload, s.Script)
	}
	return t.Prepare(ctx, s.Workload, s.Rows)
}

// experiment makes a side of each case.
func (s *Study) experiment(t *profile.Target, w *profile.Workload, list []caseOf) bench.Experiment {
	e := bench.Experiment{Description: bench.Description{
		Name: s.Name, Title: s.Title, Rounds: s.Rounds, Factors: common(list), Loop: "closed",
	}}
	e.Factors["engine"], e.Factors["workload"] = t.Engine, w.Name
	// Everything that makes samples different: a resumed run reuses those with the same
	// factors.
	switch b := s.Axes.Base; {
	case b.Requests > 0:
		e.Factors["window"] = strconv.FormatInt(b.Requests, 10) + " operations"
	default:
		e.Factors["window"] = b.Duration.String()
	}
	if s.Script == "" {
		e.Factors["rows"] = strconv.Itoa(s.Rows)
	} else {
		e.Factors["script"] = fmt.Sprintf("%.8x", sha256.Sum256([]byte(s.Script)))
	}
	if rate := s.Axes.Base.Rate; rate > 0 {
		e.Loop, e.Factors["rate"] = "open", fmt.Sprintf("%g/s", rate)
	}
	e.Sweep, e.SweepUnit = sweptFactor(list)
	for _, c := range list {
		f := maps.Clone(c.factors)
		maps.DeleteFunc(f, func(k, _ string) bool { return !varies(list, k) })
		e.Sides = append(e.Sides, bench.Side{
			Name: c.name, Factors: f,
			Run: func(ctx context.Context, _ int) (bench.Sample, error) {
				sample, err := t.Measure(ctx, w, c.config)
				if ctx.Err() != nil && sample.Ops > 0 {
					return sample, nil // valid for the time that it covers, and marked partial
				}
				return sample, err
			},
		})
	}
	return e
}

// overhead measures the cost of tracing. Operations too slow to compare in slices do not stop
// the study.
func (s *Study) overhead(ctx context.Context, t *profile.Target, w *profile.Workload, list []caseOf, o Options) (out []bench.Overhead, missing []string, err error) {
	if s.OverheadPairs == 0 {
		return nil, nil, nil
	}
	byLoad := func(a, b caseOf) int { return a.config.Concurrency - b.config.Concurrency }
	ends := []caseOf{slices.MinFunc(list, byLoad), slices.MaxFunc(list, byLoad)}
	if ends[0].config.Concurrency == ends[1].config.Concurrency {
		ends = ends[:1]
	}
	for _, c := range ends {
		o.Say("the cost of tracing at %d in flight: %d pairs of slices", c.config.Concurrency, s.OverheadPairs)
		v, err := t.MeasureOverhead(ctx, w, c.config, profile.OverheadConfig{Pairs: s.OverheadPairs})
		switch {
		case errors.Is(err, profile.ErrNothing):
			missing = append(missing, fmt.Sprintf("the cost of tracing at %d in flight is unknown: %v", c.config.Concurrency, err))
		case err != nil:
			return nil, nil, fmt.Errorf("measure the cost of tracing: %w", err)
		default:
			out = append(out, *v)
		}
	}
	return out, missing, nil
}
