package rulercmd

import (
	"bytes"
	"strings"
	"testing"

	"github.com/weirdb/weir/internal/cli"
	backupbench "github.com/weirdb/weir/internal/ruler/bench/backup"
)

// TestBenchBackupChoosesItsPlan reads the flags alone.
func TestBenchBackupChoosesItsPlan(t *testing.T) {
	for args, want := range map[string]struct {
		engine backupbench.Engine
		first  backupbench.Size
		shapes int
		rounds int
	}{
		"":                                   {backupbench.PostgreSQL, backupbench.Size{Shape: "shop", Bytes: 64 << 20}, 2, 3},
		"--plan full":                        {backupbench.PostgreSQL, backupbench.Size{Shape: "shop", Bytes: 766 << 20}, 6, 6},
		"--plan full --size 76MB --rounds 9": {backupbench.PostgreSQL, backupbench.Size{Shape: "shop", Bytes: 76 << 20}, 6, 9},
		"--plan full --shapes huge,text":     {backupbench.PostgreSQL, backupbench.Size{Shape: "huge", Bytes: 383 << 20}, 2, 6},
		"--engine mariadb":                   {backupbench.MariaDB, backupbench.Size{Shape: "shop", Bytes: 64 << 20}, 2, 3},
		"--dsn mysql://u@h/":                 {backupbench.MariaDB, backupbench.Size{Shape: "shop", Bytes: 64 << 20}, 2, 3},
		"--dsn postgres://u@h/ --lab=false":  {backupbench.PostgreSQL, backupbench.Size{Shape: "shop", Bytes: 64 << 20}, 2, 3},
	} {
		var b benchBackup
		cmd := newBenchBackupCommandFor(&b)
		if err := cmd.ParseFlags(strings.Fields(args)); err != nil {
			t.Fatal(err)
		}
		if err := b.complete(cmd); err != nil {
			t.Errorf("%q: %v", args, err)
			continue
		}
		p := b.options.Plan
		if b.options.Engine != want.engine || len(p.Shapes) != want.shapes || p.Shapes[0] != want.first || p.Rounds != want.rounds {
			t.Errorf("%q: engine %s, plan %+v", args, b.options.Engine, p)
		}
	}
}

func TestBenchBackupRefusesWhatContradictsItself(t *testing.T) {
	for args, want := range map[string]string{
		"--engine oracle":                 "want postgres or mariadb",
		"--plan none":                     "--plan",
		"--size many":                     "--size",
		"--shapes shop,none":              `has no "none"`,
		"--rounds -1":                     "--rounds",
		"--lab=false":                     "--dsn",
		"--lab --dsn mysql://u:secret@h/": "contradicts --lab",
		"--dsn host=h":                    "URL",
		"--dsn mysql://u:secret@h/ --engine postgres": "does not speak",
	} {
		var stdout, stderr bytes.Buffer
		code := program.Execute(t.Context(), append([]string{"bench", "backup"}, strings.Fields(args)...), &stdout, &stderr)
		if code != cli.ExitUsage || !strings.Contains(stderr.String(), want) || strings.Contains(stderr.String(), "secret") {
			t.Errorf("%q: exit %d, said %q; want %q", args, code, stderr.String(), want)
		}
	}
}
