package catalogue

import (
	"fmt"
	"strings"

	"github.com/weirdb/weir/internal/proxy/sqlscan/myscan"
)

const (
	// AllRows overrides the sql_select_limit of a session.
	AllRows = " LIMIT 18446744073709551615"

	// Text that is cast to binary comes in UTF-8, whatever character set the session has for
	// results.
	viewsSQL    = "SELECT CAST(TABLE_NAME AS BINARY), CAST(VIEW_DEFINITION AS BINARY), CAST(TABLE_SCHEMA AS BINARY) FROM information_schema.VIEWS WHERE TABLE_SCHEMA NOT IN ('sys', 'information_schema', 'performance_schema')" + AllRows
	routinesSQL = "SELECT CAST(ROUTINE_NAME AS BINARY), CASE WHEN ROUTINE_BODY = 'SQL' AND ROUTINE_TYPE IN ('FUNCTION', 'PROCEDURE') THEN CAST(ROUTINE_DEFINITION AS BINARY) END, CAST(SQL_MODE AS BINARY), CAST(ROUTINE_SCHEMA AS BINARY) FROM information_schema.ROUTINES WHERE ROUTINE_SCHEMA <> 'sys'" + AllRows
	triggersSQL = "SELECT CAST(EVENT_OBJECT_TABLE AS BINARY), CAST(ACTION_STATEMENT AS BINARY), CAST(SQL_MODE AS BINARY), CAST(EVENT_OBJECT_SCHEMA AS BINARY), CAST(EVENT_MANIPULATION AS BINARY) FROM information_schema.TRIGGERS WHERE EVENT_OBJECT_SCHEMA NOT IN ('sys', 'information_schema', 'performance_schema', 'mysql')" + AllRows // MariaDB opens all other tables

	// defaultsSQL lists the column defaults of MariaDB that assign variables. MySQL does not
	// allow those. It costs about as much as viewsSQL: both look at every table.
	defaultsSQL = "SELECT CAST(TABLE_NAME AS BINARY), CAST(COLUMN_DEFAULT AS BINARY), CAST(TABLE_SCHEMA AS BINARY) FROM information_schema.COLUMNS WHERE COLUMN_DEFAULT LIKE '%:=%' AND TABLE_SCHEMA NOT IN ('sys', 'information_schema', 'performance_schema', 'mysql')" + AllRows

	// blindSQL lists the databases in which the account cannot see triggers, and returns a row
	// without a name if it sees all routines.
	blindSQL = "SELECT CAST(s.SCHEMA_NAME AS BINARY), CAST(CURRENT_USER() AS BINARY) FROM information_schema.SCHEMATA s WHERE s.SCHEMA_NAME NOT IN ('information_schema', 'performance_schema', 'sys', 'mysql')" +
		" AND NOT EXISTS (SELECT 1 FROM information_schema.USER_PRIVILEGES u WHERE u.GRANTEE = " + GranteeSQL + " AND u.PRIVILEGE_TYPE = 'TRIGGER')" +
		" AND NOT EXISTS (SELECT 1 FROM information_schema.SCHEMA_PRIVILEGES p WHERE p.GRANTEE = " + GranteeSQL + " AND p.PRIVILEGE_TYPE = 'TRIGGER' AND s.SCHEMA_NAME LIKE p.TABLE_SCHEMA)" +
		" UNION ALL SELECT NULL, NULL FROM information_schema.USER_PRIVILEGES u WHERE u.GRANTEE = " + GranteeSQL + " AND u.PRIVILEGE_TYPE = 'SELECT'" + AllRows

	// GranteeSQL is the account as tables of privileges have it.
	GranteeSQL = `CONCAT('''', LEFT(CURRENT_USER(), CHAR_LENGTH(CURRENT_USER()) - CHAR_LENGTH(SUBSTRING_INDEX(CURRENT_USER(), '@', -1)) - 1), '''@''', SUBSTRING_INDEX(CURRENT_USER(), '@', -1), '''')`

	// CountersSQL counts the statements that change a catalogue.
	CountersSQL = "SHOW GLOBAL STATUS WHERE Variable_name LIKE 'Com_create_%' OR Variable_name LIKE 'Com_alter_%' OR Variable_name LIKE 'Com_drop_%' OR Variable_name LIKE 'Com_rename_%'" +
		" OR Variable_name LIKE 'Com_grant%' OR Variable_name LIKE 'Com_revoke%' OR Variable_name = 'Uptime_since_flush_status'"
)

// A Reader collects the server's answers about its names.
type Reader struct {
	trust []string
	mode  myscan.Mode

	count    string          // see Counters
	blind    map[string]bool // folded; names has them unchanged
	names    []string
	account  string          // as CURRENT_USER() has it
	unseen   map[string]bool // tables with triggers that only another user can see
	seesAll  bool
	views    []object
	routines []object
	triggers []object
	defaults []object
}

// NewReader returns a Reader for a server: of mode, MariaDB and Version count. trust names the
// functions that are assumed not to change the session; "*" stands for all, and for triggers.
func NewReader(mode myscan.Mode, trust []string) *Reader { return &Reader{mode: mode, trust: trust} }

// An object is a view, a routine, or the trigger of a table.
type object struct {
	schema, name string
	body         myscan.Body
	inserts      bool // a trigger that INSERTs fire
}

// A Step is a query, and takes the rows of its answer.
type Step struct {
	SQL  string
	Take func(rows [][][]byte)
}

// Steps are the queries that a Reader needs, in order.
func (r *Reader) Steps() []Step {
	list := []Step{
		{CountersSQL, func(rows [][][]byte) { r.count = Counters(rows) }},
		each(blindSQL, 2, r.blindness),
	}
	if revokesPartly(r.mode) {
		list = append(list, each(grantsSQL, 1, func(row [][]byte) { r.revoked(string(row[0])) }))
	}
	list = append(list, each(viewsSQL, 3, r.view), each(routinesSQL, 4, r.routine), each(triggersSQL, 5, r.trigger))
	if r.mode.MariaDB {
		list = append(list, each(defaultsSQL, 3, r.assigns))
	}
	return list
}

// each is the step of a query whose rows are taken one by one.
func each(sql string, columns int, take func(row [][]byte)) Step {
	return Step{sql, func(rows [][][]byte) {
		for _, row := range rows {
			if len(row) >= columns {
				take(row)
			}
		}
	}}
}

// Counters returns the answer to CountersSQL as a text, which is another one if the catalogue
// may have changed.
func Counters(rows [][][]byte) string {
	var s strings.Builder
	for _, row := range rows {
		if len(row) < 2 {
			continue
		}
		switch string(row[0]) {
		case "Uptime_since_flush_status",
			"Com_create_temporary_table", "Com_drop_temporary_table", "Com_create_index", "Com_drop_index": // no part of a catalogue
		default:
			fmt.Fprintf(&s, "%s=%s ", row[0], row[1])
		}
	}
	return s.String()
}

// Counters are the counters that the Reader has read before all else.
func (r *Reader) Counters() string { return r.count }

func (r *Reader) view(row [][]byte) {
	o := object{schema: foldName(string(row[2])), name: foldName(string(row[0])), body: myscan.Body{Effects: Opaque}}
	if len(row[1]) > 0 {
		text := string(row[1])
		o.body = myscan.ReadBody(text, r.mode)
		if strings.Contains(text, `\`) {
			other := r.mode // the definition depends on its creator's sql_mode
			other.NoBackslashEscapes = true
			more := myscan.ReadBody(text, other)
			o.body.Effects |= more.Effects
			o.body.Calls, o.body.Names = append(o.body.Calls, more.Calls...), append(o.body.Names, more.Names...)
		}
	}
	r.views = append(r.views, o)
}

func (r *Reader) routine(row [][]byte) {
	o := object{schema: foldName(string(row[3])), name: foldName(string(row[0])), body: r.read(row[1], string(row[2]))}
	for _, t := range r.trust {
		if t = strings.ToLower(t); t == "*" || t == o.name || t == strings.ToLower(string(row[3]))+"."+o.name {
			o.body = myscan.Body{}
		}
	}
	r.routines = append(r.routines, o)
}

func (r *Reader) trigger(row [][]byte) {
	event := string(row[4]) // MariaDB 12 may list several
	r.triggers = append(r.triggers, object{
		schema: foldName(string(row[3])), name: foldName(string(row[0])), body: r.read(row[1], string(row[2])), inserts: event != "UPDATE" && event != "DELETE",
	})
}

func (r *Reader) assigns(row [][]byte) {
	r.defaults = append(r.defaults, object{schema: foldName(string(row[2])), name: foldName(string(row[0])), body: myscan.ReadBody("RETURN "+string(row[1]), r.mode)})
}

func (r *Reader) read(body []byte, sqlMode string) myscan.Body {
	if body == nil || myscan.HasMode(sqlMode, "ORACLE") {
		return myscan.Body{Effects: Opaque}
	}
	mode := r.mode
	mode.AnsiQuotes, mode.NoBackslashEscapes = myscan.HasMode(sqlMode, "ANSI_QUOTES"), myscan.HasMode(sqlMode, "NO_BACKSLASH_ESCAPES")
	return myscan.ReadBody(string(body), mode)
}

// Index computes the effects of each name: its own and those of all objects that it reaches.
func (r *Reader) Index() *Index {
	x := &Index{
		trust: r.trust, blind: r.blind, unseen: r.unseen,
		reads: places{}, writes: places{}, inserts: places{}, defaults: places{}, routines: places{},
	}
	if trusted(r.trust) {
		x.blind, x.nothing = nil, true
		return x
	}
	for _, o := range r.routines {
		x.routines.raise(o.schema, o.name, o.body.Effects)
	}
	for _, o := range r.defaults {
		x.defaults.raise(o.schema, o.name, o.body.Effects)
		x.writes.raise(o.schema, o.name, o.body.Effects)
		x.inserts.raise(o.schema, o.name, o.body.Effects)
	}
	for changed := true; changed; {
		changed = false
		for _, o := range r.routines {
			changed = x.routines.raise(o.schema, o.name, r.reached(x, &o, true)) || changed
		}
		for _, o := range r.triggers {
			e := r.reached(x, &o, true)
			changed = x.writes.raise(o.schema, o.name, e) || changed
			if o.inserts {
				changed = x.inserts.raise(o.schema, o.name, e) || changed
			}
		}
		for _, o := range r.views {
			changed = x.reads.raise(o.schema, o.name, r.reached(x, &o, false)) || changed
			e := r.reached(x, &o, true)
			changed = x.writes.raise(o.schema, o.name, e) || changed
			changed = x.inserts.raise(o.schema, o.name, e) || changed
		}
	}
	x.nothing = len(x.reads) == 0 && len(x.writes) == 0 && len(x.blind) == 0
	for _, at := range x.routines {
		for _, e := range at {
			x.nothing = x.nothing && e == 0
		}
	}
	return x
}

// reached returns the effects of an object's body and of all objects that it reaches. Names
// without a schema in the body belong to the object's own.
func (r *Reader) reached(x *Index, o *object, writing bool) myscan.Effect {
	e := o.body.Effects
	names := &nameSet{each: func(yield func(string) bool) {
		for _, name := range o.body.Names {
			if !yield(foldName(name)) {
				return
			}
		}
	}}
	for _, name := range o.body.Calls {
		name = foldName(name)
		e |= x.routines.of(name, o.schema, names)
		if builtIn := r.seesAll && myscan.IsBuiltIn(name, r.mode); !builtIn && !x.knows(name, o.schema, names) {
			e |= Opaque
		}
	}
	for _, name := range o.body.Names {
		name = foldName(name)
		e |= x.reads.of(name, o.schema, names)
		if writing {
			e |= x.writes.of(name, o.schema, names)
		}
		if name == "sys" {
			e |= myscan.EffUnknownFunc
		}
	}
	return e
}
