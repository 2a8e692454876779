package rulercmd

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime/pprof"
	"slices"
	"strings"
	"testing"

	"github.com/weirdb/weir/internal/cli"
)

func TestReport(t *testing.T) {
	program.Script(t, "testdata/report.txt")
}

// measured is a result to make reports of.
const measured = "testdata/report/inserts.json"

func TestReportWritesFiles(t *testing.T) {
	dir := t.TempDir()
	page := filepath.Join(dir, "page.html")
	if out := program.Run(t, "report", measured, "--to", page); out != page+"\n" {
		t.Errorf("says %q", out)
	}
	if b, err := os.ReadFile(page); err != nil || !bytes.HasPrefix(b, []byte("<!doctype html>")) {
		t.Errorf("page: %.40s, %v", b, err)
	}
	all := filepath.Join(dir, "all")
	if out := program.Run(t, "report", "testdata/report/report.json", "-o", "html,md,csv,svg,json,text", "--to", all); strings.Contains(out, "2> ") {
		t.Error(out)
	}
	want := []string{"01-throughput.svg", "02-latency-by-percentile.svg", "report.csv", "report.html", "report.json", "report.md", "report.text"}
	if got := names(t, all); !slices.Equal(got, want) {
		t.Errorf("wrote %q, want %q", got, want)
	}
	// A report written as JSON gives the same report again.
	first := program.Run(t, "report", "testdata/report/report.json", "-o", "html")
	if again := program.Run(t, "report", filepath.Join(all, "report.json"), "-o", "html"); again != first {
		t.Error("the report changed on its way through JSON")
	}
	if again := program.Run(t, "report", all, "-o", "html"); again != first {
		t.Error("the report of the directory is another one")
	}
}

func TestReportOfAProfile(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "heap.pb.gz")
	keepHeap(t, path)
	if out := program.Run(t, "report", path); !strings.Contains(out, "--env here") || !strings.HasSuffix(out, fmt.Sprintf("exit %d\n", cli.ExitUsage)) {
		t.Errorf("without an environment: %s", out)
	}
	for _, env := range []string{"here", measured} {
		out := program.Run(t, "report", path, "--env", env)
		if !strings.Contains(out, "Memory by the line that allocated it") || strings.Contains(out, "2> ") {
			t.Errorf("--env %s: %s", env, out)
		}
	}
	if out := program.Run(t, "report", path, "--env", measured); !strings.Contains(out, "Example CPU") {
		t.Errorf("environment of another machine: %s", out)
	}
}

// Profiles that lie beside a result are part of its report.
func TestReportOfADirectoryWithProfiles(t *testing.T) {
	dir := t.TempDir()
	b, err := os.ReadFile(measured)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "inserts.json"), b, 0o644); err != nil {
		t.Fatal(err)
	}
	keepHeap(t, filepath.Join(dir, "heap-client.pb.gz"))
	out := program.Run(t, "report", dir)
	for _, want := range []string{"Inserts, 64 clients", "Memory allocated since the start, heap-client"} {
		if !strings.Contains(out, want) {
			t.Errorf("lacks %q:\n%s", want, out)
		}
	}
	if err := os.WriteFile(filepath.Join(dir, "broken.pb.gz"), []byte("broken"), 0o644); err != nil {
		t.Fatal(err)
	}
	if out := program.Run(t, "report", dir); !strings.Contains(out, "broken.pb.gz") || !strings.HasSuffix(out, fmt.Sprintf("exit %d\n", cli.ExitFailed)) {
		t.Errorf("a broken profile: %s", out)
	}
}

// The directory of weir bench all holds the directories of its parts, and an index.
func TestReportOfADirectoryOfRuns(t *testing.T) {
	dir := t.TempDir()
	part := filepath.Join(dir, "000", "inserts-8")
	if err := errors.Join(os.MkdirAll(part, 0o755), os.WriteFile(filepath.Join(part, "results.jsonl"), nil, 0o644)); err != nil {
		t.Fatal(err)
	}
	if out := program.Run(t, "report", dir); !strings.Contains(out, "holds several runs: name one of them: "+filepath.Join(dir, "000")) {
		t.Errorf("without an index:\n%s", out)
	}
	index, err := os.ReadFile("testdata/report/report.json")
	if err == nil {
		err = os.WriteFile(filepath.Join(dir, "index.json"), index, 0o644)
	}
	if err != nil {
		t.Fatal(err)
	}
	if out := program.Run(t, "report", dir); strings.Contains(out, "2>") {
		t.Errorf("the index:\n%s", out)
	}
	if out := program.Run(t, "bench", "report", dir); !strings.Contains(out, "other results are rendered by weir report "+dir+"\n") {
		t.Errorf("bench report:\n%s", out)
	}
}

// keepHeap writes a heap profile of this process. Something is sure to have been
// sampled: more is allocated than the runtime leaves out between two samples.
func keepHeap(t *testing.T, path string) {
	t.Helper()
	block := make([]byte, 64<<20)
	f, err := os.Create(path)
	if err != nil {
		t.Fatal(err)
	}
	if err := pprof.Lookup("allocs").WriteTo(f, 0); err != nil {
		t.Fatal(err)
	}
	if err := f.Close(); err != nil {
		t.Fatal(err)
	}
	block[0]++
}

func names(t *testing.T, dir string) []string {
	t.Helper()
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	var out []string
	for _, e := range entries {
		out = append(out, e.Name())
	}
	return out
}
