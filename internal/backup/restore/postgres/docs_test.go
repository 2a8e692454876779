package postgres_test

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"github.com/weirdb/weir/internal/backup"
	"github.com/weirdb/weir/internal/backup/archive/archivetest"
	"github.com/weirdb/weir/internal/backup/restore"
	"github.com/weirdb/weir/internal/lab"
	"github.com/weirdb/weir/internal/lab/labtest"
	"github.com/weirdb/weir/internal/testkit"
)

// TestDocumentedRestore restores one of everything by the commands of the manual,
// without weir: native dumps of source and copy are equal, and so are all definitions.
func TestDocumentedRestore(t *testing.T) {
	testkit.Long(t, "compares native dumps of one of everything")
	p := labtest.Postgres(t, lab.PostgresConfig{Durability: lab.Fast, Settings: map[string]string{"wal_level": "logical"}})
	r := &rig{t: t, p: p, db: "shop", repo: openRepo(t, t.TempDir())}
	r.createDB("shop")
	r.psql("shop", zoo)
	dir := t.TempDir()
	r.repo = openRepo(t, dir)
	// One table in several chunks, each of which is seven processes, shows what many would.
	res := r.mustBackup(backup.Options{ChunkBytes: 256 << 10, Checksums: true})
	chunks := map[string]int{}
	for _, c := range res.Manifest.Chunks {
		chunks[c.Table]++
	}
	if chunks["large"] < 2 {
		t.Errorf("the largest table has %d chunks", chunks["large"])
	}
	path := "PATH=" + p.BinDir() + ":" + os.Getenv("PATH") // not Debian's psql, which is a program in Perl that looks for one
	archivetest.Shell(t, filepath.Join(dir, res.Manifest.ID), archivetest.Recipe(t, 0), []string{"zstd", "jq", "psql", "sha256sum", "base64"}, []string{
		path, "PGHOST=" + p.Host(), fmt.Sprintf("PGPORT=%d", p.Port()), "PGUSER=" + p.User(), "PGPASSWORD=" + p.Password(), "PGCLIENTENCODING=UTF8",
	})
	want := r.native("shop")
	r.sameAs(want, "copy")
	// weir's own restore finds no difference, and would find one.
	r.sameAs(want, r.restored(restore.Options{Verify: restore.VerifyRows}))
}
