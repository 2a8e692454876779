package rulercmd

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/spf13/cobra"

	"github.com/weirdb/weir/internal/lab/labtest"
	"github.com/weirdb/weir/internal/measure"
	"github.com/weirdb/weir/internal/ruler/bench"
	kvbench "github.com/weirdb/weir/internal/ruler/bench/kv"
)

// kvOptionsOf reads a command line without running anything.
func kvOptionsOf(t *testing.T, line string) (kvbench.Options, error) {
	t.Helper()
	var b benchKV
	cmd := &cobra.Command{Use: "kv"}
	b.flags(cmd.Flags())
	if err := cmd.ParseFlags(strings.Fields(line)); err != nil {
		t.Fatal(err)
	}
	return b.options()
}

func TestBenchKVReadsItsFlags(t *testing.T) {
	for line, check := range map[string]func(o kvbench.Options) bool{
		"": func(o kvbench.Options) bool {
			return o.Preset == "raft-ht" && o.Plan.SweepRounds == 3 && strings.HasPrefix(o.Out, "out/bench-kv-") && o.Binary != ""
		},
		"--plan full --scenarios delay,wan": func(o kvbench.Options) bool { return len(o.Plan.Scenarios) == 2 && len(o.Plan.RTTs) == 4 },
		"--rounds 9 --duration 3s --keys 7": func(o kvbench.Options) bool {
			return o.Plan.Rounds == 9 && o.Plan.SweepRounds == 9 && o.Plan.Duration == 3*time.Second && o.Plan.Keys == 7
		},
		"--preset curp --etcd /x/etcd": func(o kvbench.Options) bool { return o.Preset == "curp" && o.Etcd == "/x/etcd" },
		"--out here --resume":          func(o kvbench.Options) bool { return o.Out == "here" && o.Resume },
		"--reference ../bench/kv/testdata/report-2.yaml": func(o kvbench.Options) bool {
			return len(o.Reference.Figures) == 8
		},
	} {
		if o, err := kvOptionsOf(t, line); err != nil || !check(o) {
			t.Errorf("%q: %+v, %v", line, o, err)
		}
	}
}

func TestBenchKVRefusesWhatMakesNoSense(t *testing.T) {
	for line, want := range map[string]string{
		"--plan none":              "--plan",
		"--scenarios delay,all":    `no scenario "all"`,
		"--preset paxos":           "--preset",
		"--client carrier":         "--client",
		"--path scenic":            "--path",
		"--rounds -1":              "must not be negative",
		"--resume":                 "--resume: name the directory",
		"--reference /nonexistent": "--reference",
	} {
		if _, err := kvOptionsOf(t, line); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v, want an error that says %q", line, err, want)
		}
	}
}

func TestBenchKVTellsOfASample(t *testing.T) {
	hist := func(ns int64) *measure.Hist {
		h := &measure.Hist{}
		h.Record(ns)
		return h
	}
	var out bytes.Buffer
	printKVProgress(&out, bench.Progress{Side: "curp", Done: 1, Total: 9, Sample: bench.Sample{
		Seconds: 2, Ops: 3000, Errors: map[string]int64{"BUSY": 2}, Invalid: []string{"1 answers are wrong"},
		KV: &bench.KV{StrongRead: hist(1_000_000), WeakRead: hist(200_000)},
	}})
	want := "  [1/9] curp                  1500 ops/s  weak p50 200µs  strong p50 1ms  2 failed  INVALID: 1 answers are wrong\n"
	if out.String() != want {
		t.Errorf("%q\nwant\n%q", out.String(), want)
	}
}

// Real replicas, run by this test's program and driven by either client, and the
// report made again from what they left.
func TestBenchKVRunsReplicas(t *testing.T) {
	if testing.Short() {
		t.Skip("starts clusters, which takes some seconds")
	}
	program := labtest.Weir(t)
	for _, client := range kvbench.Clients() {
		dir := filepath.Join(t.TempDir(), "out")
		b := benchKV{plan: "smoke", out: dir, preset: "raft-ht", client: string(client), path: "auto", scenarios: []string{"presets"}}
		o, err := b.options()
		if err != nil {
			t.Fatal(err)
		}
		o.Binary = program
		var stdout, stderr bytes.Buffer
		if err := b.run(t.Context(), o, &stdout, &stderr); err != nil {
			t.Fatalf("%s: %v\n%s", client, err, stderr.String())
		}
		for _, want := range []string{"curp-ho", "0 were wrong", "report  " + dir} {
			if !strings.Contains(stdout.String(), want) {
				t.Errorf("%s: nothing of %q in\n%s", client, want, stdout.String())
			}
		}
		cmd := newBenchReportCommand()
		cmd.SetArgs([]string{dir, "--format", "md"})
		var md bytes.Buffer
		cmd.SetOut(&md)
		if err := cmd.Execute(); err != nil || !strings.Contains(md.String(), "## Presets") {
			t.Errorf("weir bench report: %v\n%s", err, md.String())
		}
		if _, err := os.Stat(filepath.Join(dir, "report.html")); err != nil {
			t.Error(err)
		}
	}
}
