package postgres

import (
	"context"
	"errors"
	"fmt"
	"net"
	"time"

	"golang.org/x/sys/unix"

	"github.com/weirdb/weir/internal/proxy/core"
	"github.com/weirdb/weir/internal/proxy/netloop"
	"github.com/weirdb/weir/internal/wire/pgwire"
)

// This file is logins on the event loop: a client that connects for each transaction
// costs no goroutine, and no thread has to wake up for it. Whatever a loop must not wait
// for goes on elsewhere, from the step on at which it is: see arrival.goOn.

// A guest is a client that logs in on a loop. What its socket brings is taken when the
// turn is settled, so that it can leave the loop or become another's.
type guest struct {
	*arrival
	l        *loop
	sock     *netloop.Sock
	until    context.Context // ends when no more clients are taken
	deadline time.Duration

	greeter  *pgwire.Greeter  // until it has said who it is
	exchange *pgwire.Exchange // while it proves it
	asked    asking           // about its standing
	early    *question        // about whom it is likely to log in as; nil if there is none
	came     time.Duration    // when that was asked
	again    bool             // it took its time to prove who it is, and is asked about again
	next     func()           // what is to be done, if anything
	spoke    func()           // takes it out of the lobby

	taking  bool // OnData is to take what there is
	stirred bool // is in loop.stirred
	gone    bool // it is no guest any more
}

// An asking is where the question for a guest's standing is.
type asking uint8

const (
	notAsked asking = iota
	isAsked         // the answer is to come
	answered        // it has come, or cannot
	unheard         // the guest is to be asked about elsewhere
)

// meet begins the login of a client on the loop with the fewest. l is the one that has
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
	g := &guest{arrival: newArrival(s, from), l: l, until: until, greeter: pgwire.NewGreeter(s.cfg().accept(), local)}
	if l.Draining() {
		l.Taken()
		s.Arriving.Add(-1)
		_ = unix.Close(fd)
		return
	}
	var err error
	if g.sock, err = l.WatchAccepted(fd, g); err != nil {
		l.Taken()
		s.Arriving.Add(-1)
		_ = unix.Close(fd)
		s.Log.Error("cannot watch client socket", "error", err)
		return
	}
	g.deadline = g.began + s.cfg().LoginTimeout
	g.spoke = s.lobby.Enter(closer{g})
	l.guests[g] = struct{}{}
	l.asker.expect(g)
	g.sock.Try()
}

// A closer has a guest leave the lobby to make room; it may be called on any thread.
type closer struct{ g *guest }

func (c closer) Close() error {
	c.g.l.Post(func() {
		if !c.g.gone {
			c.g.end(errCrowdedOut)
		}
	})
	return nil
}

var errCrowdedOut = errors.New("it had not said who it is when the lobby was full")

// OnData implements netloop.Handler.
func (g *guest) OnData(p []byte) int {
	switch {
	case g.gone:
		return len(p) // it is being closed
	case !g.taking:
		g.stir()
		return 0
	case g.greeter != nil:
		return g.greet(p)
	case g.exchange != nil:
		return g.answer(p)
	}
	return 0
}

// OnClosed implements netloop.Handler.
func (g *guest) OnClosed(err error) {
	if !g.gone {
		g.left()
		g.failed(err)
	}
}

// OnDrained implements netloop.Handler.
func (g *guest) OnDrained() {}

// stir has the guest's turn come when this turn of the loop is settled.
func (g *guest) stir() {
	if !g.stirred {
		g.stirred = true
		g.l.stirred = append(g.l.stirred, g)
	}
}

// then has f done when the turn is settled. The guest may have sent something in the
// same turn, which is taken behind it.
func (g *guest) then(f func()) {
	g.next = f
	g.stir()
}

// settleGuests lets guests go on by what the turn has brought.
func (l *loop) settleGuests() {
	for i := 0; i < len(l.stirred); i++ {
		g := l.stirred[i]
		l.stirred[i] = nil
		g.stirred = false
		g.goAhead()
	}
	l.stirred = l.stirred[:0]
}

// goAhead does what is to be done, and takes what the guest has said, until it waits for
// something.
func (g *guest) goAhead() {
	for !g.gone {
		if next := g.next; next != nil {
			g.next = nil
			next()
			continue
		}
		before := len(g.sock.In)
		g.taking = true
		g.sock.Consume()
		g.taking = false
		if g.next == nil && (g.sock.Closed || len(g.sock.In) == before) {
			return
		}
	}
}

// greet takes what the guest says before authentication.
func (g *guest) greet(p []byte) int {
	n, out, start, err := g.greeter.Take(p)
	if out != nil {
		g.sock.Write(out)
	}
	switch {
	case errors.Is(err, pgwire.ErrWantsTLS):
		g.next = func() { g.goElsewhere(stepAccept) }
	case err != nil:
		g.next = func() { g.end(err) }
	case start != nil:
		g.start, g.greeter = start, nil
		g.next = g.introduced
	}
	return n
}

// introduced goes on with a guest that has said who it is.
func (g *guest) introduced() {
	s := g.s
	g.spoke()
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

// lookUp has the guest asked about. One whose secret weir holds proves who it is
// meanwhile: how does not depend on the answer.
func (g *guest) lookUp() {
	nobody := g.s.lookups.nobody()
	switch st := g.l.asker.recall(g); {
	case st != nil:
		g.asked = answered
		g.judged(st, nil)
	case nobody != nil:
		g.asked = answered
		g.judged(nil, nobody)
	case !g.l.asker.ask(g):
		g.goElsewhere(stepLookUp)
	default:
		if g.asked = isAsked; g.held {
			g.judged(nil, nil)
		}
	}
}

// known takes in the guest's standing.
func (g *guest) known(st *roleStanding) {
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

// notKnown has the guest asked about elsewhere, when it is not in the middle of its
// proof.
func (g *guest) notKnown() {
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

// judged goes on with a guest when it is known how it is to be checked.
func (g *guest) judged(st *roleStanding, err error) {
	next, e, err := g.judge(st, err, g.late() != nil, func() bool {
		return core.MayBorrowOn(g.sock.FD(), g.addr, g.s.cfg().TrustLoopback)
	})
	if err != nil {
		g.refuse(e, err)
		return
	}
	if next != stepProve {
		g.goElsewhere(next)
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

// answer takes what the guest says to prove who it is.
func (g *guest) answer(p []byte) int {
	n, out, err := g.exchange.AnswerIn(p)
	if n > 0 || err != nil {
		g.next = func() { g.on(out, err) }
	}
	return n
}

// on goes on with the exchange: out is to be sent, nil if it is over.
func (g *guest) on(out []byte, err error) {
	switch {
	case err != nil:
		g.refuse(g.exchange.Refusal(err))
	case out != nil:
		g.sock.Write(out)
	default:
		g.keys, g.welcome = g.exchange.Proved()
		g.exchange = nil
		g.proved()
	}
}

// proved goes on with a guest that has proved who it is, when it has been asked about.
func (g *guest) proved() {
	switch g.asked {
	case isAsked:
		return
	case unheard:
		g.goElsewhere(stepHear)
		return
	}
	if g.outdated() && !g.again {
		g.again = true
		if g.l.asker.ask(g) {
			g.asked = isAsked
			return
		}
	}
	switch ok, e := g.vouched(); {
	case e != nil:
		g.refuse(e, e)
	case !ok:
		g.goElsewhere(stepVouch)
	default:
		g.comeIn()
	}
}

// comeIn makes the guest a client.
func (g *guest) comeIn() {
	s := g.s
	if err := s.Crowd.Enter(s.Options(), g.key.database, g.key.user); err != nil {
		s.Refused.Add(1)
		e := pgwire.NewFatal(pgwire.CodeTooManyConnections, "weir: %v", err)
		g.refuse(e, e)
		return
	}
	c, err := g.client(g.l)
	if err != nil {
		s.Crowd.Leave(g.key.database, g.key.user)
		g.end(err)
		return
	}
	g.counted = false // the client is from now on
	g.l.Given()
	g.left()
	g.cameIn()
	g.l.met++
	c.s = g.sock
	c.s.Handle(c)
	c.s.Suspends(true)
	g.l.seat(c, g.key, g.set, nil, g.st)
}

// refuse ends the login with err, which e tells the guest unless it is nil.
func (g *guest) refuse(e *pgwire.Error, err error) {
	if e != nil {
		g.sock.Write(pgwire.AppendError(nil, e))
	}
	g.end(err)
}

// end ends the login with err, which the guest has been told as far as it is to be.
func (g *guest) end(err error) {
	g.left()
	g.failed(err)
	g.sock.CloseAfterFlush()
}

// failed notes how the login has ended. The loop does not wait for the log.
func (g *guest) failed(err error) {
	g.s.Background.Go(func() { g.ended(context.Background(), err) })
}

// left has the guest be none any more.
func (g *guest) left() {
	g.gone = true
	delete(g.l.guests, g)
	g.spoke()
	g.leave()
	g.l.Taken()
	g.s.Arriving.Add(-1)
}

// goElsewhere takes the guest off the loop, to go on from a step.
func (g *guest) goElsewhere(at step) {
	a, s := g.arrival, g.s
	counted := a.counted
	a.counted = false // by left
	s.Arriving.Add(1)
	g.left()
	a.counted = counted
	fd, unread, unwritten := g.sock.Depart()
	ctx, cancel := context.WithTimeout(g.until, g.deadline-s.Monotonic())
	s.Background.Go(func() {
		defer s.Arriving.Add(-1)
		defer cancel()
		conn, err := netloop.Surface(fd, a.addr, unread)
		if err != nil {
			a.leave()
			s.Log.Error("cannot take a client off its loop", "client", a.who.Client, "error", err)
			return
		}
		if err := s.cfg().Keepalive.Accepted(conn.NetConn()); err != nil { // package net has set its own
			s.Log.Warn("a client's connection does not notice when it is dead", "client", a.who.Client, "error", err)
		}
		if len(unwritten) > 0 {
			_, _ = conn.Write(unwritten) // if the client has gone, reading tells
		}
		if at == stepAccept {
			a.ended(ctx, a.accept(ctx, conn))
			return
		}
		a.ended(ctx, a.goOn(ctx, conn, at))
	})
}

// late is why the login is to end, nil while it may go on.
func (g *guest) late() error {
	switch {
	case g.until.Err() != nil:
		return g.until.Err()
	case g.l.Now >= g.deadline:
		return context.DeadlineExceeded
	}
	return nil
}

// tickGuests ends logins whose time is over.
func (l *loop) tickGuests() {
	for g := range l.guests {
		if err := g.late(); err != nil {
			g.end(err)
		}
	}
}

// dismissGuests ends all logins.
func (l *loop) dismissGuests() {
	for g := range l.guests {
		g.end(netloop.ErrStopped)
	}
}
