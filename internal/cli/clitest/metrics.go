package clitest

import (
	"cmp"
	"fmt"
	"maps"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"
)

// metricsPage is the page that documents metrics, relative to a package three levels down.
const metricsPage = "../../../docs/reference/metrics.md"

// Metric is the documentation of a metric.
type Metric struct {
	Name, Type string
	Labels     []string
	Help       string
}

// MetricsOf returns the metrics of a collector: those that it collects now, and those that it
// only describes, for which the name decides between counter and gauge.
func MetricsOf(t *testing.T, c prometheus.Collector) []Metric {
	t.Helper()
	reg := prometheus.NewRegistry()
	reg.MustRegister(c)
	families, err := reg.Gather()
	if err != nil {
		t.Fatal(err)
	}
	found := map[string]Metric{}
	for _, f := range families {
		found[f.GetName()] = metricOf(f)
	}
	descs := make(chan *prometheus.Desc)
	go func() { c.Describe(descs); close(descs) }()
	for d := range descs {
		m := described(t, d.String())
		if _, ok := found[m.Name]; !ok {
			found[m.Name] = m
		}
	}
	return slices.Collect(maps.Values(found))
}

// MetricsOfText returns the metrics in a file in Prometheus's text format.
func MetricsOfText(t *testing.T, path string) []Metric {
	t.Helper()
	f, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	parser := expfmt.NewTextParser(model.UTF8Validation)
	families, err := parser.TextToMetricFamilies(f)
	if err != nil {
		t.Fatal(err)
	}
	var list []Metric
	for _, f := range families {
		list = append(list, metricOf(f))
	}
	return list
}

func metricOf(f *dto.MetricFamily) Metric {
	m := Metric{Name: f.GetName(), Type: strings.ToLower(f.GetType().String()), Help: f.GetHelp()}
	for _, l := range f.GetMetric()[0].GetLabel() {
		m.Labels = append(m.Labels, l.GetName())
	}
	return m
}

var (
	descText  = regexp.MustCompile(`^Desc\{fqName: "([^"]+)", help: "(.*?)"(?:, unit: "[^"]*")?, constLabels: \{(.*)\}, variableLabels: \{(.*)\}\}$`)
	constName = regexp.MustCompile(`(\w+)="`)
)

func described(t *testing.T, text string) Metric {
	t.Helper()
	part := descText.FindStringSubmatch(text)
	if part == nil {
		t.Fatalf("a description of another form: %s", text)
	}
	m := Metric{Name: part[1], Type: "gauge", Help: part[2]}
	if strings.HasSuffix(m.Name, "_total") {
		m.Type = "counter"
	}
	for _, name := range constName.FindAllStringSubmatch(part[3], -1) {
		m.Labels = append(m.Labels, name[1])
	}
	if part[4] != "" {
		m.Labels = append(m.Labels, strings.Split(part[4], ",")...)
	}
	return m
}

// MetricsPage compares the table of one part's metrics in the documentation with the metrics;
// -update writes it.
func MetricsPage(t *testing.T, part string, metrics []Metric) {
	t.Helper()
	slices.SortFunc(metrics, func(a, b Metric) int { return cmp.Compare(a.Name, b.Name) })
	var b strings.Builder
	b.WriteString("\n| metric | type | labels | meaning |\n| --- | --- | --- | --- |\n")
	for _, m := range metrics {
		slices.Sort(m.Labels)
		for i, l := range m.Labels {
			m.Labels[i] = "`" + l + "`"
		}
		fmt.Fprintf(&b, "| `%s` | %s | %s | %s |\n", m.Name, m.Type, strings.Join(m.Labels, ", "), strings.ReplaceAll(m.Help, "|", `\|`))
	}
	text, err := os.ReadFile(metricsPage)
	if err != nil {
		t.Fatal(err)
	}
	begin, end := "<!-- metrics of "+part+": ", "\n<!-- end of "+part+" -->"
	at := strings.Index(string(text), begin)
	if at < 0 {
		t.Fatalf("%s has no place for the metrics of %s", metricsPage, part)
	}
	line, rest, ok := strings.Cut(string(text)[at:], "\n")
	_, tail, ok2 := strings.Cut(rest, end)
	if !ok || !ok2 {
		t.Fatalf("%s does not end the metrics of %s", metricsPage, part)
	}
	Golden(t, metricsPage, string(text), string(text)[:at]+line+"\n"+b.String()+end+tail)
}
