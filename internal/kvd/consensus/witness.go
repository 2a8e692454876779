package consensus

import "github.com/weirdb/weir/internal/kvd/kvwire"

// witness votes on an operation that its client also sent to the leader.
func (c *Core) witness(from Addr, m *kvwire.Message) {
	no := kvwire.Message{Kind: kvwire.Vote, View: c.view, Session: m.Session, Seq: m.Seq, Revision: c.members.index}
	s := c.sessions.get(m.Session)
	switch {
	case m.View != c.view && !c.mutated(VoteInAnyView), c.lead != nil, s == nil, !c.members.votes(c.cfg.ID):
		c.counters.VotesNo++
		c.send(from, no)
		return
	case m.Seq < s.next && !c.mutated(LateRecordKept): // S7: applied, so committed; it does not come back into the pool
		yes := no
		yes.Flags = kvwire.FlagYes | kvwire.FlagApplied
		c.send(from, yes)
		return
	}
	r, ok := c.recordOf(m)
	if !ok || !r.foot.Write || c.pool.full(r) || !c.admissible(s, r) {
		c.counters.VotesNo++
		c.send(from, no)
		return
	}
	if old := c.pool.get(r.id); old == nil || old.message.View != m.View {
		c.keep(r)
	}
	c.counters.VotesYes++
	view := c.view
	if c.mutated(VoteInAnyView) {
		view = m.View
	}
	vote := func() {
		yes := no
		yes.View, yes.Flags = view, kvwire.FlagYes
		c.trace(Event{Kind: EventVoted, View: view, Session: m.Session, Seq: m.Seq})
		c.send(from, yes)
	}
	if c.mutated(VoteBeforeDisk) {
		vote()
		return
	}
	c.whenDurable(vote) // S2
}

// tickPool passes on to the leader what stays in the pool: the client may have
// died before the leader had the write, and while it is here, nothing else on its
// keys completes in one round trip.
func (c *Core) tickPool() {
	if c.pool.age++; c.pool.age < 2*c.cfg.ElectionTicks {
		return
	}
	c.pool.age = 0
	if c.lead != nil || c.leader == 0 {
		return
	}
	const most = 1024 // at a time
	for _, r := range c.pool.records[:min(len(c.pool.records), most)] {
		if r.stays {
			m := r.message
			m.Kind, m.Flags = kvwire.Strong, kvwire.FlagForward
			c.send(Addr(c.leader), m)
		}
		r.stays = true
	}
}

// admissible reports that r commutes with everything else in the pool (S1), and
// that the pool holds all that comes before it in its session.
func (c *Core) admissible(s *session, r *record) bool {
	if !c.continues(s, &r.message) {
		return false
	}
	old := c.pool.get(r.id)
	if old == nil {
		return !r.meets(&c.pool.touched) || c.mutated(VoteOnConflict)
	}
	c.pool.remove(old) // an operation does not conflict with itself
	meets := r.meets(&c.pool.touched)
	c.pool.add(old)
	return !meets || c.mutated(VoteOnConflict)
}

// continues reports that the session's strong write before m is in this pool or
// applied. Pools therefore hold prefixes of what a session has in flight, and
// what recovery finds in enough of them has no gaps.
func (c *Core) continues(s *session, m *kvwire.Message) bool {
	return c.mutated(PriorIgnored) || m.Prior < s.next || c.pool.holds(m.Session, m.Prior)
}

// keep puts a record into the pool and on disk.
func (c *Core) keep(r *record) {
	if old := c.pool.get(r.id); old != nil {
		c.pool.remove(old)
	}
	c.pool.add(r)
	c.record(RecordWitness, r.message.View, 0, r.message.Append(nil))
}

// recordOf is the record of a strong write: what it and its bundle touch.
func (c *Core) recordOf(m *kvwire.Message) (*record, bool) {
	r := &record{id: opID{m.Session, m.Seq}, message: *m}
	r.message.Kind, r.message.Flags = kvwire.Record, 0
	if err := c.machine.Footprint(m.Data, &r.foot); err != nil {
		return nil, false
	}
	for i := range m.Bundle {
		if err := c.machine.Footprint(m.Bundle[i].Command, &r.bundle); err != nil {
			return nil, false
		}
	}
	return r, true
}
