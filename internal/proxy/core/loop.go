package core

import (
	"slices"
	"sync/atomic"
	"time"

	"github.com/weirdb/weir/internal/proxy/handover"
	"github.com/weirdb/weir/internal/proxy/netloop"
	"github.com/weirdb/weir/internal/proxy/session"
	"github.com/weirdb/weir/internal/proxy/sight"
	"github.com/weirdb/weir/internal/proxy/upstream"
)

// A Client is one session of an application, on a loop.
type Client interface {
	// Tick enforces timeouts.
	Tick()
	// Drain disconnects the client when its transaction ends, or at once if it is idle.
	Drain()
	// Shutdown ends the session because weir is stopping.
	Shutdown()
	// Kill ends the session at once, and whatever it has in flight.
	Kill()
	// Info describes the session.
	Info() ClientInfo
}

// A Pool is a loop's backends for one user and database, and the statements that wait for
// them.
type Pool interface {
	// Tick enforces timeouts.
	Tick()
	// CloseAll ends every backend.
	CloseAll()
	// LastAnswer is when the server last answered, or 0.
	LastAnswer() time.Duration
	// AddTo adds the pool and its lanes to a snapshot.
	AddTo(out *sight.Snapshot)
	// Name is the database and user of the pool.
	Name() (database, user string)
	// Pause stops new statements and closes every backend when it becomes free; Resume ends
	// that. Reconnect replaces the backends.
	Pause()
	Resume()
	Reconnect()
	// TryAgain ends the pool's backoff after failed attempts to reach the server.
	TryAgain()
	// Moved ends the connections to every other endpoint, and discards what was learned
	// about the server.
	Moved(now upstream.Endpoint)
	// Apply makes options current.
	Apply(o *session.Options)
	// Connections counts the backends, including those that are being opened.
	Connections() int
	// Servers describes the backends.
	Servers() []ServerInfo
	// Waiting is the number of statements that wait in the pool.
	Waiting() int
}

// A Loop is one event loop with its clients and pools. A side embeds it in its own, which is
// the netloop.Owner. Everything but Weight, Given, Taken, Post and Call must be called on the
// loop's thread.
type Loop[K comparable, P Pool, C Client] struct {
	netloop.Loop

	Pools    map[K]P
	PoolList []P
	Clients  map[uint32]C // by id; see Server.Register
	Agenda   netloop.Agenda

	Settings *session.Table
	Shapes   *sight.Shapes

	BadHints, ProtocolErrors uint64

	// Move hands a client over to Giving if possible, and reports whether the client has left.
	// Set it before the loop runs; nil: all clients stay.
	Move func(c C) bool
	// PoolOf returns the key of a client's pool, and Dropped is called with the keys of pools
	// that were dropped. Set both before the loop runs; nil: pools are kept.
	PoolOf  func(c C) K
	Dropped func(gone []P)
	// Needed reports whether a pool without clients and backends must be kept. Nil: none.
	Needed func(p P) bool
	// Idle notes whether a pool has been used lately, and reports whether it must be dropped
	// (nil: every unused pool). Leaving reports whether pools of any loop are about to be
	// dropped (nil: none).
	Idle    func(p P, idle bool) (leaves bool)
	Leaving func() bool

	poolKeep time.Duration       // how long unused pools are kept; see drop
	lookedAt time.Duration       // when the loop last looked for them
	usedAt   map[K]time.Duration // when pools were last seen in use

	weight atomic.Int64
	giving func(*handover.Parcel)
}

// Add adds a pool to the loop, in the state of its database: g may say that it is paused.
func (l *Loop[K, P, C]) Add(key K, p P, g Gate) {
	l.Pools[key] = p
	l.PoolList = append(l.PoolList, p)
	l.Use(key)
	if g.Paused {
		p.Pause()
	}
}

// Apply makes options current on the loop.
func (l *Loop[K, P, C]) Apply(o *session.Options) {
	l.SetPatience(o.DrainTimeout)
	l.KeepPools(o.PoolKeep)
	for _, p := range l.PoolList {
		p.Apply(o)
	}
}

// Init makes the loop's tables.
func (l *Loop[K, P, C]) Init() {
	l.Pools, l.Clients, l.usedAt = make(map[K]P), make(map[uint32]C), make(map[K]time.Duration)
	l.Settings, l.Shapes = session.NewTable(), sight.NewShapes()
}

// Weight is the number of clients that were given to the loop. Weight, Given and Taken are
// safe for concurrent use.
func (l *Loop[K, P, C]) Weight() int64 { return l.weight.Load() }

// Given counts a client, which may not have arrived yet; Taken ends that.
func (l *Loop[K, P, C]) Given() { l.weight.Add(1) }

// Taken notes that a client has left.
func (l *Loop[K, P, C]) Taken() { l.weight.Add(-1) }

// Settle lets clients, pools and lanes act on the events of this turn.
func (l *Loop[K, P, C]) Settle() { l.Agenda.Settle(l.Now) }

// Alarm is when the next window ends.
func (l *Loop[K, P, C]) Alarm() (time.Duration, bool) { return l.Agenda.Alarm() }

// Tick does the housekeeping.
func (l *Loop[K, P, C]) Tick() {
	for _, p := range l.PoolList {
		p.Tick()
	}
	for _, c := range l.Clients {
		c.Tick()
	}
	l.move()
	l.drop()
}

// KeepPools sets how long unused pools are kept.
func (l *Loop[K, P, C]) KeepPools(d time.Duration) { l.poolKeep = d }

// lookForUnused is how often the loop looks for unused pools; more often if they are not
// kept for long.
const lookForUnused = time.Minute

// drop drops unused pools: otherwise users and databases that came once would use memory
// for ever.
func (l *Loop[K, P, C]) drop() {
	if l.PoolOf == nil || l.poolKeep <= 0 || l.Now-l.lookedAt < min(lookForUnused, l.poolKeep/2) && (l.Leaving == nil || !l.Leaving()) {
		return
	}
	l.lookedAt = l.Now
	for _, c := range l.Clients {
		l.usedAt[l.PoolOf(c)] = l.Now
	}
	var gone []P
	is := make(map[Pool]bool)
	for k, p := range l.Pools {
		if p.Connections() > 0 || p.Waiting() > 0 || l.Needed != nil && l.Needed(p) {
			l.usedAt[k] = l.Now
		}
		if l.idle(p, l.Now-l.usedAt[k] > l.poolKeep) {
			delete(l.Pools, k)
			delete(l.usedAt, k)
			gone = append(gone, p)
			is[p] = true
		}
	}
	if len(gone) > 0 {
		l.PoolList = slices.DeleteFunc(l.PoolList, func(p P) bool { return is[p] })
		l.Dropped(gone)
	}
}

// idle notes whether a pool is unused, and reports whether it must be dropped.
func (l *Loop[K, P, C]) idle(p P, idle bool) bool {
	if l.Idle == nil {
		return idle
	}
	return l.Idle(p, idle)
}

// Use notes that a pool is in use.
func (l *Loop[K, P, C]) Use(key K) {
	l.usedAt[key] = l.Now
	l.idle(l.Pools[key], false)
}

// Drain asks every client to leave: idle ones are disconnected at once, the others when
// their transaction ends.
func (l *Loop[K, P, C]) Drain() {
	for _, c := range l.Clients {
		c.Drain()
	}
}

// Drained reports whether all clients have left.
func (l *Loop[K, P, C]) Drained() bool { return len(l.Clients) == 0 }

// Shutdown ends the remaining clients and backends.
func (l *Loop[K, P, C]) Shutdown() {
	for _, c := range l.Clients {
		c.Shutdown()
	}
	l.Settle()
	for _, p := range l.PoolList {
		p.CloseAll()
	}
}

// Clock implements EventLoop.
func (l *Loop[K, P, C]) Clock() time.Duration { return l.Now }

// EachClient implements EventLoop.
func (l *Loop[K, P, C]) EachClient(f func(c *ClientInfo) bool) {
	for _, c := range l.Clients {
		if i := c.Info(); !f(&i) {
			return
		}
	}
}

// EachServer implements EventLoop.
func (l *Loop[K, P, C]) EachServer(f func(database, user string, b *ServerInfo)) {
	for _, p := range l.PoolList {
		database, user := p.Name()
		for _, b := range p.Servers() {
			f(database, user, &b)
		}
	}
}

// LastAnswer implements EventLoop.
func (l *Loop[K, P, C]) LastAnswer() (ago time.Duration, ok bool) {
	var last time.Duration
	for _, p := range l.PoolList {
		last = max(last, p.LastAnswer())
	}
	return l.Now - last, last > 0
}

// AddTo implements EventLoop.
func (l *Loop[K, P, C]) AddTo(out *sight.Snapshot) {
	out.Clients += len(l.Clients)
	out.ProtocolErrors += l.ProtocolErrors
	out.BadHints += l.BadHints
	out.Loops = append(out.Loops, l.Stats())
	out.AddShapes(l.Shapes)
	for _, p := range l.PoolList {
		p.AddTo(out)
	}
	for _, c := range l.Clients {
		i := c.Info()
		ps := out.PoolOf(i.Database, i.User)
		ps.Clients++
		ps.Received += i.Received
		ps.Sent += i.Sent
		if i.Waiting > 0 {
			ps.WaitingClients++
		}
		if i.Pinned {
			ps.Pinned++
		}
		if i.Active {
			ps.Active++
		}
	}
}
