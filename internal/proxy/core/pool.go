package core

import (
	"context"
	"slices"
	"sync"
	"time"

	"github.com/weirdb/weir/internal/proxy/netloop"
	"github.com/weirdb/weir/internal/proxy/session"
	"github.com/weirdb/weir/internal/proxy/sight"
)

// A Backend is a side's connection to the server. It embeds a Conn.
type Backend[U any] interface {
	comparable
	Pooled() *Conn[U]
	// Goodbye ends a connection that has nothing under way. It leaves the free ones now, and
	// the pool, too, unless it is Leaving then; called again it ends that as well.
	Goodbye()
	// Cut ends a connection with whatever is under way on it.
	Cut(err error)
}

// A Dialect is what a Base asks of the pool that embeds it. None of it is asked in the
// course of a statement that finds a backend and is answered in time.
type Dialect[B, C, U, L, N any] interface {
	// Look gives free backends to what waits.
	netloop.Task
	// Name is whose backends these are.
	Name() (database, user string)
	// Options are those in force.
	Options() *session.Options
	// MayDial reports whether weir can log in as the pool's user by itself.
	MayDial() bool
	// Dial opens a connection and logs in. It is called on a goroutine of its own.
	Dial(ctx context.Context) (N, error)
	// Adopt takes a connection into the pool, Discard closes one that is of no use.
	Adopt(conn N)
	Discard(conn N)
	// Replaceable reports whether a backend may be closed for its age: not where only
	// the next login could bring another and there are clients who would wait for it.
	Replaceable() bool
	// DialFailed is told why there is no connection.
	DialFailed(err error)
	// Awaits is told that somebody waits until the server may be tried again, and why
	// the last attempt has failed.
	Awaits(err error)
	// Left reports whether a waiter does not wait any more.
	Left(w *Waiter[B, C, U, L]) bool
	// Expires reports whether the wait of a unit for a slot ends with the queue
	// timeout.
	Expires(u U) bool
	// Stalled is called for a shared backend whose head is held up. It takes it out
	// of the pipelines, or reports false.
	Stalled(b B) bool
	// CheckTurns looks at the turns of what runs apart.
	CheckTurns()
}

// A Base is the part of a pool that both sides of the proxy have: a loop's backends
// for one user and database, and everything that waits for one of them. B is the
// side's backend, C its client, U its unit, L its lane and N a connection on its way
// into the pool. A side embeds it in its own pool. It belongs to the loop's thread.
type Base[B Backend[U], C any, U Unit, L any, N any] struct {
	// Size is the loop's share of the most backends.
	Size int
	// ReadLanes is how many of them may pipeline reads.
	ReadLanes int
	// Limits are those of the user in the database.
	Limits   session.Limits
	Frugal   bool // weir's own questions wait for a backend that there is
	Paused   bool // nothing begins, and backends close when they are free
	Backends []B
	Free     []B // most recently used last
	Shared   Pipelines[B, U]
	Dialing  int

	Excl  Waiters[B, C, U, L] // in order of arrival
	Reads List[U]             // shared reads for which no pipeline has room
	Apart Apart[U]            // statements that run alone, bounded
	Late  int                 // runs of lanes whose places were given to others

	Stalls[B, C, U, L, N]
	Stats PoolStats

	DialErr error // of the last attempt
	Dials   netloop.Backoff

	side       Dialect[B, C, U, L, N]
	task       netloop.Task // the side's
	loop       *netloop.Loop
	agenda     *netloop.Agenda
	background *sync.WaitGroup
	dialCtx    context.Context

	hot     bool // on the agenda
	holding Holding[B, C, U, L, N]
}

// Init makes an empty pool of a loop for the side that embeds it. What opens
// connections runs in the background, until dialCtx ends. places are those of the side.
func (p *Base[B, C, U, L, N]) Init(side Dialect[B, C, U, L, N], places *Places, loop *netloop.Loop, agenda *netloop.Agenda, background *sync.WaitGroup, dialCtx context.Context) {
	p.side, p.task = side, side
	p.loop, p.agenda, p.background, p.dialCtx = loop, agenda, background, dialCtx
	o := side.Options()
	p.Stalls.p, p.holding.p = p, p
	h := &p.holding
	h.sizer.spare = h.spare
	h.limit(o)
	database, user := side.Name()
	h.seat = places.Seat(o, database, user, h.posted(h.offered), func(afterTurn bool) {
		loop.Post(func() { h.giveUp(afterTurn) })
	}, h.posted(h.lend))
}

// Apply puts options in force. Backends that are too many are closed, when they are
// free.
func (p *Base[B, C, U, L, N]) Apply(o *session.Options) { p.holding.apply(o) }

// Wake has the pool's queues looked at, later in this turn.
func (p *Base[B, C, U, L, N]) Wake() {
	if !p.hot {
		p.hot = true
		p.agenda.Pool(p.task)
	}
}

// Awake is called when they are being looked at.
func (p *Base[B, C, U, L, N]) Awake() { p.hot = false }

// Waiting is the number of statements that wait in the pool.
func (p *Base[B, C, U, L, N]) Waiting() int { return len(p.Excl) + len(p.Reads) + p.Apart.Waiting() }

// KeepForShared is the size from which on a pool keeps one backend for what shares
// and for what ends by itself.
const KeepForShared = 8

// LastForShared reports whether no further client may have a backend of its own.
// A client may hold it for as long as it likes, and may hold it until another
// has its answer: pgbench prepares a statement for one session while those that
// are in transactions wait in the same thread. If all backends were held, that
// would be a deadlock. A pool that may open more may fail to: of those that are open,
// too, one is kept, from KeepForShared on. readLanes is the most backends that are shared.
func (p *Base[B, C, U, L, N]) LastForShared(readLanes int) bool {
	most := min(p.Size, max(KeepForShared, len(p.Backends)))
	return p.Size >= KeepForShared && readLanes > 0 && len(p.Backends)-len(p.Free)-p.Shared.Len() >= most-1
}

// Pick removes a free backend.
func (p *Base[B, C, U, L, N]) Pick(i int) B {
	b := p.Free[i]
	p.Free = slices.Delete(p.Free, i, i+1)
	return b
}

// Claim removes a backend from the free ones, if it is one.
func (p *Base[B, C, U, L, N]) Claim(b B) { p.Free = without(p.Free, b) }

// Release puts a backend among the free ones. It reports false if the backend is to
// be closed instead. c is the backend's.
func (p *Base[B, C, U, L, N]) Release(b B, c *Conn[U]) bool {
	if c.Mode == ModeShared {
		p.Shared.Remove(b)
	}
	c.Mode = ModeFree
	if c.Doomed || c.Retired {
		return false
	}
	if p.holding.owed > 0 && p.holding.gives() {
		return false
	}
	c.FreeSince, c.Settling = p.loop.Now, false
	p.Free = append(p.Free, b)
	if len(p.Excl) > 0 || len(p.Reads) > 0 {
		p.Wake()
	}
	return true
}

// Lose forgets a backend whose connection is gone.
func (p *Base[B, C, U, L, N]) Lose(b B) {
	p.Backends = without(p.Backends, b)
	p.Free = without(p.Free, b)
	p.Shared.Remove(b)
	p.Apart.EndGhosts(b.Pooled())
	p.Stats.Closed++
	p.holding.owed = max(0, p.holding.owed-1)
	p.holding.count()
}

func without[B comparable](list []B, b B) []B {
	if i := slices.Index(list, b); i >= 0 {
		return slices.Delete(list, i, i+1)
	}
	return list
}

// Grow opens backends for what waits, up to the pool's size. refused is why it
// cannot where only logins of clients bring connections.
func (p *Base[B, C, U, L, N]) Grow(readLanes int, refused error) {
	want := len(p.Excl)
	if p.Frugal && p.Connections() > 0 {
		want -= p.Excl.asks()
	}
	if len(p.Reads) > 0 && p.Shared.Len() < readLanes {
		want++
	}
	for _, b := range p.Backends {
		if c := b.Pooled(); c.Settling && c.Mode == ModeOwn && p.loop.Now-c.Born < settleIn {
			want-- // it is about to be free for the first time
		}
	}
	if want <= 0 || p.Paused || p.loop.Draining() {
		p.holding.withdraw()
		return
	}
	if !p.side.MayDial() {
		p.holding.withdraw()
		if p.DialErr == nil {
			p.DialErr = refused
		}
		return
	}
	h := &p.holding
	h.open(min(want, h.withShared(h.room())-len(p.Backends)))
}

// settleIn is how long a backend is waited for that is asked about the server before it
// serves anybody: mostly that takes no longer than the opening of another.
const settleIn = 500 * time.Millisecond

// Adopted takes in a backend whose connection is on the loop. It is weir's own at
// first.
func (p *Base[B, C, U, L, N]) Adopted(b B) {
	c := b.Pooled()
	c.Mode, c.Born, c.Settling = ModeOwn, p.loop.Now, true
	p.Backends = append(p.Backends, b)
	p.Stats.Opened++
	p.holding.count()
}

// NotDialed notes why there is no connection, and reports whether there is no
// backend either.
func (p *Base[B, C, U, L, N]) NotDialed(err error) (none bool) {
	p.Stats.DialErrors++
	p.DialErr = err
	p.Dials.Failed(p.loop.Now)
	return len(p.Backends) == 0
}

// Unreachable reports whether there is no backend, nor one under way, and why.
func (p *Base[B, C, U, L, N]) Unreachable() bool {
	return p.DialErr != nil && len(p.Backends) == 0 && p.Dialing == 0
}

// Works notes that the server has answered on a new connection.
func (p *Base[B, C, U, L, N]) Works() {
	p.DialErr = nil
	p.Dials.Succeeded()
}

// Retire has every backend replaced when it is next free, and what is being opened
// closed. It reports false, and does nothing, where that would leave clients without
// any, unless it must: better out of date than that.
func (p *Base[B, C, U, L, N]) Retire(must bool) bool {
	if !must && !p.side.Replaceable() {
		return false
	}
	p.retire()
	return true
}

func (p *Base[B, C, U, L, N]) retire() {
	p.holding.epoch++
	for _, b := range p.Backends {
		b.Pooled().Retired = true
	}
	for len(p.Free) > 0 {
		p.Free[0].Goodbye() // leaves p.Free
	}
}

// HoldBack pauses the pool: no statement begins, and every backend is closed when it is
// free, whether weir can open another or not.
func (p *Base[B, C, U, L, N]) HoldBack() {
	p.Paused, p.DialErr = true, nil
	p.retire()
	p.Wake()
}

// Resume has statements begin again.
func (p *Base[B, C, U, L, N]) Resume() {
	p.Paused = false
	p.Wake()
}

// Connections counts the backends, also those being opened.
func (p *Base[B, C, U, L, N]) Connections() int { return len(p.Backends) + p.Dialing }

// Reap looks after the backends once in a while: it closes those that were idle for long,
// that are old, or that are owed, and keeps the least number of them open.
func (p *Base[B, C, U, L, N]) Reap() { p.holding.keep() }

// CloseAll ends every backend.
func (p *Base[B, C, U, L, N]) CloseAll() {
	for len(p.Backends) > 0 {
		p.Backends[len(p.Backends)-1].Goodbye()
	}
}

// LastAnswer is when the server last answered, 0 if it has not.
func (p *Base[B, C, U, L, N]) LastAnswer() (at time.Duration) {
	for _, b := range p.Backends {
		at = max(at, b.Pooled().Answered)
	}
	return at
}

// Describe adds the pool to the status of all pools of its user and database.
func (p *Base[B, C, U, L, N]) Describe(ps *sight.PoolStatus) {
	ps.Running = ps.Running || !p.Paused
	ps.Size += p.Size
	ps.Backends += len(p.Backends)
	ps.Free += len(p.Free)
	ps.Dialing += p.Dialing
	for _, b := range p.Backends {
		switch b.Pooled().Mode {
		case ModeShared:
			ps.Shared++
		case ModeOwned, ModeOwn:
			ps.Owned++
		case ModeLaned:
			ps.Laned++
		}
	}
	for i := range p.Excl {
		if w := &p.Excl[i]; w.Ask == nil && !p.side.Left(w) {
			ps.Waiting++
			ps.OldestWait = max(ps.OldestWait, p.loop.Now-w.Since)
		}
	}
	ps.Waiting += len(p.Reads) + p.Apart.Waiting()
	p.Stats.AddTo(ps)
}
