package backupcmd

import (
	"io"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"testing"
	"time"

	"github.com/weirdb/weir/internal/backup/binlog"
	"github.com/weirdb/weir/internal/backup/bulk"
	"github.com/weirdb/weir/internal/backup/notice"
	"github.com/weirdb/weir/internal/backup/wal"
	"github.com/weirdb/weir/internal/cli/clitest"
)

// The page of metrics has all that backups and archived logs write.
func TestMetricsPage(t *testing.T) {
	dir, now := t.TempDir(), time.Now()
	backup, log, bin := filepath.Join(dir, "backup.prom"), filepath.Join(dir, "wal.prom"), filepath.Join(dir, "binlog.prom")
	hooks := notice.Hooks{MetricsFile: backup}
	if err := hooks.Finish(t.Context(), &notice.Outcome{Label: "shop", OK: true, Started: now}, io.Discard); err != nil {
		t.Fatal(err)
	}
	if err := notice.WriteTextfile(log, wal.Status{FlushedAt: now}.Metrics()); err != nil {
		t.Fatal(err)
	}
	status := binlog.Status{Log: "shop", ArchivedAt: now}
	status.Position.File, status.Position.Pos = "bin.000001", 4
	if err := notice.WriteTextfile(bin, status.Metrics()); err != nil {
		t.Fatal(err)
	}
	all := slices.Concat(
		clitest.MetricsOfText(t, backup), clitest.MetricsOfText(t, log), clitest.MetricsOfText(t, bin),
		clitest.MetricsOf(t, &runPage{verb: "backup", state: &bulk.Progress{}}))
	clitest.MetricsPage(t, "backup", all)

	// The dashboard for Grafana shows metrics that there are.
	text, err := os.ReadFile("../../../contrib/grafana/weir-backup.json")
	if err != nil {
		t.Fatal(err)
	}
	for _, expr := range clitest.DashboardQueries(t, text) {
		for _, name := range regexp.MustCompile(`weir_[a-z_]+`).FindAllString(expr, -1) {
			if !slices.ContainsFunc(all, func(m clitest.Metric) bool { return m.Name == name }) {
				t.Errorf("the dashboard asks for %s, which there is not", name)
			}
		}
	}
}
