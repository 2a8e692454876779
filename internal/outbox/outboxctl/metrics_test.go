package outboxctl

import (
	"bytes"
	"io"
	"os"
	"os/exec"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"
	"go.yaml.in/yaml/v3"

	"github.com/weirdb/weir/batch"
	"github.com/weirdb/weir/internal/cli/clitest"
	"github.com/weirdb/weir/outbox"
)

func values(t *testing.T, s *Service) map[string]float64 {
	t.Helper()
	reg := prometheus.NewPedanticRegistry()
	reg.MustRegister(s.Collector())
	families, err := reg.Gather()
	if err != nil {
		t.Fatal(err)
	}
	out := map[string]float64{}
	for _, f := range families {
		for _, m := range f.GetMetric() {
			name := f.GetName()
			for _, l := range m.GetLabel() {
				if l.GetName() == "reason" {
					name += "/" + l.GetValue()
				}
			}
			out[name] = m.GetGauge().GetValue() + m.GetCounter().GetValue() + float64(m.GetHistogram().GetSampleCount())
		}
	}
	return out
}

func TestMetricNames(t *testing.T) {
	s, err := NewService(fileStore(t, outbox.Plan{}), lines(t, io.Discard), Config{})
	if err != nil {
		t.Fatal(err)
	}
	reg := prometheus.NewPedanticRegistry()
	reg.MustRegister(s.Collector())
	families, err := reg.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range families {
		if counter := f.GetType().String() == "COUNTER"; counter != strings.HasSuffix(f.GetName(), "_total") {
			t.Errorf("%s is a %s", f.GetName(), f.GetType())
		}
		if !strings.HasSuffix(f.GetHelp(), ".") {
			t.Errorf("help of %s: %q", f.GetName(), f.GetHelp())
		}
	}
}

func TestAlertsNameMetricsThatThereAre(t *testing.T) {
	s, err := NewService(fileStore(t, outbox.Plan{}), lines(t, io.Discard), Config{})
	if err != nil {
		t.Fatal(err)
	}
	known := map[string]bool{}
	descs := make(chan *prometheus.Desc, 100)
	s.Collector().Describe(descs)
	close(descs)
	fqName := regexp.MustCompile(`fqName: "([^"]+)"`)
	for d := range descs {
		known[fqName.FindStringSubmatch(d.String())[1]] = true
	}
	text, err := os.ReadFile("../../../contrib/prometheus/outbox-alerts.yml")
	if err != nil {
		t.Fatal(err)
	}
	var file struct {
		Groups []struct {
			Name  string
			Rules []struct {
				Alert, Expr, For    string
				Labels, Annotations map[string]string
			}
		}
	}
	dec := yaml.NewDecoder(bytes.NewReader(text))
	dec.KnownFields(true)
	if err := dec.Decode(&file); err != nil {
		t.Fatal(err)
	}
	metric := regexp.MustCompile(`weir_outbox_[a-z_]+`)
	for _, g := range file.Groups {
		for _, r := range g.Rules {
			names := metric.FindAllString(r.Expr, -1)
			for _, name := range names {
				if !known[name] {
					t.Errorf("alert %s: there is no metric %s", r.Alert, name)
				}
			}
			if len(names) == 0 || r.Labels["severity"] == "" || r.Annotations["summary"] == "" {
				t.Errorf("alert %s is incomplete", r.Alert)
			}
			if strings.Count(r.Expr, "(") != strings.Count(r.Expr, ")") {
				t.Errorf("alert %s: parentheses in %s", r.Alert, r.Expr)
			}
			if _, err := time.ParseDuration(r.For); r.For != "" && err != nil {
				t.Errorf("alert %s: %v", r.Alert, err)
			}
		}
	}
	if len(file.Groups) != 1 || len(file.Groups[0].Rules) < 5 {
		t.Errorf("found %+v", file)
	}
	if promtool, err := exec.LookPath("promtool"); err == nil { // Prometheus's own opinion, where it is installed
		out, err := exec.CommandContext(t.Context(), promtool, "check", "rules", "../../../contrib/prometheus/outbox-alerts.yml").CombinedOutput()
		if err != nil {
			t.Errorf("promtool: %v\n%s", err, out)
		}
	}
	docs, err := os.ReadFile("../../../docs/outbox.md")
	if err != nil {
		t.Fatal(err)
	}
	for name := range known {
		if !strings.Contains(string(docs), "`"+strings.TrimPrefix(name, "weir_outbox_")+"`") {
			t.Errorf("docs/outbox.md does not tell of %s", name)
		}
	}
}

// The dashboard for Grafana shows metrics that there are.
func TestDashboardNamesMetricsThatThereAre(t *testing.T) {
	s, err := NewService(fileStore(t, outbox.Plan{}), lines(t, io.Discard), Config{})
	if err != nil {
		t.Fatal(err)
	}
	known := map[string]bool{}
	descs := make(chan *prometheus.Desc, 100)
	s.Collector().Describe(descs)
	close(descs)
	fqName := regexp.MustCompile(`fqName: "([^"]+)"`)
	for d := range descs {
		known[fqName.FindStringSubmatch(d.String())[1]] = true
	}
	text, err := os.ReadFile("../../../contrib/grafana/weir-outbox.json")
	if err != nil {
		t.Fatal(err)
	}
	exprs := clitest.DashboardQueries(t, text)
	if len(exprs) < 20 {
		t.Errorf("the dashboard has %d queries", len(exprs))
	}
	part := regexp.MustCompile(`(_seconds|_messages|_rows)_(bucket|sum|count)$`)
	for _, expr := range append(exprs, string(text)) {
		for _, name := range regexp.MustCompile(`weir_outbox_[a-z_]+`).FindAllString(expr, -1) {
			if !known[name] && !known[part.ReplaceAllString(name, "$1")] {
				t.Errorf("the dashboard asks for %s, which there is not", name)
			}
		}
	}
}

func TestHistogramsAreCumulative(t *testing.T) {
	var h batch.Histogram
	for _, ms := range []int64{0, 1, 1, 3, 3, 40, 100_000_000} {
		h.Record(ms * int64(time.Millisecond))
	}
	got := cumulate(&h, []float64{.0005, .002, .005, .1, 1}, 1e-9)
	if diff := cmp.Diff(map[float64]uint64{.0005: 1, .002: 3, .005: 5, .1: 6, 1: 6}, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

func TestLineShowsWhatHappenedSince(t *testing.T) {
	began := time.Unix(1000, 0)
	earlier := Snapshot{At: began, Stats: outbox.Stats{Delivered: 1000}}
	now := Snapshot{At: began.Add(2 * time.Second), Stats: outbox.Stats{Delivered: 26_000, Bytes: 12_400_000, InFlight: 1234}}
	if got, want := Line(&earlier, &now, "log"), "log | 12,500 msg/s 6.2 MB/s | in flight 1,234"; got != want {
		t.Errorf("got  %s\nwant %s", got, want)
	}
	now.Stats.Delivery.Record(int64(time.Millisecond))
	now.CountedAt, now.Status = now.At, outbox.Status{Pending: 12, Oldest: 90 * time.Second, Dead: 3}
	now.Stats.Parked, now.Stats.Deferred, now.Stats.BrokerDown = 1, 4, true
	const want = "poll | 12,500 msg/s 6.2 MB/s | p50 1.0ms p99 1.0ms | pending 12 oldest 1m30s | in flight 1,234 | waiting 5 | dead 3 | NO BROKER"
	if got := Line(&earlier, &now, "poll"); got != want {
		t.Errorf("got  %s\nwant %s", got, want)
	}
	now.CountedAt = now.At.Add(-7 * time.Second)
	if got := Line(&earlier, &now, "poll"); !strings.Contains(got, "oldest 1m30s 7s ago |") {
		t.Errorf("an old count: %s", got)
	}
}

// The page of metrics has all that a relay describes.
func TestMetricsPage(t *testing.T) {
	s, err := NewService(fileStore(t, outbox.Plan{}), lines(t, io.Discard), Config{})
	if err != nil {
		t.Fatal(err)
	}
	clitest.MetricsPage(t, "outbox", clitest.MetricsOf(t, s.Collector()))
}
