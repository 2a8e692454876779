package catalogue

import (
	"fmt"
	"strconv"
	"strings"
)

// quietly makes a query of weir's own independent of the settings of its
// session. All of it is one transaction, which restores them at its end. A
// serializable deferrable transaction would wait for those of other clients, and
// these for the reading. Without sequential scans the plan would count as so expensive that
// the server would compile it, which takes minutes.
const quietly = `SET LOCAL transaction_isolation = 'read committed'; SET LOCAL statement_timeout = 0; ` +
	`SET LOCAL client_encoding = 'UTF8'; SET LOCAL jit = off; SET LOCAL search_path = pg_catalog, pg_temp; `

// builtinSQL lists the built-in functions that SQL can call. Their
// OIDs are the same in every database of a server.
const builtinSQL = `SELECT oid, proname FROM pg_catalog.pg_proc
 WHERE oid < 16384 AND pronamespace = 'pg_catalog'::pg_catalog.regnamespace AND prokind IN ('f', 'a', 'w', 'p')
 AND prorettype <> ALL (ARRAY['trigger', 'event_trigger', 'internal', 'language_handler', 'fdw_handler', 'table_am_handler',
  'index_am_handler', 'tsm_handler']::pg_catalog.regtype[])
 AND 'internal'::pg_catalog.regtype <> ALL (proargtypes::pg_catalog.oid[])`

// stampCatalogues are the catalogues from which the index is read.
var stampCatalogues = strings.Fields(`pg_proc pg_trigger pg_rewrite pg_attrdef pg_constraint pg_policy pg_cast
	pg_operator pg_type pg_event_trigger pg_inherits pg_index pg_foreign_table pg_opclass pg_amproc pg_sequence`)

// stampSQL is a text that changes with every change of these catalogues: when the server started
// and the number of the database, since another server may have the address by now, and for each
// catalogue the number of its rows, and the sum of the transactions that wrote them. A
// transaction has a higher number than all those that wrote the rows that it removes, so
// the sum over the same number of rows is higher, too. Rows written before the server
// began to count (age 2^31-1) only add to the number of rows.
var stampSQL = func() string {
	var b strings.Builder
	b.WriteString("SELECT pg_catalog.concat_ws(' ', (extract(epoch FROM pg_catalog.pg_postmaster_start_time()) * 1000000)::pg_catalog.int8,\n (SELECT oid FROM pg_catalog.pg_database WHERE datname = pg_catalog.current_database())")
	for _, c := range stampCatalogues {
		b.WriteString(",\n (SELECT pg_catalog.concat(pg_catalog.count(*), ':', pg_catalog.count(*) FILTER (WHERE a < 2147483647)" +
			" * pg_catalog.age('3'::pg_catalog.xid) - coalesce(pg_catalog.sum(a) FILTER (WHERE a < 2147483647), 0))" +
			" FROM (SELECT pg_catalog.age(xmin) AS a FROM pg_catalog." + c + ") x)")
	}
	b.WriteString(")")
	return b.String()
}()

// StampSQL asks for the stamp of a database: one row, of one column.
var StampSQL = quietly + stampSQL

// appNameRead matches the texts of expressions that may read application_name: of all
// settings that current_setting may be asked for, this is the only one that is not the client's
// own on a shared backend. It is the name as a constant, whose bytes are shown as
// numbers, in any case, or a current_setting of a computed name.
var appNameRead = func() string {
	var b strings.Builder
	for i, c := range []byte("application_name") {
		if i > 0 {
			b.WriteByte(' ')
		}
		if c == '_' {
			b.WriteString(strconv.Itoa(int(c)))
		} else {
			fmt.Fprintf(&b, "(?:%d|%d)", c, c-'a'+'A')
		}
	}
	return b.String() + `|:funcid (?:2077|3294) [^{}]*:args [(][{](?!CONST )`
}()

// scanSQL returns every user-defined function, and every expression in
// the catalogue that calls one of the built-in functions in %s, with their OIDs; 0
// stands for appNameRead. For pg_settings it returns how many other relations are built on it.
// The texts of expressions take no locks and show each
// function by its OID, as funcid, opfuncid, aggfnoid or winfnoid.
var scanSQL = `
UNION ALL SELECT 'func', p.oid::text, p.proname, n.nspname, l.lanname, p.provolatile::text || p.prokind::text,
 coalesce(e.extname, '') || pg_catalog.chr(10) || CASE WHEN l.lanname IN ('sql', 'plpgsql') THEN p.prosrc ELSE '' END
 FROM pg_catalog.pg_proc p JOIN pg_catalog.pg_language l ON l.oid = p.prolang JOIN pg_catalog.pg_namespace n ON n.oid = p.pronamespace
 LEFT JOIN pg_catalog.pg_depend d ON d.classid = 'pg_catalog.pg_proc'::pg_catalog.regclass AND d.objid = p.oid AND d.deptype = 'e'
 LEFT JOIN pg_catalog.pg_extension e ON e.oid = d.refobjid WHERE p.oid >= 16384
UNION ALL SELECT 'config', p.oid::text, pg_catalog.array_to_string(p.proconfig, pg_catalog.chr(10)), '', '', '', ''
 FROM pg_catalog.pg_proc p WHERE p.oid >= 16384 AND p.proconfig::text LIKE '%%.%%'
UNION ALL SELECT 'foreign', c.oid::text, c.relname, '', '', '', '' FROM pg_catalog.pg_class c
 WHERE c.relkind = 'f' OR c.relam >= 16384 AND c.relkind <> 'i'
UNION ALL SELECT 'identity', c.oid::text, c.relname, '', '', '', '' FROM pg_catalog.pg_sequence s
 JOIN pg_catalog.pg_depend d ON d.classid = 'pg_catalog.pg_class'::pg_catalog.regclass AND d.objid = s.seqrelid
  AND d.refclassid = d.classid AND d.deptype = 'i' JOIN pg_catalog.pg_class c ON c.oid = d.refobjid
UNION ALL SELECT 'settings', c.oid::text, c.relname, (SELECT pg_catalog.count(*) FROM pg_catalog.pg_depend d
  LEFT JOIN pg_catalog.pg_rewrite w ON d.classid = 'pg_catalog.pg_rewrite'::pg_catalog.regclass AND w.oid = d.objid
  WHERE d.refclassid = 'pg_catalog.pg_class'::pg_catalog.regclass AND d.refobjid = c.oid
  AND d.classid <> 'pg_catalog.pg_type'::pg_catalog.regclass AND w.ev_class IS DISTINCT FROM c.oid)::text, '', '', '' FROM pg_catalog.pg_class c
 WHERE c.relname = 'pg_settings' AND c.relnamespace = 'pg_catalog'::pg_catalog.regnamespace
UNION ALL SELECT 'tree', x.kind, x.oid::text,
 CASE x.kind WHEN 'f' THEN (SELECT proname FROM pg_catalog.pg_proc WHERE oid = x.oid)
  WHEN 't' THEN (SELECT typname FROM pg_catalog.pg_type WHERE oid = x.oid)
  ELSE (SELECT relname FROM pg_catalog.pg_class WHERE oid = x.oid) END,
 y.hits, '', ''
FROM (
 SELECT CASE a.attgenerated WHEN 'v' THEN 'r' ELSE 'w' END AS kind, d.adrelid AS oid, d.adbin::text AS tree
  FROM pg_catalog.pg_attrdef d JOIN pg_catalog.pg_attribute a ON a.attrelid = d.adrelid AND a.attnum = d.adnum
 UNION ALL SELECT CASE WHEN contypid <> 0 THEN 't' ELSE 'r' END, CASE WHEN contypid <> 0 THEN contypid ELSE conrelid END, conbin::text
  FROM pg_catalog.pg_constraint WHERE conbin IS NOT NULL
 UNION ALL SELECT CASE ev_type WHEN '1' THEN 'r' ELSE 'w' END, ev_class, coalesce(ev_action::text, '') || coalesce(ev_qual::text, '')
  FROM pg_catalog.pg_rewrite WHERE ev_class >= 16384
 UNION ALL SELECT 'r', polrelid, coalesce(polqual::text, '') || coalesce(polwithcheck::text, '') FROM pg_catalog.pg_policy
 UNION ALL SELECT 'r', indrelid, coalesce(indexprs::text, '') || coalesce(indpred::text, '')
  FROM pg_catalog.pg_index WHERE indexprs IS NOT NULL OR indpred IS NOT NULL
 UNION ALL SELECT 'w', tgrelid, tgqual::text FROM pg_catalog.pg_trigger WHERE tgqual IS NOT NULL
 UNION ALL SELECT 'r', partrelid, partexprs::text FROM pg_catalog.pg_partitioned_table WHERE partexprs IS NOT NULL
 UNION ALL SELECT 'f', p.oid, coalesce(proargdefaults::text, '') || coalesce(pg_catalog.to_jsonb(p) ->> 'prosqlbody', '')
  FROM pg_catalog.pg_proc p WHERE p.oid >= 16384 AND (proargdefaults IS NOT NULL OR prolang = 14 AND prosrc = '')
 UNION ALL SELECT 't', oid, typdefaultbin::text FROM pg_catalog.pg_type WHERE typdefaultbin IS NOT NULL AND oid >= 16384
) x, LATERAL (SELECT pg_catalog.string_agg(DISTINCT h, ',') AS hits FROM (
  SELECT m[1] AS h FROM pg_catalog.regexp_matches(x.tree, '(?:func|fno)id ([0-9]+)', 'g') m WHERE m[1] = ANY ('{%s}'::text[])
  UNION ALL SELECT '0' WHERE x.tree ~ '` + appNameRead + `') h) y
WHERE y.hits IS NOT NULL`

// edgeSQL returns what reaches the objects of the kinds %s and OIDs %s in one
// step. User-defined functions, types and operators in expressions are found by
// pg_depend, which has all but the server's own.
const edgeSQL = `WITH n AS (
 SELECT k, o, CASE k WHEN 'f' THEN 'pg_catalog.pg_proc'::pg_catalog.regclass WHEN 't' THEN 'pg_catalog.pg_type'::pg_catalog.regclass
  WHEN 'o' THEN 'pg_catalog.pg_operator'::pg_catalog.regclass WHEN 'r' THEN 'pg_catalog.pg_class'::pg_catalog.regclass
  WHEN 'w' THEN 'pg_catalog.pg_class'::pg_catalog.regclass END AS c
 FROM ROWS FROM (pg_catalog.unnest('{%s}'::text[]), pg_catalog.unnest('{%s}'::pg_catalog.oid[])) AS n (k, o)),
d AS (SELECT n.k, n.o, n.k IN ('r', 'w') AS rel, d.classid, d.objid
 FROM n JOIN pg_catalog.pg_depend d ON d.refclassid = n.c AND d.refobjid = n.o AND d.deptype <> 'e')
SELECT 'edge', e.k, e.o::text, e.dk, e.d::text,
 coalesce(CASE e.dk WHEN 'f' THEN (SELECT proname FROM pg_catalog.pg_proc WHERE oid = e.d)
  WHEN 't' THEN (SELECT typname FROM pg_catalog.pg_type WHERE oid = e.d)
  WHEN 'r' THEN (SELECT relname FROM pg_catalog.pg_class WHERE oid = e.d)
  WHEN 'w' THEN (SELECT relname FROM pg_catalog.pg_class WHERE oid = e.d) END, '')
FROM (
 SELECT d.k, d.o, CASE a.attgenerated WHEN 'v' THEN 'r' ELSE 'w' END AS dk, x.adrelid AS d
  FROM d JOIN pg_catalog.pg_attrdef x ON d.classid = 'pg_catalog.pg_attrdef'::pg_catalog.regclass AND x.oid = d.objid AND NOT d.rel
  JOIN pg_catalog.pg_attribute a ON a.attrelid = x.adrelid AND a.attnum = x.adnum
 UNION ALL SELECT d.k, d.o, CASE WHEN contypid <> 0 THEN 't' ELSE 'r' END, CASE WHEN contypid <> 0 THEN contypid ELSE conrelid END
  FROM d JOIN pg_catalog.pg_constraint x ON d.classid = 'pg_catalog.pg_constraint'::pg_catalog.regclass AND x.oid = d.objid AND NOT d.rel
 UNION ALL SELECT d.k, d.o, 'w', tgrelid
  FROM d JOIN pg_catalog.pg_trigger x ON d.classid = 'pg_catalog.pg_trigger'::pg_catalog.regclass AND x.oid = d.objid AND NOT d.rel
 UNION ALL SELECT d.k, d.o, 'r', coalesce(x.indrelid, d.objid)
  FROM d LEFT JOIN pg_catalog.pg_index x ON x.indexrelid = d.objid
  WHERE d.classid = 'pg_catalog.pg_class'::pg_catalog.regclass AND NOT d.rel
 UNION ALL SELECT d.k, d.o, 't', x.reltype
  FROM d JOIN pg_catalog.pg_class x ON d.classid = 'pg_catalog.pg_class'::pg_catalog.regclass AND x.oid = d.objid AND x.reltype <> 0 AND d.k = 't'
 UNION ALL SELECT d.k, d.o, CASE WHEN d.k = 'w' THEN 'w' ELSE 'r' END, polrelid
  FROM d JOIN pg_catalog.pg_policy x ON d.classid = 'pg_catalog.pg_policy'::pg_catalog.regclass AND x.oid = d.objid AND d.k <> 'w'
 UNION ALL SELECT d.k, d.o, CASE WHEN d.k = 'w' OR ev_type <> '1' THEN 'w' ELSE 'r' END, ev_class
  FROM d JOIN pg_catalog.pg_rewrite x ON d.classid = 'pg_catalog.pg_rewrite'::pg_catalog.regclass AND x.oid = d.objid
 UNION ALL SELECT d.k, d.o, 'f', d.objid FROM d WHERE d.classid = 'pg_catalog.pg_proc'::pg_catalog.regclass
 UNION ALL SELECT d.k, d.o, 't', d.objid FROM d WHERE d.classid = 'pg_catalog.pg_type'::pg_catalog.regclass AND NOT d.rel
 UNION ALL SELECT d.k, d.o, 'o', d.objid FROM d WHERE d.classid = 'pg_catalog.pg_operator'::pg_catalog.regclass
 UNION ALL SELECT n.k, n.o, CASE WHEN t >= 16384 THEN 't' ELSE 'x' END, CASE WHEN t >= 16384 THEN t ELSE 0 END
  FROM n JOIN pg_catalog.pg_operator x ON n.k = 'o' AND x.oid = n.o,
  LATERAL pg_catalog.unnest(CASE WHEN oprleft >= 16384 OR oprright >= 16384 THEN ARRAY[oprleft, oprright] ELSE ARRAY[0::pg_catalog.oid] END) t
  WHERE t >= 16384 OR t = 0 AND oprleft < 16384 AND oprright < 16384
 UNION ALL SELECT d.k, d.o, CASE WHEN t >= 16384 THEN 't' ELSE 'x' END, CASE WHEN t >= 16384 THEN t ELSE 0 END
  FROM d JOIN pg_catalog.pg_cast x ON d.classid = 'pg_catalog.pg_cast'::pg_catalog.regclass AND x.oid = d.objid,
  LATERAL pg_catalog.unnest(CASE WHEN castsource >= 16384 OR casttarget >= 16384 THEN ARRAY[castsource, casttarget] ELSE ARRAY[0::pg_catalog.oid] END) t
  WHERE t >= 16384 OR t = 0
 UNION ALL SELECT d.k, d.o, CASE WHEN opcintype >= 16384 THEN 't' ELSE 'x' END, CASE WHEN opcintype >= 16384 THEN opcintype ELSE 0 END
  FROM d JOIN pg_catalog.pg_opclass x ON d.classid = 'pg_catalog.pg_opclass'::pg_catalog.regclass AND x.oid = d.objid
 UNION ALL SELECT d.k, d.o, CASE WHEN amproclefttype >= 16384 THEN 't' ELSE 'x' END, CASE WHEN amproclefttype >= 16384 THEN amproclefttype ELSE 0 END
  FROM d JOIN pg_catalog.pg_amproc x ON d.classid = 'pg_catalog.pg_amproc'::pg_catalog.regclass AND x.oid = d.objid
 UNION ALL SELECT d.k, d.o, 'w', stxrelid
  FROM d JOIN pg_catalog.pg_statistic_ext x ON d.classid = 'pg_catalog.pg_statistic_ext'::pg_catalog.regclass AND x.oid = d.objid AND NOT d.rel
 UNION ALL SELECT d.k, d.o, 'e', d.objid FROM d WHERE d.classid = 'pg_catalog.pg_event_trigger'::pg_catalog.regclass
 UNION ALL SELECT d.k, d.o, 'x', 0 FROM d WHERE NOT d.rel AND d.classid = ANY (ARRAY['pg_catalog.pg_ts_template', 'pg_catalog.pg_ts_parser',
  'pg_catalog.pg_conversion', 'pg_catalog.pg_am', 'pg_catalog.pg_transform']::pg_catalog.regclass[])
 UNION ALL SELECT n.k, n.o, n.k, inhparent FROM n JOIN pg_catalog.pg_inherits ON inhrelid = n.o AND n.k IN ('r', 'w')
 UNION ALL SELECT n.k, n.o, 'w', confrelid FROM n JOIN pg_catalog.pg_constraint ON conrelid = n.o AND contype = 'f' AND n.k = 'w'
  AND (confdeltype IN ('c', 'n', 'd') OR confupdtype IN ('c', 'n', 'd'))
) e`
