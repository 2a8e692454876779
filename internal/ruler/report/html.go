package report

import (
	_ "embed"
	"fmt"
	"html/template"
	"io"
	"strings"
)

//go:embed page.html
var pageText string

//go:embed page.css
var pageCSS string

//go:embed page.js
var pageJS string

var page = template.Must(template.New("page").Funcs(template.FuncMap{
	"chart":      func(id string, c Chart) template.HTML { return template.HTML(drawChart(&c, id)) },
	"chartID":    chartID,
	"tableID":    tableID,
	"inOrder":    sortFindings,
	"turned":     Table.transposed,
	"withPlaces": func(p map[string]place, f []Finding) linkedFindings { return linkedFindings{p, f} },
}).Parse(pageText))

// linkedFindings are findings and the places that they link to.
type linkedFindings struct {
	Places   map[string]place
	Findings []Finding
}

// writeHTML writes one file with its style and charts inline: it loads no font, image or script
// from anywhere. Its script is for tooltips and the choice of theme; without it, everything can
// be read.
func writeHTML(w io.Writer, d *Doc) error {
	return page.Execute(w, map[string]any{
		"Doc":        d,
		"CSS":        template.CSS(pageStyle()),
		"JS":         template.JS(strings.TrimSpace(pageJS)),
		"Env":        environmentRows(d.Env),
		"Provenance": provenance(d.Env),
		"Command":    commandLine(d.Env.Command),
		"Places":     placesOf(d),
		"IDs":        sectionIDs(d),
		"Contents":   len(d.Sections) >= 4,
	})
}

// pageStyle is the style of the page, with the themes first. The page follows the system's
// theme unless the reader chooses one; on paper it is always light.
func pageStyle() string {
	return fmt.Sprintf(`:root { color-scheme: light; %s }
@media screen {
@media (prefers-color-scheme: dark) { :root:not(:has(#theme-light:checked)) { color-scheme: dark; %s } }
:root:has(#theme-dark:checked) { color-scheme: dark; %s }
}
@media print { :root { %s } }
%s%s%s`, light.variables(), dark.variables(), dark.variables(), paper.variables(), chartStyle, chartCSS(), strings.TrimSpace(pageCSS))
}
