package rulercmd

import (
	"bytes"
	"strings"
	"testing"

	"github.com/weirdb/weir/internal/cli"
	proxybench "github.com/weirdb/weir/internal/ruler/bench/proxy"
)

// TestBenchProxyChoosesItsEngine reads the flags alone.
func TestBenchProxyChoosesItsEngine(t *testing.T) {
	for args, want := range map[string]proxybench.Engine{
		"":                                   proxybench.PostgreSQL,
		"--mysql":                            proxybench.MariaDB,
		"--engine mariadb":                   proxybench.MariaDB,
		"--engine mysql":                     proxybench.MySQL,
		"--engine mysql --mysql":             proxybench.MySQL,
		"--lab":                              proxybench.PostgreSQL,
		"--dsn mysql://u@h/d":                proxybench.MySQL,
		"--dsn mariadb://u@h/d":              proxybench.MariaDB,
		"--dsn mysql://u@h/d --mysql":        proxybench.MariaDB,
		"--dsn postgres://u@h/d":             proxybench.PostgreSQL,
		"--dsn postgresql://u@h/d --lab=0":   proxybench.PostgreSQL,
		"--dsn mysql://u@h/d --engine mysql": proxybench.MySQL,
	} {
		var b benchProxy
		cmd := newBenchProxyCommandFor(&b)
		if err := cmd.ParseFlags(strings.Fields(args)); err != nil {
			t.Fatal(err)
		}
		if err := b.chooseEngine(cmd); err != nil || b.engine != string(want) {
			t.Errorf("%q: engine %q, %v; want %q", args, b.engine, err, want)
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
	} {
		var stdout, stderr bytes.Buffer
		code := program.Execute(t.Context(), append([]string{"bench", "proxy"}, strings.Fields(args)...), &stdout, &stderr)
		if code != cli.ExitUsage || !strings.Contains(stderr.String(), want) || strings.Contains(stderr.String(), "secret") {
			t.Errorf("%q: exit %d, said %q; want %q", args, code, stderr.String(), want)
		}
	}
}
