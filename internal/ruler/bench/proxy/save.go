package proxybench

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"

	"github.com/weirdb/weir/internal/ruler/bench"
	"github.com/weirdb/weir/internal/ruler/report"
)

// outcomeFile holds what belongs to no single experiment.
const outcomeFile = "outcome.json"

// outcome is the content of outcomeFile.
type outcome struct {
	Engine      Engine       `json:"engine,omitempty"` // PostgreSQL if not given
	Experiments []string     `json:"experiments"`      // directories, in order
	Profiles    []CPUProfile `json:"profiles,omitempty"`
	Targets     []Target     `json:"targets,omitempty"`
	Idle        *Idle        `json:"idle,omitempty"`
	Left        []string     `json:"left_out,omitempty"`
}

// Save writes the outcome beside its results, and the report in every format.
// It returns the path of the HTML page.
func (o *Outcome) Save(dir string) (string, error) {
	all := outcome{Engine: o.Engine, Profiles: o.Profiles, Targets: o.Targets(), Idle: o.Idle, Left: o.Left}
	for _, r := range o.Results {
		all.Experiments = append(all.Experiments, r.Experiment.Name)
	}
	b, err := json.MarshalIndent(all, "", "  ")
	if err != nil {
		return "", fmt.Errorf("save outcome: %w", err)
	}
	if err := os.WriteFile(filepath.Join(dir, outcomeFile), append(b, '\n'), 0o644); err != nil {
		return "", fmt.Errorf("save outcome: %w", err)
	}
	doc := o.Report()
	for _, f := range []report.Format{report.FormatHTML, report.FormatMarkdown, report.FormatCSV, report.FormatJSON} {
		if err := writeReport(doc, f, filepath.Join(dir, "report."+string(f))); err != nil {
			return "", err
		}
	}
	return filepath.Join(dir, "report.html"), nil
}

func writeReport(doc *report.Doc, f report.Format, path string) error {
	file, err := os.Create(path)
	if err != nil {
		return fmt.Errorf("write report: %w", err)
	}
	return errors.Join(doc.Write(file, f), file.Close())
}

// Load reads back what Save and the experiments wrote. Summaries, comparisons
// and findings are computed anew, by the rules of this program.
func Load(dir string) (*Outcome, error) {
	b, err := os.ReadFile(filepath.Join(dir, outcomeFile))
	if err != nil {
		return nil, fmt.Errorf("read outcome: %w", err)
	}
	var all outcome
	if err := json.Unmarshal(b, &all); err != nil {
		return nil, fmt.Errorf("read outcome %s: %w", filepath.Join(dir, outcomeFile), err)
	}
	o := &Outcome{Engine: cmp.Or(all.Engine, PostgreSQL), Profiles: all.Profiles, Idle: all.Idle, Left: all.Left}
	for _, name := range all.Experiments {
		r, err := readResult(filepath.Join(dir, name))
		if err != nil {
			return nil, err
		}
		o.Results = append(o.Results, r)
	}
	if len(o.Results) == 0 {
		return nil, fmt.Errorf("%s names no experiments", filepath.Join(dir, outcomeFile))
	}
	return o, nil
}

func readResult(dir string) (*bench.Result, error) {
	names, err := filepath.Glob(filepath.Join(dir, "*.json"))
	if err != nil || len(names) == 0 {
		return nil, fmt.Errorf("no result in %s", dir)
	}
	slices.Sort(names)
	f, err := os.Open(names[0])
	if err != nil {
		return nil, fmt.Errorf("read result: %w", err)
	}
	defer f.Close()
	r, err := bench.ReadResult(f)
	if err != nil {
		return nil, fmt.Errorf("read %s: %w", names[0], err)
	}
	r.Evaluate()
	return r, nil
}
