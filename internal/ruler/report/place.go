package report

import (
	"fmt"
	"slices"
	"strings"
	"unicode"
)

// place is the position of an element in a report: the anchor of its section, as GitHub derives
// it from the heading, and its own anchor.
type place struct{ Section, Self string }

// placesOf returns the places of all sections, tables and charts by title. If several have the
// same title, the first one counts.
func placesOf(d *Doc) map[string]place {
	out := make(map[string]place)
	ids := sectionIDs(d)
	for i, s := range d.Sections {
		section := ids[i]
		put := func(title, self string) {
			if _, taken := out[title]; !taken && title != "" {
				out[title] = place{section, self}
			}
		}
		put(s.Title, section)
		for j, t := range s.Tables {
			put(t.Title, tableID(i, j))
		}
		for j, c := range s.Charts {
			put(c.Title, chartID(i, j))
		}
	}
	return out
}

// sectionIDs returns the anchors of the sections, in order.
func sectionIDs(d *Doc) []string {
	used := map[string]int{"findings": 1, "environment": 1}
	out := make([]string, len(d.Sections))
	for i, s := range d.Sections {
		out[i] = slug(s.Title, used)
	}
	return out
}

func tableID(section, table int) string { return fmt.Sprintf("t%d-%d", section+1, table+1) }
func chartID(section, chart int) string { return fmt.Sprintf("c%d-%d", section+1, chart+1) }

// slug makes the anchor of a heading: lower case, hyphens for spaces, no punctuation, and a
// number from the second occurrence on.
func slug(title string, used map[string]int) string {
	s := strings.Map(func(r rune) rune {
		switch {
		case r == ' ':
			return '-'
		case r == '-' || r == '_' || unicode.IsLetter(r) || unicode.IsDigit(r):
			return unicode.ToLower(r)
		}
		return -1
	}, title)
	n := used[s]
	used[s]++
	if n > 0 {
		return fmt.Sprintf("%s-%d", s, n)
	}
	return s
}

// sortFindings sorts findings: those to read first, then the others, then warnings.
func sortFindings(findings []Finding) []Finding {
	place := func(f Finding) int {
		switch {
		case f.First:
			return 0
		case f.Warn:
			return 2
		}
		return 1
	}
	return slices.SortedStableFunc(slices.Values(findings), func(a, b Finding) int { return place(a) - place(b) })
}
