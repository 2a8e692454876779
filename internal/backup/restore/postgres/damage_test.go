package postgres_test

import (
	"testing"

	"github.com/weirdb/weir/internal/backup"
	"github.com/weirdb/weir/internal/backup/archive"
	"github.com/weirdb/weir/internal/backup/archive/archivetest"
	"github.com/weirdb/weir/internal/backup/restore"
	load "github.com/weirdb/weir/internal/backup/restore/postgres"
)

// TestDamageIsFound damages an archive in many places, one after the other. Each is
// found by reading it, and by restoring it.
func TestDamageIsFound(t *testing.T) {
	r := newRig(t, server(t), `CREATE TABLE t (a int PRIMARY KEY, b text); INSERT INTO t SELECT g, md5(g::text) FROM generate_series(1, 50) g;
CREATE TABLE u (a int REFERENCES t); CREATE SEQUENCE s; SELECT nextval('s'); CREATE MATERIALIZED VIEW mv AS SELECT 1 AS one; SELECT lo_from_bytea(7, '\x0102');`)
	dir := t.TempDir()
	r.repo = openRepo(t, dir)
	res := r.mustBackup(backup.Options{Cluster: true, Databases: []string{r.db}, Checksums: true})
	archivetest.Damage(t, dir, res.Manifest.ID, archivetest.DamageTimes(), func() error {
		reader, err := archive.Open(t.Context(), r.repo, res.Manifest.ID, archive.ReadOptions{})
		if err != nil {
			return err
		}
		target := r.db + "_damaged"
		defer r.admin("DROP DATABASE IF EXISTS " + target + " WITH (FORCE)")
		_, err = load.Run(t.Context(), restore.Options{DSN: r.p.DSN("postgres"), Database: r.db, Target: target, Create: true, NoAnalyze: true}, reader)
		return err
	})
}
