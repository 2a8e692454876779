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

// Config is how a Server treats its clients.
type Config struct {
	// TLS, when not nil, makes every connection a TLS one. Default: plain TCP.
	TLS *tls.Config
	// Users may log in. Without any, everybody may do everything. Default: none.
	Users []User
	// MaxClients is how many connections are held at once. Default: 10000.
	MaxClients int
	// LoginTimeout closes a connection that has not logged in so long after it came,
	// or after RESET. Default: one minute.
	LoginTimeout time.Duration
	// IdleTimeout closes a connection that sends nothing for so long and waits
	// for nothing. Default: never.
	IdleTimeout time.Duration
	// MaxInFlight is how many commands of one connection may be under way before
	// it is not read from; what was read already may exceed it by a batch.
	// Default: 4096.
	MaxInFlight int
	// MaxInFlightBytes is the same for the bytes of its commands, and of the answers
	// to them as far as they are known before. Default: 32 MiB.
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

// Server answers Redis clients on behalf of a Backend.
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

// New makes a server. The error names the setting that makes no sense.
func New(backend Backend, cfg Config) (*Server, error) {
	if err := cfg.validate(); err != nil {
		return nil, fmt.Errorf("configure the Redis front: %w", err)
	}
	cfg = cfg.withDefaults()
	s := &Server{
		backend: backend, cfg: cfg, log: cfg.Log, table: newTable(), tracker: newTracker(), since: time.Now(),
		conns: make(map[*conn]struct{}),
	}
	s.cursors.next = rand.Uint64N(1 << 48) // so that no replica takes another's for its own
	return s, nil
}

const (
	// handshakeTime is how long a TLS handshake may take.
	handshakeTime = 10 * time.Second
	// acceptPause is how long a listener that is out of file descriptors rests.
	acceptPause = 100 * time.Millisecond
)

// Serve answers connections of ln until ctx ends, then closes ln, sends the
// replies that are under way, for at most some seconds, and returns when all
// connections are gone. The error is that of ln.
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
			_, _ = sock.Write([]byte("-ERR max number of clients reached\r\n")) // it is lost, if it is
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
	c.comeAnew()
	c.listener.c = c
	return c
}

// handshake does what TLS asks for before anything can be read.
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

// enter gives a connection its number, unless there are too many.
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

// ending reports whether the server takes no more commands.
func (s *Server) ending() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.end
}

// stopReading makes all connections end after the commands that they have read,
// or, when those take too long, at once.
func (s *Server) stopReading() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.end = true
	for c := range s.conns {
		_ = c.sock.SetReadDeadline(time.Now()) // fails when it is closed
		time.AfterFunc(drainTime, c.breakOff)
	}
}

// Counts are figures for metrics. All but the first three only grow.
type Counts struct {
	Connected int    // clients
	Listening int    // of them, those that track or watch
	Unread    int    // bytes of answers that they have not read; small ones do not count
	Accepted  uint64 // connections
	Rejected  uint64 // connections, because there were too many
	Commands  uint64
	Writes    uint64 // of replies and pushes, each a system call
}

// Counts returns the present figures.
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

// Interested reports whether any connection wants to know of changes: if not,
// Changed needs no calls.
func (s *Server) Interested() bool { return s.tracker.interested.Load() > 0 }

// Changed tells connections that track or watch of committed changes, in the
// order of their revisions, after this replica has applied them, and best before
// it completes the writes that made them: then a client that is told of its own
// write does not find the old value in its cache. It does not block.
func (s *Server) Changed(changes []Change) { s.tracker.changed(changes) }

// ChangedAll tells connections that anything may have changed: the replica has
// taken a snapshot of another one.
func (s *Server) ChangedAll() { s.tracker.changedAll() }
