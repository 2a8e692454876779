package postgres_test

import (
	"errors"
	"strings"
	"testing"

	"github.com/weirdb/weir/internal/backup"
	"github.com/weirdb/weir/internal/backup/archive"
	"github.com/weirdb/weir/internal/backup/archive/archivetest"
	"github.com/weirdb/weir/internal/backup/restore"
	"github.com/weirdb/weir/internal/lab"
	"github.com/weirdb/weir/internal/lab/labtest"
	"github.com/weirdb/weir/internal/testkit"
)

// TestBlobsOfMissingRoles restores large objects where their roles do not exist: all of
// them come, and each owner and right that could not is told of.
func TestBlobsOfMissingRoles(t *testing.T) {
	r := newRig(t, server(t), `CREATE ROLE gone; CREATE ROLE here; SELECT lo_from_bytea(41, '\x01'), lo_from_bytea(42, '\x02'), lo_from_bytea(43, '\x03');
ALTER LARGE OBJECT 41 OWNER TO gone; ALTER LARGE OBJECT 42 OWNER TO here; GRANT SELECT ON LARGE OBJECT 41, 42 TO here WITH GRANT OPTION;
GRANT SELECT ON LARGE OBJECT 42 TO gone; SET ROLE gone; GRANT UPDATE ON LARGE OBJECT 41 TO here WITH GRANT OPTION; RESET ROLE;
GRANT SELECT ON LARGE OBJECT 43 TO gone WITH GRANT OPTION; SET ROLE gone; GRANT SELECT ON LARGE OBJECT 43 TO PUBLIC; RESET ROLE; COMMENT ON LARGE OBJECT 43 IS 'third'`)
	r.mustBackup(backup.Options{})
	dropAll := []string{"DROP DATABASE " + r.db + " WITH (FORCE)", "DROP ROLE gone"}
	r.admin(dropAll...)
	defer r.admin(append(dropAll, "DROP ROLE here")...)
	res, err := r.restore(restore.Options{Create: true})
	if err == nil || len(res.Failed) == 0 {
		t.Fatalf("no error: %v", err)
	}
	for _, f := range res.Failed {
		if !strings.Contains(f.Statement, "gone") && !strings.Contains(f.Err.Error(), "the role that grants it is not available") || f.Rest == "" {
			t.Errorf("failed: %v", f)
		}
	}
	got := r.psql(r.db, `SELECT string_agg(concat_ws(' ', l.oid, encode(lo_get(l.oid), 'hex'), l.lomowner::regrole, l.lomacl, obj_description(l.oid, 'pg_largeobject')), E'\n' ORDER BY l.oid) FROM pg_largeobject_metadata l`)
	const want = "41 01 postgres {postgres=rw/postgres,here=r*w*/postgres}\n42 02 here {here=r*w/here}\n43 03 postgres {postgres=rw/postgres} third"
	if got != want {
		t.Errorf("got\n%s\nwant\n%s", got, want)
	}
	// By hand, once the role is there.
	r.exec("postgres", "CREATE ROLE gone")
	for _, f := range res.Failed {
		r.exec(r.db, f.Rest)
	}
}

// TestCleanReplacesLargeObjects restores over large objects that have other content.
func TestCleanReplacesLargeObjects(t *testing.T) {
	r := newRig(t, server(t), `SELECT lo_from_bytea(42, '\x01')`)
	r.mustBackup(backup.Options{})
	target := r.db + "_other"
	r.createDB(target)
	r.exec(target, `SELECT lo_from_bytea(42, '\x02'), lo_from_bytea(43, '\x03')`)
	_, err := r.restore(restore.Options{DSN: r.p.DSN(target)})
	if err == nil || !strings.Contains(err.Error(), "large object 42") {
		t.Errorf("not empty: %v", err)
	}
	if res, err := r.restore(restore.Options{DSN: r.p.DSN(target), Clean: true, IfExists: true}); err != nil {
		t.Fatalf("%v: %v", err, res.Failed)
	}
	if got := r.psql(target, "SELECT encode(lo_get(42), 'hex') || encode(lo_get(43), 'hex')"); got != "0103" {
		t.Errorf("large objects %s", got)
	}
}

// TestLockAmidRows has a lock keep a COPY from a TOAST table whose rows before it have come.
func TestLockAmidRows(t *testing.T) {
	r := newRig(t, server(t), `CREATE TABLE a AS SELECT i, repeat('x', 100) FROM generate_series(1, 10000) i;
CREATE TABLE wide (i int, v text); ALTER TABLE wide ALTER v SET STORAGE EXTERNAL;
INSERT INTO wide SELECT i, 'short' FROM generate_series(1, 10000) i; INSERT INTO wide VALUES (0, repeat('x', 10000))`)
	plain := r.repo
	repo, g := archivetest.NewGate(t, r.repo, "public.a/", 0)
	r.repo = repo
	done := start(func() error {
		_, err := r.backup(backup.Options{Jobs: 1}, archive.Options{ID: "x"})
		return err
	})
	g.Wait(t)
	r.awaitContents(plain, "x") // what else would wait has been read
	s := connect(t, r.p.DSN(r.db))
	toast := r.psql(r.db, "SELECT indexrelid::regclass FROM pg_index WHERE indrelid = (SELECT reltoastrelid FROM pg_class WHERE relname = 'wide')")
	if err := s.Exec(t.Context(), "BEGIN; REINDEX INDEX "+toast); err != nil {
		t.Fatal(err)
	}
	g.Release()
	ask := r.asker(r.db)
	waiting := func() string {
		return ask("SELECT coalesce(max(pid), 0) FROM pg_locks WHERE NOT granted AND relation = '" + toast + "'::regclass")
	}
	first := ""
	testkit.Eventually(t, "the worker waits", func() bool { first = waiting(); return first != "0" })
	testkit.Eventually(t, "the main session waits", func() bool { now := waiting(); return now != "0" && now != first })
	if err := s.Exec(t.Context(), "COMMIT"); err != nil {
		t.Fatal(err)
	}
	if err := finished(t, done); err != nil {
		t.Fatal(err)
	}
	r.repo = plain
	r.alike(r.state(r.db), r.restored(restore.Options{Verify: restore.VerifyRows}))
}

// TestSandboxHasNoTablespaces restores a database that has a tablespace of its own.
func TestSandboxHasNoTablespaces(t *testing.T) {
	r := newRig(t, server(t), "")
	r.psql("postgres", "SET allow_in_place_tablespaces = on; CREATE TABLESPACE \"its own\" LOCATION ''; ALTER DATABASE "+r.db+" SET TABLESPACE \"its own\"")
	r.exec(r.db, "CREATE TABLE t AS SELECT 1 AS a")
	r.mustBackup(backup.Options{})
	r.admin("DROP DATABASE "+r.db, "DROP TABLESPACE \"its own\"")
	to := &rig{t: t, p: labtest.Postgres(t, lab.PostgresConfig{Durability: lab.Fast, Auth: lab.SCRAM}), db: r.db, repo: r.repo}
	if res, err := to.restore(restore.Options{Sandbox: true, Create: true, Verify: restore.VerifyRows}); err != nil {
		t.Fatalf("%v: %v", err, errors.Join(failures(res)...))
	}
}

func failures(res *restore.Result) (all []error) {
	for _, f := range res.Failed {
		all = append(all, f)
	}
	return all
}

// TestDroppedSchemaPublic has none at the source: a database that is made has none, either,
// and one that is there keeps its own.
func TestDroppedSchemaPublic(t *testing.T) {
	r := newRig(t, server(t), "DROP SCHEMA public; CREATE SCHEMA s; CREATE TABLE s.t AS SELECT 1 AS a")
	r.mustBackup(backup.Options{Checksums: true})
	count := "SELECT count(*) FROM pg_namespace WHERE nspname = 'public'"
	if got := r.psql(r.restored(restore.Options{Verify: restore.VerifyRows}), count); got != "0" {
		t.Error("the copy has a schema public")
	}
	target := r.db + "_other"
	r.createDB(target)
	if res, err := r.restore(restore.Options{DSN: r.p.DSN(target), Verify: restore.VerifyRows}); err != nil {
		t.Errorf("%v: %v", err, errors.Join(failures(res)...))
	}
	if got := r.psql(target, count); got != "1" {
		t.Error("the schema public of a database that was there is gone")
	}
}
