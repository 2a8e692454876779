package core

import (
	"context"
	"errors"
	"net"
	"time"

	"github.com/weirdb/weir/internal/proxy/netloop"
)

// PendingLogins are the clients that are logging in on a loop.
type PendingLogins struct {
	all     map[*PendingLogin]struct{}
	stirred []*PendingLogin // of these: those whose turn comes when this turn is settled
}

// A PendingLogin is a client that logs in on an event loop, which needs no goroutine and no wake-up
// of another thread. A protocol embeds it in its own type. Input of its socket is processed
// when the turn is settled, so that the login can then leave the loop, or end there. Anything that
// a loop must not wait for runs elsewhere; see Server.Surface. A PendingLogin belongs to the loop's
// thread.
type PendingLogin struct {
	Sock     *netloop.Sock
	From     net.Addr
	Until    context.Context // ends when no more clients are accepted
	Deadline time.Duration
	Gone     bool // it has left

	logins *PendingLogins
	login  Login
	next   func() // what to do next, if anything
	spoke  func() // removes it from the lobby

	taking  bool // OnData must process the buffered input
	stirred bool // it is in logins.stirred
}

// A Login is the login of a protocol, for a PendingLogin.
type Login interface {
	// Take processes input, as OnData of netloop.Handler does. Actions that follow from it
	// are passed to Then.
	Take(p []byte) int
	// End ends the login with err.
	End(err error)
	// Lost ends the login of a client whose connection has ended.
	Lost(err error)
}

// ErrCrowdedOut ends the login of a client that has to make room for others.
var ErrCrowdedOut = errors.New("it had not said who it is when the lobby was full")

// Welcome starts the login of a client whose socket is on the loop, with g as its
// handler. The client is in the lobby until Spoke.
func (gs *PendingLogins) Welcome(g *PendingLogin, login Login, loop *netloop.Loop, lobby *netloop.Lobby) {
	if gs.all == nil {
		gs.all = make(map[*PendingLogin]struct{})
	}
	g.logins, g.login = gs, login
	gs.all[g] = struct{}{}
	g.spoke = lobby.Enter(crowdedOut(func() {
		loop.Post(func() {
			if !g.Gone {
				login.End(ErrCrowdedOut)
			}
		})
	}))
}

// A crowdedOut makes a client leave the lobby; it may be called on any thread.
type crowdedOut func()

func (f crowdedOut) Close() error {
	f()
	return nil
}

// Settle lets clients process the input of this turn.
func (gs *PendingLogins) Settle() {
	for i := 0; i < len(gs.stirred); i++ {
		g := gs.stirred[i]
		gs.stirred[i] = nil
		g.stirred = false
		g.goAhead()
	}
	gs.stirred = gs.stirred[:0]
}

// Tick ends logins that have timed out.
func (gs *PendingLogins) Tick(now time.Duration) {
	for g := range gs.all {
		if err := g.Late(now); err != nil {
			g.login.End(err)
		}
	}
}

// Dismiss ends all logins.
func (gs *PendingLogins) Dismiss() {
	for g := range gs.all {
		g.login.End(netloop.ErrStopped)
	}
}

// OnData implements netloop.Handler.
func (g *PendingLogin) OnData(p []byte) int {
	switch {
	case g.Gone:
		return len(p) // it is being closed
	case !g.taking:
		g.stir()
		return 0
	}
	return g.login.Take(p)
}

// OnClosed implements netloop.Handler.
func (g *PendingLogin) OnClosed(err error) {
	if !g.Gone {
		g.login.Lost(err)
	}
}

// OnDrained implements netloop.Handler.
func (g *PendingLogin) OnDrained() {}

// stir schedules the login for when this turn of the loop is settled.
func (g *PendingLogin) stir() {
	if !g.stirred {
		g.stirred = true
		g.logins.stirred = append(g.logins.stirred, g)
	}
}

// Then schedules f for when the turn is settled. Input that arrives in the same turn is
// processed after it.
func (g *PendingLogin) Then(f func()) {
	g.next = f
	if !g.taking {
		g.stir()
	}
}

// goAhead runs what Then has scheduled and processes input, until the login has to wait.
func (g *PendingLogin) goAhead() {
	for !g.Gone {
		if next := g.next; next != nil {
			g.next = nil
			next()
			continue
		}
		before := len(g.Sock.In)
		g.taking = true
		g.Sock.Consume()
		g.taking = false
		if g.next == nil && (g.Sock.Closed || len(g.Sock.In) == before) {
			return
		}
	}
}

// Late returns why the login must end, or nil while it may go on.
func (g *PendingLogin) Late(now time.Duration) error {
	switch {
	case g.Until.Err() != nil:
		return g.Until.Err()
	case now >= g.Deadline:
		return context.DeadlineExceeded
	}
	return nil
}

// Spoke removes the client from the lobby: it has sent its first message.
func (g *PendingLogin) Spoke() { g.spoke() }

// Leave removes the login from its PendingLogins and from the lobby. Its socket stays open.
func (g *PendingLogin) Leave() {
	g.Gone = true
	delete(g.logins.all, g)
	g.spoke()
}

// Surface moves the connection of a login that has left its PendingLogins to a goroutine, where
// then continues the login until its deadline. If the connection cannot be moved, Surface
// calls lost instead. client names it in the log. The caller must have added one to Arriving
// before Leave; Surface subtracts it when the login ends.
func (s *Server[L]) Surface(g *PendingLogin, client string, then func(ctx context.Context, conn net.Conn), lost func()) {
	fd, unread, unwritten := g.Sock.Depart()
	ctx, cancel := context.WithTimeout(g.Until, g.Deadline-s.Monotonic())
	s.Background.Go(func() {
		defer s.Arriving.Add(-1)
		defer cancel()
		conn, err := netloop.Surface(fd, g.From, unread)
		if err != nil {
			lost()
			s.Log.Error("cannot take a client off its loop", "client", client, "error", err)
			return
		}
		if err := s.side.Options().Keepalive.Accepted(conn.NetConn()); err != nil { // package net has set its own
			s.Log.Warn("a client's connection does not notice when it is dead", "client", client, "error", err)
		}
		if len(unwritten) > 0 {
			_, _ = conn.Write(unwritten) // if the client has gone, reading tells
		}
		then(ctx, conn)
	})
}
