package proxy

import (
	"context"
	"crypto/rand"
	"encoding/binary"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/weirdb/weir/internal/pgwire"
)

// errStopping is what remains to be said to those who come too late.
var errStopping = errors.New("the proxy is stopping")

func errShutdown() *pgwire.Error {
	return pgwire.NewFatal(pgwire.CodeAdminShutdown, "terminating connection because weir is stopping")
}

// Server is the proxy: a listener, logins, and the event loops that everything
// else happens on.
type Server struct {
	cfg   Config
	log   *slog.Logger
	began time.Time
	loops []*loop
	ln    net.Listener

	stopping   atomic.Bool
	background sync.WaitGroup // dials, logins, cancels, TLS bridges
	dialCtx    context.Context
	stopDials  context.CancelFunc

	sessions atomic.Int64 // clients logged in or logging in
	refused  atomic.Uint64
	logins   atomic.Uint64
	failed   atomic.Uint64
	cancels  atomic.Uint64

	mu     sync.Mutex
	owners map[uint32]*loop // guarded by mu: client id -> loop
	creds  credentials
}

// New checks the configuration and starts to listen; Run serves.
func New(cfg Config) (*Server, error) {
	if err := cfg.withDefaults().validate(); err != nil {
		return nil, err
	}
	cfg = cfg.withDefaults()
	s := &Server{cfg: cfg, log: cfg.Log, began: time.Now(), owners: make(map[uint32]*loop)}
	s.creds.init(&cfg)
	s.dialCtx, s.stopDials = context.WithCancel(context.Background())
	for i := range cfg.Loops {
		l, err := newLoop(s, i)
		if err != nil {
			s.closeLoops()
			return nil, fmt.Errorf("start event loop: %w", err)
		}
		s.loops = append(s.loops, l)
	}
	ln, err := listen(cfg.Listen)
	if err != nil {
		s.closeLoops()
		return nil, fmt.Errorf("listen for clients: %w", err)
	}
	s.ln = ln
	return s, nil
}

// listen opens the address for clients. A Unix socket is open to every user of
// the machine, as PostgreSQL's is; the directory can say otherwise. One that a
// killed process left behind is replaced.
func listen(address string) (net.Listener, error) {
	if !strings.HasPrefix(address, "/") {
		return net.Listen("tcp", address)
	}
	ln, err := net.Listen("unix", address)
	if errors.Is(err, syscall.EADDRINUSE) {
		info, statErr := os.Lstat(address)
		if statErr != nil || info.Mode().Type() != os.ModeSocket {
			return nil, err // a file, which would refuse connections as well
		}
		conn, dialErr := net.Dial("unix", address)
		if dialErr == nil {
			_ = conn.Close() // somebody lives there
			return nil, err
		}
		if !errors.Is(dialErr, syscall.ECONNREFUSED) {
			return nil, err
		}
		if err := os.Remove(address); err != nil {
			return nil, fmt.Errorf("remove abandoned socket: %w", err)
		}
		ln, err = net.Listen("unix", address)
	}
	if err != nil {
		return nil, err
	}
	if err := os.Chmod(address, 0o777); err != nil {
		_ = ln.Close()
		return nil, err
	}
	return ln, nil
}

func (s *Server) closeLoops() {
	for _, l := range s.loops {
		l.closeFDs()
	}
}

// Addr is the address that clients connect to.
func (s *Server) Addr() net.Addr { return s.ln.Addr() }

func (s *Server) monotonic() time.Duration { return time.Since(s.began) }

// Run serves until ctx ends. Then it takes no new clients, lets transactions
// under way finish for at most DrainTimeout, closes everything and returns.
func (s *Server) Run(ctx context.Context) error {
	g, gctx := errgroup.WithContext(ctx)
	for _, l := range s.loops {
		g.Go(func() error { return l.run(gctx) })
	}
	g.Go(func() error { return s.accept(gctx) })
	stop := context.AfterFunc(gctx, func() {
		s.stopping.Store(true)
		_ = s.ln.Close()
	})
	defer stop()
	err := g.Wait()
	s.stopDials()
	s.background.Wait()
	if err != nil && !errors.Is(err, context.Canceled) {
		return fmt.Errorf("proxy: %w", err)
	}
	return nil
}

// accept takes clients and hands each to a goroutine for its login.
func (s *Server) accept(ctx context.Context) error {
	for {
		conn, err := s.ln.Accept()
		if err != nil {
			if ctx.Err() != nil {
				return nil
			}
			var ne net.Error
			if errors.As(err, &ne) || errors.Is(err, os.ErrDeadlineExceeded) {
				// Out of file descriptors, most likely: pause, do not spin.
				s.log.Error("accept failed", "error", err)
				select {
				case <-time.After(100 * time.Millisecond):
				case <-ctx.Done():
				}
				continue
			}
			return fmt.Errorf("accept client: %w", err)
		}
		s.background.Go(func() { s.login(ctx, conn) })
	}
}

// newID makes a client known for cancel requests.
func (s *Server) newID(l *loop) (id uint32, secret []byte, err error) {
	var b [12]byte
	s.mu.Lock()
	defer s.mu.Unlock()
	for {
		if _, err := rand.Read(b[:]); err != nil {
			return 0, nil, fmt.Errorf("make cancel key: %w", err)
		}
		id = binary.BigEndian.Uint32(b[:]) >> 1
		if id != 0 && s.owners[id] == nil {
			s.owners[id] = l
			return id, b[4:8], nil
		}
	}
}

// left forgets a client.
func (s *Server) left(id uint32) {
	s.mu.Lock()
	delete(s.owners, id)
	s.mu.Unlock()
	s.sessions.Add(-1)
}

// leastLoaded picks the loop with the fewest clients.
func (s *Server) leastLoaded() *loop {
	best := s.loops[0]
	for _, l := range s.loops[1:] {
		if l.load.Load() < best.load.Load() {
			best = l
		}
	}
	return best
}

// Healthy tells whether the server can be reached: a pool has a backend, or a
// new connection succeeds.
func (s *Server) Healthy(ctx context.Context) error {
	if s.stopping.Load() {
		return errStopping
	}
	for _, l := range s.loops {
		up := false
		if err := l.call(ctx, func() {
			for _, p := range l.poolList {
				up = up || len(p.backends) > 0
			}
		}); err != nil {
			return err
		}
		if up {
			return nil
		}
	}
	cfg := s.cfg.Postgres
	cfg.Timeout = s.cfg.ConnectTimeout
	conn, err := pgwire.Open(ctx, cfg)
	if err != nil {
		return fmt.Errorf("reach the server: %w", err)
	}
	return conn.Close()
}
