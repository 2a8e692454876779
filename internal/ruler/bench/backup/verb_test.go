package backupbench

import (
	"strings"
	"testing"

	"github.com/spf13/cobra"

	backupcmd "github.com/weirdb/weir/internal/backup/cmd"
	"github.com/weirdb/weir/internal/cli"
	"github.com/weirdb/weir/internal/cli/clitest"
	"github.com/weirdb/weir/internal/lab/labtest"
	"github.com/weirdb/weir/internal/ruler/bench/suite"
)

var weir = &clitest.Program{Verbs: func() []*cobra.Command {
	return append(backupcmd.Verbs(), suite.Command(Bench(func() *cobra.Command { return cli.Root() })))
}}

func TestMain(m *testing.M) {
	labtest.InMemory()
	weir.Main(m)
}

// TestBenchBackupChoosesItsPlan reads the flags alone.
func TestBenchBackupChoosesItsPlan(t *testing.T) {
	for args, want := range map[string]struct {
		engine suite.Engine
		first  Size
		shapes int
		rounds int
	}{
		"":                                   {suite.PostgreSQL, Size{Shape: "shop", Bytes: 64 << 20}, 2, 3},
		"--plan full":                        {suite.PostgreSQL, Size{Shape: "shop", Bytes: 766 << 20}, 6, 6},
		"--plan full --size 76MB --rounds 9": {suite.PostgreSQL, Size{Shape: "shop", Bytes: 76 << 20}, 6, 9},
		"--plan full --shapes huge,text":     {suite.PostgreSQL, Size{Shape: "huge", Bytes: 383 << 20}, 2, 6},
		"--engine mariadb":                   {suite.MariaDB, Size{Shape: "shop", Bytes: 64 << 20}, 2, 3},
		"--db mysql://u@h/":                  {suite.MariaDB, Size{Shape: "shop", Bytes: 64 << 20}, 2, 3},
		"--db postgres://u@h/ --lab=false":   {suite.PostgreSQL, Size{Shape: "shop", Bytes: 64 << 20}, 2, 3},
	} {
		var c flags
		cmd := newCommand(&c)
		if err := cmd.ParseFlags(strings.Fields(args)); err != nil {
			t.Fatal(err)
		}
		o, err := c.options(cmd.Flags().Changed)
		if err != nil {
			t.Errorf("%q: %v", args, err)
			continue
		}
		p := o.Plan
		if o.Engine != want.engine || len(p.Shapes) != want.shapes || p.Shapes[0] != want.first || p.Rounds != want.rounds {
			t.Errorf("%q: engine %s, plan %+v", args, o.Engine, p)
		}
	}
}

func TestBenchBackupRefusesWhatContradictsItself(t *testing.T) {
	for args, want := range map[string]string{
		"--engine oracle":                "want one of postgres, mariadb",
		"--plan none":                    "--plan",
		"--experiments dump-none":        "want one or more of buffers (buffers-64k, buffers-256k, buffers-1024k, buffers-4096k, classes-shop), compression (compress-shop, decompress-shop), direct (direct-io), copy (copy-memory, copy-file), shop (dump-shop, restore-shop), adaptive-shop (adaptive-dump-shop, adaptive-restore-shop), settings-shop (settings-restore-shop), cpu, memory-shop, huge (dump-huge, restore-huge)",
		"--size many":                    "--size",
		"--side [":                       "--side",
		"--engine mariadb --floor":       "--floor: --engine mariadb has none",
		"--db mysql://u@h/ --floor":      "has none",
		"--shapes shop,none":             `has no "none"`,
		"--rounds -1":                    "--rounds",
		"--jobs 2,2":                     "--jobs 2: want numbers of at least 1, each once",
		"--compress-workers 0":           "--compress-workers 0",
		"--block-size 1KB":               "--block-size \"1KB\": want sizes from 32KB to 64MB",
		"--storage tape":                 "--storage \"tape\": want some of dir, s3, each once",
		"--profiles quick":               "--profiles \"quick\": want some of",
		"--lab=false":                    "--db",
		"--lab --db mysql://u:secret@h/": "contradicts --lab",
		"--db host=h":                    "URL",
		"--db mysql://u:secret@h/ --engine postgres": "another kind",
	} {
		r := weir.Call(t, append([]string{"bench", "backup"}, strings.Fields(args)...)...)
		if r.Code != cli.ExitUsage || !strings.Contains(r.Stderr, want) || strings.Contains(r.Stderr, "secret") {
			t.Errorf("%q: exit %d, said %q; want %q", args, r.Code, r.Stderr, want)
		}
	}
}
