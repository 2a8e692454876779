package postgres

import (
	"strings"

	"github.com/weirdb/weir/internal/proxy/sqlscan"
)

// This file judges statements: by what their text shows, and by what the objects
// that it names are known to do.

// nameEffects are what the use of a name may do to a session.
type nameEffects struct {
	read, write sqlscan.Effect // by a statement that only reads; by one that may write
	touches     []string       // settings that it changes, for which weir asks the server
}

func (c nameEffects) with(d nameEffects) nameEffects {
	c.read |= d.read
	c.write |= d.write
	for _, s := range d.touches {
		if !containsText(c.touches, s) {
			c.touches = append(c.touches[:len(c.touches):len(c.touches)], s)
		}
	}
	return c
}

func containsText(list []string, s string) bool {
	for _, x := range list {
		if x == s {
			return true
		}
	}
	return false
}

// An index has the names of a database whose use may change a session. It is immutable once
// it is in use.
type index struct {
	stamp string
	names map[string]nameEffects
	any   nameEffects // of every statement
	ddl   nameEffects // of every change of the catalogue: event triggers
	all   nameEffects // of all names: for a text whose names cannot be read
	// foreign is that of the names with bytes above 127, which look different in
	// another encoding.
	foreign nameEffects
	// fresh has the names of relations that clients of weir have created since.
	fresh map[string]nameEffects
	// bodies has the names in the bodies of functions, also those that refer to nothing yet.
	bodies bodyNames

	named map[string]sqlscan.Effect // of builtins
}

func (x *index) add(name string, c nameEffects) {
	x.names[name] = x.names[name].with(c)
}

// finish completes the index by what holds in every database.
func (x *index) finish() {
	for name, c := range x.names {
		if _, builtin := x.named[name]; builtin {
			continue
		}
		x.all = x.all.with(c)
		if !ascii(name) {
			x.foreign = x.foreign.with(c)
		}
	}
}

// reached returns the union, in read, of what the names in a text may do.
func (x *index) reached(t *sqlscan.Text, writes bool) nameEffects {
	got := x.any.with(nameEffects{})
	r := sqlscan.NamesIn(t, x.names, func(_ string, c nameEffects) { got = got.with(c) })
	if len(x.fresh) > 0 {
		sqlscan.NamesIn(t, x.fresh, func(_ string, c nameEffects) { got = got.with(c) })
	}
	if r.Foreign {
		got = got.with(x.foreign)
	}
	if r.Unreadable {
		got = got.with(x.all)
	}
	if writes {
		got.read |= got.write
	}
	return got
}

// A reading is what weir knows of a statement: by its text, and by the catalogue.
type reading struct {
	sqlscan.Statement
	touches []string // settings for which weir asks the server afterwards
	// hidden: it creates functions, whose bodies are unknown until the catalogue
	// has been read again.
	hidden bool
	// runs: it runs code that may do so.
	runs bool
	// makes: it may create a table, which is temporary if the search path says so.
	makes bool
	fresh []createdRelation // relations that it creates and whose use has consequences
	// unread is the text of a statement that was judged without an index.
	unread string
}

// judge combines what a text shows with what the objects that it names do. Without an
// index nothing is known, so everything is assumed.
func (x *index) judge(info sqlscan.Statement, t *sqlscan.Text) reading {
	out := reading{Statement: info}
	sql := t.String()
	if x == nil {
		out.unread = sql
		if info.Effects.Has(sqlscan.EffDDL) {
			out.hidden, out.makes = hidesBody(sql), true
		}
		out.runs = info.Verb == sqlscan.VerbDo || info.Verb == sqlscan.VerbCommitPrepared || info.Effects.Has(sqlscan.EffMulti) && hasDo(sql)
		out.Effects |= sqlscan.EffUnknownFunc
		return out
	}
	e := info.Effects
	opaque := e.Has(sqlscan.EffUnknown)
	if names, all := t.Settings(); len(names) > 0 || !all {
		e |= sqlscan.EffSetConfig
		if all {
			e &^= sqlscan.EffSetConfig
		}
		e |= out.touch(names)
	}
	switch {
	case info.Verb == sqlscan.VerbDo:
		body, ok := sqlscan.DoBody(sql)
		if !ok || e.Has(sqlscan.EffMulti) {
			opaque = true
			break
		}
		r := sqlscan.RoutinePLpgSQL(body)
		e |= bodyEffects(r.Effects) | sqlscan.EffRoutine
		e |= out.touch(r.Touches)
		var in sqlscan.Text
		in.Read(body)
		c := x.reached(&in, true)
		e |= c.read
		out.touches = append(out.touches, c.touches...)
		opaque = opaque || r.Effects.Has(sqlscan.EffUnknownFunc)
		out.runs = opaque || r.Effects.Has(sqlscan.EffDDL)
	case e.Has(sqlscan.EffMulti) && e.Has(sqlscan.EffUnknownFunc) && hasDo(sql):
		opaque, out.runs = true, true
	case info.Verb == sqlscan.VerbCommitPrepared:
		out.runs = true // changes of the catalogue by any client
	case info.Verb == sqlscan.VerbVacuum, e.Has(sqlscan.EffDDL) && cascades(sql):
		e |= x.all.read | x.all.write
		out.touches = append(out.touches, x.all.touches...)
	}
	if e.Has(sqlscan.EffDDL) {
		e |= x.ddl.write
		lower := strings.ToLower(sql)
		out.makes = strings.Contains(lower, "create") || strings.Contains(lower, "into")
		out.touches = append(out.touches, x.ddl.touches...)
		switch {
		case hidesBody(sql) && (e.Has(sqlscan.EffMulti) || !changesTable(sql)):
			out.hidden = true
			opaque = opaque || e.Has(sqlscan.EffMulti)
		case e.Has(sqlscan.EffTemp) && !e.Has(sqlscan.EffMulti): // only its own session sees it
		default:
			out.fresh, out.hidden = x.bringsIn(sql, e.Has(sqlscan.EffMulti))
			for _, n := range out.fresh { // the text may use what it creates
				e |= n.read | n.write
			}
		}
	}
	c := x.reached(t, !readsOnly(e))
	e = e&^sqlscan.EffUnknownFunc | c.read
	if info.Verb == sqlscan.VerbCall {
		e |= sqlscan.EffRoutine
	}
	out.touches = append(out.touches, c.touches...)
	if opaque {
		e |= sqlscan.EffUnknownFunc
	}
	if len(out.touches) > 0 {
		e |= sqlscan.EffTouch
	}
	out.Effects = e
	return out
}

// readsOnly reports whether a statement with these effects fires no trigger.
func readsOnly(e sqlscan.Effect) bool {
	return !e.Has(sqlscan.EffWrites | sqlscan.EffDDL | sqlscan.EffCopy | sqlscan.EffMulti | sqlscan.EffUnknown | sqlscan.EffPrepare)
}

// touch records settings that outlive the statement, or that it creates. It
// returns the effects of those that weir cannot ask for.
func (r *reading) touch(list []sqlscan.Touched) (e sqlscan.Effect) {
	for _, t := range list {
		names, eff := lasting(t)
		r.touches = append(r.touches, names...)
		e |= eff
	}
	return e
}

// lasting returns what a setting that is changed by name leaves in its session.
func lasting(t sqlscan.Touched) (names []string, e sqlscan.Effect) {
	e = sqlscan.ReadBy(t.Name)
	if t.Local && !sqlscan.Custom(t.Name) {
		return nil, e
	}
	switch set := sqlscan.SettingEffects(t.Name); set {
	case sqlscan.EffSet:
		return []string{strings.Clone(t.Name)}, e | sqlscan.EffTouch
	case sqlscan.EffTx:
		return nil, 0
	default:
		return nil, e | set
	}
}

// cascades reports whether a change of the catalogue may fire triggers of
// tables that it does not name.
func cascades(sql string) bool {
	found := false
	sqlscan.Names(sql, map[string]bool{"truncate": true}, func(string, bool) { found = true })
	if !found {
		return false
	}
	found = false
	sqlscan.Names(sql, map[string]bool{"cascade": true}, func(string, bool) { found = true })
	return found
}

// bodyWords are the words of the commands that create code that weir cannot read in the text.
var bodyWords = map[string]bool{
	"function": true, "procedure": true, "routine": true, "extension": true, "language": true,
	"event": true, "foreign": true, "server": true, "transform": true, "aggregate": true, "operator": true, "cast": true,
	"type": true, "domain": true, "conversion": true, "access": true, "search": true,
}

// changesTable reports whether a single statement creates or changes a table, or creates an
// index: then words such as "type" are names of columns.
func changesTable(sql string) bool {
	t := words{rest: sql[:min(len(sql), maxReachText)]}
	verb, _ := t.next()
	kind, _ := t.next()
	for verb.is("create") && (kind.is("unlogged") || kind.is("unique")) {
		kind, _ = t.next()
	}
	return verb.is("create") && (kind.is("table") || kind.is("index")) || verb.is("alter") && kind.is("table")
}

// hidesBody reports whether a change of the catalogue may create functions, or give
// objects to something that the text does not name. When in doubt it returns true.
func hidesBody(sql string) bool {
	found := false
	sqlscan.Names(sql, bodyWords, func(string, bool) { found = true })
	return found
}
