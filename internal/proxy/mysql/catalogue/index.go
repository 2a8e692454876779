package catalogue

import (
	"iter"
	"slices"
	"strings"

	"github.com/weirdb/weir/internal/proxy/sqlscan/myscan"
)

// An Index knows the names whose effects a statement's text does not show: views, stored
// functions and procedures, and tables whose triggers change the session. It is what the server
// shows to one account, so it also knows what that account cannot see: a hidden body counts as
// opaque, and so do triggers if the account lacks the privilege to see any. Most databases have
// no name with effects, and then a statement costs one comparison.
//
// An Index never changes, and is safe for concurrent use. A nil Index knows nothing.
type Index struct {
	trust []string // functions that are assumed not to change the session; "*": all

	reads    places          // views
	writes   places          // tables with triggers, and views over such
	inserts  places          // ... that an INSERT fires, if it updates no existing row
	defaults places          // tables with columns whose DEFAULT has effects
	routines places          // all that the account can see
	blind    map[string]bool // databases in which the account cannot see triggers
	unseen   map[string]bool // tables with triggers that weir knows and the account cannot see
	nothing  bool            // no name has effects
}

// Opaque are the effects of a body that the server does not show.
const Opaque = myscan.EffOpaque | myscan.EffUnknownFunc

// trusted reports whether the configuration declares everything hidden harmless.
func trusted(trust []string) bool { return slices.Contains(trust, "*") }

// HidesTriggers reports whether the account cannot see triggers that a table has.
func (x *Index) HidesTriggers(table string) bool {
	return x != nil && len(x.unseen) > 0 && x.unseen[foldName(table)]
}

// LocksMore reports whether any name takes a lock that it did not take before: some
// connections may hold it then.
func (x *Index) LocksMore(before *Index) bool {
	return x.writes.lockMoreThan(before.writes) || x.inserts.lockMoreThan(before.inserts) || x.routines.lockMoreThan(before.routines)
}

// Reach returns the effects of a statement beyond those that its text shows. db is the database
// in which it runs.
func (x *Index) Reach(t *myscan.Text, info *myscan.Statement, db string) myscan.Effect {
	var e myscan.Effect
	switch info.Verb {
	case myscan.VerbBegin, myscan.VerbCommit, myscan.VerbRollback:
		if info.Count == 1 {
			return 0
		}
	}
	writing := info.Effects.Has(myscan.EffWrites | myscan.EffLoad | myscan.EffUnknown | myscan.EffMulti | myscan.EffUnknownFunc)
	calls := info.Effects.Has(myscan.EffUnknownFunc | myscan.EffMulti | myscan.EffUnknown)
	if db == "sys" {
		e |= Opaque
	}
	if x.nothing && !calls {
		return e
	}
	db = foldName(db)
	names := &nameSet{each: func(yield func(string) bool) {
		t.Names(func(name string, _ bool) bool { return yield(foldName(name)) })
	}}
	if info.Count != 1 {
		names = nil // a USE may be among them
	}
	if writing && x.blind[strings.ToLower(db)] {
		e |= Opaque
	}
	if info.Effects.Has(myscan.EffUnknownFunc) && !trusted(x.trust) {
		for i, name := range t.Calls() {
			procedure := i == 0 && info.Verb == myscan.VerbCall // the catalogue has every procedure that the account can call
			if !procedure && !x.knows(foldName(name), db, names) {
				e |= Opaque
			}
		}
	}
	var fires, onInsert myscan.Effect
	onlyInserts := info.Verb == myscan.VerbInsert && info.Count == 1
	asksDefault := len(x.defaults) > 0 && strings.Contains(strings.ToLower(t.String()), "default") // DEFAULT(column) in a SELECT
	t.Names(func(name string, call bool) bool {
		name = foldName(name)
		if !x.nothing {
			e |= x.reads.of(name, db, names)
			if asksDefault {
				e |= x.defaults.of(name, db, names)
			}
			if writing {
				fires |= x.writes.of(name, db, names)
				onInsert |= x.inserts.of(name, db, names)
				onlyInserts = onlyInserts && name != "duplicate" // ON DUPLICATE KEY UPDATE
				if x.blind[name] {
					e |= Opaque
				}
			}
			if call {
				e |= x.routines.of(name, db, names)
			}
		}
		if name == "sys" && calls && !trusted(x.trust) {
			e |= myscan.EffUnknownFunc
			if info.Verb == myscan.VerbCall {
				e |= myscan.EffOpaque
			}
		}
		return true
	})
	if onlyInserts {
		fires = onInsert
	}
	e |= fires
	if e.Has(myscan.EffLock) {
		e |= myscan.EffLockUnseen
	}
	return e
}

// knows reports whether the effects of a call are known: as those of a routine, which Reach
// looks up, or because the name is trusted. Otherwise it may be a function of a library (CREATE
// FUNCTION ... SONAME, or a plugin's), such as those of MySQL's locking service, whose locks
// last as long as the connection.
func (x *Index) knows(name, db string, names *nameSet) bool {
	return x.routines.has(name, db, names) || slices.ContainsFunc(x.trust, func(t string) bool { return strings.EqualFold(t, name) })
}

// places are the effects of tables, views and routines, by their names and schemas. Databases
// of one layout, such as one for each customer, may have a trigger in some of them.
type places map[string]map[string]myscan.Effect

// raise adds effects to those of one object, and reports whether any is new.
func (ps places) raise(schema, name string, e myscan.Effect) bool {
	at := ps[name]
	if at == nil {
		at = make(map[string]myscan.Effect)
		ps[name] = at
	}
	was, known := at[schema]
	at[schema] = was | e
	return !known || was|e != was
}

// lockMoreThan reports whether any object takes a lock that did not before.
func (ps places) lockMoreThan(before places) bool {
	for name, at := range ps {
		for schema, e := range at {
			if e.Has(myscan.EffLock) && !before[name][schema].Has(myscan.EffLock) {
				return true
			}
		}
	}
	return false
}

// of returns the effects of all objects of a name that a text can mean, where db is the current
// database and names are all names of the text: it must name any other database. nil names
// stand for any.
func (ps places) of(name, db string, names *nameSet) myscan.Effect {
	at := ps[name]
	e, here := at[db]
	switch {
	case len(at) == 0 || here && len(at) == 1:
	case names == nil:
		for _, more := range at {
			e |= more
		}
	default:
		e |= names.among(at)
	}
	return e
}

// has reports whether of would return the effects of any known object.
func (ps places) has(name, db string, names *nameSet) bool {
	at := ps[name]
	if _, here := at[db]; here || names == nil {
		return len(at) > 0
	}
	for schema := range at {
		if names.has(schema) {
			return true
		}
	}
	return false
}

// A nameSet holds all names of a text, folded. It reads them at the first lookup.
type nameSet struct {
	each iter.Seq[string]
	set  map[string]struct{}
}

// read reads the names unless that is done.
func (n *nameSet) read() {
	if n.set == nil {
		n.set = make(map[string]struct{})
		for name := range n.each {
			n.set[name] = struct{}{}
		}
	}
}

// has reports whether the text has the name.
func (n *nameSet) has(name string) bool {
	n.read()
	_, named := n.set[name]
	return named
}

// among returns the effects in those schemas that the text names.
func (n *nameSet) among(schemas map[string]myscan.Effect) (e myscan.Effect) {
	n.read()
	if len(n.set) < len(schemas) {
		for name := range n.set {
			e |= schemas[name]
		}
		return e
	}
	for schema, more := range schemas {
		if _, named := n.set[schema]; named {
			e |= more
		}
	}
	return e
}

// foldName folds a name as a catalogue has it: to lower case; all names with letters outside
// ASCII become one, because clients write them in different character sets.
func foldName(name string) string {
	for i := range len(name) {
		if name[i] >= 0x80 || name[i] == '?' {
			return "?"
		}
	}
	return strings.ToLower(name)
}
