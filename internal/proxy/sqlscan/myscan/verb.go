package myscan

// Verb is the command of a statement. It is a coarse class: what weir must know to route a
// statement, not the server's own list of commands.
type Verb uint8

// The verbs. One that covers several commands says which.
const (
	VerbEmpty      Verb = iota // nothing but white space and comments
	VerbSelect                 // SELECT, also in parentheses or behind WITH
	VerbValues                 // VALUES (...), VALUES ROW(...)
	VerbTable                  // TABLE name
	VerbInsert                 // INSERT
	VerbReplace                // REPLACE
	VerbUpdate                 // UPDATE
	VerbDelete                 // DELETE
	VerbBegin                  // BEGIN [WORK], START TRANSACTION
	VerbCommit                 // COMMIT
	VerbRollback               // ROLLBACK
	VerbSavepoint              // SAVEPOINT
	VerbRelease                // RELEASE SAVEPOINT
	VerbRollbackTo             // ROLLBACK TO [SAVEPOINT]
	VerbXA                     // XA in all its forms
	VerbSet                    // SET in all its forms but SET STATEMENT ... FOR, which has the verb of what follows
	VerbUse                    // USE
	VerbShow                   // SHOW
	VerbExplain                // EXPLAIN, DESCRIBE, MariaDB's ANALYZE of a query; the effects are those of the explained statement
	VerbLock                   // LOCK TABLES, LOCK INSTANCE, BACKUP
	VerbUnlock                 // UNLOCK TABLES, UNLOCK INSTANCE
	VerbPrepare                // PREPARE name FROM
	VerbExecute                // EXECUTE name, EXECUTE IMMEDIATE
	VerbDeallocate             // DEALLOCATE PREPARE, DROP PREPARE
	VerbCall                   // CALL
	VerbDo                     // DO
	VerbHandler                // HANDLER
	VerbLoad                   // LOAD DATA, LOAD XML
	VerbKill                   // KILL
	VerbDDL                    // CREATE, ALTER, DROP, TRUNCATE, RENAME, GRANT, REVOKE, COMMENT: they commit first
	VerbMaintain               // ANALYZE, OPTIMIZE, CHECK, CHECKSUM, REPAIR TABLE, CACHE INDEX, LOAD INDEX
	VerbAdmin                  // FLUSH, RESET, PURGE, CHANGE, START, STOP, INSTALL, UNINSTALL, BINLOG, CLONE, IMPORT, SHUTDOWN, RESTART
	VerbDiagnose               // GET DIAGNOSTICS, SIGNAL, RESIGNAL
	VerbHelp                   // HELP
	VerbCompound               // BEGIN NOT ATOMIC, IF, LOOP, ...: statements in a statement; always comes with EffUnknown
	VerbOther                  // none of the above; always comes with EffUnknown

	verbCount
)

var verbNames = [verbCount]string{
	VerbEmpty: "EMPTY", VerbSelect: "SELECT", VerbValues: "VALUES", VerbTable: "TABLE",
	VerbInsert: "INSERT", VerbReplace: "REPLACE", VerbUpdate: "UPDATE", VerbDelete: "DELETE",
	VerbBegin: "BEGIN", VerbCommit: "COMMIT", VerbRollback: "ROLLBACK", VerbSavepoint: "SAVEPOINT",
	VerbRelease: "RELEASE", VerbRollbackTo: "ROLLBACK TO", VerbXA: "XA", VerbSet: "SET",
	VerbUse: "USE", VerbShow: "SHOW", VerbExplain: "EXPLAIN", VerbLock: "LOCK", VerbUnlock: "UNLOCK",
	VerbPrepare: "PREPARE", VerbExecute: "EXECUTE", VerbDeallocate: "DEALLOCATE", VerbCall: "CALL",
	VerbDo: "DO", VerbHandler: "HANDLER", VerbLoad: "LOAD", VerbKill: "KILL", VerbDDL: "DDL",
	VerbMaintain: "MAINTAIN", VerbAdmin: "ADMIN", VerbDiagnose: "DIAGNOSE", VerbHelp: "HELP",
	VerbCompound: "COMPOUND", VerbOther: "OTHER",
}

// String returns the verb in capitals, for instance "ROLLBACK TO".
func (v Verb) String() string {
	if v < verbCount {
		return verbNames[v]
	}
	return "INVALID"
}

// queryVerb returns the verb of a command that may stand behind WITH.
func queryVerb(kw keyword) Verb {
	switch kw {
	case kwSelect:
		return VerbSelect
	case kwInsert:
		return VerbInsert
	case kwReplace:
		return VerbReplace
	case kwUpdate:
		return VerbUpdate
	case kwDelete:
		return VerbDelete
	case kwValues:
		return VerbValues
	case kwTable:
		return VerbTable
	}
	return VerbOther
}

// verbOf returns the verb of any other command.
func verbOf(kw keyword) Verb {
	switch kw {
	case kwBegin:
		return VerbBegin
	case kwStart:
		return VerbAdmin // the next word distinguishes START TRANSACTION
	case kwCommit:
		return VerbCommit
	case kwRollback:
		return VerbRollback
	case kwSavepoint:
		return VerbSavepoint
	case kwRelease:
		return VerbRelease
	case kwXa:
		return VerbXA
	case kwSet:
		return VerbSet
	case kwUse:
		return VerbUse
	case kwShow:
		return VerbShow
	case kwExplain, kwDescribe, kwDesc, kwAnalyze:
		return VerbExplain
	case kwLock, kwBackup:
		return VerbLock
	case kwUnlock:
		return VerbUnlock
	case kwPrepare:
		return VerbPrepare
	case kwExecute:
		return VerbExecute
	case kwDeallocate:
		return VerbDeallocate
	case kwCall:
		return VerbCall
	case kwDo:
		return VerbDo
	case kwHandler:
		return VerbHandler
	case kwLoad:
		return VerbLoad
	case kwKill:
		return VerbKill
	case kwCreate, kwAlter, kwDrop, kwTruncate, kwRename, kwGrant, kwRevoke:
		return VerbDDL
	case kwOptimize, kwCheck, kwChecksum, kwRepair, kwCache:
		return VerbMaintain
	case kwFlush, kwReset, kwPurge, kwChange, kwStop, kwInstall, kwUninstall, kwBinlog, kwClone, kwImport,
		kwShutdown, kwRestart:
		return VerbAdmin
	case kwGet, kwSignal, kwResignal:
		return VerbDiagnose
	case kwHelp:
		return VerbHelp
	case kwIf, kwCase, kwLoop, kwWhile, kwRepeat, kwFor:
		return VerbCompound
	}
	return VerbOther
}
