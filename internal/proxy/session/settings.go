// Package session holds what the sessions of both protocols have in common: interned
// sets of the settings that a client has changed. They are replayed on the backend that
// runs its next statement.
package session

import (
	"slices"
	"strings"
	"weak"
)

// A Setting is one session parameter that a client changed.
type Setting struct {
	Name string // lower case
	// Value is the text of the value: if Literal, the value itself, as in a startup
	// parameter or a status report; otherwise SQL, the right side of the client's own
	// SET, to be replayed verbatim.
	Value   string
	Literal bool
	// Encoding is the client_encoding in which Value was written, if it is SQL with
	// non-ASCII bytes.
	Encoding string
}

// A Set is an immutable, interned set of settings: two clients with equal
// settings hold the same pointer, so a backend's state is compared by pointer.
// The empty set is the server's own default for that user and database.
type Set struct {
	key  string
	list []Setting // sorted by name
}

// A Table interns sets; each event loop has one. A set lives as long as a client, a backend
// or a statement refers to it. The table itself keeps none alive, so that one client's
// many settings cost others nothing.
type Table struct {
	empty *Set
	byKey map[string]weak.Pointer[Set]
	// sweepAt is the number of entries at which those of collected sets are removed.
	sweepAt int
}

// sweepMin is the minimum of sweepAt.
const sweepMin = 256

// NewTable returns a table with the empty set.
func NewTable() *Table {
	return &Table{empty: &Set{}, byKey: make(map[string]weak.Pointer[Set]), sweepAt: sweepMin}
}

// Empty is the set without settings.
func (t *Table) Empty() *Set { return t.empty }

// keep adds a new set to the table.
func (t *Table) keep(set *Set) {
	if len(t.byKey) >= t.sweepAt {
		for key, there := range t.byKey {
			if there.Value() == nil {
				delete(t.byKey, key)
			}
		}
		t.sweepAt = max(sweepMin, 2*len(t.byKey)) // on average one entry is swept for each new one
	}
	t.byKey[set.key] = weak.Make(set)
}

// Intern returns the canonical set for list, which it takes over and sorts.
func (t *Table) Intern(list []Setting) *Set {
	slices.SortFunc(list, func(a, b Setting) int { return strings.Compare(a.Name, b.Name) })
	var b strings.Builder
	for _, s := range list {
		b.WriteString(s.Name)
		if s.Literal {
			b.WriteString("\x00=")
		} else {
			b.WriteString("\x00:")
		}
		b.WriteString(s.Value)
		if s.Encoding != "" {
			b.WriteString("\x00@")
			b.WriteString(s.Encoding)
		}
		b.WriteByte(0)
	}
	if b.Len() == 0 {
		return t.empty
	}
	if got := t.byKey[b.String()].Value(); got != nil {
		return got
	}
	set := &Set{key: b.String(), list: list}
	t.keep(set)
	return set
}

// With returns the set with one setting changed.
func (t *Table) With(set *Set, s Setting) *Set {
	list := make([]Setting, 0, len(set.list)+1)
	for _, old := range set.list {
		if old.Name != s.Name {
			list = append(list, old)
		}
	}
	return t.Intern(append(list, s))
}

// Without returns the set with one setting back at its default.
func (t *Table) Without(set *Set, name string) *Set {
	if _, ok := set.Get(name); !ok {
		return set
	}
	list := make([]Setting, 0, len(set.list))
	for _, old := range set.list {
		if old.Name != name {
			list = append(list, old)
		}
	}
	return t.Intern(list)
}

// Get returns a setting by its name.
func (s *Set) Get(name string) (Setting, bool) {
	for _, have := range s.list {
		if have.Name == name {
			return have, true
		}
	}
	return Setting{}, false
}

// Key returns a text that is the same only for equal sets.
func (s *Set) Key() string { return s.key }

// List returns the settings, sorted by name. It must not be changed.
func (s *Set) List() []Setting { return s.list }

// Len is the number of settings.
func (s *Set) Len() int { return len(s.list) }
