package backupbench

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/weirdb/weir/internal/measure"
	"github.com/weirdb/weir/internal/ruler/bench"
	"github.com/weirdb/weir/internal/ruler/report"
	"github.com/weirdb/weir/internal/ruler/report/flame"
)

// outcomeFile holds what belongs to no single experiment, beside their
// directories. ErrNotExist of it says that a directory is of something else.
const outcomeFile = "backup.json"

// outcome is the content of outcomeFile.
type outcome struct {
	Engine      Engine   `json:"engine"`
	Experiments []string `json:"experiments"` // directories, in order
	Notes       []string `json:"notes,omitempty"`
	Profiles    []string `json:"profiles,omitempty"` // files
	Targets     []Target `json:"targets,omitempty"`
}

// Save writes the outcome beside its results, and the report in every format.
// It returns the path of the HTML page.
func (o *Outcome) Save(dir string) (string, error) {
	all := outcome{Engine: o.Engine, Notes: o.Notes, Profiles: o.Profiles, Targets: o.Targets()}
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
	doc, err := o.Full(dir)
	if err != nil {
		return "", err
	}
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

// Full is Report with the CPU profiles that lie in a directory of results.
func (o *Outcome) Full(dir string) (*report.Doc, error) {
	doc := o.Report()
	for _, name := range o.Profiles {
		sections, err := profileSections(filepath.Join(dir, name))
		if err != nil {
			return nil, err
		}
		doc.Sections = append(doc.Sections, sections...)
	}
	return doc, nil
}

func profileSections(path string) (_ []report.Section, err error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, fmt.Errorf("read profile: %w", err)
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	p, err := flame.Read(f)
	if err != nil {
		return nil, fmt.Errorf("read profile %s: %w", path, err)
	}
	if len(p.Sample) == 0 {
		return nil, nil // too short for the profiler to have looked once
	}
	name := strings.TrimSuffix(strings.TrimPrefix(filepath.Base(path), "cpu-"), ".pb.gz")
	sections, err := flame.Sections(name, p, measure.DefaultRules())
	if err != nil {
		return nil, fmt.Errorf("profile %s: %w", path, err)
	}
	return sections, nil
}

// Load reads back what Save and the experiments wrote. Summaries, comparisons and
// findings are computed anew, by the rules of this program. The error of a
// directory that holds no outcome of this scenario matches fs.ErrNotExist.
func Load(dir string) (*Outcome, error) {
	b, err := os.ReadFile(filepath.Join(dir, outcomeFile))
	if err != nil {
		return nil, fmt.Errorf("read outcome: %w", err)
	}
	var all outcome
	if err := json.Unmarshal(b, &all); err != nil {
		return nil, fmt.Errorf("read outcome %s: %w", filepath.Join(dir, outcomeFile), err)
	}
	o := &Outcome{Engine: all.Engine, Notes: all.Notes, Profiles: all.Profiles}
	for _, name := range append(all.Experiments, all.Profiles...) {
		if filepath.Base(name) != name {
			return nil, fmt.Errorf("read outcome %s: %q is no name of something beside it", filepath.Join(dir, outcomeFile), name)
		}
	}
	for _, name := range all.Experiments {
		r, err := bench.ReadFile(filepath.Join(dir, name, name+".json"))
		if errors.Is(err, fs.ErrNotExist) { // which would say that nothing is here
			return nil, fmt.Errorf("%s names %s, which is not there", filepath.Join(dir, outcomeFile), name)
		}
		if err != nil {
			return nil, err
		}
		r.Evaluate()
		o.Results = append(o.Results, r)
	}
	if len(o.Results) == 0 {
		return nil, fmt.Errorf("%s names no experiments", filepath.Join(dir, outcomeFile))
	}
	return o, nil
}
