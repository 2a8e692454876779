package postgres

import (
	"bytes"
	"strings"
	"time"

	"github.com/weirdb/weir/internal/proxy/session"
	"github.com/weirdb/weir/internal/proxy/sight"
	"github.com/weirdb/weir/internal/wire/pgwire"
)

// This file is what weir knows of the tables that groups of INSERTs write to, and how a
// group makes sure that it still holds.

// A tableState says whether a table is fit for multi-row INSERTs.
type tableState uint8

const (
	tableUnknown tableState = iota // being looked at
	tablePlain
	tableOther // has triggers, rules, row security, or is no ordinary table
)

// tableFacts is what weir knows of one table under one search path.
type tableFacts struct {
	state tableState
	at    time.Duration
	guard guard

	columns      []column // in order; nil if constants for them are not to be parameters
	columnsGuard guard    // of these columns
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

// tableCache holds what is known of tables. Facts that speak for grouping are
// checked in every group by the guard; facts against it grow old.
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

// look returns what is known of a table, and has the server asked if nothing
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

// tableDoubt is how often at most a table is looked at again whose groups fail.
const tableDoubt = time.Second

// lookAgain has the server asked whether what is known of a table still holds. If not, it
// is forgotten.
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
		f.state = tableUnknown // for the lanes that know it
		if t.m[tableKey{set, name}] == f {
			t.drop(set, name)
		}
	})
}

// tableSQL asks whether a table is fit: an ordinary table, not a partition,
// without row security, rules, triggers of users, and without defaults or
// checks, also of domains, that call functions of users, which could read the table. A foreign key to
// the table itself is looked at when the statement ends: rows of one statement may
// refer to rows that come later, which one by one they may not.
func tableSQL(name string) string {
	return own(`SELECT c.oid, c.xmin, `+schemasSQL(name)+`, `+committedReads+` AND c.relkind = 'r' AND NOT c.relispartition AND NOT c.relrowsecurity AND NOT c.relhasrules
 AND NOT EXISTS (SELECT FROM pg_catalog.pg_trigger t WHERE t.tgrelid = c.oid AND (NOT t.tgisinternal OR t.tgconstrrelid = c.oid))
 AND NOT EXISTS (SELECT FROM pg_catalog.pg_attrdef d JOIN pg_catalog.pg_depend p ON p.classid = 'pg_catalog.pg_attrdef'::pg_catalog.regclass
  AND p.objid = d.oid AND p.refclassid = 'pg_catalog.pg_proc'::pg_catalog.regclass WHERE d.adrelid = c.oid)
 AND NOT EXISTS (SELECT FROM pg_catalog.pg_constraint k JOIN pg_catalog.pg_depend p ON p.classid = 'pg_catalog.pg_constraint'::pg_catalog.regclass
  AND p.objid = k.oid AND p.refclassid = 'pg_catalog.pg_proc'::pg_catalog.regclass WHERE k.conrelid = c.oid)
 AND `+quietDomains+`,
 `+plainColumnsSQL+`, `+defaultsSQL+`, `+simpleTypesSQL+`
 FROM pg_catalog.pg_class c WHERE c.oid = `) + `pg_catalog.to_regclass(` + quoteLiteral(name) + `)`
}

// tableColumns is how many columns tableSQL has.
const tableColumns = 8

// defaultsSQL asks for the versions of the defaults of the table c. One that is set, or another
// one, leaves pg_class as it is.
const defaultsSQL = `(SELECT pg_catalog.concat(pg_catalog.string_agg(pg_catalog.concat(d.oid, ':', d.xmin), ',' ORDER BY d.oid))
 FROM pg_catalog.pg_attrdef d WHERE d.adrelid = c.oid)`

// quietDomains holds if no column of the table c may be of a domain, or hold one, whose check or
// default calls a function of a user. It says so where no domain has such, too.
const quietDomains = `NOT (EXISTS (SELECT ` + usersTypes + ` AND ` + holdsDomain + `)
 AND EXISTS (SELECT FROM pg_catalog.pg_depend p WHERE p.refclassid = 'pg_catalog.pg_proc'::pg_catalog.regclass
  AND (p.classid = 'pg_catalog.pg_constraint'::pg_catalog.regclass AND EXISTS (SELECT FROM pg_catalog.pg_constraint k WHERE k.oid = p.objid AND k.contypid <> 0)
   OR p.classid = 'pg_catalog.pg_type'::pg_catalog.regclass AND EXISTS (SELECT FROM pg_catalog.pg_type y WHERE y.oid = p.objid AND y.typtype = 'd'))))`

// usersTypes are the columns of the table c that are of types of users, and these types.
const usersTypes = `FROM pg_catalog.pg_attribute a JOIN pg_catalog.pg_type y ON y.oid = a.atttypid
  WHERE a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped AND y.oid >= 16384`

// holdsDomain holds for a type y of users that may be a domain, or hold one.
const holdsDomain = `y.typtype <> 'e' AND (y.typtype <> 'b' OR y.typelem >= 16384)`

// simpleTypesSQL asks for the types of users in the table c; NULL if one may be a domain, or
// hold one.
const simpleTypesSQL = `(SELECT CASE WHEN pg_catalog.count(*) FILTER (WHERE ` + holdsDomain + `) = 0
  THEN pg_catalog.concat('{', pg_catalog.string_agg(y.oid::pg_catalog.text, ',' ORDER BY a.attnum), '}') END ` + usersTypes + `)`

// schemasSQL asks for the version of the table's schema, and what otherSchemas is if the name
// is without a schema, or 0.
//
// Where a schema is renamed and bears its old name again a moment later, a statement in
// between may find another table by the same name: that waits for no lock which the
// statement has. But it leaves a new version of the schema. Of a name without a schema, the
// schema that was in front for a moment is another one, which has such a table as well.
func schemasSQL(name string) string {
	others := otherSchemas
	if qualified(name) {
		others = "0"
	}
	return `(SELECT n.xmin FROM pg_catalog.pg_namespace n WHERE n.oid = c.relnamespace), ` + others
}

// otherSchemas tells the versions of all schemas that have a table of the name of c, but for
// those of other sessions' temporary tables, which come and go; NULL if the schema of c is the
// first of the search_path, so that none can be in front of it.
const otherSchemas = `(SELECT CASE WHEN pg_catalog.strpos(pg_catalog.concat(pg_catalog.current_setting('search_path'), ','), pg_catalog.concat(pg_catalog.quote_ident(f.nspname), ',')) <> 1
  THEN (SELECT pg_catalog.hashtextextended(pg_catalog.string_agg(pg_catalog.concat(n.oid, ':', n.xmin), ',' ORDER BY n.oid), 0)
   FROM pg_catalog.pg_class o JOIN pg_catalog.pg_namespace n ON n.oid = o.relnamespace WHERE o.relname = c.relname AND NOT pg_catalog.pg_is_other_temp_schema(n.oid)) END
  FROM pg_catalog.pg_namespace f WHERE f.oid = c.relnamespace)`

// sameSchemas holds if schemasSQL would have the same answer for c as it had, which are the
// parameters.
const sameSchemas = `EXISTS (SELECT FROM pg_catalog.pg_namespace n WHERE n.oid = c.relnamespace AND n.xmin = $4::pg_catalog.xid)
 AND ($5::pg_catalog.int8 = 0 OR ARRAY[$5::pg_catalog.int8] = ARRAY[` + otherSchemas + `])`

// qualified reports whether the name of a table has a schema.
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

// committedReads holds in a transaction each of whose statements sees what was committed
// before it. In any other a guard sees the catalogue as it was when the transaction began,
// and misses a trigger that was made while the first statement waited for the table.
const committedReads = `pg_catalog.current_setting('transaction_isolation') = ANY (ARRAY['read committed', 'read uncommitted'])`

// guardSQL fails, by a division by zero, unless the name still means the same
// table in the same version, and has since the INSERT, and it got no trigger, no foreign
// key to itself and no other default. Each guard adds what it does about domains: pg_class
// stays as it is when a column gets the type of one.
const guardSQL = `SELECT 1 / pg_catalog.count(*) FROM pg_catalog.pg_class c
 WHERE ` + committedReads + ` AND ` + sameSchemas + ` AND c.oid = pg_catalog.to_regclass($1) AND c.oid = $2::pg_catalog.oid AND c.xmin = $3::pg_catalog.xid
 AND NOT EXISTS (SELECT FROM pg_catalog.pg_trigger t WHERE t.tgrelid = c.oid AND (NOT t.tgisinternal OR t.tgconstrrelid = c.oid))
 AND $6 = ` + defaultsSQL

// The guards. What quietDomains looks at costs the server almost as much as all the rest, so
// only a table that may have domains has it looked at: one without is guarded by its types.
const (
	typesGuardSQL = guardSQL + `
 AND NOT EXISTS (SELECT FROM pg_catalog.pg_attribute a WHERE a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped
  AND a.atttypid >= 16384 AND a.atttypid <> ALL ($7::pg_catalog.oid[]))`
	domainsGuardSQL = guardSQL + `
 AND ` + quietDomains

	// The INSERT in front has locked the table: the columns found are those that it met.
	columnsGuardSQL = guardSQL + `
 AND $7 = ` + columnsSQL
	domainsColumnsGuardSQL = columnsGuardSQL + `
 AND ` + quietDomains
)

// guards are the statements of a pool that guard tables which may have domains, or may not.
type guards struct{ types, domains, columns, domainsColumns *stmt }

func (g *guards) init(p *pool) {
	g.types, g.domains = p.stmts.internal(own(typesGuardSQL)), p.stmts.internal(own(domainsGuardSQL))
	g.columns, g.domainsColumns = p.stmts.internal(own(columnsGuardSQL)), p.stmts.internal(own(domainsColumnsGuardSQL))
}

func (f *tableFacts) learn(p *pool, name string, u *unit) {
	f.at = p.l.Now
	if u.err != nil || len(u.rows) != 1 || string(u.rows[0][4]) != "t" {
		f.state = tableOther
		return
	}
	row := u.rows[0]
	f.state, f.columns = tablePlain, readColumns(string(row[5]))
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
