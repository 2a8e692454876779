package myscan

import "github.com/weirdb/weir/internal/proxy/sqlscan/lexicon"

// Effect is a set of things that a statement may do to its session, or needs
// of it. A set bit means "may", a clear bit means "does not, as far as the text
// tells": what views, triggers, column defaults, generated columns and the
// server's own settings (init_connect, sql_auto_is_null) do behind the text is
// invisible here. So is what every statement does: each replaces the
// diagnostics of the one before, each INSERT may change LAST_INSERT_ID().
type Effect uint64

// The effects.
const (
	// EffTxBegin: BEGIN, START TRANSACTION, and COMMIT or ROLLBACK AND CHAIN,
	// which begin the next one.
	EffTxBegin Effect = 1 << iota
	// EffTxEnd: COMMIT, ROLLBACK.
	EffTxEnd
	// EffSavepoint: SAVEPOINT, ROLLBACK TO, RELEASE SAVEPOINT.
	EffSavepoint
	// EffImplicitCommit: commits an open transaction before it runs, and itself
	// afterwards: DDL, LOCK TABLES, BEGIN, SET PASSWORD, ANALYZE TABLE, ...
	EffImplicitCommit
	// EffNextTx: shapes the next transaction only: SET TRANSACTION without a
	// scope, SET @@transaction_isolation = ...
	EffNextTx
	// EffQuit: the server closes the connection, or stops: COMMIT RELEASE,
	// SHUTDOWN, RESTART.
	EffQuit
	// EffSet: changes settings of the session; Statement.Set walks them. Those
	// that cannot be replayed elsewhere add EffSetUnknown.
	EffSet
	// EffSetUnknown: changes settings in a way that cannot be replayed from
	// Statement.Set: a value that is an expression, a SET or USE among several
	// statements, a SET that could not be read.
	EffSetUnknown
	// EffSetBare: SET @@name = ..., without a scope: session tracking of MariaDB
	// leaves these out.
	EffSetBare
	// EffSetGlobal: SET GLOBAL, PERSIST or PERSIST_ONLY.
	EffSetGlobal
	// EffRole: SET ROLE.
	EffRole
	// EffUse: USE; Statement.Name is the database.
	EffUse
	// EffTemp: CREATE TEMPORARY TABLE, CREATE TEMPORARY SEQUENCE.
	EffTemp
	// EffRelease: may end session state: DROP [TEMPORARY], RELEASE_LOCK,
	// UNLOCK TABLES, DEALLOCATE, HANDLER CLOSE: the moment to look again.
	EffRelease
	// EffUserVarRead: names a user variable where it is read, or where this
	// package cannot tell.
	EffUserVarRead
	// EffUserVarWrite: @x := ..., SET @x, INTO @x, out parameters.
	EffUserVarWrite
	// EffLock: GET_LOCK and relatives: a lock that the session holds.
	EffLock
	// EffTableLock: LOCK TABLES, FLUSH TABLES WITH READ LOCK or FOR EXPORT,
	// BACKUP STAGE, BACKUP LOCK, LOCK INSTANCE.
	EffTableLock
	// EffPrepare: the SQL commands PREPARE and EXECUTE.
	EffPrepare
	// EffLastID: depends on LAST_INSERT_ID() of the session.
	EffLastID
	// EffSetLastID: sets LAST_INSERT_ID() by an argument or a variable.
	EffSetLastID
	// EffDiag: depends on what the statement before left in the session:
	// FOUND_ROWS(), ROW_COUNT(), SHOW WARNINGS, GET DIAGNOSTICS, @@warning_count.
	EffDiag
	// EffCalcFoundRows: SQL_CALC_FOUND_ROWS: FOUND_ROWS() is likely to follow.
	EffCalcFoundRows
	// EffSequence: NEXTVAL, SETVAL: writes, and what LASTVAL will say.
	EffSequence
	// EffSequenceRead: LASTVAL, PREVIOUS VALUE FOR.
	EffSequenceRead
	// EffSessionRead: the answer depends on the connection itself, beyond its
	// settings: CONNECTION_ID(), IS_USED_LOCK(), SHOW STATUS, the process list,
	// the performance schema.
	EffSessionRead
	// EffSysVar: reads settings: @@x, SHOW VARIABLES. The answer is right on any
	// connection with the client's settings.
	EffSysVar
	// EffSleep: SLEEP, BENCHMARK and functions that wait.
	EffSleep
	// EffLockRows: FOR UPDATE, FOR SHARE, LOCK IN SHARE MODE.
	EffLockRows
	// EffWrites: modifies rows or files: INSERT, UPDATE, DELETE, REPLACE, LOAD,
	// INTO OUTFILE, sequences.
	EffWrites
	// EffFile: SELECT ... INTO OUTFILE or DUMPFILE.
	EffFile
	// EffUnknownFunc: calls something whose text is not here: a function that is
	// not among the known built-in ones, CALL, EXECUTE.
	EffUnknownFunc
	// EffXA: XA.
	EffXA
	// EffHandler: HANDLER ... OPEN and the use of one that is open.
	EffHandler
	// EffLoad: LOAD DATA, LOAD XML.
	EffLoad
	// EffLocal: the server will ask the client for a file: LOAD DATA LOCAL.
	EffLocal
	// EffDDL: changes the catalogue, users or privileges.
	EffDDL
	// EffAdmin: acts on the server as a whole: FLUSH, KILL, RESET, SHUTDOWN, ...
	EffAdmin
	// EffStatementSet: SET STATEMENT ... FOR, or SET_VAR in an optimizer hint:
	// settings that hold for this statement alone.
	EffStatementSet
	// EffMulti: more than one statement in the text.
	EffMulti
	// EffWeirShow: SHOW WEIR STATUS.
	EffWeirShow
	// EffLockUnseen: EffLock, of a lock whose name the text does not show: in the body of
	// a routine, view or trigger, or in what was prepared. Scan never finds it.
	EffLockUnseen
	// EffGroup: SET RESOURCE GROUP: the session is in that group from then on, which the
	// server does not tell of, and no reset ends.
	EffGroup
	// EffOpaque: reaches something whose text cannot be read or is not known before
	// it runs: the body of a routine that is not shown, dynamic SQL in one. Scan
	// never finds it: it is for what is known beyond the text.
	EffOpaque
	// EffUnknown: the text could not be read to its end (an unterminated
	// literal, parentheses deeper than 64), has an executable comment of which it
	// is not known whether the server runs it, or begins with no known command.
	// Every other effect may be missing.
	EffUnknown

	effectEnd
)

var effectNames = [...]string{
	"tx-begin", "tx-end", "savepoint", "implicit-commit", "next-tx", "quit", "set", "set-unknown", "set-bare", "set-global",
	"role", "use", "temp", "release", "uservar-read", "uservar-write", "lock", "table-lock", "prepare", "last-id",
	"set-last-id", "diag", "calc-found-rows", "sequence", "sequence-read", "session-read", "sysvar", "sleep",
	"lock-rows", "writes", "file", "unknown-func", "xa", "handler", "load", "local", "ddl", "admin",
	"statement-set", "multi", "weir-show", "lock-unseen", "group", "opaque", "unknown",
}

// Has reports whether e and set have an effect in common.
func (e Effect) Has(set Effect) bool { return e&set != 0 }

// String lists the names of the set's members, joined by "|"; "none" for the
// empty set.
func (e Effect) String() string {
	return lexicon.SetNames(uint64(e), effectNames[:])
}
