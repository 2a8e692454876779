package outboxbench

import (
	"bytes"
	"encoding/csv"
	"encoding/json"
	"errors"
	"fmt"
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
	metadataFile = "metadata.json"
	samplesFile  = "results.jsonl"
	summaryFile  = "summary.csv"
)

// schema names the version of metadataFile.
const schema = "weir.bench.outbox/1"

// metadata is the content of metadataFile.
type metadata struct {
	Schema      string              `json:"schema"`
	Scenario    string              `json:"scenario"` // "outbox"
	Engine      Engine              `json:"engine"`
	Written     time.Time           `json:"written"`
	Env         measure.Environment `json:"env"`
	Experiments []string            `json:"experiments"` // directories, in order
	Left        []string            `json:"left_out,omitempty"`
	Invalid     []string            `json:"invalid,omitempty"`
}

// Save writes what belongs to the whole run beside the directories of its
// experiments: metadata, all samples, a table of summaries, and the report in
// every format. It returns the path of the HTML page.
func (o *Outcome) Save(dir string) (string, error) {
	m := metadata{
		Schema: schema, Scenario: "outbox", Engine: o.Engine, Written: time.Now().UTC(), Env: o.Results[0].Env,
		Left: o.Left, Invalid: o.Invalid(),
	}
	for _, r := range o.Results {
		m.Experiments = append(m.Experiments, r.Experiment.Name)
	}
	b, err := json.MarshalIndent(m, "", "  ")
	if err != nil {
		return "", fmt.Errorf("encode metadata: %w", err)
	}
	samples, err := o.samples()
	if err != nil {
		return "", err
	}
	table, err := o.summary()
	if err != nil {
		return "", err
	}
	for name, content := range map[string][]byte{metadataFile: append(b, '\n'), samplesFile: samples, summaryFile: table} {
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

// sampleLine is a line of the samples of all experiments: what a row needs to be
// read alone.
type sampleLine struct {
	Experiment string            `json:"experiment"`
	Case       string            `json:"case"`
	Factors    map[string]string `json:"factors"`
	Durability string            `json:"durability"`
	Commit     string            `json:"commit,omitempty"`
	Server     string            `json:"server"`
	bench.Sample
}

func (o *Outcome) samples() ([]byte, error) {
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	for _, r := range o.Results {
		server := ""
		if len(r.Env.Servers) > 0 {
			server = r.Env.Servers[0].Name + " " + r.Env.Servers[0].Version
		}
		for _, c := range r.Cases {
			factors := make(map[string]string)
			for _, from := range []map[string]string{r.Experiment.Factors, c.Factors} {
				for k, v := range from {
					factors[k] = v
				}
			}
			for _, s := range c.Samples {
				if err := e.Encode(sampleLine{r.Experiment.Name, c.Name, factors, r.Env.Durability, r.Env.Commit, server, s}); err != nil {
					return nil, fmt.Errorf("encode sample: %w", err)
				}
			}
		}
	}
	return b.Bytes(), nil
}

// summary is a table with one row for each case and metric.
func (o *Outcome) summary() ([]byte, error) {
	var b bytes.Buffer
	w := csv.NewWriter(&b)
	num := func(v float64) string { return strconv.FormatFloat(v, 'g', 8, 64) }
	rows := [][]string{{"phase", "experiment", "case", "metric", "unit", "median", "lo", "hi", "rounds", "invalid"}}
	for _, r := range o.Results {
		for i := range r.Cases {
			c := &r.Cases[i]
			invalid := 0
			for _, s := range c.Samples {
				invalid += min(1, len(s.Invalid))
			}
			for _, m := range bench.Metrics() {
				if s, ok := c.Summary[m.Key]; ok {
					rows = append(rows, []string{
						r.Experiment.Factors[FactorPhase], r.Experiment.Name, c.Name, m.Key, m.Unit,
						num(s.Median), num(s.Lo), num(s.Hi), strconv.Itoa(s.N), strconv.Itoa(invalid),
					})
				}
			}
		}
	}
	if err := w.WriteAll(rows); err != nil {
		return nil, fmt.Errorf("write table: %w", err)
	}
	return b.Bytes(), nil
}

// ErrNotOutbox is the error of Load for a directory that holds something else.
var ErrNotOutbox = errors.New("not the results of weir bench outbox")

// Load reads back what Save and the experiments wrote. Summaries, comparisons
// and findings are computed anew, by the rules of this program.
func Load(dir string) (*Outcome, error) {
	b, err := os.ReadFile(filepath.Join(dir, metadataFile))
	if errors.Is(err, os.ErrNotExist) {
		return nil, fmt.Errorf("%s: %w", dir, ErrNotOutbox)
	}
	if err != nil {
		return nil, fmt.Errorf("read metadata: %w", err)
	}
	var m metadata
	if err := json.Unmarshal(b, &m); err != nil || m.Scenario != "outbox" {
		return nil, errors.Join(fmt.Errorf("%s: %w", filepath.Join(dir, metadataFile), ErrNotOutbox), err)
	}
	if m.Schema != schema {
		return nil, fmt.Errorf("%s: schema %q, this program reads %q", metadataFile, m.Schema, schema)
	}
	o := &Outcome{Engine: m.Engine, Left: m.Left}
	for _, name := range m.Experiments {
		r, err := bench.ReadFile(filepath.Join(dir, filepath.Base(name), filepath.Base(name)+".json"))
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
