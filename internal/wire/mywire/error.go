package mywire

import (
	"encoding/binary"
	"errors"
	"fmt"
)

// Error numbers that weir sends or acts on.
const (
	ErrTooManyConnections    = 1040 // ER_CON_COUNT_ERROR
	ErrBadHandshake          = 1043
	ErrDBAccessDenied        = 1044
	ErrAccessDenied          = 1045
	ErrNoDatabase            = 1046
	ErrUnknownCommand        = 1047
	ErrUnknownDatabase       = 1049
	ErrServerShutdown        = 1053
	ErrDuplicateKey          = 1062
	ErrSyntax                = 1064
	ErrNoSuchThread          = 1094
	ErrKillDenied            = 1095
	ErrUnknown               = 1105
	ErrHostBlocked           = 1129
	ErrNoSuchTable           = 1146
	ErrNotAllowed            = 1148 // ER_NOT_ALLOWED_COMMAND: LOCAL INFILE switched off
	ErrAborting              = 1152
	ErrPacketTooLarge        = 1153
	ErrNetRead               = 1158
	ErrNetReadInterrupted    = 1159
	ErrNetWrite              = 1160
	ErrNetWriteInterrupted   = 1161
	ErrUnknownVariable       = 1193 // ER_UNKNOWN_SYSTEM_VARIABLE
	ErrUserLimit             = 1203 // ER_TOO_MANY_USER_CONNECTIONS
	ErrLockWaitTimeout       = 1205
	ErrWrongArguments        = 1210 // ER_WRONG_ARGUMENTS
	ErrDeadlock              = 1213
	ErrResourceLimit         = 1226 // ER_USER_LIMIT_REACHED
	ErrNotSupportedYet       = 1235
	ErrUnknownStatement      = 1243 // ER_UNKNOWN_STMT_HANDLER
	ErrOldAuth               = 1251 // ER_NOT_SUPPORTED_AUTH_MODE
	ErrOptionPrevents        = 1290
	ErrQueryInterrupted      = 1317
	ErrNoCursor              = 1421 // ER_STMT_HAS_NO_OPEN_CURSOR
	ErrTooManyStatements     = 1461 // ER_MAX_PREPARED_STMT_COUNT_REACHED
	ErrMalformedPacket       = 1835
	ErrReadOnlyTransaction   = 1792
	ErrMustChangePassword    = 1820
	ErrReadOnlyMode          = 1836
	ErrMariaConnectionKilled = 1927 // ER_CONNECTION_KILLED of MariaDB
	ErrMariaStatementTimeout = 1969
	ErrQueryTimeout          = 3024
	ErrSecureTransport       = 3159
	ErrInteractionTimeout    = 4031 // ER_CLIENT_INTERACTION_TIMEOUT of MySQL 8
)

const (
	errProgress     = 0xffff // marks MariaDB's progress reports
	stateMarker     = '#'
	stateLen        = 5
	stateGeneral    = "HY000"
	maxErrorMessage = 511 // bytes: MYSQL_ERRMSG_SIZE less its NUL
)

// states holds the SQLSTATEs of the errors that have a specific one.
var states = map[uint16]string{
	ErrTooManyConnections:    "08004",
	ErrBadHandshake:          "08S01",
	ErrDBAccessDenied:        "42000",
	ErrAccessDenied:          "28000",
	ErrNoDatabase:            "3D000",
	ErrUnknownCommand:        "08S01",
	ErrUnknownDatabase:       "42000",
	ErrServerShutdown:        "08S01",
	ErrDuplicateKey:          "23000",
	ErrSyntax:                "42000",
	ErrNoSuchTable:           "42S02",
	ErrNotAllowed:            "42000",
	ErrAborting:              "08S01",
	ErrPacketTooLarge:        "08S01",
	ErrNetRead:               "08S01",
	ErrNetReadInterrupted:    "08S01",
	ErrNetWrite:              "08S01",
	ErrNetWriteInterrupted:   "08S01",
	ErrUserLimit:             "42000",
	ErrDeadlock:              "40001",
	ErrResourceLimit:         "42000",
	ErrNotSupportedYet:       "42000",
	ErrOldAuth:               "08004",
	ErrQueryInterrupted:      "70100",
	ErrTooManyStatements:     "42000",
	ErrReadOnlyTransaction:   "25006",
	ErrMariaConnectionKilled: "70100",
	ErrMariaStatementTimeout: "70100",
}

// StateOf returns the SQLSTATE of an error number that weir knows, otherwise "HY000".
func StateOf(code uint16) string {
	if s, ok := states[code]; ok {
		return s
	}
	return stateGeneral
}

// Error is the content of an ERR packet.
type Error struct {
	Code    uint16
	State   string // SQLSTATE, five characters; empty if the server sent none
	Message string
}

// NewError returns an Error with the SQLSTATE of code.
func NewError(code uint16, format string, args ...any) *Error {
	return &Error{Code: code, State: StateOf(code), Message: fmt.Sprintf(format, args...)}
}

// Error returns number, SQLSTATE and message as the mysql client prints them.
func (e *Error) Error() string {
	if e.State == "" {
		return fmt.Sprintf("ERROR %d: %s", e.Code, e.Message)
	}
	return fmt.Sprintf("ERROR %d (%s): %s", e.Code, e.State, e.Message)
}

// CodeOf returns the number of the *Error that err is or wraps, otherwise 0.
func CodeOf(err error) uint16 {
	var e *Error
	if errors.As(err, &e) {
		return e.Code
	}
	return 0
}

// AppendError appends an ERR packet. It cuts a message that is longer than clients can store.
func AppendError(dst []byte, seq byte, e *Error) []byte {
	dst, at := begin(dst, seq)
	dst = binary.LittleEndian.AppendUint16(append(dst, headerError), e.Code)
	state := e.State
	if len(state) != stateLen {
		state = StateOf(e.Code)
	}
	dst = append(append(dst, stateMarker), state...)
	return end(append(dst, e.Message[:min(len(e.Message), maxErrorMessage)]...), at)
}

// ParseError parses an ERR packet. The result does not alias the payload. Errors that a server
// sends instead of a greeting have no SQLSTATE.
func ParseError(payload []byte) (*Error, error) {
	if !IsError(payload) {
		return nil, ErrMalformed
	}
	e := &Error{Code: binary.LittleEndian.Uint16(payload[1:])}
	rest := payload[3:]
	if len(rest) > stateLen && rest[0] == stateMarker {
		e.State, rest = string(rest[1:1+stateLen]), rest[1+stateLen:]
	}
	e.Message = string(rest)
	return e, nil
}

// ErrorCode returns the number in an ERR packet without copying; 0 if the payload is no ERR
// packet.
func ErrorCode(payload []byte) uint16 {
	if !IsError(payload) {
		return 0
	}
	return binary.LittleEndian.Uint16(payload[1:])
}

// IsProgress reports whether the payload is a progress report of MariaDB, which looks like an
// ERR packet but ends nothing. Servers send them under CapProgress only.
func IsProgress(payload []byte) bool { return ErrorCode(payload) == errProgress }
