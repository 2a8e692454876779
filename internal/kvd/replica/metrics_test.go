package replica

import (
	"bytes"
	"maps"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"go.yaml.in/yaml/v3"

	"github.com/weirdb/weir/internal/cli/clitest"
)

// metricTypes gathers the metrics of a replica: their types by their names.
func metricTypes(t *testing.T) map[string]string {
	t.Helper()
	r := startRig(t, 1, "raft-ht", nil)
	reg := prometheus.NewPedanticRegistry()
	reg.MustRegister(r.nodes[1].Collector())
	families, err := reg.Gather()
	if err != nil {
		t.Fatal(err)
	}
	types := map[string]string{}
	for _, f := range families {
		types[f.GetName()] = f.GetType().String()
		if !strings.HasSuffix(f.GetHelp(), ".") {
			t.Errorf("help of %s: %q", f.GetName(), f.GetHelp())
		}
	}
	// Those that a replica alone has nothing to say of are described all the same.
	descs := make(chan *prometheus.Desc, 200)
	r.nodes[1].Collector().Describe(descs)
	close(descs)
	fqName := regexp.MustCompile(`fqName: "([^"]+)"`)
	for d := range descs {
		if name := fqName.FindStringSubmatch(d.String())[1]; types[name] == "" {
			types[name] = "not gathered"
		}
	}
	return types
}

var metricName = regexp.MustCompile(`weir_kv_[a-z_]+`)

// unknown lists the metrics that a text names and no replica has.
func unknown(types map[string]string, text string) []string {
	missing := map[string]bool{}
	for _, name := range metricName.FindAllString(text, -1) {
		if i := strings.LastIndexByte(name, '_'); types[name[:i]] == "HISTOGRAM" && slices.Contains([]string{"_bucket", "_sum", "_count"}, name[i:]) {
			continue
		}
		if types[name] == "" {
			missing[name] = true
		}
	}
	return slices.Sorted(maps.Keys(missing))
}

func TestMetricNames(t *testing.T) {
	types := metricTypes(t)
	for name, kind := range types {
		if counter := kind == "COUNTER"; kind != "not gathered" && counter != strings.HasSuffix(name, "_total") {
			t.Errorf("%s is a %s", name, kind)
		}
	}
	if got := unknown(types, "weir_kv_ready weir_kv_fsync_seconds_bucket weir_kv_ready_bucket weir_kv_bliss"); !slices.Equal(got, []string{"weir_kv_bliss", "weir_kv_ready_bucket"}) {
		t.Fatalf("unknown metrics %q: the test below would not notice", got)
	}
	doc, err := os.ReadFile("../../../docs/kv-operating.md")
	if err != nil {
		t.Fatal(err)
	}
	// "weir_kv_…" stands for all of them.
	if missing := unknown(types, strings.ReplaceAll(string(doc), "weir_kv_…", "")); len(missing) > 0 {
		t.Errorf("docs/kv-operating.md names %q, which no replica has", missing)
	}
}

func TestAlertsNameMetricsThatThereAre(t *testing.T) {
	types := metricTypes(t)
	text, err := os.ReadFile("../../../contrib/prometheus/kv-alerts.yml")
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
	for _, g := range file.Groups {
		for _, r := range g.Rules {
			if missing := unknown(types, r.Expr); len(missing) > 0 {
				t.Errorf("%s asks for %q, which no replica has", r.Alert, missing)
			}
			if len(metricName.FindAllString(r.Expr, -1)) == 0 || r.Labels["severity"] == "" || r.Annotations["summary"] == "" {
				t.Errorf("%s is incomplete", r.Alert)
			}
			if strings.Count(r.Expr, "(") != strings.Count(r.Expr, ")") {
				t.Errorf("%s: parentheses in %s", r.Alert, r.Expr)
			}
			if _, err := time.ParseDuration(r.For); r.For != "" && err != nil {
				t.Errorf("%s: %v", r.Alert, err)
			}
		}
	}
	if len(file.Groups) == 0 || len(file.Groups[0].Rules) < 8 {
		t.Error("alerts are missing")
	}
}

// The dashboard for Grafana shows metrics that there are.
func TestDashboardNamesMetricsThatThereAre(t *testing.T) {
	types := metricTypes(t)
	text, err := os.ReadFile("../../../contrib/grafana/weir-kv.json")
	if err != nil {
		t.Fatal(err)
	}
	if missing := unknown(types, string(text)); len(missing) > 0 {
		t.Errorf("the dashboard asks for %q, which no replica has", missing)
	}
	if exprs := clitest.DashboardQueries(t, text); len(exprs) < 20 {
		t.Errorf("the dashboard has %d queries", len(exprs))
	}
}

// The page of metrics has all that a replica describes.
func TestMetricsPage(t *testing.T) {
	r := startRig(t, 1, "raft-ht", nil)
	clitest.MetricsPage(t, "kv", clitest.MetricsOf(t, r.nodes[1].Collector()))
}
