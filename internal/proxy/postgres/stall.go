package postgres

import (
	"context"

	"github.com/weirdb/weir/internal/proxy/core"
	"github.com/weirdb/weir/internal/wire/pgwire"
)

// This file handles shared reads behind one that does not answer: it
// waits for a lock, or is slow for its parameters although it is usually cheap.
// Statements sent behind it cannot be recalled, but do not have to wait for it:
//
//	before   shared  A(blocked) B C D
//	after    apart   A(blocked) b c d      its backend leaves the pipelines
//	         shared  B C D                 on another; answered from there
//
// The reads have no effects, so running b, c and d a second time costs the server
// time and nothing else; their answers are dropped. A keeps its backend
// while the pool has a slot for it (apart.go). Otherwise it is cancelled, and runs
// again when there is one.

// Stalled removes a backend whose head is held up from the pipelines. It returns
// false if too many reads were moved lately.
func (p *pool) Stalled(b *backend) bool {
	if !p.MoveAway(&b.Conn) {
		return false
	}
	u := b.Head()
	p.sharing.end(b)
	if u.kind != unitClient || u.c == nil {
		return true
	}
	if u.shape != nil {
		u.shape.Stall(p.l.Now + core.StallMark)
	}
	if u.Slot == core.SlotNone {
		p.Hold(&u.Turn, core.SlotFresh)
	}
	if p.OverSlots() {
		b.preempt(u)
	}
	return true
}

// moveOut replaces a unit that was sent by a new one for its client. The server's
// answer to the first is dropped.
func (l *loop) moveOut(u *unit) *unit {
	n := l.newUnit(unitClient)
	n.c, n.simple, n.read, n.shape, n.effects = u.c, u.simple, u.read, u.shape, u.effects
	n.queuedAt, n.retries, n.Tries = u.queuedAt, u.retries, u.Tries
	n.trace, n.sql = u.trace, u.sql
	n.raw, u.raw = u.raw, n.raw
	n.ops, u.ops = u.ops, n.ops
	n.parsed, u.parsed = u.parsed, n.parsed
	n.named, u.named = u.named, 0
	n.flight, u.flight = u.flight, nil
	u.c, u.shape = nil, nil
	return n
}

// nextAgain sends the next moved read of a client when the one before it is
// answered.
func (c *client) nextAgain() {
	if len(c.again) == 0 || c.s.Closed {
		return
	}
	u := c.again[0]
	n := copy(c.again, c.again[1:])
	c.again[n] = nil
	c.again = c.again[:n]
	c.p.sharing.requeue(u)
}

// CheckTurns ends the turns of reads that have run apart for long while others
// wait, and those of reads whose clients have left.
func (p *pool) CheckTurns() {
	probe := false
	for _, b := range p.Backends {
		u := b.Head()
		if b.Mode != core.ModeOwn || u == nil || u.kind != unitClient {
			continue
		}
		took := p.l.Now - b.Since
		if u.Slot != core.SlotNone && u.read && u.shape != nil && took > p.Patience() {
			u.shape.Stall(p.l.Now + core.StallMark)
		}
		switch {
		case b.Cancels > 0:
		case u.c == nil || u.c.s.Closed:
			if (u.read || b.Ghosts) && took > core.MinPatience && p.l.Now >= b.cancelAgain {
				b.cancelAgain = p.l.Now + core.CancelAgain
				b.signal(func() {})
			}
		case !u.read:
		case u.Slot == core.SlotNone:
			probe = probe || took > lockPatience
		default:
			if (p.Apart.Waiting() > 0 || p.OverSlots()) && took > u.Length() {
				b.preempt(u)
			}
		}
	}
	for _, u := range p.Apart.Patient {
		// Until more is known, assume that their lock is still held.
		if u.c != nil && u.read && u.shape != nil && u.shape.Stalled(p.l.Now) {
			u.shape.Stall(p.l.Now + core.StallMark)
		}
	}
	if probe && p.Waiting() > 0 {
		p.probe.ask()
	}
	if p.Apart.Waiting() > 0 {
		p.Wake()
	}
}

// preempt cancels a read that runs apart, unless its answer has begun, so that it
// waits in weir and not on a backend. It runs again when it has a slot. A request
// that arrives before the server has begun with the read has no effect, so it may
// have to be repeated.
func (b *backend) preempt(u *unit) {
	now := b.p.l.Now
	if u.wrote || !u.read || b.Cancels > 0 || now < b.cancelAgain {
		return
	}
	b.cancelAgain = now + core.CancelAgain
	if !u.preempted {
		b.p.Stats.Preemptions++
	}
	u.preempted, u.hold = true, true
	b.signal(func() {})
}

// signal sends the server a cancel request for what the backend runs. Until the
// server has closed the request's connection, which it does after the signal, the backend gets
// no further statements.
func (b *backend) signal(finish func()) {
	srv := b.p.l.srv
	b.Cancels++
	b.hazard = true
	cfg := srv.cfg().Postgres
	if b.via != nil {
		cfg = *b.via
	} else {
		cfg = srv.at(cfg, b.Endpoint)
	}
	pid, secret := b.pid, b.secret
	l := b.p.l
	srv.Background.Go(func() {
		ctx, done := context.WithTimeout(srv.DialCtx, srv.cfg().ConnectTimeout)
		defer done()
		err := pgwire.Cancel(ctx, cfg, pid, secret)
		defer finish()
		l.Post(func() {
			b.Cancels--
			if err != nil {
				srv.Log.Warn("cancel request failed", "pid", pid, "error", err)
			}
			if b.Cancels == 0 && !b.s.Closed {
				if u := b.Head(); u != nil && u.asking {
					goOn(b, u)
				}
				if c := b.owner; c != nil {
					c.resume()
				}
				b.settle()
			}
		})
	})
}
