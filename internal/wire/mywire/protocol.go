package mywire

// Caps is a set of capability flags. The low half has the CLIENT_* flags of both families, the
// high half those of MariaDB's extension, which is used if LongPassword (CLIENT_MYSQL in
// MariaDB) is clear on both sides.
type Caps uint64

// Capability flags. Those that both sides have set apply to the connection.
const (
	CapLongPassword     Caps = 1 << iota // CLIENT_MYSQL for MariaDB: not a MariaDB
	CapFoundRows                         // affected rows count rows found, not rows changed
	CapLongFlag                          // 2-byte column flags
	CapConnectWithDB                     // the login names a database
	CapNoSchema                          // database.table.column is refused
	CapCompress                          // zlib compression
	CapODBC                              // no meaning to the server
	CapLocalFiles                        // LOAD DATA LOCAL INFILE
	CapIgnoreSpace                       // parser: spaces before "("
	CapProtocol41                        // required here
	CapInteractive                       // interactive_timeout instead of wait_timeout
	CapSSL                               // TLS, by an SSLRequest
	CapIgnoreSigpipe                     // no meaning to the server
	CapTransactions                      // status flags in OK and EOF
	CapReserved                          // CLIENT_PROTOCOL_41 of old
	CapSecureConnection                  // challenges of 20 bytes; required here
	CapMultiStatements                   // several statements in a COM_QUERY
	CapMultiResults                      // several results of a COM_QUERY
	CapPSMultiResults                    // several results of a COM_STMT_EXECUTE
	CapPluginAuth                        // authentication plugins by name
	CapConnectAttrs                      // connection attributes
	CapPluginAuthLenenc                  // authentication data longer than 255 bytes
	CapExpiredPasswords                  // sandbox mode instead of a refused login
	CapSessionTrack                      // session state changes in OK
	CapDeprecateEOF                      // no EOF; results end with an OK that starts with 0xFE
	CapOptionalMetadata                  // results without column definitions (MySQL 8)
	CapZstd                              // zstd compression
	CapQueryAttributes                   // attributes in COM_QUERY and COM_STMT_EXECUTE
	CapMultiFactor                       // several authentication plugins in a row
	CapExtension                         // reserved by MySQL; MariaDB's obsolete progress flag
	CapVerifyServerCert                  // no meaning on the wire
	CapRememberOptions                   // no meaning on the wire
	CapProgress                          // MariaDB: progress reports as ERR packets
	CapComMulti                          // MariaDB: removed in 10.6
	CapBulkOperations                    // MariaDB: COM_STMT_BULK_EXECUTE
	CapExtendedMetadata                  // MariaDB: type names in column definitions
	CapCacheMetadata                     // MariaDB: column definitions of a statement once
	CapBulkUnitResults                   // MariaDB: a result for each row of a bulk
)

// CapsMariaDB are the flags of MariaDB's extension.
const CapsMariaDB = CapProgress | CapComMulti | CapBulkOperations | CapExtendedMetadata | CapCacheMetadata | CapBulkUnitResults

// CapsRequired are the flags that this package requires of both sides: all servers and clients
// of the last twenty years have them.
const CapsRequired = CapProtocol41 | CapSecureConnection

// CapsUnspoken are the flags that weir must never agree to, on either side: they change the
// framing (compression), or omit parts of answers in ways that depend on what the connection
// has sent before.
const CapsUnspoken = CapCompress | CapZstd | CapOptionalMetadata | CapMultiFactor | CapExtension |
	CapComMulti | CapCacheMetadata | CapVerifyServerCert | CapRememberOptions

// Has reports whether c has all of flags.
func (c Caps) Has(flags Caps) bool { return c&flags == flags }

// Status is the set of server status flags in OK and EOF.
type Status uint16

// Server status flags.
const (
	StatusInTrans            Status = 1 << iota // a transaction has begun
	StatusAutocommit                            // autocommit is on
	_                                           // unused
	StatusMoreResults                           // another result follows
	StatusNoGoodIndexUsed                       //
	StatusNoIndexUsed                           //
	StatusCursorExists                          // a cursor is open: rows are fetched with COM_STMT_FETCH
	StatusLastRowSent                           // the cursor's rows have all been fetched
	StatusDBDropped                             // the current database was dropped
	StatusNoBackslashEscapes                    // sql_mode has NO_BACKSLASH_ESCAPES
	StatusMetadataChanged                       // a re-prepared statement has other columns
	StatusQueryWasSlow                          //
	StatusPSOutParams                           // this result holds the OUT parameters of a CALL
	StatusInTransReadOnly                       // the transaction is READ ONLY
	StatusSessionState                          // the OK holds session state changes
	StatusANSIQuotes                            // MariaDB: sql_mode has ANSI_QUOTES
)

// Commands: the first byte of a client's message after login.
const (
	ComSleep            = 0x00
	ComQuit             = 0x01
	ComInitDB           = 0x02
	ComQuery            = 0x03
	ComFieldList        = 0x04
	ComCreateDB         = 0x05
	ComDropDB           = 0x06
	ComRefresh          = 0x07
	ComShutdown         = 0x08
	ComStatistics       = 0x09
	ComProcessInfo      = 0x0a
	ComConnect          = 0x0b
	ComProcessKill      = 0x0c
	ComDebug            = 0x0d
	ComPing             = 0x0e
	ComTime             = 0x0f
	ComDelayedInsert    = 0x10
	ComChangeUser       = 0x11
	ComBinlogDump       = 0x12
	ComTableDump        = 0x13
	ComConnectOut       = 0x14
	ComRegisterSlave    = 0x15
	ComStmtPrepare      = 0x16
	ComStmtExecute      = 0x17
	ComStmtSendLongData = 0x18
	ComStmtClose        = 0x19
	ComStmtReset        = 0x1a
	ComSetOption        = 0x1b
	ComStmtFetch        = 0x1c
	ComDaemon           = 0x1d
	ComBinlogDumpGTID   = 0x1e
	ComResetConnection  = 0x1f
	ComClone            = 0x20 // MySQL
	ComStmtBulkExecute  = 0xfa // MariaDB
)

// The values of COM_SET_OPTION.
const (
	OptionMultiStatementsOn  = 0
	OptionMultiStatementsOff = 1
)

// Flags of COM_STMT_EXECUTE.
const (
	CursorReadOnly          = 0x01 // open a cursor, send no rows
	CursorForUpdate         = 0x02
	CursorScrollable        = 0x04
	ExecuteParamCountSent   = 0x08 // with CapQueryAttributes: a parameter count follows even if the statement has none
	cursorFlags             = CursorReadOnly | CursorForUpdate | CursorScrollable
	BulkReturnGeneratedKeys = 64  // flags of COM_STMT_BULK_EXECUTE
	BulkSendTypes           = 128 //
)

// StmtLast stands for the statement that the connection prepared last, if a MariaDB client
// sends COM_STMT_EXECUTE without waiting for the answer to COM_STMT_PREPARE.
const StmtLast = 1<<32 - 1

// Column and parameter types.
const (
	TypeDecimal    = 0x00
	TypeTiny       = 0x01
	TypeShort      = 0x02
	TypeLong       = 0x03
	TypeFloat      = 0x04
	TypeDouble     = 0x05
	TypeNull       = 0x06
	TypeTimestamp  = 0x07
	TypeLongLong   = 0x08
	TypeInt24      = 0x09
	TypeDate       = 0x0a
	TypeTime       = 0x0b
	TypeDatetime   = 0x0c
	TypeYear       = 0x0d
	TypeNewDate    = 0x0e
	TypeVarchar    = 0x0f
	TypeBit        = 0x10
	TypeTimestamp2 = 0x11
	TypeDatetime2  = 0x12
	TypeTime2      = 0x13
	TypeVector     = 0xf2
	TypeInvalid    = 0xf3
	TypeBool       = 0xf4
	TypeJSON       = 0xf5
	TypeNewDecimal = 0xf6
	TypeEnum       = 0xf7
	TypeSet        = 0xf8
	TypeTinyBlob   = 0xf9
	TypeMediumBlob = 0xfa
	TypeLongBlob   = 0xfb
	TypeBlob       = 0xfc
	TypeVarString  = 0xfd
	TypeString     = 0xfe
	TypeGeometry   = 0xff
)

// Character sets and collations by number, as far as weir uses them itself.
const (
	CharsetLatin1  = 8   // latin1_swedish_ci
	CharsetUTF8    = 33  // utf8mb3_general_ci
	CharsetUTF8MB4 = 45  // utf8mb4_general_ci
	CharsetBinary  = 63  // binary
	CharsetUTF8900 = 255 // utf8mb4_0900_ai_ci (MySQL 8)
)

// Names of authentication plugins.
const (
	PluginNative  = "mysql_native_password"
	PluginSHA2    = "caching_sha2_password"
	PluginSHA256  = "sha256_password"
	PluginClear   = "mysql_clear_password"
	PluginOld     = "mysql_old_password"
	PluginEd25519 = "client_ed25519"
	PluginDialog  = "dialog" // MariaDB: PAM
)
