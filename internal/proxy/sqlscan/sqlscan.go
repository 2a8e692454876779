// Package sqlscan finds in the text of a PostgreSQL statement what weir must
// know: its command, what it may do to the session, the hints in its comments,
// and whether it is an INSERT that can share a multi-row statement with others.
//
// It is a lexer with a thin layer of grammar, not a parser. It follows the
// lexical rules of PostgreSQL (scan.l) exactly, because everything else depends
// on never mistaking a literal for code. Beyond that it errs on the safe side: it
// reports what it does not recognise as an effect. It never
// rejects a statement (the server does that), never edits one, and
// allocates nothing for an ordinary statement.
//
// Every string that this package returns may alias the text that was scanned.
// A caller that scans a buffer converted without copying must clone what it
// keeps.
package sqlscan

import (
	"slices"
	"strings"
	"time"
)

// Statement is what Scan finds out about a text. Where the text holds several
// statements, Verb, Set and Name are those of the first and Effects is the
// union over all of them.
type Statement struct {
	Verb    Verb
	Effects Effect
	Hints   Hints
	// Set is filled for SET and RESET; see EffSet and EffSetUnknown.
	Set SetClause
	// Sets are those of all statements, in order, if there are several.
	Sets []SetClause
	// Name is the object of DEALLOCATE, EXECUTE (also in EXPLAIN and CREATE TABLE AS), PREPARE,
	// DECLARE, CLOSE, DISCARD, LISTEN, UNLISTEN, FETCH and MOVE as the server would store it:
	// without quotes, folded to lower case unless quoted, cut to 63 bytes. Empty for
	// DEALLOCATE ALL, CLOSE ALL, DISCARD ALL and UNLISTEN *.
	Name string
	// Names are those of the statements behind the first, in order.
	Names []string
	// Count is the number of statements that are not empty.
	Count int
}

// Clone returns a copy that does not alias the text.
func (s *Statement) Clone() Statement {
	own := *s
	own.Hints = s.Hints.Clone()
	own.Set = s.Set.clone()
	own.Sets = slices.Clone(s.Sets)
	for i := range own.Sets {
		own.Sets[i] = own.Sets[i].clone()
	}
	own.Name = strings.Clone(s.Name)
	own.Names = slices.Clone(s.Names)
	for i, name := range own.Names {
		own.Names[i] = strings.Clone(name)
	}
	return own
}

// SetClause is the content of SET or RESET.
type SetClause struct {
	Name    string // setting in lower case: "timezone" for TIME ZONE, "client_encoding" for NAMES, "search_path" for SCHEMA
	Value   string // the value list as written, without comments and white space at its ends; "" with Default and Reset
	Local   bool   // SET LOCAL
	Session bool   // SET SESSION, written out
	Default bool   // SET ... TO DEFAULT (also TIME ZONE LOCAL, NAMES without a name)
	Reset   bool   // RESET
	All     bool   // RESET ALL
}

func (s SetClause) clone() SetClause {
	s.Name, s.Value = strings.Clone(s.Name), strings.Clone(s.Value)
	return s
}

// Hints is what leading comments ask of weir; the grammar is in hints.go.
type Hints struct {
	Batch BatchHint
	File  string        // call site, from file:
	Line  int           // call site, from line:
	TTL   time.Duration // cache lifetime, from ttl: in seconds; 0: the cache is not used
	Tag   string        // by which a cached answer is purged, from tag:
	Trace string        // W3C traceparent, from SQLCommenter
	// Bad has one sentence for each hint that cannot be used or has no effect; nil normally.
	Bad []string
	// NoCache: TTL is 0 because of ttl:0, and no other value counts.
	NoCache bool
}

// Clone returns a copy that does not alias the text.
func (h *Hints) Clone() Hints {
	own := *h // the sentences in Bad alias nothing
	own.File, own.Tag, own.Trace = strings.Clone(h.File), strings.Clone(h.Tag), strings.Clone(h.Trace)
	return own
}

// BatchKind says which form of the batch hint was given.
type BatchKind uint8

// The forms of the batch hint.
const (
	BatchNone   BatchKind = iota // no hint
	BatchOff                     // batch:off, batch:0
	BatchAuto                    // batch, batch:auto
	BatchWindow                  // batch:N
)

// String returns "none", "off", "auto" or "window".
func (k BatchKind) String() string {
	switch k {
	case BatchNone:
		return "none"
	case BatchOff:
		return "off"
	case BatchAuto:
		return "auto"
	case BatchWindow:
		return "window"
	}
	return "invalid"
}

// BatchHint is the batch hint. Window is the most extra wait that the client
// accepts, above 0 and up to 1 s; zero unless Kind is BatchWindow.
type BatchHint struct {
	Kind   BatchKind
	Window time.Duration
}

// readOnlyEffects are the effects that a read may have.
const readOnlyEffects = EffSessionRead | EffSequenceRead | EffSleep | EffWeirShow | EffBackslash

// ReadOnly reports whether the text is one SELECT, VALUES, TABLE or SHOW that
// writes nothing, locks nothing, leaves the session unchanged and calls no
// unknown function.
func (s Statement) ReadOnly() bool {
	switch s.Verb {
	case VerbSelect, VerbValues, VerbTable, VerbShow:
		return s.Effects&^readOnlyEffects == 0
	}
	return false
}

// Conform returns the text that means under standard_conforming_strings=on what
// sql means in a session that has it off, where a backslash in a plain literal
// escapes: such literals are written as E'...'. A text without them is returned as
// it is. Texts for such sessions go through Conform before any other function of
// this package reads them; the server gets them as they are.
func Conform(sql string) string {
	if strings.IndexByte(sql, '\\') < 0 {
		return sql
	}
	lex := lexer{sql: sql, escapes: true}
	var out strings.Builder
	done := 0
	for t := lex.next(); t.kind != tokEOF; t = lex.next() {
		if t.kind != tokString || strings.IndexByte(sql[t.start:t.end], '\\') < 0 {
			continue
		}
		quote := t.start
		switch sql[t.start] {
		case '\'':
		case 'n', 'N':
			quote++
		default:
			continue
		}
		out.WriteString(sql[done:t.start])
		out.WriteString(" E") // without the space it could be the end of a name
		done = quote
	}
	if out.Len() == 0 {
		return sql
	}
	out.WriteString(sql[done:])
	return out.String()
}

// ASCII reports whether a text has ASCII bytes only.
func ASCII(s string) bool {
	for len(s) >= 8 {
		if (s[0]|s[1]|s[2]|s[3]|s[4]|s[5]|s[6]|s[7])&0x80 != 0 {
			return false
		}
		s = s[8:]
	}
	for i := range len(s) {
		if s[i]&0x80 != 0 {
			return false
		}
	}
	return true
}
