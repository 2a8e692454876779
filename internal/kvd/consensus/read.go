package consensus

import "github.com/weirdb/weir/internal/kvd/wire"

// Strong reads do not enter the log. The leader answers from its state when it knows that it
// still led after the read arrived, either by its lease or because a majority has answered a
// stamp that was sent since (S12).

// read accepts a strong read. The session's weak writes in its bundle are committed before it
// is answered (C1, C2).
func (l *leadership) read(from Addr, m *wire.Message) {
	c := l.c
	c.state.foot.Reset()
	if err := c.state.machine.Footprint(m.Data, &c.state.foot); err != nil || c.state.foot.Write {
		c.refuse(from, m, wire.CodeInvalid, "not a query")
		return
	}
	if len(l.reads) >= maxWaiting {
		c.refuse(from, m, wire.CodeBusy, "too many reads wait")
		return
	}
	if m.Seq > 0 {
		s := c.state.sessions.get(m.Session)
		if s == nil {
			c.unknown(from, m)
			return
		}
		l.unpack(s, m)
		l.unhold(s)
	}
	r := heldRead{from: from, m: m, at: c.now.Mono}
	if l.waits[r.query()] {
		return // a repeated request; the answer to the first will do
	}
	// A majority without this replica's disk may have committed more than is applied here, and
	// a weak read at another replica may have seen it.
	r.index = c.engine.node.BasicStatus().GetCommit()
	if c.mutated(ReadUnapplied) {
		r.index = 0
	}
	if c.cfg.Fast && !c.mutated(ReadUncommitted) {
		// A write that completed by votes alone may still be uncommitted.
		r.after, _ = l.uncommitted.of(&c.state.foot, 0)
	}
	l.reads = append(l.reads, r)
}

// release answers the reads that can be answered, and sends a stamp for the others.
func (l *leadership) release() {
	if len(l.reads) == 0 || !l.open && !l.c.mutated(ServeBeforeOpen) && !l.c.mutated(ReadBeforeOpen) {
		return
	}
	heard := l.lease.heardBy()
	leased := !l.c.cfg.IndexReads && l.lease.held()
	ask := false
	kept := l.reads[:0]
	for _, r := range l.reads {
		led := leased || heard >= r.at || l.c.mutated(ReadWithoutLease)
		if !led && r.at > l.lease.stamped {
			ask = true
		}
		waits := !led || r.after > l.done || r.index > l.c.state.applied || !l.writesCommitted(r.m) || !l.c.out.mayAnswer(r.from, r.m)
		if l.c.mutated(WaitEnds) && l.c.now.Mono-r.at > patience*l.c.cfg.TickNanos {
			waits = false
		}
		switch {
		case !waits:
			l.c.weak.answer(r.from, r.m)
			if r.old {
				delete(l.waits, r.query())
			}
			continue
		case !r.old:
			r.old = true
			l.waits[r.query()] = true
		}
		kept = append(kept, r)
	}
	clear(l.reads[len(kept):])
	l.reads = kept
	if ask {
		l.lease.stamp()
	}
}

// writesCommitted reports whether the session's writes before a read are committed. A session
// that has expired meanwhile has no writes left that could be.
func (l *leadership) writesCommitted(m *wire.Message) bool {
	if m.Seq == 0 {
		return true
	}
	s := l.c.state.sessions.get(m.Session)
	return s == nil || m.Seq < s.next
}

// handOver prepares w, the engine's request that a replica take over. The replica starts an
// election when the request arrives, regardless of promises, so this leader has no lease from
// now on. It has one again when the replica answers a later stamp: then the replica accepts no
// earlier request (mayTakeOver), and if it had accepted one before, it would not answer in this
// term any more.
func (le *lease) handOver(to uint64, w *wire.Message) {
	w.Time, w.Count = le.c.now.Mono, le.lives[to]
	if !le.c.mutated(TransferKeepsLease) {
		le.successors[to] = w.Time
	}
}

// tick is the leader's part of Core.Tick.
func (l *leadership) tick() {
	c := l.c
	l.ticks++
	if l.ticks%c.cfg.HeartbeatTicks == 0 || l.ticks == 1 {
		l.lease.stamp()
		if l.view.phase == collecting {
			l.view.askPools()
		}
	}
	l.raise()
	if l.changes.candidate != nil {
		l.changes.candidate.check(l)
	}
	l.holds.tick(c.engine.node, installTime*c.cfg.ElectionTicks)
	if due := c.state.machine.Due(); l.open && due != 0 && due <= l.lease.time() && l.queue.Len() == 0 && len(l.rounds) == 0 && l.refused == nil {
		l.propose(nil) // only the clock: so that keys expire, on all replicas at the same entry
	}
}
