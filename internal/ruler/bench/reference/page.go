package reference

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"github.com/weirdb/weir/internal/measure"
	"github.com/weirdb/weir/internal/ruler/bench"
	"github.com/weirdb/weir/internal/ruler/report"
)

// The titles of sections that findings refer to.
const (
	claimsTitle  = "Claims"
	catchesTitle = "What its own figures say"
	partsTitle   = "What was run"
)

// judged is a claim with its verdict.
type judged struct {
	Claim
	Judgement
}

// judge decides all claims of a document.
func (d *Document) judge(m *Measured) []judged {
	var out []judged
	for _, c := range d.Claims {
		out = append(out, judged{c, c.Judge(m)})
	}
	return out
}

// tally counts verdicts: "2 hold, 5 do not hold, 2 cannot be told".
func tally(all []judged) string {
	by := make(map[Verdict]int)
	for _, j := range all {
		by[j.Verdict]++
	}
	return fmt.Sprintf("Of %d claims %d hold on this machine, %d do not hold, %d cannot be told", len(all), by[Holds], by[DoesNotHold], by[CannotTell])
}

// page makes a document's page: the verdicts on its claims, findings on its own figures, its
// tables in its order, what was run.
func (d *Document) page(m *Measured, env *measure.Environment, caught []bench.Finding, parts []Part) *report.Doc {
	all := d.judge(m)
	doc := &report.Doc{
		Title:    "Report " + d.ID + ", " + d.Name + ": its tables, and what this machine measures",
		Subtitle: "\u201c" + d.Title + "\u201d. What is called \u201chere\u201d was measured in this run; all else is the document's own and was not.",
		Env:      env,
	}
	lead := report.Finding{First: true, Claim: tally(all) + ".", See: claimsTitle}
	for _, j := range all {
		if j.Verdict != CannotTell {
			lead.Evidence = append(lead.Evidence, fmt.Sprintf("%s: %s", j.Text, j.Verdict))
		}
	}
	doc.Findings = append(doc.Findings, lead)
	if len(caught) > 0 {
		f := report.Finding{Warn: true, Claim: fmt.Sprintf("The document's own figures carry %d warnings, whatever is measured here.", len(caught)), See: catchesTitle}
		for _, c := range caught {
			f.Evidence = append(f.Evidence, c.Claim)
		}
		doc.Findings = append(doc.Findings, f)
	}
	doc.Findings = append(doc.Findings, d.incomplete(m, parts)...)
	doc.Sections = append(doc.Sections, report.Section{Title: claimsTitle, Text: d.About, Tables: []report.Table{claimTable(all)}})
	if len(caught) > 0 {
		doc.Sections = append(doc.Sections, report.Section{
			Title: catchesTitle, Text: []string{"The rules that judge every run of this program, applied to the figures as they were published."},
			Findings: bench.ReportFindings(caught),
		})
	}
	for i := range d.Tables {
		t := &d.Tables[i]
		doc.Sections = append(doc.Sections, t.section(m))
	}
	if d.Details != nil {
		doc.Sections = append(doc.Sections, d.Details(m)...)
	}
	doc.Sections = append(doc.Sections, PartsSection(m, parts))
	return doc
}

// incomplete says which parts did not end well, and what others left out, such as a tool that is not
// installed.
func (d *Document) incomplete(m *Measured, parts []Part) []report.Finding {
	var missing, left []string
	for _, p := range parts {
		t := m.parts[p.Name]
		switch {
		case t == nil:
		case t.State.why() != "":
			missing = append(missing, p.Name+": "+t.State.why())
		case len(t.Left) > 0:
			left = append(left, p.Name+": "+strings.Join(t.Left, "; "))
		}
	}
	var out []report.Finding
	if len(missing) > 0 {
		out = append(out, report.Finding{Warn: true, Claim: fmt.Sprintf("Report %s is not whole: parts of it are not measured.", d.ID), Evidence: missing, See: partsTitle})
	}
	if len(left) > 0 {
		claim := fmt.Sprintf("Every part of report %s ran to its end; something optional was left out.", d.ID)
		if len(missing) > 0 {
			claim = fmt.Sprintf("Parts of report %s that ran to their end left something optional out.", d.ID)
		}
		out = append(out, report.Finding{Claim: claim, Evidence: left, See: partsTitle})
	}
	return out
}

func claimTable(all []judged) report.Table {
	t := report.Table{
		Columns: report.Columns(":claim", ":verdict", ":evidence here", ":the document", ":read as"),
		Note:    "A claim holds when the whole 95 % interval agrees with it, and does not hold when no part of the interval does. With fewer than six rounds the interval spans all of them. One round cannot tell.",
	}
	for _, j := range all {
		t.Rows = append(t.Rows, []report.Cell{
			{Text: j.Text}, {Text: string(j.Verdict), Strong: j.Verdict != CannotTell}, {Text: j.Evidence}, {Text: j.Said}, {Text: j.Reading},
		})
	}
	return t
}

// section is the document's table with our figures, and a chart of ours.
func (t *Table) section(m *Measured) report.Section {
	out := report.Table{Title: t.Title, Note: t.Note}
	type shown struct {
		column int
		ours   bool
	}
	var columns []shown
	var reasons []string
	for i, c := range t.Columns {
		if !c.Own {
			out.Columns = append(out.Columns, report.Column{Name: c.Name, Unit: c.Unit, Numeric: !c.Text && i > 0})
			columns = append(columns, shown{i, false})
		}
		if i > 0 && t.measured(i) && (!c.Optional || t.anyIn(i, m)) {
			name := c.Name + ", here"
			if len(out.Columns) > 0 && !c.Own && !c.Text {
				name = "here"
				if t.severalCounterparts() {
					name = c.Name + ", here"
				}
			}
			out.Columns = append(out.Columns, report.Column{Name: name, Unit: c.Unit, Numeric: !c.Text})
			columns = append(columns, shown{i, true})
		}
	}
	for _, r := range t.Rows {
		if r.Optional && !t.anyOf(&r, m) {
			continue
		}
		var row []report.Cell
		for _, s := range columns {
			if !s.ours {
				text := ""
				if s.column < len(r.Cells) {
					text = r.Cells[s.column]
				}
				row = append(row, report.Cell{Text: cmp.Or(text, "-")})
				continue
			}
			got, why := t.ours(&r, s.column, m)
			if why != "" {
				if why != none {
					reasons = append(reasons, r.Cells[0]+": "+why)
				}
				row = append(row, report.Cell{Text: "-"})
				continue
			}
			row = append(row, report.Cell{Text: got.cell(), Strong: true})
			if got.Flaw != "" {
				reasons = append(reasons, r.Cells[0]+": "+got.Flaw)
			}
		}
		if r.Why != "" {
			reasons = append(reasons, r.Cells[0]+": "+r.Why)
		}
		out.Rows = append(out.Rows, row)
	}
	s := report.Section{Title: t.Section + ": " + t.Title, Tables: []report.Table{out}}
	if reasons = unique(reasons); len(reasons) > 0 {
		s.Text = append(s.Text, "Here: "+strings.Join(reasons, "; ")+".")
	}
	if len(out.Rows) == 0 {
		s.Tables, s.Text = nil, append(s.Text, "Nothing of it was measured.")
	}
	if c, ok := t.chart(m); ok {
		s.Charts = append(s.Charts, c)
	}
	return s
}

// unique drops repetitions, and states a reason that several rows share once.
func unique(reasons []string) []string {
	var order []string
	rows := make(map[string][]string)
	for _, r := range reasons {
		row, why, _ := strings.Cut(r, ": ")
		if rows[why] == nil {
			order = append(order, why)
		}
		if !slices.Contains(rows[why], row) {
			rows[why] = append(rows[why], row)
		}
	}
	var out []string
	for _, why := range order {
		if n := len(rows[why]); n > 3 {
			out = append(out, fmt.Sprintf("%d rows: %s", n, why))
		} else {
			out = append(out, strings.Join(rows[why], ", ")+": "+why)
		}
	}
	return out
}

// none is the reason of a cell that has no counterpart by design.
const none = "none"

// ours is the counterpart of a cell.
func (t *Table) ours(r *Row, column int, m *Measured) (Figure, string) {
	if of, ok := r.Ours[column]; ok {
		return of(m)
	}
	c := t.Columns[column]
	if c.Metric == "" || r.At == (At{}) {
		return Figure{}, none
	}
	return r.At.figure(c.Metric, c.Scale)(m)
}

// anyIn reports whether anything in a column was measured.
func (t *Table) anyIn(column int, m *Measured) bool {
	return slices.ContainsFunc(t.Rows, func(r Row) bool {
		_, why := t.ours(&r, column, m)
		return why == ""
	})
}

// anyOf reports whether anything in a row was measured.
func (t *Table) anyOf(r *Row, m *Measured) bool {
	for i := range t.Columns {
		if _, why := t.ours(r, i, m); why == "" {
			return true
		}
	}
	return false
}

// measured reports whether a column has a counterpart in any row.
func (t *Table) measured(column int) bool {
	if t.Columns[column].Metric != "" {
		return true
	}
	return slices.ContainsFunc(t.Rows, func(r Row) bool { return r.Ours[column] != nil })
}

// severalCounterparts reports whether more than one of the document's columns has a counterpart.
func (t *Table) severalCounterparts() bool {
	n := 0
	for i := 1; i < len(t.Columns); i++ {
		if !t.Columns[i].Own && t.measured(i) {
			n++
		}
	}
	return n > 1
}

// chart shows our own figures of a column. The document's are from another machine and only in
// the table.
func (t *Table) chart(m *Measured) (report.Chart, bool) {
	if t.Charted == 0 {
		return report.Chart{}, false
	}
	c := t.Columns[t.Charted]
	ch := report.Chart{Title: t.Title + ": " + c.Name + ", here", Kind: report.Bars, YLabel: c.Unit, Tabled: true, Series: []report.Series{{Name: c.Name}}}
	for i := range t.Rows {
		r := &t.Rows[i]
		got, why := t.ours(r, t.Charted, m)
		if why != "" || got.Text != "" || slices.Contains(ch.Categories, r.Cells[0]) {
			continue
		}
		ch.Categories = append(ch.Categories, unbraced(r.Cells[0]))
		p := report.Point{Y: got.Median}
		if got.N > 1 {
			p.Lo, p.Hi = got.Lo, got.Hi
		}
		ch.Series[0].Points = append(ch.Series[0].Points, p)
	}
	return ch, len(ch.Categories) > 1
}

// PartsSection lists what was run for a document, or for all.
func PartsSection(m *Measured, parts []Part) report.Section {
	t := report.Table{Columns: report.Columns(":part", ":state", "time|s", "experiments", ":its own report", ":command")}
	for _, p := range parts {
		taken := m.parts[p.Name]
		row := report.Cells(p.Name, "not run", "-", "-", "-", p.command())
		if taken != nil {
			row[1].Text = cmp.Or(string(taken.State.Status), "not run")
			if taken.State.Seconds > 0 {
				row[2].Text = bench.Figure(taken.State.Seconds)
			}
			if n := len(taken.Results); n > 0 {
				row[3].Text = fmt.Sprint(n)
			}
			if taken.Report != "" {
				row[4] = report.Cell{Text: "all figures", Link: p.Name + "/" + taken.Report}
			}
		}
		t.Rows = append(t.Rows, row)
	}
	return report.Section{Title: partsTitle, Tables: []report.Table{t}}
}

// index is the page that links to all others, with the findings first.
func index(docs []Document, m *Measured, env *measure.Environment, caught map[string][]bench.Finding, parts []Part, plan string) *report.Doc {
	doc := &report.Doc{
		Title:    "The five reports, and what this machine measures",
		Subtitle: fmt.Sprintf("weir bench all --plan %s: every table of the five documents with our figures beside, and a verdict on each of their claims.", plan),
		Env:      env,
	}
	t := report.Table{Columns: report.Columns(":report", "claims", "hold", "do not hold", "cannot tell", "warnings of its own figures")}
	claims := report.Table{Title: "Every claim that could be decided", Columns: report.Columns(":report", ":claim", ":verdict", ":evidence here")}
	var everything []judged
	for i := range docs {
		d := &docs[i]
		all := d.judge(m)
		everything = append(everything, all...)
		by := make(map[Verdict]int)
		for _, j := range all {
			by[j.Verdict]++
			if j.Verdict != CannotTell {
				claims.Rows = append(claims.Rows, []report.Cell{{Text: d.ID}, {Text: j.Text}, {Text: string(j.Verdict), Strong: true}, {Text: j.Evidence}})
			}
		}
		t.Rows = append(t.Rows, []report.Cell{
			{Text: d.ID + " " + d.Name, Link: d.ID + ".html"}, {Text: fmt.Sprint(len(all))}, {Text: fmt.Sprint(by[Holds])}, {Text: fmt.Sprint(by[DoesNotHold])}, {Text: fmt.Sprint(by[CannotTell])}, {Text: fmt.Sprint(len(caught[d.ID]))},
		})
		doc.Findings = append(doc.Findings, d.incomplete(m, partsOf(parts, d.ID))...)
		if len(caught[d.ID]) > 0 {
			f := report.Finding{Warn: true, Claim: fmt.Sprintf("Report %s, %s: its own figures carry %d warnings.", d.ID, d.Name, len(caught[d.ID]))}
			for _, c := range caught[d.ID] {
				f.Evidence = append(f.Evidence, c.Claim)
			}
			doc.Findings = append(doc.Findings, f)
		}
	}
	doc.Findings = append([]report.Finding{{First: true, Claim: tally(everything) + ".", See: "Reports"}}, doc.Findings...)
	var results []*bench.Result
	for _, p := range parts {
		if taken := m.parts[p.Name]; taken != nil {
			results = append(results, taken.Results...)
		}
	}
	doc.Findings = append(doc.Findings, bench.Cautions(results...)...)
	doc.Sections = []report.Section{{Title: "Reports", Tables: []report.Table{t}}}
	if len(claims.Rows) > 0 {
		doc.Sections[0].Tables = append(doc.Sections[0].Tables, claims)
	}
	doc.Sections = append(doc.Sections, PartsSection(m, parts))
	return doc
}

// unbraced removes parentheses around a whole name, which mark a row of ours in a table.
func unbraced(name string) string {
	if inner, ok := strings.CutPrefix(name, "("); ok {
		return strings.TrimSuffix(inner, ")")
	}
	return name
}
