package reference

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/weirdb/weir/internal/ruler/bench"
	"github.com/weirdb/weir/internal/ruler/bench/subject"
	"github.com/weirdb/weir/internal/ruler/bench/suite"
	"github.com/weirdb/weir/internal/ruler/profile/study"
)

// Measured is what a run has measured so far, by part.
type Measured struct {
	// All lists the parts of the run, done or not.
	All   []Part
	parts map[string]*PartResults
}

// PartResults is what one part has measured.
type PartResults struct {
	Results []*bench.Result
	Left    []string
	// CPU holds where the CPU time of a case's processes went.
	CPU []suite.CPUProfile
	// Heaps holds what the proxy allocated and kept in some cases.
	Heaps []suite.Heap
	// Servers are where the CPU time of the server went, Leak is how the proxy's heap grew
	// under a long load; may be nil.
	Servers []suite.ServerCPU
	Leak    *suite.Leak
	// Passes are the results of strace and perf for a profile.
	Passes []study.Pass
	// Report is the page of the part's own report, "" for none.
	Report string
	// Dir is the directory of all that.
	Dir   string
	State State
}

// load reads the results in a part's directory. A part that has not run yet, or that measured
// nothing, is empty, without an error.
func load(dir string, benches []suite.Bench) (*PartResults, error) {
	t := &PartResults{Dir: dir}
	run, file, err := suite.Load(dir, benches)
	switch {
	case err == nil:
		o := run.Common()
		t.Results, t.Left = o.Results, o.Left
		if err := t.witnesses(filepath.Join(dir, file.Name)); err != nil {
			return nil, err
		}
	case errors.Is(err, fs.ErrNotExist): // a profile, or a suite that was killed: read its results
		if t.Results, err = resultsBelow(dir); err != nil {
			return nil, err
		}
		if t.Passes, err = study.LoadPasses(dir); err != nil {
			return nil, err
		}
	default:
		return nil, err
	}
	if _, err := os.Stat(filepath.Join(dir, "report.html")); err == nil {
		t.Report = "report.html"
	}
	return t, nil
}

// witnesses reads what suites store next to their rounds: breakdowns of CPU time, and the
// proxy's measurements of its heap and its server.
func (t *PartResults) witnesses(path string) error {
	b, err := os.ReadFile(path)
	if err != nil {
		return fmt.Errorf("read profiles: %w", err)
	}
	// In other suites, profiles are names of files.
	var head struct {
		Profiles []json.RawMessage `json:"profiles"`
		Heaps    []suite.Heap      `json:"heaps"`
		Servers  []suite.ServerCPU `json:"servers"`
		Leak     *suite.Leak       `json:"leak"`
	}
	if err := json.Unmarshal(b, &head); err != nil {
		return fmt.Errorf("read profiles: %s: %w", path, err)
	}
	for _, raw := range head.Profiles {
		var c suite.CPUProfile
		if json.Unmarshal(raw, &c) == nil && c.Breakdown != nil {
			t.CPU = append(t.CPU, c)
		}
	}
	t.Heaps, t.Servers, t.Leak = head.Heaps, head.Servers, head.Leak
	return nil
}

// resultsBelow reads the results in a directory and its direct subdirectories.
func resultsBelow(dir string) ([]*bench.Result, error) {
	var out []*bench.Result
	for _, pattern := range []string{"*.json", "*/*.json"} {
		files, err := filepath.Glob(filepath.Join(dir, pattern))
		if err != nil {
			return nil, err
		}
		for _, f := range files {
			// The file of a result is named after its experiment; other files are not ours to
			// judge.
			if r, err := bench.ReadFile(f, subject.All()...); err == nil {
				out = append(out, r)
			}
		}
	}
	slices.SortStableFunc(out, func(a, b *bench.Result) int { return a.Started.Compare(b.Started) })
	return out, nil
}

// Result finds an experiment of a part. The string says why it is not there.
func (m *Measured) Result(part, experiment string) (*bench.Result, string) {
	t := m.parts[part]
	if t == nil {
		return nil, "not in this plan"
	}
	i := slices.IndexFunc(t.Results, func(r *bench.Result) bool { return r.Experiment.Name == experiment })
	if i < 0 {
		if why := t.State.why(); why != "" {
			return nil, why
		}
		return nil, fmt.Sprintf("experiment %s was not run", experiment)
	}
	return t.Results[i], ""
}

// NewMeasured holds the results of complete parts, for pages made elsewhere.
func NewMeasured(all []Part, results map[string][]*bench.Result) *Measured {
	m := &Measured{All: all, parts: make(map[string]*PartResults)}
	for name, r := range results {
		m.parts[name] = &PartResults{Results: r, State: State{Status: Complete}}
	}
	return m
}

// Results are the results of a part; none if it has not run.
func (m *Measured) Results(part string) []*bench.Result {
	if t := m.parts[part]; t != nil {
		return t.Results
	}
	return nil
}

// find finds a case and its experiment.
func (m *Measured) find(at At) (*bench.Result, *bench.Case, string) {
	r, why := m.Result(at.Part, at.Experiment)
	if r == nil {
		return nil, nil, why
	}
	c := caseOf(r, at.Case)
	if c == nil {
		return r, nil, fmt.Sprintf("%s had no case %q", at.Experiment, at.Case)
	}
	if c.Invalid() {
		return r, nil, fmt.Sprintf("%s of %s is invalid: %s", at.Case, at.Experiment, firstInvalid(c))
	}
	return r, c, ""
}

// caseOf finds a case by its name, or the first one that matches a name with a * in it: what a
// run chooses itself, such as its best combination, is not known beforehand.
func caseOf(r *bench.Result, name string) *bench.Case {
	before, after, open := strings.Cut(name, "*")
	if !open {
		return r.Find(name)
	}
	for _, c := range r.Cases {
		if n := c.Name; strings.HasPrefix(n, before) && strings.HasSuffix(n, after) {
			return c
		}
	}
	return nil
}

// optional is a figure that may be missing without a note: a smaller plan leaves it out.
func optional(of Measure) Measure {
	return func(m *Measured) (Figure, string) {
		got, why := of(m)
		if why != "" {
			why = none
		}
		return got, why
	}
}

func firstInvalid(c *bench.Case) string {
	for _, s := range c.Samples {
		if len(s.Invalid) > 0 {
			return s.Invalid[0]
		}
	}
	return ""
}

// figure reads a metric of a case.
func (at At) figure(metric string, scale float64) Measure {
	return func(m *Measured) (Figure, string) {
		r, c, why := m.find(at)
		if c == nil {
			return Figure{}, why
		}
		s, ok := c.Summary[metric]
		if !ok {
			return Figure{}, fmt.Sprintf("%s of %s was not measured", metric, at.Case)
		}
		got := Figure{Interval: scaled(s.Interval, cmp.Or(scale, 1)), Unit: s.Unit, Flaw: flawOf(r, c)}
		got.Disturbed = got.Flaw != "" && !slices.Contains(undisturbedMetrics, metric)
		return got, ""
	}
}

// undisturbedMetrics are metrics that other load on the machine does not affect.
var undisturbedMetrics = []string{"peak", "rss_proxy", "rss_client", "rss_replica", "stored", "squeeze", "allocated", "log_bytes"}

func scaled(i bench.Interval, by float64) bench.Interval {
	i.Median, i.Lo, i.Hi = i.Median*by, i.Lo*by, i.Hi*by
	return i
}

// round reads a metric of one round of a case.
func (at At) round(n int, metric string, scale float64) Measure {
	return func(m *Measured) (Figure, string) {
		_, c, why := m.find(at)
		if c == nil {
			return Figure{}, why
		}
		key := bench.MustMetric(metric, subject.All()...)
		for i := range c.Samples {
			if v, ok := key.Of(&c.Samples[i]); ok && c.Samples[i].Round == n {
				v *= cmp.Or(scale, 1)
				return Figure{Interval: bench.Interval{Median: v, Lo: v, Hi: v, N: 1, Method: "one round"}, Unit: key.Unit}, ""
			}
		}
		return Figure{}, fmt.Sprintf("%s had no round %d", at.Case, n+1)
	}
}

// over reads the ratio of a metric of at to that of another case, pair by pair.
func (at At) over(base At, metric string) Measure {
	return func(m *Measured) (Figure, string) {
		r, a, why := m.find(base)
		if a == nil {
			return Figure{}, why
		}
		_, b, why := m.find(at)
		if b == nil {
			return Figure{}, why
		}
		if base.Part != at.Part || base.Experiment != at.Experiment {
			return Figure{}, "the two were not measured in turn"
		}
		c, err := bench.Compare(a, b, metric)
		if err != nil || c.Ratio.N == 0 {
			return Figure{}, fmt.Sprintf("%s and %s share no rounds with %s", at.Case, base.Case, metric)
		}
		got := Figure{Interval: c.Ratio, Unit: "x", Flaw: cmp.Or(flawOf(r, a), flawOf(r, b))}
		if len(c.Differs) > 1 {
			got.Flaw = fmt.Sprintf("%s and %s differ in %d factors", at.Case, base.Case, len(c.Differs))
		}
		return got, ""
	}
}

// flawOf says why a case's figures must be read with care.
func flawOf(r *bench.Result, c *bench.Case) string {
	hurt := 0
	for _, s := range c.Samples {
		if len(s.Disturbed) > 0 {
			hurt++
		}
	}
	switch {
	case r.Partial:
		return "the run was interrupted"
	case 2*hurt > len(c.Samples):
		return fmt.Sprintf("%d of %d rounds were disturbed", hurt, len(c.Samples))
	}
	return ""
}
