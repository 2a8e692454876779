package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// make run names what is missing before it installs anything: a Go, or one that can read
// go.mod.
func TestRunWantsAGoThatReadsGoMod(t *testing.T) {
	t.Parallel()
	for version, want := range map[string]string{
		"":            "has none in the PATH",
		"go1.9.7":     "has go1.9.7",
		"go1.19.8":    "has go1.19.8",
		"go1.20":      "has go1.20",
		"go1.21.0":    "",
		"go1.26.10":   "",
		"devel +1234": "",
	} {
		dir := t.TempDir()
		for _, name := range []string{"sh", "dirname", "cat"} {
			path, err := exec.LookPath(name)
			if err != nil {
				t.Fatal(err)
			}
			if err := os.Symlink(path, filepath.Join(dir, name)); err != nil {
				t.Fatal(err)
			}
		}
		if version != "" {
			stub := "#!/bin/sh\necho '" + version + "'\n"
			if err := os.WriteFile(filepath.Join(dir, "go"), []byte(stub), 0o755); err != nil {
				t.Fatal(err)
			}
		}
		// The next step needs date, which is not in this PATH.
		cmd := exec.CommandContext(t.Context(), "sh", "../../scripts/run")
		cmd.Env = []string{"PATH=" + dir}
		out, err := cmd.CombinedOutput()
		if err == nil || strings.Contains(string(out), "run: weir needs Go 1.21") != (want != "") || !strings.Contains(string(out), want) {
			t.Errorf("Go %q: %v, want %q:\n%s", version, err, want, out)
		}
	}
}
