package catalogue

import (
	"slices"
	"strings"

	"github.com/weirdb/weir/internal/proxy/sqlscan"
	"github.com/weirdb/weir/internal/proxy/sqlscan/lexicon"
)

// This file judges statements: by what their text shows, and by what the objects
// that it names are known to do.

// A Reading is what weir knows of a statement: by its text, and by the catalogue.
type Reading struct {
	sqlscan.Statement
	Touches []string // settings for which weir asks the server afterwards
	// Hidden: it creates functions, whose bodies are unknown until the catalogue
	// has been read again.
	Hidden bool
	// Runs: it runs code that may do so.
	Runs bool
	// Makes: it may create a table, which is temporary if the search path says so.
	Makes bool
	Fresh []CreatedRelation // relations that it creates and whose use has consequences
	// Unread is the text of a statement that was judged without an index.
	Unread string
}

// Clone returns a copy that does not alias the statement's text.
func (r *Reading) Clone() Reading {
	own := *r
	own.Statement = r.Statement.Clone()
	own.Touches = slices.Clone(r.Touches)
	for i, name := range own.Touches {
		own.Touches[i] = strings.Clone(name)
	}
	own.Fresh = slices.Clone(r.Fresh)
	for i := range own.Fresh {
		own.Fresh[i].Name = strings.Clone(own.Fresh[i].Name)
	}
	own.Unread = strings.Clone(r.Unread)
	return own
}

// Judge combines what a text shows with what the objects that it names do. Without an
// index nothing is known, so everything is assumed.
func (x *Index) Judge(info sqlscan.Statement, t *sqlscan.Text) Reading {
	out := Reading{Statement: info}
	sql := t.String()
	if x == nil {
		out.Unread = sql
		if info.Effects.Has(sqlscan.EffDDL) {
			out.Hidden, out.Makes = hidesBody(sql), true
		}
		out.Runs = info.Verb == sqlscan.VerbDo || info.Verb == sqlscan.VerbCommitPrepared || info.Effects.Has(sqlscan.EffMulti) && hasDo(sql)
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
		out.Touches = append(out.Touches, c.touches...)
		opaque = opaque || r.Effects.Has(sqlscan.EffUnknownFunc)
		out.Runs = opaque || r.Effects.Has(sqlscan.EffDDL)
	case e.Has(sqlscan.EffMulti) && e.Has(sqlscan.EffUnknownFunc) && hasDo(sql):
		opaque, out.Runs = true, true
	case info.Verb == sqlscan.VerbCommitPrepared:
		out.Runs = true // changes of the catalogue by any client
	case info.Verb == sqlscan.VerbVacuum, e.Has(sqlscan.EffDDL) && cascades(sql):
		e |= x.all.read | x.all.write
		out.Touches = append(out.Touches, x.all.touches...)
	}
	if e.Has(sqlscan.EffDDL) {
		e |= x.ddl.write
		lower := strings.ToLower(sql)
		out.Makes = strings.Contains(lower, "create") || strings.Contains(lower, "into")
		out.Touches = append(out.Touches, x.ddl.touches...)
		switch {
		case hidesBody(sql) && (e.Has(sqlscan.EffMulti) || !changesTable(sql)):
			out.Hidden = true
			opaque = opaque || e.Has(sqlscan.EffMulti)
		case e.Has(sqlscan.EffTemp) && !e.Has(sqlscan.EffMulti): // only its own session sees it
		default:
			out.Fresh, out.Hidden = x.bringsIn(sql, e.Has(sqlscan.EffMulti))
			for _, n := range out.Fresh { // the text may use what it creates
				e |= n.read | n.write
			}
		}
	}
	c := x.reached(t, !readsOnly(e))
	e = e&^sqlscan.EffUnknownFunc | c.read
	if info.Verb == sqlscan.VerbCall {
		e |= sqlscan.EffRoutine
	}
	out.Touches = append(out.Touches, c.touches...)
	if opaque {
		e |= sqlscan.EffUnknownFunc
	}
	if len(out.Touches) > 0 {
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
func (r *Reading) touch(list []sqlscan.Touched) (e sqlscan.Effect) {
	for _, t := range list {
		names, eff := lasting(t)
		r.Touches = append(r.Touches, names...)
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
	t := sqlscan.WordsOf(sql)
	verb, _ := t.Next()
	kind, _ := t.Next()
	for verb.Is("create") && (kind.Is("unlogged") || kind.Is("unique")) {
		kind, _ = t.Next()
	}
	return verb.Is("create") && (kind.Is("table") || kind.Is("index")) || verb.Is("alter") && kind.Is("table")
}

// hidesBody reports whether a change of the catalogue may create functions, or give
// objects to something that the text does not name. When in doubt it returns true.
func hidesBody(sql string) bool {
	found := false
	sqlscan.Names(sql, bodyWords, func(string, bool) { found = true })
	return found
}

// hasDo reports whether one of several statements may be DO.
func hasDo(sql string) bool {
	for _, w := range strings.FieldsFunc(sql, func(r rune) bool { return r < 0x80 && lexicon.Fold[r] == 0 || r == '$' }) {
		if strings.EqualFold(w, "do") {
			return true
		}
	}
	return false
}
