package resp

import (
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"github.com/weirdb/weir/internal/wire/netwire"
)

// Config configures a Server.
type Config struct {
	// TLS, when not nil, makes every connection a TLS one. Default: plain TCP.
	TLS *tls.Config
	// Users may log in. Without any, all clients may do everything. Default: none.
	Users []User
	// MaxClients is the largest number of connections. Default: 10000.
	MaxClients int
	// LoginTimeout is how long a connection may be without login, from its start or from RESET.
	// Default: one minute.
	LoginTimeout time.Duration
	// IdleTimeout is how long a connection may send nothing and wait for nothing. Default:
	// forever.
	IdleTimeout time.Duration
	// MaxInFlight is the number of commands in flight at which a connection is not read any
	// more. Commands that were read before may exceed it by a batch. Default: 4096.
	MaxInFlight int
	// MaxInFlightBytes is the same for the bytes of commands, and of their answers as far as
	// known in advance. Default: 32 MiB.
	MaxInFlightBytes int
	// MaxTracked is the number of keys of a connection that CLIENT TRACKING remembers. With one
	// more, the client is told to forget all keys. Default: 65536.
	MaxTracked int
	// Log receives messages about clients. Default: nothing is logged.
	Log *slog.Logger
}

// User is a user who may log in by AUTH or HELLO.
type User struct {
	Name     string // "default" is the user of clients that send only a password
	Password string
	ReadOnly bool
}

func (c Config) withDefaults() Config {
	c.MaxClients = cmp.Or(c.MaxClients, 10_000)
	c.LoginTimeout = cmp.Or(c.LoginTimeout, time.Minute)
	c.MaxInFlight = cmp.Or(c.MaxInFlight, 4096)
	c.MaxInFlightBytes = cmp.Or(c.MaxInFlightBytes, 32<<20)
	c.MaxTracked = cmp.Or(c.MaxTracked, 1<<16)
	if c.Log == nil {
		c.Log = slog.New(slog.DiscardHandler)
	}
	return c
}

func (c *Config) validate() error {
	if c.MaxClients < 0 || c.MaxInFlight < 0 || c.MaxInFlightBytes < 0 || c.MaxTracked < 0 || c.LoginTimeout < 0 || c.IdleTimeout < 0 {
		return errors.New("limits of Redis clients must not be negative")
	}
	seen := make(map[string]bool)
	for _, u := range c.Users {
		switch {
		case u.Name == "" || u.Password == "":
			return fmt.Errorf("user %q of the Redis front needs a name and a password", u.Name)
		case seen[u.Name]:
			return fmt.Errorf("user %q of the Redis front is given twice", u.Name)
		}
		seen[u.Name] = true
	}
	return nil
}

// Server serves Redis clients from a Backend.
type Server struct {
	backend Backend
	scripts scripts
	cfg     Config
	log     *slog.Logger
	table   table
	tracker *tracker
	cursors cursors
	since   time.Time

	accepted, rejected, commands, writes atomic.Uint64

	mu     sync.Mutex
	conns  map[*conn]struct{}
	nextID uint64
	end    bool
}

// New returns a server. The error names an invalid setting.
func New(backend Backend, cfg Config) (*Server, error) {
	if err := cfg.validate(); err != nil {
		return nil, fmt.Errorf("configure the Redis front: %w", err)
	}
	cfg = cfg.withDefaults()
	s := &Server{
		backend: backend, cfg: cfg, log: cfg.Log, table: newTable(), tracker: newTracker(), since: time.Now(),
		conns: make(map[*conn]struct{}),
	}
	s.cursors.next = rand.Uint64N(1 << 48) // so that no replica accepts a cursor of another
	return s, nil
}

const (
	// handshakeTime is how long a TLS handshake may take.
	handshakeTime = 10 * time.Second
	// acceptPause is how long a listener waits that is out of file descriptors.
	acceptPause = 100 * time.Millisecond
)

// Serve serves connections of ln until ctx ends, then closes ln, sends the replies in flight
// for at most some seconds, and returns when all connections are closed. The error is that of
// ln.
func (s *Server) Serve(ctx context.Context, ln net.Listener) error {
	var running sync.WaitGroup
	stop := context.AfterFunc(ctx, func() { _ = ln.Close() }) // Accept tells
	defer stop()
	var failed error
	for {
		sock, err := ln.Accept()
		if err == nil {
			s.accept(ctx, sock, &running)
			continue
		}
		if ctx.Err() != nil {
			break
		}
		if errors.Is(err, net.ErrClosed) {
			failed = fmt.Errorf("accept Redis clients: %w", err)
			break
		}
		s.log.Warn("cannot accept a Redis client", "cause", err)
		select {
		case <-time.After(acceptPause):
		case <-ctx.Done():
		}
	}
	s.stopReading()
	running.Wait()
	return failed
}

// accept starts a connection's goroutines, which running counts.
func (s *Server) accept(ctx context.Context, sock net.Conn, running *sync.WaitGroup) {
	s.accepted.Add(1)
	if s.cfg.TLS != nil {
		sock = tls.Server(sock, s.cfg.TLS)
	} else {
		sock = netwire.Quick(sock) // the reader reads, and who holds conn.writing writes
	}
	c := s.newConn(sock)
	if !s.enter(c) {
		s.rejected.Add(1)
		running.Go(func() {
			_ = sock.SetDeadline(time.Now().Add(handshakeTime))
			_, _ = sock.Write([]byte("-ERR max number of clients reached\r\n")) // it does not matter if this is lost
			_ = sock.Close()
		})
		return
	}
	running.Go(func() {
		defer s.leave(c)
		if !c.handshake(ctx) {
			return
		}
		c.session = s.backend.Open(c)
		c.run()
	})
}

func (s *Server) newConn(sock net.Conn) *conn {
	c := &conn{srv: s, sock: sock, in: newParser(), wake: make(chan struct{}, 1)}
	c.changed.L = &c.mu
	c.since = time.Now()
	c.proto = 2
	c.resetLogin()
	c.listener.c = c
	return c
}

// handshake does the TLS handshake, if any.
func (c *conn) handshake(ctx context.Context) bool {
	secure, ok := c.sock.(*tls.Conn)
	if !ok {
		return true
	}
	ctx, cancel := context.WithTimeout(ctx, handshakeTime)
	defer cancel()
	if err := secure.HandshakeContext(ctx); err != nil {
		c.srv.log.Debug("TLS handshake of a Redis client", "client", c.sock.RemoteAddr(), "cause", err)
		_ = c.sock.Close()
		return false
	}
	return true
}

// enter assigns a connection its number, unless there are too many.
func (s *Server) enter(c *conn) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.end || len(s.conns) >= s.cfg.MaxClients {
		return false
	}
	s.nextID++
	c.id = s.nextID
	s.conns[c] = struct{}{}
	return true
}

func (s *Server) leave(c *conn) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.conns, c)
}

// ending reports whether the server accepts no more commands.
func (s *Server) ending() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.end
}

// stopReading makes all connections end after the commands that they have read or, if those
// take too long, at once.
func (s *Server) stopReading() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.end = true
	for c := range s.conns {
		_ = c.sock.SetReadDeadline(time.Now()) // fails when it is closed
		time.AfterFunc(drainTime, c.abort)
	}
}

// Counts are figures for metrics. All but the first three only grow.
type Counts struct {
	Connected int    // clients
	Listening int    // those that track or watch
	Unread    int    // bytes of answers that clients have not read, without small ones
	Accepted  uint64 // connections
	Rejected  uint64 // connections that exceeded MaxClients
	Commands  uint64
	Writes    uint64 // of replies and pushes, each a system call
}

// Counts returns the current figures.
func (s *Server) Counts() Counts {
	s.mu.Lock()
	connected, unread := len(s.conns), 0
	for c := range s.conns {
		c.mu.Lock()
		unread += c.unread.bytes
		c.mu.Unlock()
	}
	s.mu.Unlock()
	return Counts{
		Connected: connected,
		Listening: int(s.tracker.interested.Load()),
		Unread:    unread,
		Accepted:  s.accepted.Load(),
		Rejected:  s.rejected.Load(),
		Commands:  s.commands.Load(),
		Writes:    s.writes.Load(),
	}
}

// Interested reports whether any connection tracks or watches: otherwise Changed need not be
// called.
func (s *Server) Interested() bool { return s.tracker.interested.Load() > 0 }

// Changed passes committed changes to connections that track or watch. It must be called in the
// order of revisions, after this replica has applied the changes and preferably before it
// completes their writes: then a client that hears of its own write does not find the old value
// in its cache. It does not block.
func (s *Server) Changed(changes []Change) { s.tracker.changed(changes) }

// ChangedAll tells connections that anything may have changed, because the replica has
// installed a snapshot.
func (s *Server) ChangedAll() { s.tracker.changedAll() }
