package myscan

import "github.com/weirdb/weir/internal/proxy/sqlscan/lexicon"

// Effect is a set of possible effects of a statement on its session, and of what it reads
// there. A set bit means "may", a clear bit means "does not, as far as the text shows": effects
// of views, triggers, column defaults, generated columns and the server's own settings
// (init_connect, sql_auto_is_null) are invisible here. So is what every statement does: each
// replaces the diagnostics of the one before, each INSERT may change LAST_INSERT_ID().
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
	// EffNextTx: sets characteristics of the next transaction only: SET TRANSACTION without a
	// scope, SET @@transaction_isolation = ...
	EffNextTx
	// EffQuit: the server closes the connection, or stops: COMMIT RELEASE,
	// SHUTDOWN, RESTART.
	EffQuit
	// EffSet: changes settings of the session; Statement.Set iterates over them. Those that
	// cannot be replayed elsewhere add EffSetUnknown.
	EffSet
	// EffSetUnknown: changes settings in a way that cannot be replayed from Statement.Set: a
	// value that is an expression, a SET or USE among several statements, a SET that could not
	// be parsed.
	EffSetUnknown
	// EffSetBare: SET @@name = ..., without a scope: MariaDB's session tracking does not report
	// these.
	EffSetBare
	// EffSetGlobal: SET GLOBAL, PERSIST or PERSIST_ONLY.
	EffSetGlobal
	// EffRole: SET ROLE.
	EffRole
	// EffUse: USE; Statement.Name is the database.
	EffUse
	// EffTemp: CREATE TEMPORARY TABLE, CREATE TEMPORARY SEQUENCE.
	EffTemp
	// EffRelease: may end session state: DROP [TEMPORARY], RELEASE_LOCK, UNLOCK TABLES,
	// DEALLOCATE, HANDLER CLOSE.
	EffRelease
	// EffUserVarRead: names a user variable where it is read, or where this package cannot tell
	// whether it is.
	EffUserVarRead
	// EffUserVarWrite: @x := ..., SET @x, INTO @x, out parameters.
	EffUserVarWrite
	// EffLock: GET_LOCK and related functions: a lock that the session holds.
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
	// EffDiag: depends on the diagnostics of the statement before: FOUND_ROWS(), ROW_COUNT(),
	// SHOW WARNINGS, GET DIAGNOSTICS, @@warning_count.
	EffDiag
	// EffCalcFoundRows: SQL_CALC_FOUND_ROWS: FOUND_ROWS() is likely to follow.
	EffCalcFoundRows
	// EffSequence: NEXTVAL, SETVAL: writes, and changes the value of LASTVAL.
	EffSequence
	// EffSequenceRead: LASTVAL, PREVIOUS VALUE FOR.
	EffSequenceRead
	// EffSessionRead: the answer depends on the connection itself, beyond its settings:
	// CONNECTION_ID(), IS_USED_LOCK(), SHOW STATUS, the process list, the performance schema.
	EffSessionRead
	// EffSysVar: reads settings: @@x, SHOW VARIABLES. The answer is right on any connection
	// with the client's settings.
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
	// EffUnknownFunc: calls code that the text does not show: a function that is not among the
	// known built-in ones, CALL, EXECUTE.
	EffUnknownFunc
	// EffXA: XA.
	EffXA
	// EffHandler: HANDLER ... OPEN and the use of one that is open.
	EffHandler
	// EffLoad: LOAD DATA, LOAD XML.
	EffLoad
	// EffLocal: the server will request a file from the client: LOAD DATA LOCAL.
	EffLocal
	// EffDDL: changes the catalogue, users or privileges.
	EffDDL
	// EffAdmin: acts on the server as a whole: FLUSH, KILL, RESET, SHUTDOWN, ...
	EffAdmin
	// EffStatementSet: SET STATEMENT ... FOR, or SET_VAR in an optimizer hint: settings for
	// this statement only.
	EffStatementSet
	// EffMulti: the text has more than one statement.
	EffMulti
	// EffWeirShow: SHOW WEIR STATUS.
	EffWeirShow
	// EffLockUnseen: EffLock, for a lock whose name the text does not show: in the body of a
	// routine, view or trigger, or in a prepared text. Scan never sets it.
	EffLockUnseen
	// EffGroup: SET RESOURCE GROUP: the session stays in that group, which the server does not
	// report and no reset ends.
	EffGroup
	// EffOpaque: reaches code that cannot be read or is not known before it runs: the hidden
	// body of a routine, dynamic SQL in a routine. Scan never sets it: it is for effects that
	// the text does not show.
	EffOpaque
	// EffUnknown: the text could not be parsed to its end (an unterminated literal, parentheses
	// deeper than 64), has an executable comment that the server may or may not run, or begins
	// with no known command. Every other effect may be missing.
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

// String returns the names of the members of e, joined by "|"; "none" for the empty set.
func (e Effect) String() string {
	return lexicon.SetNames(uint64(e), effectNames[:])
}
