package mysql_test

import (
	"context"
	"testing"

	"github.com/weirdb/weir/internal/backup"
	"github.com/weirdb/weir/internal/backup/archive"
	"github.com/weirdb/weir/internal/backup/archive/archivetest"
	dump "github.com/weirdb/weir/internal/backup/mysql"
	"github.com/weirdb/weir/internal/backup/restore"
	load "github.com/weirdb/weir/internal/backup/restore/mysql"
)

// TestChild is no test: it backs up or restores in a process that is killed.
func TestChild(t *testing.T) {
	archivetest.RunChild(t, map[string]archivetest.Work{
		"backup": func(ctx context.Context, dsn string, repo *archive.Repository) error {
			w, err := archive.Create(ctx, repo, archive.Options{ID: archivetest.KilledID, Parallel: 4})
			if err != nil {
				return err
			}
			_, err = dump.Run(ctx, backup.Options{DSN: dsn, ChunkBytes: backup.MinChunkBytes, Jobs: 2, Checksums: true}, w)
			return err
		},
		"restore": func(ctx context.Context, dsn string, repo *archive.Repository) error {
			r, err := archive.Open(ctx, repo, archive.Latest, archive.ReadOptions{})
			if err != nil {
				return err
			}
			_, err = load.Run(ctx, restore.Options{DSN: dsn, Jobs: 2}, r)
			return err
		},
	})
}
