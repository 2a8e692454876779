package postgres

import (
	"context"
	"crypto/rand"
	"encoding/binary"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"
	"golang.org/x/sys/unix"

	"github.com/weirdb/weir/internal/proxy/netloop"
	"github.com/weirdb/weir/internal/wire/pgwire"
)

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

	health health
	silent *netloop.Silent

	lookups  lookups
	vouchers vouchers
	away     away
}

// New checks the configuration and starts to listen; Run serves.
func New(cfg Config) (*Server, error) {
	if err := cfg.withDefaults().validate(); err != nil {
		return nil, err
	}
	cfg = cfg.withDefaults()
	s := &Server{cfg: cfg, log: cfg.Log, began: time.Now(), owners: make(map[uint32]*loop), silent: netloop.NewSilent(maxSilent())}
	s.creds.init(&cfg)
	s.lookups.init()
	s.away.init()
	s.dialCtx, s.stopDials = context.WithCancel(context.Background())
	for range cfg.Loops {
		l, err := newLoop(s)
		if err != nil {
			s.closeLoops()
			return nil, fmt.Errorf("start event loop: %w", err)
		}
		s.loops = append(s.loops, l)
	}
	ln, err := netloop.Listen(cfg.Listen)
	if err != nil {
		s.closeLoops()
		return nil, fmt.Errorf("listen for clients: %w", err)
	}
	s.ln = ln
	return s, nil
}

func (s *Server) closeLoops() {
	for _, l := range s.loops {
		l.Abandon()
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
		g.Go(func() error { return l.Run(gctx) })
	}
	g.Go(func() error {
		return netloop.Accept(gctx, s.ln, s.log, &s.background, func(conn net.Conn) { s.login(gctx, conn) })
	})
	stop := context.AfterFunc(gctx, func() {
		s.stopping.Store(true)
		_ = s.ln.Close()
	})
	defer stop()
	err := g.Wait()
	s.stopDials()
	s.background.Wait()
	s.lookups.close()
	if err != nil && !errors.Is(err, context.Canceled) {
		return fmt.Errorf("proxy: %w", err)
	}
	return nil
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

// maxSilent is how many connections may be open that have not sent a startup
// packet: an eighth of the descriptors that there are.
func maxSilent() int {
	var files unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &files); err != nil {
		return 128
	}
	return int(min(max(files.Cur/8, 16), 4096))
}
