package postgres

import (
	"maps"
	"strings"
	"time"

	"github.com/weirdb/weir/internal/proxy/sqlscan"
)

// This file is about changes of the catalogue by weir's clients, other than of
// functions: their effects are known before the next statement of any client
// is judged. Their texts name everything that can have effects, so the use of a new relation
// has the effects of those names; if an object that existed before
// may lead to what was changed, the catalogue is read.

// A createdRelation is a relation that a statement creates, with the effects of its use.
type createdRelation struct {
	name string
	nameEffects
}

// drawWords are the words that give a new table a sequence.
var drawWords = map[string]bool{
	"serial": true, "bigserial": true, "smallserial": true, "serial2": true, "serial4": true, "serial8": true, "identity": true,
}

// heirWords are the words because of which a new table is reached through another one.
var heirWords = map[string]bool{"inherits": true, "partition": true, "of": true}

// bringsIn returns the new relations of a text that have effects, and whether the
// catalogue must be read because of others.
func (x *index) bringsIn(sql string, multi bool) (fresh []createdRelation, read bool) {
	parts := []string{sql}
	if multi {
		if len(sql) > maxReachText || strings.ContainsAny(sql, `\$`) { // words would not find the ends of literals
			c := x.union(sql)
			return nil, c.read|c.write != 0
		}
		parts = parts[:0]
		for t := (words{rest: sql}); !t.done; {
			from := len(sql) - len(t.rest)
			for _, ok := t.next(); ok; {
				_, ok = t.next()
			}
			parts = append(parts, sql[from:len(sql)-len(t.rest)])
		}
	}
	for _, part := range parts {
		c := x.union(part)
		if c.read|c.write == 0 {
			continue
		}
		name, brings := x.relation(part, c)
		switch {
		case brings == bringsMore:
			read = true
		case brings == bringsName:
			c.read |= c.write
			c.write = c.read
			fresh = append(fresh, createdRelation{name, c})
		}
	}
	return fresh, read
}

// A changeKind says what a change of the catalogue adds.
type changeKind uint8

const (
	bringsNothing changeKind = iota
	bringsName               // effects of the use of one name
	bringsMore               // what only the catalogue shows
)

// relation returns what a statement adds whose names have the effects c.
// If it only names a table that uses a sequence, the catalogue does not have to be read.
func (x *index) relation(sql string, c nameEffects) (name string, b changeKind) {
	t := words{rest: sql[:min(len(sql), maxReachText)]}
	lower := strings.ToLower(sql)
	more := c.more()
	verb, _ := t.next()
	switch {
	case verb.is("create"):
		name = newRelation(t, sql)
		if more && (strings.Contains(lower, "references") || x.bodies.has(name)) {
			name = "" // it is reached through the other table, or a function
		}
	case verb.is("alter"):
		// An attached table gets the triggers of the table that it is attached to.
		if attaches(t) || more && (strings.Contains(lower, "references") || strings.Contains(lower, "inherit")) {
			return "", bringsMore
		}
		to, renames := renamed(t)
		if renames && (to == "" || more && x.bodies.has(to)) {
			return "", bringsMore
		}
		if renames {
			return to, bringsName
		}
	case verb.is("explain"), verb.is("select"), verb.is("with"), verb.is("values"), verb.is("table"), verb.is("("):
		// A table has the types of the query that it is made from.
		if more && (strings.Contains(lower, "into") || strings.Contains(lower, "create")) {
			return "", bringsMore
		}
		return "", bringsNothing
	default:
		return "", bringsNothing // what is dropped, truncated, granted or described gains nothing
	}
	if name != "" {
		return name, bringsName
	}
	name = target(t)
	has := x.of(name)
	if c.within(has) {
		return "", bringsNothing
	}
	has.read, has.write = has.read|sqlscan.EffSequence, has.write|sqlscan.EffSequence
	if name == "" || !c.within(has) || x.draws(sql) {
		return "", bringsMore
	}
	return name, bringsName
}

// draws reports whether a text itself gives something a sequence, rather than only naming
// a table that has one.
func (x *index) draws(sql string) (yes bool) {
	sqlscan.Names(sql, drawWords, func(string, bool) { yes = true })
	sqlscan.Names(sql, x.named, func(_ string, e sqlscan.Effect) { yes = yes || e.Has(sqlscan.EffSequence) })
	return yes
}

// attaches reports whether an ALTER, whose first word has been read, is ATTACH
// PARTITION.
func attaches(t words) bool {
	for w, ok := t.next(); ok; w, ok = t.next() {
		if w.is("attach") {
			return true
		}
	}
	return false
}

// more reports whether there are effects other than the use of a sequence.
func (c nameEffects) more() bool { return (c.read|c.write)&^sqlscan.EffSequence != 0 }

// renamed returns the name that an ALTER TABLE or VIEW gives a relation, "" if that is
// unclear, and whether it gives one. Its first word has been read from t.
func renamed(t words) (to string, renames bool) {
	w, ok := t.next()
	for ok && w.is("materialized") {
		w, ok = t.next()
	}
	if !ok || !w.is("table") && !w.is("view") {
		return "", false
	}
	for after := false; ok; w, ok = t.next() {
		if after && w.is("to") {
			return t.name(), true
		}
		after = w.is("rename")
	}
	return "", false
}

// bodyNames are the names in the bodies of functions. A function may name objects that are
// created after it.
type bodyNames struct {
	names   map[string]struct{}
	foreign bool // some have letters that depend on the encoding
	any     bool // some cannot be read
}

func (b *bodyNames) add(body string) {
	if b.names == nil {
		b.names = make(map[string]struct{})
	}
	r := sqlscan.EachName(body, func(name []byte) {
		if _, ok := b.names[string(name)]; !ok {
			b.names[string(name)] = struct{}{}
		}
	})
	b.foreign, b.any = b.foreign || r.Foreign, b.any || r.Unreadable
}

// has reports whether a function may name the relation.
func (b *bodyNames) has(name string) bool {
	_, ok := b.names[name]
	return ok || b.any || b.foreign && !ascii(name)
}

// union returns the effects of all names in a text.
func (x *index) union(sql string) (got nameEffects) {
	take := func(_ string, c nameEffects) { got = got.with(c) }
	r := sqlscan.Names(sql, x.names, take)
	sqlscan.Names(sql, x.fresh, take)
	if names, all := sqlscan.Settings(sql); len(names) > 0 || !all {
		got.read |= sqlscan.EffSetConfig
	}
	sqlscan.Names(sql, drawWords, func(string, bool) { got.write |= sqlscan.EffSequence })
	if r.Foreign {
		got = got.with(x.foreign)
	}
	if r.Unreadable {
		got = got.with(x.all)
	}
	return got
}

// of returns the effects of the use of a name.
func (x *index) of(name string) nameEffects { return x.names[name].with(x.fresh[name]) }

// newRelation returns the name of the table or view that a CREATE creates, if no existing object
// leads to it: it replaces none, and neither inherits nor is a
// partition. Otherwise, and if that is unclear, it returns "". The first word of
// sql has been read from t.
func newRelation(t words, sql string) string {
	w, ok := t.next()
	for ok && (w.is("unlogged") || w.is("materialized")) {
		w, ok = t.next()
	}
	if !ok || !w.is("table") && !w.is("view") {
		return ""
	}
	led := len(sql) > maxReachText
	sqlscan.Names(sql, heirWords, func(string, bool) { led = true })
	if led {
		return ""
	}
	return t.name()
}

// target returns the relation that an ALTER TABLE or VIEW or a CREATE INDEX changes, ""
// if the statement is another. Its first word has been read from t.
func target(t words) string {
	w, ok := t.next()
	for ok && (w.is("materialized") || w.is("unique")) {
		w, ok = t.next()
	}
	switch {
	case ok && (w.is("table") || w.is("view")):
		return t.name()
	case ok && w.is("index"):
		for ok && !w.is("on") {
			w, ok = t.next()
		}
		return t.name()
	}
	return ""
}

// name reads a name that may have several parts, after words such as IF EXISTS,
// and returns its last part; "" if it is unclear.
func (t *words) name() string {
	w, ok := t.next()
	for ok && (w.is("if") || w.is("not") || w.is("exists") || w.is("only")) {
		w, ok = t.next()
	}
	name := ""
	for ok {
		if !w.quoted && !isNameByte(w.text[0]) {
			return ""
		}
		unicode := w.is("u")
		name = w.text
		if w, ok = t.next(); ok && unicode && w.text == "&" {
			return "" // U&"..."
		}
		if !ok || w.quoted || w.text != "." {
			break
		}
		w, ok = t.next()
	}
	return strings.Clone(name[:min(len(name), nameLen)])
}

// A madeRelation is a new relation whose effects are current.
type madeRelation struct {
	nameEffects
	by    *client       // whose transaction may not have ended
	since time.Duration // when it ended
}

// unsettledFor is how long the transaction of a client that has left may still
// be committed.
const unsettledFor = 10 * time.Second

// add adds new relations to the current index and to those that are
// read before their transaction has ended.
func (f *dbCatalogue) add(c *client, list []createdRelation) {
	if f.made == nil {
		f.made = make(map[string]madeRelation)
	}
	for _, n := range list {
		f.made[n.name] = madeRelation{nameEffects: n.with(f.made[n.name].nameEffects), by: c}
	}
	c.texts.makes = true
	f.index = f.index.with(f.made)
	f.epoch++
}

// ended is called when c has no transaction any more that may create relations.
func (f *dbCatalogue) ended(c *client, at time.Duration) {
	c.texts.makes = false
	list := make(map[string]nameEffects)
	for name, m := range f.made {
		if m.by == c {
			m.by, m.since = nil, at
			f.made[name] = m
			list[name] = m.nameEffects
		}
	}
	f.used, f.lookAt, f.grewAt = true, 0, f.l.Now
	f.onOtherLoops(func(g *dbCatalogue) {
		g.grewAt = g.l.Now
		if g.made == nil {
			g.made = make(map[string]madeRelation)
		}
		for name, d := range list {
			g.made[name] = madeRelation{nameEffects: d.with(g.made[name].nameEffects), since: g.l.Now}
		}
		g.index = g.index.with(g.made)
		g.epoch++
		g.used, g.lookAt = true, 0
	})
}

// onOtherLoops calls do with what the other loops know of the database.
func (f *dbCatalogue) onOtherLoops(do func(g *dbCatalogue)) {
	for _, l := range f.l.srv.Loops {
		if l == f.l {
			continue
		}
		l.Post(func() {
			if g := l.proofs[f.database]; g != nil {
				do(g)
			}
		})
	}
}

// with returns the index with list as its new relations.
func (x *index) with(list map[string]madeRelation) *index {
	if x == nil {
		return nil
	}
	y := *x
	y.fresh = make(map[string]nameEffects, len(list))
	for name, m := range list {
		y.fresh[name] = m.nameEffects
		y.all = y.all.with(m.nameEffects)
		if !ascii(name) {
			y.foreign = y.foreign.with(m.nameEffects)
		}
	}
	return &y
}

// known removes the new relations that are in an index read from sent on.
func (f *dbCatalogue) known(sent time.Duration) {
	maps.DeleteFunc(f.made, func(_ string, m madeRelation) bool { return m.by == nil && m.since < sent })
}
