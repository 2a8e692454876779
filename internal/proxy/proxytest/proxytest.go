// Package proxytest has what the tests of both sides of the proxy share: running a server,
// reading its console and counters, and a load.
package proxytest

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/weirdb/weir/internal/lab"
	"github.com/weirdb/weir/internal/proxy/core"
	"github.com/weirdb/weir/internal/proxy/sight"
	"github.com/weirdb/weir/internal/testkit"
)

// Patience limits every wait for something that must happen, so that a hang does not use up the
// time of the whole run. Nothing is expected to take nearly as long.
const Patience = 4 * time.Minute

// A Server is a proxy server of either side.
type Server interface {
	Run(ctx context.Context) error
	Snapshot(ctx context.Context) (sight.Snapshot, error)
	Command(ctx context.Context, text string) (core.Answer, error)
}

// RunAll runs the tests and then checks that they leaked neither goroutines nor file
// descriptors. start starts shared servers, and returns a function that stops them, or nil. It
// returns the exit code.
func RunAll(m interface{ Run() int }, start func(ctx context.Context) (stop func(context.Context) error)) int {
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
	defer cancel()
	stop := start(ctx)
	held := testkit.HeldNow()
	code := m.Run()
	if err := held.Settle(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		code = max(code, 1)
	}
	if stop == nil {
		return code
	}
	stopCtx, done := context.WithTimeout(context.Background(), time.Minute)
	defer done()
	if err := stop(stopCtx); err != nil {
		fmt.Fprintln(os.Stderr, "stop server:", err)
		code = max(code, 1)
	}
	return code
}

// Need ends a test that needs a server, if err says that there is none.
func Need(tb testing.TB, err error) {
	tb.Helper()
	switch {
	case err == nil:
	case lab.NotInstalled(err) && os.Getenv("CI") != "true":
		tb.Skip(err)
	default:
		tb.Fatal(err)
	}
}

// Context returns a context for everything that a test does with its connections.
func Context(tb testing.TB) context.Context {
	tb.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), Patience)
	tb.Cleanup(cancel)
	return ctx
}

// Log returns a logger for the proxies of tb.
func Log(tb testing.TB) *slog.Logger {
	if _, fuzzed := tb.(*testing.F); testing.Verbose() && !fuzzed { // F accepts no log output while it fuzzes
		return slog.New(slog.NewTextHandler(testLog{tb}, nil))
	}
	return slog.New(slog.NewTextHandler(io.Discard, nil))
}

// testLog writes a proxy's log to its test. The proxy ends before the test does.
type testLog struct{ tb testing.TB }

func (l testLog) Write(p []byte) (int, error) {
	l.tb.Log(strings.TrimRight(string(p), "\n"))
	return len(p), nil
}

// A Lines is a log that a test reads.
type Lines struct {
	mu   sync.Mutex
	text bytes.Buffer // guarded by mu
}

func (l *Lines) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.Write(p)
}

// With returns the lines that contain what.
func (l *Lines) With(what string) (found []string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for line := range strings.Lines(l.text.String()) {
		if strings.Contains(line, what) {
			found = append(found, line)
		}
	}
	return found
}

// Run runs a server until the end of tb. stop ends it and waits, and may be called repeatedly;
// ended is closed when Run has returned.
func Run(tb testing.TB, s Server) (stop func() error, ended chan struct{}) {
	ctx, cancel := context.WithCancel(context.Background())
	result := make(chan error, 1)
	ended = make(chan struct{})
	go func() {
		result <- s.Run(ctx)
		close(ended)
	}()
	var err error
	done := false
	stop = func() error {
		if done {
			return err
		}
		done = true
		cancel()
		select {
		case err = <-result:
		case <-time.After(Patience):
			err = fmt.Errorf("the proxy did not end within %s", Patience)
		}
		return err
	}
	tb.Cleanup(func() {
		if err := stop(); err != nil {
			tb.Errorf("proxy: %v", err)
		}
	})
	return stop, ended
}

// Snapshot returns the server's current state.
func Snapshot(tb testing.TB, s Server) sight.Snapshot {
	tb.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), Patience)
	defer cancel()
	snap, err := s.Snapshot(ctx)
	if err != nil {
		tb.Fatalf("snapshot: %v", err)
	}
	return snap
}

// Pool returns the sum of the states of the pools of a database and a user.
func Pool(tb testing.TB, s Server, database, user string) sight.PoolStatus {
	tb.Helper()
	for _, p := range Snapshot(tb, s).Pools {
		if p.Database == database && p.User == user {
			return p
		}
	}
	return sight.PoolStatus{}
}

// Gathered returns the number of group members beyond the first of each group, over the lanes
// of a kind: if it is above zero, groups of two or more were formed.
func Gathered(tb testing.TB, s Server, kind string) (extra uint64) {
	tb.Helper()
	for _, l := range Snapshot(tb, s).Lanes {
		if l.Kind == kind {
			extra += l.Members - min(l.Members, l.Groups)
		}
	}
	return extra
}

// Command runs a command of the console, which must succeed.
func Command(tb testing.TB, s Server, text string) {
	tb.Helper()
	if _, err := s.Command(Context(tb), text); err != nil {
		tb.Fatalf("%s: %v", text, err)
	}
}

// A Load is a set of clients that increment counters of their own and read in between. None of
// them may get an error.
type Load struct {
	t       *testing.T
	stop    atomic.Bool
	done    atomic.Int64 // acknowledged increments
	clients sync.WaitGroup
}

// NewLoad starts a load of 8 clients. step runs the i-th operation of a client; added says that
// it was an increment.
func NewLoad(t *testing.T, client func(k int) (step func(i int) (added bool, err error))) *Load {
	l := &Load{t: t}
	for k := range 8 {
		step := client(k)
		l.clients.Go(func() {
			for i := 0; !l.stop.Load(); i++ {
				added, err := step(i)
				if added {
					l.done.Add(1)
				}
				if err != nil {
					t.Errorf("client %d: %v", k, err)
					return
				}
			}
		})
	}
	return l
}

// GoesOn waits until the load has made progress.
func (l *Load) GoesOn() {
	l.t.Helper()
	before := l.done.Load()
	testkit.Eventually(l.t, "work goes on", func() bool { return l.done.Load() > before+20 || l.t.Failed() })
}

// Stop ends the load.
func (l *Load) Stop() {
	l.stop.Store(true)
	l.clients.Wait()
}

// End ends the load and compares the sum of the counters, which sum reads from the server
// itself, with the acknowledged increments.
func (l *Load) End(sum func() (int64, error)) {
	l.t.Helper()
	l.Stop()
	there, err := sum()
	if err != nil {
		l.t.Fatal(err)
	}
	if there != l.done.Load() {
		l.t.Errorf("%d additions were acknowledged, %d are there", l.done.Load(), there)
	}
}

// Keepalive reports whether connections of dial are probed while they are idle.
func Keepalive(tb testing.TB, dial func(ctx context.Context, address string) (net.Conn, error)) (on bool) {
	tb.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		tb.Fatal(err)
	}
	defer func() { _ = ln.Close() }()
	conn, err := dial(tb.Context(), ln.Addr().String())
	if err != nil {
		tb.Fatal(err)
	}
	defer func() { _ = conn.Close() }()
	raw, err := conn.(syscall.Conn).SyscallConn()
	if err != nil {
		tb.Fatal(err)
	}
	var value int
	var optErr error
	if err := errors.Join(raw.Control(func(fd uintptr) {
		value, optErr = unix.GetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_KEEPALIVE)
	}), optErr); err != nil {
		tb.Fatal(err)
	}
	return value != 0
}
