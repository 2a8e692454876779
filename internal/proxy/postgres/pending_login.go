package postgres

import (
	"context"
	"errors"
	"fmt"
	"net"
	"time"

	"golang.org/x/sys/unix"

	"github.com/weirdb/weir/internal/proxy/core"
	"github.com/weirdb/weir/internal/wire/pgwire"
)

// This file runs logins on the event loop: a client that connects for each transaction
// costs no goroutine, and wakes up no other thread. Whatever a loop must not wait
// for continues on a goroutine, from the present step on: see loginAttempt.goOn.

// A pendingLogin is a client that is logging in on a loop.
type pendingLogin struct {
	*loginAttempt
	core.PendingLogin
	l *loop

	greeter  *pgwire.Greeter  // until it has said who it is
	exchange *pgwire.Exchange // while it proves it
	asked    questionState    // the question about its role status
	early    *roleQuestion    // the question about whom it is likely to log in as, or nil
	came     time.Duration    // when that was asked
	again    bool             // it took so long to prove who it is that weir asks about it again
}

// A questionState is the state of the question about a client's role status.
type questionState uint8

const (
	notAsked questionState = iota
	isAsked                // the answer has not come yet
	answered               // it has come, or there is none
	unheard                // the client must be asked about on a goroutine
)

// meet begins the login of a client on the loop with the fewest clients. l is the loop that has
// accepted it.
func (s *Server) meet(l *loop, fd int, from net.Addr, until context.Context) {
	best := s.LeastLoaded()
	best.Given()
	s.Arriving.Add(1)
	if best == l {
		l.meet(fd, from, until)
	} else if !best.Post(func() { best.meet(fd, from, until) }) {
		s.Arriving.Add(-1)
		_ = unix.Close(fd)
	}
}

func (l *loop) meet(fd int, from net.Addr, until context.Context) {
	s := l.srv
	_, local := from.(*net.UnixAddr)
	g := &pendingLogin{loginAttempt: newLoginAttempt(s, from), l: l, greeter: pgwire.NewGreeter(s.cfg().accept(), local)}
	g.From, g.Until, g.Deadline = from, until, g.began+s.cfg().LoginTimeout
	if l.Draining() {
		l.Taken()
		s.Arriving.Add(-1)
		_ = unix.Close(fd)
		return
	}
	var err error
	if g.Sock, err = l.WatchAccepted(fd, g); err != nil {
		l.Taken()
		s.Arriving.Add(-1)
		_ = unix.Close(fd)
		s.Log.Error("cannot watch client socket", "error", err)
		return
	}
	l.logins.Welcome(&g.PendingLogin, g, &l.Loop.Loop, &s.lobby)
	l.asker.expect(g)
	g.Sock.Try()
}

// Take implements core.Login.
func (g *pendingLogin) Take(p []byte) int {
	switch {
	case g.greeter != nil:
		return g.greet(p)
	case g.exchange != nil:
		return g.answer(p)
	}
	return 0
}

// Lost implements core.Login.
func (g *pendingLogin) Lost(err error) {
	g.left()
	g.failed(err)
}

// greet processes what the client sends before authentication.
func (g *pendingLogin) greet(p []byte) int {
	n, out, start, err := g.greeter.Take(p)
	if out != nil {
		g.Sock.Write(out)
	}
	switch {
	case errors.Is(err, pgwire.ErrWantsTLS):
		g.Then(func() { g.goElsewhere(stepAccept) })
	case err != nil:
		g.Then(func() { g.End(err) })
	case start != nil:
		g.start, g.greeter = start, nil
		g.Then(g.introduced)
	}
	return n
}

// introduced continues when the client has said who it is.
func (g *pendingLogin) introduced() {
	s := g.s
	g.Spoke()
	if g.start.Kind == pgwire.StartupCancel {
		g.goElsewhere(stepIntroduce)
		return
	}
	if e := g.introduce(); e != nil {
		s.Refused.Add(1)
		g.refuse(e, e)
		return
	}
	gate := s.GateOf(g.key.database)
	switch {
	case core.IsAdminDatabase(g.key.database), gate.Paused && !gate.Disabled:
		g.goElsewhere(stepConsole)
	case gate.Disabled:
		s.Refused.Add(1)
		e := errDisabled(g.key.database)
		g.refuse(e, e)
	case !g.asks():
		g.goElsewhere(stepRelay)
	default:
		g.lookUp()
	}
}

// lookUp asks about the client. If weir holds its secret, the client proves who it is
// meanwhile: the method does not depend on the answer.
func (g *pendingLogin) lookUp() {
	nobody := g.s.lookups.nobody()
	switch st := g.l.asker.recall(g); {
	case st != nil:
		g.asked = answered
		g.judged(st, nil)
	case nobody != nil:
		g.asked = answered
		g.judged(nil, nobody)
	default:
		g.l.asker.ask(g)
		if g.asked = isAsked; g.held {
			g.judged(nil, nil)
		}
	}
}

// known processes the client's role status.
func (g *pendingLogin) known(st *roleStatus) {
	g.asked = answered
	switch {
	case g.again:
		if e := g.heardAgain(st); e != nil {
			g.refuse(e, fmt.Errorf("look up %q again: %w", g.key.user, e))
			return
		}
		g.proved()
	case !g.held:
		g.judged(st, nil)
	case g.exchange == nil: // it has proved who it is, and waits
		g.st = st
		g.proved()
	default:
		g.st = st
	}
}

// notKnown moves the client to a goroutine that asks about it, when it is not in the middle of
// its proof.
func (g *pendingLogin) notKnown() {
	g.asked = unheard
	switch {
	case g.again:
		g.goElsewhere(stepVouch)
	case !g.held:
		g.goElsewhere(stepLookUp)
	case g.exchange == nil:
		g.goElsewhere(stepHear)
	}
}

// judged continues when it is known how the client must be checked.
func (g *pendingLogin) judged(st *roleStatus, err error) {
	next, e, err := g.judge(st, err, g.Late(g.l.Now) != nil, func() bool {
		return core.MayBorrowOn(g.Sock.FD(), g.addr, g.s.cfg().TrustLoopback)
	})
	if err != nil {
		g.refuse(e, err)
		return
	}
	if next != stepProve {
		g.goElsewhere(next)
		return
	}
	if g.method == AuthLDAP {
		g.goElsewhere(stepProve)
		return
	}
	g.exchange = pgwire.NewExchange(g.key.user, g.method, g.secret, nil)
	if g.exchange.Slow() {
		if g.held {
			next = stepLookUp
		}
		g.goElsewhere(next)
		return
	}
	g.on(g.exchange.Begin())
}

// answer processes the client's messages of its proof.
func (g *pendingLogin) answer(p []byte) int {
	n, out, err := g.exchange.AnswerIn(p)
	if n > 0 || err != nil {
		g.Then(func() { g.on(out, err) })
	}
	return n
}

// on continues the exchange: out is to be sent, or nil if it is over.
func (g *pendingLogin) on(out []byte, err error) {
	switch {
	case err != nil:
		g.refuse(g.exchange.Refusal(err))
	case out != nil:
		g.Sock.Write(out)
	default:
		g.keys, g.welcome = g.exchange.Proved()
		g.exchange = nil
		g.proved()
	}
}

// proved continues when the client has proved who it is and its role status is known.
func (g *pendingLogin) proved() {
	switch g.asked {
	case isAsked:
		return
	case unheard:
		g.goElsewhere(stepHear)
		return
	}
	if g.outdated() && !g.again {
		g.again = true
		g.l.asker.ask(g)
		g.asked = isAsked
		return
	}
	switch ok, e := g.accepted(); {
	case e != nil:
		g.refuse(e, e)
	case !ok:
		g.goElsewhere(stepVouch)
	default:
		g.comeIn()
	}
}

// comeIn turns it into a client of the loop.
func (g *pendingLogin) comeIn() {
	s := g.s
	if err := s.SessionCounts.Enter(s.Options(), g.key.database, g.key.user); err != nil {
		s.Refused.Add(1)
		e := pgwire.NewFatal(pgwire.CodeTooManyConnections, "weir: %v", err)
		g.refuse(e, e)
		return
	}
	c, err := g.client(g.l)
	if err != nil {
		s.SessionCounts.Leave(g.key.database, g.key.user)
		g.End(err)
		return
	}
	g.counted = false // the client is counted from now on
	g.l.Given()
	g.left()
	g.cameIn()
	g.l.met++
	c.s = g.Sock
	c.s.Handle(c)
	c.s.Suspends(true)
	g.l.seat(c, g.key, g.set, nil, g.st)
}

// refuse ends the login with err; the client is sent e unless that is nil.
func (g *pendingLogin) refuse(e *pgwire.Error, err error) {
	if e != nil {
		g.Sock.Write(pgwire.AppendError(nil, e))
	}
	g.End(err)
}

// End implements core.Login. The client has already been sent any error.
func (g *pendingLogin) End(err error) {
	g.left()
	g.failed(err)
	g.Sock.CloseAfterFlush()
}

// failed logs how the login has ended. The loop does not wait for the log.
func (g *pendingLogin) failed(err error) {
	g.s.Background.Go(func() { g.ended(context.Background(), err) })
}

// left removes the login from the loop.
func (g *pendingLogin) left() {
	g.PendingLogin.Leave()
	g.leave()
	g.l.Taken()
	g.s.Arriving.Add(-1)
}

// goElsewhere moves the login to a goroutine, which continues from a step.
func (g *pendingLogin) goElsewhere(at step) {
	a, s := g.loginAttempt, g.s
	counted := a.counted
	a.counted = false // by left
	s.Arriving.Add(1)
	g.left()
	a.counted = counted
	s.Surface(&g.PendingLogin, a.who.Client, func(ctx context.Context, conn net.Conn) {
		if at == stepAccept {
			a.ended(ctx, a.accept(ctx, conn))
			return
		}
		a.ended(ctx, a.goOn(ctx, conn, at))
	}, a.leave)
}
