package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/weirdb/weir/internal/cli/clitest"
	"github.com/weirdb/weir/internal/lab/labtest"
	"github.com/weirdb/weir/internal/testkit"
)

// documentation lists the pages that people write: not those that tests or runs of
// benchmarks write.
func documentation(t *testing.T, root string) []string {
	t.Helper()
	pages := []string{"README.md", "CONTRIBUTING.md", "SECURITY.md"}
	for _, pattern := range []string{"docs/*.md", "docs/design/*.md", "examples/*/*.md", "contrib/*.md", "contrib/*/*.md", "deploy/*.md", "deploy/helm/*/*.md"} {
		found, err := filepath.Glob(filepath.Join(root, pattern))
		if err != nil {
			t.Fatal(err)
		}
		for _, path := range found {
			pages = append(pages, strings.TrimPrefix(path, root+"/"))
		}
	}
	return pages
}

// Every command of every page runs, or the page says why it is not run here.
func TestPages(t *testing.T) {
	root, err := filepath.Abs("../..")
	if err != nil {
		t.Fatal(err)
	}
	run, excused := 0, 0
	for _, name := range documentation(t, root) {
		text, err := os.ReadFile(filepath.Join(root, name))
		if os.IsNotExist(err) {
			continue
		} else if err != nil {
			t.Fatal(err)
		}
		if line := unmarkedCommand(string(text)); line > 0 {
			t.Errorf("%s:%d: commands of weir's in a block that is not of sh: no test would run them", name, line)
		}
		page, err := clitest.ParsePage(name, string(text))
		if err != nil {
			t.Error(err)
			continue
		}
		for _, b := range page.Blocks {
			if b.NotRun == "" {
				run++
				continue
			}
			excused++
			if len(strings.Fields(b.NotRun)) < 3 {
				t.Errorf("%s:%d: not run: %q is no reason", name, b.Line, b.NotRun)
			}
		}
		if !page.Runs() {
			continue
		}
		t.Run(name, func(t *testing.T) {
			if name != "README.md" && name != "docs/quickstart.md" {
				testkit.Long(t, "runs every command of the page")
			}
			t.Parallel()
			labtest.RequirePostgres(t)
			labtest.RequireMariaDB(t)
			clitest.RunPage(t, root, page)
		})
	}
	t.Logf("%d blocks are run, %d are not and say why", run, excused)
	if run < 30 {
		t.Errorf("%d blocks are run only", run)
	}
}

// unmarkedCommand returns the line of the first block of a language that tests pass
// over, and that has commands of weir's; 0 if there is none.
func unmarkedCommand(text string) int {
	inside, start := false, 0
	var block strings.Builder
	number := 0
	for line := range strings.Lines(text) {
		number++
		trimmed := strings.TrimSpace(line)
		if !strings.HasPrefix(trimmed, "```") {
			if inside && start > 0 {
				block.WriteString(line)
			}
			continue
		}
		if inside = !inside; inside {
			start = 0
			switch strings.Trim(trimmed, "`") {
			case "", "bash", "shell", "console", "shell-session":
				start = number
			}
			block.Reset()
		} else if start > 0 && len(documentedCommands("```\n"+block.String()+"```\n")) > 0 {
			return start
		}
	}
	return 0
}

func TestUnmarkedCommand(t *testing.T) {
	for text, want := range map[string]int{
		"```\nweir proxy --postgres x\n```\n":                 1,
		"a\n```bash\nbin/weir lab up --port 1\n```\n":         2,
		"```sh\nweir lab up --port 1\n```\n":                  0,
		"```\nweir: an error\n```\n":                          0,
		"```sql\nSELECT 1\n```\n\n```\nweir list --json\n```": 5,
	} {
		if got := unmarkedCommand(text); got != want {
			t.Errorf("%q: %d, want %d", text, got, want)
		}
	}
}

// The site has every page of docs/, and no other.
func TestSiteHasEveryPage(t *testing.T) {
	text, err := os.ReadFile("../../mkdocs.yml")
	if err != nil {
		t.Fatal(err)
	}
	_, nav, ok := strings.Cut(string(text), "\nnav:\n")
	if !ok {
		t.Fatal("mkdocs.yml has no nav")
	}
	listed := make(map[string]bool)
	for line := range strings.Lines(nav) {
		if _, page, ok := strings.Cut(strings.TrimSpace(line), ": "); ok {
			listed[page] = true
			if _, err := os.Stat(filepath.Join("../../docs", page)); err != nil {
				t.Errorf("mkdocs.yml: %v", err)
			}
		}
	}
	pages, err := filepath.Glob("../../docs/*.md")
	if err != nil || len(pages) < 30 {
		t.Fatalf("%d pages: %v", len(pages), err)
	}
	for _, page := range pages {
		if !listed[filepath.Base(page)] {
			t.Errorf("%s is not on the site: add it to mkdocs.yml", page)
		}
	}
}
