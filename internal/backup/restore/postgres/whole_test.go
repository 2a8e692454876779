package postgres_test

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/weirdb/weir/internal/backup"
	"github.com/weirdb/weir/internal/backup/archive"
	"github.com/weirdb/weir/internal/backup/restore"
)

// TestTableOfChunksIsLoadedWhole restores tables of several chunks. Their rows are
// frozen: the pages need no visit to say that all may see them. Servers from 16 on add pages
// in groups, and leave some of the last ones empty. With a chunk that is
// damaged, the rows of the others are there, and of this one none.
func TestTableOfChunksIsLoadedWhole(t *testing.T) {
	fill := " AS SELECT g AS a, md5(g::text) || md5((g + 1)::text) AS b FROM generate_series(1, 16000) g;"
	r := newRig(t, server(t), "CREATE TABLE one"+fill+"CREATE TABLE other"+fill+"ALTER TABLE one ADD PRIMARY KEY (a); CREATE INDEX ON one (b);")
	dir := t.TempDir()
	r.repo = openRepo(t, dir)
	res := r.mustBackup(backup.Options{Checksums: true, ChunkBytes: 512 << 10})
	target := r.restored(restore.Options{Verify: restore.VerifyRows, Jobs: 2})
	got := r.psql(target, "SELECT count(*) FROM pg_class WHERE relname IN ('one', 'other') AND relpages > 0 AND relallvisible > relpages / 2")
	if got != "2" {
		t.Errorf("%s of 2 tables are frozen", got)
	}

	var chunks []archive.Chunk
	for _, c := range res.Manifest.Chunks {
		if c.Table == "one" {
			chunks = append(chunks, c)
		}
	}
	if len(chunks) < 3 {
		t.Fatalf("%d chunks", len(chunks))
	}
	bad := chunks[1]
	file := filepath.Join(dir, res.Manifest.ID, bad.File)
	data, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	data[len(data)/2] ^= 1
	if err := os.WriteFile(file, data, 0o600); err != nil {
		t.Fatal(err)
	}
	damaged := r.db + "_damaged"
	r.dropAfter(damaged)
	out, err := r.restore(restore.Options{Create: true, Target: damaged, Jobs: 2})
	if err == nil || len(out.Failed) != 1 || out.Failed[0].Chunk != bad.Path {
		t.Fatalf("%v; failed: %v", err, out.Failed)
	}
	// The restore counts what is there, and nothing twice.
	if want := 32000 - bad.Rows; out.Rows != want || out.Tables != 2 {
		t.Errorf("%d rows of %d tables were loaded, want %d of 2", out.Rows, out.Tables, want)
	}
	if got, want := r.psql(damaged, "SELECT count(*) FROM one"), fmt.Sprint(16000-bad.Rows); got != want {
		t.Errorf("%s rows, want %s", got, want)
	}
	if got := r.psql(damaged, "SELECT count(*) FROM pg_indexes WHERE tablename = 'one'"); !strings.HasPrefix(got, "2") {
		t.Errorf("%s indexes", got)
	}
}
