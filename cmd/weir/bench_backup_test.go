package main

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/weirdb/weir/internal/cli"
	"github.com/weirdb/weir/internal/cli/clitest"
	"github.com/weirdb/weir/internal/lab/labtest"
	"github.com/weirdb/weir/internal/ruler/bench/backuprun"
)

// TestBenchBackupChoosesItsPlan reads the flags alone.
func TestBenchBackupChoosesItsPlan(t *testing.T) {
	for args, want := range map[string]struct {
		engine backuprun.Engine
		first  backuprun.Size
		shapes int
		rounds int
	}{
		"":                                   {backuprun.PostgreSQL, backuprun.Size{Shape: "shop", Bytes: 64 << 20}, 2, 3},
		"--plan full":                        {backuprun.PostgreSQL, backuprun.Size{Shape: "shop", Bytes: 766 << 20}, 6, 6},
		"--plan full --size 76MB --rounds 9": {backuprun.PostgreSQL, backuprun.Size{Shape: "shop", Bytes: 76 << 20}, 6, 9},
		"--plan full --shapes huge,text":     {backuprun.PostgreSQL, backuprun.Size{Shape: "huge", Bytes: 383 << 20}, 2, 6},
		"--engine mariadb":                   {backuprun.MariaDB, backuprun.Size{Shape: "shop", Bytes: 64 << 20}, 2, 3},
		"--dsn mysql://u@h/":                 {backuprun.MariaDB, backuprun.Size{Shape: "shop", Bytes: 64 << 20}, 2, 3},
		"--dsn postgres://u@h/ --lab=false":  {backuprun.PostgreSQL, backuprun.Size{Shape: "shop", Bytes: 64 << 20}, 2, 3},
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

// TestBenchBackupSmoke runs the whole scenario on next to nothing, weir's sides as
// processes of this test binary, and makes the report again.
func TestBenchBackupSmoke(t *testing.T) {
	labtest.RequirePostgres(t)
	clitest.ClearEnvironment(t)
	clitest.AsWeir(t)
	dir := filepath.Join(t.TempDir(), "out")
	var stdout, stderr bytes.Buffer
	if code := program.Execute(t.Context(), []string{"bench", "backup", "--plan", "smoke", "--size", "300kB", "--out", dir}, &stdout, &stderr); code != cli.ExitFine {
		t.Fatalf("exit %d\n%s", code, stderr.String())
	}
	for _, part := range []string{"Compression of shop", "Copy of 1 MB to a file", "Backup of shop", "Restore of shop", "Peak memory of weir", "Environment", "report.html"} {
		if !strings.Contains(stdout.String(), part) {
			t.Errorf("nothing is said of %q:\n%s", part, stdout.String())
		}
	}
	want, err := os.ReadFile(filepath.Join(dir, "report.md"))
	if err != nil {
		t.Fatal(err)
	}
	if got := program.Run(t, "bench", "report", dir, "--format", "md"); got != string(want) {
		t.Errorf("made again, the report is another:\n%s", got)
	}
	for _, name := range []string{"cpu-weir-backup.pb.gz", "cpu-weir-restore.pb.gz"} {
		if _, err := os.Stat(filepath.Join(dir, name)); err != nil {
			t.Errorf("no profile: %v", err)
		}
	}
	var again, said bytes.Buffer
	if code := program.Execute(t.Context(), []string{"bench", "backup", "--plan", "smoke", "--size", "300kB", "--out", dir}, &again, &said); code != cli.ExitFailed || !strings.Contains(said.String(), "already holds results") {
		t.Errorf("over an old result: exit %d, %s", code, said.String())
	}
}
