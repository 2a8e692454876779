package archivetest

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
)

// Recipe returns the n-th shell block, from 0, of docs/archive-format.md.
func Recipe(t *testing.T, n int) string {
	t.Helper()
	_, here, _, _ := runtime.Caller(0)
	name := "docs/archive-format.md"
	text, err := os.ReadFile(filepath.Join(filepath.Dir(here), "../../../..", name))
	if err != nil { // built without paths: tests run in their package's directory
		text, err = os.ReadFile(filepath.Join("../../../..", name))
	}
	if err != nil {
		t.Fatal(err)
	}
	parts := strings.Split(string(text), "```sh\n")
	if len(parts) <= n+1 {
		t.Fatalf("the page has %d shell blocks", len(parts)-1)
	}
	block, _, _ := strings.Cut(parts[n+1], "```")
	return block
}

// Shell runs commands as they are on the page; they must print nothing. If one of the tools is
// not installed, the test is skipped.
func Shell(t *testing.T, dir, commands string, tools, env []string) {
	t.Helper()
	for _, tool := range tools {
		if _, err := exec.LookPath(tool); err != nil {
			t.Skipf("%s is not installed", tool)
		}
	}
	cmd := exec.CommandContext(t.Context(), "sh", "-euc", commands)
	cmd.Dir = dir
	cmd.Env = append([]string{"PATH=" + os.Getenv("PATH"), "HOME=" + t.TempDir()}, env...)
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	if out, err := cmd.Output(); err != nil || stderr.Len() > 0 || len(out) > 0 {
		t.Fatalf("%v: %s%.2000s", err, stderr.Bytes(), out)
	}
}
