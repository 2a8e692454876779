package postgres

import (
	"bytes"
	"strings"
	"time"

	"github.com/weirdb/weir/internal/proxy/postgres/rowtext"
	"github.com/weirdb/weir/internal/proxy/session"
	"github.com/weirdb/weir/internal/proxy/sight"
	"github.com/weirdb/weir/internal/wire/pgwire"
)

// This file keeps what weir knows of the tables that groups of INSERTs write to, and makes
// each group check that it is still true.

// A tableState says whether a table is fit for multi-row INSERTs.
type tableState uint8

const (
	tableUnknown tableState = iota // weir is asking
	tablePlain
	tableOther // has triggers, rules or row security, or is not an ordinary table
)

// tableFacts is what weir knows of one table under one search path.
type tableFacts struct {
	state tableState
	at    time.Duration
	guard guard

	columns      rowtext.Columns // nil if constants for them cannot become parameters
	columnsGuard guard           // of these columns
}

// A guard is a statement that fails unless the table is as fit as it was, and its Bind
// message for that table.
type guard struct {
	st   *stmt
	bind []byte
}

type tableKey struct {
	set  *session.Set
	name string
}

// tableCache has what is known of tables. A table that counts as fit is
// checked in every group by the guard; an unfit one is looked at again after tableKeep.
type tableCache struct {
	m map[tableKey]*tableFacts
}

// tableKeep is how long a table counts as unfit before it is looked at again.
const tableKeep = 30 * time.Second

func (t *tableCache) forget() { clear(t.m) }

func (t *tableCache) drop(set *session.Set, name string) { delete(t.m, tableKey{set, name}) }

func (t *tableCache) spoil(set *session.Set, name string) {
	if f := t.m[tableKey{set, name}]; f != nil {
		f.state = tableOther
	}
}

// look returns what is known of a table, and asks the server if nothing
// is.
func (t *tableCache) look(p *pool, set *session.Set, name string) tableState {
	f := t.m[tableKey{set, name}]
	if f != nil && (f.state != tableOther || p.l.Now-f.at < tableKeep) {
		return f.state
	}
	if len(t.m) >= sight.MaxShapes {
		clear(t.m)
	}
	if t.m == nil {
		t.m = make(map[tableKey]*tableFacts)
	}
	name = strings.Clone(name)
	f = &tableFacts{at: p.l.Now}
	t.m[tableKey{set, name}] = f
	p.askIn(set, tableSQL(name), tableColumns, func(u *unit) { f.learn(p, name, u) })
	return tableUnknown
}

// tableDoubt is the least time between two questions about a table whose groups fail.
const tableDoubt = time.Second

// lookAgain asks the server whether a table is still as it was. If not, what was known is
// forgotten.
func (t *tableCache) lookAgain(p *pool, set *session.Set, name string, f *tableFacts) {
	if f.state != tablePlain || p.l.Now-f.at < tableDoubt {
		return
	}
	f.at = p.l.Now
	p.askIn(set, tableSQL(name), tableColumns, func(u *unit) {
		var now tableFacts
		if now.learn(p, name, u); now.state == tablePlain && bytes.Equal(now.columnsGuard.bind, f.columnsGuard.bind) {
			return
		}
		f.state = tableUnknown // for the lanes that use it
		if t.m[tableKey{set, name}] == f {
			t.drop(set, name)
		}
	})
}

// tableSQL asks whether a table is fit: an ordinary table, not a partition,
// without row security, rules, user triggers, and without defaults or
// checks, also of domains, that call user-defined functions, which could read the table. A
// foreign key to the table itself is checked when the statement ends: rows of one statement may
// refer to later rows, which they may not do one by one.
func tableSQL(name string) string {
	return own(`SELECT c.oid, c.xmin, `+schemasSQL(name)+`, `+committedReads+` AND c.relkind = 'r' AND NOT c.relispartition AND NOT c.relrowsecurity AND NOT c.relhasrules
 AND NOT EXISTS (SELECT FROM pg_catalog.pg_trigger t WHERE t.tgrelid = c.oid AND (NOT t.tgisinternal OR t.tgconstrrelid = c.oid))
 AND NOT EXISTS (SELECT FROM pg_catalog.pg_attrdef d JOIN pg_catalog.pg_depend p ON p.classid = 'pg_catalog.pg_attrdef'::pg_catalog.regclass
  AND p.objid = d.oid AND p.refclassid = 'pg_catalog.pg_proc'::pg_catalog.regclass WHERE d.adrelid = c.oid)
 AND NOT EXISTS (SELECT FROM pg_catalog.pg_constraint k JOIN pg_catalog.pg_depend p ON p.classid = 'pg_catalog.pg_constraint'::pg_catalog.regclass
  AND p.objid = k.oid AND p.refclassid = 'pg_catalog.pg_proc'::pg_catalog.regclass WHERE k.conrelid = c.oid)
 AND `+quietDomains+`,
 `+rowtext.PlainColumnsSQL+`, `+defaultsSQL+`, `+simpleTypesSQL+`
 FROM pg_catalog.pg_class c WHERE c.oid = `) + `pg_catalog.to_regclass(` + quoteLiteral(name) + `)`
}

// tableColumns is how many columns tableSQL has.
const tableColumns = 8

// defaultsSQL asks for the versions of the defaults of the table c. A new or changed default
// leaves pg_class unchanged.
const defaultsSQL = `(SELECT pg_catalog.concat(pg_catalog.string_agg(pg_catalog.concat(d.oid, ':', d.xmin), ',' ORDER BY d.oid))
 FROM pg_catalog.pg_attrdef d WHERE d.adrelid = c.oid)`

// quietDomains is true if no column of the table c has a type that may be or contain a domain
// whose check or default calls a user-defined function; also if there are no such functions.
const quietDomains = `NOT (EXISTS (SELECT ` + usersTypes + ` AND ` + holdsDomain + `)
 AND EXISTS (SELECT FROM pg_catalog.pg_depend p WHERE p.refclassid = 'pg_catalog.pg_proc'::pg_catalog.regclass
  AND (p.classid = 'pg_catalog.pg_constraint'::pg_catalog.regclass AND EXISTS (SELECT FROM pg_catalog.pg_constraint k WHERE k.oid = p.objid AND k.contypid <> 0)
   OR p.classid = 'pg_catalog.pg_type'::pg_catalog.regclass AND EXISTS (SELECT FROM pg_catalog.pg_type y WHERE y.oid = p.objid AND y.typtype = 'd'))))`

// usersTypes are the columns of the table c with user-defined types, and these types.
const usersTypes = `FROM pg_catalog.pg_attribute a JOIN pg_catalog.pg_type y ON y.oid = a.atttypid
  WHERE a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped AND y.oid >= 16384`

// holdsDomain is true for a user-defined type y that may be or contain a domain.
const holdsDomain = `y.typtype <> 'e' AND (y.typtype <> 'b' OR y.typelem >= 16384)`

// simpleTypesSQL asks for the user-defined types in the table c; NULL if one may be or
// contain a domain.
const simpleTypesSQL = `(SELECT CASE WHEN pg_catalog.count(*) FILTER (WHERE ` + holdsDomain + `) = 0
  THEN pg_catalog.concat('{', pg_catalog.string_agg(y.oid::pg_catalog.text, ',' ORDER BY a.attnum), '}') END ` + usersTypes + `)`

// schemasSQL asks for the version of the table's schema, and for otherSchemas if the name
// has no schema, or 0.
//
// If a schema is renamed and gets its old name back a moment later, a statement in
// between may find another table by the same name: the statement has no lock that prevents
// that. But the renaming leaves a new version of the schema. If the name has no schema, the
// schema that was first for a moment is another one, which has such a table as well.
func schemasSQL(name string) string {
	others := otherSchemas
	if qualified(name) {
		others = "0"
	}
	return `(SELECT n.xmin FROM pg_catalog.pg_namespace n WHERE n.oid = c.relnamespace), ` + others
}

// otherSchemas lists the versions of all schemas that have a table of the name of c, except
// those of other sessions' temporary tables, which come and go; NULL if the schema of c is the
// first of the search_path, so that none can precede it.
const otherSchemas = `(SELECT CASE WHEN pg_catalog.strpos(pg_catalog.concat(pg_catalog.current_setting('search_path'), ','), pg_catalog.concat(pg_catalog.quote_ident(f.nspname), ',')) <> 1
  THEN (SELECT pg_catalog.hashtextextended(pg_catalog.string_agg(pg_catalog.concat(n.oid, ':', n.xmin), ',' ORDER BY n.oid), 0)
   FROM pg_catalog.pg_class o JOIN pg_catalog.pg_namespace n ON n.oid = o.relnamespace WHERE o.relname = c.relname AND NOT pg_catalog.pg_is_other_temp_schema(n.oid)) END
  FROM pg_catalog.pg_namespace f WHERE f.oid = c.relnamespace)`

// sameSchemas is true if schemasSQL would give the same answer for c as before, which is in the
// parameters.
const sameSchemas = `EXISTS (SELECT FROM pg_catalog.pg_namespace n WHERE n.oid = c.relnamespace AND n.xmin = $4::pg_catalog.xid)
 AND ($5::pg_catalog.int8 = 0 OR ARRAY[$5::pg_catalog.int8] = ARRAY[` + otherSchemas + `])`

// qualified reports whether the name of a table includes a schema.
func qualified(name string) bool {
	quoted := false
	for i := range len(name) {
		switch name[i] {
		case '"':
			quoted = !quoted
		case '.':
			if !quoted {
				return true
			}
		}
	}
	return false
}

// committedReads is true in a transaction in which each statement sees what was committed
// before it. In any other transaction a guard sees the catalogue as it was at the beginning,
// and misses a trigger that was created while the first statement waited for the table.
const committedReads = `pg_catalog.current_setting('transaction_isolation') = ANY (ARRAY['read committed', 'read uncommitted'])`

// guardSQL fails, by a division by zero, unless the name refers to the same
// table in the same version, and has since the INSERT, and the table got no trigger, no foreign
// key to itself and no other default. Each guard adds a condition about domains: pg_class
// is unchanged when a column gets a domain as its type.
const guardSQL = `SELECT 1 / pg_catalog.count(*) FROM pg_catalog.pg_class c
 WHERE ` + committedReads + ` AND ` + sameSchemas + ` AND c.oid = pg_catalog.to_regclass($1) AND c.oid = $2::pg_catalog.oid AND c.xmin = $3::pg_catalog.xid
 AND NOT EXISTS (SELECT FROM pg_catalog.pg_trigger t WHERE t.tgrelid = c.oid AND (NOT t.tgisinternal OR t.tgconstrrelid = c.oid))
 AND $6 = ` + defaultsSQL

// The guards. quietDomains costs the server almost as much as everything else, so
// it is only used for tables that may have domains; others are guarded by their types.
var (
	typesGuardSQL = own(guardSQL + `
 AND NOT EXISTS (SELECT FROM pg_catalog.pg_attribute a WHERE a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped
  AND a.atttypid >= 16384 AND a.atttypid <> ALL ($7::pg_catalog.oid[]))`)
	domainsGuardSQL = own(guardSQL + `
 AND ` + quietDomains)

	// The INSERT before has locked the table: the columns found are those that it used.
	columnsGuardSQL = own(guardSQL + `
 AND $7 = ` + rowtext.ColumnsSQL)
	domainsColumnsGuardSQL = columnsGuardSQL + own(`
 AND `+quietDomains)
)

// guards are the statements of a pool that guard tables which may have domains, or may not.
type guards struct{ types, domains, columns, domainsColumns *stmt }

func (g *guards) init(p *pool) {
	g.types, g.domains = p.stmts.internal(typesGuardSQL), p.stmts.internal(domainsGuardSQL)
	g.columns, g.domainsColumns = p.stmts.internal(columnsGuardSQL), p.stmts.internal(domainsColumnsGuardSQL)
}

func (f *tableFacts) learn(p *pool, name string, u *unit) {
	f.at = p.l.Now
	if u.err != nil || len(u.rows) != 1 || string(u.rows[0][4]) != "t" {
		f.state = tableOther
		return
	}
	row := u.rows[0]
	f.state, f.columns = tablePlain, rowtext.ReadColumns(string(row[5]))
	bound := func(st *stmt, more ...[]byte) guard {
		values := append([][]byte{[]byte(name), row[0], row[1], row[2], row[3], row[6]}, more...)
		return guard{st, pgwire.AppendBind(nil, "", st.srvName, &pgwire.BindArgs{Values: values})}
	}
	if types := row[7]; types != nil {
		f.guard, f.columnsGuard = bound(p.guards.types, types), bound(p.guards.columns, row[5])
	} else {
		f.guard, f.columnsGuard = bound(p.guards.domains), bound(p.guards.domainsColumns, row[5])
	}
}
