package mysql

import (
	"strings"
	"time"

	"github.com/weirdb/weir/internal/proxy/session"
	"github.com/weirdb/weir/internal/proxy/sight"
	"github.com/weirdb/weir/internal/proxy/sqlscan/myscan"
)

// A tableState says whether writes to a table may be grouped.
type tableState uint8

const (
	tableUnknown tableState = iota
	// tablePlain is an InnoDB table without triggers: the server rolls back a statement of a
	// group that fails, and writing a row has no other effects.
	tablePlain
	tableOther
)

// tableFacts is what weir knows about one table.
type tableFacts struct {
	state  tableState
	auto   string // the AUTO_INCREMENT column in lower case, "" if there is none
	at     time.Duration
	asking bool
}

type tableKey struct {
	set           *session.Set // its database
	schema, table string
}

// tableCache caches facts about tables. They expire: nothing reports a trigger that another
// session creates.
type tableCache struct {
	m map[tableKey]*tableFacts
}

const (
	// tableFresh is the age from which weir queries facts again while it uses them.
	tableFresh = 5 * time.Second
	// tableKeep is the age from which facts are not used any more.
	tableKeep = 15 * time.Second
)

func (t *tableCache) forget() { clear(t.m) }

// look returns what is known about a table, and queries the server if that is nothing, or old.
func (t *tableCache) look(p *pool, set *session.Set, schema, table string) *tableFacts {
	if k := p.catalog; len(k.unseen) > 0 && k.unseen[foldName(table)] {
		return &tableFacts{state: tableOther, at: p.l.Now} // the account would not see the triggers
	}
	f := t.m[tableKey{set, schema, table}]
	if f != nil && p.l.Now-f.at < tableFresh {
		return f
	}
	if f == nil {
		if len(t.m) >= sight.MaxShapes {
			clear(t.m)
		}
		if t.m == nil {
			t.m = make(map[tableKey]*tableFacts)
		}
		schema, table = strings.Clone(schema), strings.Clone(table)
		f = &tableFacts{at: p.l.Now}
		t.m[tableKey{set, schema, table}] = f
	}
	if !f.asking {
		f.asking = true
		p.askIn(set, tableSQL(schema, table), func(u *unit) {
			f.learn(p, u)
			p.catalog.tell(true)
		})
	}
	if p.l.Now-f.at >= tableKeep {
		f.state = tableUnknown
	}
	return f
}

// tableSQL returns the query for the facts. It does not see triggers that the account cannot
// see. The names are constants everywhere: otherwise MariaDB opens every table of every
// database to find the one.
func tableSQL(schema, table string) string {
	db := "DATABASE()"
	if schema != "" {
		db = render(schema)
		if isNumber(schema) {
			db = "'" + schema + "'"
		}
	}
	name := "'" + table + "'"
	if !isNumber(table) {
		name = render(table)
	}
	return `SELECT t.ENGINE, t.TABLE_TYPE,
 (SELECT COUNT(*) FROM information_schema.TRIGGERS g WHERE g.EVENT_OBJECT_SCHEMA = ` + db + ` AND g.EVENT_OBJECT_TABLE = ` + name + `),
 (SELECT MIN(c.COLUMN_NAME) FROM information_schema.COLUMNS c WHERE c.TABLE_SCHEMA = ` + db + ` AND c.TABLE_NAME = ` + name + ` AND c.EXTRA LIKE '%auto_increment%')
 FROM information_schema.TABLES t WHERE t.TABLE_SCHEMA = ` + db + ` AND t.TABLE_NAME = ` + name
}

func (f *tableFacts) learn(p *pool, u *unit) {
	f.asking = false
	if u.err != nil && f.state == tablePlain {
		return // a failed query says nothing about the table: it is repeated, and old facts are used until they expire
	}
	f.at = p.l.Now
	rows := u.result(p.key.caps)
	if len(rows) != 1 || !strings.EqualFold(string(rows[0][0]), "InnoDB") ||
		!strings.EqualFold(string(rows[0][1]), "BASE TABLE") || string(rows[0][2]) != "0" {
		f.state = tableOther
		return
	}
	f.state, f.auto = tablePlain, strings.ToLower(string(rows[0][3]))
}

// generates reports whether each row of an INSERT gets its AUTO_INCREMENT value from the
// server, so that the ids of several rows follow from the first one's. It is true for a table
// without such a column.
func (f *tableFacts) generates(ins *myscan.InsertShape) bool {
	if ins.ColumnList == "" {
		return f.auto == "" // otherwise the row has a value for each column
	}
	for name := range ins.Columns() {
		if strings.EqualFold(name, f.auto) || strings.EqualFold(name, hiddenKey) {
			return false
		}
	}
	return true
}

// hiddenKey is the AUTO_INCREMENT column that MySQL adds to a table without a primary key under
// sql_generate_invisible_primary_key. The server may hide it from everyone.
const hiddenKey = "my_row_id"
