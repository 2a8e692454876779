package postgres_test

import (
	"slices"
	"strings"
	"testing"

	"github.com/weirdb/weir/internal/backup"
	"github.com/weirdb/weir/internal/backup/restore"
)

// TestFailedObjectsAreResumed restores where objects fail: of that restore, --resume does what
// is left, again and again, until nothing is.
func TestFailedObjectsAreResumed(t *testing.T) {
	r := newRig(t, server(t), `
CREATE ROLE weir_gone; CREATE SEQUENCE numbers; SELECT setval('numbers', 7);
CREATE FUNCTION f(int) RETURNS int IMMUTABLE LANGUAGE plpgsql AS $$BEGIN
  IF pg_catalog.current_setting('weir.broken', true) = 'on' THEN RAISE 'broken'; END IF; RETURN $1; END$$;
CREATE FUNCTION tf() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN new.b := 7; RETURN new; END';
CREATE TABLE orphan (a int PRIMARY KEY); INSERT INTO orphan VALUES (1); ALTER TABLE orphan OWNER TO weir_gone; GRANT SELECT ON orphan TO PUBLIC;
CREATE TABLE strict (a int PRIMARY KEY CHECK (f(a) > 0), b int); INSERT INTO strict VALUES (1, 1);
CREATE TRIGGER t BEFORE INSERT ON strict FOR EACH ROW EXECUTE FUNCTION tf();
CREATE TABLE refers (a int REFERENCES strict); INSERT INTO refers VALUES (1);
CREATE TABLE z (a int CHECK (f(a) > 0), b int) PARTITION BY RANGE (a); CREATE TABLE y PARTITION OF z FOR VALUES FROM (0) TO (10); INSERT INTO z VALUES (1, 1);
CREATE TRIGGER t BEFORE INSERT ON z FOR EACH ROW EXECUTE FUNCTION tf();
CREATE TABLE indexed (a int); INSERT INTO indexed VALUES (1); CREATE INDEX ON indexed (f(a));
CREATE MATERIALIZED VIEW early AS SELECT f(a) AS a FROM orphan; CREATE MATERIALIZED VIEW later AS SELECT a FROM early;
CREATE FUNCTION e() RETURNS event_trigger LANGUAGE plpgsql AS 'BEGIN CREATE TABLE IF NOT EXISTS seen (a int); END';
CREATE EVENT TRIGGER e ON ddl_command_end WHEN TAG IN ('CREATE INDEX', 'DROP SCHEMA') EXECUTE FUNCTION e();
SELECT lo_from_bytea(42, '\x00'); ALTER LARGE OBJECT 42 OWNER TO weir_gone`)
	r.mustBackup(backup.Options{Checksums: true})
	want := r.native(r.db)
	r.admin("DROP DATABASE "+r.db, "DROP ROLE weir_gone")
	target := r.db + "_copy"
	r.createDB(target)
	r.admin("ALTER DATABASE " + target + " SET weir.broken = 'on'")
	o := restore.Options{DSN: r.p.DSN(target), Jobs: 2}
	first := ""
	for range 2 {
		res, err := r.restore(o)
		if err == nil || !res.Ended || res.Books != "DROP SCHEMA weir_restore CASCADE" {
			t.Fatalf("resume %v: ended %v, books %q, %v", o.Resume, res.Ended, res.Books, err)
		}
		var failed []string
		for _, f := range res.Failed {
			failed = append(failed, strings.SplitN(f.Object, " (", 2)[0])
		}
		text := strings.Join(slices.Sorted(slices.Values(failed)), "\n")
		if first == "" {
			first = text
			r.psql(target, "SELECT nextval('numbers')") // by somebody who goes on with what there is
		}
		if text != first || len(failed) != 10 {
			t.Errorf("resume %v: %d objects failed:\n%s", o.Resume, len(failed), text)
		}
		o.Resume = true
	}
	if _, err := r.restore(restore.Options{DSN: r.p.DSN(target)}); err == nil || !strings.Contains(err.Error(), "an unfinished restore is in the database (schema weir_restore)") {
		t.Errorf("without --resume: %v", err)
	}
	r.admin("ALTER DATABASE "+target+" RESET weir.broken", "CREATE ROLE weir_gone")
	t.Cleanup(func() { r.admin("DROP DATABASE "+target, "DROP ROLE weir_gone") })
	o.Verify = restore.VerifyRows
	if res, err := r.restore(o); err != nil || res.Books != "" || res.Resumed == 0 {
		t.Fatalf("resumed: %v (%v), %d steps done before", err, res.Failed, res.Resumed)
	}
	if got := r.psql(target, "SELECT nextval('numbers')"); got != "9" {
		t.Errorf("the next number is %s: the sequence was set again", got)
	}
	r.psql(target, "SELECT setval('numbers', 7)")
	r.sameAs(want, target)
}
