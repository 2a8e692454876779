package main

import (
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/spf13/pflag"

	"github.com/weirdb/weir/internal/cli/clitest"
)

var program = &clitest.Program{Verbs: verbs}

func TestMain(m *testing.M) { program.Main(m) }

func TestCommandLines(t *testing.T) {
	program.Script(t, "testdata/root.txt")
}

func TestHelpListsEveryCommand(t *testing.T) {
	help := program.Run(t, "--help")
	if got := program.Run(t); got != help {
		t.Errorf("weir alone prints\n%s\nwant the help", got)
	}
	for _, c := range program.Root().Commands() {
		if c.Hidden {
			continue
		}
		if !strings.Contains(help, "\n  "+c.Name()+" ") || !strings.Contains(help, c.Short) {
			t.Errorf("help lacks %s (%s):\n%s", c.Name(), c.Short, help)
		}
	}
}

// Some verbs of one product belong to a verb of another.
func TestVerbsBelowOthers(t *testing.T) {
	for parent, verb := range map[string]string{"outbox": "bench", "lab": "kv"} {
		if help := program.Run(t, parent); !strings.Contains(help, "\n  "+verb+" ") {
			t.Errorf("weir %s has no verb %s:\n%s", parent, verb, help)
		}
	}
}

func TestVersion(t *testing.T) {
	line := program.Run(t, "version")
	if !strings.HasPrefix(line, "weir 0.") || strings.Count(line, "\n") != 1 {
		t.Errorf("version: %q", line)
	}
	if got := program.Run(t, "--version"); got != line {
		t.Errorf("--version: %q, want %q", got, line)
	}
	if got := program.Run(t, "version", "--json"); !strings.Contains(got, `"version":"0.`) || !strings.Contains(got, `"go":"go1.`) {
		t.Errorf("version --json: %s", got)
	}
}

func TestCompletionScripts(t *testing.T) {
	for _, shell := range []string{"bash", "zsh", "fish", "powershell"} {
		if out := program.Run(t, "completion", shell); !strings.Contains(out, "__weir") || strings.HasSuffix(out, "exit 2\n") {
			t.Errorf("%s: %.200s", shell, out)
		}
	}
	if out := program.Run(t, "__complete", "proxy", "--pool"); !strings.Contains(out, "--pool-size\tmaximum server connections") {
		t.Errorf("completion of --pool: %s", out)
	}
	// 0: files; 4: nothing but the words; 16: directories.
	for flag, want := range map[string]string{"--pool-size": "auto\n:4\n", "--min-pool-size": ":4\n", "--client-tls-key": ":0\n"} {
		if out := program.Run(t, "__complete", "proxy", flag, ""); !strings.HasPrefix(out, want) {
			t.Errorf("completion of the value of %s: %s", flag, out)
		}
	}
	if out := program.Run(t, "__complete", "kv", "serve", "--data", ""); !strings.HasPrefix(out, ":16\n") {
		t.Errorf("completion of the value of --data: %s", out)
	}
}

// oneOf finds lists of words in the help of a flag: "a, b or c", "a, b, c", "a or b".
var oneOf = regexp.MustCompile(`(?:^|: )((?:[a-z0-9-]+, )+[a-z0-9-]+(?: or [a-z0-9-]+)?|[a-z0-9-]+ or [a-z0-9-]+)(?:$|[;:(,]| \()`)

// Shells complete the values of each flag whose help lists them.
func TestValuesComplete(t *testing.T) {
	found := 0
	for _, verb := range leaves(newRoot()) {
		verb.Flags().VisitAll(func(f *pflag.Flag) {
			m := oneOf.FindStringSubmatch(f.Usage)
			if m == nil || f.Hidden {
				return
			}
			complete, ok := verb.GetFlagCompletionFunc(f.Name)
			if !ok {
				t.Errorf("%s --%s does not complete %q", verb.CommandPath(), f.Name, m[1])
				return
			}
			found++
			words, _ := complete(verb, nil, "")
			for _, w := range strings.FieldsFunc(strings.ReplaceAll(m[1], " or ", ", "), func(r rune) bool { return r == ',' || r == ' ' }) {
				if !slices.ContainsFunc(words, func(word string) bool { return word == w || strings.HasPrefix(word, w+":") }) {
					t.Errorf("%s --%s completes %q, without %s", verb.CommandPath(), f.Name, words, w)
				}
			}
		})
	}
	if found < 50 {
		t.Errorf("%d flags with words only", found)
	}
}

// Each verb has a page in the manual, which holds its flags.
func TestManual(t *testing.T) {
	dir := t.TempDir()
	for format, name := range map[string]string{"man": "weir-outbox-relay.1", "markdown": "weir-outbox-relay.md"} {
		if out := program.Run(t, "manual", dir, "--format", format); out != "" {
			t.Fatalf("%s: %s", format, out)
		}
		page, err := os.ReadFile(filepath.Join(dir, name))
		if err != nil {
			t.Fatal(err)
		}
		for _, part := range []string{"weir outbox relay", "sink", "Usage:"} {
			if !strings.Contains(string(page), part) {
				t.Errorf("%s lacks %q:\n%s", name, part, page)
			}
		}
	}
	if out := program.Run(t, "manual", dir, "--format", "html"); !strings.Contains(out, "want man or markdown") {
		t.Errorf("an unknown format: %s", out)
	}
}

func TestVersionVerbose(t *testing.T) {
	out := program.Run(t, "version", "--verbose")
	if !strings.HasPrefix(out, program.Run(t, "version")) || !strings.Contains(out, "module github.com/spf13/cobra v1") {
		t.Errorf("version --verbose:\n%s", out)
	}
}
