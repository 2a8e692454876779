package backupcmd

import (
	"fmt"
	"os"
	"path/filepath"
	"syscall"
	"testing"

	"github.com/weirdb/weir/internal/backup/bulk/postgres"
	"github.com/weirdb/weir/internal/testkit"
)

// TestKilledBackupLeavesNoFiles kills backups while pg_dump speaks with them: nothing
// stays in the directory for temporary files, not even of one that had no time to
// tidy up.
func TestKilledBackupLeavesNoFiles(t *testing.T) {
	s := newShop(t)
	// This pg_dump connects as the real one does, and never ends.
	bin := t.TempDir()
	script := fmt.Sprintf("#!/bin/sh\n[ \"$1\" = --version ] && exec '%[1]s/pg_dump' --version\nexec '%[1]s/psql' -Xc 'SELECT pg_sleep(100000)'\n", s.p.BinDir())
	if err := os.WriteFile(filepath.Join(bin, "pg_dump"), []byte(script), 0o755); err != nil {
		t.Fatal(err)
	}
	t.Setenv(postgres.EnvBin, bin)
	for _, signal := range []os.Signal{os.Kill, syscall.SIGTERM} {
		t.Run(signal.String(), func(t *testing.T) {
			repo, temp := t.TempDir(), t.TempDir()
			t.Setenv("TMPDIR", temp)
			p := start(t, "backup", s.dsn("shop"), "--to", repo, "--progress", "none")
			const asleep = " FROM pg_stat_activity WHERE query LIKE 'SELECT pg_sleep(%' AND state = 'active'"
			testkit.Eventually(t, "pg_dump is connected", func() bool { return s.psql("postgres", "SELECT count(*)"+asleep) == "1" })
			p.end(signal)
			left, err := os.ReadDir(temp)
			if err != nil || len(left) > 0 {
				t.Errorf("it left %v (%v)", left, err)
			}
			s.psql("postgres", "SELECT pg_terminate_backend(pid)"+asleep)
			testkit.Eventually(t, "its session is gone", func() bool { return s.psql("postgres", "SELECT count(*)"+asleep) == "0" })
		})
	}
}
