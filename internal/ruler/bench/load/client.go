package load

import (
	"context"
	"net"
)

// ClassLost is the error class of lost connections.
const ClassLost = "connection lost"

// maxExamples limits how many wrong answers and rows are described.
const maxExamples = 5

// Dial opens the connection of one client, logs it in and prepares it for its first operation.
// The connection must be a plain socket; the generator takes it over. Dial is called from
// several goroutines at once.
type Dial func(ctx context.Context, client int) (net.Conn, Client, error)

// Client is the protocol side of one connection: the requests that it sends and the answers
// that it parses. During a run one thread uses it; afterwards, the caller of Run may.
type Client interface {
	// Ask appends the request of the client's n-th operation to b.
	Ask(b []byte, n int64) []byte
	// Take parses the complete part of b and returns its length, and whether that completes the
	// operation's answer. After an error the connection is abandoned. Take must not retain b.
	Take(b []byte) (used int, done bool, err error)
	// Judge returns nil if the operation's answer was as expected.
	Judge() *Wrong
	// Quit is the message that ends the session.
	Quit() []byte
}

// Wrong is an unexpected answer.
type Wrong struct {
	// Class is what such answers are counted by: an SQLSTATE or a few words.
	Class string
	// Text describes the answer.
	Text string
	// Effect is whether the operation was executed.
	Effect Effect
}

// Effect is what a wrong answer says about the execution of its operation.
type Effect int

const (
	// Claimed means executed, according to the answer: Verify decides.
	Claimed Effect = iota
	// Refused means not executed.
	Refused
	// Unknown means either.
	Unknown
)
