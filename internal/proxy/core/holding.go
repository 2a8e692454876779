package core

import (
	"context"
	"time"

	"github.com/weirdb/weir/internal/proxy/session"
)

// askAgain is how soon a pool asks anew for a place that there was none of.
const askAgain = 10 * time.Millisecond

// A Holding is a pool as what holds connections to the server: how many they may be, which
// of them are opened and closed, and what it owes to pools that it shares places with
// (places.go).
type Holding[B Backend[U], C any, U Unit, L any, N any] Base[B, C, U, L, N]

// Holding is the pool as one.
func (p *Base[B, C, U, L, N]) Holding() *Holding[B, C, U, L, N] {
	return (*Holding[B, C, U, L, N])(p)
}

func (h *Holding[B, C, U, L, N]) pool() *Base[B, C, U, L, N] { return (*Base[B, C, U, L, N])(h) }

// Full reports whether no backend can be opened.
func (h *Holding[B, C, U, L, N]) Full() bool { return h.pool().Connections() >= h.Size || h.denied }

// TakeIn adopts a connection that a login has brought, or closes it if there is no room.
// Where only logins bring any, the first one is kept in any case.
func (h *Holding[B, C, U, L, N]) TakeIn(conn N) bool {
	if h.Paused || h.pool().Connections() >= h.Size || !h.seat.Keep(len(h.Backends) == 0 && !h.side.MayDial()) {
		h.side.Discard(conn)
		return false
	}
	h.side.Adopt(conn)
	h.count()
	return true
}

// share is the part of one loop of what all may have.
func share(n int, o *session.Options) int { return (n + max(1, o.Loops) - 1) / max(1, o.Loops) }

// limit takes over the pool's limits.
func (h *Holding[B, C, U, L, N]) limit(o *session.Options) {
	database, user := h.side.Name()
	h.Limits = o.LimitsOf(database, user)
	size := h.Limits.PoolSize
	for _, most := range []int{o.LimitsOfDatabase(database).MaxDBConnections, o.LimitsOfUser(user).MaxUserConnections} {
		if most > 0 {
			size = min(size, most)
		}
	}
	h.ReadLanes = o.ReadLanesOf(size)
	h.Size = share(size, o)
}

// apply puts options in force.
func (h *Holding[B, C, U, L, N]) apply(o *session.Options) {
	h.limit(o)
	n := h.most()
	for len(h.Free) > 0 && len(h.Backends) > n {
		h.Free[0].Goodbye() // leaves h.Free
	}
	for i := n; i < len(h.Backends); i++ {
		h.Backends[i].Pooled().Retired = true
	}
	h.pool().Wake()
}

// most is how many backends there may be with the reserve.
func (h *Holding[B, C, U, L, N]) most() int {
	return h.Size + share(h.Limits.ReservePoolSize, h.side.Options())
}

// room is how many there may be now: the reserve is for those who have waited for long.
func (h *Holding[B, C, U, L, N]) room() int {
	if h.Limits.ReservePoolSize > 0 && len(h.Excl) > 0 && h.loop.Now-h.Excl[0].Since >= h.Limits.ReservePoolTimeout {
		return h.most()
	}
	return h.Size
}

// open has so many backends being opened, as far as that may be.
func (h *Holding[B, C, U, L, N]) open(want int) {
	if h.denied && h.loop.Now < h.askAt {
		return
	}
	for h.Dialing < want {
		if !h.seat.Ask(want-h.Dialing, h.loop.Now) {
			h.denied, h.askAt = true, h.loop.Now+askAgain
			return
		}
		if !h.begin() {
			h.denied = false
			return
		}
	}
	h.withdraw()
}

// begin opens one backend in the background, for which there is a place. If that may not
// be now it gives the place back.
func (h *Holding[B, C, U, L, N]) begin() bool {
	if !h.Dials.Start(h.loop.Now, h.Size) {
		h.seat.Back()
		return false
	}
	h.Dialing++
	epoch, timeout := h.epoch, h.side.Options().ConnectTimeout
	h.background.Go(func() {
		ctx, cancel := context.WithTimeout(h.dialCtx, timeout)
		defer cancel()
		conn, err := h.side.Dial(ctx)
		posted := h.loop.Post(func() {
			h.Dialing--
			defer h.count()
			switch {
			case h.epoch != epoch || len(h.Backends) >= h.most(): // out of date already, or one too many by now
				if err == nil {
					h.side.Discard(conn)
				}
				h.pool().Wake()
			case err != nil:
				h.side.DialFailed(err)
			default:
				h.side.Adopt(conn)
			}
		})
		if !posted && err == nil {
			h.side.Discard(conn)
		}
	})
	return true
}

// withdraw ends the asking for a place.
func (h *Holding[B, C, U, L, N]) withdraw() {
	if h.denied {
		h.denied = false
		h.seat.Withdraw()
	}
}

// keep closes free backends that nobody needed for long, that are old, or that are owed,
// and opens others up to the least number of them. Those of a reserve go first.
func (h *Holding[B, C, U, L, N]) keep() {
	o := &h.Limits
	least := min(share(o.MinPoolSize, h.side.Options()), h.Size)
	for i := 0; i < len(h.Free); i++ {
		c := h.Free[i].Pooled()
		free := h.loop.Now - c.FreeSince
		idle := o.ServerIdleTimeout > 0 && free > o.ServerIdleTimeout && len(h.Backends) > least ||
			len(h.Backends) > h.Size && free > o.ReservePoolTimeout
		old := o.ServerLifetime > 0 && h.loop.Now-c.Born > o.ServerLifetime
		if (idle || old) && h.side.Replaceable() {
			h.Free[i].Goodbye() // leaves h.Free
			i--
		}
	}
	h.pay()
	if h.pool().Waiting() == 0 {
		h.withdraw()
	}
	if h.pool().Connections() < least && !h.Paused && !h.loop.Draining() && h.side.MayDial() && h.seat.Keep(false) {
		h.begin()
	}
}

// count tells the other pools how many connections this one has.
func (h *Holding[B, C, U, L, N]) count() {
	n := h.pool().Connections()
	h.owed = min(h.owed, n)
	h.seat.Holds(n)
}

// posted is f, to be called on any thread.
func (h *Holding[B, C, U, L, N]) posted(f func()) func() { return func() { h.loop.Post(f) } }

// offered is called when there may be a place for another backend.
func (h *Holding[B, C, U, L, N]) offered() {
	h.askAt = 0
	h.pool().Wake()
}

// giveUp closes a backend for another pool: one that is free, or the next that is; or
// after the pool's turn only.
func (h *Holding[B, C, U, L, N]) giveUp(afterTurn bool) {
	if n := h.pool().Connections(); n <= h.owed || n == 1 && !h.side.Replaceable() {
		h.seat.Keeps()
		return
	}
	if h.owed++; h.owed == 1 {
		h.turn = h.Stats.Units
		if afterTurn {
			h.turn += turnStatements
		}
	}
	h.pay()
}

// owes reports whether a backend is to be given up now: the pool has had its turn, or
// nothing to do with it.
func (h *Holding[B, C, U, L, N]) owes() bool {
	return h.owed > 0 && (h.Stats.Units >= h.turn || h.pool().Waiting() == 0)
}

// gives reports whether a backend that is free again goes to another pool.
func (h *Holding[B, C, U, L, N]) gives() bool {
	if h.owes() {
		h.Stats.Limited[LimitConnections]++
		return true
	}
	return false
}

// pay closes what is owed, if it is free. A pipeline is let run dry, for it may never be
// free otherwise.
func (h *Holding[B, C, U, L, N]) pay() {
	for len(h.Free) > 0 && h.gives() {
		h.Free[0].Goodbye() // leaves h.Free, and pays
	}
	if !h.owes() || h.Shared.Len() == 0 {
		return
	}
	if c := h.Shared.conns[h.Shared.Len()-1]; c.Depth() > 0 {
		c.Retired = true
	}
}

// lend closes a backend that nobody has used for a while.
func (h *Holding[B, C, U, L, N]) lend() {
	if len(h.Free) > 0 && h.loop.Now-h.Free[0].Pooled().FreeSince >= lendAfter && h.side.Replaceable() {
		h.Free[0].Goodbye()
	}
}
