package kvbench

import (
	"bytes"
	"encoding/csv"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"time"

	"github.com/weirdb/weir/internal/measure"
	"github.com/weirdb/weir/internal/ruler/bench"
	"github.com/weirdb/weir/internal/ruler/report"
)

// Files that belong to no single experiment.
const (
	metadataFile = "kv.json"
	summaryFile  = "summary.csv"
)

// schema names the version of metadataFile.
const schema = "weir.bench.kv/1"

// metadata is the content of metadataFile.
type metadata struct {
	Schema      string              `json:"schema"`
	Written     time.Time           `json:"written"`
	Env         measure.Environment `json:"env"`
	Experiments []string            `json:"experiments"` // directories, in order
	Targets     []Target            `json:"targets,omitempty"`
	Left        []string            `json:"left_out,omitempty"`
	Invalid     []string            `json:"invalid,omitempty"`
	Reference   *Reference          `json:"reference,omitempty"` // not measured in this run
}

// Save writes what belongs to the whole run beside the directories of its
// experiments: metadata, a table of summaries, and the report in every format. It
// returns the path of the HTML page.
func (o *Outcome) Save(dir string) (string, error) {
	m := metadata{
		Schema: schema, Written: time.Now().UTC(), Env: o.Results[0].Env, Targets: o.Targets(), Left: o.Left, Invalid: o.Invalid(), Reference: o.Reference,
	}
	for _, r := range o.Results {
		m.Experiments = append(m.Experiments, r.Experiment.Name)
	}
	b, err := json.MarshalIndent(m, "", "  ")
	if err != nil {
		return "", fmt.Errorf("encode metadata: %w", err)
	}
	table, err := o.summary()
	if err != nil {
		return "", err
	}
	for name, content := range map[string][]byte{metadataFile: append(b, '\n'), summaryFile: table} {
		if err := os.WriteFile(filepath.Join(dir, name), content, 0o644); err != nil {
			return "", fmt.Errorf("save %s: %w", name, err)
		}
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

// summary is a table with one row for each case and metric.
func (o *Outcome) summary() ([]byte, error) {
	var b bytes.Buffer
	num := func(v float64) string { return strconv.FormatFloat(v, 'g', 8, 64) }
	rows := [][]string{{"scenario", "experiment", "case", "system", "durability", "metric", "unit", "median", "lo", "hi", "rounds"}}
	for _, r := range o.Results {
		for i := range r.Cases {
			c := &r.Cases[i]
			for _, m := range bench.Metrics() {
				if s, ok := c.Summary[m.Key]; ok {
					rows = append(rows, []string{
						r.Experiment.Factors["scenario"], r.Experiment.Name, c.Name, factor(r, c, "system"), factor(r, c, "durability"),
						m.Key, m.Unit, num(s.Median), num(s.Lo), num(s.Hi), strconv.Itoa(s.N),
					})
				}
			}
		}
	}
	if err := csv.NewWriter(&b).WriteAll(rows); err != nil {
		return nil, fmt.Errorf("write table: %w", err)
	}
	return b.Bytes(), nil
}

// Load reads back what Save and the experiments wrote. Summaries, comparisons and
// findings are computed anew, by the rules of this program. The error of a
// directory that holds something else is fs.ErrNotExist.
func Load(dir string) (*Outcome, error) {
	b, err := os.ReadFile(filepath.Join(dir, metadataFile))
	if err != nil {
		return nil, fmt.Errorf("read metadata: %w", err)
	}
	var m metadata
	if err := json.Unmarshal(b, &m); err != nil {
		return nil, fmt.Errorf("read %s: %w", metadataFile, err)
	}
	if m.Schema != schema {
		return nil, fmt.Errorf("%s: schema %q, this program reads %q", metadataFile, m.Schema, schema)
	}
	o := &Outcome{Left: m.Left, Reference: m.Reference}
	for _, name := range m.Experiments {
		r, err := bench.ReadFile(filepath.Join(dir, filepath.Base(name), filepath.Base(name)+".json"))
		if errors.Is(err, fs.ErrNotExist) {
			return nil, fmt.Errorf("the result of %s is missing: %v", name, err)
		}
		if err != nil {
			return nil, err
		}
		o.Results = append(o.Results, r)
	}
	if len(o.Results) == 0 {
		return nil, fmt.Errorf("%s names no experiments", filepath.Join(dir, metadataFile))
	}
	return o, nil
}
