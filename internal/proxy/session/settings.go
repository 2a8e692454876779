// Package session holds what the sessions of both protocols have in common:
// interned sets of the settings that a client changed and that are replayed on
// whatever backend its next statement runs.
package session

import (
	"slices"
	"strings"
	"weak"
)

// A Setting is one session parameter that a client changed.
type Setting struct {
	Name string // lower case
	// Value is the text of the value. If Literal it is the value itself, as a
	// startup parameter or a status report carries it; else it is SQL, what the
	// client's own SET had on its right side, to be applied verbatim.
	Value   string
	Literal bool
	// Encoding is the client_encoding in which Value was written, if it is SQL
	// with other bytes than ASCII.
	Encoding string
}

// A Set is an immutable, interned set of settings: two clients with equal
// settings hold the same pointer, so a backend's state is compared by pointer.
// The empty set is the server's own default for that user and database.
type Set struct {
	key  string
	list []Setting // sorted by name
}

// A Table interns sets. One per event loop. A set stays for as long as something refers
// to it: a client, a backend, a statement. The table itself keeps none alive, so that what
// one client makes of its settings takes nothing from others.
type Table struct {
	empty *Set
	byKey map[string]weak.Pointer[Set]
	// sweepAt is how many entries the table has when those are removed whose sets are gone.
	sweepAt int
}

// sweepMin is the least of them.
const sweepMin = 256

// NewTable returns a table with the empty set.
func NewTable() *Table {
	return &Table{empty: &Set{}, byKey: make(map[string]weak.Pointer[Set]), sweepAt: sweepMin}
}

// Empty is the set without settings.
func (t *Table) Empty() *Set { return t.empty }

// keep has the table know a new set.
func (t *Table) keep(set *Set) {
	if len(t.byKey) >= t.sweepAt {
		for key, there := range t.byKey {
			if there.Value() == nil {
				delete(t.byKey, key)
			}
		}
		t.sweepAt = max(sweepMin, 2*len(t.byKey)) // entries are gone through once for each new one, on average
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

// Key is a text that is the same for equal sets only.
func (s *Set) Key() string { return s.key }

// List returns the settings, sorted by name. It must not be changed.
func (s *Set) List() []Setting { return s.list }

// Len is the number of settings.
func (s *Set) Len() int { return len(s.list) }
