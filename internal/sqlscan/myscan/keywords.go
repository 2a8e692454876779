package myscan

// keyword is a word of the servers' grammars that the scanner asks for by name;
// notKeyword for any other word. Other known words, see words.go, have numbers
// above lastKeyword.
type keyword uint16

const (
	notKeyword keyword = iota
	kwAction
	kwAdd
	kwAgainst
	kwAll
	kwAlter
	kwAnalyse
	kwAnalyze
	kwAnd
	kwAs
	kwAtomic
	kwBackup
	kwBefore
	kwBegin
	kwBinary
	kwBinlog
	kwBody
	kwBoth
	kwBy
	kwCache
	kwCall
	kwCase
	kwCast
	kwChange
	kwChar
	kwCharacter
	kwCharset
	kwCheck
	kwChecksum
	kwClone
	kwClose
	kwCollate
	kwColumns
	kwCommit
	kwCommitted
	kwCondition
	kwConnection
	kwConsistent
	kwConvert
	kwCount
	kwCreate
	kwCurrent
	kwCycle
	kwData
	kwDatabase
	kwDeallocate
	kwDefault
	kwDefiner
	kwDelayed
	kwDelete
	kwDesc
	kwDescribe
	kwDiagnostics
	kwDistinct
	kwDiv
	kwDo
	kwDrop
	kwDual
	kwDumpfile
	kwElse
	kwEnd
	kwErrors
	kwEvent
	kwExcept
	kwExecute
	kwExists
	kwExplain
	kwExport
	kwExtended
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
	kwHaving
	kwHelp
	kwHighPriority
	kwId
	kwIf
	kwIgnore
	kwImmediate
	kwImport
	kwIn
	kwIndex
	kwInfile
	kwInsert
	kwInstall
	kwInstance
	kwIntersect
	kwInterval
	kwInto
	kwIs
	kwIsolation
	kwJoin
	kwJson
	kwKey
	kwKill
	kwLeading
	kwLevel
	kwLike
	kwLimit
	kwLoad
	kwLocal
	kwLock
	kwLoop
	kwLowPriority
	kwMember
	kwMode
	kwNames
	kwNatural
	kwNext
	kwNo
	kwNot
	kwNull
	kwOf
	kwOff
	kwOn
	kwOnly
	kwOpen
	kwOptimize
	kwOr
	kwOrder
	kwOutfile
	kwOver
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
	kwRegexp
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
	kwRlike
	kwRole
	kwRollback
	kwRollup
	kwRow
	kwSavepoint
	kwSelect
	kwSeparator
	kwSequence
	kwSerializable
	kwSession
	kwSet
	kwShare
	kwShow
	kwShutdown
	kwSignal
	kwSkip
	kwSoft
	kwSome
	kwSqlCalcFoundRows
	kwStacked
	kwStage
	kwStart
	kwStatement
	kwStatus
	kwStop
	kwStraightJoin
	kwTable
	kwTables
	kwTemporary
	kwThen
	kwTo
	kwTrailing
	kwTransaction
	kwTrigger
	kwTrue
	kwTruncate
	kwUncommitted
	kwUninstall
	kwUnion
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
	kwWindow
	kwWith
	kwWithin
	kwWork
	kwWrite
	kwXa
	kwXml
	kwXor

	lastKeyword = kwXor
)

var keywordNames = [...]string{
	kwAction: "action", kwAdd: "add", kwAgainst: "against", kwAll: "all", kwAlter: "alter",
	kwAnalyse: "analyse", kwAnalyze: "analyze", kwAnd: "and", kwAs: "as", kwAtomic: "atomic",
	kwBackup: "backup", kwBefore: "before", kwBegin: "begin", kwBinary: "binary", kwBinlog: "binlog",
	kwBody: "body", kwBoth: "both", kwBy: "by", kwCache: "cache", kwCall: "call", kwCase: "case",
	kwCast: "cast", kwChange: "change", kwChar: "char", kwCharacter: "character", kwCharset: "charset",
	kwCheck: "check", kwChecksum: "checksum", kwClone: "clone", kwClose: "close", kwCollate: "collate",
	kwColumns: "columns", kwCommit: "commit", kwCommitted: "committed", kwCondition: "condition", kwConnection: "connection",
	kwConsistent: "consistent", kwConvert: "convert", kwCount: "count", kwCreate: "create",
	kwCurrent: "current", kwCycle: "cycle", kwData: "data", kwDatabase: "database", kwDeallocate: "deallocate",
	kwDefault: "default", kwDefiner: "definer", kwDelayed: "delayed", kwDelete: "delete", kwDesc: "desc",
	kwDescribe: "describe", kwDiagnostics: "diagnostics", kwDistinct: "distinct", kwDiv: "div", kwDo: "do",
	kwDrop: "drop", kwDual: "dual", kwDumpfile: "dumpfile", kwElse: "else", kwEnd: "end", kwErrors: "errors",
	kwEvent: "event", kwExcept: "except", kwExecute: "execute", kwExists: "exists", kwExplain: "explain",
	kwExport: "export", kwExtended: "extended", kwFalse: "false", kwFlush: "flush", kwFor: "for",
	kwFormat: "format", kwFrom: "from", kwFull: "full", kwFunction: "function", kwGet: "get",
	kwGlobal: "global", kwGrant: "grant", kwHandler: "handler", kwHard: "hard", kwHaving: "having",
	kwHelp: "help", kwHighPriority: "high_priority", kwId: "id", kwIf: "if", kwIgnore: "ignore",
	kwImmediate: "immediate", kwImport: "import", kwIn: "in", kwIndex: "index", kwInfile: "infile",
	kwInsert: "insert", kwInstall: "install", kwInstance: "instance", kwIntersect: "intersect",
	kwInterval: "interval", kwInto: "into", kwIs: "is", kwIsolation: "isolation", kwJoin: "join",
	kwJson: "json", kwKey: "key", kwKill: "kill", kwLeading: "leading", kwLevel: "level", kwLike: "like",
	kwLimit: "limit", kwLoad: "load", kwLocal: "local", kwLock: "lock", kwLoop: "loop",
	kwLowPriority: "low_priority", kwMember: "member", kwMode: "mode", kwNames: "names", kwNatural: "natural",
	kwNext: "next", kwNo: "no", kwNot: "not", kwNull: "null", kwOf: "of", kwOff: "off", kwOn: "on",
	kwOnly: "only", kwOpen: "open", kwOptimize: "optimize", kwOr: "or", kwOrder: "order", kwOutfile: "outfile",
	kwOver: "over", kwPackage: "package", kwPartition: "partition", kwPassword: "password",
	kwPersist: "persist", kwPersistOnly: "persist_only", kwPrepare: "prepare", kwPrevious: "previous",
	kwProcedure: "procedure", kwProcesslist: "processlist", kwProfile: "profile", kwProfiles: "profiles",
	kwPurge: "purge", kwQuery: "query", kwRead: "read", kwRecursive: "recursive", kwRegexp: "regexp",
	kwRelease: "release", kwRename: "rename", kwRepair: "repair", kwRepeat: "repeat",
	kwRepeatable: "repeatable", kwReplace: "replace", kwReset: "reset", kwResignal: "resignal",
	kwResource: "resource", kwRestart: "restart", kwRestrict: "restrict", kwReturning: "returning",
	kwRevoke: "revoke", kwRlike: "rlike", kwRole: "role", kwRollback: "rollback", kwRollup: "rollup",
	kwRow: "row", kwSavepoint: "savepoint", kwSelect: "select", kwSeparator: "separator",
	kwSequence: "sequence", kwSerializable: "serializable", kwSession: "session", kwSet: "set",
	kwShare: "share", kwShow: "show", kwShutdown: "shutdown", kwSignal: "signal", kwSkip: "skip",
	kwSoft: "soft", kwSome: "some", kwSqlCalcFoundRows: "sql_calc_found_rows", kwStacked: "stacked",
	kwStage: "stage", kwStart: "start", kwStatement: "statement", kwStatus: "status", kwStop: "stop",
	kwStraightJoin: "straight_join", kwTable: "table", kwTables: "tables", kwTemporary: "temporary",
	kwThen: "then", kwTo: "to", kwTrailing: "trailing", kwTransaction: "transaction", kwTrigger: "trigger",
	kwTrue: "true", kwTruncate: "truncate", kwUncommitted: "uncommitted", kwUninstall: "uninstall",
	kwUnion: "union", kwUnlock: "unlock", kwUpdate: "update", kwUse: "use", kwUser: "user", kwUsing: "using",
	kwValue: "value", kwValues: "values", kwVariables: "variables", kwView: "view", kwWarnings: "warnings",
	kwWhen: "when", kwWhere: "where", kwWhile: "while", kwWindow: "window", kwWith: "with", kwWithin: "within",
	kwWork: "work", kwWrite: "write", kwXa: "xa", kwXml: "xml", kwXor: "xor",
}
