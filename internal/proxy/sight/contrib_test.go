package sight

import (
	"encoding/json"
	"os"
	"os/exec"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"go.yaml.in/yaml/v3"
)

const (
	alertsFile    = "../../../contrib/prometheus/proxy-alerts.yml"
	dashboardFile = "../../../contrib/grafana/weir-proxy.json"
)

// Alerts, dashboard and documentation name the metrics that there are.
func TestContribNamesMetricsThatThereAre(t *testing.T) {
	t.Parallel()
	var known []string
	c := reflect.ValueOf(Collector()).Elem()
	fqName := regexp.MustCompile(`fqName: "([^"]+)"`)
	for i := range c.NumField() {
		if c.Type().Field(i).Type == reflect.TypeFor[*prometheus.Desc]() {
			m := fqName.FindStringSubmatch(describe(c.Field(i)))
			if m == nil {
				t.Fatalf("no name in %v", c.Type().Field(i).Name)
			}
			known = append(known, m[1])
		}
	}
	if len(known) < 30 {
		t.Fatalf("the collector has %d metrics", len(known))
	}
	docs, err := os.ReadFile("../../../docs/proxy.md")
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range known {
		if !strings.Contains(string(docs), "`"+name+"`") {
			t.Errorf("docs/proxy.md does not tell of %s", name)
		}
	}
	for _, h := range []string{"latency", "wait", "server", "login"} {
		for _, part := range []string{"bucket", "sum", "count"} {
			known = append(known, "weir_proxy_"+h+"_seconds_"+part)
		}
	}
	for _, file := range []string{alertsFile, dashboardFile} {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		names := regexp.MustCompile(`weir_proxy_\w+`).FindAllString(string(text), -1)
		if len(names) < 10 {
			t.Errorf("%s names %d metrics", file, len(names))
		}
		for _, name := range names {
			if !slices.Contains(known, name) {
				t.Errorf("%s names %s, which there is not", file, name)
			}
		}
		// A Prometheus that keeps native histograms has no classic buckets.
		for line := range strings.Lines(string(text)) {
			for _, m := range regexp.MustCompile(`(weir_proxy_\w+)_bucket`).FindAllStringSubmatch(line, -1) {
				if !strings.Contains(line, "rate("+m[1]+"{") && !strings.Contains(line, "rate("+m[1]+"[") {
					t.Errorf("%s asks for the classic buckets of %s alone: %s", file, m[1], strings.TrimSpace(line))
				}
			}
		}
		var parsed any
		if strings.HasSuffix(file, ".json") {
			err = json.Unmarshal(text, &parsed)
		} else {
			err = yaml.Unmarshal(text, &parsed)
		}
		if err != nil {
			t.Errorf("%s: %v", file, err)
		}
	}
	if promtool, err := exec.LookPath("promtool"); err == nil {
		if out, err := exec.CommandContext(t.Context(), promtool, "check", "rules", alertsFile).CombinedOutput(); err != nil {
			t.Errorf("%v\n%s", err, out)
		}
	}
}

// describe is a description as text: the field is not exported.
func describe(v reflect.Value) string {
	d := (*prometheus.Desc)(v.UnsafePointer())
	return d.String()
}
