package rulercmd

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/weirdb/weir/internal/cli/clitest"
	"github.com/weirdb/weir/internal/ruler/bench"
)

func TestProfileCommandLines(t *testing.T) {
	program.Script(t, "testdata/profile.txt")
}

// A whole run without a database: what it prints, and what it leaves.
func TestProfileOfSleep(t *testing.T) {
	clitest.ClearEnvironment(t)
	dir := t.TempDir()
	run := func(name, latency string, more ...string) string {
		out := filepath.Join(dir, name)
		args := []string{
			"profile", "--db", "sleep://?latency=" + latency, "--concurrency", "4", "--pool-max", "1,4", "--requests", "30",
			"--rounds", "2", "--warmup", "50ms", "--overhead-pairs", "0", "--out", out,
		}
		return program.Run(t, append(args, more...)...)
	}
	text := run("a", "2ms")
	for _, want := range []string{
		"weir profile: ping", "pool 1", "pool 4", "Where the time of an operation goes", "queue", "100.00 %",
		"2>   [4/4] pool", "2> report  " + filepath.Join(dir, "a", "report.html"),
	} {
		if !strings.Contains(text, want) {
			t.Errorf("lacks %q:\n%s", want, text)
		}
	}
	if strings.Contains(text, "exit ") {
		t.Errorf("failed:\n%s", text)
	}
	var names []string
	entries, err := os.ReadDir(filepath.Join(dir, "a"))
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		names = append(names, e.Name())
	}
	if want := []string{"profile-sleep.csv", "profile-sleep.json", "report.html", "report.md", "results.jsonl"}; !slices.Equal(names, want) {
		t.Errorf("files %q, want %q", names, want)
	}
	r, err := bench.ReadFile(filepath.Join(dir, "a", "profile-sleep.json"))
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range r.Cases {
		for _, s := range c.Samples {
			var sum uint64
			for _, g := range s.Boundary.Segments {
				sum += g.Hist.Sum()
			}
			if sum != s.Latency.Sum() {
				t.Errorf("%s: segments add up to %d ns, latencies to %d ns", c.Name, sum, s.Latency.Sum())
			}
		}
	}
	if again := run("a", "2ms"); !strings.Contains(again, "already holds results") || !strings.HasSuffix(again, "exit 1\n") {
		t.Errorf("results were about to be overwritten:\n%s", again)
	}
	if out := run("b", "4ms", "-o", "md", "--cpu-profile"); !strings.Contains(out, "\n# weir profile: ping\n") && !strings.HasPrefix(out, "# weir profile: ping\n") {
		t.Errorf("no Markdown:\n%s", out)
	}
	if info, err := os.Stat(filepath.Join(dir, "b", cpuProfile)); err != nil || info.Size() == 0 {
		t.Errorf("no CPU profile: %v", err)
	}
	diff := program.Run(t, "profile", "diff", filepath.Join(dir, "a"), filepath.Join(dir, "b"))
	if !strings.Contains(diff, "in server") || !strings.Contains(diff, "throughput") {
		t.Errorf("diff:\n%s", diff)
	}
}
