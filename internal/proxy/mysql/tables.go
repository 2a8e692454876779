package mysql

import (
	"strings"
	"time"

	"github.com/weirdb/weir/internal/proxy/mysql/catalogue"
	"github.com/weirdb/weir/internal/proxy/session"
	"github.com/weirdb/weir/internal/proxy/sight"
)

// A tableState says whether writes to a table may be grouped.
type tableState uint8

const (
	tableUnknown tableState = iota
	tablePlain              // it is a catalogue.Table
	tableOther
)

// tableFacts is what weir knows about one table.
type tableFacts struct {
	catalogue.Table
	state  tableState
	at     time.Duration
	asking bool
	writes factsQueue // that wait until it is known
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
	if p.catalogue.index.HidesTriggers(table) {
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
			f.writes.tell(p.l, p.l.Now, true) // the question may have waited for a connection
		})
	}
	if p.l.Now-f.at >= tableKeep {
		f.state = tableUnknown
	}
	return f
}

// tableSQL returns the query for the facts.
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
	return catalogue.TableSQL(db, name)
}

func (f *tableFacts) learn(p *pool, u *unit) {
	f.asking = false
	if u.err != nil && f.state == tablePlain {
		return // a failed query says nothing about the table: it is repeated, and old facts are used until they expire
	}
	f.at = p.l.Now
	t, plain := catalogue.ReadTable(u.result(p.key.caps))
	if f.Table, f.state = t, tableOther; plain {
		f.state = tablePlain
	}
}

// forgetSchema drops what weir knows about tables and statements.
func (p *pool) forgetSchema() {
	p.tables.forget()
	p.stmts.forgetAnswers()
	p.catalogue.stale = true
}
