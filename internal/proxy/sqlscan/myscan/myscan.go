// Package myscan finds in the text of a MySQL or MariaDB statement what weir must
// know: its command, what it may do to the session, the settings that it
// changes, the hints in its comments, and whether it is an INSERT that can share
// a multi-row statement with others.
//
// It is the sibling of package sqlscan, which does this for PostgreSQL, and like
// it a lexer with a thin layer of grammar, not a parser. It follows the lexical
// rules of the servers (sql_lex.cc) exactly, because everything else rests on
// never mistaking a literal for code; above that it errs on the side of caution:
// what it does not recognise, it reports as an effect. It never rejects a
// statement (the server does that), never edits one, and allocates
// nothing for an ordinary statement.
//
// Every string that this package returns may alias the text that was scanned.
// A caller that scans a buffer converted without copying must clone what it
// keeps.
//
// The session's sql_mode must not hold ORACLE, which has another grammar.
package myscan

import "github.com/weirdb/weir/internal/proxy/sqlscan"

// Mode is what a text's reading depends on beyond the text. The zero value is
// that of a server with the default sql_mode, a client that speaks UTF-8 and may
// send one statement at a time.
type Mode struct {
	// AnsiQuotes: sql_mode has ANSI_QUOTES: "x" is an identifier.
	AnsiQuotes bool
	// NoBackslashEscapes: sql_mode has NO_BACKSLASH_ESCAPES.
	NoBackslashEscapes bool
	// Multi: the text may hold several statements: CLIENT_MULTI_STATEMENTS is on
	// and the text is sent with COM_QUERY. A prepared text is always one statement.
	Multi bool
	// Charset is what character_set_client makes of bytes above 127.
	Charset Charset
	// MariaDB tells of which family the server is. It counts only with Version.
	MariaDB bool
	// Version is the server's version as MYSQL_VERSION_ID has it, 101119 for
	// 10.11.19, or 0 if it is not known. Executable comments depend on it: with
	// 0, one that some servers run and others do not makes a text EffUnknown.
	Version uint32
}

// Charset is a class of character sets, by what the server's lexer makes of
// bytes above 127.
type Charset uint8

// The classes of character sets.
const (
	// CharsetUTF8: utf8mb4, utf8mb3, ascii, binary. Bytes above 127 are letters.
	CharsetUTF8 Charset = iota
	// CharsetByte: any other set that is none of CharsetTrail: latin1, cp1251,
	// euckr, ... Bytes above 127 may be white space, so a text that has one
	// outside of literals and quoted identifiers is EffUnknown.
	CharsetByte
	// CharsetTrail: big5, cp932, gb18030, gbk, sjis: the second byte of a
	// character may be a backslash or a backtick, so a text with any byte above
	// 127 is EffUnknown.
	CharsetTrail
)

// Statement is what Scan finds out about a text. Where the text holds several
// statements, Verb, Set, Name and Kill are those of the first and Effects is the
// union over all of them.
type Statement struct {
	Verb    Verb
	Effects Effect
	// First holds the effects of the first statement alone.
	First Effect
	Hints sqlscan.Hints
	// Set is filled for SET and walks what it assigns.
	Set SetList
	// Name is an object of the statement, without quotes, in the case as written:
	// the database of USE; the statement of PREPARE, EXECUTE and DEALLOCATE
	// (names that the server compares without case); the savepoint of SAVEPOINT,
	// ROLLBACK TO and RELEASE; the word behind SHOW.
	Name string
	// Kill is filled for KILL.
	Kill Kill
	// Count is the number of statements that the server would run and answer if
	// all succeed; some answer with several results (CALL). A text of nothing but comments is one; so is, with
	// Mode.Multi, a comment behind the last semicolon. The server refuses, as a
	// whole or from there on, a text with an empty statement or, without
	// Mode.Multi, a second one: then Effects has EffUnknown.
	Count int
}

// Kill is the content of KILL.
type Kill struct {
	// ID is the number; 0 if the statement names its victim otherwise: by a user,
	// a parameter or an expression.
	ID uint64
	// Start and End are where the number's digits stand in the text.
	Start, End int
	// Query: KILL QUERY, which leaves the connection.
	Query bool
	// QueryID: KILL QUERY ID (MariaDB): ID is the number of a query, not of a
	// connection.
	QueryID bool
}

// readOnlyEffects are the effects that a read may have.
const readOnlyEffects = EffSysVar | EffSleep | EffWeirShow | EffStatementSet

// ReadOnly reports whether the text is one SELECT, VALUES, TABLE or SHOW that
// writes nothing, locks nothing, changes nothing of the session, calls no
// unknown function and answers alike on every connection that has the session's
// settings, provided that the session has no temporary tables and no locked
// ones. It may sleep, see EffSleep.
func (s Statement) ReadOnly() bool {
	switch s.Verb {
	case VerbSelect, VerbValues, VerbTable, VerbShow:
		return s.Effects&^readOnlyEffects == 0
	}
	return false
}
