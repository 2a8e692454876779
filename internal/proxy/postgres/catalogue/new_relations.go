package catalogue

import (
	"strings"

	"github.com/weirdb/weir/internal/proxy/sqlscan"
)

// This file is about statements that change the catalogue, other than by functions: what their
// effects are is known before the next statement of any client is judged. Their texts name
// everything that can have effects, so the use of a new relation has the effects of those
// names; if an object that existed before may lead to what was changed, the catalogue is read.

// A CreatedRelation is a relation that a statement creates, with the effects of its use.
type CreatedRelation struct {
	Name string
	NameEffects
}

// drawWords are the words that give a new table a sequence.
var drawWords = map[string]bool{
	"serial": true, "bigserial": true, "smallserial": true, "serial2": true, "serial4": true, "serial8": true, "identity": true,
}

// heirWords are the words because of which a new table is reached through another one.
var heirWords = map[string]bool{"inherits": true, "partition": true, "of": true}

// bringsIn returns the new relations of a text that have effects, and whether the
// catalogue must be read because of others.
func (x *Index) bringsIn(sql string, multi bool) (fresh []CreatedRelation, read bool) {
	parts := []string{sql}
	if multi {
		if !sqlscan.Divisible(sql) {
			c := x.union(sql)
			return nil, c.read|c.write != 0
		}
		parts = parts[:0]
		for t := sqlscan.WordsOf(sql); !t.Done(); {
			from := t.At()
			for _, ok := t.Next(); ok; {
				_, ok = t.Next()
			}
			parts = append(parts, sql[from:t.At()])
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
			fresh = append(fresh, CreatedRelation{name, c})
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
func (x *Index) relation(sql string, c NameEffects) (name string, b changeKind) {
	t := sqlscan.WordsOf(sql)
	lower := strings.ToLower(sql)
	more := c.more()
	verb, _ := t.Next()
	switch {
	case verb.Is("create"):
		name = newRelation(t, sql)
		if more && (strings.Contains(lower, "references") || x.bodies.has(name)) {
			name = "" // it is reached through the other table, or a function
		}
	case verb.Is("alter"):
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
	case verb.Is("explain"), verb.Is("select"), verb.Is("with"), verb.Is("values"), verb.Is("table"), verb.Is("("):
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
func (x *Index) draws(sql string) (yes bool) {
	sqlscan.Names(sql, drawWords, func(string, bool) { yes = true })
	sqlscan.Names(sql, x.named, func(_ string, e sqlscan.Effect) { yes = yes || e.Has(sqlscan.EffSequence) })
	return yes
}

// attaches reports whether an ALTER, whose first word has been read, is ATTACH
// PARTITION.
func attaches(t sqlscan.Words) bool {
	for w, ok := t.Next(); ok; w, ok = t.Next() {
		if w.Is("attach") {
			return true
		}
	}
	return false
}

// more reports whether there are effects other than the use of a sequence.
func (c NameEffects) more() bool { return (c.read|c.write)&^sqlscan.EffSequence != 0 }

// renamed returns the name that an ALTER TABLE or VIEW gives a relation, "" if that is
// unclear, and whether it gives one. Its first word has been read from t.
func renamed(t sqlscan.Words) (to string, renames bool) {
	w, ok := t.Next()
	for ok && w.Is("materialized") {
		w, ok = t.Next()
	}
	if !ok || !w.Is("table") && !w.Is("view") {
		return "", false
	}
	for after := false; ok; w, ok = t.Next() {
		if after && w.Is("to") {
			return t.Name(), true
		}
		after = w.Is("rename")
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
	return ok || b.any || b.foreign && !sqlscan.ASCII(name)
}

// union returns the effects of all names in a text.
func (x *Index) union(sql string) (got NameEffects) {
	take := func(_ string, c NameEffects) { got = got.With(c) }
	r := sqlscan.Names(sql, x.names, take)
	sqlscan.Names(sql, x.fresh, take)
	if names, all := sqlscan.Settings(sql); len(names) > 0 || !all {
		got.read |= sqlscan.EffSetConfig
	}
	sqlscan.Names(sql, drawWords, func(string, bool) { got.write |= sqlscan.EffSequence })
	if r.Foreign {
		got = got.With(x.foreign)
	}
	if r.Unreadable {
		got = got.With(x.all)
	}
	return got
}

// of returns the effects of the use of a name.
func (x *Index) of(name string) NameEffects { return x.names[name].With(x.fresh[name]) }

// newRelation returns the name of the table or view that a CREATE creates, if no existing object
// leads to it: it replaces none, and neither inherits nor is a
// partition. Otherwise, and if that is unclear, it returns "". The first word of
// sql has been read from t.
func newRelation(t sqlscan.Words, sql string) string {
	w, ok := t.Next()
	for ok && (w.Is("unlogged") || w.Is("materialized")) {
		w, ok = t.Next()
	}
	if !ok || !w.Is("table") && !w.Is("view") {
		return ""
	}
	led := len(sql) > sqlscan.MaxWords
	sqlscan.Names(sql, heirWords, func(string, bool) { led = true })
	if led {
		return ""
	}
	return t.Name()
}

// target returns the relation that an ALTER TABLE or VIEW or a CREATE INDEX changes, ""
// if the statement is another. Its first word has been read from t.
func target(t sqlscan.Words) string {
	w, ok := t.Next()
	for ok && (w.Is("materialized") || w.Is("unique")) {
		w, ok = t.Next()
	}
	switch {
	case ok && (w.Is("table") || w.Is("view")):
		return t.Name()
	case ok && w.Is("index"):
		for ok && !w.Is("on") {
			w, ok = t.Next()
		}
		return t.Name()
	}
	return ""
}

// With returns the index with list as its new relations. It keeps list.
func (x *Index) With(list map[string]NameEffects) *Index {
	if x == nil {
		return nil
	}
	y := *x
	y.fresh = list
	for name, c := range list {
		y.all = y.all.With(c)
		if !sqlscan.ASCII(name) {
			y.foreign = y.foreign.With(c)
		}
	}
	return &y
}
