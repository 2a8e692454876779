package postgres

import (
	"github.com/weirdb/weir/internal/proxy/postgres/catalogue"
	"github.com/weirdb/weir/internal/proxy/session"
	"github.com/weirdb/weir/internal/proxy/sight"
	"github.com/weirdb/weir/internal/proxy/sqlscan"
)

// A route says where a statement may run.
type route uint8

const (
	// routeAlone: on a backend of its own for the statement, the transaction or
	// the session. This is the default for everything that weir does not know.
	routeAlone route = iota
	// routeRead: a read without effects; may share a backend's pipeline.
	routeRead
	// routeWrite: one INSERT, UPDATE, DELETE or MERGE; may join a group if a
	// hint or the configuration asks for it.
	routeWrite
)

// writeEffects are the effects that a write may have and still join a group:
// rows written, sequences advanced, and harmless routines called.
const writeEffects = sqlscan.EffWrites | sqlscan.EffSequence | sqlscan.EffBackslash | sqlscan.EffRoutine | sqlscan.EffLiterals | sqlscan.EffPath

func routeOf(info *sqlscan.Statement) route {
	switch info.Verb {
	case sqlscan.VerbSelect, sqlscan.VerbValues, sqlscan.VerbTable, sqlscan.VerbEmpty:
		if info.Effects&^sqlscan.EffBackslash == 0 {
			return routeRead
		}
	case sqlscan.VerbInsert, sqlscan.VerbUpdate, sqlscan.VerbDelete, sqlscan.VerbMerge:
		if info.Effects&^writeEffects == 0 {
			return routeWrite
		}
	}
	return routeAlone
}

// A stmt is one prepared statement text, shared by all clients of a pool that
// parse the same text with the same parameter types under the same settings.
// It is prepared on a backend when first needed there, under srvName, a name
// that no client can use (see foreignName).
type stmt struct {
	key     string // settings key and Parse tail: its identity in the pool
	srvName string
	tail    []byte // of the Parse message after the name: text, NUL, parameter types
	sql     string
	text    sqlscan.Statement // what its text shows
	info    catalogue.Reading // and what is known of the names in it
	judged  uint64            // the epoch of the index that info is based on
	route   route
	shape   *sight.Shape
	insert  sqlscan.InsertShape
	rows    bool // insert is valid: may become part of a multi-row statement
	serial  sqlscan.SerialShape
	// serialOK: serial is valid: may share a transaction with others
	serialOK bool
	refs     int     // number of clients' names that point here
	lex      lexical // how its text is read, if that matters
	// set and as are the settings that it was parsed in; set is nil if it belongs to one client.
	set    *session.Set
	as     lexical
	asRead string // its text as weir reads it: see lexical.reads
	// body is its text without comments around it, and volatile reports whether it calls a function
	// whose result changes by itself: for the cache, computed when first needed.
	body     string
	volatile bool
	stale    bool            // the server refused its plan after a change of the schema
	noticed  bool            // the server answers its Parse with a notice
	desc     stmtDescription // what its clients were told of it
	other    *stmt           // with the same text, of which clients were told something else: see toldAs
	// literals: it has quoted literals. own: it means something else for each client, as 'now'
	// does. single: it belongs to one client. See literals.go.
	literals, own, single bool
}

// long reports whether the statement's text must not be parsed on a loop.
func (st *stmt) long() bool { return len(st.sql) > maxScanned }

// srvPrefix is the prefix of the names of all statements that weir prepares.
const srvPrefix = "weir_"

// maxSharedText bounds the texts that are kept for sharing; a longer one is
// parsed for its client alone.
const maxSharedText = 64 << 10

// maxStmts bounds the shared texts of a pool; beyond it, those that no client names are
// dropped.
const maxStmts = 10000

// maxStmtBytes bounds the same in bytes.
const maxStmtBytes = 32 << 20

// scan scans a text in the form in which lexical.reads has it.
func scan(sql string, asRead *sqlscan.Text) sqlscan.Statement {
	info := asRead.Scan()
	if asRead.String() != sql {
		info.Effects |= sqlscan.EffBackslash
	}
	return info
}
