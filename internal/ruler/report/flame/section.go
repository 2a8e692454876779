package flame

import (
	"errors"
	"fmt"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/google/pprof/profile"

	"github.com/weirdb/weir/internal/measure"
	"github.com/weirdb/weir/internal/ruler/report"
)

// mostSites is how many functions a table lists.
const mostSites = 15

// Sections makes the sections of a profile: on CPU time, memory, or time spent waiting,
// depending on its sample types. name distinguishes profiles in the titles, such as "weir"; it
// may be empty.
func Sections(name string, p *profile.Profile, rules *measure.Rules) ([]report.Section, error) {
	has := func(t string) bool { _, err := valueOf(p, t); return err == nil }
	var out []report.Section
	var err error
	switch {
	case has("cpu"):
		out, err = one(cpuSection(name, p, rules))
	case has("inuse_space"):
		out, err = heapSections(name, p)
	case has("delay"):
		out, err = one(plainSection(titled("Time spent waiting", name), p, "delay", "ms", 1e6))
	case len(p.SampleType) > 0:
		t := p.SampleType[len(p.SampleType)-1]
		unit := t.Unit
		if unit == "count" {
			unit = ""
		}
		out, err = one(plainSection(titled("Profile of "+t.Type, name), p, t.Type, unit, 1))
	default:
		err = errors.New("profile has no values")
	}
	if err != nil {
		return nil, fmt.Errorf("lay out profile: %w", err)
	}
	return out, nil
}

func one(s report.Section, err error) ([]report.Section, error) {
	return []report.Section{s}, err
}

func titled(title, name string) string {
	if name == "" {
		return title
	}
	return title + ", " + name
}

func cpuSection(name string, p *profile.Profile, rules *measure.Rules) (report.Section, error) {
	b, err := rules.Breakdown(p)
	if err != nil {
		return report.Section{}, err
	}
	flame, err := Chart(titled("CPU time by call", name), p, rules)
	if err != nil {
		return report.Section{}, err
	}
	sites, err := measure.TopSites(p, "cpu", mostSites)
	if err != nil {
		return report.Section{}, err
	}
	s := report.Section{Title: titled("CPU time", name), Text: []string{cpuText(p, b)}}
	s.Tables = append(s.Tables, CategoryTable(b))
	if len(b.Unmatched) > 0 {
		s.Tables = append(s.Tables, siteTable("What no category claims", b.Unmatched))
	}
	s.Tables = append(s.Tables, siteTable("Functions by the CPU time they took themselves", sites))
	s.Charts = append(s.Charts, CategoryChart(titled("CPU time by category", name), b), flame)
	return s, nil
}

// Chart is the flame graph of a CPU profile.
func Chart(title string, p *profile.Profile, rules *measure.Rules) (report.Chart, error) {
	b, err := rules.Breakdown(p)
	if err != nil {
		return report.Chart{}, err
	}
	root, err := Tree(p, "cpu", 1e6, categorise(rules))
	if err != nil {
		return report.Chart{}, err
	}
	flame := report.Chart{
		Title: title, Kind: report.Flame, Unit: "ms", Root: root, Tabled: true,
		Note: "Callers are above what they call; a frame is as wide as its CPU time, with all that it called. Its colour is the category in which its own time is counted.",
	}
	for _, c := range b.Categories {
		if c.Exclusive > 0 && c.Name != measure.OtherCategory {
			flame.Categories = append(flame.Categories, c.Name)
		}
	}
	return flame, nil
}

// cpuText says how much CPU time was sampled.
func cpuText(p *profile.Profile, b *measure.CPUBreakdown) string {
	text := fmt.Sprintf("%.2f s of CPU time in %d samples", b.Seconds, b.Samples)
	if d := float64(p.DurationNanos) / 1e9; d > 0 {
		text += fmt.Sprintf(", taken over %.1f s: %.2f cores were busy", d, b.Seconds/d)
	}
	if b.Samples < 200 {
		text += ". So few samples make the shares uncertain by some percent"
	}
	return text + "."
}

// CategoryTable lists the exclusive shares, which add up to 100.0 %, and the cumulative ones,
// which overlap.
func CategoryTable(b *measure.CPUBreakdown) report.Table {
	t := report.Table{
		Title:   "CPU time by category",
		Columns: report.Columns(":category", "exclusive|%", "CPU time|s", "anywhere on the stack|%"),
		Note:    "Exclusive: each sample counts once, for what was nearest to its leaf. Anywhere on the stack: shares overlap, and their sum means nothing.",
	}
	shares := make([]float64, len(b.Categories))
	for i, c := range b.Categories {
		shares[i] = c.Exclusive
	}
	for i, tenths := range roundTogether(shares, 1000) {
		c := b.Categories[i]
		t.Rows = append(t.Rows, report.Cells(c.Name, fmt.Sprintf("%.1f", float64(tenths)/10),
			fmt.Sprintf("%.2f", c.Exclusive*b.Seconds), fmt.Sprintf("%.1f", 100*c.Cumulative)))
	}
	t.Rows = append(t.Rows, []report.Cell{{Text: "sum", Strong: true}, {Text: "100.0", Strong: true}, {Text: fmt.Sprintf("%.2f", b.Seconds), Strong: true}, {Text: ""}})
	return t
}

// roundTogether rounds shares that add up to 1 to whole parts of total that add up to total: it
// rounds up those with the largest remainders.
func roundTogether(shares []float64, total int) []int {
	out := make([]int, len(shares))
	order := make([]int, len(shares))
	left := total
	for i, s := range shares {
		out[i] = int(s * float64(total))
		left -= out[i]
		order[i] = i
	}
	rest := func(i int) float64 { return shares[i]*float64(total) - float64(out[i]) }
	slices.SortStableFunc(order, func(a, b int) int {
		switch x, y := rest(a), rest(b); {
		case x > y:
			return -1
		case x < y:
			return 1
		}
		return 0
	})
	for i := 0; i < left && i < len(order); i++ {
		out[order[i]]++
	}
	return out
}

// CategoryChart draws exclusive and cumulative shares side by side.
func CategoryChart(title string, b *measure.CPUBreakdown) report.Chart {
	c := report.Chart{
		Title: title, Kind: report.Bars, YLabel: "share of the CPU time", Unit: "%", Tabled: true,
		Series: []report.Series{{Name: "exclusive: adds up to 100 %"}, {Name: "anywhere on the stack: overlaps"}},
	}
	for _, k := range b.Categories {
		c.Categories = append(c.Categories, k.Name)
		c.Series[0].Points = append(c.Series[0].Points, report.Point{Y: 100 * k.Exclusive})
		c.Series[1].Points = append(c.Series[1].Points, report.Point{Y: 100 * k.Cumulative})
	}
	return c
}

func siteTable(title string, sites []measure.Site) report.Table {
	t := report.Table{Title: title, Columns: report.Columns(":function", "itself|%", "with its callees|%")}
	for _, s := range sites {
		t.Rows = append(t.Rows, report.Cells(s.Function, fmt.Sprintf("%.1f", 100*s.Flat), fmt.Sprintf("%.1f", 100*s.Cumulative)))
	}
	return t
}

// heapSections are sections on memory in use and memory allocated, if the profile has them.
func heapSections(name string, p *profile.Profile) ([]report.Section, error) {
	var out []report.Section
	for _, k := range []struct{ kind, objects, title string }{
		{"inuse_space", "inuse_objects", "Memory in use"},
		{"alloc_space", "alloc_objects", "Memory allocated since the start"},
	} {
		if !holds(p, k.kind) || !holds(p, k.objects) {
			continue
		}
		s, err := heapSection(titled(k.title, name), p, k.kind, k.objects)
		if err != nil {
			return nil, err
		}
		out = append(out, s)
	}
	if len(out) == 0 {
		return nil, errors.New("profile holds no memory, neither in use nor allocated")
	}
	return out, nil
}

// holds reports whether any sample has a value of a type.
func holds(p *profile.Profile, kind string) bool {
	at, err := valueOf(p, kind)
	return err == nil && slices.ContainsFunc(p.Sample, func(s *profile.Sample) bool { return s.Value[at] > 0 })
}

func heapSection(title string, p *profile.Profile, kind, objects string) (report.Section, error) {
	root, err := Tree(p, kind, 1, func(string) string { return "" })
	if err != nil {
		return report.Section{}, err
	}
	table, err := lineTable(p, kind, objects)
	if err != nil {
		return report.Section{}, err
	}
	return report.Section{
		Title:  title,
		Text:   []string{fmt.Sprintf("%.2f MB. The runtime samples an allocation for about each %d KiB, so small sites are estimates.", root.Value/1e6, max(p.Period, 1)/1024)},
		Tables: []report.Table{table},
		Charts: []report.Chart{{Title: title + " by call", Kind: report.Flame, Unit: "B", Root: root, Tabled: true, Note: "Callers are above what they call; a frame is as wide as the memory that was allocated below it."}},
	}, nil
}

// lineTable lists the lines that allocated most.
func lineTable(p *profile.Profile, kind, objects string) (report.Table, error) {
	space, err := valueOf(p, kind)
	if err != nil {
		return report.Table{}, err
	}
	count, err := valueOf(p, objects)
	if err != nil {
		return report.Table{}, err
	}
	type site struct {
		name           string
		bytes, objects int64
	}
	sites := make(map[string]*site)
	var total int64
	for _, s := range p.Sample {
		name := leafLine(s)
		if sites[name] == nil {
			sites[name] = &site{name: name}
		}
		sites[name].bytes += s.Value[space]
		sites[name].objects += s.Value[count]
		total += s.Value[space]
	}
	all := make([]*site, 0, len(sites))
	for _, s := range sites {
		if s.bytes > 0 {
			all = append(all, s)
		}
	}
	slices.SortFunc(all, func(a, b *site) int {
		if a.bytes != b.bytes {
			if a.bytes > b.bytes {
				return -1
			}
			return 1
		}
		return strings.Compare(a.name, b.name)
	})
	t := report.Table{Title: "Memory by the line that allocated it", Columns: report.Columns(":site", "memory|kB", "share|%", "objects", "size of one|B")}
	for _, s := range all[:min(mostSites, len(all))] {
		each := "-"
		if s.objects > 0 {
			each = strconv.FormatInt(s.bytes/s.objects, 10)
		}
		t.Rows = append(t.Rows, report.Cells(s.name, fmt.Sprintf("%.1f", float64(s.bytes)/1e3), fmt.Sprintf("%.1f", 100*float64(s.bytes)/float64(total)), strconv.FormatInt(s.objects, 10), each))
	}
	if len(all) > mostSites {
		t.Note = fmt.Sprintf("The first %d of %d sites.", mostSites, len(all))
	}
	return t, nil
}

// leafLine names the source line at the end of a stack.
func leafLine(s *profile.Sample) string {
	if len(s.Location) == 0 {
		return "(no stack)"
	}
	loc := s.Location[0]
	if len(loc.Line) == 0 || loc.Line[0].Function == nil {
		return fmt.Sprintf("0x%x", loc.Address)
	}
	f := loc.Line[0].Function
	return fmt.Sprintf("%s %s:%d", f.Name, path.Base(f.Filename), loc.Line[0].Line)
}

// plainSection is a flame graph of any value, and its functions.
func plainSection(title string, p *profile.Profile, kind, unit string, per float64) (report.Section, error) {
	root, err := Tree(p, kind, per, func(string) string { return "" })
	if err != nil {
		return report.Section{}, err
	}
	sites, err := measure.TopSites(p, kind, mostSites)
	if err != nil {
		return report.Section{}, err
	}
	return report.Section{
		Title:  title,
		Tables: []report.Table{siteTable("Functions by their own part", sites)},
		Charts: []report.Chart{{Title: title + " by call", Kind: report.Flame, Unit: unit, Root: root, Tabled: true}},
	}, nil
}

// ErrEmpty is the error of a profile that is too short to have a sample.
var ErrEmpty = errors.New("the profile holds no samples")

// Append adds the profile in a file to the end of a report, named after the file.
func Append(doc *report.Doc, path string) (err error) {
	f, err := os.Open(path)
	if err != nil {
		return fmt.Errorf("read profile: %w", err)
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	p, err := Read(f)
	if err != nil {
		return fmt.Errorf("%s: %w", path, err)
	}
	if len(p.Sample) == 0 {
		return fmt.Errorf("%s: %w", path, ErrEmpty)
	}
	name := strings.TrimPrefix(strings.TrimSuffix(filepath.Base(path), ".pb.gz"), "cpu-")
	sections, err := Sections(name, p, measure.DefaultRules())
	if err != nil {
		return fmt.Errorf("%s: %w", path, err)
	}
	doc.Sections = append(doc.Sections, sections...)
	return nil
}
