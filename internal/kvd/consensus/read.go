package consensus

import "github.com/weirdb/weir/internal/kvd/wire"

// Strong reads never enter the log. The leader answers from its state when it
// knows that it still was the leader after the read arrived, either by a lease
// or because a majority has answered a stamp that was sent since (S12).

// read takes in a strong read. The session's weak writes that come with it are
// committed before it is answered (C1, C2).
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
		return // it was sent again; the answer to the first is as good
	}
	// A majority without this replica's disk may have committed more than is
	// applied here, and a weak read elsewhere may have shown it.
	r.index = c.engine.node.BasicStatus().GetCommit()
	if c.mutated(ReadUnapplied) {
		r.index = 0
	}
	if c.cfg.Fast && !c.mutated(ReadUncommitted) {
		// A write that completed on votes alone may still be uncommitted.
		r.after, _ = l.uncommitted.of(&c.state.foot, 0)
	}
	l.reads = append(l.reads, r)
}

// release answers the reads that can be answered, and asks a majority on behalf
// of the others.
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
		waits := !led || r.after > l.done || r.index > l.c.state.applied || !l.settled(r.m) || !l.c.out.mayAnswer(r.from, r.m)
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

// settled reports that the session's writes that come before the read are
// committed. A session that expired meanwhile has none left that could be.
func (l *leadership) settled(m *wire.Message) bool {
	if m.Seq == 0 {
		return true
	}
	s := l.c.state.sessions.get(m.Session)
	return s == nil || m.Seq < s.next
}

// handOver prepares w, the engine's request that a replica take over. It stands
// for election without waiting for promises, whenever the request reaches it; so
// from now on this leader has no lease. It has one again when the replica answers
// a stamp that was sent later: it then takes no earlier request (mayTakeOver), and
// had it taken one before, it would not answer in this term any more.
func (le *lease) handOver(to uint64, w *wire.Message) {
	w.Time, w.Count = le.c.now.Mono, le.lives[to]
	if !le.c.mutated(TransferKeepsLease) {
		le.heirs[to] = w.Time
	}
}

// tick is the leader's share of Core.Tick.
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
		l.changes.candidate.look(l)
	}
	l.holds.tick(c.engine.node, installTime*c.cfg.ElectionTicks)
	if due := c.state.machine.Due(); l.open && due != 0 && due <= l.lease.time() && l.queue.Len() == 0 && len(l.rounds) == 0 && l.refused == nil {
		l.propose(nil) // only the clock: so that what is due expires, everywhere at the same entry
	}
}
