package core_test

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"testing"
	"time"

	"github.com/weirdb/weir/internal/proxy/core"
	"github.com/weirdb/weir/internal/proxy/netloop"
	"github.com/weirdb/weir/internal/proxy/session"
	"github.com/weirdb/weir/internal/proxy/sight"
	"github.com/weirdb/weir/internal/proxy/upstream"
)

// fakeClient leaves when it is told to.
type fakeClient struct {
	l      *fakeLoop
	id     uint32
	active bool
}

func (c *fakeClient) Tick()     {}
func (c *fakeClient) Drain()    { c.Shutdown() }
func (c *fakeClient) Kill()     { c.Shutdown() }
func (c *fakeClient) Shutdown() { delete(c.l.Clients, c.id) }
func (c *fakeClient) Info() core.ClientInfo {
	return core.ClientInfo{ID: c.id, Database: "d", User: "u", Active: c.active, Pinned: !c.active}
}

// fakePool has heard from its server at answered.
type fakePool struct {
	at              upstream.Endpoint
	answered        time.Duration
	paused, retired bool
	backends, size  int
	tries           int
}

func (p *fakePool) Moved(now upstream.Endpoint) { p.at = now }
func (p *fakePool) TryAgain()                   { p.tries++ }
func (p *fakePool) Tick()                       {}
func (p *fakePool) Pause()                      { p.paused = true }
func (p *fakePool) Resume()                     { p.paused = false }
func (p *fakePool) Reconnect()                  { p.retired = true }
func (p *fakePool) Apply(o *session.Options)    { p.size = o.PoolSize }
func (p *fakePool) Connections() int            { return p.backends }
func (p *fakePool) Waiting() int                { return 0 }
func (p *fakePool) CloseAll()                   {}
func (p *fakePool) LastAnswer() time.Duration   { return p.answered }
func (p *fakePool) Name() (string, string)      { return "d", "u" }
func (p *fakePool) Servers() []core.ServerInfo {
	return []core.ServerInfo{{ID: 42, Address: "192.0.2.1:5432", Retired: p.retired, Free: p.answered == 0, Mode: "free"}}
}
func (p *fakePool) AddTo(out *sight.Snapshot) { out.PoolOf("d", "u").Size++ }

type fakeLoop struct {
	core.Loop[string, *fakePool, *fakeClient]
}

type fakeServer struct {
	core.Server[*fakeLoop]
	options session.Options
}

func (s *fakeServer) LetGo()                    {}
func (s *fakeServer) Database() string          { return "d" }
func (s *fakeServer) Upstream() string          { return "192.0.2.1:5432" }
func (s *fakeServer) Hosts() upstream.Config    { return upstream.Config{Hosts: []string{s.Upstream()}} }
func (s *fakeServer) Options() *session.Options { return &s.options }
func (s *fakeServer) Settings() []core.Setting  { return []core.Setting{{Key: "fake", Value: 1}} }
func (s *fakeServer) Shows() []string           { return []string{"FAKES"} }
func (s *fakeServer) Show(_ context.Context, what string) (sight.Table, bool) {
	return sight.Table{Cols: []string{"fake"}}, what == "FAKES"
}

// open makes a server with two loops.
func open(t *testing.T) *fakeServer {
	t.Helper()
	s := &fakeServer{options: session.Options{Loops: 2, Log: slog.New(slog.DiscardHandler)}.WithDefaults()}
	err := s.Open("fake", "127.0.0.1:0", s, func() (*fakeLoop, error) {
		l := new(fakeLoop)
		l.Init()
		return l, l.Start(l, s.Monotonic, time.Minute)
	})
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// serve starts one.
func serve(t *testing.T) *fakeServer {
	t.Helper()
	s := open(t)
	ctx, stop := context.WithCancel(context.Background())
	done := make(chan error)
	go func() { done <- s.Serve(ctx, func(_ context.Context, c net.Conn) { _ = c.Close() }) }()
	t.Cleanup(func() {
		stop()
		if err := <-done; err != nil {
			t.Error(err)
		}
		if err := s.CheckHealth(context.Background(), "db", nil); !errors.Is(err, netloop.ErrStopped) {
			t.Errorf("a stopped server is healthy: %v", err)
		}
	})
	return s
}

// Serve leaves nothing open: not its sockets where it is done before they have heard that it
// is to end, nor its cache.
func TestServeLeavesNothingOpen(t *testing.T) {
	t.Parallel()
	s := open(t)
	s.Cache.Configure(1<<20, 1<<10)
	s.Meet = func(*fakeLoop, int, net.Addr, context.Context) {}
	s.Deafen()
	ctx, stop := context.WithCancel(t.Context())
	stop()
	if err := s.Serve(ctx, nil); err != nil {
		t.Fatal(err)
	}
	if conn, err := net.Dial("tcp", s.Addr().String()); err == nil {
		_ = conn.Close()
		t.Error("the server has ended, and still listens")
	}
	if s.Cache.On() {
		t.Error("the server has ended, and still has its cache")
	}
}

// on runs f on a loop.
func on(t *testing.T, l *fakeLoop, f func()) {
	t.Helper()
	if err := l.Call(t.Context(), f); err != nil {
		t.Fatal(err)
	}
}

func TestServerKnowsItsClients(t *testing.T) {
	t.Parallel()
	s := serve(t)
	first := s.LeastLoaded()
	first.Given()
	second := s.LeastLoaded()
	if first == second {
		t.Fatal("the loop with a client is the least loaded one")
	}
	ids := []uint32{7, 7, 0, 8}
	pick := func() uint32 {
		id := ids[0]
		ids = ids[1:]
		return id
	}
	if id := s.Register(first, pick); id != 7 {
		t.Errorf("the first client has id %d, want 7", id)
	}
	if id := s.Register(second, pick); id != 8 {
		t.Errorf("the second client has id %d, want 8: 7 is taken, and 0 is none", id)
	}
	if l, ok := s.Owner(8); !ok || l != second {
		t.Errorf("client 8 is on %p, %v; want %p", l, ok, second)
	}
	s.Sessions.Add(1)
	s.Left(8)
	if _, ok := s.Owner(8); ok || s.Sessions.Load() != 0 {
		t.Error("a client that has left is known")
	}
	for i, l := range s.Loops {
		on(t, l, func() {
			l.PoolList = append(l.PoolList, new(fakePool))
			for id := range uint32(i + 1) {
				l.Clients[id] = &fakeClient{l: l, id: id, active: id == 0}
			}
		})
	}
	snap, err := s.Snapshot(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if p := snap.PoolOf("d", "u"); snap.Clients != 3 || p.Clients != 3 || p.Active != 2 || p.Pinned != 1 || p.Size != 2 {
		t.Errorf("a snapshot of three clients, two of them active, on two loops: %+v", snap)
	}
}

// TestCheckHealth checks that the server is asked only if no client has had an answer lately,
// and that its answer is reused for a moment.
func TestCheckHealth(t *testing.T) {
	t.Parallel()
	s := serve(t)
	asked, down := 0, errors.New("down")
	ask := func(context.Context) (bool, error) {
		asked++
		return true, down
	}
	for range 3 {
		if err := s.CheckHealth(t.Context(), "db", ask); !errors.Is(err, down) {
			t.Fatalf("the health of a server that is down: %v", err)
		}
	}
	if asked != 1 {
		t.Errorf("asked %d times in a moment, want once", asked)
	}
	l := s.Loops[1]
	on(t, l, func() { l.PoolList = append(l.PoolList, &fakePool{answered: time.Hour}) })
	if err := s.CheckHealth(t.Context(), "db", ask); err != nil {
		t.Errorf("the health of a server that has just answered: %v", err)
	}
}
