package myscan

// keyword is a word of the servers' grammars that the scanner names; notKeyword is any other
// word. Other known words, see words.go, have numbers above lastKeyword.
type keyword uint16

const (
	notKeyword keyword = iota
	kwAlter
	kwAnalyze
	kwAs
	kwBackup
	kwBegin
	kwBinlog
	kwCache
	kwCall
	kwCase
	kwChange
	kwChar
	kwCharacter
	kwCharset
	kwCheck
	kwChecksum
	kwClone
	kwClose
	kwCollate
	kwCommit
	kwCommitted
	kwCondition
	kwConnection
	kwCount
	kwCreate
	kwData
	kwDatabase
	kwDeallocate
	kwDefault
	kwDefiner
	kwDelayed
	kwDelete
	kwDesc
	kwDescribe
	kwDo
	kwDrop
	kwDumpfile
	kwElse
	kwEnd
	kwErrors
	kwEvent
	kwExecute
	kwExplain
	kwExport
	kwFalse
	kwFlush
	kwFor
	kwFormat
	kwFrom
	kwFull
	kwFunction
	kwGet
	kwGlobal
	kwGrant
	kwHandler
	kwHard
	kwHelp
	kwHighPriority
	kwId
	kwIf
	kwIgnore
	kwImmediate
	kwImport
	kwIn
	kwIndex
	kwInsert
	kwInstall
	kwInstance
	kwInto
	kwIsolation
	kwKill
	kwLevel
	kwLike
	kwLimit
	kwLoad
	kwLocal
	kwLock
	kwLoop
	kwLowPriority
	kwNames
	kwNext
	kwNo
	kwNull
	kwOnly
	kwOpen
	kwOptimize
	kwOr
	kwOrder
	kwOutfile
	kwPackage
	kwPartition
	kwPassword
	kwPersist
	kwPersistOnly
	kwPrepare
	kwPrevious
	kwProcedure
	kwProcesslist
	kwProfile
	kwProfiles
	kwPurge
	kwQuery
	kwRead
	kwRecursive
	kwRelease
	kwRename
	kwRepair
	kwRepeat
	kwRepeatable
	kwReplace
	kwReset
	kwResignal
	kwResource
	kwRestart
	kwRestrict
	kwReturning
	kwRevoke
	kwRole
	kwRollback
	kwRow
	kwSavepoint
	kwSelect
	kwSerializable
	kwSession
	kwSet
	kwShare
	kwShow
	kwShutdown
	kwSignal
	kwSoft
	kwSqlCalcFoundRows
	kwStage
	kwStart
	kwStatement
	kwStatus
	kwStop
	kwTable
	kwTables
	kwTemporary
	kwThen
	kwTo
	kwTransaction
	kwTrigger
	kwTrue
	kwTruncate
	kwUncommitted
	kwUninstall
	kwUnlock
	kwUpdate
	kwUse
	kwUser
	kwUsing
	kwValue
	kwValues
	kwVariables
	kwView
	kwWarnings
	kwWhen
	kwWhere
	kwWhile
	kwWith
	kwWork
	kwWrite
	kwXa

	lastKeyword = kwXa
)

var keywordNames = [...]string{
	kwAlter: "alter", kwAnalyze: "analyze", kwAs: "as", kwBackup: "backup", kwBegin: "begin",
	kwBinlog: "binlog", kwCache: "cache", kwCall: "call", kwCase: "case", kwChange: "change", kwChar: "char",
	kwCharacter: "character", kwCharset: "charset", kwCheck: "check", kwChecksum: "checksum", kwClone: "clone",
	kwClose: "close", kwCollate: "collate", kwCommit: "commit", kwCommitted: "committed",
	kwCondition: "condition", kwConnection: "connection", kwCount: "count", kwCreate: "create", kwData: "data",
	kwDatabase: "database", kwDeallocate: "deallocate", kwDefault: "default", kwDefiner: "definer",
	kwDelayed: "delayed", kwDelete: "delete", kwDesc: "desc", kwDescribe: "describe", kwDo: "do",
	kwDrop: "drop", kwDumpfile: "dumpfile", kwElse: "else", kwEnd: "end", kwErrors: "errors", kwEvent: "event",
	kwExecute: "execute", kwExplain: "explain", kwExport: "export", kwFalse: "false", kwFlush: "flush",
	kwFor: "for", kwFormat: "format", kwFrom: "from", kwFull: "full", kwFunction: "function", kwGet: "get",
	kwGlobal: "global", kwGrant: "grant", kwHandler: "handler", kwHard: "hard", kwHelp: "help",
	kwHighPriority: "high_priority", kwId: "id", kwIf: "if", kwIgnore: "ignore", kwImmediate: "immediate",
	kwImport: "import", kwIn: "in", kwIndex: "index", kwInsert: "insert", kwInstall: "install",
	kwInstance: "instance", kwInto: "into", kwIsolation: "isolation", kwKill: "kill", kwLevel: "level",
	kwLike: "like", kwLimit: "limit", kwLoad: "load", kwLocal: "local", kwLock: "lock", kwLoop: "loop",
	kwLowPriority: "low_priority", kwNames: "names", kwNext: "next", kwNo: "no", kwNull: "null", kwOnly: "only",
	kwOpen: "open", kwOptimize: "optimize", kwOr: "or", kwOrder: "order", kwOutfile: "outfile",
	kwPackage: "package", kwPartition: "partition", kwPassword: "password", kwPersist: "persist",
	kwPersistOnly: "persist_only", kwPrepare: "prepare", kwPrevious: "previous", kwProcedure: "procedure",
	kwProcesslist: "processlist", kwProfile: "profile", kwProfiles: "profiles", kwPurge: "purge",
	kwQuery: "query", kwRead: "read", kwRecursive: "recursive", kwRelease: "release", kwRename: "rename",
	kwRepair: "repair", kwRepeat: "repeat", kwRepeatable: "repeatable", kwReplace: "replace", kwReset: "reset",
	kwResignal: "resignal", kwResource: "resource", kwRestart: "restart", kwRestrict: "restrict",
	kwReturning: "returning", kwRevoke: "revoke", kwRole: "role", kwRollback: "rollback", kwRow: "row",
	kwSavepoint: "savepoint", kwSelect: "select", kwSerializable: "serializable", kwSession: "session",
	kwSet: "set", kwShare: "share", kwShow: "show", kwShutdown: "shutdown", kwSignal: "signal", kwSoft: "soft",
	kwSqlCalcFoundRows: "sql_calc_found_rows", kwStage: "stage", kwStart: "start", kwStatement: "statement",
	kwStatus: "status", kwStop: "stop", kwTable: "table", kwTables: "tables", kwTemporary: "temporary",
	kwThen: "then", kwTo: "to", kwTransaction: "transaction", kwTrigger: "trigger", kwTrue: "true",
	kwTruncate: "truncate", kwUncommitted: "uncommitted", kwUninstall: "uninstall", kwUnlock: "unlock",
	kwUpdate: "update", kwUse: "use", kwUser: "user", kwUsing: "using", kwValue: "value", kwValues: "values",
	kwVariables: "variables", kwView: "view", kwWarnings: "warnings", kwWhen: "when", kwWhere: "where",
	kwWhile: "while", kwWith: "with", kwWork: "work", kwWrite: "write", kwXa: "xa",
}
