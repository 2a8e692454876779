package report

import (
	"fmt"
	"strconv"
	"strings"
)

// ChartDoc is one chart as a report of its own, with the environment of the whole.
type ChartDoc struct {
	// Name is suitable as a file name: the number of the chart and its title.
	Name string
	Doc  *Doc
}

// ChartDocs returns the charts of a report as separate reports, in order.
func (d *Doc) ChartDocs() []ChartDoc {
	var out []ChartDoc
	for _, s := range d.Sections {
		for _, c := range s.Charts {
			c.Tabled = false // alone, the chart needs its own figures
			out = append(out, ChartDoc{
				Name: fmt.Sprintf("%02d-%s", len(out)+1, slug(c.Title, map[string]int{})),
				Doc:  &Doc{Title: c.Title, Subtitle: s.Title, Env: d.Env, Sections: []Section{{Title: s.Title, Charts: []Chart{c}}}},
			})
		}
	}
	return out
}

// PickChart returns the chart with a number, from 1 on, or a title. Case does not matter, and a
// unique prefix of the title is enough.
func (d *Doc) PickChart(which string) (*Doc, error) {
	all := d.ChartDocs()
	if n, err := strconv.Atoi(which); err == nil {
		if n < 1 || n > len(all) {
			return nil, fmt.Errorf("no chart %d: the report has %d", n, len(all))
		}
		return all[n-1].Doc, nil
	}
	var found, exact []*Doc
	var titles []string
	for _, c := range all {
		titles = append(titles, strconv.Quote(c.Doc.Title))
		switch title := strings.ToLower(c.Doc.Title); {
		case title == strings.ToLower(which):
			exact = append(exact, c.Doc)
		case strings.HasPrefix(title, strings.ToLower(which)):
			found = append(found, c.Doc)
		}
	}
	if len(exact) > 0 {
		found = exact
	}
	switch {
	case len(found) == 1:
		return found[0], nil
	case len(found) > 1:
		return nil, fmt.Errorf("%d charts are called %q: name one by its number", len(found), which)
	case len(all) == 0:
		return nil, fmt.Errorf("no chart %q: the report has none", which)
	}
	return nil, fmt.Errorf("no chart %q: want one of %s", which, strings.Join(titles, ", "))
}
