package suite

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/google/pprof/profile"

	"github.com/weirdb/weir/internal/measure"
	"github.com/weirdb/weir/internal/ruler/report"
)

// CPUProfile is where the CPU time of the processes of one role went in one case.
type CPUProfile struct {
	Case      string                `json:"case"`
	Role      string                `json:"role"`
	Breakdown *measure.CPUBreakdown `json:"breakdown"`
	// File is the name of the profile in the directory of the run.
	File string `json:"file,omitempty"`
}

// ProfileFiles lists the files of profiles that have one.
func ProfileFiles(profiles []CPUProfile) []string {
	var out []string
	for _, p := range profiles {
		if p.File != "" { // older runs have none
			out = append(out, p.File)
		}
	}
	return out
}

// MinSamples is how many samples a CPU profile needs for its shares to be reported: with 100
// samples, a share of one half is right within ten percentage points 19 times in 20.
const MinSamples = 100

// ProfileName is the file name of the profile of a case and a role.
func ProfileName(name, role string) string {
	clean := func(s string) string {
		return strings.Map(func(r rune) rune {
			switch {
			case r >= 'a' && r <= 'z', r >= 'A' && r <= 'Z', r >= '0' && r <= '9', r == '.', r == '-':
				return r
			}
			return '-'
		}, s)
	}
	return "cpu-" + clean(name) + "-" + clean(role) + ".pb.gz"
}

// SaveProfile writes a profile into the directory of a run and summarises it.
func SaveProfile(dir, name, role string, p *profile.Profile) (out CPUProfile, err error) {
	out = CPUProfile{Case: name, Role: role, File: ProfileName(name, role)}
	if out.Breakdown, err = measure.DefaultRules().Breakdown(p); err != nil {
		return out, fmt.Errorf("profile of the %s: %w", role, err)
	}
	f, err := os.Create(filepath.Join(dir, out.File))
	if err != nil {
		return out, fmt.Errorf("write profile: %w", err)
	}
	if err := errors.Join(p.Write(f), f.Close()); err != nil {
		return out, fmt.Errorf("write profile: %w", err)
	}
	return out, nil
}

// ReadProfile reads what SaveProfile wrote.
func ReadProfile(dir, name, role string) (out CPUProfile, err error) {
	out = CPUProfile{Case: name, Role: role, File: ProfileName(name, role)}
	f, err := os.Open(filepath.Join(dir, out.File))
	if err != nil {
		return out, fmt.Errorf("read profile: %w", err)
	}
	defer f.Close()
	p, err := profile.Parse(f)
	if err != nil {
		return out, fmt.Errorf("read profile %s: %w", out.File, err)
	}
	out.Breakdown, err = measure.DefaultRules().Breakdown(p)
	return out, err
}

// ProfileSection compares the categories of profiles, and lists the functions of each category.
func ProfileSection(profiles []CPUProfile) report.Section {
	var few []string
	var told []CPUProfile
	for _, p := range profiles {
		if n := p.Breakdown.Samples; n < MinSamples {
			few = append(few, fmt.Sprintf("%s, %s: %d samples (%.2f s of CPU time) are too few for shares; %d would do.", p.Case, p.Role, n, p.Breakdown.Seconds, MinSamples))
		} else {
			told = append(told, p)
		}
	}
	out := report.Section{Title: "Where the CPU time goes", Text: few}
	if len(told) == 0 {
		return out
	}
	table, chart := categories(told)
	out.Tables = []report.Table{table, FunctionTable(told)}
	out.Charts = []report.Chart{chart}
	return out
}

// categories compares the shares of profiles.
func categories(told []CPUProfile) (report.Table, report.Chart) {
	var cats []string
	for _, p := range told {
		for _, c := range p.Breakdown.Categories {
			if !slices.Contains(cats, c.Name) {
				cats = append(cats, c.Name)
			}
		}
	}
	t := report.Table{
		Columns: []report.Column{{Name: "category"}},
		Note:    "Exclusive shares, which add up to 100 %; in brackets the share of samples that have the category anywhere on their stack.",
	}
	ch := report.Chart{Title: "CPU time by category", Kind: report.Stacked, XLabel: "share of the process's CPU time"}
	samples := []report.Cell{{Text: "samples"}}
	for _, p := range told {
		name := p.Case + ", " + p.Role
		samples = append(samples, report.Cell{Text: strconv.FormatInt(p.Breakdown.Samples, 10)})
		t.Columns = append(t.Columns, report.Column{Name: name, Numeric: true})
		ch.Categories = append(ch.Categories, name)
	}
	for _, cat := range cats {
		row := []report.Cell{{Text: cat}}
		s := report.Series{Name: cat}
		for _, p := range told {
			i := slices.IndexFunc(p.Breakdown.Categories, func(c measure.Category) bool { return c.Name == cat })
			if i < 0 {
				row = append(row, report.Cell{Text: ""})
				s.Points = append(s.Points, report.Point{})
				continue
			}
			c := p.Breakdown.Categories[i]
			row = append(row, report.Cell{Text: fmt.Sprintf("%.1f %% (%.0f %%)", 100*c.Exclusive, 100*c.Cumulative)})
			s.Points = append(s.Points, report.Point{Y: c.Exclusive})
		}
		t.Rows = append(t.Rows, row)
		ch.Series = append(ch.Series, s)
	}
	t.Rows = append(t.Rows, samples)
	return t, ch
}

// functionsShown is how many functions of a category are listed, leastShown the share below
// which none is.
const (
	functionsShown = 4
	leastShown     = 0.005
)

// FunctionTable lists the functions of each category of each profile.
func FunctionTable(profiles []CPUProfile) report.Table {
	t := report.Table{
		Title:   "Functions of each category",
		Columns: report.Columns(":profile", ":category", ":function", "itself|%", "with its callees in the category|%"),
		Note:    "Shares of the whole profile. Functions that call each other share samples: do not add up the last column.",
	}
	for _, p := range profiles {
		for _, c := range p.Breakdown.Categories {
			for i, f := range c.Functions {
				if i == functionsShown || f.Cumulative < leastShown {
					break
				}
				t.Rows = append(t.Rows, report.Cells(p.Case+", "+p.Role, c.Name, functionName(f.Function), fmt.Sprintf("%.1f", 100*f.Flat), fmt.Sprintf("%.1f", 100*f.Cumulative)))
			}
		}
	}
	return t
}

// functionName shortens a function's name for a table: without weir's own path, and with
// "[...]" for type arguments, as in Go's stack traces.
func functionName(symbol string) string {
	symbol = strings.TrimPrefix(symbol, "github.com/weirdb/weir/")
	open, end := strings.IndexByte(symbol, '['), strings.LastIndexByte(symbol, ']')
	if open < 0 || end < open {
		return symbol
	}
	return symbol[:open] + "[...]" + symbol[end+1:]
}
