package postgres_test

import (
	_ "embed"
	"testing"

	"github.com/weirdb/weir/internal/backup"
	"github.com/weirdb/weir/internal/backup/restore"
)

//go:embed testdata/zoo.sql
var zoo string

// TestZooComesBack backs up a database with one of everything and restores it:
// native dumps of source and copy must be equal.
func TestZooComesBack(t *testing.T) {
	for _, c := range []struct {
		name string
		opts backup.Options
		back restore.Options
	}{
		{"text", backup.Options{Checksums: true}, restore.Options{Verify: restore.VerifyRows}},
		{"binary", backup.Options{Checksums: true, Binary: true}, restore.Options{Verify: restore.VerifyRows}},
		{"chunks", backup.Options{Checksums: true, ChunkBytes: backup.MinChunkBytes, Jobs: 3}, restore.Options{Verify: restore.VerifyRows, Jobs: 3}},
	} {
		t.Run(c.name, func(t *testing.T) {
			r := newRig(t, server(t), zoo)
			r.mustBackup(c.opts)
			r.same(r.db, r.restored(c.back))
		})
	}
}

func TestEmptyDatabaseComesBack(t *testing.T) {
	r := newRig(t, server(t), "")
	r.mustBackup(backup.Options{})
	r.same(r.db, r.restored(restore.Options{}))
}
