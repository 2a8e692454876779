package main

import (
	"bytes"
	"flag"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/weirdb/weir/internal/cli/clitest"
)

// docs/reference is what weir manual writes; -update writes it.
func TestReferenceIsCurrent(t *testing.T) {
	const reference = "../../docs/reference"
	clitest.ClearEnvironment(t)
	dir := t.TempDir()
	if flag.Lookup("update").Value.String() == "true" {
		for name := range pagesOf(t, reference) {
			if err := os.Remove(filepath.Join(reference, name)); err != nil {
				t.Fatal(err)
			}
		}
		dir = reference
	}
	if out := program.Run(t, "manual", dir, "--format", "markdown"); out != "" {
		t.Fatal(out)
	}
	written, have := pagesOf(t, dir), pagesOf(t, reference)
	if len(written) < 40 {
		t.Errorf("weir manual wrote %d pages only", len(written))
	}
	for name, text := range written {
		if !bytes.Equal(text, have[name]) {
			t.Errorf("docs/reference/%s is not what weir manual writes: go test ./cmd/weir -run %s -update", name, t.Name())
		}
	}
	for name := range have {
		if written[name] == nil {
			t.Errorf("docs/reference/%s is of no verb", name)
		}
	}
}

func pagesOf(t *testing.T, dir string) map[string][]byte {
	t.Helper()
	names, err := filepath.Glob(filepath.Join(dir, "*"))
	if err != nil {
		t.Fatal(err)
	}
	// The others are written by the tests of those that have what is in them.
	names = slices.DeleteFunc(names, func(name string) bool {
		return slices.Contains([]string{"metrics.md", "console.md", "json.md", "json.schema.json", "errors.md", "hints.md"}, filepath.Base(name))
	})
	pages := make(map[string][]byte, len(names))
	for _, name := range names {
		if pages[filepath.Base(name)], err = os.ReadFile(name); err != nil {
			t.Fatal(err)
		}
	}
	return pages
}
