package outboxbench

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/spf13/cobra"

	"github.com/weirdb/weir/internal/cli"
	"github.com/weirdb/weir/internal/cli/clitest"
	"github.com/weirdb/weir/internal/lab"
	"github.com/weirdb/weir/internal/ruler/bench/suite"
)

var program = &clitest.Program{Verbs: func() []*cobra.Command {
	b := Bench()
	return append(b.Other, suite.Command(b), &cobra.Command{Use: "outbox"})
}}

func TestMain(m *testing.M) { program.Main(m) }

// optionsOf reads a command line without running anything.
func optionsOf(t *testing.T, line string) (Options, error) {
	t.Helper()
	var c command
	cmd := &cobra.Command{Use: "outbox"}
	c.flags(cmd.Flags())
	if err := cmd.ParseFlags(strings.Fields(line)); err != nil {
		t.Fatal(err)
	}
	return c.options(cmd.Flags().Changed)
}

func TestBenchOutboxReadsItsFlags(t *testing.T) {
	clitest.ClearEnvironment(t)
	for line, check := range map[string]func(o Options) bool{
		"": func(o Options) bool {
			return o.Engine == suite.PostgreSQL && o.Durability == lab.Prod && o.DSN == "" && strings.HasPrefix(o.Out, "out/bench-outbox-")
		},
		"--engine mariadb --durability fast": func(o Options) bool {
			return o.Engine == suite.MariaDB && o.Durability == lab.Fast
		},
		"--fsync-latency 2ms": func(o Options) bool { return o.FsyncLatency == 2*time.Millisecond },
		"--db mysql://u@h/d": func(o Options) bool {
			return o.Engine == suite.MySQL && o.DSN == "mysql://u@h/d"
		},
		"--db mysql://u@h/d --engine mariadb":      func(o Options) bool { return o.Engine == suite.MariaDB },
		"--db file:/tmp/x.db --lab=false":          func(o Options) bool { return o.Engine == suite.SQLite && o.DSN == "/tmp/x.db" },
		"--experiments focus,mixed-64 --plan full": func(o Options) bool { return len(o.Experiments) == 2 && o.Plan.FocusRecords == 200_000 },
		"--phases focus":                           func(o Options) bool { return len(o.Experiments) == 1 },
		"--out here --resume":                      func(o Options) bool { return o.Out == "here" && o.Resume },
	} {
		if o, err := optionsOf(t, line); err != nil || !check(o) {
			t.Errorf("%q: %+v, %v", line, o, err)
		}
	}
}

func TestBenchOutboxRefusesWhatMakesNoSense(t *testing.T) {
	for args, want := range map[string]string{
		"--plan none":                                    "--plan",
		"--engine oracle":                                "want one of postgres, mariadb, mysql, sqlite",
		"--experiments screen,all":                       `no experiment "all": want one or more of screen, focus, payload (payload-128,`,
		"--durability slow":                              "--durability",
		"--lab=false":                                    "--db",
		"--lab --db postgres://u:secret@h/d":             "contradicts --lab",
		"--db u:secret@tcp(h)/d":                         "URL",
		"--db mysql://u:secret@h/d --engine sqlite":      "another kind",
		"--db postgres://u:secret@h/d --durability fast": "--durability",
		"--engine sqlite --fsync-latency 1ms":            "slower disk",
		"--fsync-latency -1ms":                           "--fsync-latency",
		"--resume":                                       "--out",
		"--peers /no/such/program":                       "--peers",
		"more":                                           "want no argument",
	} {
		for _, verb := range [][]string{{"bench", "outbox"}, {"outbox", "bench"}} {
			r := program.Call(t, append(verb, strings.Fields(args)...)...)
			if r.Code != cli.ExitUsage || !strings.Contains(r.Stderr, want) || strings.Contains(r.Stderr, "secret") {
				t.Errorf("%q %q: exit %d, said %q; want %q", verb, args, r.Code, r.Stderr, want)
			}
		}
	}
}

// TestBenchOutboxOnSQLite is the whole command, with nothing installed.
func TestBenchOutboxOnSQLite(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "run")
	out := program.Must(t, "bench", "outbox", "--engine", "sqlite", "--plan", "smoke", "--experiments", "focus,mixed", "--out", dir)
	for _, want := range []string{"weir outbox on SQLite", "A backlog: the customary design at its best", "Producers and relay at once", "report  " + dir} {
		if !strings.Contains(out, want) {
			t.Errorf("printed no %q:\n%s", want, out)
		}
	}
	for _, name := range []string{"results.jsonl", "summary.csv", "metadata.json", "report.html", "report.md", "focus/results.jsonl", "mixed-2/mixed-2.json"} {
		if _, err := os.Stat(filepath.Join(dir, name)); err != nil {
			t.Error(err)
		}
	}
	if again := program.Must(t, "bench", "report", dir, "--output", "md"); !strings.Contains(again, "# weir outbox on SQLite") {
		t.Errorf("report made again: %s", again)
	}
}
