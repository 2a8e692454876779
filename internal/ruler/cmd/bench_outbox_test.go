package rulercmd

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/spf13/cobra"

	"github.com/weirdb/weir/internal/cli"
	"github.com/weirdb/weir/internal/cli/clitest"
	"github.com/weirdb/weir/internal/lab"
	"github.com/weirdb/weir/internal/ruler/bench"
	outboxbench "github.com/weirdb/weir/internal/ruler/bench/outbox"
)

// outboxOptionsOf reads a command line without running anything.
func outboxOptionsOf(t *testing.T, line string) (outboxbench.Options, error) {
	t.Helper()
	var b benchOutbox
	cmd := &cobra.Command{Use: "outbox"}
	b.flags(cmd.Flags())
	if err := cmd.ParseFlags(strings.Fields(line)); err != nil {
		t.Fatal(err)
	}
	return b.options(cmd)
}

func TestBenchOutboxReadsItsFlags(t *testing.T) {
	clitest.ClearEnvironment(t)
	for line, check := range map[string]func(o outboxbench.Options) bool{
		"": func(o outboxbench.Options) bool {
			return o.Engine == outboxbench.PostgreSQL && o.Durability == lab.Prod && o.DSN == "" && strings.HasPrefix(o.Out, "out/bench-outbox-")
		},
		"--engine mariadb --profile fast": func(o outboxbench.Options) bool {
			return o.Engine == outboxbench.MariaDB && o.Durability == lab.Fast
		},
		"--fsync-latency 2ms": func(o outboxbench.Options) bool { return o.FsyncLatency == 2*time.Millisecond },
		"--db mysql://u@h/d": func(o outboxbench.Options) bool {
			return o.Engine == outboxbench.MySQL && o.DSN == "mysql://u@h/d"
		},
		"--db mysql://u@h/d --engine mariadb": func(o outboxbench.Options) bool { return o.Engine == outboxbench.MariaDB },
		"--db file:/tmp/x.db --lab=false":     func(o outboxbench.Options) bool { return o.Engine == outboxbench.SQLite && o.DSN == "/tmp/x.db" },
		"--phases focus,mixed --plan full":    func(o outboxbench.Options) bool { return len(o.Plan.Phases) == 2 && o.Plan.FocusRecords == 200_000 },
		"--out here --resume":                 func(o outboxbench.Options) bool { return o.Out == "here" && o.Resume },
	} {
		if o, err := outboxOptionsOf(t, line); err != nil || !check(o) {
			t.Errorf("%q: %+v, %v", line, o, err)
		}
	}
}

func TestBenchOutboxRefusesWhatMakesNoSense(t *testing.T) {
	for args, want := range map[string]string{
		"--plan none":                                 "--plan",
		"--engine oracle":                             "want one of postgres, mariadb, mysql, sqlite",
		"--phases screen,all":                         `no phase "all"`,
		"--profile slow":                              "--profile",
		"--lab=false":                                 "--db",
		"--lab --db postgres://u:secret@h/d":          "contradicts --lab",
		"--db u:secret@tcp(h)/d":                      "URL",
		"--db mysql://u:secret@h/d --engine sqlite":   "does not speak",
		"--db postgres://u:secret@h/d --profile fast": "--profile",
		"--engine sqlite --fsync-latency 1ms":         "slower disk",
		"--fsync-latency -1ms":                        "--fsync-latency",
		"--resume":                                    "--out",
		"--peers /no/such/program":                    "--peers",
		"more":                                        "unknown command",
	} {
		for _, verb := range [][]string{{"bench", "outbox"}, {"outbox", "bench"}} {
			var stdout, stderr bytes.Buffer
			code := program.Execute(t.Context(), append(verb, strings.Fields(args)...), &stdout, &stderr)
			if code != cli.ExitUsage || !strings.Contains(stderr.String(), want) || strings.Contains(stderr.String(), "secret") {
				t.Errorf("%q %q: exit %d, said %q; want %q", verb, args, code, stderr.String(), want)
			}
		}
	}
}

// TestBenchOutboxOnSQLite is the whole command, with nothing installed.
func TestBenchOutboxOnSQLite(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "run")
	var stdout, stderr bytes.Buffer
	line := []string{"bench", "outbox", "--engine", "sqlite", "--plan", "smoke", "--phases", "focus,mixed", "--out", dir}
	if code := program.Execute(t.Context(), line, &stdout, &stderr); code != cli.ExitFine {
		t.Fatalf("exit %d: %s", code, stderr.String())
	}
	for _, want := range []string{"weir outbox on SQLite", "A backlog: the customary design at its best", "Producers and relay at once", "report  " + dir} {
		if !strings.Contains(stdout.String(), want) {
			t.Errorf("printed no %q:\n%s", want, stdout.String())
		}
	}
	for _, name := range []string{"results.jsonl", "summary.csv", "metadata.json", "report.html", "report.md", "focus/results.jsonl", "mixed-2/mixed-2.json"} {
		if _, err := os.Stat(filepath.Join(dir, name)); err != nil {
			t.Error(err)
		}
	}
	stdout.Reset()
	if code := program.Execute(t.Context(), []string{"bench", "report", dir, "--format", "md"}, &stdout, &stderr); code != cli.ExitFine || !strings.Contains(stdout.String(), "# weir outbox on SQLite") {
		t.Errorf("report made again: exit %d, %s", code, stdout.String())
	}
}

func TestBenchOutboxFallsShortWithABrokenLedger(t *testing.T) {
	outcome := func(invalid ...string) *outboxbench.Outcome {
		return &outboxbench.Outcome{Results: []*bench.Result{{
			Experiment: bench.Description{Name: "focus"},
			Cases:      []bench.Case{{Name: "poll", Samples: []bench.Sample{{Invalid: invalid}}}},
		}}}
	}
	if err := judgeOutbox(outcome()); err != nil {
		t.Errorf("nothing is broken: %v", err)
	}
	err := judgeOutbox(outcome("1 of 9 committed messages were lost"))
	if cli.ExitCode(err) != cli.ExitShortfall || !strings.Contains(err.Error(), "focus, poll: 1 of 9 committed messages were lost") {
		t.Errorf("error %v", err)
	}
}
