package proxybench

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/spf13/cobra"

	"github.com/weirdb/weir/internal/cli"
	"github.com/weirdb/weir/internal/cli/clitest"
	proxycmd "github.com/weirdb/weir/internal/proxy/cmd"
	"github.com/weirdb/weir/internal/ruler/bench/suite"
)

var program = &clitest.Program{Verbs: func() []*cobra.Command { return append(proxycmd.Verbs(), suite.Command(Bench(nil))) }}

func TestMain(m *testing.M) { program.Main(m) }

// TestBenchProxyChoosesItsEngine reads the flags alone.
func TestBenchProxyChoosesItsEngine(t *testing.T) {
	for args, want := range map[string]suite.Engine{
		"":                                  suite.PostgreSQL,
		"--mysql":                           suite.MariaDB,
		"--engine mariadb":                  suite.MariaDB,
		"--engine mysql":                    suite.MySQL,
		"--engine mysql --mysql":            suite.MySQL,
		"--lab":                             suite.PostgreSQL,
		"--db mysql://u@h/d":                suite.MySQL,
		"--db mariadb://u@h/d":              suite.MariaDB,
		"--db mysql://u@h/d --mysql":        suite.MariaDB,
		"--db postgres://u@h/d":             suite.PostgreSQL,
		"--db postgresql://u@h/d --lab=0":   suite.PostgreSQL,
		"--db mysql://u@h/d --engine mysql": suite.MySQL,
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

// Every knob is a list; one pool or group limit is that of all experiments.
func TestBenchProxyTakesKnobs(t *testing.T) {
	options := func(args string) Options {
		t.Helper()
		var c command
		cmd := newCommand(&c)
		if err := cmd.ParseFlags(strings.Fields(args)); err != nil {
			t.Fatal(err)
		}
		o, err := c.options(cmd.Flags())
		if err != nil {
			t.Fatalf("%q: %v", args, err)
		}
		return o
	}
	o := options("--windows 0,1,10ms,100 --clients 100,1000 --pool-size 20,50 --group-limit 16,256 --out x")
	ms := time.Millisecond
	if !slices.Equal(o.Plan.Windows, []time.Duration{0, ms, 10 * ms, 100 * ms}) || !slices.Equal(o.Plan.Inserts, []int{100, 1000}) || o.Plan.profiled() != 100 {
		t.Errorf("%+v", o.Plan)
	}
	if known := strings.Join(suite.Known(Steps(o)), ", "); !strings.Contains(known, "inserts (inserts-100, inserts-1000), pool-sizes, group-limits") {
		t.Errorf("experiments: %s", known)
	}
	if o = options("--pool-size 50 --group-limit 16 --out x"); !slices.Equal(o.Plan.always(), []string{"--pool-size", "50", "--group-limit", "16"}) {
		t.Errorf("settings of every weir: %q", o.Plan.always())
	}
	if known := strings.Join(suite.Known(Steps(o)), ", "); strings.Contains(known, "pool-sizes") {
		t.Errorf("one pool is compared with itself: %s", known)
	}
}

func TestBenchProxyRefusesWhatContradictsItself(t *testing.T) {
	for args, want := range map[string]string{
		"--engine oracle":                        "want one of postgres, mariadb, mysql",
		"--engine postgres --mysql":              "--mysql contradicts",
		"--lab=false":                            "--db",
		"--lab --db mysql://u@h/d":               "contradicts --lab",
		"--db u:secret@tcp(h)/d":                 "URL",
		"--db mysql://u@h/d --engine postgres":   "another kind",
		"--db postgres://u:secret@h/d --mysql":   "another kind",
		"--plan none --db mysql://u:secret@h/d ": "--plan",
		"--experiments inserts-63":               "want one or more of inserts (inserts-64, inserts-256), reads (reads-prepared-64, reads-simple-64)",
		"--resume":                               "--out",
		"--windows 1,1ms":                        "--windows names 1ms twice",
		"--windows 1500us":                       "want milliseconds from 0 to 10000",
		"--windows -1":                           "want milliseconds",
		"--clients 0":                            "--clients 0: want at least 1",
		"--pool-size 20,20":                      "--pool-size names 20 twice",
		"--group-limit 257":                      "--group-limit 257: weir groups at most 256",
		"--experiments pool-sizes":               `no experiment "pool-sizes"`,
	} {
		r := program.Call(t, append([]string{"bench", "proxy"}, strings.Fields(args)...)...)
		if r.Code != cli.ExitUsage || !strings.Contains(r.Stderr, want) || strings.Contains(r.Stderr, "secret") {
			t.Errorf("%q: exit %d, said %q; want %q", args, r.Code, r.Stderr, want)
		}
	}
}
