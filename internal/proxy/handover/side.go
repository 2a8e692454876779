package handover

import (
	"context"
	"strings"

	"github.com/weirdb/weir/internal/proxy/netloop"
)

// A Side is one protocol's side of a proxy. All of its methods are safe for concurrent
// use.
type Side interface {
	// Listener returns the listener for clients.
	Listener() *netloop.Pausable
	// Legacy returns what the next process must know before it serves: what was learned
	// from logins, and commands of the console that are in force.
	Legacy(ctx context.Context) ([]byte, error)
	// Give calls give for each client that can be handed over, as soon as it can be, on the
	// loops' threads: give must not block. With nil, all clients stay.
	Give(ctx context.Context, give func(*Parcel)) error
	// Left returns how many clients are left, including those that are logging in.
	Left() int
	// Answer answers a question of the next process about a client that is here.
	Answer(ctx context.Context, question []byte) []byte

	// Inherit applies what the other process's Legacy has returned.
	Inherit(legacy []byte) error
	// Receive reads a session with decode and admits it. The error is decode's, after
	// which nothing more can be read. In any case the side owns conn.
	Receive(decode func(v any) error, conn int) (Admission, error)
	// AskBefore sets the function that asks about clients that are not here; nil for none.
	AskBefore(ask Ask)
}

// An Ask asks the previous process about a client; ok is false if it has not answered.
type Ask = func(ctx context.Context, question []byte) (answer []byte, ok bool)

// A Parcel is a client in transit to the next process. It is not served meanwhile. One of
// the functions is called, once, on any goroutine; it closes the descriptor.
type Parcel struct {
	FD      int
	Session any // for encoding/gob; MaxSession bytes at most
	// Delivered: the next process has the client. Returned: it does not, and the client
	// continues here; if stays is set, do not hand it over again.
	Delivered func()
	Returned  func(stays bool)
}

// MaxSession is the largest session that is handed over, in bytes. Others stay.
const MaxSession = 16 << 20

// An Admission is a client that has come from another process.
type Admission struct {
	// Refused is why the session was ended; its client has been told. Otherwise nil.
	Refused error
	// Serve begins to serve the client; Drop closes its connection without a message. One
	// of them is called, unless Refused is set.
	Serve func()
	Drop  func()
}

// A Socket is one that a process listens on: for clients of a side, or for its admin
// server.
type Socket struct {
	Role     string
	Address  string // as configured: the next process must want the same
	Listener *netloop.Pausable
}

// keepsPath reports whether the path of a Unix socket is the next process's to remove.
func (s *Socket) keepsPath(keeps bool) {
	if strings.HasPrefix(s.Address, "/") {
		s.Listener.KeepsPath(keeps)
	}
}
