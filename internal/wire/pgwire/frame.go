// Package pgwire speaks the PostgreSQL frontend/backend protocol, versions 3.0
// and 3.2: framing, messages, startup, authentication and TLS, for both ends of
// the wire. It holds no policy and no pools: it never decides who may log in,
// which server answers, or how long a connection lives.
//
// It has two speeds. The data path (Peek, the Append builders, the ParseX
// views) works on byte slices that the caller owns, allocates nothing and
// copies nothing: a view aliases the body that it was parsed from and dies
// with it. Login (Accept, Authenticate, Connect, RelayAuth, Cancel) is rare,
// so it reads blocking connections message by message, and never one byte
// past the last message of the login: the connection can be handed to an
// event loop afterwards without losing anything.
//
// Messages are those of the PostgreSQL documentation, chapter "Message
// Formats": one type byte, a big-endian int32 length that counts itself but not
// the type byte, then the body. Every ParseX function takes the body alone.
package pgwire

import (
	"bytes"
	"encoding/binary"
	"errors"
)

// HeaderLen is the length in bytes of what precedes the body of every message
// after startup: one type byte and an int32 length.
const HeaderLen = 5

// ErrMalformed reports bytes that are not a message of the protocol: cut
// short, longer than their content, or counting what is not there. A
// connection that produced it cannot be trusted to be in step any more.
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

// Transaction states that ReadyForQuery carries.
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

// Protocol versions as the startup message carries them: major<<16 | minor.
const (
	Version30 = 3 << 16
	Version32 = 3<<16 | 2
)

// Peek returns the type of the message at the start of buf and the length in
// bytes of the whole message, type byte included. ok is false when buf holds
// fewer than HeaderLen bytes. The length is not judged: the caller treats
// length < HeaderLen (which a negative length on the wire becomes) as
// ErrMalformed and applies its own upper limit before it waits for, or makes
// room for, that many bytes.
func Peek(buf []byte) (typ byte, length int, ok bool) {
	if len(buf) < HeaderLen {
		return 0, 0, false
	}
	return buf[0], int(int32(binary.BigEndian.Uint32(buf[1:]))) + 1, true
}

// cstring splits b after its first NUL: s is what precedes it, rest what
// follows. ok is false when b holds no NUL.
func cstring(b []byte) (s, rest []byte, ok bool) {
	i := bytes.IndexByte(b, 0)
	if i < 0 {
		return nil, nil, false
	}
	return b[:i:i], b[i+1:], true
}
