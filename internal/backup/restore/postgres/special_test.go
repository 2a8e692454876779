package postgres_test

import (
	"context"
	"errors"
	"strings"
	"testing"

	"github.com/weirdb/weir/internal/backup"
	"github.com/weirdb/weir/internal/backup/archive"
	"github.com/weirdb/weir/internal/backup/archive/archivetest"
	"github.com/weirdb/weir/internal/backup/bulk"
	pg "github.com/weirdb/weir/internal/backup/bulk/postgres"
	"github.com/weirdb/weir/internal/backup/restore"
	load "github.com/weirdb/weir/internal/backup/restore/postgres"
	"github.com/weirdb/weir/internal/testkit"
)

// TestEncodings backs up databases whose encoding is not UTF-8, with names,
// definitions and rows that are not ASCII.
func TestEncodings(t *testing.T) {
	for _, c := range []struct{ encoding, script string }{
		{"LATIN1", `CREATE TABLE "Größe" (x text DEFAULT 'süß', y text); COMMENT ON TABLE "Größe" IS 'ñandú';
INSERT INTO "Größe" (y) SELECT 'é' || g FROM generate_series(1, 100) g; SELECT lo_from_bytea(4711, '\xe9ff');
ALTER DATABASE SELF SET weir.greeting = 'olé'; COMMENT ON DATABASE SELF IS 'größer';`},
		{"WIN1251", `CREATE TABLE слово (x text); INSERT INTO слово VALUES ('да'), ('нет'); CREATE VIEW v AS SELECT 'ага' AS x;`},
		{"SQL_ASCII", `CREATE TABLE raw (x text); INSERT INTO raw VALUES (E'\xff\xfe not UTF-8'), ('plain');`},
	} {
		t.Run(c.encoding, func(t *testing.T) {
			if c.encoding == "WIN1251" {
				testkit.Long(t, "restores another encoding that the server converts")
			}
			r := newRig(t, server(t), "")
			r.psql("postgres", "DROP DATABASE "+pg.Ident(r.db)+"; CREATE DATABASE "+pg.Ident(r.db)+
				" TEMPLATE template0 ENCODING '"+c.encoding+"' LC_COLLATE 'C' LC_CTYPE 'C'")
			r.psql(r.db, "SET client_encoding = 'UTF8';\n"+strings.ReplaceAll(c.script, "SELF", pg.Ident(r.db)))
			r.mustBackup(backup.Options{Checksums: true})
			copied := *r
			if c.encoding == "LATIN1" {
				copied.db += "_größe" // encoded as UTF-8, like the database postgres
			}
			target := copied.restored(restore.Options{Verify: restore.VerifyRows})
			r.same(r.db, target)
			const own = `SELECT array_to_string(setconfig, ' '), shobj_description(d.oid, 'pg_database') FROM pg_database d LEFT JOIN pg_db_role_setting ON setdatabase = d.oid
WHERE datname = current_database()`
			if source, copied := r.psql(r.db, own), r.psql(target, own); source != copied {
				t.Errorf("settings and comment of the database itself: %q, of the copy: %q", source, copied)
			}
		})
	}
}

// TestNamesThatAreNotUTF8 are refused: the manifest could not hold them.
func TestNamesThatAreNotUTF8(t *testing.T) {
	for name, script := range map[string]string{
		"table":   "DO $$ BEGIN EXECUTE E'CREATE TABLE \"\\xff\" (x int)'; END $$",
		"comment": "CREATE TABLE t (x int); DO $$ BEGIN EXECUTE E'COMMENT ON TABLE t IS ''\\xff'''; END $$",
	} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t, server(t), "")
			r.psql("postgres", "DROP DATABASE "+pg.Ident(r.db)+"; CREATE DATABASE "+pg.Ident(r.db)+
				" TEMPLATE template0 ENCODING 'SQL_ASCII' LC_COLLATE 'C' LC_CTYPE 'C'")
			r.psql(r.db, script)
			if _, err := r.backup(backup.Options{}, archive.Options{}); err == nil || !strings.Contains(err.Error(), "not UTF-8") {
				t.Errorf("error: %v", err)
			}
		})
	}
}

// TestPartitionsByHashOfEnum restores partitions whose rows belong elsewhere in the
// copy: the hash of an enum's value is that of its number, which is another one.
func TestPartitionsByHashOfEnum(t *testing.T) {
	r := newRig(t, server(t), `CREATE TYPE mood AS ENUM ('sad', 'ok', 'happy', 'e', 'f', 'g', 'h', 'i');
CREATE TABLE top (id int, m mood NOT NULL) PARTITION BY LIST (id);
CREATE TABLE one PARTITION OF top FOR VALUES IN (1) PARTITION BY HASH (m);
CREATE TABLE one_0 PARTITION OF one FOR VALUES WITH (MODULUS 3, REMAINDER 0);
CREATE TABLE one_1 PARTITION OF one FOR VALUES WITH (MODULUS 3, REMAINDER 1);
CREATE TABLE one_2 (m mood NOT NULL, id int);
ALTER TABLE one ATTACH PARTITION one_2 FOR VALUES WITH (MODULUS 3, REMAINDER 2);
CREATE TABLE two PARTITION OF top FOR VALUES IN (2);
CREATE INDEX ON top (m);
INSERT INTO top SELECT 1 + g % 2, (enum_range(NULL::mood))[1 + (g / 2) % 8] FROM generate_series(0, 999) g;`)
	r.mustBackup(backup.Options{Checksums: true})
	target := r.restored(restore.Options{Verify: restore.VerifyRows})
	const all = "SELECT id, m, count(*) FROM top GROUP BY 1, 2 ORDER BY 1, 2"
	if a, b := r.psql(r.db, all), r.psql(target, all); a != b {
		t.Errorf("source:\n%s\ncopy:\n%s", a, b)
	}
	// Each row is where the copy looks for it.
	const found = "SET enable_seqscan = off; SELECT count(*) FROM unnest(enum_range(NULL::mood)) v JOIN LATERAL (SELECT count(*) FROM top WHERE id = 1 AND m = v) n ON n.count > 0"
	if got := r.psql(target, found); got != "8" {
		t.Errorf("%s of 8 values are found", got)
	}
	// Without its root a partition keeps the rows that it had. Which of them has any is
	// left to the hash.
	part := r.psql(r.db, "SELECT tableoid::regclass FROM one GROUP BY 1 ORDER BY count(*) DESC LIMIT 1")
	alone := r.db + "_part"
	r.createDB(alone)
	r.psql(alone, "CREATE TYPE mood AS ENUM ('sad', 'ok', 'happy', 'e', 'f', 'g', 'h', 'i')")
	opts := restore.Options{DSN: r.p.DSN(alone), Filter: bulk.Filter{Tables: []string{part}}, Verify: restore.VerifyRows}
	if _, err := r.restore(opts); err != nil {
		t.Fatal(err)
	}
	count := "SELECT count(*) FROM " + part
	if a, b := r.psql(r.db, count), r.psql(alone, count); a != b || a == "0" {
		t.Errorf("%s rows, and %s in the partition alone", a, b)
	}
}

// TestInterruptedClusterResumes interrupts a restore of several databases in the
// last one, and at its very end. What is done stays done.
func TestInterruptedClusterResumes(t *testing.T) {
	r := &rig{t: t, p: server(t), repo: openRepo(t, t.TempDir())}
	r.admin("CREATE ROLE clerk PASSWORD 'old'")
	defer r.admin("DROP ROLE clerk")
	for _, db := range []string{"aa", "cc"} {
		r.createDB(db)
		r.psql(db, "CREATE TABLE t AS SELECT g AS id FROM generate_series(1, 100) g; CREATE FUNCTION e() RETURNS event_trigger LANGUAGE plpgsql AS 'BEGIN END'; "+
			"CREATE EVENT TRIGGER watch ON sql_drop EXECUTE FUNCTION e()")
	}
	opts := backup.Options{DSN: r.p.DSN("postgres"), Cluster: true, Databases: []string{"aa", "cc"}}
	r.mustBackup(opts)
	want := r.state("aa") // and that of cc
	r.admin("DROP DATABASE aa", "DROP DATABASE cc")

	repo, g := archivetest.NewGate(t, r.repo, "db/cc/data", 0)
	ctx, stop := context.WithCancelCause(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- restoreFrom(ctx, repo, restore.Options{DSN: r.p.DSN("postgres")}) }()
	g.Wait(t)
	stop(errors.New("interrupted"))
	if err := <-ended; err == nil {
		t.Fatal("an interrupted restore succeeded")
	}
	r.admin("ALTER ROLE clerk PASSWORD 'new'")
	const password = "SELECT rolpassword FROM pg_authid WHERE rolname = 'clerk'"
	secret := r.psql("postgres", password)
	if err := restoreFrom(t.Context(), r.repo, restore.Options{DSN: r.p.DSN("postgres"), Resume: true}); err != nil {
		t.Fatal(err)
	}
	if secret != r.psql("postgres", password) {
		t.Error("a restore that is resumed sets a password back")
	}
	for _, db := range []string{"aa", "cc"} {
		r.alike(want, db)
	}
	for resume, text := range map[bool]string{true: "nothing to continue", false: "the database exists already"} {
		err := restoreFrom(t.Context(), r.repo, restore.Options{DSN: r.p.DSN("postgres"), Resume: resume})
		if err == nil || !strings.Contains(err.Error(), text) {
			t.Errorf("a second time, resume %v: %v", resume, err)
		}
	}
	if secret != r.psql("postgres", password) {
		t.Error("a restore that is refused sets a password back")
	}
}

// TestResumeEndsTheSessionsOfAKilledRun: the server has not noticed yet that their client is
// gone, and goes on with what they do.
func TestResumeEndsTheSessionsOfAKilledRun(t *testing.T) {
	r := newRig(t, server(t), three)
	r.backedUp()
	into := r.db + "_copy"
	r.createDB(into)
	repo, g := archivetest.NewGate(t, r.repo, "data/", 0)
	ctx, stop := context.WithCancelCause(t.Context())
	done := start(func() error { return restoreFrom(ctx, repo, restore.Options{DSN: r.p.DSN(into)}) })
	g.Wait(t)
	stop(errors.New("interrupted"))
	if err := finished(t, done); err == nil {
		t.Fatal("an interrupted restore succeeded")
	}
	killed := connect(t, r.p.DSN(into))
	if err := killed.Exec(t.Context(), load.HoldLock+"; BEGIN; CREATE INDEX b_x_idx ON public.b (x); INSERT INTO weir_restore.done VALUES ('it will not end')"); err != nil {
		t.Fatal(err)
	}
	another := restoreFrom(t.Context(), r.repo, restore.Options{DSN: r.p.DSN(into), Resume: true, SchemaOnly: true})
	if another == nil || !strings.Contains(another.Error(), "another part") {
		t.Errorf("another part is resumed: %v", another)
	}
	if err := killed.Exec(t.Context(), "SELECT 1"); err != nil {
		t.Errorf("a restore that is refused has ended the session: %v", err)
	}
	done = start(func() error {
		return restoreFrom(t.Context(), r.repo, restore.Options{DSN: r.p.DSN(into), Resume: true, Verify: restore.VerifyRows})
	})
	if err := finished(t, done); err != nil {
		t.Fatal(err)
	}
	r.alike(r.state(r.db), into)
}

// TestKilledWhileItEnds resumes a restore of two databases that has dropped the journal
// of the first one only.
func TestKilledWhileItEnds(t *testing.T) {
	r := &rig{t: t, p: server(t), repo: openRepo(t, t.TempDir())}
	for _, db := range []string{"aa", "bb"} {
		r.createDB(db)
		r.psql(db, "CREATE TABLE t AS SELECT 1 AS one; CREATE FUNCTION e() RETURNS event_trigger LANGUAGE plpgsql AS 'BEGIN END'; "+
			"CREATE EVENT TRIGGER watch ON sql_drop EXECUTE FUNCTION e()")
	}
	r.mustBackup(backup.Options{DSN: r.p.DSN("postgres"), Cluster: true, Databases: []string{"aa", "bb"}})
	reader, err := archive.Open(t.Context(), r.repo, archive.Latest, archive.ReadOptions{})
	if err != nil {
		t.Fatal(err)
	}
	id := reader.Manifest().ID
	if err := reader.Close(); err != nil {
		t.Fatal(err)
	}
	want := r.state("aa") // and that of bb
	r.admin("DROP DATABASE aa", "DROP DATABASE bb")
	opts := restore.Options{DSN: r.p.DSN("postgres"), NoGlobals: true}
	if err := restoreFrom(t.Context(), r.repo, opts); err != nil {
		t.Fatal(err)
	}
	// The last transaction of the second database is undone.
	r.psql("bb", "DROP EVENT TRIGGER watch; CREATE SCHEMA weir_restore; CREATE TABLE weir_restore.done (step text PRIMARY KEY); "+
		"INSERT INTO weir_restore.done VALUES ("+pg.Literal("backup "+id+" database bb")+"), ('restored')")
	opts.Resume = true
	if err := restoreFrom(t.Context(), r.repo, opts); err != nil {
		t.Fatal(err)
	}
	for _, db := range []string{"aa", "bb"} {
		r.alike(want, db)
	}
}

func restoreFrom(ctx context.Context, repo *archive.Repository, opts restore.Options) error {
	reader, err := archive.Open(ctx, repo, archive.Latest, archive.ReadOptions{})
	if err != nil {
		return err
	}
	_, err = load.Run(ctx, opts, reader)
	return errors.Join(err, reader.Close())
}

// TestSubscriptionStaysOff restores a subscription: it must not fetch anything, for
// the source's own one does.
func TestSubscriptionStaysOff(t *testing.T) {
	r := newRig(t, server(t), "")
	off := "ALTER SUBSCRIPTION feed DISABLE; ALTER SUBSCRIPTION feed SET (slot_name = NONE); DROP SUBSCRIPTION feed"
	r.psql(r.db, "CREATE SUBSCRIPTION feed CONNECTION 'host=127.0.0.1 port=1 dbname=nowhere' PUBLICATION p WITH (connect = false, slot_name = 'feed_slot')")
	defer r.psql(r.db, off)
	r.mustBackup(backup.Options{})
	target := r.restored(restore.Options{})
	defer r.psql(target, off)
	const q = "SELECT subenabled, subslotname, subconninfo FROM pg_subscription WHERE subdbid = (SELECT oid FROM pg_database WHERE datname = current_database())"
	if got := r.psql(target, q); got != "f|feed_slot|host=127.0.0.1 port=1 dbname=nowhere" {
		t.Errorf("restored: %s", got)
	}
	r.same(r.db, target)
}

// TestRowsAloneKeepForeignKeys loads rows as somebody who may not put triggers off:
// tables that are referred to come first.
func TestRowsAloneKeepForeignKeys(t *testing.T) {
	r := newRig(t, server(t), `CREATE TABLE z (id int PRIMARY KEY); INSERT INTO z SELECT generate_series(1, 50);
CREATE TABLE m (id int PRIMARY KEY, z int REFERENCES z); INSERT INTO m SELECT g, g FROM generate_series(1, 50) g;
CREATE TABLE a (id int REFERENCES m, z int REFERENCES z, doc text); INSERT INTO a SELECT 1 + g % 50, 1 + g % 50, repeat('x', 500) FROM generate_series(1, 5000) g;`)
	r.mustBackup(backup.Options{})
	target := r.db + "_rows"
	r.createDB(target)
	r.psql("postgres", "DROP ROLE IF EXISTS loader; CREATE ROLE loader LOGIN; ALTER DATABASE "+pg.Ident(target)+" OWNER TO loader")
	dsn := strings.Replace(r.p.DSN(target), "postgres@", "loader@", 1)
	if _, err := r.restore(restore.Options{DSN: dsn, SchemaOnly: true, NoOwner: true}); err != nil {
		t.Fatal(err)
	}
	res, err := r.restore(restore.Options{DSN: dsn, DataOnly: true, Verify: restore.VerifyRows, Jobs: 3})
	if err != nil {
		t.Fatal(err)
	}
	if len(res.Warnings) != 1 || !strings.Contains(res.Warnings[0], "are active") {
		t.Errorf("warnings: %q", res.Warnings)
	}
	if got := r.psql(target, "SELECT count(*) FROM a JOIN m USING (id)"); got != "5000" {
		t.Errorf("%s rows", got)
	}

	// In a circle nothing helps but the server's own patience.
	r.psql(target, "TRUNCATE a, m, z; ALTER TABLE z ADD m int; ALTER TABLE z ADD FOREIGN KEY (m) REFERENCES m")
	res, err = r.restore(restore.Options{DSN: dsn, DataOnly: true})
	if err != nil {
		t.Fatal(err)
	}
	if got := strings.Join(res.Warnings, "\n"); !strings.Contains(got, "refer to each other") {
		t.Errorf("warnings: %s", got)
	}
}
