package report

import (
	_ "embed"
	"html/template"
	"io"
	"strings"
)

//go:embed page.html
var pageText string

//go:embed page.css
var pageCSS string

var page = template.Must(template.New("page").Funcs(template.FuncMap{
	"chart": func(c Chart) template.HTML { return template.HTML(drawChart(&c)) },
}).Parse(pageText))

// writeHTML writes one file with its style and its charts inside: no script, no
// font and no image is loaded from anywhere.
func writeHTML(w io.Writer, d *Doc) error {
	return page.Execute(w, map[string]any{
		"Doc": d,
		"CSS": template.CSS(strings.TrimSpace(pageCSS)),
		"Env": environmentRows(d.Env),
	})
}
