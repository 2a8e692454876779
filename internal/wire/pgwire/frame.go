// Package pgwire implements the PostgreSQL frontend/backend protocol, versions 3.0 and 3.2:
// framing, messages, startup, authentication and TLS, for clients and servers. It has no policy
// and no pools: it does not decide who may log in, which server is used, or how long a
// connection lives.
//
// It has two parts. The data path (Peek, the Append functions, the Parse views) works on byte
// slices that the caller owns, without allocating or copying: a view aliases the body that it
// was parsed from, and is valid as long as that is. Login (Accept, Authenticate, Connect,
// RelayAuth, Cancel) is rarer. It reads blocking connections message by message, and never a
// byte past the last message of the login, so that the connection can be passed to an event
// loop afterwards.
package pgwire

import (
	"bytes"
	"encoding/binary"
	"errors"
)

// HeaderLen is the length in bytes of the header of every message after startup: one type byte
// and an int32 length.
const HeaderLen = 5

// ErrMalformed says that bytes are not a message of the protocol: they are cut short, longer
// than their content, or have a wrong count. The stream may be out of step after that.
var ErrMalformed = errors.New("malformed protocol message")

// Types of the messages that a client sends.
const (
	ClientBind      = 'B'
	ClientClose     = 'C'
	ClientCopyData  = 'd'
	ClientCopyDone  = 'c'
	ClientCopyFail  = 'f'
	ClientDescribe  = 'D'
	ClientExecute   = 'E'
	ClientFlush     = 'H'
	ClientFunction  = 'F'
	ClientParse     = 'P'
	ClientPassword  = 'p' // also SASL and GSS responses
	ClientQuery     = 'Q'
	ClientSync      = 'S'
	ClientTerminate = 'X'
)

// Types of the messages that a server sends.
const (
	ServerAuth                 = 'R'
	ServerBackendKeyData       = 'K'
	ServerBindComplete         = '2'
	ServerCloseComplete        = '3'
	ServerCommandComplete      = 'C'
	ServerCopyBothResponse     = 'W'
	ServerCopyData             = 'd'
	ServerCopyDone             = 'c'
	ServerCopyInResponse       = 'G'
	ServerCopyOutResponse      = 'H'
	ServerDataRow              = 'D'
	ServerEmptyQuery           = 'I'
	ServerError                = 'E'
	ServerFunctionResponse     = 'V'
	ServerNegotiateVersion     = 'v'
	ServerNoData               = 'n'
	ServerNotice               = 'N'
	ServerNotification         = 'A'
	ServerParameterDescription = 't'
	ServerParameterStatus      = 'S'
	ServerParseComplete        = '1'
	ServerPortalSuspended      = 's'
	ServerReady                = 'Z'
	ServerRowDescription       = 'T'
)

// Transaction states in ReadyForQuery.
const (
	StatusIdle   = 'I' // outside a transaction
	StatusInTx   = 'T' // inside a transaction block
	StatusFailed = 'E' // inside a failed transaction block; only ROLLBACK helps
)

// Kinds of object that Describe and Close name.
const (
	KindStatement = 'S'
	KindPortal    = 'P'
)

// Protocol versions in the startup message: major<<16 | minor.
const (
	Version30 = 3 << 16
	Version32 = 3<<16 | 2
)

// Peek returns the type of the message at the start of buf and the length in bytes of the whole
// message, including the type byte. ok is false if buf has fewer than HeaderLen bytes. Peek
// does not validate the length: the caller treats length < HeaderLen (as a negative length on
// the wire becomes) as ErrMalformed, and applies its own limit before it waits for, or
// allocates, that many bytes.
func Peek(buf []byte) (typ byte, length int, ok bool) {
	if len(buf) < HeaderLen {
		return 0, 0, false
	}
	return buf[0], int(int32(binary.BigEndian.Uint32(buf[1:]))) + 1, true
}

// cstring splits b at its first NUL: s precedes it, rest follows. ok is false if b has no NUL.
func cstring(b []byte) (s, rest []byte, ok bool) {
	i := bytes.IndexByte(b, 0)
	if i < 0 {
		return nil, nil, false
	}
	return b[:i:i], b[i+1:], true
}
