package mysql

import (
	"github.com/weirdb/weir/internal/proxy/core"
	"github.com/weirdb/weir/internal/wire/mywire"
)

// This file handles shared reads behind one that does not answer: it waits for a lock, or is
// slow for its parameters although it is usually cheap. weir cannot take back the statements
// sent behind it, but they need not wait for it:
//
//	before   shared  A(blocked) B C D
//	after    apart   A(blocked) b c d      its backend leaves the pipelines
//	         shared  B C D                 on another; answered from there
//
// The reads have no effects, so the server's second execution of b, c and d only costs time;
// weir drops the first answers. A keeps its backend while the pool has a slot for it
// (apart.go). Otherwise weir kills it with KILL QUERY, and it runs again when there is a slot.
// By then no client waits for anything else on that connection, so the KILL cannot hit another
// statement.

// Stalled takes a backend whose head is held up out of the pipelines. It returns false if too
// many reads were moved recently.
func (p *pool) Stalled(b *backend) bool {
	if !p.MoveAway(&b.Conn) {
		return false
	}
	u := b.Head()
	defer p.sharing.end(b) // once it is known which of the others wait for the same
	switch {
	case u.kind == unitHidden && u.st != nil: // a statement is being prepared, for which the server opens its tables
		u.st.stall(p)
	case u.kind != unitClient || u.c == nil:
		return true
	case u.shape != nil:
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

// stall takes a statement that cannot be prepared at the moment out of the pipelines, with the
// reads that wait for it.
func (st *stmt) stall(p *pool) {
	st.learning = false
	st.shape.Stall(p.l.Now + core.StallMark)
	p.Reads.Drop(func(u *unit) bool {
		if !u.Left() {
			if u.st != st {
				return false
			}
			p.alone.queue(u)
		}
		return true
	})
}

// nextAgain continues the moved reads of a client when the one before them is answered.
func (c *client) nextAgain() {
	if len(c.again) == 0 || c.s.Closed {
		return
	}
	u := c.again[0]
	n := copy(c.again, c.again[1:])
	c.again[n] = nil
	c.again = c.again[:n]
	c.p.sharing.again(u)
}

// CheckTurns ends the turns of reads that have run apart for long while others wait, and those
// of reads whose clients have left.
func (p *pool) CheckTurns() {
	for _, b := range p.Backends {
		u := b.Head()
		if b.Mode != core.ModeOwn || u == nil || b.Cancels > 0 {
			continue
		}
		if u.kind == unitHidden {
			if u.st == nil {
				continue
			}
			if u = b.Head(); b.alone != nil {
				u = b.alone // it waits for its statement to be prepared
			}
		}
		took := p.l.Now - b.Since
		switch {
		case u.kind == unitClient && (u.c == nil || u.c.s.Closed):
			if (u.read || b.Ghosts) && took > core.MinPatience && p.l.Now >= b.killAgain {
				b.killAgain = p.l.Now + core.CancelAgain
				b.signal(func(*mywire.Error) {})
			}
		case u.kind == unitClient && u.dead && u.read:
			// A KILL that arrives before the server has begun has no effect.
			if p.l.Now >= b.killAgain {
				b.killAgain = p.l.Now + core.CancelAgain
				b.signal(func(*mywire.Error) {})
			}
		case u.Slot == core.SlotNone || u.kind == unitClient && !u.read:
		default:
			if u.shape != nil && took > p.Patience() {
				u.shape.Stall(p.l.Now + core.StallMark)
			}
			if (p.Apart.Waiting() > 0 || p.OverSlots() || p.exhausted()) && took > u.Length() {
				b.preempt(u)
			}
		}
	}
	for _, u := range p.Apart.Patient {
		// Assume that their lock is still held.
		if u.c != nil && u.read && u.shape != nil && u.shape.Stalled(p.l.Now) {
			u.shape.Stall(p.l.Now + core.StallMark)
		}
	}
	if p.exhausted() {
		p.probe.ask()
	}
	p.alone.poll()
	if p.Apart.Waiting() > 0 {
		p.Wake()
	}
}

// exhausted reports whether a client waits for a backend and none can be opened.
func (p *pool) exhausted() bool {
	return (len(p.Excl) > 0 || len(p.Reads) > 0) && p.ConnManager().Spent(true) && p.ConnManager().Full()
}

// preempt kills a read that runs apart, unless its answer has begun, so that it waits in weir
// and not on a backend. It runs again when it has a slot. A KILL that arrives before the server
// has begun with the read has no effect, so it may take another.
func (b *backend) preempt(u *unit) {
	now := b.p.l.Now
	if u.wrote || u.dead || b.Cancels > 0 || now < b.killAgain || u.kind == unitClient && !u.read {
		return
	}
	b.killAgain = now + core.CancelAgain
	u.preempted, u.hold = true, true
	b.p.Stats.Preemptions++
	b.signal(func(*mywire.Error) {})
}
