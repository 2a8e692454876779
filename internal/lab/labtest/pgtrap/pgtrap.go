// Package pgtrap lets tests find out which of their queries depend on the search path of
// PostgreSQL. It is not in labtest because it needs pgx, which most tests with servers do not.
package pgtrap

import (
	"context"
	"testing"

	"github.com/jackc/pgx/v5"
)

// SearchPath does what the owner of a database may do: it puts a schema before pg_catalog
// in the search path of the database that dsn names. The schema has operators, functions and
// types with the names of the server's own, some with better matching argument types, and each
// records that it was called. caught returns the last one called, or "". Existing connections
// keep their path.
func SearchPath(tb testing.TB, dsn string) (caught func() string) {
	tb.Helper()
	ctx := context.Background() // used by the cleanup, too
	cfg, err := pgx.ParseConfig(dsn)
	if err != nil {
		tb.Fatal(err)
	}
	cfg.RuntimeParams["search_path"] = "pg_catalog"
	conn, err := pgx.ConnectConfig(ctx, cfg)
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() { _ = conn.Close(ctx) })
	if _, err := conn.Exec(ctx, trapSQL); err != nil {
		tb.Fatalf("make the schema of traps: %v", err)
	}
	return func() (what string) {
		tb.Helper()
		err := conn.QueryRow(ctx, "SELECT coalesce((SELECT t.what FROM trap.hits h JOIN trap.traps t ON t.n = h.last_value WHERE h.is_called), '')").Scan(&what)
		if err != nil {
			tb.Fatalf("ask what was caught: %v", err)
		}
		return what
	}
}

// trapSQL makes the schema. A trap records its call by setting a sequence, which no rollback
// undoes.
const trapSQL = `
CREATE SCHEMA trap;
CREATE TABLE trap.traps (n int PRIMARY KEY, what text);
CREATE SEQUENCE trap.hits;
SET check_function_bodies = off;
DO $do$
DECLARE r record; n int := 0; body text;
BEGIN
 FOR r IN
  SELECT 'f' AS kind, p.proname::text AS name, pg_get_function_identity_arguments(p.oid) AS args, (CASE WHEN p.proretset THEN 'SETOF ' ELSE '' END) || format_type(p.prorettype, NULL) AS result
  FROM pg_proc p WHERE p.pronamespace = 'pg_catalog'::regnamespace AND p.prokind = 'f' AND p.proargmodes IS NULL AND p.provariadic = 0
  AND p.proname ~ '^(pg_|current_|set_|to_|now|clock_|hash|octet_|length|array_|quote_|string_|has_|date_|lower|encode|decode|convert_|gen_|row_number|txid|age|generate_series|format|concat|substr|strpos|split|regexp_|timezone|obj_|col_|abs|mod|ceil)'
  AND NOT EXISTS (SELECT FROM unnest(p.proargtypes || p.prorettype) a JOIN pg_type t ON t.oid = a WHERE t.typtype = 'p')
  UNION ALL SELECT 'f', 'unnest', t || '[]', 'SETOF ' || t FROM unnest(ARRAY['text', 'bigint', 'int', 'uuid', 'oid']) t
  UNION ALL SELECT 'a', p.proname, pg_get_function_identity_arguments(p.oid), format_type(p.prorettype, NULL) FROM pg_proc p
  WHERE p.pronamespace = 'pg_catalog'::regnamespace AND p.prokind = 'a' AND p.proname IN ('count', 'sum', 'min', 'max', 'string_agg', 'bool_and', 'bool_or')
  AND NOT EXISTS (SELECT FROM unnest(p.proargtypes || p.prorettype) a JOIN pg_type t ON t.oid = a WHERE t.typtype = 'p')
  UNION ALL SELECT 'o', o.oprname, format_type(o.oprleft, NULL) || ', ' || format_type(o.oprright, NULL), format_type(o.oprresult, NULL) FROM pg_operator o
  WHERE o.oprkind = 'b' AND NOT EXISTS (SELECT FROM pg_type t WHERE t.oid IN (o.oprleft, o.oprright, o.oprresult) AND (t.typtype = 'p' OR t.typcategory IN ('G', 'R', 'I', 'V')))
  UNION ALL SELECT 'o', op, format('%s, %s', a, b), CASE op WHEN '||' THEN 'text' ELSE 'bool' END
  FROM unnest(ARRAY['=', '<>', '<', '>', '<=', '>=', '||', '~~', '!~']) op, unnest(ARRAY['oid', 'name', '"char"', 'smallint', 'integer', 'bigint', 'text', 'xid', 'regclass']::regtype[]) a,
   unnest(ARRAY['oid', 'name', '"char"', 'smallint', 'integer', 'bigint', 'text', 'xid', 'regclass']::regtype[]) b
  WHERE NOT EXISTS (SELECT FROM pg_operator o WHERE o.oprname = op AND o.oprleft = a AND o.oprright = b)
  UNION ALL SELECT 't', t, '', '' FROM unnest(ARRAY['text', 'oid', 'name', 'uuid', 'bytea', 'regclass', 'regtype', 'regrole', 'regproc', 'regprocedure', 'timestamptz',
   'int2', 'int4', 'int8', 'float8', 'bool', 'jsonb', 'pg_lsn', 'xid', 'inet', 'date']) t
 LOOP
  n := n + 1;
  INSERT INTO trap.traps VALUES (n, CASE r.kind WHEN 'o' THEN 'operator ' WHEN 't' THEN 'type ' ELSE 'function ' END || r.name || ' (' || r.args || ')');
  body := format('BEGIN PERFORM pg_catalog.setval(''trap.hits'', %s); RAISE EXCEPTION ''caught''; END', n);
  CASE r.kind
  WHEN 'f' THEN EXECUTE format('CREATE FUNCTION trap.%I(%s) RETURNS %s LANGUAGE plpgsql AS %L', r.name, r.args, r.result, body);
  WHEN 'a' THEN
   EXECUTE format('CREATE FUNCTION trap.trap%s(%s) RETURNS %s LANGUAGE plpgsql AS %L', n, concat_ws(', ', r.result, nullif(r.args, '')), r.result, body);
   EXECUTE format('CREATE AGGREGATE trap.%I(%s) (SFUNC = trap.trap%s, STYPE = %s)', r.name, coalesce(nullif(r.args, ''), '*'), n, r.result);
  WHEN 'o' THEN
   EXECUTE format('CREATE FUNCTION trap.trap%s(%s) RETURNS %s LANGUAGE plpgsql AS %L', n, r.args, r.result, body);
   EXECUTE format('CREATE OPERATOR trap.%s (LEFTARG = %s, RIGHTARG = %s, FUNCTION = trap.trap%s)', r.name, split_part(r.args, ', ', 1), split_part(r.args, ', ', 2), n);
  WHEN 't' THEN
   EXECUTE format('CREATE FUNCTION trap.trap%s() RETURNS bool LANGUAGE plpgsql AS %L', n, body);
   EXECUTE format('CREATE DOMAIN trap.%1$I AS pg_catalog.%1$I CHECK (trap.trap%2$s())', r.name, n);
  END CASE;
 END LOOP;
 EXECUTE format('ALTER DATABASE %I SET search_path = trap, pg_catalog, public', current_database());
END $do$`
