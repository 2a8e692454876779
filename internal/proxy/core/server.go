package core

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/weirdb/weir/internal/proxy/cache"
	"github.com/weirdb/weir/internal/proxy/handover"
	"github.com/weirdb/weir/internal/proxy/netloop"
	"github.com/weirdb/weir/internal/proxy/session"
	"github.com/weirdb/weir/internal/proxy/sight"
	"github.com/weirdb/weir/internal/proxy/upstream"
)

// An EventLoop is one of a server's event loops. Loop has all of its methods.
type EventLoop interface {
	comparable
	// Run turns the loop until ctx ends and its clients have left.
	Run(ctx context.Context) error
	// Abandon frees a loop that never runs.
	Abandon()
	// Post runs f on the loop, soon; false if the loop has ended.
	Post(f func()) bool
	// Call runs f on the loop and waits for it.
	Call(ctx context.Context, f func()) error
	// Accept takes over a porch, on the loop's thread.
	Accept(p *netloop.Porch) error
	// Weight is the number of clients that were given to the loop: Given adds one, Taken
	// removes one.
	Weight() int64
	Given()
	Taken()

	// The methods below must be called on the loop's thread.

	// Clock is the time of the current turn.
	Clock() time.Duration
	// Apply makes options current on the loop.
	Apply(o *session.Options)
	// SetPatience sets how long a drain may take.
	SetPatience(d time.Duration)
	// Pause, Resume, Reconnect and Kill are the console's commands for a database, or for
	// all if it is "". Backends counts its server connections, Retired those of them that
	// will be closed.
	Pause(database string)
	Resume(database string)
	// Suspend stops or resumes reading from clients and servers; Unwritten counts the sockets
	// that still have output to write.
	Suspend(on bool)
	Unwritten() int
	Reconnect(database string)
	Kill(database string)
	KillClient(id uint32) bool
	Backends(database string) int
	Retired(database string) int
	// Uses reports whether there is a pool of a database.
	Uses(database string) bool
	// EachClient and EachServer call f for each client, and for the backends of each
	// pool.
	EachClient(f func(c *ClientInfo) bool)
	EachServer(f func(database, user string, b *ServerInfo))
	// LastAnswer is how long ago the server last answered a client; ok is false if it never
	// has.
	LastAnswer() (ago time.Duration, ok bool)
	// TryAgain makes pools that could not reach the server try again at once.
	TryAgain()
	// AddTo adds the loop's state to a snapshot.
	AddTo(out *sight.Snapshot)
	// Moved ends the connections to every other endpoint.
	Moved(now upstream.Endpoint)
	// Give hands all clients that can be handed over to give, now and later, until it is
	// called with nil.
	Give(give func(*handover.Parcel))
}

// A Socket is a listening socket for clients.
type Socket struct {
	net.Listener
	// Late sockets accept connections until all clients have left, for their consoles.
	Late bool
}

// A Server is the common part of both sides of the proxy: a listener, event loops, and the
// goroutines in the background. A side embeds it. Open and Serve are called once; the other
// methods are safe for concurrent use between them.
type Server[L EventLoop] struct {
	Log   *slog.Logger
	Loops []L
	// Background counts dials, logins, cancel requests and TLS bridges. Serve waits for
	// them.
	Background sync.WaitGroup
	// DialCtx ends when all clients have left: work in the background is then abandoned.
	DialCtx context.Context

	// Monitor knows the host that connections go to.
	Monitor *upstream.Monitor

	// Process handles commands that concern all of weir; nil if there is no such process.
	// Set it before Serve.
	Process Process

	// Sockets are used instead of Open's address. Set them before Open.
	Sockets []Socket

	// Cache holds answers to reads that ask for caching.
	Cache *cache.Cache

	// Meet begins the login of a client on a loop's thread, and takes over its connection;
	// until ends when no more clients are accepted. CanMeet reports whether it can now. If
	// Meet is nil, the login function of Serve handles all clients. Set both before Serve.
	Meet    func(l L, fd int, from net.Addr, until context.Context)
	CanMeet func() bool

	Sessions atomic.Int64  // clients that are logged in or logging in
	Consoles atomic.Int64  // those of them at the admin console
	Logins   atomic.Uint64 // successful logins
	Failed   atomic.Uint64 // failed logins
	Refused  atomic.Uint64 // logins refused by weir itself
	Cancels  atomic.Uint64 // requests to end a statement or a session

	LoginChecks LoginChecks // how successful logins were decided

	// Handover hands clients over to another process, and takes in those of one.
	Handover Handover[L]

	Arriving atomic.Int64 // connections that do not belong to a client of a loop yet

	engine    string
	side      Side
	began     time.Time
	stopping  atomic.Bool
	stopDials context.CancelFunc

	serving       context.Context // ends when loops must drain
	stop          context.CancelFunc
	accepting     context.Context // ends when no more clients are accepted
	stopAccepting context.CancelFunc
	emptied       chan struct{} // receives one value when Serve must end because all clients have left

	StatementLog StatementLog
	LoginTimes   LoginTimes
	Forwards     Forwards

	Control[L]
	ClientLoops[L]
	stats stats
	// SessionCounts are the numbers of clients of each database and user.
	SessionCounts SessionCounts
	// Quotas limit the server connections that pools share.
	Quotas ConnQuotas

	health   health
	recovery recovery
}

// Open starts the event loops and listens. engine is the side's name in metrics.
func (s *Server[L]) Open(engine, listen string, side Side, newLoop func() (L, error)) error {
	o := side.Options()
	hosts := side.Hosts()
	hosts.Log, hosts.OnChange = o.Log, s.moved
	hosts.Alive = func(ctx context.Context) bool {
		alive, err := s.answersNow(ctx)
		return alive && err == nil
	}
	monitor, err := upstream.New(hosts)
	if err != nil {
		return err
	}
	s.Monitor = monitor
	s.Handover.s, s.Control.s = s, s
	s.Log, s.engine, s.side, s.began = o.Log, engine, side, time.Now()
	s.StatementLog.init(o)
	s.Cache = cache.New()
	s.Cache.Configure(o.CacheSize, o.CacheMaxAnswer)
	s.DialCtx, s.stopDials = context.WithCancel(context.Background())
	s.serving, s.stop = context.WithCancel(context.Background())
	s.accepting, s.stopAccepting = context.WithCancel(s.serving)
	s.emptied = make(chan struct{}, 1)
	for range o.Loops {
		l, err := newLoop()
		if err != nil {
			s.abandon()
			return fmt.Errorf("start event loop: %w", err)
		}
		s.Loops = append(s.Loops, l)
	}
	if len(s.Sockets) > 0 {
		return nil
	}
	ln, err := netloop.Listen(listen, o.ReusePort)
	if err != nil {
		s.abandon()
		return fmt.Errorf("listen for clients: %w", err)
	}
	s.Sockets = []Socket{{Listener: netloop.NewPausable(ln)}}
	return nil
}

func (s *Server[L]) abandon() {
	for _, l := range s.Loops {
		l.Abandon()
	}
}

// Addr is the address that clients connect to.
func (s *Server[L]) Addr() net.Addr { return s.Sockets[0].Addr() }

// Monotonic is the time since Open, which is also the loops' clock.
func (s *Server[L]) Monotonic() time.Duration { return time.Since(s.began) }

// Stopping reports whether the server no longer accepts clients.
func (s *Server[L]) Stopping() bool { return s.stopping.Load() }

// Serve passes each client to login, on a goroutine of its own, until ctx ends. Then it
// accepts no more clients, lets open transactions finish within the loops' patience, closes
// everything and returns.
func (s *Server[L]) Serve(ctx context.Context, login func(context.Context, net.Conn)) error {
	defer s.Cache.Configure(0, 0) // which ends its maintenance
	defer context.AfterFunc(ctx, s.stop)()
	defer s.stop()
	g, gctx := errgroup.WithContext(s.serving)
	late, turned := context.WithCancel(context.Background()) // ends with the loops
	defer turned()
	var turning sync.WaitGroup
	for _, l := range s.Loops {
		turning.Add(1)
		g.Go(func() error {
			defer turning.Done()
			return l.Run(gctx)
		})
	}
	g.Go(func() error { turning.Wait(); turned(); return nil })
	for _, socket := range s.Sockets {
		until, ln := s.accepting, socket.Listener
		if socket.Late {
			until = late
		}
		if s.Meet != nil {
			ln = netloop.NewPausable(ln)
		}
		defer whenOver(until, func() { _ = ln.Close() })()
		if s.Meet != nil {
			stop, err := acceptOnLoops(s, until, ln, login)
			if err != nil {
				s.Log.Warn("clients are accepted beside the event loops", "error", err)
			} else {
				defer context.AfterFunc(until, stop)()
				continue
			}
		}
		g.Go(func() error {
			return netloop.Accept(until, ln, s.Log, &s.Background, func(conn net.Conn) { s.receive(until, conn, login) })
		})
	}
	g.Go(func() error { s.awaitEmpty(gctx); return nil })
	g.Go(func() error { s.Monitor.Run(gctx); return nil })
	g.Go(func() error { s.keepAverages(gctx); return nil })
	stopAccepting := context.AfterFunc(gctx, s.stopAccepting) // also where a loop fails
	defer stopAccepting()
	closed := context.AfterFunc(s.accepting, func() { s.stopping.Store(true) })
	defer closed()
	telling, stopTelling := context.WithCancel(context.Background()) // as long as anything is answered
	defer stopTelling()
	var tellers sync.WaitGroup
	tellers.Go(func() { s.StatementLog.run(telling) })
	err := g.Wait()
	stopTelling()
	tellers.Wait()
	s.stopDials()
	s.Background.Wait()
	if err != nil && !errors.Is(err, context.Canceled) {
		return fmt.Errorf("proxy: %w", err)
	}
	return nil
}

// whenOver calls f once: when ctx ends, or when atLast is called, whichever comes first.
// Without atLast, other code that waits for ctx could return before f has been called.
func whenOver(ctx context.Context, f func()) (atLast func()) {
	stop := context.AfterFunc(ctx, f)
	return func() {
		if stop() {
			f()
		}
	}
}

// Reloaded applies the side's new options to each loop, soon, after calling set there.
func (s *Server[L]) Reloaded(set func(l L)) {
	o := s.side.Options()
	s.Quotas.Apply(o)
	s.Cache.Purge("") // users may have other privileges now
	s.Cache.Configure(o.CacheSize, o.CacheMaxAnswer)
	for _, l := range s.Loops {
		l.Post(func() {
			set(l)
			l.Apply(o)
		})
	}
}

// acceptOnLoops makes the first loop accept a listener's connections, until stop is called.
// If several loops accepted, each connection would wake up all of them.
func acceptOnLoops[L EventLoop](s *Server[L], until context.Context, ln net.Listener, login func(context.Context, net.Conn)) (stop func(), err error) {
	l := s.Loops[0]
	p, err := netloop.NewPorch(ln, s.Log, func(fd int, from net.Addr) { accepted(s, l, fd, from, until, login) })
	if err != nil {
		return nil, err
	}
	if !l.Post(func() {
		if err := l.Accept(p); err != nil {
			s.Log.Error("clients are not accepted", "error", err)
		}
	}) {
		p.Discard()
	}
	return func() { l.Post(p.Close) }, nil
}

// accepted handles a connection that a loop has accepted, on its thread.
func accepted[L EventLoop](s *Server[L], l L, fd int, from net.Addr, until context.Context, login func(context.Context, net.Conn)) {
	o := s.side.Options()
	if s.CanMeet() && !o.ProxyProtocol.Contains(from) {
		if err := o.Keepalive.AcceptedOn(fd, from); err != nil {
			s.Log.Warn("a client's connection does not notice when it is dead", "client", from.String(), "error", err)
		}
		s.Meet(l, fd, from, until)
		return
	}
	s.Background.Go(func() {
		conn, err := netloop.Connection(fd)
		if err != nil {
			s.Log.Error("cannot take a client off its loop", "client", from.String(), "error", err)
			return
		}
		s.receive(until, conn, login)
	})
}

// headerPatience bounds the wait for the header of a connection that a balancer forwards.
// Balancers send it at once.
const headerPatience = 10 * time.Second

// receive reads the client's address from the header if a balancer forwards the connection.
func (s *Server[L]) receive(ctx context.Context, raw net.Conn, login func(context.Context, net.Conn)) {
	s.Arriving.Add(1)
	defer s.Arriving.Add(-1)
	o := s.side.Options()
	if err := o.Keepalive.Accepted(raw); err != nil {
		s.Log.Warn("a client's connection does not notice when it is dead", "client", raw.RemoteAddr().String(), "error", err)
	}
	conn, err := o.ProxyProtocol.Accept(ctx, raw, headerPatience)
	if err == nil {
		login(ctx, conn)
		return
	}
	_ = raw.Close()
	if errors.Is(err, io.EOF) || errors.Is(err, syscall.ECONNRESET) {
		return // a health check that only connects
	}
	s.Failed.Add(1)
	s.Log.Info("login failed", "client", raw.RemoteAddr().String(), "error", err)
}

// Left removes a client from the sessions that are counted.
func (s *Server[L]) Left(id uint32) {
	s.Forget(id)
	s.Sessions.Add(-1)
}

// LeastLoaded picks the loop with the fewest clients.
func (s *Server[L]) LeastLoaded() L {
	best := s.Loops[0]
	for _, l := range s.Loops[1:] {
		if l.Weight() < best.Weight() {
			best = l
		}
	}
	return best
}

// Snapshot collects the state of all loops. It takes each loop some microseconds
// per pool.
func (s *Server[L]) Snapshot(ctx context.Context) (sight.Snapshot, error) {
	out, err := Count(ctx, s, false)
	if err != nil {
		return sight.Snapshot{}, err
	}
	out.Sort()
	out.LoginTimes = s.LoginTimes.copies()
	seen := make(map[string]bool)
	for i := range out.Pools {
		seen[out.Pools[i].Database] = true
	}
	for _, name := range s.databases(seen) {
		g := s.GateOf(name)
		out.AddDatabase(sight.DatabaseStatus{Name: name, Paused: g.Paused, Disabled: g.Disabled})
	}
	return out, nil
}

// Count collects the counters of the loops and the server; with brief, as sums over all
// pools and lanes (see sight.Snapshot).
func Count[L EventLoop](ctx context.Context, s *Server[L], brief bool) (sight.Snapshot, error) {
	out := sight.Snapshot{
		Brief: brief, Engine: s.engine,
		Uptime: s.Monotonic(), Logins: s.Logins.Load(), LoginsFailed: s.Failed.Load(),
		LoginsRefused: s.Refused.Load(), Cancels: s.Cancels.Load(), Checks: s.LoginChecks.list(),
	}
	for _, l := range s.Loops {
		if err := l.Call(ctx, func() { l.AddTo(&out) }); err != nil {
			return sight.Snapshot{}, err
		}
	}
	s.SessionCounts.each(func(database, user string, refused uint64) {
		out.PoolOf(database, user).Limited[LimitClients.String()] += refused
	})
	s.StatementLog.counts(&out)
	s.Forwards.counts(&out)
	out.Caches, out.Hosts = s.Cache.Stats(), s.hosts()
	out.Taken, out.TakenNot = s.Handover.taken.Load(), s.Handover.takenNot.Load()
	return out, nil
}
