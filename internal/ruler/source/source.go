// Package source makes a report of a measurement: of results, a saved report or a profile.
package source

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/weirdb/weir/internal/cli"
	"github.com/weirdb/weir/internal/measure"
	"github.com/weirdb/weir/internal/ruler/bench"
	"github.com/weirdb/weir/internal/ruler/bench/subject"
	"github.com/weirdb/weir/internal/ruler/bench/suite"
	"github.com/weirdb/weir/internal/ruler/profile/study"
	"github.com/weirdb/weir/internal/ruler/report"
	"github.com/weirdb/weir/internal/ruler/report/flame"
)

// ProfileEnding is the customary file extension of profiles.
const ProfileEnding = ".pb.gz"

// Source makes a report of any measurement.
type Source struct {
	Benches []suite.Bench
	Env     string // where a profile was taken: "here", or a file; "" for unknown
	Title   string // in place of the source's own, if not ""
}

// Load reads the measurement in a file or directory. If a profile does not say where it was
// taken, and Env does not, that is a usage error.
func (s Source) Load(path string) (*report.Doc, error) {
	info, err := os.Stat(path)
	if err != nil {
		return nil, fmt.Errorf("read %s: %w", path, errors.Unwrap(err))
	}
	var doc *report.Doc
	if info.IsDir() {
		doc, err = s.directory(path)
	} else {
		doc, err = s.file(path)
	}
	if err != nil {
		return nil, err
	}
	if s.Title != "" {
		doc.Title = s.Title
	}
	return doc, nil
}

// directory reads the benchmark run, the results, or the report in a directory, in this order
// of preference, and adds the profiles next to them.
func (s Source) directory(dir string) (*report.Doc, error) {
	doc, err := s.results(dir)
	if err != nil {
		return nil, err
	}
	profiles, err := fs.Glob(os.DirFS(dir), "*"+ProfileEnding)
	if err != nil {
		return nil, fmt.Errorf("look for profiles: %w", err)
	}
	for _, name := range profiles {
		if err := flame.Append(doc, filepath.Join(dir, name)); err != nil && !errors.Is(err, flame.ErrEmpty) {
			return nil, err
		}
	}
	return doc, nil
}

func (s Source) results(dir string) (*report.Doc, error) {
	run, _, err := suite.Load(dir, s.Benches)
	switch {
	case err == nil:
		return run.Report(), nil
	case !errors.Is(err, fs.ErrNotExist):
		return nil, err
	}
	results, err := bench.ReadPath(dir, subject.All()...)
	if err == nil {
		return document(results), nil
	}
	written := "report.json"
	switch {
	case errors.Is(err, bench.ErrSeveralRuns):
		written = "index.json" // of weir bench all and peers
	case !errors.Is(err, bench.ErrNotResult) && !errors.Is(err, fs.ErrNotExist):
		return nil, err
	}
	if doc, docErr := readReport(filepath.Join(dir, written)); docErr == nil || !errors.Is(docErr, fs.ErrNotExist) {
		return doc, docErr
	}
	return nil, err
}

// document makes a report of results, titled like the first if no title is given.
func document(results []*bench.Result) *report.Doc {
	title := cmp.Or(results[0].Experiment.Title, results[0].Experiment.Name)
	if len(results) > 1 {
		title = fmt.Sprintf("%s, and %d more", title, len(results)-1)
	}
	if slices.ContainsFunc(results, isProfile) {
		return study.Document(title, results...)
	}
	return bench.Document(title, results...)
}

// isProfile reports whether a result divides its operations into segments.
func isProfile(r *bench.Result) bool {
	return slices.ContainsFunc(r.Cases, func(c *bench.Case) bool {
		return slices.ContainsFunc(c.Samples, func(s bench.Sample) bool { return s.Boundary != nil })
	})
}

// file reads a file by its content, not by its name.
func (s Source) file(path string) (*report.Doc, error) {
	b, err := os.ReadFile(path)
	if err != nil {
		return nil, fmt.Errorf("read %s: %w", path, errors.Unwrap(err))
	}
	trimmed := bytes.TrimSpace(b)
	if len(trimmed) > 0 && trimmed[0] != '{' {
		return s.profile(path, b)
	}
	var head struct {
		Schema      string          `json:"schema"`
		Sections    json.RawMessage `json:"sections"`
		Experiments json.RawMessage `json:"experiments"`
	}
	if json.Unmarshal(b, &head) == nil {
		kind, _, _ := strings.Cut(head.Schema, "/")
		own, _, _ := strings.Cut(report.Schema, "/")
		switch {
		case kind == own, kind == "" && head.Sections != nil:
			return readReport(path)
		case head.Experiments != nil:
			return s.directory(filepath.Dir(path))
		}
	}
	r, err := bench.ReadFile(path, subject.All()...) // its error also says why something is not a result
	if err != nil {
		return nil, err
	}
	return document([]*bench.Result{r}), nil
}

func readReport(path string) (*report.Doc, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, fmt.Errorf("read report: %w", err)
	}
	defer f.Close()
	doc, err := report.ReadDoc(f)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	return doc, nil
}

// profile makes a report of a single profile.
func (s Source) profile(path string, b []byte) (*report.Doc, error) {
	p, err := flame.Read(bytes.NewReader(b))
	if err != nil {
		return nil, fmt.Errorf("%s is neither JSON nor a profile: %w", path, err)
	}
	env, err := s.environment()
	if err != nil {
		return nil, err
	}
	if p.TimeNanos > 0 {
		env.Time = time.Unix(0, p.TimeNanos).UTC()
	}
	doc := &report.Doc{Title: "Profile " + filepath.Base(path), Env: env}
	doc.Sections, err = flame.Sections("", p, measure.DefaultRules())
	if err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	return doc, nil
}

// environment is where a profile was taken.
func (s Source) environment() (*measure.Environment, error) {
	switch s.Env {
	case "":
		return nil, cli.UsageError(errors.New("a profile does not say where it was taken: name a result of the same run with --env, or --env here if it was this machine"))
	case "here":
		env := measure.ReadEnvironment()
		env.PressureAfter = env.PressureBefore
		return &env, nil
	}
	doc, err := (Source{Benches: s.Benches}).Load(s.Env)
	if err != nil {
		return nil, fmt.Errorf("--env: %w", err)
	}
	return doc.Env, nil
}
