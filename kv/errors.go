package kv

import (
	"errors"
	"fmt"

	"github.com/weirdb/weir/internal/kvd/wire"
)

// Errors of operations.
var (
	// ErrNotFound says that there is no such key or lease.
	ErrNotFound = errors.New("kv: not found")
	// ErrConflict says that a condition does not hold; nothing was changed.
	ErrConflict = errors.New("kv: condition not met")
	// ErrType says that a value is not an integer, or would not fit 64 bits.
	ErrType = errors.New("kv: value is not an integer or out of range")
	// ErrTooLarge says that a key or a value is larger than the store allows.
	ErrTooLarge = errors.New("kv: too large")
	// ErrFull says that too many operations are under way.
	ErrFull = errors.New("kv: too many operations under way")
	// ErrClosed says that the client is closed.
	ErrClosed = errors.New("kv: client is closed")
	// ErrMissed says that a watch has lost changes: read the keys again.
	ErrMissed = errors.New("kv: changes were missed")
	// ErrCutOff says that a watch has ended: none of the replicas that could be asked has known
	// a leader for 30 s (ten election timeouts if that is more). The network may separate them
	// from the others, and they would not learn of changes.
	ErrCutOff = errors.New("kv: cut off from the cluster")
	// ErrExpired says that the cluster has forgotten an idle session, and that the
	// operation has changed nothing. The session continues under a new id as soon
	// as its earlier operations have ended.
	ErrExpired = errors.New("kv: session has expired")
)

// UnknownError says that the outcome of a write is unknown: it was sent, and no
// answer came. Unwrap gives the reason.
type UnknownError struct {
	Op  string // "put", "delete" …
	Key string
	Err error
}

// Error names the operation and the reason.
func (e *UnknownError) Error() string {
	return fmt.Sprintf("kv: %s %q: outcome unknown: %v", e.Op, e.Key, e.Err)
}

// Unwrap is the reason, such as context.DeadlineExceeded.
func (e *UnknownError) Unwrap() error { return e.Err }

// opError is the error of one operation. Its text is built only when it is read, since a
// missing key is an ordinary answer.
type opError struct {
	op, key string
	err     error
}

func (e *opError) Error() string { return fmt.Sprintf("%s %q: %v", e.op, e.key, e.err) }
func (e *opError) Unwrap() error { return e.err }

// codeError turns a result's code into an error, nil for OK.
func codeError(op, key string, code uint8) error {
	var err error
	switch code {
	case wire.OK:
		return nil
	case wire.NotFound:
		err = ErrNotFound
	case wire.NotMet:
		err = ErrConflict
	case wire.WrongType:
		err = ErrType
	case wire.TooLarge:
		err = ErrTooLarge
	default:
		return fmt.Errorf("kv: %s %q: the replica does not understand the command (code %d)", op, key, code)
	}
	return &opError{op, key, err}
}
