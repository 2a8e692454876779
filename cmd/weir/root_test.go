package main

import (
	"bytes"
	"errors"
	"flag"
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/spf13/cobra"
)

var update = flag.Bool("update", false, "rewrite golden files and generated parts of the documentation")

// TestMain lets the test binary be weir itself, for tests of what only a
// process can show: signals and exit codes.
func TestMain(m *testing.M) {
	if os.Getenv("WEIR_TEST_AS_MAIN") != "" {
		main()
	}
	os.Exit(m.Run())
}

// weir runs a command line and renders what came out: standard output as it is,
// each line of standard error behind "2> ", and the exit code unless it is 0.
func weir(t *testing.T, args ...string) string {
	t.Helper()
	var stdout, stderr bytes.Buffer
	args = append([]string{}, args...) // nil would be the arguments of this process
	code := execute(t.Context(), args, &stdout, &stderr)
	out := stdout.String()
	for line := range strings.Lines(stderr.String()) {
		out += "2> " + line
	}
	if code != 0 {
		out += fmt.Sprintf("exit %d\n", code)
	}
	return out
}

// clearEnvironment hides what the machine's own environment says of servers.
func clearEnvironment(t *testing.T) {
	t.Helper()
	for _, kv := range os.Environ() {
		name, _, _ := strings.Cut(kv, "=")
		if strings.HasPrefix(name, "PG") || strings.HasPrefix(name, "MYSQL_") || strings.HasPrefix(name, "WEIR_") {
			t.Setenv(name, "")
		}
	}
}

// runScript checks a script of command lines and what they print:
//
//	$ NAME=value weir proxy --mode fast
//	2> weir: --mode "fast": want auto, session, transaction or statement
//	exit 2
//
// Words are separated by spaces. Lines before the first command are comment.
func runScript(t *testing.T, path string) {
	t.Helper()
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	head, rest, _ := strings.Cut(string(text), "\n$ ")
	got := head + "\n"
	for _, entry := range strings.Split(rest, "\n$ ") {
		line, _, _ := strings.Cut(entry, "\n")
		got += "$ " + line + "\n"
		t.Run(line, func(t *testing.T) {
			clearEnvironment(t)
			words := strings.Fields(line)
			for words[0] != "weir" {
				name, value, ok := strings.Cut(words[0], "=")
				if !ok {
					t.Fatalf("%q is neither weir nor NAME=value", words[0])
				}
				t.Setenv(name, value)
				words = words[1:]
			}
			got += weir(t, words[1:]...) + "\n"
		})
	}
	got = strings.TrimSuffix(got, "\n")
	if *update {
		if err := os.WriteFile(path, []byte(got), 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	if diff := cmp.Diff(strings.Split(string(text), "\n"), strings.Split(got, "\n")); diff != "" {
		t.Errorf("%s (-want +got), rewritten by -update:\n%s", path, diff)
	}
}

func TestCommandLines(t *testing.T) {
	runScript(t, "testdata/root.txt")
	runScript(t, "testdata/proxy.txt")
}

func TestHelpListsEveryCommand(t *testing.T) {
	help := weir(t, "--help")
	if got := weir(t); got != help {
		t.Errorf("weir alone prints\n%s\nwant the help", got)
	}
	for _, c := range newRootCommand().Commands() {
		if !strings.Contains(help, "\n  "+c.Name()+" ") || !strings.Contains(help, c.Short) {
			t.Errorf("help lacks %s (%s):\n%s", c.Name(), c.Short, help)
		}
	}
}

func TestExitCodes(t *testing.T) {
	sorry := errors.New("sorry")
	tests := []struct {
		name   string
		preRun error
		run    error
		args   []string
		want   int
	}{
		{"fine", nil, nil, nil, exitFine},
		{"failed", nil, sorry, nil, exitFailed},
		{"failed, wrapped", nil, fmt.Errorf("step: %w", sorry), nil, exitFailed},
		{"usage, said by the verb", nil, UsageError(sorry), nil, exitUsage},
		{"usage, wrapped", nil, fmt.Errorf("step: %w", UsageError(sorry)), nil, exitUsage},
		{"shortfall", nil, Shortfall(sorry), nil, exitShortfall},
		{"before it ran", sorry, nil, nil, exitUsage},
		{"arguments", nil, nil, []string{"extra"}, exitUsage},
		{"flag", nil, nil, []string{"--no-such"}, exitUsage},
	}
	for _, tt := range tests {
		root := &cobra.Command{Use: "weir", SilenceErrors: true, SilenceUsage: true}
		root.AddCommand(&cobra.Command{
			Use: "verb", Args: cobra.NoArgs,
			PreRunE: func(*cobra.Command, []string) error { return tt.preRun },
			RunE:    func(*cobra.Command, []string) error { return tt.run },
		})
		var stderr bytes.Buffer
		if got := executeRoot(t.Context(), root, append([]string{"verb"}, tt.args...), &stderr, &stderr); got != tt.want {
			t.Errorf("%s: exit code %d, want %d\n%s", tt.name, got, tt.want, stderr.String())
		}
		if hinted := strings.Contains(stderr.String(), "Run 'weir verb --help'"); hinted != (tt.want == exitUsage) {
			t.Errorf("%s: says %q", tt.name, stderr.String())
		}
	}
}

func TestVersion(t *testing.T) {
	line := weir(t, "version")
	if !strings.HasPrefix(line, "weir 0.") || strings.Count(line, "\n") != 1 {
		t.Errorf("version: %q", line)
	}
	if got := weir(t, "--version"); got != line {
		t.Errorf("--version: %q, want %q", got, line)
	}
	if got := weir(t, "version", "--json"); !strings.Contains(got, `"version":"0.`) || !strings.Contains(got, `"go":"go1.`) {
		t.Errorf("version --json: %s", got)
	}
}

func TestCompletionScripts(t *testing.T) {
	for _, shell := range []string{"bash", "zsh", "fish", "powershell"} {
		if out := weir(t, "completion", shell); !strings.Contains(out, "__weir") || strings.HasSuffix(out, "exit 2\n") {
			t.Errorf("%s: %.200s", shell, out)
		}
	}
	if out := weir(t, "__complete", "proxy", "--pool"); !strings.Contains(out, "--pool-size\tmost server connections") {
		t.Errorf("completion of --pool: %s", out)
	}
}
