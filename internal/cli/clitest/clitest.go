// Package clitest runs the command lines of verbs in their tests: within the test, as scripts
// with golden output, and as processes. A process is the test binary itself, which
// [Program.Main] turns into weir, so that no test has to link one.
package clitest

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/spf13/cobra"

	"github.com/weirdb/weir/internal/cli"
	"github.com/weirdb/weir/internal/lab"
	"github.com/weirdb/weir/internal/lab/labtest"
	"github.com/weirdb/weir/internal/testkit"
)

var update = flag.Bool("update", false, "rewrite golden files and generated parts of the documentation")

// asWeir is the environment variable that makes a test binary run as weir.
const asWeir = "WEIR_TEST_AS_MAIN=1"

// Program is a weir with the verbs of the package under test.
type Program struct {
	Verbs func() []*cobra.Command
	// Arguments edits a command line before Call, Must and Refuse run it. Default: none.
	Arguments func(args []string) []string
}

// Root returns the command weir.
func (p *Program) Root() *cobra.Command { return cli.Root(p.Verbs()...) }

// Main is the body of a package's TestMain.
func (p *Program) Main(m *testing.M) {
	name, _, _ := strings.Cut(asWeir, "=")
	if os.Getenv(name) != "" {
		os.Exit(cli.Main(p.Root(), os.Args[1:]))
	}
	os.Exit(labtest.Main(m))
}

// Execute runs a command line within the test and returns its exit code. It is for verbs that run
// until ctx ends; Run, Call, Must and Refuse end the others.
func (p *Program) Execute(ctx context.Context, args []string, stdout, stderr io.Writer) int {
	args = append([]string{}, args...) // nil would mean the arguments of this process
	return cli.Execute(ctx, p.Root(), args, stdout, stderr)
}

// Run runs a command line and formats its output: standard output unchanged, each line of
// standard error after "2> ", and the exit code unless it is 0.
func (p *Program) Run(t *testing.T, args ...string) string {
	t.Helper()
	r := p.finish(t, args)
	out := r.Stdout
	for line := range strings.Lines(r.Stderr) {
		out += "2> " + line
	}
	if r.Code != cli.ExitFine {
		out += fmt.Sprintf("exit %d\n", r.Code)
	}
	return out
}

// Result is the result of a command line.
type Result struct {
	Code           int
	Stdout, Stderr string
}

func (r Result) String() string {
	return fmt.Sprintf("exit %d\nstdout: %s\nstderr: %s", r.Code, r.Stdout, r.Stderr)
}

// Call runs a command line.
func (p *Program) Call(t testing.TB, args ...string) Result {
	t.Helper()
	if p.Arguments != nil {
		args = p.Arguments(args)
	}
	return p.finish(t, args)
}

// overtime is the code of a command line that does not end.
const overtime = -1

// finish runs a command line to its end. One that takes longer than [testkit.Patience] fails t;
// its context ends, and it is given up if that does not end it.
func (p *Program) finish(t testing.TB, args []string) Result {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	var stdout, stderr output
	code := make(chan int, 1)
	go func() { code <- p.Execute(ctx, args, &stdout, &stderr) }()
	late := time.NewTimer(testkit.Patience)
	defer late.Stop()
	if testkit.All() { // rounds without end
		late.Stop()
	}
	select {
	case c := <-code:
		return Result{c, stdout.String(), stderr.String()}
	case <-late.C:
	}
	r := Result{overtime, stdout.String(), stderr.String()}
	t.Errorf("weir %s: still running after %s\nstdout: %s\nstderr: %s", strings.Join(args, " "), testkit.Patience, r.Stdout, r.Stderr)
	cancel()
	select {
	case <-code:
	case <-time.After(testkit.Patience / 4):
		t.Errorf("weir %s: still running although it was canceled", strings.Join(args, " "))
	}
	return r
}

// output is a buffer that can be read while a verb writes to it.
type output struct {
	mu   sync.Mutex
	text bytes.Buffer // guarded by mu
}

func (o *output) Write(p []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.text.Write(p)
}

func (o *output) String() string {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.text.String()
}

// Must runs a command line that must succeed, and returns its output.
func (p *Program) Must(t *testing.T, args ...string) string {
	t.Helper()
	r := p.Call(t, args...)
	if r.Code != cli.ExitFine {
		t.Fatalf("weir %s: %s", strings.Join(args, " "), r)
	}
	return r.Stdout
}

// Refuse runs a command line that must fail with an exit code and an error that contains some
// words.
func (p *Program) Refuse(t *testing.T, code int, words []string, args ...string) {
	t.Helper()
	r := p.Call(t, args...)
	if r.Code != code {
		t.Errorf("weir %s: %s\nwant exit code %d", strings.Join(args, " "), r, code)
	}
	for _, w := range words {
		if !strings.Contains(r.Stdout+r.Stderr, w) {
			t.Errorf("weir %s: %s\nwant it to say %q", strings.Join(args, " "), r, w)
		}
	}
}

// Script checks a script of command lines and what they print:
//
//	$ NAME=value weir proxy --mode fast
//	2> weir: --mode "fast": want auto, session, transaction or statement
//	exit 2
//
// Words are separated by spaces. Lines before the first command are comment.
func (p *Program) Script(t *testing.T, path string) {
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
			ClearEnvironment(t)
			words := strings.Fields(line)
			for words[0] != "weir" {
				name, value, ok := strings.Cut(words[0], "=")
				if !ok {
					t.Fatalf("%q is neither weir nor NAME=value", words[0])
				}
				t.Setenv(name, value)
				words = words[1:]
			}
			got += p.Run(t, words[1:]...) + "\n"
		})
	}
	Golden(t, path, string(text), strings.TrimSuffix(got, "\n"))
}

// Golden compares the content of a file with want; -update writes want to the file.
func Golden(t *testing.T, path, have, want string) {
	t.Helper()
	if *update {
		if err := os.WriteFile(path, []byte(want), 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	if diff := cmp.Diff(strings.Split(have, "\n"), strings.Split(want, "\n")); diff != "" {
		t.Errorf("%s (-have +want), rewritten by -update:\n%s", path, diff)
	}
}

// Reference compares the generated part of a document with want; -update writes it.
func Reference(t *testing.T, path, want string) {
	t.Helper()
	const begin, end = "-update` -->\n", "<!-- end of reference -->"
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	head, rest, ok := strings.Cut(string(text), begin)
	_, tail, ok2 := strings.Cut(rest, end)
	if !ok || !ok2 {
		t.Fatalf("%s has no place for the reference", path)
	}
	Golden(t, path, string(text), head+begin+want+end+tail)
}

// lifetime is how long a process of Command may run; only a bug reaches it.
const lifetime = 2 * testkit.Patience

// Command returns weir as a process of its own, which is killed when t ends, and fails t if it
// runs for too long.
func (p *Program) Command(t testing.TB, args ...string) *exec.Cmd {
	ctx, cancel := t.Context(), context.CancelFunc(func() {})
	if !testkit.All() {
		ctx, cancel = context.WithTimeout(ctx, lifetime)
	}
	t.Cleanup(cancel)
	cmd := exec.CommandContext(ctx, os.Args[0], args...)
	cmd.Env = append(os.Environ(), asWeir)
	cmd.Cancel = func() error {
		if errors.Is(ctx.Err(), context.DeadlineExceeded) {
			t.Errorf("weir %s: the process still runs after %s: killed", strings.Join(args, " "), lifetime)
		}
		return cmd.Process.Kill()
	}
	return cmd
}

// Path writes a program that runs as weir, for callers that start processes with an environment
// of their own.
func (p *Program) Path(t *testing.T) string {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(t.TempDir(), "weir")
	labtest.WriteProgram(t, path, fmt.Appendf(nil, "#!/bin/sh\n%s exec '%s' \"$@\"\n", asWeir, self))
	return path
}

// AsWeir makes this binary run as weir in processes that t starts.
func AsWeir(t *testing.T) {
	name, value, _ := strings.Cut(asWeir, "=")
	t.Setenv(name, value)
}

// ClearEnvironment hides the machine's environment variables for servers, except for the lab's
// directory in memory.
func ClearEnvironment(t *testing.T) {
	t.Helper()
	for _, kv := range os.Environ() {
		name, _, _ := strings.Cut(kv, "=")
		if name == lab.EnvFastDir {
			continue
		}
		if strings.HasPrefix(name, "PG") || strings.HasPrefix(name, "MYSQL_") || strings.HasPrefix(name, "WEIR_") {
			t.Setenv(name, "")
		}
	}
}

// Decode parses JSON that a command has printed.
func Decode[T any](t *testing.T, text string) T {
	t.Helper()
	var v T
	if err := json.Unmarshal([]byte(text), &v); err != nil {
		t.Fatalf("%v in\n%s", err, text)
	}
	return v
}

// Get returns the status and the body of a page.
func Get(t *testing.T, url string) (code int, body string) {
	t.Helper()
	client := http.Client{Timeout: testkit.Patience}
	resp, err := client.Get(url)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return resp.StatusCode, string(text)
}

// Write writes a file.
func Write(t *testing.T, path, text string) {
	t.Helper()
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}
