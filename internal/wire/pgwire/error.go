package pgwire

import (
	"errors"
	"fmt"
	"strconv"
	"strings"
)

// SQLSTATE codes that weir sends or acts on (PostgreSQL documentation,
// appendix "PostgreSQL Error Codes").
const (
	CodeConnectionUnable         = "08001"
	CodeConnectionRejected       = "08004"
	CodeConnectionFailure        = "08006"
	CodeProtocolViolation        = "08P01"
	CodeFeatureNotSupported      = "0A000"
	CodeInvalidParameterValue    = "22023"
	CodeReadOnly                 = "25006" // read_only_sql_transaction
	CodeInFailedTransaction      = "25P02"
	CodeIdleInTransactionTimeout = "25P03"
	CodeTransactionTimeout       = "25P04"
	CodeUndefinedStatement       = "26000"
	CodeInvalidAuthorization     = "28000"
	CodeInvalidPassword          = "28P01"
	CodeInvalidDatabase          = "3D000"
	CodeCompletionUnknown        = "40003"
	CodeInsufficientPrivilege    = "42501"
	CodeSyntaxError              = "42601"
	CodeUndefinedTable           = "42P01"
	CodeDuplicateStatement       = "42P05"
	CodeTooManyConnections       = "53300"
	CodeProgramLimit             = "54000"
	CodeObjectState              = "55000"
	CodeLockNotAvailable         = "55P03"
	CodeQueryCanceled            = "57014"
	CodeAdminShutdown            = "57P01"
	CodeCrashShutdown            = "57P02"
	CodeCannotConnectNow         = "57P03"
	CodeIdleSessionTimeout       = "57P05"
	CodeUndefinedFile            = "58P01"
	CodeInternalError            = "XX000"
)

// Error is the content of an ErrorResponse or a NoticeResponse. An empty string or a zero
// number is a field that was not sent.
type Error struct {
	Severity         string // ERROR, FATAL, PANIC, WARNING, NOTICE...: may be translated
	SeverityRaw      string // the same, never translated
	Code             string // SQLSTATE, five characters
	Message          string
	Detail           string
	Hint             string
	Position         int // in the query text, in characters, from 1
	InternalPosition int // in InternalQuery
	InternalQuery    string
	Where            string // context: a traceback, innermost first
	Schema           string
	Table            string
	Column           string
	DataType         string
	Constraint       string
	File             string // of the server's source
	Line             int
	Routine          string
}

// NewError returns an Error of severity ERROR: the statement fails, the session continues.
func NewError(code, format string, args ...any) *Error {
	return &Error{Severity: "ERROR", SeverityRaw: "ERROR", Code: code, Message: fmt.Sprintf(format, args...)}
}

// NewFatal returns an Error of severity FATAL: the sender closes the connection.
func NewFatal(code, format string, args ...any) *Error {
	return &Error{Severity: "FATAL", SeverityRaw: "FATAL", Code: code, Message: fmt.Sprintf(format, args...)}
}

// Error returns severity, message, detail, hint and SQLSTATE on one line.
func (e *Error) Error() string {
	var b strings.Builder
	b.WriteString(e.Severity + ": " + e.Message)
	if e.Detail != "" {
		b.WriteString("; " + e.Detail)
	}
	if e.Hint != "" {
		b.WriteString("; hint: " + e.Hint)
	}
	b.WriteString(" (SQLSTATE " + e.Code + ")")
	return b.String()
}

// Fatal reports whether the sender of e ends the connection with it.
func (e *Error) Fatal() bool {
	s := e.SeverityRaw
	if s == "" {
		s = e.Severity
	}
	return s == "FATAL" || s == "PANIC"
}

// CodeOf returns the SQLSTATE of the *Error that err is or wraps, else "".
func CodeOf(err error) string {
	var e *Error
	if errors.As(err, &e) {
		return e.Code
	}
	return ""
}

// Unavailable reports whether a server's error says that it ends all connections or accepts
// none: it starts, stops or has crashed.
func Unavailable(err error) bool {
	switch CodeOf(err) {
	case CodeAdminShutdown, CodeCrashShutdown, CodeCannotConnectNow:
		return true
	}
	return false
}

// AppendError appends an ErrorResponse. Fields that are empty are left out.
func AppendError(dst []byte, e *Error) []byte { return appendFields(dst, ServerError, e) }

// AppendNotice appends a NoticeResponse. Fields that are empty are left out.
func AppendNotice(dst []byte, e *Error) []byte { return appendFields(dst, ServerNotice, e) }

func appendFields(dst []byte, typ byte, e *Error) []byte {
	dst, at := begin(dst, typ)
	for typ, s := range e.strings() {
		if *s != "" {
			dst = appendField(dst, typ, *s)
		}
	}
	for typ, n := range e.numbers() {
		if *n != 0 {
			dst = appendField(dst, typ, strconv.Itoa(*n))
		}
	}
	return end(append(dst, 0), at)
}

// appendField appends one field. Error texts may contain what a client sent, and a NUL inside
// would let the client forge the fields that follow: the text is cut there.
func appendField(dst []byte, typ byte, s string) []byte {
	s, _, _ = strings.Cut(s, "\x00")
	return appendCString(append(dst, typ), s)
}

// strings yields the text fields by their type on the wire, in the order in which PostgreSQL
// sends them.
func (e *Error) strings() func(func(byte, *string) bool) {
	return func(yield func(byte, *string) bool) {
		_ = yield('S', &e.Severity) && yield('V', &e.SeverityRaw) && yield('C', &e.Code) &&
			yield('M', &e.Message) && yield('D', &e.Detail) && yield('H', &e.Hint) &&
			yield('q', &e.InternalQuery) && yield('W', &e.Where) && yield('s', &e.Schema) &&
			yield('t', &e.Table) && yield('c', &e.Column) && yield('d', &e.DataType) &&
			yield('n', &e.Constraint) && yield('F', &e.File) && yield('R', &e.Routine)
	}
}

// numbers yields the fields that are decimal numbers on the wire.
func (e *Error) numbers() func(func(byte, *int) bool) {
	return func(yield func(byte, *int) bool) {
		_ = yield('P', &e.Position) && yield('p', &e.InternalPosition) && yield('L', &e.Line)
	}
}

// ParseError reads the body of an ErrorResponse or a NoticeResponse. Fields of
// unknown type are skipped, as the protocol asks of clients. The result does
// not alias the body.
func ParseError(body []byte) (*Error, error) {
	e := &Error{}
	for {
		if len(body) == 0 {
			return nil, ErrMalformed
		}
		typ := body[0]
		if typ == 0 {
			if len(body) != 1 {
				return nil, ErrMalformed
			}
			return e, nil
		}
		text, rest, ok := cstring(body[1:])
		if !ok {
			return nil, ErrMalformed
		}
		e.set(typ, string(text))
		body = rest
	}
}

func (e *Error) set(typ byte, text string) {
	for t, s := range e.strings() {
		if t == typ {
			*s = text
			return
		}
	}
	for t, n := range e.numbers() {
		if t == typ {
			*n, _ = strconv.Atoi(text)
			return
		}
	}
}
