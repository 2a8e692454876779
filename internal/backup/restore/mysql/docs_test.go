package mysql_test

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"github.com/weirdb/weir/internal/backup"
	"github.com/weirdb/weir/internal/backup/archive"
	"github.com/weirdb/weir/internal/backup/archive/archivetest"
	"github.com/weirdb/weir/internal/lab"
	"github.com/weirdb/weir/internal/lab/labtest"
	"github.com/weirdb/weir/internal/testkit"
)

// TestDocumentedRestore restores one of everything by the commands of the manual,
// without weir: native dumps of source and copy are equal.
func TestDocumentedRestore(t *testing.T) {
	testkit.Long(t, "compares native dumps of one of everything")
	m := labtest.MariaDB(t, config(lab.FlavorMariaDB))
	dir := t.TempDir()
	r := &rig{t: t, m: m, db: "shop", repo: openRepo(t, dir)}
	r.createDB("shop")
	r.client("shop", zoo(t, m))
	want := r.native("shop")
	res := r.backup(backup.Options{ChunkBytes: backup.MinChunkBytes, Checksums: true}, archive.Options{})
	home := t.TempDir()
	options := fmt.Sprintf("[client]\nsocket=%s\nuser=%s\npassword=%s\ndefault-character-set=utf8mb4\n", m.Socket(), m.User(), m.Password())
	if err := os.WriteFile(filepath.Join(home, ".my.cnf"), []byte(options), 0o600); err != nil {
		t.Fatal(err)
	}
	archivetest.Shell(t, filepath.Join(dir, res.Manifest.ID), archivetest.Recipe(t, 1), []string{"zstd", "jq", "mariadb", "sha256sum", "base64"}, []string{"HOME=" + home})
	r.dropAfter("copy")
	r.compare(want, "copy")
}
