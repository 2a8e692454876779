package bulk

import (
	"fmt"
	"regexp"
	"strings"
)

// A Pattern selects objects by name, in the pattern language of pg_dump and psql: unquoted
// letters are folded to lower case, double quotes keep a name unchanged, "*" stands for any
// characters and "?" for any one character, other characters of regular expressions except "$"
// keep their meaning, and a dot separates schema and name.
type Pattern struct {
	// Source is the pattern as it was written.
	Source string

	// Schema and Name are anchored regular expressions that both PostgreSQL and Go accept.
	// Schema is empty if the pattern names no schema; in a pattern for schemas, Name is the
	// schema's.
	Schema, Name string

	schema, name *regexp.Regexp
}

// ParsePattern parses a pattern for tables: NAME or SCHEMA.NAME.
func ParsePattern(s string) (Pattern, error) {
	parts, err := translate(s)
	if err != nil {
		return Pattern{}, err
	}
	switch len(parts) {
	case 1:
		return compile(Pattern{Source: s, Name: parts[0]})
	case 2:
		return compile(Pattern{Source: s, Schema: parts[0], Name: parts[1]})
	}
	return Pattern{}, fmt.Errorf("pattern %q: too many dots; a name with dots needs double quotes", s)
}

// ParseSchemaPattern parses a pattern for schemas: NAME.
func ParseSchemaPattern(s string) (Pattern, error) {
	parts, err := translate(s)
	if err != nil {
		return Pattern{}, err
	}
	if len(parts) != 1 {
		return Pattern{}, fmt.Errorf("pattern %q: a schema's name holds no dot unless it is in double quotes", s)
	}
	return compile(Pattern{Source: s, Name: parts[0]})
}

func compile(p Pattern) (_ Pattern, err error) {
	if p.name, err = regexp.Compile(p.Name); err != nil {
		return Pattern{}, fmt.Errorf("pattern %q: %w", p.Source, err)
	}
	if p.Schema != "" {
		if p.schema, err = regexp.Compile(p.Schema); err != nil {
			return Pattern{}, fmt.Errorf("pattern %q: %w", p.Source, err)
		}
	}
	return p, nil
}

// translate converts a pattern into anchored regular expressions, one for each part between
// dots.
func translate(s string) ([]string, error) {
	if s == "" {
		return nil, fmt.Errorf("pattern %q: it is empty", s)
	}
	var parts []string
	var b strings.Builder
	b.WriteString("^(")
	quoted := false
	for i := 0; i < len(s); i++ {
		c := s[i]
		switch {
		case c == '"' && quoted && i+1 < len(s) && s[i+1] == '"':
			b.WriteByte('"')
			i++
		case c == '"':
			quoted = !quoted
		case quoted && strings.IndexByte(`|*+?()[]{}.^$\`, c) >= 0:
			b.WriteByte('\\')
			b.WriteByte(c)
		case quoted:
			b.WriteByte(c)
		case c == '.':
			parts = append(parts, b.String()+")$")
			b.Reset()
			b.WriteString("^(")
		case c == '*':
			b.WriteString(".*")
		case c == '?':
			b.WriteByte('.')
		case c == '$':
			b.WriteString(`\$`)
		case c >= 'A' && c <= 'Z':
			b.WriteByte(c + 'a' - 'A')
		default:
			b.WriteByte(c)
		}
	}
	if quoted {
		return nil, fmt.Errorf("pattern %q: a double quote is not closed", s)
	}
	return append(parts, b.String()+")$"), nil
}

// Match reports whether the pattern selects the table. A pattern without a schema selects
// tables of every schema.
func (p Pattern) Match(schema, name string) bool {
	return (p.schema == nil || p.schema.MatchString(schema)) && p.name.MatchString(name)
}

// A Filter selects tables, with the meaning of pg_dump's options of the same names. The zero
// Filter selects everything.
type Filter struct {
	Schemas          []string // -n: only these schemas
	ExcludeSchemas   []string // -N
	Tables           []string // -t: only these tables
	ExcludeTables    []string // -T
	ExcludeTableData []string // definitions of these, but no rows
}

// Selective reports whether the filter names schemas or tables to include, so that objects
// outside of tables and schemas are not selected.
func (f Filter) Selective() bool { return len(f.Schemas) > 0 || len(f.Tables) > 0 }

// Empty reports whether the filter selects everything.
func (f Filter) Empty() bool {
	return !f.Selective() && len(f.ExcludeSchemas) == 0 && len(f.ExcludeTables) == 0 && len(f.ExcludeTableData) == 0
}

// Compile parses the patterns.
func (f Filter) Compile() (*Matcher, error) {
	m := &Matcher{}
	for _, l := range []struct {
		flag     string
		patterns []string
		parse    func(string) (Pattern, error)
		out      *[]Pattern
	}{
		{"--schema", f.Schemas, ParseSchemaPattern, &m.Schemas},
		{"--exclude-schema", f.ExcludeSchemas, ParseSchemaPattern, &m.ExcludeSchemas},
		{"--table", f.Tables, ParsePattern, &m.Tables},
		{"--exclude-table", f.ExcludeTables, ParsePattern, &m.ExcludeTables},
		{"--exclude-table-data", f.ExcludeTableData, ParsePattern, &m.ExcludeTableData},
	} {
		for _, s := range l.patterns {
			p, err := l.parse(s)
			if err != nil {
				return nil, fmt.Errorf("%s: %w", l.flag, err)
			}
			*l.out = append(*l.out, p)
		}
	}
	return m, nil
}

// A Matcher is a parsed Filter. It is safe for concurrent use.
type Matcher struct {
	Schemas, ExcludeSchemas, Tables, ExcludeTables, ExcludeTableData []Pattern
}

// Schema reports whether a schema and its objects are selected.
func (m *Matcher) Schema(schema string) bool {
	if len(m.Schemas) > 0 && !anyMatch(m.Schemas, "", schema) {
		return false
	}
	return !anyMatch(m.ExcludeSchemas, "", schema)
}

// Table reports whether a table is selected. As in pg_dump, a list of tables makes the lists of
// schemas irrelevant.
func (m *Matcher) Table(schema, name string) bool {
	if len(m.Tables) > 0 {
		if !anyMatch(m.Tables, schema, name) {
			return false
		}
	} else if !m.Schema(schema) {
		return false
	}
	return !anyMatch(m.ExcludeTables, schema, name)
}

// Data reports whether the rows of a selected table are selected.
func (m *Matcher) Data(schema, name string) bool {
	return !anyMatch(m.ExcludeTableData, schema, name)
}

func anyMatch(patterns []Pattern, schema, name string) bool {
	for _, p := range patterns {
		if p.Match(schema, name) {
			return true
		}
	}
	return false
}
