// Package myscan extracts from the text of a MySQL or MariaDB statement what weir must know:
// its command, its possible effects on the session, the settings that it changes, the hints in
// its comments, and whether it is an INSERT that can share a multi-row statement with others.
//
// It is the counterpart of package sqlscan for PostgreSQL, and like it a lexer with a thin
// layer of grammar, not a parser. It follows the lexical rules of the servers (sql_lex.cc)
// exactly, because everything else depends on never taking a literal for code; above that it is
// conservative: whatever it does not recognise it reports as an effect. It never rejects a
// statement (the server does that), never modifies one, and allocates nothing for an ordinary
// statement.
//
// Every string that this package returns may alias the text that was scanned. A caller that
// scans a buffer converted without copying must clone what it keeps.
//
// The session's sql_mode must not include ORACLE, which has another grammar.
package myscan

import (
	"strings"

	"github.com/weirdb/weir/internal/proxy/sqlscan"
)

// Mode is what the reading of a text depends on beyond the text. The zero value is that of a
// server with the default sql_mode, and a client that uses UTF-8 and sends one statement at a
// time.
type Mode struct {
	// AnsiQuotes: sql_mode has ANSI_QUOTES: "x" is an identifier.
	AnsiQuotes bool
	// NoBackslashEscapes: sql_mode has NO_BACKSLASH_ESCAPES.
	NoBackslashEscapes bool
	// Multi: the text may have several statements: CLIENT_MULTI_STATEMENTS is on and the text
	// is sent with COM_QUERY. A prepared text is always one statement.
	Multi bool
	// Charset says how character_set_client reads bytes above 127.
	Charset Charset
	// MariaDB says that the server is MariaDB. It is used only with Version.
	MariaDB bool
	// Version is the server's version as in MYSQL_VERSION_ID, 101119 for 10.11.19, or 0 if it
	// is not known. Executable comments depend on it: with 0, a comment that only some servers
	// run makes a text EffUnknown.
	Version uint32
}

// Charset is a class of character sets, by how the server's lexer reads bytes above 127.
type Charset uint8

// The classes of character sets.
const (
	// CharsetUTF8: utf8mb4, utf8mb3, ascii, binary. Bytes above 127 are letters.
	CharsetUTF8 Charset = iota
	// CharsetByte: any set not in CharsetTrail: latin1, cp1251, euckr, ... Bytes above 127 may
	// be white space, so a text that has one outside of literals and quoted identifiers is
	// EffUnknown.
	CharsetByte
	// CharsetTrail: big5, cp932, gb18030, gbk, sjis: the second byte of a
	// character may be a backslash or a backtick, so a text with any byte above
	// 127 is EffUnknown.
	CharsetTrail
)

// Statement is the result of Scan. If the text has several statements, Verb, Set, Name and Kill
// are those of the first, and Effects is the union over all of them.
type Statement struct {
	Verb    Verb
	Effects Effect
	// First holds the effects of the first statement alone.
	First Effect
	Hints sqlscan.Hints
	// Set is filled for SET and iterates over its assignments.
	Set SetList
	// Name is an object of the statement, without quotes, in the case as written: the database
	// of USE; the statement of PREPARE, EXECUTE and DEALLOCATE (the server ignores the case of
	// these); the savepoint of SAVEPOINT, ROLLBACK TO and RELEASE; the word after SHOW.
	Name string
	// Kill is filled for KILL.
	Kill Kill
	// Count is the number of statements that the server would run and answer if all succeed;
	// some have several results (CALL). A text that has only comments counts as one; so does,
	// with Mode.Multi, a comment after the last semicolon. The server refuses, as a whole or
	// from there on, a text with an empty statement or, without Mode.Multi, a second one: then
	// Effects has EffUnknown.
	Count int
}

// Clone returns a copy that does not alias the text that s is the result of. t is a Text of its
// own that was read from the same text in the same mode, and that the copy may alias.
func (s *Statement) Clone(t *Text) Statement {
	if s.Name != "" || s.Set != (SetList{}) {
		return t.Scan()
	}
	own := *s
	own.Hints = s.Hints.Clone()
	return own
}

// Kill is the content of KILL.
type Kill struct {
	// ID is the number; 0 if the statement names its victim in another way: by a user, a
	// parameter or an expression.
	ID uint64
	// Start and End are the offsets of the number's digits in the text.
	Start, End int
	// Query: KILL QUERY, which keeps the connection.
	Query bool
	// QueryID: KILL QUERY ID (MariaDB): ID is the number of a query, not of a
	// connection.
	QueryID bool
}

// readOnlyEffects are the effects that a read may have.
const readOnlyEffects = EffSysVar | EffSleep | EffWeirShow | EffStatementSet

// ReadOnly reports whether the text is one SELECT, VALUES, TABLE or SHOW that writes nothing,
// locks nothing, does not change the session, calls no unknown function and has the same answer
// on every connection with the session's settings, provided that the session has no temporary
// tables and no locked ones. It may sleep, see EffSleep.
func (s Statement) ReadOnly() bool {
	switch s.Verb {
	case VerbSelect, VerbValues, VerbTable, VerbShow:
		return s.Effects&^readOnlyEffects == 0
	}
	return false
}

// HasMode reports whether a value of sql_mode has a mode.
func HasMode(sqlMode, name string) bool {
	for s := range strings.SplitSeq(sqlMode, ",") {
		if s == name {
			return true
		}
	}
	return false
}
