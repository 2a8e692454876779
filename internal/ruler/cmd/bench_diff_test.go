package rulercmd

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/weirdb/weir/internal/ruler/bench"
)

func TestRulerCommandLines(t *testing.T) { program.Script(t, "testdata/ruler.txt") }

func TestDiffAsJSON(t *testing.T) {
	out := program.Run(t, "bench", "diff", "testdata/ruler/base.json", "testdata/ruler/slower.json", "--json")
	var got []bench.Diff
	if err := json.Unmarshal([]byte(out), &got); err != nil {
		t.Fatalf("%v in %s", err, out)
	}
	if len(got) != 1 || got[0].Schema != bench.DiffSchema || len(got[0].Rows) < 6 || got[0].Changes()[bench.Worse] == 0 {
		t.Errorf("diff %+v", got)
	}
}

func TestGateAsJSONKeepsItsExitCode(t *testing.T) {
	out := program.Run(t, "bench", "gate", "testdata/ruler/base.json", "testdata/ruler/slower.json", "--json")
	body, rest, ok := strings.Cut(out, "2> ")
	var got []bench.Gate
	if err := json.Unmarshal([]byte(body), &got); err != nil || !ok {
		t.Fatalf("%v in %s", err, out)
	}
	if len(got) != 1 || got[0].Outcome != bench.GateFellShort || !strings.HasSuffix(rest, "exit 3\n") {
		t.Errorf("gate %+v, then %s", got, rest)
	}
}

// Two directories are compared experiment by experiment.
func TestDiffOfDirectories(t *testing.T) {
	a, b := t.TempDir(), t.TempDir()
	for _, dir := range []string{a, b} {
		for _, file := range []string{"testdata/ruler/base.json", "testdata/ruler/reads.json"} {
			r, err := bench.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			if r.Experiment.Name == "reads-8" {
				r.Find("weir").Name = "weir cached"
			}
			if err := r.WriteFiles(dir); err != nil {
				t.Fatal(err)
			}
		}
	}
	out := program.Run(t, "bench", "diff", a, b, "--metric", "rate")
	if strings.Count(out, "throughput") != 4 || !strings.Contains(out, "inserts-8\n") || !strings.Contains(out, "reads-8\n") {
		t.Errorf("%s", out)
	}
	if out := program.Run(t, "bench", "diff", a, b, "--case", "weir", "--metric", "rate"); !strings.Contains(out, "inserts-8\n") || strings.Contains(out, "reads-8\n") {
		t.Errorf("a case of one of the experiments:\n%s", out)
	}
	if out := program.Run(t, "bench", "diff", a, b, "--case", "nobody"); !strings.Contains(out, "no experiment in common with one of the cases [\"nobody\"]") {
		t.Errorf("a case of none:\n%s", out)
	}
	if out := program.Run(t, "bench", "diff", a, "testdata/ruler/aa.json"); !strings.Contains(out, "no experiment in common") || !strings.Contains(out, "exit 1") {
		t.Errorf("%s", out)
	}
}
