package sqlscan

import "github.com/weirdb/weir/internal/proxy/sqlscan/lexicon"

// Effect is a set of things that a statement may do to its session or depend on in
// it. A set bit means "may", a clear bit means "does not, as far as the text
// shows": the text does not show what views, triggers, rules, column defaults, casts,
// operators and the functional notation row.f do.
type Effect uint64

// The effects.
const (
	// EffTx: begins, ends or configures a transaction (BEGIN, COMMIT, SAVEPOINT,
	// SET TRANSACTION, SET CONSTRAINTS, ...).
	EffTx Effect = 1 << iota
	// EffSet: SET or RESET that can be replayed; Statement.Set and Sets have the details.
	// With Set.Local it ends with the transaction and needs no replay.
	EffSet
	// EffSetUnknown: changes settings in a way that Statement.Set cannot tell
	// (SET SESSION CHARACTERISTICS, SET SEED, an INTERVAL time zone, a SET
	// among several statements). It may stand beside EffSet.
	EffSetUnknown
	// EffRole: SET or RESET of ROLE or SESSION AUTHORIZATION.
	EffRole
	// EffSetConfig: calls set_config and its third argument is not the word true.
	EffSetConfig
	// EffTemp: creates or names a temporary object.
	EffTemp
	// EffListen: LISTEN.
	EffListen
	// EffAdvisory: takes a session-level advisory lock.
	EffAdvisory
	// EffHold: DECLARE ... WITH HOLD.
	EffHold
	// EffPrepare: the SQL commands PREPARE and EXECUTE.
	EffPrepare
	// EffSequenceRead: currval or lastval.
	EffSequenceRead
	// EffSequence: nextval or setval; for information.
	EffSequence
	// EffSeed: sets the seed of random().
	EffSeed
	// EffLoad: LOAD.
	EffLoad
	// EffUnknownFunc: calls a function that is not known to be harmless, or is
	// DO or CALL.
	EffUnknownFunc
	// EffLockRows: FOR UPDATE, FOR NO KEY UPDATE, FOR SHARE, FOR KEY SHARE.
	EffLockRows
	// EffSessionRead: the answer depends on the backend, or on what a shared
	// backend does not have from the client (SHOW, current_setting,
	// pg_backend_pid, pg_stat_activity, pg_settings, ...).
	EffSessionRead
	// EffSleep: pg_sleep and its relatives.
	EffSleep
	// EffDDL: changes the catalogue.
	EffDDL
	// EffCopy: COPY.
	EffCopy
	// EffRelease: may end session state (DROP, pg_advisory_unlock, UNLISTEN,
	// CLOSE, DEALLOCATE, DISCARD, RESET): the caller should check what is left.
	EffRelease
	// EffDiscardAll: DISCARD ALL.
	EffDiscardAll
	// EffDeallocateAll: DEALLOCATE ALL; not set by DISCARD ALL.
	EffDeallocateAll
	// EffWrites: modifies rows: INSERT, UPDATE, DELETE, MERGE, TRUNCATE,
	// COPY FROM, SELECT INTO, also within WITH.
	EffWrites
	// EffMulti: more than one statement in the text.
	EffMulti
	// EffWeirShow: SHOW WEIR STATUS.
	EffWeirShow
	// EffBackslash: a plain string literal has a backslash, so the text was
	// read correctly only if standard_conforming_strings is on. See Conform.
	EffBackslash
	// EffUnknown: the text could not be read to its end (an unterminated
	// literal, parentheses deeper than 64) or begins with no known command.
	// Every other effect may be missing.
	EffUnknown
	// EffEncoding: the text was not read, because of its encoding. Scan does not
	// set it: callers that know the encoding do.
	EffEncoding
	// EffRoutine: calls a routine that is known to leave the session as it is, but
	// may write, wait or take long. Scan never sets it: that takes the
	// catalogue.
	EffRoutine
	// EffTouch: changes settings whose names are known and whose values can be read from
	// the server. Scan never sets it.
	EffTouch
	// EffBackup: puts the session into backup mode. Scan never sets it.
	EffBackup
	// EffLiterals: changes, by name, settings that decide how literals are read, even if only
	// until the transaction ends. Scan never sets it.
	EffLiterals
	// EffPath: the same for search_path.
	EffPath

	effectEnd
)

var effectNames = [...]string{
	"tx", "set", "set-unknown", "role", "set-config", "temp", "listen",
	"advisory", "hold", "prepare", "sequence-read", "sequence", "seed", "load",
	"unknown-func", "lock-rows", "session-read", "sleep", "ddl", "copy",
	"release", "discard-all", "deallocate-all", "writes", "multi", "weir-show",
	"backslash", "unknown", "encoding", "routine", "touch", "backup", "literals", "path",
}

// Has reports whether e and set have an effect in common.
func (e Effect) Has(set Effect) bool { return e&set != 0 }

// String returns the names of the set's members, joined by "|", or "none".
func (e Effect) String() string {
	return lexicon.SetNames(uint64(e), effectNames[:])
}
