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
		{"binary and chunks", backup.Options{Checksums: true, Binary: true, ChunkBytes: backup.MinChunkBytes, Jobs: 3}, restore.Options{Verify: restore.VerifyRows, Jobs: 3}},
	} {
		t.Run(c.name, func(t *testing.T) {
			r := newRig(t, server(t), zoo)
			r.mustBackup(c.opts)
			r.sameAs(r.source(), r.restored(c.back))
		})
	}
}

func TestEmptyDatabaseComesBack(t *testing.T) {
	r := newRig(t, server(t), "")
	r.mustBackup(backup.Options{})
	r.same(r.db, r.restored(restore.Options{}))
}

// A child's columns are made with those of its parents first, whenever the parents got
// theirs: the copy of such a table is as good, and the order of all others counts.
func TestInheritedColumnsComeBack(t *testing.T) {
	r := newRig(t, server(t), `
CREATE TABLE parent (a int, gone int, b text);
CREATE TABLE child (c int DEFAULT 3, d text) INHERITS (parent);
CREATE TABLE second (x int);
CREATE TABLE two (z int) INHERITS (child, second);
ALTER TABLE parent DROP COLUMN gone, ADD COLUMN late int DEFAULT 7;
ALTER TABLE child ADD COLUMN e int, DROP COLUMN c;
ALTER TABLE child ADD COLUMN c int;
ALTER TABLE second ADD COLUMN y int;
CREATE TABLE joined (own int, y int, x int);
ALTER TABLE joined INHERIT second;
CREATE STATISTICS of_child (ndistinct) ON d, late, a FROM child;
CREATE PUBLICATION news FOR TABLE child (a, late, d), ONLY parent;
CREATE TABLE log (day int, v text) PARTITION BY RANGE (day);
CREATE TABLE log1 (v text, day int);
ALTER TABLE log ATTACH PARTITION log1 FOR VALUES FROM (1) TO (10);
INSERT INTO child (a, b, d, late, e, c) VALUES (1, 'b', 'd', 2, 3, 4);
INSERT INTO two VALUES (1), (2);
INSERT INTO joined VALUES (1, 2, 3);
INSERT INTO log VALUES (1, 'v');
`)
	r.mustBackup(backup.Options{Checksums: true})
	copied := r.restored(restore.Options{Verify: restore.VerifyRows})
	order := func(table string) string {
		return r.psql(copied, "SELECT string_agg(attname, ' ' ORDER BY attnum) FROM pg_attribute WHERE attrelid = '"+table+"'::regclass AND attnum > 0 AND NOT attisdropped")
	}
	if got := order("child"); got != "a b late d e c" {
		t.Errorf("the columns of the copy are %s: the test tests nothing", got)
	}
	if got := order("log1"); got != "v day" {
		t.Errorf("the columns of the partition are %s", got)
	}
}

// Properties that a dump leaves open are no difference: the order in which a relation got its
// options, and the type of an identity column's sequence.
func TestWhatADumpLeavesOpenComesBack(t *testing.T) {
	r := newRig(t, server(t), `
CREATE TABLE t (a int GENERATED ALWAYS AS IDENTITY, b text);
CREATE TABLE alike (LIKE t INCLUDING ALL);
CREATE VIEW v WITH (check_option = local, security_barrier) AS SELECT * FROM t WHERE a > 0;
INSERT INTO alike (b) VALUES ('x');
`)
	const kind = "SELECT seqtypid::regtype FROM pg_sequence WHERE seqrelid = 'alike_a_seq'::regclass"
	const options = "SELECT reloptions FROM pg_class WHERE relname = 'v'"
	r.mustBackup(backup.Options{Checksums: true})
	copied := r.restored(restore.Options{Verify: restore.VerifyRows})
	for _, sql := range []string{kind, options} {
		if was, is := r.psql(r.db, sql), r.psql(copied, sql); was == is {
			t.Errorf("%s: %s in both: the test tests nothing", sql, is)
		}
	}
}
