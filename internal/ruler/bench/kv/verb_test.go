package kvbench

import (
	"bytes"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/spf13/cobra"

	"github.com/weirdb/weir/internal/cli/clitest"
	kvcmd "github.com/weirdb/weir/internal/kvd/cmd"
	"github.com/weirdb/weir/internal/measure"
	"github.com/weirdb/weir/internal/ruler/bench"
	"github.com/weirdb/weir/internal/ruler/bench/subject/kvs"
	"github.com/weirdb/weir/internal/ruler/bench/suite"
	"github.com/weirdb/weir/internal/testkit"
)

var program = &clitest.Program{Verbs: func() []*cobra.Command { return append(kvcmd.Verbs(), suite.Command(Bench())) }}

func TestMain(m *testing.M) { program.Main(m) }

// optionsOf reads a command line without running anything.
func optionsOf(t *testing.T, line string) (Options, error) {
	t.Helper()
	var c command
	cmd := &cobra.Command{Use: "kv"}
	c.flags(cmd.Flags())
	if err := cmd.ParseFlags(strings.Fields(line)); err != nil {
		t.Fatal(err)
	}
	return c.options()
}

func TestBenchKVReadsItsFlags(t *testing.T) {
	for line, check := range map[string]func(o Options) bool{
		"": func(o Options) bool {
			return o.Preset == "raft-ht" && o.Plan.SweepRounds == 3 && strings.HasPrefix(o.Out, "out/bench-kv-") && o.Binary != ""
		},
		"--plan full --experiments delay,wan": func(o Options) bool { return len(o.Experiments) == 2 && len(o.Plan.RTTs) == 4 },
		"--scenarios wan-3-10ms":              func(o Options) bool { return o.Experiments[0] == "wan-3-10ms" },
		"--rounds 9 --duration 3s --keys 7": func(o Options) bool {
			return o.Plan.Rounds == 9 && o.Plan.SweepRounds == 9 && o.Plan.Duration == 3*time.Second && o.Plan.Keys == 7
		},
		"--preset curp --etcd /x/etcd": func(o Options) bool { return o.Preset == "curp" && o.Etcd == "/x/etcd" },
		"--preset curp-ho,raft --experiments delay-raft,tunings": func(o Options) bool {
			return o.Preset == "curp-ho" && slices.Equal(o.Presets, []string{"curp-ho", "raft"})
		},
		"--delays 0,200 --pendings 7 --sessions 2,3 --ops 50": func(o Options) bool {
			return slices.Equal(o.Plan.Delays, []int{0, 200}) && slices.Equal(o.Plan.Pendings, []int{7}) &&
				slices.Equal(o.Plan.Threads, []int{2, 3}) && o.Plan.ShortOps == 50 && o.Plan.LongOps == 500
		},
		"--target weak_p50<=2,rate>=23000": func(o Options) bool {
			return len(o.Limits) == 2 && *o.Limits[0].Max == 2 && o.Limits[0].Min == nil && *o.Limits[1].Min == 23000 && o.Limits[1].Max == nil
		},
		"--out here --resume": func(o Options) bool { return o.Out == "here" && o.Resume },
	} {
		if o, err := optionsOf(t, line); err != nil || !check(o) {
			t.Errorf("%q: %+v, %v", line, o, err)
		}
	}
}

func TestBenchKVRefusesWhatMakesNoSense(t *testing.T) {
	for line, want := range map[string]string{
		"--plan none":             "--plan",
		"--experiments delay,all": `no experiment "all": want one or more of delay, validate, tunings, grid, writer, cpu, pendings, threads, length,`,
		"--preset paxos":          "--preset",
		"--preset raft,raft":      "--preset names raft twice",
		"--delays 10,10":          "--delays names 10 twice",
		"--delays -1":             "--delays -1: want at least 0",
		"--delays 0,20000":        "--delays 20000: want at most 10000, which is 10 ms",
		"--peer-delays 0":         "--peer-delays 0: want at least 1",
		"--peer-delays 10001":     "--peer-delays 10001: want at most 10000",
		"--sessions 0":            "--sessions 0: want at least 1",
		"--ops 10,5":              "--ops: the long run of 5 is not longer",
		"--ops 1,2,3":             "--ops: 3 numbers",
		"--target weak_p50":       "--target: \"weak_p50\": want a figure and its limit",
		"--target speed<=2":       "no figure is called",
		"--client carrier":        "--client",
		"--path scenic":           "--path",
		"--rounds -1":             "must not be negative",
		"--resume":                "--resume: name the directory",
	} {
		if _, err := optionsOf(t, line); err == nil || !strings.Contains(err.Error(), want) {
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
	var o suite.Options
	o.ReportProgress(&out, "ops/s", medians)
	o.Progress(bench.Progress{Side: "curp", Done: 1, Total: 9, Sample: bench.Sample{
		Seconds: 2, Ops: 3000, Errors: map[string]int64{"BUSY": 2}, Invalid: []string{"1 answers are wrong"},
		Parts: []bench.Part{&kvs.KV{StrongRead: hist(1_000_000), WeakRead: hist(200_000)}},
	}})
	want := "  [1/9] curp                        1500 ops/s  weak p50 200µs  strong p50 1ms  2 failed  INVALID: 1 answers are wrong\n"
	if out.String() != want {
		t.Errorf("%q\nwant\n%q", out.String(), want)
	}
}

// Real replicas, run by this test's program and driven by either client, and the
// report made again from what they left.
func TestBenchKVRunsReplicas(t *testing.T) {
	testkit.Long(t, "starts clusters")
	weir := program.Path(t)
	for _, client := range Clients() {
		dir := filepath.Join(t.TempDir(), "out")
		o, err := optionsOf(t, "--plan smoke --experiments presets --client "+string(client)+" --out "+dir)
		if err != nil {
			t.Fatal(err)
		}
		o.Binary, o.Floor = weir, runtime.GOOS == "linux"
		out, err := Run(t.Context(), o)
		if err != nil {
			t.Fatalf("%s: %v", client, err)
		}
		var stdout bytes.Buffer
		if err := new(suite.Flags).Finish(file, dir, out, nil, &stdout); err != nil {
			t.Fatal(err)
		}
		for _, want := range []string{"curp-ho", "0 were wrong", "report  " + dir} {
			if !strings.Contains(stdout.String(), want) {
				t.Errorf("%s: nothing of %q in\n%s", client, want, stdout.String())
			}
		}
		if md := program.Run(t, "bench", "report", dir, "--output", "md"); !strings.Contains(md, "## Presets") {
			t.Errorf("weir bench report: %s", md)
		}
		if _, err := os.Stat(filepath.Join(dir, "report.html")); err != nil {
			t.Error(err)
		}
	}
}
