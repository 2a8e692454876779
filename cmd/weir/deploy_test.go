package main

import (
	"bytes"
	"encoding/json"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"go.yaml.in/yaml/v3"

	"github.com/weirdb/weir/internal/cli"
	"github.com/weirdb/weir/internal/cli/clitest"
)

// The command lines and variables in units, the compose file and the chart exist.
func TestDeployments(t *testing.T) {
	found := 0
	for _, pattern := range []string{"contrib/systemd/*.service", "deploy/*.yaml", "deploy/helm/*/templates/*.yaml"} {
		paths, err := filepath.Glob(filepath.Join("../..", pattern))
		if err != nil || len(paths) == 0 {
			t.Fatalf("%s: %v", pattern, err)
		}
		for _, path := range paths {
			text, err := os.ReadFile(path)
			if err != nil {
				t.Fatal(err)
			}
			for _, words := range deployedCommands(string(text)) {
				found++
				if err := checkCommand(cli.Root(verbs()...), words); err != nil {
					t.Errorf("%s: weir %s: %v", path, strings.Join(words, " "), err)
				}
			}
			for _, name := range deployedVariable.FindAllString(string(text), -1) {
				if err := checkVariable(name); err != "" {
					t.Errorf("%s: %s: %s", path, name, err)
				}
			}
		}
	}
	if found < 10 {
		t.Errorf("found %d command lines only", found)
	}
}

var (
	execStart = regexp.MustCompile(`(?m)^ExecStart=\S*/weir (.*)$`)
	// A list of arguments, an argument a line; lines of the template between them.
	argumentList     = regexp.MustCompile(`(?m)^( *)(?:args|command):\n((?:^ +(?:- |\{\{).*\n)+)`)
	deployedVariable = regexp.MustCompile(`\bWEIR_[A-Z_]+`)
)

// deployedCommands returns the arguments of weir in a unit or a file of YAML.
func deployedCommands(text string) (commands [][]string) {
	for _, m := range execStart.FindAllStringSubmatch(text, -1) {
		commands = append(commands, strings.Fields(m[1]))
	}
	for _, m := range argumentList.FindAllStringSubmatch(text, -1) {
		var words []string
		for line := range strings.Lines(m[2]) {
			if word, ok := strings.CutPrefix(strings.TrimSpace(line), "- "); ok {
				words = append(words, strings.Trim(word, `"`))
			}
		}
		commands = append(commands, words)
	}
	return commands
}

// checkVariable says what is wrong with an environment variable: each is of an option,
// or of the unit that names it.
func checkVariable(name string) string {
	for prefix, verb := range map[string][]string{"WEIR_KV_": {"kv", "serve"}, "WEIR_OUTBOX_": {"outbox", "relay"}, "WEIR_": {"proxy"}} {
		rest, ok := strings.CutPrefix(name, prefix)
		if !ok || rest == "" {
			continue
		}
		cmd, _, err := cli.Root(verbs()...).Find(verb)
		if err == nil && cmd.Flags().Lookup(strings.ToLower(strings.ReplaceAll(rest, "_", "-"))) != nil {
			return ""
		}
	}
	if strings.HasPrefix(name, "WEIR_WAL_") { // of weir-wal.service alone
		return ""
	}
	return "no option has this name"
}

func TestDeployedCommands(t *testing.T) {
	got := deployedCommands("ExecStart=/usr/local/bin/weir kv serve --config /x\n" +
		"          args:\n            - proxy\n            {{- if .x }}\n            - --pool-size={{ .x }}\n            {{- end }}\n          env:\n" +
		"    command:\n      - outbox\n      - \"--sink=stdout:\"\n    restart: no\n")
	want := []string{"kv serve --config /x", "proxy --pool-size={{ .x }}", "outbox --sink=stdout:"}
	if len(got) != len(want) {
		t.Fatalf("%q", got)
	}
	for i := range want {
		if strings.Join(got[i], " ") != want[i] {
			t.Errorf("%q, want %q", got[i], want[i])
		}
	}
	if checkVariable("WEIR_KV_ID") != "" || checkVariable("WEIR_POOL_SIZE") != "" || checkVariable("WEIR_POOL_SISE") == "" {
		t.Error("variables are not told apart")
	}
}

// The configurations in the chart's values are fine.
func TestConfigurationOfTheChart(t *testing.T) {
	clitest.ClearEnvironment(t)
	text, err := os.ReadFile("../../deploy/helm/weir/values.yaml")
	if err != nil {
		t.Fatal(err)
	}
	var values struct {
		Proxy, Relay struct{ Config map[string]any }
	}
	if err := yaml.Unmarshal(text, &values); err != nil {
		t.Fatal(err)
	}
	for verb, config := range map[string]map[string]any{"proxy": values.Proxy.Config, "outbox relay": values.Relay.Config} {
		out, err := yaml.Marshal(config)
		if err != nil {
			t.Fatal(err)
		}
		path := filepath.Join(t.TempDir(), "values.yaml")
		clitest.Write(t, path, string(out))
		program.Must(t, "config", "check", "--of", verb, path)
	}
}

// The schema of the chart's values has the values that there are, and no others: a
// misspelt one is refused.
func TestSchemaOfTheChartHasItsValues(t *testing.T) {
	text, err := os.ReadFile("../../deploy/helm/weir/values.yaml")
	if err != nil {
		t.Fatal(err)
	}
	var values map[string]any
	if err := yaml.Unmarshal(text, &values); err != nil {
		t.Fatal(err)
	}
	text, err = os.ReadFile("../../deploy/helm/weir/values.schema.json")
	if err != nil {
		t.Fatal(err)
	}
	var schema valuesSchema
	if err := json.Unmarshal(text, &schema); err != nil {
		t.Fatal(err)
	}
	delete(schema.Properties, "global") // which Helm passes to every chart
	schema.check(t, "", values)
}

// valuesSchema is what the test reads of a JSON Schema.
type valuesSchema struct {
	Properties           map[string]valuesSchema
	AdditionalProperties *bool
	Enum                 []any
}

func (s valuesSchema) check(t *testing.T, name string, value any) {
	t.Helper()
	values, _ := value.(map[string]any)
	if s.Properties == nil { // a leaf, or an object of the user's own
		found := s.Enum == nil
		for _, one := range s.Enum {
			found = found || reflect.DeepEqual(one, value) || one == any(number(value))
		}
		if !found {
			t.Errorf("%s: the default %v is none of %v", name, value, s.Enum)
		}
		return
	}
	if s.AdditionalProperties == nil || *s.AdditionalProperties {
		t.Errorf("values.schema.json: %s takes any name", name)
	}
	for key, below := range s.Properties {
		if _, ok := values[key]; !ok {
			t.Errorf("values.yaml has no %s.%s, which the schema has", name, key)
			continue
		}
		below.check(t, name+"."+key, values[key])
	}
	for key := range values {
		if _, ok := s.Properties[key]; !ok {
			t.Errorf("values.schema.json has no %s.%s", name, key)
		}
	}
}

// number is a whole number of YAML as JSON has it.
func number(value any) float64 {
	n, _ := value.(int)
	return float64(n)
}

// The chart says what is wrong with values, rather than start what cannot work.
func TestChartRefusesValues(t *testing.T) {
	helm, err := exec.LookPath("helm")
	if err != nil {
		t.Skip("helm is not installed")
	}
	for values, want := range map[string]string{
		"proxy.replicas=3":                               "",
		"relay.enabled=true":                             "",
		"proxy.drainTimeout=1.5s":                        "",
		"kv.enabled=true,kv.insecure=true,kv.replicas=5": "",
		"proxy.shutdownDelay=1m,proxy.drainTimeout=2m30s,proxy.terminationGracePeriodSeconds=240": "",
		"proxy.shutdownDelay=1m,proxy.drainTimeout=2m30s,proxy.terminationGracePeriodSeconds=210": "proxy.terminationGracePeriodSeconds: 210 s",
		"proxy.shutdownDelay=0.5m":                 "proxy.terminationGracePeriodSeconds: 60 s",
		"proxy.shutdownDelay=none":                 "",
		"proxy.shutdownDelay=0":                    "",
		"proxy.shutdownDelay=soon":                 "proxy.shutdownDelay: soon: want a duration such as 250ms, 10s or 1m30s, or none",
		"proxy.drainTimeout=none":                  "proxy.drainTimeout: none: want a duration such as 250ms, 10s or 1m30s\n",
		"proxy.drainTimeout=30":                    "proxy.drainTimeout: 30: want a duration",
		"relay.enabled=true,relay.drainTimeout=10": "relay.drainTimeout: 10: want a duration",
		"proxy.replicaz=3":                         "replicaz",
		"proxy.postgres.enabled=false":             "proxy.postgres.enabled, proxy.mysql.enabled",
		"proxy.postgres.port=99999":                "/proxy/postgres/port",
		"relay.enabled=true,relay.drainTimeout=5m": "relay.terminationGracePeriodSeconds: 30 s",
		"relay.strategy=Recreated":                 "/relay/strategy",
		"kv.replicas=2":                            "/kv/replicas",
		"kv.preset=paxos":                          "/kv/preset",
	} {
		out, err := exec.Command(helm, "template", "shop", "../../deploy/helm/weir", "--kube-version", "1.30.0", "--set", values).CombinedOutput()
		if (err != nil) != (want != "") || !strings.Contains(string(out), want) {
			t.Errorf("--set %s: %v, want %q:\n%.300s", values, err, want, out)
		}
	}
}

// The image is built by the Go that releases are built by.
func TestImageIsBuiltByTheGoOfReleases(t *testing.T) {
	version, err := os.ReadFile("../../scripts/toolchain")
	if err != nil {
		t.Fatal(err)
	}
	file, err := os.ReadFile("../../deploy/Dockerfile")
	if err != nil {
		t.Fatal(err)
	}
	if want := "FROM golang:" + strings.TrimPrefix(strings.TrimSpace(string(version)), "go") + "-"; !strings.Contains(string(file), want) {
		t.Errorf("deploy/Dockerfile has no %q, which scripts/toolchain asks for", want)
	}
}

// A package has every unit, an example of the configuration that each unit reads, and
// nothing of what it names is missing.
func TestPackageHasWhatUnitsRead(t *testing.T) {
	text, err := os.ReadFile("../../contrib/packaging/nfpm.yaml")
	if err != nil {
		t.Fatal(err)
	}
	for _, m := range regexp.MustCompile(`(?:src|postinstall|preremove): ((?:contrib/|LICENSE)\S*)`).FindAllStringSubmatch(string(text), -1) {
		if _, err := os.Stat(filepath.Join("../..", m[1])); err != nil {
			t.Errorf("nfpm.yaml: %v", err)
		}
	}
	scripts, err := os.ReadFile("../../contrib/packaging/preremove.sh")
	if err != nil {
		t.Fatal(err)
	}
	units, err := filepath.Glob("../../contrib/systemd/*")
	if err != nil {
		t.Fatal(err)
	}
	for _, unit := range units {
		if !strings.Contains(string(scripts), " "+filepath.Base(unit)) {
			t.Errorf("preremove.sh does not stop %s", filepath.Base(unit))
		}
		unitText, err := os.ReadFile(unit)
		if err != nil {
			t.Fatal(err)
		}
		for _, m := range regexp.MustCompile(`--config /etc/weir/(\S+)`).FindAllStringSubmatch(string(unitText), -1) {
			if !strings.Contains(string(text), "src: contrib/"+m[1]+"\n") {
				t.Errorf("nfpm.yaml has no example of %s, which %s reads", m[1], filepath.Base(unit))
			}
		}
	}
}

// docs/licences.md has every module of go.mod, and no other.
func TestLicencesOfEveryModule(t *testing.T) {
	mod, err := os.ReadFile("../../go.mod")
	if err != nil {
		t.Fatal(err)
	}
	page, err := os.ReadFile("../../docs/licences.md")
	if err != nil {
		t.Fatal(err)
	}
	listed := make(map[string]bool)
	for _, m := range regexp.MustCompile(`(?m)^\| (\S+\.\S+) \| ([A-Z]\S.*) \|$`).FindAllStringSubmatch(string(page), -1) {
		listed[m[1]] = true
	}
	for _, m := range regexp.MustCompile(`(?m)^(?:\t|require )([a-z0-9.-]+\.[a-z]+/\S*) v`).FindAllStringSubmatch(string(mod), -1) {
		if !listed[m[1]] {
			t.Errorf("docs/licences.md does not name the licence of %s", m[1])
		}
		delete(listed, m[1])
	}
	for m := range listed {
		t.Errorf("docs/licences.md names %s, which go.mod does not have", m)
	}
}

// The units are what systemd takes, and leave a process little. Where systemd is not
// installed, as in a container, nobody could start them either.
func TestUnits(t *testing.T) {
	analyze, err := exec.LookPath("systemd-analyze")
	if err != nil {
		t.Skip("systemd is not installed")
	}
	units, err := filepath.Glob("../../contrib/systemd/*")
	if err != nil || len(units) < 5 {
		t.Fatalf("units %v: %v", units, err)
	}
	dir := t.TempDir()
	var paths []string
	for _, unit := range units {
		text, err := os.ReadFile(unit)
		if err != nil {
			t.Fatal(err)
		}
		path := filepath.Join(dir, filepath.Base(unit))
		text = bytes.ReplaceAll(text, []byte("/usr/local/bin/weir"), []byte("/bin/true")) // which is installed
		if err := os.WriteFile(path, text, 0o644); err != nil {
			t.Fatal(err)
		}
		paths = append(paths, path)
	}
	if out, err := exec.CommandContext(t.Context(), analyze, append([]string{"verify"}, paths...)...).CombinedOutput(); err != nil || len(bytes.TrimSpace(out)) > 0 {
		t.Errorf("systemd-analyze verify: %v\n%s", err, out)
	}
	for _, path := range paths {
		if filepath.Ext(path) != ".service" {
			continue
		}
		// In tenths: a unit without any sandbox has 96.
		out, err := exec.CommandContext(t.Context(), analyze, "security", "--offline=true", "--no-pager", "--threshold=20", path).CombinedOutput()
		if err != nil {
			t.Errorf("systemd-analyze security: %v\n%s", err, out)
		}
	}
}

// Every combination of the chart's parts renders, where helm is installed, and helm
// finds nothing to complain of.
func TestChartRenders(t *testing.T) {
	helm, err := exec.LookPath("helm")
	if err != nil {
		t.Skip("helm is not installed: go install helm.sh/helm/v3/cmd/helm@latest")
	}
	const chart = "../../deploy/helm/weir"
	run := func(args ...string) string {
		t.Helper()
		var out, said bytes.Buffer
		cmd := exec.CommandContext(t.Context(), helm, args...)
		cmd.Stdout, cmd.Stderr = &out, &said
		if err := cmd.Run(); err != nil {
			t.Fatalf("helm %v: %v\n%s%s", args, err, out.String(), said.String())
		}
		return out.String()
	}
	// A helm that was built by go install takes the cluster for an old one.
	const kube = "--kube-version=1.28.0"
	run("lint", "--strict", kube, chart)
	parts := []string{"proxy.enabled", "relay.enabled", "kv.enabled", "serviceMonitor.enabled", "proxy.mysql.enabled", "proxy.tlsSecret"}
	kinds := make(map[string]bool)
	for chosen := range 1 << len(parts) {
		args := []string{"template", "weir", chart, kube, "--set", "kv.existingSecret=weir-kv,proxy.existingSecret=weir-db,relay.existingSecret=weir-outbox"}
		for i, part := range parts {
			value := strconv.FormatBool(chosen&(1<<i) != 0)
			if part == "proxy.tlsSecret" {
				value = map[string]string{"true": "weir-tls", "false": ""}[value]
			}
			args = append(args, "--set", part+"="+value)
		}
		dec := yaml.NewDecoder(strings.NewReader(run(args...)))
		for {
			var object struct {
				APIVersion string `yaml:"apiVersion"`
				Kind       string
				Metadata   struct{ Name string }
			}
			if err := dec.Decode(&object); err == io.EOF {
				break
			} else if err != nil {
				t.Fatalf("%v: %v", args, err)
			}
			if object.Kind == "" && object.Metadata.Name == "" {
				continue // a file that is switched off
			}
			if kinds[object.Kind] = true; object.APIVersion == "" || object.Kind == "" || object.Metadata.Name == "" {
				t.Errorf("%v: an object without a name or a kind: %+v", args, object)
			}
		}
	}
	for _, kind := range []string{"Deployment", "StatefulSet", "Service", "ConfigMap", "PodDisruptionBudget", "ServiceAccount", "ServiceMonitor"} {
		if !kinds[kind] {
			t.Errorf("no %s was rendered", kind)
		}
	}
}
