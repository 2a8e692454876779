package load

import (
	"context"
	"net"
)

// ClassLost is what lost connections are counted under.
const ClassLost = "connection lost"

// maxExamples bounds how many wrong answers and rows are described.
const maxExamples = 5

// Dial opens the connection of one client, logs it in and readies it for its
// first operation. The connection must be a plain socket; the generator takes it
// over. Called from several goroutines at once.
type Dial func(ctx context.Context, client int) (net.Conn, Client, error)

// Client is the protocol's side of one connection: what it sends and what it
// makes of the answers. One thread owns it while a run lasts, and anyone who called
// Run afterwards.
type Client interface {
	// Ask appends the request of the client's n-th operation to b.
	Ask(b []byte, n int64) []byte
	// Take reads the part of b that is complete and returns how many bytes that
	// was, and whether the operation is answered by them. An error gives the
	// connection up. It must keep nothing of b.
	Take(b []byte) (used int, done bool, err error)
	// Judge returns nil when the operation's answer was the one expected.
	Judge() *Wrong
	// Farewell is what the protocol wants said before the connection ends.
	Farewell() []byte
}

// Wrong is an answer that was not the one expected.
type Wrong struct {
	// Class is what such answers are counted under: an SQLSTATE or a few words.
	Class string
	// Text says what is wrong, for somebody who looks for the reason.
	Text string
	// Fate is what became of the operation.
	Fate Fate
}

// Fate is what a wrong answer says of its operation.
type Fate int

const (
	// Claimed means done, by the answer's word: Verify decides.
	Claimed Fate = iota
	// Refused means not done.
	Refused
	// Unknown means either.
	Unknown
)
