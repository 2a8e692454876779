package postgres_test

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/weirdb/weir/internal/backup"
	"github.com/weirdb/weir/internal/backup/archive"
	"github.com/weirdb/weir/internal/backup/restore"
	"github.com/weirdb/weir/internal/lab"
	"github.com/weirdb/weir/internal/lab/labtest"
	"github.com/weirdb/weir/internal/testkit"
)

// TestPartitionsTriggers switches triggers off and on that partitions have from
// their parents. The names are such that a partition's comes before its parent's. None
// sees the rows that are loaded.
func TestPartitionsTriggers(t *testing.T) {
	r := newRig(t, server(t), `
CREATE FUNCTION tf() RETURNS trigger LANGUAGE plpgsql AS 'begin new.b := 7; return new; end';
CREATE TABLE z (a int, b int) PARTITION BY RANGE (a);
CREATE TABLE y PARTITION OF z FOR VALUES FROM (0) TO (100) PARTITION BY RANGE (b);
CREATE TABLE a PARTITION OF y FOR VALUES FROM (0) TO (10); CREATE TABLE "a b" PARTITION OF y FOR VALUES FROM (10) TO (20);
CREATE TABLE b PARTITION OF z FOR VALUES FROM (100) TO (200);
INSERT INTO z VALUES (1, 1), (150, 1), (101, 2);
CREATE TRIGGER "a trigger" BEFORE INSERT ON z FOR EACH ROW EXECUTE FUNCTION tf(); CREATE TRIGGER t2 AFTER UPDATE ON z FOR EACH ROW EXECUTE FUNCTION tf();
ALTER TABLE a DISABLE TRIGGER "a trigger"; ALTER TABLE "a b" ENABLE REPLICA TRIGGER "a trigger"; ALTER TABLE b ENABLE ALWAYS TRIGGER t2; ALTER TABLE a DISABLE TRIGGER t2;
CREATE SEQUENCE s; SELECT nextval('s'); CREATE MATERIALIZED VIEW mv AS SELECT 1 AS one;`)
	r.mustBackup(backup.Options{})
	want := r.native(r.db)
	for range testkit.Rounds(2, 5) { // the order depends on who is quicker
		r.sameAs(want, r.restored(restore.Options{Jobs: 4}))
	}
}

// TestObjectsThatFail restores where a role is missing and a chunk is damaged: everything that needs none of them comes back, and what does not
// is listed with what is left to do.
func TestObjectsThatFail(t *testing.T) {
	r := newRig(t, server(t), `
CREATE ROLE gone; CREATE ROLE there;
CREATE TABLE orphan (a int PRIMARY KEY); INSERT INTO orphan VALUES (1); ALTER TABLE orphan OWNER TO gone; GRANT SELECT ON orphan TO there;
CREATE TABLE damaged (a int PRIMARY KEY); INSERT INTO damaged SELECT generate_series(1, 1000);
CREATE FUNCTION f(int) RETURNS int IMMUTABLE LANGUAGE sql AS 'SELECT $1';
CREATE VIEW needs_orphan AS SELECT f(a) FROM orphan; CREATE VIEW needs_view AS SELECT * FROM needs_orphan;
CREATE TABLE last (a int DEFAULT 5); CREATE SEQUENCE s; SELECT setval('s', 77); INSERT INTO last VALUES (1);
CREATE MATERIALIZED VIEW mv AS SELECT count(*) AS n FROM last; GRANT SELECT ON last TO there;`)
	dir := t.TempDir()
	r.repo = openRepo(t, dir)
	res := r.mustBackup(backup.Options{})
	file := filepath.Join(dir, res.Manifest.ID, "db", r.db, "data", "public.damaged", "0001.copy.zst")
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	text[len(text)/2] ^= 1
	if err := os.WriteFile(file, text, 0o600); err != nil {
		t.Fatal(err)
	}

	r.admin("DROP DATABASE "+r.db+" WITH (FORCE)", "DROP ROLE gone")
	t.Cleanup(func() { r.admin("DROP ROLE there") }) // before r.createDB's, which drop first
	r.createDB("copy")
	o := restore.Options{DSN: r.p.DSN("copy"), Stop: true}
	if _, err := r.restore(o); err == nil {
		t.Error("it did not stop at the first error")
	}
	r.createDB("copy")
	o.Stop = false
	back, err := r.restore(o)
	if err == nil || !back.Ended {
		t.Fatalf("ended %v, error: %v", back.Ended, err)
	}
	var damage *archive.ChunkError
	for _, f := range back.Failed {
		errors.As(f, &damage)
	}
	if damage == nil {
		t.Errorf("the damaged chunk is not among what failed: %v", back.Failed)
	}
	if got := r.psql("copy", "SELECT count(*) FROM orphan; SELECT count(*) FROM needs_view; SELECT nextval('s'); SELECT n FROM mv; SELECT has_table_privilege('there', 'last', 'select'); SELECT count(*) FROM damaged"); got != "1\n1\n78\n1\nt\n0" {
		t.Errorf("of what needs nothing that failed, there is: %q", got)
	}
	var rest strings.Builder
	if err := back.WriteRest(&rest, "/backups", "ID"); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{`ALTER TABLE "public"."orphan" OWNER TO "gone"`, "weir backup cat /backups ID db/" + r.db + "/data/public.damaged/0001.copy"} {
		if !strings.Contains(rest.String(), want) {
			t.Errorf("what is left to do does not say %q:\n%s", want, rest.String())
		}
	}
}

// hostile is what an unprivileged user could leave for anyone who restores a backup:
// functions that run programs if a superuser calls them, by every road that restores
// take.
const hostile = `
CREATE ROLE mallory LOGIN; CREATE ROLE boss SUPERUSER; CREATE SCHEMA m AUTHORIZATION mallory; GRANT CREATE ON SCHEMA public TO mallory;
SET ROLE mallory;
CREATE FUNCTION m.evil() RETURNS void LANGUAGE plpgsql AS $f$
BEGIN
  BEGIN EXECUTE 'RESET ROLE'; EXCEPTION WHEN OTHERS THEN NULL; END;
  BEGIN EXECUTE 'RESET SESSION AUTHORIZATION'; EXCEPTION WHEN OTHERS THEN NULL; END;
  BEGIN EXECUTE $q$COPY (SELECT 1) TO PROGRAM 'touch @FILE@'$q$; EXCEPTION WHEN OTHERS THEN NULL; END;
END $f$;
CREATE FUNCTION m.run(int) RETURNS int IMMUTABLE LANGUAGE plpgsql AS $f$ BEGIN PERFORM m.evil(); RETURN $1; END $f$;
CREATE DOMAIN m.checked AS int CHECK (m.run(VALUE) > 0);
CREATE TABLE m.t (a int CHECK (m.run(a) > 0), g int GENERATED ALWAYS AS (m.run(a)) STORED, d m.checked);
CREATE INDEX ON m.t (m.run(a)); ALTER TABLE m.t ADD CONSTRAINT later CHECK (m.run(a) < 1000) NOT VALID; ALTER TABLE m.t VALIDATE CONSTRAINT later;
CREATE FUNCTION m.fires() RETURNS event_trigger LANGUAGE plpgsql AS $f$ BEGIN PERFORM m.evil(); END $f$;
CREATE TABLE wide (a int PRIMARY KEY, b int); CREATE MATERIALIZED VIEW grouped AS SELECT a, b FROM wide GROUP BY a;
CREATE MATERIALIZED VIEW m.mv AS SELECT m.run(a) AS a FROM m.t; CREATE UNIQUE INDEX ON m.mv (m.run(a));
CREATE TABLE m.p (a int) PARTITION BY RANGE ((m.run(a))); CREATE TABLE m.p1 PARTITION OF m.p FOR VALUES FROM (1) TO (100);
CREATE FUNCTION m.own() RETURNS int LANGUAGE sql AS 'SELECT 7'; REVOKE EXECUTE ON FUNCTION m.own() FROM PUBLIC;
INSERT INTO m.t (a, d) VALUES (1, 1), (2, 2); INSERT INTO m.p VALUES (1); REFRESH MATERIALIZED VIEW m.mv;
RESET ROLE;
CREATE TABLE trusting (a int PRIMARY KEY); ALTER TABLE trusting OWNER TO boss; INSERT INTO trusting VALUES (1);
CREATE TABLE postgres_own AS SELECT 1 AS a; CREATE MATERIALIZED VIEW postgres_view AS SELECT a FROM postgres_own;
CREATE MATERIALIZED VIEW boss_view AS SELECT m.own() AS a; ALTER MATERIALIZED VIEW boss_view OWNER TO boss; GRANT SELECT ON boss_view TO mallory;
ALTER TABLE trusting ENABLE ROW LEVEL SECURITY; ALTER TABLE trusting FORCE ROW LEVEL SECURITY; CREATE POLICY p ON trusting TO mallory USING (m.run(a) > 0);
SET ROLE boss; CREATE FOREIGN DATA WRAPPER bare; CREATE TYPE span AS RANGE (subtype = float8); CREATE EXTENSION tablefunc; CREATE EVENT TRIGGER starts ON ddl_command_start EXECUTE FUNCTION m.fires(); CREATE EVENT TRIGGER ends ON ddl_command_end EXECUTE FUNCTION m.fires();
ALTER EVENT TRIGGER ends ENABLE ALWAYS; COMMENT ON EVENT TRIGGER starts IS 'starts'; ALTER EVENT TRIGGER starts DISABLE;
CREATE SUBSCRIPTION one CONNECTION 'host=127.0.0.1 port=1' PUBLICATION p WITH (connect = false); CREATE SUBSCRIPTION two CONNECTION 'host=127.0.0.1 port=1' PUBLICATION p WITH (connect = false); RESET ROLE;
GRANT SELECT ON trusting TO mallory WITH GRANT OPTION; SELECT lo_from_bytea(42, '\x00'); ALTER LARGE OBJECT 42 OWNER TO mallory;
`

// TestSandbox restores what a hostile user left into a server where the backup is
// only tried: nothing of it runs as a superuser, owners stay, and all comes back.
func TestSandbox(t *testing.T) {
	source := ownServer(t)
	proof := filepath.Join(os.TempDir(), fmt.Sprintf("weir-proof-%d", os.Getpid())) // where the server may write
	r := newRig(t, source, "")
	unsubscribe := func(database string) { // else it cannot be dropped
		r.psql("postgres", "DELETE FROM pg_subscription WHERE subdbid = (SELECT oid FROM pg_database WHERE datname = '"+database+"')")
	}
	t.Cleanup(func() { unsubscribe(r.db) })
	// The source's own superuser must not call the functions, either.
	script := strings.ReplaceAll(hostile, "@FILE@", proof)
	r.psql(r.db, script)
	if err := os.Remove(proof); err != nil && !errors.Is(err, os.ErrNotExist) {
		t.Fatal(err)
	}
	// Without a sandbox the functions do what they are here for.
	r.mustBackup(backup.Options{})
	_, err := r.restore(restore.Options{DSN: source.DSN("postgres"), Create: true, Target: "trusted", NoOwner: true})
	t.Logf("without a sandbox: %v", err)
	if err := os.Remove(proof); err != nil {
		t.Fatalf("the functions are harmless: %v", err)
	}
	unsubscribe("trusted")
	r.psql("postgres", "DROP DATABASE trusted")
	for _, cluster := range []bool{false, true} {
		r.repo = openRepo(t, t.TempDir())
		r.mustBackup(backup.Options{Cluster: cluster, Checksums: true})
		p := labtest.Postgres(t, lab.PostgresConfig{Durability: lab.Fast, Auth: lab.SCRAM})
		to := &rig{t: t, p: p, db: r.db, repo: r.repo}
		o := restore.Options{Sandbox: true, Verify: restore.VerifyRows, Create: !cluster, NoAnalyze: true}
		res, err := to.restore(o)
		if err != nil {
			t.Fatalf("cluster %v: %v (%v)", cluster, err, res.Failed)
		}
		if !slices.ContainsFunc(res.Warnings, func(w string) bool {
			return strings.Contains(w, `"boss_view" was filled with the rights of all roles`)
		}) {
			t.Errorf("cluster %v: warnings %q", cluster, res.Warnings)
		}
		if _, err := os.Stat(proof); err == nil {
			t.Fatalf("cluster %v: a function of the backup ran a program", cluster)
		}
	}
}

// TestMakesTheDatabaseOfTheDSN makes the database that the DSN names.
func TestMakesTheDatabaseOfTheDSN(t *testing.T) {
	r := newRig(t, server(t), "CREATE TABLE t AS SELECT 1 AS a")
	r.backedUp()
	r.dropAfter("named_by_dsn")
	o := restore.Options{DSN: r.p.DSN("named_by_dsn"), Create: true}
	if _, err := r.restore(o); err != nil {
		t.Fatal(err)
	}
	r.alike(r.state(r.db), "named_by_dsn")
	if _, err := r.restore(o); err == nil || !strings.Contains(err.Error(), "exists already") {
		t.Errorf("into one that exists: %v", err)
	}
	o.Clean = true
	if _, err := r.restore(o); err != nil {
		t.Errorf("in place of one that exists: %v", err)
	}
	if got := r.psql("named_by_dsn", "SELECT a FROM t"); got != "1" {
		t.Errorf("it holds %s", got)
	}
}
