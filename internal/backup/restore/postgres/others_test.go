package postgres_test

import (
	"strings"
	"testing"

	"github.com/weirdb/weir/internal/backup"
	"github.com/weirdb/weir/internal/backup/bulk"
	"github.com/weirdb/weir/internal/backup/restore"
)

// TestOthersStayAsTheyAre, which are called as what is restored: a sequence keeps its position,
// and a database its settings.
func TestOthersStayAsTheyAre(t *testing.T) {
	r := newRig(t, server(t), "CREATE TABLE orders (id serial, n int); INSERT INTO orders (n) VALUES (1)")
	r.admin("ALTER DATABASE " + r.db + " SET work_mem = '5MB'")
	r.mustBackup(backup.Options{})
	target := r.db + "_copy"
	r.createDB(target)
	r.psql(target, "CREATE TABLE orders (id serial); SELECT setval('orders_id_seq', 500)")
	if _, err := r.restore(restore.Options{DSN: r.p.DSN(target), Filter: bulk.Filter{Tables: []string{"orders"}}}); err == nil {
		t.Error("a table is restored over another one")
	}
	if got := r.psql(target, "SELECT nextval('orders_id_seq')"); got != "501" {
		t.Errorf("the next number of another's sequence is %s", got)
	}
	if _, err := r.restore(restore.Options{DSN: r.p.DSN("postgres"), Create: true, Target: target, Resume: true}); err == nil || !strings.Contains(err.Error(), "nothing to continue") {
		t.Errorf("another database is resumed: %v", err)
	}
	if got := r.psql(target, "SELECT count(*) FROM pg_db_role_setting s JOIN pg_database d ON d.oid = s.setdatabase WHERE datname = '"+target+"'"); got != "0" {
		t.Errorf("another database has %s settings", got)
	}
}

// TestResumedRowsSetOffNoTriggers: a run in which rows fail makes the triggers of their table.
func TestResumedRowsSetOffNoTriggers(t *testing.T) {
	r := newRig(t, server(t), `CREATE FUNCTION f(int) RETURNS int IMMUTABLE LANGUAGE plpgsql AS $$BEGIN
  IF pg_catalog.current_setting('weir.broken', true) = 'on' THEN RAISE 'broken'; END IF; RETURN $1; END$$;
CREATE FUNCTION tf() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN new.b := 7; RETURN new; END';
CREATE TABLE strict (a int CHECK (f(a) > 0), b int); INSERT INTO strict VALUES (1, 1); CREATE TRIGGER t BEFORE INSERT ON strict FOR EACH ROW EXECUTE FUNCTION tf();
CREATE TABLE root (a int CHECK (f(a) > 0), b int) PARTITION BY RANGE (a); CREATE TABLE part PARTITION OF root FOR VALUES FROM (0) TO (10); INSERT INTO root VALUES (2, 2);
CREATE TRIGGER t BEFORE INSERT ON root FOR EACH ROW EXECUTE FUNCTION tf(); CREATE MATERIALIZED VIEW v AS SELECT 1 AS one;
CREATE SCHEMA weir_restore; CREATE TABLE weir_restore.done (step text PRIMARY KEY); INSERT INTO weir_restore.done VALUES ('of the source')`)
	r.mustBackup(backup.Options{Checksums: true})
	target := r.db + "_copy"
	r.createDB(target)
	r.admin("ALTER DATABASE " + target + " SET weir.broken = 'on'")
	o := restore.Options{DSN: r.p.DSN(target), Jobs: 1, Verify: restore.VerifyRows}
	r.interrupted(o, func(stop func()) { stop() })
	r.admin("ALTER DATABASE " + target + " RESET weir.broken")
	o.Resume = true
	part := o
	part.Filter.Tables = []string{"strict"}
	if _, err := r.restore(part); err == nil || !strings.Contains(err.Error(), "another part") {
		t.Errorf("a part of it is resumed: %v", err)
	}
	if _, err := r.restore(o); err == nil || !strings.Contains(err.Error(), "has triggers already") {
		t.Errorf("resumed beside triggers: %v", err)
	}
	r.psql(target, "DROP TRIGGER t ON strict; DROP TRIGGER t ON root")
	r.psql(target, "INSERT INTO strict VALUES (5, 5)")
	if _, err := r.restore(o); err == nil || !strings.Contains(err.Error(), "has rows that the restore has not loaded") {
		t.Errorf("resumed beside rows: %v", err)
	}
	if got := r.psql(target, "DELETE FROM strict RETURNING a"); got != "5" {
		t.Errorf("of somebody's rows there is %q", got)
	}
	if _, err := r.restore(o); err != nil {
		t.Fatal(err)
	}
	if got := r.psql(target, "SELECT a, b FROM strict UNION ALL SELECT a, b FROM root; SELECT to_regnamespace('weir_restore'); SELECT count(*) FROM pg_trigger WHERE tgname = 't'"); got != "1|1\n2|2\n\n3" {
		t.Errorf("there are %q", got)
	}
}
