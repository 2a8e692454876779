package suite

import (
	"bytes"
	"encoding/csv"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"time"

	"github.com/weirdb/weir/internal/measure"
	"github.com/weirdb/weir/internal/ruler/bench"
	"github.com/weirdb/weir/internal/ruler/bench/subject"
	"github.com/weirdb/weir/internal/ruler/report"
	"github.com/weirdb/weir/internal/ruler/report/flame"
)

// Run is what a run of a suite measured. Each suite has its own type, which embeds Outcome; its
// other fields are saved, too.
type Run interface {
	Common() *Outcome
	// Targets judges the targets that the run can decide, and leaves out the others.
	Targets() []Target
	// Report is the whole report, Brief the part that fits a terminal.
	Report() *report.Doc
	Brief() *report.Doc
}

// profiled is a Run that left CPU profiles in its directory, to be shown at the end of its
// report.
type profiled interface{ ProfileFiles() []string }

// File describes the files of a suite's runs.
type File struct {
	Name   string // of the file next to the experiments' directories
	Bench  string // the benchmark, as in weir bench BENCH
	Schema string // "" for no such file
	// Group is the factor in the first column of the table of summaries, Factors are those
	// after the case. Without a group there is no table.
	Group   string
	Factors []string
	// Samples has every sample of every experiment also written to one file, each line complete
	// by itself.
	Samples bool
}

const (
	samplesFile = "results.jsonl"
	summaryFile = "summary.csv"
)

// head is the part of the file that is common to all suites.
type head struct {
	Schema      string               `json:"schema,omitempty"`
	Bench       string               `json:"scenario,omitempty"`
	Engine      Engine               `json:"engine,omitempty"`
	Written     time.Time            `json:"written"`
	Env         *measure.Environment `json:"env,omitempty"`
	Experiments []string             `json:"experiments"` // directories, in order
	Targets     []Target             `json:"targets,omitempty"`
	Left        []string             `json:"left_out,omitempty"`
	Invalid     []string             `json:"invalid,omitempty"`
	// Notes is the older name of Left in the files of weir bench backup.
	Notes []string `json:"notes,omitempty"`
}

// Save writes the file of the whole run next to the directories of its experiments, and the
// report in every format. It returns the path of the HTML page.
func (f *File) Save(dir string, run Run) (string, error) {
	o := run.Common()
	if len(o.Results) == 0 {
		return "", errors.New("save: nothing was measured")
	}
	content, err := f.encode(run)
	if err != nil {
		return "", fmt.Errorf("encode %s: %w", f.Name, err)
	}
	files := map[string][]byte{f.Name: content}
	if f.Group != "" {
		if files[summaryFile], err = f.summary(o); err != nil {
			return "", err
		}
	}
	if f.Samples {
		if files[samplesFile], err = samples(o); err != nil {
			return "", err
		}
	}
	doc, err := Document(dir, run)
	if err != nil {
		return "", err
	}
	for _, format := range []report.Format{report.FormatHTML, report.FormatMarkdown, report.FormatCSV, report.FormatJSON} {
		var b bytes.Buffer
		if err := doc.Write(&b, format); err != nil {
			return "", fmt.Errorf("write report: %w", err)
		}
		files["report."+string(format)] = b.Bytes()
	}
	for name, content := range files {
		if err := bench.ReplaceFile(filepath.Join(dir, name), content); err != nil {
			return "", fmt.Errorf("save %s: %w", name, err)
		}
	}
	return filepath.Join(dir, "report.html"), nil
}

// Document is the report of a run, with the CPU profiles in its directory.
func Document(dir string, run Run) (*report.Doc, error) {
	doc := run.Report()
	if p, ok := run.(profiled); ok {
		for _, name := range p.ProfileFiles() {
			if err := flame.Append(doc, filepath.Join(dir, name)); err != nil && !errors.Is(err, flame.ErrEmpty) {
				return nil, err
			}
		}
	}
	return doc, nil
}

// encode merges the head and the run's own fields into one object.
func (f *File) encode(run Run) ([]byte, error) {
	o := run.Common()
	h := head{
		Schema: f.Schema, Bench: f.Bench, Engine: o.Engine, Written: time.Now().UTC(), Env: &o.Results[0].Env,
		Targets: run.Targets(), Left: o.Left, Invalid: o.Invalid(),
	}
	for _, r := range o.Results {
		h.Experiments = append(h.Experiments, r.Experiment.Name)
	}
	common, err := json.Marshal(h)
	if err != nil {
		return nil, err
	}
	own, err := json.Marshal(run)
	if err != nil {
		return nil, err
	}
	if len(own) > len("{}") {
		common = append(append(common[:len(common)-1], ','), own[1:]...)
	}
	var out bytes.Buffer
	err = json.Indent(&out, common, "", "  ")
	return append(out.Bytes(), '\n'), err
}

// Load reads what Save and the experiments wrote into run, which is empty. It computes
// summaries, comparisons and findings anew, by the rules of this program. If the directory
// holds something else, its error matches fs.ErrNotExist.
func (f *File) Load(dir string, run Run) error {
	path := filepath.Join(dir, f.Name)
	b, err := os.ReadFile(path)
	if err != nil {
		return fmt.Errorf("read outcome: %w", err)
	}
	var h head
	if err := errors.Join(json.Unmarshal(b, &h), json.Unmarshal(b, run)); err != nil {
		return fmt.Errorf("read %s: %w", path, err)
	}
	switch {
	case h.Bench != "" && h.Bench != f.Bench:
		return fmt.Errorf("%s is a run of weir bench %s, not of weir bench %s: %w", path, h.Bench, f.Bench, fs.ErrNotExist)
	case h.Schema != f.Schema:
		return fmt.Errorf("%s: schema %q, this program reads %q", path, h.Schema, f.Schema)
	case len(h.Experiments) == 0:
		return fmt.Errorf("%s names no experiments", path)
	}
	o := run.Common()
	o.Engine, o.Left = h.Engine, append(h.Left, h.Notes...)
	beside := h.Experiments
	if p, ok := run.(profiled); ok {
		beside = slices.Concat(beside, p.ProfileFiles())
	}
	for _, name := range beside {
		if filepath.Base(name) != name {
			return fmt.Errorf("read %s: %q is not a file name", path, name)
		}
	}
	for _, name := range h.Experiments {
		r, err := bench.ReadFile(filepath.Join(dir, name, name+".json"), subject.All()...)
		if errors.Is(err, fs.ErrNotExist) { // it would mean that the directory holds no run
			return fmt.Errorf("%s: the result of %s is missing", path, name)
		}
		if err != nil {
			return err
		}
		o.Results = append(o.Results, r)
	}
	return nil
}

// summary is a table with one row for each case and metric.
func (f *File) summary(o *Outcome) ([]byte, error) {
	num := func(v float64) string { return strconv.FormatFloat(v, 'g', 8, 64) }
	columns := append([]string{f.Group, "experiment", "case"}, f.Factors...)
	rows := [][]string{append(columns, "metric", "unit", "median", "lo", "hi", "rounds", "invalid")}
	for _, r := range o.Results {
		for _, c := range r.Cases {
			line := []string{r.Experiment.Factors[f.Group], r.Experiment.Name, c.Name}
			for _, name := range f.Factors {
				line = append(line, r.Factor(c, name))
			}
			invalid := 0
			for _, s := range c.Samples {
				invalid += min(1, len(s.Invalid))
			}
			for _, m := range bench.Metrics(r.Subjects()...) {
				if s, ok := c.Summary[m.Key]; ok {
					rows = append(rows, append(line[:len(line):len(line)], m.Key, m.Unit, num(s.Median), num(s.Lo), num(s.Hi), strconv.Itoa(s.N), strconv.Itoa(invalid)))
				}
			}
		}
	}
	var b bytes.Buffer
	if err := csv.NewWriter(&b).WriteAll(rows); err != nil {
		return nil, fmt.Errorf("write table: %w", err)
	}
	return b.Bytes(), nil
}

// sampleHead is the beginning of a line of the file with the samples of all experiments; the
// fields of the sample follow.
type sampleHead struct {
	Experiment string            `json:"experiment"`
	Case       string            `json:"case"`
	Factors    map[string]string `json:"factors"`
	Durability string            `json:"durability"`
	Commit     string            `json:"commit,omitempty"`
	Server     string            `json:"server"`
}

func samples(o *Outcome) ([]byte, error) {
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	for _, r := range o.Results {
		server := ""
		if len(r.Env.Servers) > 0 {
			server = r.Env.Servers[0].Name + " " + r.Env.Servers[0].Version
		}
		for _, c := range r.Cases {
			factors := make(map[string]string)
			maps.Copy(factors, r.Experiment.Factors)
			maps.Copy(factors, c.Factors)
			for _, s := range c.Samples {
				objects := []any{sampleHead{r.Experiment.Name, c.Name, factors, r.Env.Durability, r.Env.Commit, server}, &s}
				if counters := s.Server; counters != nil {
					s.Server = nil // its key is that of the server's name
					objects = append(objects, map[string]any{"server_counters": counters})
				}
				line, err := bench.JoinObjects(objects...)
				if err == nil {
					err = e.Encode(json.RawMessage(line))
				}
				if err != nil {
					return nil, fmt.Errorf("encode sample: %w", err)
				}
			}
		}
	}
	return b.Bytes(), nil
}
