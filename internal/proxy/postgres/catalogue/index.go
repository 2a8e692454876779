package catalogue

import (
	"slices"

	"github.com/weirdb/weir/internal/proxy/sqlscan"
)

// NameEffects are what the use of a name may do to a session.
type NameEffects struct {
	read, write sqlscan.Effect // by a statement that only reads; by one that may write
	touches     []string       // settings that it changes, for which weir asks the server
}

// With is the effects of both.
func (c NameEffects) With(d NameEffects) NameEffects {
	c.read |= d.read
	c.write |= d.write
	for _, s := range d.touches {
		if !slices.Contains(c.touches, s) {
			c.touches = append(c.touches[:len(c.touches):len(c.touches)], s)
		}
	}
	return c
}

// An Index has the names of a database whose use may change a session. It is immutable once
// it is in use. A nil Index knows nothing.
type Index struct {
	stamp string
	names map[string]NameEffects
	any   NameEffects // of every statement
	ddl   NameEffects // of every change of the catalogue: event triggers
	all   NameEffects // of all names: for a text whose names cannot be read
	// foreign is that of the names with bytes above 127, which look different in
	// another encoding.
	foreign NameEffects
	// fresh has the names of relations that clients of weir have created since.
	fresh map[string]NameEffects
	// bodies has the names in the bodies of functions, also those that refer to nothing yet.
	bodies bodyNames

	named map[string]sqlscan.Effect // of builtins
}

// Stamp is what StampSQL returned when the index was read.
func (x *Index) Stamp() string { return x.stamp }

// Len is the number of names.
func (x *Index) Len() int { return len(x.names) }

func (x *Index) add(name string, c NameEffects) {
	x.names[name] = x.names[name].With(c)
}

// finish completes the index by what holds in every database.
func (x *Index) finish() {
	for name, c := range x.names {
		if _, builtin := x.named[name]; builtin {
			continue
		}
		x.all = x.all.With(c)
		if !sqlscan.ASCII(name) {
			x.foreign = x.foreign.With(c)
		}
	}
}

// Within reports whether everything in x is in old.
func (x *Index) Within(old *Index) bool {
	if !x.any.within(old.any) || !x.ddl.within(old.ddl) {
		return false
	}
	for name, c := range x.names {
		if !c.within(old.of(name)) {
			return false
		}
	}
	return true
}

func (c NameEffects) within(d NameEffects) bool {
	for _, s := range c.touches {
		if !slices.Contains(d.touches, s) {
			return false
		}
	}
	return c.read&^d.read == 0 && c.write&^d.write == 0
}

// reached returns the union, in read, of what the names in a text may do.
func (x *Index) reached(t *sqlscan.Text, writes bool) NameEffects {
	got := x.any.With(NameEffects{})
	r := sqlscan.NamesIn(t, x.names, func(_ string, c NameEffects) { got = got.With(c) })
	if len(x.fresh) > 0 {
		sqlscan.NamesIn(t, x.fresh, func(_ string, c NameEffects) { got = got.With(c) })
	}
	if r.Foreign {
		got = got.With(x.foreign)
	}
	if r.Unreadable {
		got = got.With(x.all)
	}
	if writes {
		got.read |= got.write
	}
	return got
}
