package proxy

import (
	"sort"
	"strings"
)

// A setting is one session parameter that a client changed and that weir
// replays on whatever backend the client's next statement runs.
type setting struct {
	name string // lower case
	// value is the text of the value. If literal it is the value itself, as a
	// startup parameter or ParameterStatus carries it, and is applied through
	// set_config; else it is SQL, the value list of the client's own SET,
	// applied verbatim.
	value   string
	literal bool
}

// settings is an immutable, interned set of session parameters: two clients
// with equal settings hold the same pointer, so a backend's state is compared
// by pointer. The zero set (no parameters) is the server's own default for
// that user and database.
type settings struct {
	key  string
	list []setting // sorted by name
	// syncCommit is true if the client chose synchronous_commit itself; such
	// a client's writes never take the lane that acknowledges by a group flush.
	syncCommit bool
}

// settingsTable interns settings. One per loop; never shrinks below what is in
// use, and is bounded by maxSettings: past that, sets are no longer interned
// and such clients get a backend of their own.
type settingsTable struct {
	byKey map[string]*settings
}

const maxSettings = 4096

func newSettingsTable() *settingsTable {
	return &settingsTable{byKey: map[string]*settings{"": {}}}
}

func (t *settingsTable) empty() *settings { return t.byKey[""] }

// intern returns the canonical set for list, which it takes over.
func (t *settingsTable) intern(list []setting) *settings {
	sort.Slice(list, func(i, j int) bool { return list[i].name < list[j].name })
	var b strings.Builder
	for _, s := range list {
		b.WriteString(s.name)
		if s.literal {
			b.WriteString("\x00=")
		} else {
			b.WriteString("\x00:")
		}
		b.WriteString(s.value)
		b.WriteByte(0)
	}
	if got := t.byKey[b.String()]; got != nil {
		return got
	}
	set := &settings{key: b.String(), list: list}
	for _, s := range list {
		if s.name == "synchronous_commit" {
			set.syncCommit = true
		}
	}
	if len(t.byKey) < maxSettings {
		t.byKey[set.key] = set
	}
	return set
}

// with returns the set with one parameter changed.
func (t *settingsTable) with(set *settings, s setting) *settings {
	list := make([]setting, 0, len(set.list)+1)
	for _, old := range set.list {
		if old.name != s.name {
			list = append(list, old)
		}
	}
	return t.intern(append(list, s))
}

// without returns the set with one parameter back at its default.
func (t *settingsTable) without(set *settings, name string) *settings {
	if _, ok := set.get(name); !ok {
		return set
	}
	list := make([]setting, 0, len(set.list))
	for _, old := range set.list {
		if old.name != name {
			list = append(list, old)
		}
	}
	return t.intern(list)
}

func (s *settings) get(name string) (setting, bool) {
	for _, have := range s.list {
		if have.name == name {
			return have, true
		}
	}
	return setting{}, false
}

// transition returns the SQL that brings a session from one set to another.
// A parameter that only from has goes back to its session default by RESET,
// which is what it had when the connection began.
func transition(from, to *settings) string {
	var b strings.Builder
	for _, old := range from.list {
		if _, ok := to.get(old.name); !ok {
			b.WriteString("RESET ")
			b.WriteString(quoteGUC(old.name))
			b.WriteString("; ")
		}
	}
	for _, s := range to.list {
		if have, ok := from.get(s.name); ok && have == s {
			continue
		}
		if s.literal {
			b.WriteString("SELECT pg_catalog.set_config(")
			b.WriteString(quoteLiteral(s.name))
			b.WriteString(", ")
			b.WriteString(quoteLiteral(s.value))
			b.WriteString(", false); ")
		} else {
			b.WriteString("SET ")
			b.WriteString(quoteGUC(s.name))
			b.WriteString(" TO ")
			b.WriteString(s.value)
			b.WriteString("; ")
		}
	}
	return b.String()
}

// quoteLiteral renders s as an SQL string that reads the same whatever
// standard_conforming_strings is.
func quoteLiteral(s string) string {
	var b strings.Builder
	if strings.ContainsRune(s, '\\') {
		b.WriteByte('E')
	}
	b.WriteByte('\'')
	for i := 0; i < len(s); i++ {
		if s[i] == '\'' || s[i] == '\\' {
			b.WriteByte(s[i])
		}
		b.WriteByte(s[i])
	}
	b.WriteByte('\'')
	return b.String()
}

// quoteGUC quotes each part of a possibly dotted parameter name.
func quoteGUC(name string) string {
	parts := strings.Split(name, ".")
	for i, p := range parts {
		parts[i] = `"` + strings.ReplaceAll(p, `"`, `""`) + `"`
	}
	return strings.Join(parts, ".")
}
