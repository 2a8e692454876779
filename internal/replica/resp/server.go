package resp

import (
	"context"
	"crypto/tls"
	"errors"
	"log/slog"
	"net"
	"time"
)

// Config is how a Server treats its clients.
type Config struct {
	// TLS, when not nil, makes every connection a TLS one. Default: plain TCP.
	TLS *tls.Config
	// Users may log in. Without any, everybody may do everything. Default: none.
	Users []User
	// MaxClients is how many connections are held at once. Default: 10000.
	MaxClients int
	// IdleTimeout closes a connection that sends nothing for so long and waits
	// for nothing. Default: never.
	IdleTimeout time.Duration
	// MaxInFlight is how many commands of one connection may be under way; then
	// it is not read from. Default: 4096.
	MaxInFlight int
	// MaxInFlightBytes is the same for the bytes of its commands. Default: 32 MiB.
	MaxInFlightBytes int
	// MaxTracked is how many keys of one connection CLIENT TRACKING remembers; at
	// one more the client is told to forget all. Default: 65536.
	MaxTracked int
	// Log gets what clients cause. Default: nothing is logged.
	Log *slog.Logger
}

// User is who may log in by AUTH or HELLO.
type User struct {
	Name     string // "default" is who gives a password only
	Password string
	ReadOnly bool
}

// Server answers Redis clients on behalf of a Backend.
type Server struct {
	backend Backend
	cfg     Config
}

// New makes a server. The error names the setting that makes no sense.
func New(backend Backend, cfg Config) (*Server, error) {
	return &Server{backend: backend, cfg: cfg}, nil
}

// Serve answers connections of ln until ctx ends, then closes ln and all
// connections, and returns when they are gone. The error is that of ln.
func (s *Server) Serve(ctx context.Context, ln net.Listener) error {
	<-ctx.Done()
	return errors.Join(ln.Close())
}

// Interested tells whether any connection wants to know of changes: if not,
// Changed needs no calls.
func (s *Server) Interested() bool { return false }

// Changed tells connections that track or watch of committed changes, in the
// order of their revisions, after this replica has applied them and before it
// answers a read that began later. One goroutine at a time calls it.
func (s *Server) Changed(changes []Change) {}

// ChangedAll tells connections that anything may have changed: the replica has
// taken a snapshot of another one, or follows a new leader.
func (s *Server) ChangedAll() {}
