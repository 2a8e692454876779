package reference

import (
	"github.com/weirdb/weir/internal/ruler/bench"
	"github.com/weirdb/weir/internal/ruler/report"
)

// Document is one of the five reports.
type Document struct {
	ID    string // "000"
	Name  string // "ProxyBatch"
	Title string // as the document has it
	// About says what of it has no counterpart here, and why.
	About  []string
	Tables []Table
	Claims []Claim
	// Details lays out what is measured beyond the document's own tables; may be nil.
	Details func(m *Measured) []report.Section
	// Published are its figures as results, for the rules of package bench to judge.
	// Nothing else is done with them.
	Published func() []*bench.Result
}

// Table is a table of a document, or figures that its text lists.
type Table struct {
	Section string // heading in the document
	Title   string
	// Columns are those of the document in its order. The first one names the row.
	Columns []Column
	Rows    []Row
	Note    string
	// Charted is the index of the column that a chart shows, ours alone; 0 for none.
	Charted int
}

// Column is a column of a document's table.
type Column struct {
	Name, Unit string
	// Metric is that of package bench which is the counterpart, in the unit of the
	// column when multiplied by Scale. "": the column has none.
	Metric string
	Scale  float64
	Text   bool // words, set flush left
	// Own is a column that the document does not have.
	Own bool
	// Optional leaves out a column of ours of which nothing was measured.
	Optional bool
}

// Row is a row of a document's table.
type Row struct {
	// Cells are as published, one for each column.
	Cells []string
	// At is where the counterpart was measured. The zero value: nowhere.
	At At
	// Ours overrides what At and the column's metric yield, by the column's index.
	Ours map[int]Measure
	// Optional leaves the row out when nothing of it was measured, without a word: a
	// smaller plan has fewer of ours.
	Optional bool
	// Why says why there is no counterpart.
	Why string
}

// At is a case of an experiment of a part.
type At struct{ Part, Experiment, Case string }

// with returns the same place with another case.
func (a At) with(name string) At { a.Case = name; return a }

// Got is a figure of ours.
type Got struct {
	bench.Interval
	Unit string
	// Text replaces the figure, for what is no number.
	Text string
	// Flaw says why the figure must not be taken at face value.
	Flaw string
	// Shaken tells that it is a speed by itself, taken while something foreign was at
	// work: it decides no claim. Ratios of sides that took turns share what hit them.
	Shaken bool
}

// Measure reads a figure from a run. The string says why there is none.
type Measure func(m *Measured) (Got, string)

// Claim is a sentence of a document that a run can decide.
type Claim struct {
	Text string // the document's words, shortened
	Said string // the figures that it gives
	// Reading is what has to be so for the claim to hold.
	Reading string
	Judge   func(m *Measured) Judgement
}

// Verdict is what a run says of a claim.
type Verdict string

// The verdicts. CannotTell is one: a claim that was not measured, or whose interval
// lies on both sides of its limit, is neither confirmed nor refuted.
const (
	Holds       Verdict = "holds"
	DoesNotHold Verdict = "does not hold"
	CannotTell  Verdict = "cannot tell"
)

// Judgement is a verdict with what it rests on.
type Judgement struct {
	Verdict  Verdict
	Got      Got
	Evidence string
}

// Documents lists the five.
func Documents() []Document {
	return []Document{proxyBatch(), networkBatching(), dbBackup(), boundaryProfiler(), outboxBench()}
}
