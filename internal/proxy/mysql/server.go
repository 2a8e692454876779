package mysql

import (
	"context"
	"errors"
	"fmt"
	"hash/maphash"
	"log/slog"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/weirdb/weir/internal/proxy/core"
	"github.com/weirdb/weir/internal/proxy/netloop"
	"github.com/weirdb/weir/internal/wire/mywire"
)

// Engine is the name of this side of the proxy in metrics and reports.
const Engine = "mysql"

func errShutdown() *mywire.Error {
	return mywire.NewError(mywire.ErrServerShutdown, "weir is stopping")
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
	background sync.WaitGroup // dials, logins, kills, TLS bridges
	dialCtx    context.Context
	stopDials  context.CancelFunc

	lobby    netloop.Lobby // clients that have not said who they are
	sessions atomic.Int64  // the others, logged in or logging in
	refused  atomic.Uint64
	logins   atomic.Uint64
	failed   atomic.Uint64
	kills    atomic.Uint64

	mu     sync.Mutex
	owners map[uint32]*client // guarded by mu: connection id -> client
	lastID uint32             // guarded by mu
	creds  *core.Credentials[mywire.Secret, mywire.ClientKeys]
	known  serverFacts
	health health
	shut   shutDoor
	grants grants
	blind  sync.Map // accounts of which the log has said that they see no triggers
}

// New checks the configuration and starts to listen; Run serves.
func New(cfg Config) (*Server, error) {
	if err := cfg.withDefaults().validate(); err != nil {
		return nil, err
	}
	cfg = cfg.withDefaults()
	s := &Server{cfg: cfg, log: cfg.Log, began: time.Now(), owners: make(map[uint32]*client)}
	s.creds = newCredentials(&cfg)
	s.grants.seed = maphash.MakeSeed()
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
	s.endHealth()
	s.background.Wait()
	if err != nil && !errors.Is(err, context.Canceled) {
		return fmt.Errorf("proxy: %w", err)
	}
	return nil
}

// firstID is where the connection ids that weir gives to clients begin: out of
// the way of the server's own, so that a KILL tells by its number what it
// means. They end before 1<<31: MariaDB's Connector/J, for one, takes the number for a
// signed one, and could kill nothing.
const firstID = 1 << 30

// isOurs tells whether a number is one that weir gives to clients.
func isOurs(id uint64) bool { return id >= firstID && id < 2*firstID }

// register gives the client its connection id.
func (s *Server) register(c *client) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for {
		s.lastID++
		c.id = firstID | s.lastID%firstID
		if s.owners[c.id] == nil {
			s.owners[c.id] = c
			return
		}
	}
}

// left forgets a client.
func (s *Server) left(id uint32) {
	s.forget(id)
	s.sessions.Add(-1)
}

// forget frees a connection id.
func (s *Server) forget(id uint32) {
	s.mu.Lock()
	delete(s.owners, id)
	s.mu.Unlock()
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
