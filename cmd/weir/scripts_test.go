package main

import (
	"errors"
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

// A failed check is repeated only if all tests have run: not if their program was killed.
func TestOnlyWholeRunsAreRepeated(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	again, err := os.ReadFile("../../scripts/again")
	if err != nil {
		t.Fatal(err)
	}
	for name, text := range map[string]string{
		"scripts/again": string(again), "scripts/all-tested": "#!/bin/sh\n", "bin/make": "#!/bin/sh\necho \"ran $*\"\n",
	} {
		path := filepath.Join(dir, name)
		if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o755), os.WriteFile(path, []byte(text), 0o755)); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Mkdir(filepath.Join(dir, "out"), 0o755); err != nil {
		t.Fatal(err)
	}
	const failed, end = "--- FAIL: TestA (0.10s)\n    a_test.go:1: x\n", "FAIL\ta/b\t0.1s\nFAIL\nout/a.log: ended with 1\n"
	for log, want := range map[string]string{
		failed + "FAIL\n" + end:                                 "PKG=a/b TESTS=^(TestA)$",
		failed + "FAIL\nleak: a socket\nexit status 1\n" + end:  "PKG=a/b TESTS=^(TestA)$",
		"PASS\nleak: a socket\nexit status 1\n" + end:           "PKG=a/b TESTS=.\n",
		"ok  \tc/d\t0.1s\n" + failed + "signal: killed\n" + end: "was killed",
		failed + "exit status 3\n" + end:                        "was killed",
		"signal: killed\n" + end:                                "was killed",
		failed + "FAIL\n" + strings.ReplaceAll(end, "1", "2"):   "not come to its end",
		failed + "panic: x\n" + end:                             "a panic",
		"x panic: test timed out after 10m0s\n\trunning tests:\n\t\tTestA (9m)\n\t\tTestB/c (1s)\n\ngoroutine 7 [running]:\n" + end: "a/b: TestA (9m), TestB/c (1s)\n",
	} {
		// The same log twice: the first one's last FAIL is not a package's.
		for _, path := range []string{"out/a.log", "out/b.log"} {
			if err := os.WriteFile(filepath.Join(dir, path), []byte(strings.ReplaceAll(log, "out/a.log", path)), 0o644); err != nil {
				t.Fatal(err)
			}
		}
		cmd := exec.CommandContext(t.Context(), "sh", filepath.Join(dir, "scripts/again"), "out/a.log", "out/b.log")
		cmd.Env = append(os.Environ(), "PATH="+filepath.Join(dir, "bin")+":"+os.Getenv("PATH"))
		out, err := cmd.CombinedOutput()
		if !strings.Contains(string(out), want) || (err == nil) != strings.HasPrefix(want, "PKG=") {
			t.Errorf("%v, want %q of\n%s\n%s", err, want, log, out)
		}
	}
}
