package netloop

import (
	"context"
	"errors"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/weirdb/weir/internal/testkit"
)

// nobody owns a loop that has nothing to do.
type nobody struct{}

func (nobody) Settle()                      {}
func (nobody) Tick()                        {}
func (nobody) Alarm() (time.Duration, bool) { return 0, false }
func (nobody) Drain()                       {}
func (nobody) Drained() bool                { return true }
func (nobody) Shutdown()                    {}

// Anyone who posts while a loop ends writes to no descriptor that the loop has given
// up: its number belongs to the next connection by then. It is a matter of a
// preemption at the worst place; tens of thousands of ends, as in `make torture`, show one.
func TestPostWhileLoopEnds(t *testing.T) {
	origin := time.Now()
	for range testkit.Rounds(200, 20_000) {
		l := &Loop{}
		if err := l.Start(nobody{}, func() time.Duration { return time.Since(origin) }, time.Minute); err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		var posters, loop sync.WaitGroup
		loop.Go(func() {
			if err := l.Run(ctx); err != nil {
				t.Error(err)
			}
		})
		for range 16 {
			posters.Go(func() {
				for l.Post(func() {}) {
				}
			})
		}
		cancel()
		loop.Wait()
		// They get the numbers that are free now.
		var pairs [4][2]int
		for i := range pairs {
			p, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC, 0)
			if err != nil {
				t.Fatal(err)
			}
			pairs[i] = p
		}
		posters.Wait()
		for _, p := range pairs {
			for _, fd := range p {
				var b [8]byte
				if n, err := unix.Read(fd, b[:]); !errors.Is(err, unix.EAGAIN) {
					t.Errorf("%d bytes, % x, %v, in a new connection", n, b[:max(n, 0)], err)
				}
			}
			if err := errors.Join(unix.Close(p[0]), unix.Close(p[1])); err != nil {
				t.Fatal(err)
			}
		}
	}
}

// shutting notes that its loop has had it end.
type shutting struct {
	nobody
	shut bool
}

func (s *shutting) Shutdown() { s.shut = true }

// An endNote is a handler that notes that its socket is gone.
type endNote struct{ err error }

func (e *endNote) OnData(p []byte) int { return len(p) }
func (e *endNote) OnClosed(err error)  { e.err = err }
func (e *endNote) OnDrained()          {}

// A loop that fails ends what it has, as one that is stopped does.
func TestLoopThatFailsShutsDown(t *testing.T) {
	t.Parallel()
	origin := time.Now()
	l, owner, h := &Loop{}, &shutting{}, &endNote{}
	if err := l.Start(owner, func() time.Duration { return time.Since(origin) }, time.Minute); err != nil {
		t.Fatal(err)
	}
	pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = unix.Close(pair[1]) }()
	null, err := unix.Open("/dev/null", unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = unix.Close(null) }()
	l.Post(func() {
		if _, err := l.Watch(pair[0], h); err != nil {
			t.Error(err)
		}
		if err := unix.Dup3(null, l.epfd, unix.O_CLOEXEC); err != nil { // which cannot be waited for
			t.Error(err)
		}
	})
	if err := l.Run(t.Context()); err == nil {
		t.Error("the loop has not failed")
	}
	if !owner.shut || !errors.Is(h.err, ErrStopped) {
		t.Errorf("the owner was shut down: %v; the socket ended with %v", owner.shut, h.err)
	}
	if l.Post(func() {}) {
		t.Error("something was posted that nobody will run")
	}
}
