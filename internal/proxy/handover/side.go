package handover

import (
	"context"
	"strings"

	"github.com/weirdb/weir/internal/proxy/netloop"
)

// A Side is one protocol's side of a proxy. All of its methods are safe for concurrent
// use.
type Side interface {
	// Listener is what clients connect to.
	Listener() *netloop.Pausable
	// Legacy is what the next process is to know before it serves: what was learned from
	// logins, what the console has ordered.
	Legacy(ctx context.Context) ([]byte, error)
	// Give has each client handed to give that can be, when it can be: on the loops'
	// threads, where give must not wait. With nil all stay.
	Give(ctx context.Context, give func(*Parcel)) error
	// Left is how many clients are left, those included that are logging in.
	Left() int
	// Answer answers a question of the next process about a client that is here.
	Answer(ctx context.Context, question []byte) []byte

	// Inherit makes what Legacy has returned this process's own.
	Inherit(legacy []byte) error
	// Receive reads a session with decode and takes it in. The error is decode's, after
	// which nothing more can be read; conn is the side's in any case.
	Receive(decode func(v any) error, conn int) (Admission, error)
	// AskBefore sets who is asked about clients that are not here: nil for nobody.
	AskBefore(ask Ask)
}

// An Ask asks the process before about a client; ok is false if it has not answered.
type Ask = func(ctx context.Context, question []byte) (answer []byte, ok bool)

// A Parcel is a client on its way to the next process. Nothing of it is served meanwhile.
// One of the functions is called once, on any goroutine: it closes the descriptor.
type Parcel struct {
	FD      int
	Session any // for encoding/gob; MaxSession bytes at most
	// Delivered: the next process has the client. Returned: it does not, and goes on here;
	// if stays is set it is not to be handed over again.
	Delivered func()
	Returned  func(stays bool)
}

// MaxSession bounds what is handed over of one client, in bytes. Others stay.
const MaxSession = 16 << 20

// An Admission is a client that has come from another process.
type Admission struct {
	// Refused is why the session was ended, which its client has been told; nil if it
	// was not.
	Refused error
	// Serve begins to serve the client, Drop closes its connection without a word. One
	// of them is called, unless it was refused.
	Serve func()
	Drop  func()
}

// A Socket is one that a process listens on: for clients of a side, or for its admin
// server.
type Socket struct {
	Role     string
	Address  string // as the configuration has it: the next process is to want the same
	Listener *netloop.Pausable
}

// keepsPath reports whether the path of a Unix socket is the next process's to remove.
func (s *Socket) keepsPath(keeps bool) {
	if strings.HasPrefix(s.Address, "/") {
		s.Listener.KeepsPath(keeps)
	}
}
