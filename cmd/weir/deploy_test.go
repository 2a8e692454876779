package main

import (
	"os"
	"path/filepath"
	"regexp"
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
