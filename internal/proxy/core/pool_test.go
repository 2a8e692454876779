package core_test

import (
	"context"
	"errors"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/weirdb/weir/internal/proxy/core"
	"github.com/weirdb/weir/internal/proxy/netloop"
	"github.com/weirdb/weir/internal/proxy/session"
	"github.com/weirdb/weir/internal/proxy/sight"
)

// The types of a side without a protocol, for tests.
type (
	testUnit struct {
		core.Turn
		name   string
		left   bool
		queued time.Duration
	}
	testBackend struct {
		core.Conn[*testUnit]
		p      *testPool
		closed bool
	}
	testClient struct {
		name string
		left bool
	}
	testLane struct{ name string }
	waiter   = core.Waiter[*testBackend, *testClient, *testUnit, *testLane]
)

func (u *testUnit) Left() bool            { return u.left }
func (u *testUnit) Queued() time.Duration { return u.queued }

func (b *testBackend) Cut(error) { b.Goodbye() }
func (b *testBackend) Goodbye() {
	b.closed = true
	b.p.Lose(b)
}

// A testPool is a pool whose loop has a clock that tests set.
type testPool struct {
	core.Base[*testBackend, *testClient, *testUnit, *testLane, int]
	loop       *netloop.Loop
	agenda     netloop.Agenda
	options    session.Options
	background sync.WaitGroup

	database, user string

	irreplaceable bool
	noSecret      bool
	looks, turns  int
	awaits        int
	keepStalled   bool
	stalled       []*testBackend
	dial          func(ctx context.Context) (int, error)
	adopted       []int
	discarded     []int
	failed        []error
}

func newTestPool(t *testing.T, size int) *testPool {
	t.Helper()
	return newSharingPool(t, new(core.ConnQuotas), "d", "u", session.Limits{PoolSize: size})
}

// newSharingPool makes a pool that shares connection quotas with others.
func newSharingPool(t *testing.T, places *core.ConnQuotas, database, user string, l session.Limits) *testPool {
	t.Helper()
	p := &testPool{loop: new(netloop.Loop), database: database, user: user}
	p.options.Limits = l
	p.Init(p, places, p.loop, &p.agenda, &p.background, t.Context())
	return p
}

func (p *testPool) Look()                                 { p.Awake(); p.looks++ }
func (p *testPool) Options() *session.Options             { return &p.options }
func (p *testPool) Name() (database, user string)         { return p.database, p.user }
func (p *testPool) MayDial() bool                         { return !p.noSecret }
func (p *testPool) Dial(ctx context.Context) (int, error) { return p.dial(ctx) }
func (p *testPool) Adopt(conn int)                        { p.adopted = append(p.adopted, conn) }
func (p *testPool) Discard(conn int)                      { p.discarded = append(p.discarded, conn) }
func (p *testPool) Awaits(error)                          { p.awaits++ }
func (p *testPool) Replaceable() bool                     { return !p.irreplaceable }
func (p *testPool) DialFailed(err error)                  { p.NotDialed(err); p.failed = append(p.failed, err) }
func (p *testPool) Expires(u *testUnit) bool              { return u.name != "for ever" }
func (p *testPool) CheckTurns()                           { p.turns++ }
func (p *testPool) at(ms int)                             { p.loop.Now = time.Duration(ms) * time.Millisecond }
func (p *testPool) settle()                               { p.agenda.Settle(p.loop.Now) }
func (p *testPool) unit(name string, queuedMs int) *testUnit {
	return &testUnit{name: name, queued: time.Duration(queuedMs) * time.Millisecond}
}

func (p *testPool) Left(w *waiter) bool {
	return w.Client != nil && w.Client.left || w.Unit != nil && w.Unit.left
}

func (p *testPool) Stalled(b *testBackend) bool {
	if p.keepStalled || !p.MoveAway(&b.Conn) {
		return false
	}
	p.stalled = append(p.stalled, b)
	p.Shared.Remove(b)
	return true
}

// backend adds a backend that is in use by weir itself.
func (p *testPool) backend() *testBackend {
	b := &testBackend{p: p}
	p.Adopted(b)
	return b
}

// free adds a free backend.
func (p *testPool) free() *testBackend {
	b := p.backend()
	p.Release(b, &b.Conn)
	return b
}

// A flight is a queue that knows when the server began to execute its head.
func TestFlight(t *testing.T) {
	t.Parallel()
	rnd := rand.New(rand.NewPCG(1, 2))
	var f core.Flight[int]
	type sent struct {
		unit int
		at   time.Duration
	}
	var want []sent
	var answered time.Duration
	for i := 1; i < 20000; i++ {
		now := time.Duration(i)
		grow := rnd.IntN(100) < []int{70, 30}[i/1000%2] // now and then there are many in flight
		if grow || len(want) == 0 {
			f.Push(i, now)
			want = append(want, sent{i, now})
		} else {
			began := max(want[0].at, answered)
			if got := f.Pop(now); got != now-began {
				t.Fatalf("step %d: the answer took %d, want %d", i, got, now-began)
			}
			want, answered = want[1:], now
		}
		if f.Depth() != len(want) || f.Answered != answered || len(f.Units()) != len(want) {
			t.Fatalf("step %d: %d in flight, answered at %d; want %d, %d", i, f.Depth(), f.Answered, len(want), answered)
		}
		if len(want) == 0 {
			if f.Head() != 0 {
				t.Fatalf("step %d: nothing is in flight, and %d is its head", i, f.Head())
			}
			continue
		}
		if began := max(want[0].at, answered); f.Head() != want[0].unit || f.Since != began {
			t.Fatalf("step %d: head %d since %d, want %d since %d", i, f.Head(), f.Since, want[0].unit, began)
		}
	}
	n := f.Depth()
	if lost := f.Lose(); len(lost) != n || f.Depth() != 0 {
		t.Errorf("%d of %d were lost, %d are left", len(lost), n, f.Depth())
	}
}

func TestLastForShared(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name                      string
		size, free, shared, owned int
		lanes                     int
		want                      bool
	}{
		{"nothing is open", 8, 0, 0, 0, 4, false},
		{"one is left", 8, 1, 0, 7, 4, true},
		{"the last one is shared", 8, 0, 1, 7, 4, true},
		{"two are left", 8, 1, 1, 6, 4, false},
		{"seven of eight are open and owned", 8, 0, 0, 7, 4, true},
		{"a small pool keeps none", 7, 1, 0, 6, 4, false},
		{"reads do not share", 8, 1, 0, 7, 0, false},
		{"one is left of those that are open", 20, 1, 0, 8, 4, true},
		{"two are left of those that are open", 20, 2, 0, 8, 4, false},
		{"few are open", 20, 1, 0, 6, 4, false},
		{"more are open than may be by now", 8, 1, 0, 11, 4, true},
	} {
		p := newTestPool(t, c.size)
		for range c.free {
			p.free()
		}
		for range c.shared {
			b := p.backend()
			p.Shared.Add(b, &b.Conn)
		}
		for range c.owned {
			p.backend().Mode = core.ModeOwned
		}
		if got := p.LastForShared(c.lanes); got != c.want {
			t.Errorf("%s: %v, want %v", c.name, got, c.want)
		}
	}
}

// A released backend becomes free or is closed, and the waiting statements are considered.
func TestRelease(t *testing.T) {
	t.Parallel()
	p := newTestPool(t, 4)
	shared, doomed, retired := p.backend(), p.backend(), p.backend()
	p.Shared.Add(shared, &shared.Conn)
	doomed.Doomed, retired.Retired = true, true
	p.at(7)
	if !p.Release(shared, &shared.Conn) || p.Release(doomed, &doomed.Conn) || p.Release(retired, &retired.Conn) {
		t.Error("only the first is of use")
	}
	if !slices.Equal(p.Free, []*testBackend{shared}) || p.Shared.Len() != 0 || shared.Mode != core.ModeFree || shared.FreeSince != p.loop.Now {
		t.Errorf("free: %d, shared: %d, mode %v", len(p.Free), p.Shared.Len(), shared.Mode)
	}
	if p.settle(); p.looks != 0 {
		t.Error("nobody waits, and the queues are looked at")
	}
	p.Claim(shared)
	p.Reads = append(p.Reads, p.unit("read", 0))
	p.Release(shared, &shared.Conn)
	p.Wake()
	if p.settle(); p.looks != 1 {
		t.Errorf("the queues were looked at %d times, want once", p.looks)
	}
	p.Apart.Haunt(&shared.Conn)
	p.Lose(shared)
	if len(p.Backends) != 2 || len(p.Free) != 0 || p.Apart.Ghosts != 0 || p.Stats.Closed != 1 {
		t.Errorf("a lost backend: %d of 3 left, %d free, %d ghosts, %d closed", len(p.Backends), len(p.Free), p.Apart.Ghosts, p.Stats.Closed)
	}
}

// Retired backends are closed when they are free. If only logins bring connections, they stay
// while a client needs one.
func TestRetireAndReap(t *testing.T) {
	t.Parallel()
	p := newTestPool(t, 4)
	p.Limits.ServerIdleTimeout, p.Limits.ServerLifetime = 10*time.Millisecond, time.Second
	busy, idle := p.backend(), p.free()
	busy.Mode = core.ModeOwned
	p.irreplaceable = true
	p.at(2000)
	p.Reap()
	if p.Retire(false) || idle.closed || busy.Retired {
		t.Error("what cannot be replaced was given up")
	}
	p.irreplaceable = false
	if !p.Retire(false) || !idle.closed || busy.closed || !busy.Retired {
		t.Error("the free one is closed at once, the other one later")
	}

	p = newTestPool(t, 4)
	p.Limits.ServerIdleTimeout, p.Limits.ServerLifetime = 10*time.Millisecond, time.Second
	first := p.free()
	p.at(5)
	second := p.free()
	p.at(11)
	if p.Reap(); !first.closed || second.closed {
		t.Error("only the first was idle for more than 10 ms")
	}
	p.at(1006)
	p.Claim(second)
	p.Release(second, &second.Conn)
	if p.Reap(); !second.closed {
		t.Error("the second is older than a second")
	}
	p.free()
	p.backend()
	if p.CloseAll(); len(p.Backends) != 0 {
		t.Errorf("%d are left", len(p.Backends))
	}
}

// weir's own queries do not count in the queue of clients.
func TestCrowded(t *testing.T) {
	p := newSharingPool(t, new(core.ConnQuotas), "d", "u", session.Limits{PoolSize: 1, MaxWaiting: 2})
	p.backend()
	for _, step := range []struct {
		waits waiter
		want  bool
	}{
		{waiter{Ask: func(*testBackend) {}}, false},
		{waiter{Client: &testClient{name: "one"}}, false},
		{waiter{Ask: func(*testBackend) {}}, false},
		{waiter{Client: &testClient{name: "two"}}, true},
	} {
		p.Enqueue(step.waits)
		if got := p.Excl.Crowded(&p.Limits, len(p.Reads)); got != step.want {
			t.Errorf("with %d waiting it is crowded: %v", p.Waiting(), got)
		}
	}
	var s sight.PoolStatus
	if p.Describe(&s); s.Waiting != 2 {
		t.Errorf("%d statements are said to wait, want 2", s.Waiting)
	}
}

func TestDescribe(t *testing.T) {
	t.Parallel()
	p := newTestPool(t, 9)
	p.free()
	shared, owned, own, laned := p.backend(), p.backend(), p.backend(), p.backend()
	p.Shared.Add(shared, &shared.Conn)
	owned.Mode, own.Mode, laned.Mode = core.ModeOwned, core.ModeOwn, core.ModeLaned
	laned.Push(p.unit("x", 0), 3)
	laned.Pop(5)
	p.Enqueue(waiter{Client: &testClient{}})
	p.Enqueue(waiter{Client: &testClient{left: true}})
	p.Reads = append(p.Reads, p.unit("read", 0))
	p.QueueApart(p.unit("apart", 0))
	p.at(20)
	var got sight.PoolStatus
	p.Describe(&got)
	if got.Size != 9 || got.Backends != 5 || got.Free != 1 || got.Shared != 1 || got.Owned != 2 || got.Laned != 1 ||
		got.Waiting != 3 || got.OldestWait != 20*time.Millisecond || got.Opened != 5 || got.Waits != 2 {
		t.Errorf("%+v", got)
	}
	if p.LastAnswer() != 5 {
		t.Errorf("the last answer was at %d", p.LastAnswer())
	}
}

// loopOwner runs a loop for tests that need one.
type loopOwner struct{ p *testPool }

func (o loopOwner) Settle()                      { o.p.settle() }
func (o loopOwner) Tick()                        {}
func (o loopOwner) Alarm() (time.Duration, bool) { return o.p.agenda.Alarm() }
func (o loopOwner) Drain()                       {}
func (o loopOwner) Drained() bool                { return true }
func (o loopOwner) Shutdown()                    {}

// Backends are opened for waiting clients, up to the pool's size. One whose opening began before
// all backends were renewed is outdated when it is open.
func TestGrow(t *testing.T) {
	t.Parallel()
	p := newTestPool(t, 3)
	p.options.ConnectTimeout = time.Minute
	began := time.Now()
	if err := p.loop.Start(loopOwner{p}, func() time.Duration { return time.Since(began) }, 0); err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(t.Context())
	var running sync.WaitGroup
	running.Go(func() {
		if err := p.loop.Run(ctx); err != nil {
			t.Error(err)
		}
	})
	defer running.Wait()
	defer stop()
	on := func(f func()) {
		t.Helper()
		if err := p.loop.Call(t.Context(), f); err != nil {
			t.Fatal(err)
		}
	}
	answers := make(chan error)
	conn := 0
	var mu sync.Mutex
	p.dial = func(context.Context) (int, error) {
		err := <-answers
		mu.Lock()
		defer mu.Unlock()
		conn++
		return conn, err
	}
	refused := errors.New("no secret")
	on(func() {
		p.Grow(4, refused)
		if p.Dialing != 0 {
			t.Error("a backend is opened for nobody")
		}
		for range 9 {
			p.Enqueue(waiter{Client: &testClient{}})
		}
		p.noSecret = true
		p.Grow(4, refused)
		if p.Dialing != 0 || !errors.Is(p.DialErr, refused) || !p.Unreachable() {
			t.Errorf("%d are opened without a secret, why: %v", p.Dialing, p.DialErr)
		}
		p.noSecret = false
		p.Grow(4, refused)
		if p.Dialing != 3 {
			t.Errorf("%d are opened, want 3", p.Dialing)
		}
	})
	settled := func(n int) {
		t.Helper()
		for dialing := 3; dialing != n; {
			on(func() { dialing = p.Dialing })
		}
	}
	answers <- nil
	settled(2)
	bad := errors.New("refused")
	answers <- bad
	settled(1)
	on(func() { p.Retire(false) })
	answers <- nil
	settled(0)
	on(func() {
		if len(p.adopted) != 1 || len(p.failed) != 1 || len(p.discarded) != 1 || !errors.Is(p.DialErr, bad) || p.Stats.DialErrors != 1 {
			t.Errorf("adopted %d, failed %v, discarded %d, want one of each", len(p.adopted), p.failed, len(p.discarded))
		}
		if p.Works(); p.DialErr != nil {
			t.Error("the server works, and its last error stands")
		}
		for range 9 {
			p.NotDialed(bad)
		}
		p.dial = func(context.Context) (int, error) { return 0, bad }
		if p.Grow(4, refused); p.Dialing != 0 || p.awaits == 0 {
			t.Errorf("after many failures %d are opened, and %d times somebody was told that it waits", p.Dialing, p.awaits)
		}
		p.TryAgain()
		if p.Grow(4, refused); p.Dialing != 3 {
			t.Errorf("%d are opened when the server is back, want 3", p.Dialing)
		}
	})
}

// grown runs statements of many clients for d through a pool that sizes itself, before a
// simulated server that commits in groups. It returns the mean size in the second half of that
// time.
func (p *testPool) grown(d time.Duration, clients int) int {
	p.Excl = p.Excl[:0]
	for range clients {
		p.Enqueue(waiter{Client: &testClient{}})
	}
	var sum, n int
	reaped, half := p.loop.Now, p.loop.Now+d/2
	for until := p.loop.Now + d; p.loop.Now < until; {
		for len(p.Backends) < p.Size {
			p.free()
		}
		var busy []*testBackend
		for !p.ConnManager().Spent(true) {
			busy = append(busy, p.Pick(0))
		}
		p.loop.Now += time.Millisecond + time.Duration(len(busy))*20*time.Microsecond
		for _, b := range busy {
			p.ConnManager().Answered()
			p.Release(b, &b.Conn)
		}
		if p.loop.Now > half {
			sum, n = sum+p.Size, n+1
		}
		if p.loop.Now-reaped > 100*time.Millisecond {
			reaped = p.loop.Now
			p.Reap()
		}
	}
	return sum / n
}

func TestPoolGrowsWhileTheServerGains(t *testing.T) {
	t.Parallel()
	places := new(core.ConnQuotas)
	p := newSharingPool(t, places, "d", "u", session.Limits{PoolSize: 20, AutoPool: true, ReservePoolTimeout: time.Second})
	other := newSharingPool(t, places, "d", "v", session.Limits{PoolSize: 20, AutoPool: true})
	if size := p.grown(3*time.Second, 500); size != 20 {
		t.Errorf("nobody has said what the server allows, and the size is %d", size)
	}
	for range 10 {
		other.free()
	}
	p.ConnManager().Allowed(120, 0, 0)
	if size := p.grown(10*time.Second, 500); size < 70 || len(p.Backends) > 80 {
		t.Errorf("90 may be open, and 10 are others': size %d, %d open", size, len(p.Backends))
	}
	p.ConnManager().Allowed(120, 40, 0)
	if size := p.grown(30*time.Second, 500); size < 27 || size > 30 || len(p.Backends) != 30 {
		t.Errorf("the user may have 30: size %d, %d open", size, len(p.Backends))
	}
	p.ConnManager().Allowed(120, 0, 2)
	if size := p.grown(5*time.Second, 500); size != 20 || len(p.Backends) != 20 {
		t.Errorf("three weirs share 90, and the size is %d, %d open", size, len(p.Backends))
	}
	p.ConnManager().Allowed(120, 0, 0)
	p.grown(time.Minute, 500) // in which the pool does not grow again
	if size := p.grown(10*time.Second, 500); size < 70 {
		t.Errorf("90 may be open again: size %d", size)
	}

	p.ConnManager().Refused()
	p.Reap()
	if p.Size != 20 || len(p.Backends) != 20 {
		t.Errorf("the server has no connection left: size %d, %d open, want 20", p.Size, len(p.Backends))
	}
	if size := p.grown(50*time.Second, 500); size != 20 {
		t.Errorf("within a minute: size %d, want 20", size)
	}
	p.grown(10*time.Second, 500)
	if size := p.grown(10*time.Second, 500); size < 70 {
		t.Errorf("after the minute: size %d", size)
	}

	p.Excl = nil // the clients leave
	for range 300 {
		p.loop.Now += 100 * time.Millisecond
		p.Reap()
	}
	if p.Size != 20 || len(p.Backends) != 20 {
		t.Errorf("nobody is there: size %d, %d open, want 20", p.Size, len(p.Backends))
	}
	p.options.Limits = session.Limits{PoolSize: 7}
	p.Apply(&p.options)
	if size := p.grown(3*time.Second, 500); size != 7 || len(p.Backends) != 7 {
		t.Errorf("7 by a reload: size %d, %d open", size, len(p.Backends))
	}
}

// Backends beyond the present size are used only by weir's own queries.
func TestSpent(t *testing.T) {
	t.Parallel()
	p := newSharingPool(t, new(core.ConnQuotas), "d", "u", session.Limits{PoolSize: 2, AutoPool: true, ReservePoolSize: 1})
	for i, want := range []bool{true, false, false, false, false} {
		if got := p.ConnManager().Spent(true); got != want {
			t.Errorf("%d are free: spent %v", i, got)
		}
		p.free()
	}
	for i, want := range []bool{false, false, true, true, true} {
		if got := p.ConnManager().Spent(true); got != want {
			t.Errorf("%d of %d are used, size 2 and a reserve that nobody has waited for: spent %v", i, len(p.Backends), got)
		}
		p.Pick(0)
	}
}

// Clients may hold more backends than the present size of a pool that sizes itself, and not
// release them until other clients have an answer. Statements that end by themselves then get
// one backend more.
func TestWhatEndsByItselfHasABackendMore(t *testing.T) {
	t.Parallel()
	p := newSharingPool(t, new(core.ConnQuotas), "d", "u", session.Limits{PoolSize: core.KeepForShared, AutoPool: true})
	p.dial = func(ctx context.Context) (int, error) {
		<-ctx.Done()
		return 0, ctx.Err()
	}
	p.ConnManager().Allowed(100, 100, 0)
	const held = core.KeepForShared + 3
	for range held {
		p.backend().Mode = core.ModeOwned
	}
	p.Excl = append(p.Excl, waiter{Lane: &testLane{}})
	if p.Grow(1, nil); p.Dialing != 1 {
		t.Errorf("%d are opened for writes, want 1", p.Dialing)
	}
	p.Dialing, p.Excl = 0, nil
	p.Reads = append(p.Reads, p.unit("read", 0))
	if p.Grow(1, nil); p.Dialing != 1 {
		t.Errorf("%d are opened for a read, want 1", p.Dialing)
	}
	p.Dialing = 0
	p.free()
	p.free()
	p.at(60_000)
	if p.Reap(); len(p.Free) != 1 {
		t.Fatalf("%d of two that are free are kept, want 1", len(p.Free))
	}
	if !p.ConnManager().Spent(true) || p.ConnManager().Spent(false) {
		t.Error("the one that is left is for what ends by itself, and for nothing else")
	}
	shared := p.Pick(0)
	p.Shared.Add(shared, &shared.Conn)
	p.free()
	if !p.ConnManager().Spent(false) {
		t.Error("what ends by itself has a second one")
	}
	p.Shared.Remove(shared)
	shared.Mode = core.ModeOwned
	p.CloseAll()
}
