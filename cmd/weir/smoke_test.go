package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/weirdb/weir/internal/cli"
	"github.com/weirdb/weir/internal/cli/clitest"
	"github.com/weirdb/weir/internal/lab/labtest"
	"github.com/weirdb/weir/internal/testkit"
)

// TestBenchBackupSmoke runs a plan on next to nothing, weir's sides as processes of this
// test binary, and makes the report again. `make torture` has it whole; what is left out
// otherwise, the tests of internal/ruler/bench/backup run.
func TestBenchBackupSmoke(t *testing.T) {
	testkit.Long(t, "runs a whole plan")
	labtest.RequirePostgres(t)
	all := testkit.All()
	clitest.ClearEnvironment(t)
	clitest.AsWeir(t)
	dir := filepath.Join(t.TempDir(), "out")
	args := []string{"bench", "backup", "--plan", "smoke", "--size", "300kB", "--out", dir}
	if !all {
		args = append(args, "--experiments", "compression,copy,shop,cpu,memory-shop", "--side", "weir", "--side", "weir, none")
	}
	out := program.Must(t, args...)
	for _, part := range []string{"Compression of shop", "Copy of 1 MB to a file", "Backup of shop", "Restore of shop", "Peak memory of weir", "Environment", "report.html"} {
		if !strings.Contains(out, part) {
			t.Errorf("nothing is said of %q:\n%s", part, out)
		}
	}
	want, err := os.ReadFile(filepath.Join(dir, "report.md"))
	if err != nil {
		t.Fatal(err)
	}
	if got := program.Run(t, "bench", "report", dir, "--output", "md"); got != string(want) {
		t.Errorf("made again, the report is another:\n%s", got)
	}
	for _, name := range []string{"cpu-weir-backup.pb.gz", "cpu-weir-restore.pb.gz"} {
		if _, err := os.Stat(filepath.Join(dir, name)); err != nil {
			t.Errorf("no profile: %v", err)
		}
	}
	program.Refuse(t, cli.ExitFailed, []string{"already holds results"}, args...)
}
