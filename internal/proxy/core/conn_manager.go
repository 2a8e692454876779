package core

import (
	"context"
	"errors"
	"math"
	"slices"
	"time"

	"github.com/weirdb/weir/internal/proxy/session"
)

// askAgain is how soon a pool asks again for a place that was not available.
const askAgain = 10 * time.Millisecond

const (
	// growAtOnce is how many connections a pool that sizes itself opens at a time.
	growAtOnce = 4
	// surplusKeep is how long such a pool keeps connections that it no longer uses.
	surplusKeep = 5 * time.Second
)

// leavingGrace is how long the server may take for the answer that ends a connection.
const leavingGrace = 2 * time.Second

var errLeaving = errors.New("the server has not answered the last question on a connection that weir ends")

// A ConnManager manages the connections of a pool to the server: how many there may be, which of
// them are opened and closed, and how many the pool owes to pools that it shares places with
// (quotas.go).
type ConnManager[B Backend[U], C any, U Unit, L any, N any] struct {
	p *Base[B, C, U, L, N]

	quota  *PoolQuota    // the pool's share in the quotas of its database and its user
	denied bool          // there is no place for another backend
	askAt  time.Duration // when it asks again, unless it is offered one
	owed   int           // backends that must be given up
	turn   uint64        // ... when this many statements have been answered
	epoch  uint64        // counts how often all backends had to be replaced

	sizer   sizer // sets the pool's size with --pool-size auto
	account int   // connections that the server allows the pool's user; 0: any number
	none    bool  // keep no minimum of connections
}

// ConnManager returns the pool's ConnManager.
func (p *Base[B, C, U, L, N]) ConnManager() *ConnManager[B, C, U, L, N] { return &p.conns }

// Full reports whether no backend can be opened.
func (h *ConnManager[B, C, U, L, N]) Full() bool { return h.p.Connections() >= h.p.Size || h.denied }

// TakeIn adopts the connection of a relayed login, or closes it if there is no room. Where
// only logins bring connections, the first one is kept in any case.
func (h *ConnManager[B, C, U, L, N]) TakeIn(conn N) bool {
	if h.p.Paused || h.p.Connections() >= h.p.Size || !h.quota.Keep(len(h.p.Backends) == 0 && !h.p.side.MayDial()) {
		h.p.side.Discard(conn)
		return false
	}
	h.p.side.Adopt(conn)
	h.count()
	return true
}

// share is one loop's share of n.
func share(n int, o *session.Options) int { return (n + max(1, o.Loops) - 1) / max(1, o.Loops) }

// limit applies the pool's limits.
func (h *ConnManager[B, C, U, L, N]) limit(o *session.Options) {
	database, user := h.p.side.Name()
	h.p.Limits = o.LimitsOf(database, user)
	size, bound := h.p.Limits.PoolSize, math.MaxInt32
	for _, most := range []int{o.LimitsOfDatabase(database).MaxDBConnections, o.LimitsOfUser(user).MaxUserConnections} {
		if most > 0 {
			size, bound = min(size, most), min(bound, most)
		}
	}
	h.p.ReadLanes = o.ReadLanesOf(size)
	if h.account > 0 {
		bound = min(bound, part(h.account))
	}
	h.sizer.limit(h.p.Limits.AutoPool, share(size, o), share(bound, o))
	h.p.Size = h.sizer.size
}

// Allowed sets how many connections the server permits in all, and how many
// for the pool's user (0: no limit of its own). others is the number of other weir
// processes that share the server.
func (h *ConnManager[B, C, U, L, N]) Allowed(server, user, others int) {
	if h.quota != nil {
		h.quota.places.allow(server, others)
	}
	if h.account != user {
		h.account = user
		h.limit(h.p.side.Options())
	}
}

// Refused is called when the server has refused a connection because it has none left.
// Pools that have grown return to their initial size for a minute.
func (h *ConnManager[B, C, U, L, N]) Refused() {
	if h.quota != nil {
		h.quota.places.Cramp(h.p.loop.Now)
	}
}

// spare is how many more connections the server can take.
func (h *ConnManager[B, C, U, L, N]) spare() int {
	if h.quota == nil {
		return 0
	}
	return h.quota.spare(h.p.loop.Now)
}

// Answered is called for each answer of the server to a statement.
func (h *ConnManager[B, C, U, L, N]) Answered() {
	if h.sizer.on && h.sizer.answered(h.p.loop.Now, len(h.p.Backends)-len(h.p.Free), len(h.p.Excl), len(h.p.Backends)) {
		h.resize()
	}
}

// Spent reports whether no backend may be used: none is free, or the pool sizes itself and
// already uses as many as its present size. owned is true for a client that wants a backend
// of its own; a statement that ends by itself may use one more backend if clients hold all
// that are in use.
func (h *ConnManager[B, C, U, L, N]) Spent(owned bool) bool {
	if len(h.p.Free) == 0 {
		return true
	}
	return h.sizer.on && h.used() >= h.room() && (owned || !h.held())
}

// used is how many backends are in use.
func (h *ConnManager[B, C, U, L, N]) used() int { return len(h.p.Backends) - len(h.p.Free) }

// held reports whether clients hold as many backends as the pool has room for, or more (the
// pool may have had room for more when they took them). They may hold them until other
// clients are answered (see LastForShared), so another backend has to serve those.
func (h *ConnManager[B, C, U, L, N]) held() bool {
	if !h.sizer.on || h.p.Size < KeepForShared || h.used() < h.p.Size {
		return false
	}
	for _, b := range h.p.Backends {
		if m := b.Pooled().Mode; m != ModeFree && m != ModeOwned {
			return false
		}
	}
	return true
}

// withShared is n, or one more than clients hold.
func (h *ConnManager[B, C, U, L, N]) withShared(n int) int {
	if h.held() {
		return max(n, h.used()+1)
	}
	return n
}

// resize applies the sizer's size.
func (h *ConnManager[B, C, U, L, N]) resize() {
	h.p.Size = h.sizer.size
	h.p.Wake()
}

// staying counts the backends without those that are Leaving.
func (h *ConnManager[B, C, U, L, N]) staying() (n int) {
	for _, b := range h.p.Backends {
		if !b.Pooled().Leaving {
			n++
		}
	}
	return n
}

// shrink closes free connections that the pool no longer uses.
func (h *ConnManager[B, C, U, L, N]) shrink() {
	z := &h.sizer
	if !z.on {
		return
	}
	if z.tick(h.p.loop.Now, len(h.p.Backends)-len(h.p.Free), len(h.p.Excl)) {
		h.resize()
	}
	crowded := z.size > z.base && h.spare() < 0
	if crowded {
		z.yield()
		h.resize()
	}
	if crowded || z.rested(h.p.loop.Now, surplusKeep) {
		for len(h.p.Free) > 0 && h.staying() > h.withShared(h.most()) && h.p.side.Replaceable() {
			h.p.Free[0].Goodbye() // which removes it from h.p.Free
		}
	}
}

// apply makes options current.
func (h *ConnManager[B, C, U, L, N]) apply(o *session.Options) {
	h.limit(o)
	n := h.most()
	for len(h.p.Free) > 0 && h.staying() > n {
		h.p.Free[0].Goodbye() // which removes it from h.p.Free
	}
	for i := n; i < len(h.p.Backends); i++ {
		h.p.Backends[i].Pooled().Retired = true
	}
	h.p.Wake()
}

// most is the maximum of backends, including the reserve.
func (h *ConnManager[B, C, U, L, N]) most() int {
	return h.p.Size + share(h.p.Limits.ReservePoolSize, h.p.side.Options())
}

// room is the maximum now: the reserve is for statements that have waited for long.
func (h *ConnManager[B, C, U, L, N]) room() int {
	if h.p.Limits.ReservePoolSize > 0 && len(h.p.Excl) > 0 && h.p.loop.Now-h.p.Excl[0].Since >= h.p.Limits.ReservePoolTimeout {
		return h.most()
	}
	return h.p.Size
}

// open begins to open want backends, as far as places allow. A pool that grows by itself
// opens a few at a time, while its other backends run statements.
func (h *ConnManager[B, C, U, L, N]) open(want int) {
	if h.sizer.on {
		want = min(want, max(h.sizer.base-len(h.p.Backends), growAtOnce))
	}
	if h.denied && h.p.loop.Now < h.askAt {
		return
	}
	for h.p.Dialing < want {
		if h.sizer.on && len(h.p.Backends)+h.p.Dialing >= h.sizer.base && h.spare() <= 0 {
			break // others have grown in the meantime
		}
		if !h.quota.Ask(want-h.p.Dialing, h.p.loop.Now) {
			h.denied, h.askAt = true, h.p.loop.Now+askAgain
			return
		}
		if !h.begin() {
			h.denied = false
			return
		}
	}
	h.withdraw()
}

// begin opens one backend in the background, for which the pool has a place. If it may not
// open one now, it returns the place.
func (h *ConnManager[B, C, U, L, N]) begin() bool {
	if !h.p.Dials.Start(h.p.loop.Now, h.p.Size) {
		h.quota.Back()
		if h.p.DialErr != nil {
			h.p.side.Awaits(h.p.DialErr)
		}
		return false
	}
	h.p.Dialing++
	epoch, timeout := h.epoch, h.p.side.Options().ConnectTimeout
	h.p.background.Go(func() {
		ctx, cancel := context.WithTimeout(h.p.dialCtx, timeout)
		defer cancel()
		conn, err := h.p.side.Dial(ctx)
		posted := h.p.loop.Post(func() {
			h.p.Dialing--
			defer h.count()
			switch {
			case h.epoch != epoch || len(h.p.Backends) >= h.withShared(h.most()): // out of date already, or one too many by now
				if err == nil {
					h.p.side.Discard(conn)
				}
				h.p.Wake()
			case err != nil:
				h.p.side.DialFailed(err)
			default:
				h.p.side.Adopt(conn)
			}
		})
		if !posted && err == nil {
			h.p.side.Discard(conn)
		}
	})
	return true
}

// withdraw stops waiting for a place.
func (h *ConnManager[B, C, U, L, N]) withdraw() {
	if h.denied {
		h.denied = false
		h.quota.Withdraw()
	}
}

// keep closes free backends that were idle for too long, are too old, or are owed, and opens
// others up to the minimum number. Backends of the reserve are closed first.
func (h *ConnManager[B, C, U, L, N]) keep() {
	o := &h.p.Limits
	least := min(share(o.MinPoolSize, h.p.side.Options()), h.p.Size)
	if h.none {
		least = 0
	}
	for i := 0; i < len(h.p.Free); i++ {
		c := h.p.Free[i].Pooled()
		free := h.p.loop.Now - c.FreeSince
		idle := o.ServerIdleTimeout > 0 && free > o.ServerIdleTimeout && len(h.p.Backends) > least ||
			len(h.p.Backends) > h.withShared(h.p.Size) && free > o.ReservePoolTimeout
		old := o.ServerLifetime > 0 && h.p.loop.Now-c.Born > o.ServerLifetime
		if (idle || old) && h.p.side.Replaceable() {
			h.p.Free[i].Goodbye() // which removes it from h.p.Free
			i--
		}
	}
	for i := len(h.p.Backends) - 1; i >= 0; i-- {
		b := h.p.Backends[i]
		if c := b.Pooled(); c.Leaving && c.running(h.p.loop.Now) > leavingGrace {
			b.Cut(errLeaving) // which removes it from h.p.Backends
		}
	}
	h.shrink()
	h.pay()
	if h.p.Waiting() == 0 {
		h.withdraw()
	}
	if h.p.Connections() < least {
		h.Begin()
	}
}

// Begin begins to open one backend more than there are, if that is possible now.
func (h *ConnManager[B, C, U, L, N]) Begin() {
	if !h.p.Paused && !h.p.loop.Draining() && h.p.side.MayDial() && h.quota.Keep(false) {
		h.begin()
	}
}

// count reports the number of the pool's connections to its accounts.
func (h *ConnManager[B, C, U, L, N]) count() {
	n := h.p.Connections()
	h.owed = min(h.owed, n)
	h.quota.Holds(n)
}

// Needed reports whether the pool must stay although it is unused: it is paused, or has a
// minimum number of connections.
func (h *ConnManager[B, C, U, L, N]) Needed() bool {
	return h.p.Paused || h.p.Limits.MinPoolSize > 0 && !h.none
}

// KeepNone drops the minimum number of connections.
func (h *ConnManager[B, C, U, L, N]) KeepNone() { h.none = true }

// Idle is PoolQuota.Idle of the pool's quota.
func (h *ConnManager[B, C, U, L, N]) Idle(idle bool) (leaves bool) { return h.quota.Idle(idle) }

// End is called for a pool that is dropped.
func (h *ConnManager[B, C, U, L, N]) End() { h.quota.Leave() }

// posted returns f as a function that may be called on any thread.
func (h *ConnManager[B, C, U, L, N]) posted(f func()) func() { return func() { h.p.loop.Post(f) } }

// offered is called when there may be a place for another backend.
func (h *ConnManager[B, C, U, L, N]) offered() {
	h.askAt = 0
	h.p.Wake()
}

// giveUp closes a backend for another pool: a free one, or the next that becomes free; with
// afterTurn not before the pool's turn is over.
func (h *ConnManager[B, C, U, L, N]) giveUp(afterTurn bool) {
	if n := h.p.Connections(); n <= h.owed || n == 1 && !h.p.side.Replaceable() {
		h.quota.Keeps()
		return
	}
	if h.owed++; h.owed == 1 {
		h.turn = h.p.Stats.Units
		if afterTurn {
			h.turn += turnStatements
		}
	}
	h.pay()
	if h.Owes() {
		h.p.Wake() // the side may have one that is not needed
	}
}

// Owes reports whether a backend must be given up now: the pool's turn is over, or only
// weir's own queries wait in it.
func (h *ConnManager[B, C, U, L, N]) Owes() bool {
	return h.owed > 0 && h.owed+h.staying() > len(h.p.Backends) && (h.p.Stats.Units >= h.turn || h.p.Waiting() == h.p.Excl.asks())
}

// Awaited reports whether anyone waits for a backend of the pool longer than a busy one takes
// to become free: its own statements, another pool that shares its places, or PAUSE.
// Statements that wait for a slot do not count.
func (h *ConnManager[B, C, U, L, N]) Awaited() bool {
	p, now := h.p, h.p.loop.Now
	return p.Paused || h.Owes() || p.Excl.Long(now, p.side.Left) ||
		slices.ContainsFunc(p.Reads, func(u U) bool { return !u.Left() && now-u.Queued() > longWait })
}

// gives reports whether a backend that becomes free must be given to another pool.
func (h *ConnManager[B, C, U, L, N]) gives() bool {
	if h.Owes() {
		h.p.Stats.Limited[LimitConnections]++
		return true
	}
	return false
}

// pay closes the backends that are owed, as they become free. A pipeline gets no more reads,
// since otherwise it might never become free.
func (h *ConnManager[B, C, U, L, N]) pay() {
	for len(h.p.Free) > 0 && h.gives() {
		h.p.Free[0].Goodbye() // which removes it from h.p.Free, and pays
	}
	if !h.Owes() || h.p.Shared.Len() == 0 {
		return
	}
	if c := h.p.Shared.conns[h.p.Shared.Len()-1]; c.Depth() > 0 {
		c.Retired = true
	}
}

// lend closes a backend that has been unused for a while.
func (h *ConnManager[B, C, U, L, N]) lend() {
	if len(h.p.Free) > 0 && h.p.loop.Now-h.p.Free[0].Pooled().FreeSince >= lendAfter && h.p.side.Replaceable() {
		h.p.Free[0].Goodbye()
	}
}

// Idlest returns the backend that has been free for longest, if there is one that may be
// closed.
func (h *ConnManager[B, C, U, L, N]) Idlest() (idlest B, since time.Duration, ok bool) {
	if !h.p.side.Replaceable() {
		return idlest, 0, false
	}
	for _, b := range h.p.Free {
		if at := b.Pooled().FreeSince; !ok || at < since {
			idlest, since, ok = b, at, true
		}
	}
	return idlest, since, ok
}
