package postgres_test

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/weirdb/weir/internal/backup"
	"github.com/weirdb/weir/internal/backup/bulk"
	pg "github.com/weirdb/weir/internal/backup/bulk/postgres"
	"github.com/weirdb/weir/internal/backup/restore"
)

// TestSettingsOfTheDatabase gives a database settings that change what text means,
// each of which is in force in every session that does not set its own.
func TestSettingsOfTheDatabase(t *testing.T) {
	r := newRig(t, server(t), `
CREATE SCHEMA "b\s";
CREATE FUNCTION slash(text) RETURNS text LANGUAGE plpgsql AS $$ BEGIN RETURN E'\\' || '\n' || $1; END $$;
CREATE TABLE t (a text DEFAULT 'c:\new' CHECK (a <> '\d+'), d date DEFAULT '2026-02-01', m money DEFAULT '1234.5', i interval DEFAULT '1 day 2 hours',
                f float8, b bytea, z timestamptz, n text[]);
INSERT INTO t (f, b, z, n) VALUES (0.1::float8 + 0.2, '\x00ff5c', '2026-11-22 12:00+00', ARRAY['NULL', NULL, 'x\y']);
COMMENT ON TABLE t IS 'one \ and two \\';
CREATE VIEW v AS SELECT a ~ '^\d+\.\d$' AS digits, 'it''s \' AS quoted FROM t;
CREATE INDEX ON t ((a || '\'));
CREATE TYPE e AS ENUM ('a\b', 'c''d');
`)
	r.psql("postgres", `ALTER DATABASE `+pg.Ident(r.db)+` SET standard_conforming_strings = off;
ALTER DATABASE `+pg.Ident(r.db)+` SET DateStyle = 'SQL, DMY'; ALTER DATABASE `+pg.Ident(r.db)+` SET IntervalStyle = 'iso_8601';
ALTER DATABASE `+pg.Ident(r.db)+` SET extra_float_digits = -5; ALTER DATABASE `+pg.Ident(r.db)+` SET bytea_output = 'escape';
ALTER DATABASE `+pg.Ident(r.db)+` SET TimeZone = 'Asia/Kathmandu'; ALTER DATABASE `+pg.Ident(r.db)+` SET search_path = "b\s", public;
ALTER DATABASE `+pg.Ident(r.db)+` SET array_nulls = off; ALTER DATABASE `+pg.Ident(r.db)+` SET quote_all_identifiers = on;
ALTER DATABASE `+pg.Ident(r.db)+` SET transform_null_equals = on; ALTER DATABASE `+pg.Ident(r.db)+` SET client_encoding = 'LATIN1';
ALTER DATABASE `+pg.Ident(r.db)+` SET backslash_quote = off; ALTER DATABASE `+pg.Ident(r.db)+` SET xmloption = 'document';
ALTER DATABASE `+pg.Ident(r.db)+` SET default_transaction_read_only = on; ALTER DATABASE `+pg.Ident(r.db)+` SET statement_timeout = '5s';`)
	r.mustBackup(backup.Options{Checksums: true})
	if toc := r.text("db/" + r.db + "/schema/pre-data.sql"); !strings.Contains(toc, "standard_conforming_strings = on") {
		t.Errorf("definitions are written for other sessions than a restore's")
	}
	// What a role may be configured to, in which no database can be made.
	role := "&options=-c%20default_transaction_read_only=on%20-c%20default_transaction_isolation=serializable%20-c%20default_transaction_deferrable=on"
	r.same(r.db, r.restored(restore.Options{DSN: r.p.DSN("postgres") + role, Verify: restore.VerifyRows}))
}

// TestSearchPathOfOthers: the owner of a database may put a schema of his own before the server's.
// What stands there is called by no backup and no restore.
func TestSearchPathOfOthers(t *testing.T) {
	r := newRig(t, server(t), `
CREATE TABLE t (a text); INSERT INTO t VALUES ('x'); CREATE TABLE u (a text); INSERT INTO u VALUES ('x'); CREATE SCHEMA trap; CREATE TABLE trap.v (a text);
DO $$ BEGIN
  FOR i IN 1..6 LOOP
    EXECUTE format('CREATE FUNCTION trap.eq(%1$s, %2$s) RETURNS bool LANGUAGE plpgsql AS $f$BEGIN RAISE EXCEPTION ''caught''; END$f$;
      CREATE OPERATOR trap.= (leftarg = %1$s, rightarg = %2$s, function = trap.eq); CREATE OPERATOR trap.<> (leftarg = %1$s, rightarg = %2$s, function = trap.eq)',
      (ARRAY['oid', 'name', 'text', '"char"', 'name', 'int2'])[i], (ARRAY['oid', 'name', 'text', '"char"', 'text', 'int4'])[i]);
  END LOOP;
END $$;`)
	r.psql("postgres", "ALTER DATABASE "+pg.Ident(r.db)+" SET search_path = trap, pg_catalog, public")
	r.mustBackup(backup.Options{Filter: bulk.Filter{Tables: []string{"t", "v"}, ExcludeTableData: []string{"u"}}})
	r.mustBackup(backup.Options{Filter: bulk.Filter{ExcludeTableData: []string{"u"}}, Checksums: true})
	copied := r.restored(restore.Options{Verify: restore.VerifyRows})
	if got := r.psql(copied, "SET search_path = public; SELECT (SELECT count(*) FROM t), (SELECT count(*) FROM u)"); !strings.Contains(got, "1|0") {
		t.Errorf("the copy holds %q", got)
	}
}

// TestBackupBesideTruncation backs a database up while a program truncates a table
// and fills it again without a pause: a lock that forbids everything is always
// waited for.
func TestBackupBesideTruncation(t *testing.T) {
	r := newRig(t, server(t), `CREATE TABLE busy (a int, b text); CREATE TABLE calm AS SELECT g AS a FROM generate_series(1, 1000) g;
CREATE SEQUENCE s OWNED BY busy.a; CREATE VIEW v AS SELECT * FROM busy;`)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	rounds := make(chan int, 1)
	s := connect(t, r.p.DSN(r.db))
	begun := make(chan struct{})
	go func() {
		n := 0
		for ; ctx.Err() == nil; n++ {
			if err := s.Exec(context.WithoutCancel(ctx), "INSERT INTO public.busy SELECT g, 'x' FROM generate_series(1, 100) g; TRUNCATE public.busy"); err != nil {
				t.Errorf("truncate: %v", err)
				break
			}
			if n == 0 {
				close(begun)
			}
		}
		rounds <- n
	}()
	<-begun
	for range 3 {
		r.mustBackup(backup.Options{Jobs: 2, LockWait: time.Minute})
	}
	cancel()
	if n := <-rounds; n < 3 {
		t.Errorf("the table was truncated %d times only", n)
	}
	r.restored(restore.Options{})
}
