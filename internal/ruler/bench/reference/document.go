package reference

import (
	"github.com/weirdb/weir/internal/ruler/bench"
	"github.com/weirdb/weir/internal/ruler/report"
)

// Document is one of the five reports.
type Document struct {
	ID    string // "000"
	Name  string // "ProxyBatch"
	Title string // as in the document
	// About says which parts of it have no counterpart here, and why.
	About  []string
	Tables []Table
	Claims []Claim
	// Details makes sections on what is measured beyond the document's own tables; may be nil.
	Details func(m *Measured) []report.Section
	// Published are its figures as results. They are only used to apply the rules of package
	// bench to them.
	Published func() []*bench.Result
}

// Table is a table of a document, or a list of figures from its text.
type Table struct {
	Section string // heading in the document
	Title   string
	// Columns are those of the document in its order. The first one names the row.
	Columns []Column
	Rows    []Row
	Note    string
	// Charted is the index of the column whose own figures are charted; 0 for none.
	Charted int
}

// Column is a column of a document's table.
type Column struct {
	Name, Unit string
	// Metric is the metric of package bench that is the counterpart, in the unit of the column
	// when multiplied by Scale; "" if there is none.
	Metric string
	Scale  float64
	Text   bool // words, aligned to the left
	// Own is set for a column that the document does not have.
	Own bool
	// Optional leaves out a column of ours if nothing of it was measured.
	Optional bool
}

// Row is a row of a document's table.
type Row struct {
	// Cells are the published cells, one for each column.
	Cells []string
	// At is where the counterpart was measured; zero if nowhere.
	At At
	// Ours overrides the figures from At and the column's metric, by the column's index.
	Ours map[int]Measure
	// Optional silently leaves the row out if nothing of it was measured: a smaller plan has
	// fewer of our rows.
	Optional bool
	// Why says why there is no counterpart.
	Why string
}

// At is a case of an experiment of a part.
type At struct{ Part, Experiment, Case string }

// with returns the same place with another case.
func (a At) with(name string) At { a.Case = name; return a }

// Figure is a figure of ours.
type Figure struct {
	bench.Interval
	Unit string
	// Text replaces the figure if it is not a number.
	Text string
	// Flaw says why the figure must not be taken at face value.
	Flaw string
	// Disturbed is set for a speed that was measured in disturbed rounds: it decides no claim.
	// Ratios of sides that took turns are not affected, since disturbances hit both.
	Disturbed bool
}

// Measure reads a figure from a run. The string says why there is none.
type Measure func(m *Measured) (Figure, string)

// Claim is a sentence of a document that a run can decide.
type Claim struct {
	Text string // the document's words, shortened
	Said string // the figures in the document
	// Reading is what must be true for the claim to hold.
	Reading string
	Judge   func(m *Measured) Judgement
}

// Verdict is a run's verdict on a claim.
type Verdict string

// The verdicts. A claim that was not measured, or whose interval lies on both sides of its
// limit, is neither confirmed nor refuted.
const (
	Holds       Verdict = "holds"
	DoesNotHold Verdict = "does not hold"
	CannotTell  Verdict = "cannot tell"
)

// Judgement is a verdict and its reasons.
type Judgement struct {
	Verdict  Verdict
	Got      Figure
	Evidence string
}

// Documents lists the five.
func Documents() []Document {
	return []Document{proxyBatch(), networkBatching(), dbBackup(), boundaryProfiler(), outboxBench()}
}
