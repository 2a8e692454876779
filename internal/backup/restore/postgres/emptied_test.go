package postgres_test

import (
	"errors"
	"strings"
	"testing"

	"github.com/weirdb/weir/internal/backup"
	"github.com/weirdb/weir/internal/backup/archive"
	"github.com/weirdb/weir/internal/backup/archive/archivetest"
	"github.com/weirdb/weir/internal/backup/restore"
	load "github.com/weirdb/weir/internal/backup/restore/postgres"
)

// TestUnloggedTablesAfterACrash: a server that crashes keeps the books of a restore, and
// empties unlogged tables whose rows they note.
func TestUnloggedTablesAfterACrash(t *testing.T) {
	p := ownServer(t)
	r := newRig(t, p, `CREATE UNLOGGED TABLE early AS SELECT g FROM generate_series(1, 5000) g;
CREATE UNLOGGED TABLE wide AS SELECT g, repeat(md5(g::text), 30) AS filling FROM generate_series(1, 2000) g; -- to be frozen
ALTER TABLE wide ADD PRIMARY KEY (g);
CREATE UNLOGGED TABLE refers AS SELECT g, repeat(md5(g::text), 40) AS filling FROM generate_series(1, 2000) g; -- would come first
ALTER TABLE refers ADD FOREIGN KEY (g) REFERENCES wide;
CREATE UNLOGGED TABLE numbered (n int GENERATED ALWAYS AS IDENTITY, g int); INSERT INTO numbered (g) SELECT generate_series(1, 7);
CREATE UNLOGGED TABLE watched AS SELECT g FROM generate_series(1, 4000) g;
CREATE FUNCTION nothing() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NULL; END';
CREATE TRIGGER nothing BEFORE INSERT ON watched FOR EACH ROW EXECUTE FUNCTION nothing();
CREATE TABLE last AS SELECT g FROM generate_series(1, 10) g;
CREATE MATERIALIZED VIEW view AS SELECT 1 AS one`)
	r.mustBackup(backup.Options{Checksums: true})
	target := r.db + "_copy"
	r.createDB(target)
	repo, g := archivetest.NewGate(t, r.repo, "refresh", 1) // it is read first when the backup is checked
	done := start(func() error {
		reader, err := archive.Open(t.Context(), repo, archive.Latest, archive.ReadOptions{})
		if err != nil {
			return err
		}
		_, err = load.Run(t.Context(), restore.Options{DSN: p.DSN(target), Jobs: 1}, reader)
		return errors.Join(err, reader.Close())
	})
	g.Wait(t)
	r.admin("CHECKPOINT") // the books of what is done are on the disk
	p.Kill()
	g.Release()
	if err := finished(t, done); err == nil {
		t.Fatal("a restore whose server was killed succeeded")
	}
	if err := p.Restart(t.Context()); err != nil {
		t.Fatal(err)
	}
	if got := r.psql(target, "SELECT (SELECT count(*) FROM early), (SELECT count(*) FROM wide), (SELECT count(*) FROM watched), (SELECT count(*) FROM last)"); got != "0|0|0|10" {
		t.Fatalf("after the crash there are %s rows", got)
	}
	res, err := r.restore(restore.Options{DSN: p.DSN(target), Resume: true, Jobs: 1})
	if err == nil || len(res.Failed) != 1 || !strings.Contains(err.Error(), "rows of table public.watched") {
		t.Errorf("resumed: %v", err)
	}
	if got := r.psql(target, "SELECT (SELECT count(*) FROM early), (SELECT count(*) FROM wide), (SELECT count(*) FROM refers), (SELECT count(*) FROM last), nextval('numbered_n_seq')"); got != "5000|2000|2000|10|8" {
		t.Errorf("there are %s rows, and the next number", got)
	}
}
