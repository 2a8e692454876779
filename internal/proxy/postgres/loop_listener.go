package postgres

import (
	"cmp"
	"context"
	"math/bits"
	"slices"
	"time"

	"github.com/weirdb/weir/internal/proxy/netloop"
	"github.com/weirdb/weir/internal/proxy/sight"
	"github.com/weirdb/weir/internal/wire/pgwire"
)

// This file connects a hub with the clients of one loop, and shows what listens.

// A loopListener passes the notifications of a hub to the clients of one loop.
type loopListener struct {
	p       *pool
	hub     *hub
	clients map[string]map[*client]struct{} // by channel
	moves   map[uint64]*client              // whose channels move
}

// poolListeners are the listening clients of a pool.
type poolListeners struct {
	loop *loopListener
	hubs []*hub // of the pool's loop

	said             bool   // the log says that no connection listens
	heard            uint64 // notifications, by hubs that are closed
	clients          int    // for which hubs listen
	moves            uint64 // of clients' channels to hubs
	delivered, ended uint64 // notifications; sessions, because they may have missed some or did not read
}

// addTo adds its counters to the status of the pool.
func (ls *poolListeners) addTo(ps *sight.PoolStatus) {
	ps.Listeners += ls.clients
	ps.Hubs += len(ls.hubs)
	for _, h := range ls.hubs {
		ps.Channels += len(h.channels)
		ps.Heard += h.received
	}
	ps.Heard += ls.heard
	ps.Notified += ls.delivered
	ps.Unheard += ls.ended
}

// of returns the loopListener for clients of the pool that become idle now.
func (ls *poolListeners) of(p *pool) *loopListener {
	e := ls.loop
	if e == nil || e.hub.gone.Load() {
		e = &loopListener{p: p, hub: p.l.srv.hubs.of(p.l.srv, p.key), clients: make(map[string]map[*client]struct{}), moves: make(map[uint64]*client)}
		ls.loop = e
	}
	return e
}

// relieve makes idle listeners give their backends back, because others
// wait.
func (ls *poolListeners) relieve(p *pool) {
	if ls.loop == nil && p.pinned[bits.TrailingZeros32(uint32(pinListen))] == 0 {
		return
	}
	for _, b := range p.Backends {
		if c := b.owner; c != nil && c.pins.held == pinListen {
			c.listens.leave()
		}
	}
}

// want makes the hub listen on channels for one more client. done is called on the
// loop.
func (e *loopListener) want(channels []string, done func(err error)) {
	back := func(err error) { e.p.l.Post(func() { done(err) }) }
	if !e.hub.l.Post(func() { e.hub.want(e, channels, back) }) {
		back(netloop.ErrStopped)
	}
}

// drop ends that.
func (e *loopListener) drop(channels []string) {
	e.hub.l.Post(func() { e.hub.drop(e, channels) })
}

// add starts listening for a client whose channels move to the hub.
func (e *loopListener) add(c *client, m *channelMove) {
	for _, name := range c.listens.channels {
		if e.clients[name] == nil {
			e.clients[name] = make(map[*client]struct{})
		}
		e.clients[name][c] = struct{}{}
	}
	e.moves[m.number] = c
	e.p.listeners.clients++
	e.p.listeners.moves++
}

// remove stops listening for it.
func (e *loopListener) remove(c *client) {
	e.p.listeners.clients--
	channels := c.listens.channels
	for _, name := range channels {
		delete(e.clients[name], c)
		if len(e.clients[name]) == 0 {
			delete(e.clients, name)
		}
	}
	e.drop(channels)
}

// hear passes to clients what the hub has received.
func (e *loopListener) hear(f *loopFeed) {
	for i := range f.items {
		it := &f.items[i]
		if n := it.mark.number; n > 0 {
			if c := e.moves[n]; c != nil && c.listens.move.pid == it.mark.pid {
				delete(e.moves, n)
				c.listens.passed()
			}
			continue
		}
		for c := range e.clients[it.channel] {
			c.listens.arrived(false, f.bytes[it.at:it.end])
		}
	}
}

// lost ends the sessions for which the hub has listened.
func (e *loopListener) lost(err *pgwire.Error) {
	if e.p.listeners.loop == e {
		e.p.listeners.loop = nil
	}
	all := make(map[*client]struct{})
	for _, list := range e.clients {
		for c := range list {
			all[c] = struct{}{}
		}
	}
	e.p.listeners.clients -= len(all)
	clear(e.clients)
	clear(e.moves)
	for c := range all {
		c.listens.lost(err)
	}
}

// showListeners answers SHOW LISTENERS: a row for each connection that listens.
func showListeners(ctx context.Context, s *Server) sight.Table {
	type row struct {
		key      poolKey
		pid      uint32
		state    string
		channels int
		received uint64
		age      time.Duration
	}
	var rows []row
	clients, moves, delivered, ended := make(map[poolKey]int), make(map[poolKey]uint64), make(map[poolKey]uint64), make(map[poolKey]uint64)
	for _, l := range s.Loops {
		if l.Call(ctx, func() {
			for _, p := range l.PoolList {
				ls := &p.listeners
				clients[p.key] += ls.clients
				moves[p.key] += ls.moves
				delivered[p.key] += ls.delivered
				ended[p.key] += ls.ended
				for _, h := range ls.hubs {
					state := "listening"
					switch {
					case !h.up:
						state = "connecting"
					case h.gone.Load():
						state = "to be closed"
					}
					rows = append(rows, row{p.key, h.pid, state, len(h.channels), h.received, l.Now - h.born})
				}
			}
		}) != nil {
			break
		}
	}
	slices.SortFunc(rows, func(a, b row) int {
		return cmp.Or(cmp.Compare(a.key.database, b.key.database), cmp.Compare(a.key.user, b.key.user), cmp.Compare(a.pid, b.pid))
	})
	t := sight.Table{Cols: []string{"database", "user", "server_pid", "state", "clients", "channels", "received", "delivered", "ended", "moves", "age_s"}}
	for _, r := range rows {
		t.Add(r.key.database, r.key.user, r.pid, r.state, clients[r.key], r.channels, r.received, delivered[r.key], ended[r.key], moves[r.key], int(r.age/time.Second))
	}
	return t
}
