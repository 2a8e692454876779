package postgres

import (
	"context"
	"crypto/subtle"
	"slices"

	"github.com/weirdb/weir/internal/proxy/core"
	"github.com/weirdb/weir/internal/wire/pgwire"
)

// cancel executes a cancel request: it hits only the statement that the
// client has in flight, never one of another client on the same backend.
func (s *Server) cancel(id uint32, secret []byte) {
	s.Cancels.Add(1)
	door := s.cfg().Authenticator
	here := false
	if door == nil {
		here = id&forwarded != 0
		id &^= forwarded
	}
	l, found := s.Owner(id)
	if !found {
		if door != nil {
			door.Cancel(s.DialCtx, id, secret)
		} else if !here {
			passOn(s, id, secret)
			(&handoverSide{&s.Handover, s}).cancel(id, secret)
		}
		return // as the server does: no answer, whether the key was right or not
	}
	// The client takes the end of its request's connection as the moment from
	// which the request cannot hit a later statement: that is when the
	// server has closed weir's own request.
	done := make(chan struct{})
	finish := func() { close(done) }
	if !l.Post(func() {
		c := l.Clients[id]
		if c == nil || subtle.ConstantTimeCompare(c.login.secret, secret) != 1 || !c.cancel(finish) {
			finish()
		}
	}) {
		return
	}
	select {
	case <-done:
	case <-s.DialCtx.Done():
	}
}

// passOn forwards a cancel request to the weir that has the client, if there is one. That
// weir closes the connection when the request cannot hit a later statement any more.
func passOn(s *Server, id uint32, secret []byte) {
	cfg := s.cfg()
	peer := peerOf(id)
	address := cfg.Peers[peer]
	if address == "" || cfg.PeerID == 0 || peer == cfg.PeerID {
		return
	}
	if err := s.Forwards.Do(s.DialCtx, func(ctx context.Context) error {
		return pgwire.Cancel(ctx, pgwire.ConnectConfig{Address: address, TLSMode: pgwire.TLSPrefer}, id|forwarded, secret)
	}); err != nil {
		s.Log.Warn("cancel request not passed on", "peer", peer, "address", address, "error", err)
	}
}

func errCancelled() *pgwire.Error {
	return pgwire.NewError(pgwire.CodeQueryCanceled, "canceling statement due to user request")
}

// errEnded is the error for the client of a unit that it has cancelled, or that has run for too
// long, if the server sends none.
func errEnded(u *unit) *pgwire.Error {
	if u.overdue {
		return errOverdue(u.c.p)
	}
	return errCancelled()
}

// givenUp answers a unit that the server has not executed, if its client has cancelled it: it
// is not sent again.
func givenUp(u *unit) bool {
	c := u.c
	if c == nil || c.s.Closed || c.responder.cancelled != u {
		return false
	}
	u.exp, u.expAt = u.exp[:0], 0 // nor is what it has parsed its client's
	c.lost(u, errEnded(u))
	u.c = nil
	return true
}

// cancel ends what the client waits for: a place in a queue at once; a
// statement that runs alone, by the server's own cancel. A statement in a
// shared pipeline or a group cannot be cancelled without risk to others unless
// nothing is sent behind it; otherwise it is answered when it finishes, soon, or
// when its group waits for a standby. cancel
// reports whether a request to the server is in flight, at whose end it calls
// done.
func (c *client) cancel(done func()) bool {
	if c.state == stateWaiting {
		c.state.leave(stateWaiting)
		c.cached.Cancel()
		c.p.Excl = slices.DeleteFunc(c.p.Excl, func(w waiter) bool { return w.Client == c })
		c.refuse(errCancelled())
		return false
	}
	if b := c.link; b != nil {
		switch u := b.Head(); {
		case u == nil:
			return cancelUnread(c, done)
		case u.c == c:
			b.cancel(u, done)
			return true
		case len(c.s.In) > 0 || b.First(func(u *unit) bool { return u.c == c }) != nil:
			return cancelBehind(c, b, done)
		}
		return false
	}
	if c.inflight == 0 {
		return false
	}
	if u, ok := c.p.Waits(func(u *unit) bool { return u.c == c && !u.dead }); ok {
		u.dead = true
		c.lost(u, errCancelled())
		return false
	}
	for _, ln := range c.p.lanes.all {
		if u, ok := ln.Find(func(u *unit) bool { return u.c == c && u.kind == unitClient }); ok {
			ln.Q.Remove(func(x *unit) bool { return x == u })
			c.lost(u, errCancelled())
			return false
		}
	}
	for _, b := range c.p.Backends {
		if u := b.Head(); u != nil && u.kind == unitClient && u.c == c && (!u.park || b.Depth() == 1) {
			b.cancel(u, done)
			return true
		}
	}
	if c.freeOfStandby() {
		return false
	}
	for _, b := range c.p.Shared.Backends {
		if u := b.First(func(u *unit) bool { return u.kind == unitClient && u.c == c }); u != nil {
			c.lost(c.l.moveOut(u), errCancelled()) // its answer is dropped
			return false
		}
	}
	return false
}

// cancelBehind is cancel for a client whose statement stands behind a query of weir's own,
// which must not be hit: it continues when that has been answered.
func cancelBehind(c *client, b *backend, done func()) bool {
	b.Then(func() {
		c.l.Agenda.Lane(core.Task(func() { // behind the client, which goes on by the answer
			if c.s.Closed || !c.cancel(done) {
				done()
			}
		}))
	})
	return true
}

// cancelUnread is cancel for a client whose long text is still being scanned outside of the loop:
// afterwards the statement is sent and cancelled.
func cancelUnread(c *client, done func()) bool {
	t, link := c.texts.long, c.fwd.linkSeq
	if t == nil || t.done {
		return false
	}
	t.then = append(t.then, func() { // behind the client, which goes on by what was read
		if c.s.Closed || c.link == nil || c.fwd.linkSeq != link || !c.cancel(done) {
			done()
		} else if u := c.link.Head(); u != nil && u == c.responder.cancelled {
			u.insist = true
		}
	})
	return true
}

// insist repeats the cancel request for a statement that was cancelled while it was being
// scanned: a request that the server gets before the end of a long message has no effect.
func (bk *responder) insist() {
	u, b := bk.cancelled, bk.c.link
	if u != nil && u.insist && b != nil && b.Head() == u && b.Cancels == 0 {
		b.cancel(u, func() {})
	}
}

// endOverdue makes the server end the head of the queue, which has run for longer than
// --query-timeout, unless the server waits for more messages. A member of a group is not
// cancelled, since that could hit another. If the server waits for its client, that client is
// disconnected.
func endOverdue(b *backend) (clients bool) {
	u := b.Head()
	if u.kind != unitClient {
		return u.kind == unitRows
	}
	if c := b.owner; c != nil && c.fwd.pauses(u) {
		return true
	}
	if u.overdue || b.Cancels > 0 || u.c == nil || u.c.s.Closed {
		return true
	}
	if u.park {
		if u.c.transport.source == b {
			b.p.Stats.Limited[core.LimitQuery]++
			u.c.kick("it has not read a long answer within --query-timeout, and a grouped write cannot be cancelled")
		}
		return true
	}
	u.overdue = true
	b.p.Stats.Limited[core.LimitQuery]++
	b.cancel(u, func() {})
	return true
}

// pauses reports whether the server may be waiting for the client, that is for more messages of
// the unit at the head; if so, its time starts again. The server keeps its answers to earlier
// messages until it is asked for them.
func (fw *forwarder) pauses(u *unit) bool {
	c := fw.c
	if !u.open || u.c != c || c.transport.pass > 0 || c.state == stateCopying {
		return false
	}
	asked := u.exp[min(u.expAt, len(u.exp)):]
	switch {
	case u.failed, !slices.ContainsFunc(asked, func(x expect) bool { return !x.code.own() }):
		c.link.Resumed = c.l.Now
	case u.flushedTo > u.expAt: // it was asked for them
		return false
	default:
		u.flushedTo = len(u.exp)
		c.transport.toServer(pgwire.AppendFlush(nil))
	}
	return true
}

// errOverdue is the error for the client, instead of the server's.
func errOverdue(p *pool) *pgwire.Error {
	if p.l.cfg.Authenticator != nil {
		p.l.srv.Log.Info("query timeout", "database", p.key.database, "user", p.key.user)
	}
	return pgwire.NewError(pgwire.CodeQueryCanceled, "canceling statement due to query timeout (%s, set in weir)", p.Limits.QueryTimeout)
}

// cancel sends the server a cancel request for the head of the queue. Units
// behind it run elsewhere, or again if the request hits them.
func (b *backend) cancel(u *unit, finish func()) {
	u.c.responder.cancelled = u
	if b.Mode == core.ModeShared {
		b.p.sharing.end(b)
	}
	b.signal(finish)
}
