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
	// Goodbye ends a connection that has nothing in flight. It leaves the free backends at
	// once, and the pool, too, unless it is Leaving then; a second call ends that as well.
	Goodbye()
	// Cut ends a connection and whatever is in flight on it.
	Cut(err error)
}

// A Dialect is what a Base needs of the pool that embeds it. It is never called on the
// path of a statement that finds a free backend and is answered in time.
type Dialect[B, C, U, L, N any] interface {
	// Look gives free backends to the waiters.
	netloop.Task
	// Name is the database and user of the pool.
	Name() (database, user string)
	// Options are the current options.
	Options() *session.Options
	// MayDial reports whether weir can log in as the pool's user by itself.
	MayDial() bool
	// Dial opens a connection and logs in. It is called on a goroutine of its own.
	Dial(ctx context.Context) (N, error)
	// Adopt takes a connection into the pool, Discard closes one that is of no use.
	Adopt(conn N)
	Discard(conn N)
	// Replaceable reports whether a backend may be closed for its age. It may not if only
	// the login of another client could replace it and clients would have to wait for that.
	Replaceable() bool
	// DialFailed is called with the reason why a connection could not be opened.
	DialFailed(err error)
	// Awaits is called when waiters have to wait until weir may try the server again;
	// err is why the last attempt failed.
	Awaits(err error)
	// Left reports whether a waiter has stopped waiting.
	Left(w *Waiter[B, C, U, L]) bool
	// Expires reports whether a unit that waits for a slot is subject to the queue timeout.
	Expires(u U) bool
	// Stalled is called for a shared backend whose head is held up. It removes the backend
	// from the pipelines, or returns false.
	Stalled(b B) bool
	// CheckTurns looks at the turns of the statements that run apart.
	CheckTurns()
}

// A Base is the part of a pool that both sides of the proxy have: a loop's backends
// for one user and database, and everything that waits for one of them. B is the
// side's backend, C its client, U its unit, L its lane and N a connection on its way
// into the pool. A side embeds it in its own pool. It belongs to the loop's thread.
type Base[B Backend[U], C any, U Unit, L any, N any] struct {
	// Size is the loop's share of the maximum number of backends.
	Size int
	// ReadLanes is how many of them may pipeline reads.
	ReadLanes int
	// Limits are those of this user in this database.
	Limits   session.Limits
	Frugal   bool // weir's own queries wait for an existing backend, and open none
	Paused   bool // no statement begins, and backends close when they become free
	Backends []B
	Free     []B // most recently used last
	Shared   Pipelines[B, U]
	Dialing  int

	Excl  Waiters[B, C, U, L] // in order of arrival
	Reads List[U]             // shared reads for which no pipeline has room
	Apart Apart[U]            // statements that run alone, bounded
	Late  int                 // runs whose place in their lane was given to another run

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

	hot   bool // on the agenda
	conns ConnManager[B, C, U, L, N]
}

// Init makes an empty pool of a loop for the side that embeds it. Connections are opened in
// the background, until dialCtx ends. places are those of the side.
func (p *Base[B, C, U, L, N]) Init(side Dialect[B, C, U, L, N], places *ConnQuotas, loop *netloop.Loop, agenda *netloop.Agenda, background *sync.WaitGroup, dialCtx context.Context) {
	p.side, p.task = side, side
	p.loop, p.agenda, p.background, p.dialCtx = loop, agenda, background, dialCtx
	o := side.Options()
	p.Stalls.p, p.conns.p = p, p
	h := &p.conns
	h.sizer.spare = h.spare
	h.limit(o)
	database, user := side.Name()
	h.quota = places.Register(o, database, user, h.posted(h.offered), func(afterTurn bool) {
		loop.Post(func() { h.giveUp(afterTurn) })
	}, h.posted(h.lend))
}

// Apply makes options current. Surplus backends close when they become free.
func (p *Base[B, C, U, L, N]) Apply(o *session.Options) { p.conns.apply(o) }

// Wake schedules a look at the pool's queues for later in this turn.
func (p *Base[B, C, U, L, N]) Wake() {
	if !p.hot {
		p.hot = true
		p.agenda.Pool(p.task)
	}
}

// Awake is called when that look begins.
func (p *Base[B, C, U, L, N]) Awake() { p.hot = false }

// Waiting is the number of statements that wait in the pool.
func (p *Base[B, C, U, L, N]) Waiting() int { return len(p.Excl) + len(p.Reads) + p.Apart.Waiting() }

// KeepForShared is the smallest pool size at which one backend is reserved for shared reads
// and for other statements that end by themselves.
const KeepForShared = 8

// LastForShared reports whether no further client may get a backend of its own, because
// the last one is reserved. A client may hold a backend for as long as it likes, even until
// another client is answered: pgbench prepares a statement in one session while its other
// sessions, in the same thread, are in transactions. If clients held all backends, that
// would be a deadlock. From KeepForShared open backends on, one of those is reserved even if
// the pool may open more, since opening may fail. readLanes is the maximum of shared backends.
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

// Claim removes a backend from the free ones, if it is there.
func (p *Base[B, C, U, L, N]) Claim(b B) { p.Free = without(p.Free, b) }

// Release adds a backend to the free ones. It returns false if the backend must be
// closed instead. c is the backend's Conn.
func (p *Base[B, C, U, L, N]) Release(b B, c *Conn[U]) bool {
	if c.Mode == ModeShared {
		p.Shared.Remove(b)
	}
	c.Mode = ModeFree
	if c.Doomed || c.Retired {
		return false
	}
	if p.conns.owed > 0 && p.conns.gives() {
		return false
	}
	c.FreeSince, c.Settling = p.loop.Now, false
	p.Free = append(p.Free, b)
	if len(p.Excl) > 0 || len(p.Reads) > 0 {
		p.Wake()
	}
	return true
}

// Lose removes a backend whose connection has ended.
func (p *Base[B, C, U, L, N]) Lose(b B) {
	p.Backends = without(p.Backends, b)
	p.Free = without(p.Free, b)
	p.Shared.Remove(b)
	p.Apart.EndGhosts(b.Pooled())
	p.Stats.Closed++
	p.conns.owed = max(0, p.conns.owed-1)
	p.conns.count()
}

func without[B comparable](list []B, b B) []B {
	if i := slices.Index(list, b); i >= 0 {
		return slices.Delete(list, i, i+1)
	}
	return list
}

// Grow opens backends for the waiters, up to the pool's size. refused is the error for
// pools in which only logins of clients bring connections.
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
		p.conns.withdraw()
		return
	}
	if !p.side.MayDial() {
		p.conns.withdraw()
		if p.DialErr == nil {
			p.DialErr = refused
		}
		return
	}
	h := &p.conns
	h.open(min(want, h.withShared(h.room())-len(p.Backends)))
}

// settleIn is how long waiters wait for a new backend on which weir still runs its own
// queries, before the pool opens another one: usually these take less time than that.
const settleIn = 500 * time.Millisecond

// Adopted adds a backend whose connection is on the loop. It begins in ModeOwn.
func (p *Base[B, C, U, L, N]) Adopted(b B) {
	c := b.Pooled()
	c.Mode, c.Born, c.Settling = ModeOwn, p.loop.Now, true
	p.Backends = append(p.Backends, b)
	p.Stats.Opened++
	p.conns.count()
}

// NotDialed notes why a connection could not be opened, and reports whether the pool has
// no backend at all.
func (p *Base[B, C, U, L, N]) NotDialed(err error) (none bool) {
	p.Stats.DialErrors++
	p.DialErr = err
	p.Dials.Failed(p.loop.Now)
	return len(p.Backends) == 0
}

// Unreachable reports whether the last attempt failed and no backend is open or being opened.
func (p *Base[B, C, U, L, N]) Unreachable() bool {
	return p.DialErr != nil && len(p.Backends) == 0 && p.Dialing == 0
}

// Works notes that a new connection was answered by the server.
func (p *Base[B, C, U, L, N]) Works() {
	p.DialErr = nil
	p.Dials.Succeeded()
}

// Retire replaces every backend when it is next free, and discards those that are being
// opened. It returns false, and does nothing, if that would leave clients without any
// backend, unless must is set: an outdated backend is better than none.
func (p *Base[B, C, U, L, N]) Retire(must bool) bool {
	if !must && !p.side.Replaceable() {
		return false
	}
	p.retire()
	return true
}

func (p *Base[B, C, U, L, N]) retire() {
	p.conns.epoch++
	for _, b := range p.Backends {
		b.Pooled().Retired = true
	}
	for len(p.Free) > 0 {
		p.Free[0].Goodbye() // leaves p.Free
	}
}

// HoldBack pauses the pool: no statement begins, and every backend closes when it becomes
// free, whether weir can open another or not.
func (p *Base[B, C, U, L, N]) HoldBack() {
	p.Paused, p.DialErr = true, nil
	p.retire()
	p.Wake()
}

// Resume ends HoldBack.
func (p *Base[B, C, U, L, N]) Resume() {
	p.Paused = false
	p.Wake()
}

// Connections counts the backends, including those that are being opened.
func (p *Base[B, C, U, L, N]) Connections() int { return len(p.Backends) + p.Dialing }

// Reap maintains the backends at intervals: it closes those that are idle for too long, too
// old, or owed to other pools, and keeps the minimum number open.
func (p *Base[B, C, U, L, N]) Reap() { p.conns.keep() }

// CloseAll ends every backend.
func (p *Base[B, C, U, L, N]) CloseAll() {
	for len(p.Backends) > 0 {
		p.Backends[len(p.Backends)-1].Goodbye()
	}
}

// LastAnswer is when the server last answered, or 0.
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
