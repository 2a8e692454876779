package mysql_test

import (
	"testing"

	"github.com/weirdb/weir/internal/backup"
	"github.com/weirdb/weir/internal/backup/archive"
	"github.com/weirdb/weir/internal/backup/archive/archivetest"
	"github.com/weirdb/weir/internal/backup/restore"
	"github.com/weirdb/weir/internal/lab"
)

// TestDamageIsFound damages an archive in many places, one after the other. Each is
// found by reading it, and by restoring it.
func TestDamageIsFound(t *testing.T) {
	r := newRig(t, server(t, lab.FlavorMariaDB), `CREATE TABLE t (a int PRIMARY KEY, b text); INSERT INTO t VALUES (1, 'one'), (2, 'two'), (3, 'three');
CREATE SEQUENCE s; SELECT NEXTVAL(s); CREATE VIEW v AS SELECT * FROM t; CREATE PROCEDURE p() SELECT 1;`)
	dir := t.TempDir()
	r.repo = openRepo(t, dir)
	res := r.backup(backup.Options{Cluster: true, DSN: r.m.DSN(""), Databases: []string{r.db}, Checksums: true}, archive.Options{})
	target := r.db + "_damaged"
	archivetest.Damage(t, dir, res.Manifest.ID, archivetest.DamageTimes(), func() error {
		r.admin("DROP DATABASE IF EXISTS " + target)
		_, err := r.restoreCtx(t.Context(), restore.Options{Database: r.db, Target: target, Create: true, NoAnalyze: true})
		return err
	})
	r.admin("DROP DATABASE IF EXISTS " + target)
}
