package rulercmd

import (
	"encoding/json"
	"path/filepath"
	"strings"
	"testing"

	"github.com/weirdb/weir/internal/ruler/bench"
)

// aa runs a short A/A run and reads what it prints as JSON.
func aa(t *testing.T, args ...string) (aaReport, string) {
	t.Helper()
	out := program.Run(t, append([]string{"bench", "aa", "--pairs", "12", "--turn", "20ms", "--json"}, args...)...)
	body, rest, _ := strings.Cut(out, "2> ")
	var got aaReport
	if err := json.Unmarshal([]byte(body), &got); err != nil {
		t.Fatalf("%v in %s", err, out)
	}
	return got, rest
}

func TestAAGivesAFloorThatAGateTakes(t *testing.T) {
	dir := t.TempDir()
	got, _ := aa(t, "--out", dir)
	if got.Result != filepath.Join(dir, "aa-cpu.json") || len(got.Comparisons) == 0 || got.Floors["rate"].Apart <= 0 {
		t.Errorf("report %+v", got)
	}
	if r, err := bench.ReadFile(got.Result); err != nil || len(r.Cases) != 2 {
		t.Errorf("result %+v, %v", r, err)
	}
	for _, noise := range []string{got.Result, dir} {
		out := program.Run(t, "bench", "gate", "testdata/ruler/base.json", "testdata/ruler/same.json", "--metric", "rate", "--noise", noise)
		if !strings.Contains(out, "passed") {
			t.Errorf("--noise %s: %s", noise, out)
		}
	}
}

func TestAAFindsWhatWasPlanted(t *testing.T) {
	// Ten times as long: found at any load.
	got, rest := aa(t, "--out", t.TempDir(), "--slower", "900%")
	if strings.Contains(rest, "exit") || got.Slower != 9 || got.Floors != nil {
		t.Errorf("%+v\n%s", got, rest)
	}
}
