package proxybench

import (
	"bytes"
	"strings"
	"testing"

	"github.com/spf13/cobra"

	"github.com/weirdb/weir/internal/cli"
	"github.com/weirdb/weir/internal/cli/clitest"
	"github.com/weirdb/weir/internal/ruler/bench/suite"
)

var program = &clitest.Program{Verbs: func() []*cobra.Command { return []*cobra.Command{suite.Command(Bench())} }}

func TestMain(m *testing.M) { program.Main(m) }

// TestBenchProxyChoosesItsEngine reads the flags alone.
func TestBenchProxyChoosesItsEngine(t *testing.T) {
	for args, want := range map[string]suite.Engine{
		"":                                   suite.PostgreSQL,
		"--mysql":                            suite.MariaDB,
		"--engine mariadb":                   suite.MariaDB,
		"--engine mysql":                     suite.MySQL,
		"--engine mysql --mysql":             suite.MySQL,
		"--lab":                              suite.PostgreSQL,
		"--dsn mysql://u@h/d":                suite.MySQL,
		"--dsn mariadb://u@h/d":              suite.MariaDB,
		"--dsn mysql://u@h/d --mysql":        suite.MariaDB,
		"--dsn postgres://u@h/d":             suite.PostgreSQL,
		"--dsn postgresql://u@h/d --lab=0":   suite.PostgreSQL,
		"--dsn mysql://u@h/d --engine mysql": suite.MySQL,
	} {
		var c command
		cmd := newCommand(&c)
		if err := cmd.ParseFlags(strings.Fields(args)); err != nil {
			t.Fatal(err)
		}
		if err := c.chooseEngine(cmd.Flags()); err != nil || c.Engine != want {
			t.Errorf("%q: engine %q, %v; want %q", args, c.Engine, err, want)
		}
	}
}

func TestBenchProxyRefusesWhatContradictsItself(t *testing.T) {
	for args, want := range map[string]string{
		"--engine oracle":                         "want one of postgres, mariadb, mysql",
		"--engine postgres --mysql":               "--mysql contradicts",
		"--lab=false":                             "--dsn",
		"--lab --dsn mysql://u@h/d":               "contradicts --lab",
		"--dsn u:secret@tcp(h)/d":                 "URL",
		"--dsn mysql://u@h/d --engine postgres":   "does not speak",
		"--dsn postgres://u:secret@h/d --mysql":   "does not speak",
		"--plan none --dsn mysql://u:secret@h/d ": "--plan",
		"--experiments inserts-63":                "want some of inserts (inserts-64, inserts-256), reads (reads-prepared-64, reads-simple-64)",
		"--resume":                                "--out",
	} {
		var stdout, stderr bytes.Buffer
		code := program.Execute(t.Context(), append([]string{"bench", "proxy"}, strings.Fields(args)...), &stdout, &stderr)
		if code != cli.ExitUsage || !strings.Contains(stderr.String(), want) || strings.Contains(stderr.String(), "secret") {
			t.Errorf("%q: exit %d, said %q; want %q", args, code, stderr.String(), want)
		}
	}
}
