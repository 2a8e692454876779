package peer

import (
	"errors"
	"fmt"
)

// Errors of Send.
var (
	// ErrDown means that there is no connection to that address now.
	ErrDown = errors.New("not connected")
	// ErrFull means that too much is queued for that address.
	ErrFull = errors.New("send queue is full")
	// ErrTooLarge means that a message is larger than MaxMessage.
	ErrTooLarge = errors.New("message is too large")
	// ErrClosed means that this side has closed the connection.
	ErrClosed = errors.New("connection closed")
)

// Code says why a handshake ended without a connection.
type Code uint8

// Codes of a HandshakeError. Their numbers are on the wire.
const (
	CodeMalformed       Code = iota + 1 // what came is not a handshake
	CodeVersion                         // the other side speaks another version of the protocol
	CodeCluster                         // the clusters differ, by their names or by the replicas that made them
	CodeReplica                         // another replica than the wanted one answers at this address
	CodeUnknown                         // the replica's id is not one of the cluster's
	CodeTaken                           // the id is connected from another address
	CodeUnauthenticated                 // the secret was not proven, or the certificate not accepted
	CodeBusy                            // too many connections
	CodeWantsTLS                        // the other side demands TLS
	CodeNoTLS                           // the other side has no TLS
	CodeSnapshot                        // the snapshot is not wanted
)

var codeNames = [...]string{
	CodeMalformed: "malformed", CodeVersion: "other version", CodeCluster: "other cluster", CodeReplica: "other replica",
	CodeUnknown: "unknown replica", CodeTaken: "id taken", CodeUnauthenticated: "not authenticated", CodeBusy: "busy",
	CodeWantsTLS: "TLS demanded", CodeNoTLS: "no TLS", CodeSnapshot: "snapshot refused",
}

func (c Code) String() string {
	if int(c) < len(codeNames) && codeNames[c] != "" {
		return codeNames[c]
	}
	return fmt.Sprintf("code %d", uint8(c))
}

// HandshakeError is why one of two sides refused the connection.
type HandshakeError struct {
	Code   Code
	Reason string // a sentence for the operator
	Remote bool   // the other side refused; otherwise this side did
	Err    error  // the cause, nil if the rest says everything
	told   bool   // the other side already knows
}

func (e *HandshakeError) Error() string {
	who := "refused"
	if e.Remote {
		who = "refused by the other side"
	}
	return fmt.Sprintf("%s: %s: %s", who, e.Code, e.Reason)
}

func (e *HandshakeError) Unwrap() error { return e.Err }
