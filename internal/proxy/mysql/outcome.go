package mysql

import (
	"github.com/weirdb/weir/internal/proxy/sqlscan/myscan"
	"github.com/weirdb/weir/internal/wire/mywire"
)

// This file finds out from a unit's answer what its statements have done, or may have done.

// A change is what weir must check when a unit's answer has come.
type change uint16

const (
	changeState            change = 1 << iota // the server reports a change of session state
	changeNames                               // SET NAMES, SET CHARACTER SET
	changeTimestampDefault                    // SET timestamp = DEFAULT
	changeUnlock                              // UNLOCK TABLES and the like
	changeReleaseAll                          // RELEASE_ALL_LOCKS() and nothing else
	changeReleaseOne                          // RELEASE_LOCK(), or something that may be either
	changeDeallocate                          // DEALLOCATE PREPARE
	changeXAEnd                               // XA COMMIT, XA ROLLBACK
	changeQuit                                // the server closes the connection afterwards
	changeSessions                            // new sessions may begin differently
)

// refused reports whether the server has done nothing of a statement: it could not parse it, or
// the user lacks a privilege. A statement that failed otherwise may have taken effect in part,
// such as a GRANT to several accounts.
func (u *unit) refused() bool {
	if !u.failed || u.effects.Has(myscan.EffMulti) {
		return false
	}
	switch u.code {
	case mywire.ErrAccessDenied, mywire.ErrDBAccessDenied, mywire.ErrSyntax, errTableAccessDenied, errColumnAccessDenied,
		errUnknownVariable, errGlobalVariable, errLocalVariable, errReadOnlyVariable, errWrongValue, errWrongType,
		errSpecificAccessDenied, errRoutineAccessDenied:
		return true
	}
	return false
}

// Error numbers of statements that the server refuses.
const (
	errColumnAccessDenied   = 1143
	errGlobalVariable       = 1229
	errLocalVariable        = 1228
	errReadOnlyVariable     = 1238
	errRoutineAccessDenied  = 1370
	errSpecificAccessDenied = 1227
	errTableAccessDenied    = 1142
	errUnknownVariable      = 1193
	errWrongType            = 1232
	errWrongValue           = 1231
)

// keptStatus are the flags that belong to the session.
const keptStatus = mywire.StatusInTrans | mywire.StatusAutocommit | mywire.StatusInTransReadOnly |
	mywire.StatusNoBackslashEscapes | mywire.StatusANSIQuotes

// answersWithRows reports whether an answer may have had rows.
func (u *unit) answersWithRows() bool {
	switch u.verb {
	case myscan.VerbInsert, myscan.VerbReplace, myscan.VerbUpdate, myscan.VerbDelete, myscan.VerbDo, myscan.VerbSet:
		return u.rows > 0
	case myscan.VerbCall:
		return false // it ends with an OK of its own
	}
	return true
}

// wasTransaction reports whether a statement that has left no transaction certainly was one, or
// ended one. A statement that reads only constants is none.
func (u *unit) wasTransaction() bool {
	switch u.verb {
	case myscan.VerbCommit, myscan.VerbRollback:
		return true
	case myscan.VerbInsert, myscan.VerbReplace, myscan.VerbUpdate, myscan.VerbDelete:
		return u.ok.AffectedRows > 0
	}
	return false
}

// neverRan reports whether a statement failed before it had any effect.
func neverRan(u *unit) bool {
	if u.effects.Has(myscan.EffMulti) || u.verb == myscan.VerbCall || u.verb == myscan.VerbExecute {
		return false
	}
	return u.code == mywire.ErrSyntax || u.code == errNoSuchRoutine
}

// errNoSuchRoutine is ER_SP_DOES_NOT_EXIST.
const errNoSuchRoutine = 1305

// plainVerb reports whether a failed statement outside a transaction certainly leaves none.
func plainVerb(u *unit) bool {
	if u.effects.Has(myscan.EffUnknown | myscan.EffMulti | myscan.EffUnknownFunc | myscan.EffTxBegin | myscan.EffSet | myscan.EffXA) {
		return false
	}
	return u.cmd == mywire.ComQuery || u.cmd == mywire.ComStmtExecute || u.cmd == mywire.ComStmtPrepare
}

// hidesAccounts reports whether a unit may have changed accounts although its text does not
// show that: statements prepared in SQL and bodies of procedures may contain anything, such as
// SET PASSWORD. Functions and triggers may not contain such statements.
func (u *unit) hidesAccounts() bool {
	const unseen = myscan.EffOpaque | myscan.EffUnknown | myscan.EffAdmin | myscan.EffPrepare | myscan.EffSetGlobal
	switch u.verb {
	case myscan.VerbCall, myscan.VerbExecute:
		return u.effects.Has(unseen) || u.unjudged > 0
	}
	return u.effects.Has(myscan.EffUnknown)
}
