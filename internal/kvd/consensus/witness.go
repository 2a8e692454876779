package consensus

import "github.com/weirdb/weir/internal/kvd/wire"

// witness votes on operations before they are ordered, in one view at a time.
type witness struct {
	*Core
	view      uint64 // this witness votes in no older view (S5). On disk before it counts
	openView  uint64 // the newest view that this replica knows to be open
	openIndex uint64 // the index that its leader had applied then
	viewOwner uint64 // that leader
	pool      *pool
}

// vote votes on an operation that its client has also sent to the leader.
func (w *witness) vote(from Addr, m *wire.Message) {
	no := wire.Message{Kind: wire.Vote, View: w.view, Session: m.Session, Seq: m.Seq, Revision: w.state.members.index}
	s := w.state.sessions.get(m.Session)
	switch {
	case m.View != w.view && !w.mutated(VoteInAnyView), w.lead != nil, s == nil, !w.state.members.votes(w.cfg.ID):
		w.counters.VotesNo++
		w.out.send(from, no)
		return
	case m.Seq < s.next && !w.mutated(LateRecordKept): // S7: applied, so committed; it must not return to the pool
		yes := no
		yes.Flags = wire.FlagYes | wire.FlagApplied
		w.out.send(from, yes)
		return
	}
	r, ok := w.recordOf(m)
	if !ok || !r.foot.Write || w.pool.full(r) || !w.admissible(s, r) {
		w.counters.VotesNo++
		w.out.send(from, no)
		return
	}
	if old := w.pool.get(r.id); old == nil || old.message.View != m.View {
		w.keep(r)
	}
	w.counters.VotesYes++
	view := w.view
	if w.mutated(VoteInAnyView) {
		view = m.View
	}
	vote := func() {
		yes := no
		yes.View, yes.Flags = view, wire.FlagYes
		w.trace(Event{Kind: EventVoted, View: view, Session: m.Session, Seq: m.Seq})
		w.out.send(from, yes)
	}
	if w.mutated(VoteBeforeDisk) {
		vote()
		return
	}
	w.out.whenDurable(vote) // S2
}

// tick forwards operations to the leader that stay in the pool: their client may have died
// before the leader had them, and while they are here, nothing else on their keys completes in
// one round trip.
func (w *witness) tick() {
	if w.pool.age++; w.pool.age < 2*w.cfg.ElectionTicks {
		return
	}
	w.pool.age = 0
	if w.lead != nil || w.engine.leader == 0 {
		return
	}
	const most = 1024 // at a time
	for _, r := range w.pool.records[:min(len(w.pool.records), most)] {
		if r.stays {
			m := r.message
			m.Kind, m.Flags = wire.Strong, wire.FlagForward
			w.out.send(Addr(w.engine.leader), m)
		}
		r.stays = true
	}
}

// admissible reports whether r commutes with everything else in the pool (S1), and whether the
// pool has all earlier writes of its session.
func (w *witness) admissible(s *session, r *record) bool {
	if !w.hasPrior(s, &r.message) {
		return false
	}
	old := w.pool.get(r.id)
	if old == nil {
		return !r.meets(&w.pool.touched) || w.mutated(VoteOnConflict)
	}
	w.pool.remove(old) // an operation does not conflict with itself
	meets := r.meets(&w.pool.touched)
	w.pool.add(old)
	return !meets || w.mutated(VoteOnConflict)
}

// hasPrior reports whether the session's strong write before m is in this pool or applied. So
// a pool has a prefix of the writes that a session has in flight, and there are no gaps in what
// recovery finds in enough pools.
func (w *witness) hasPrior(s *session, m *wire.Message) bool {
	return w.mutated(PriorIgnored) || m.Prior < s.next || w.pool.holds(m.Session, m.Prior)
}

// keep adds a record to the pool and to the disk.
func (w *witness) keep(r *record) {
	if old := w.pool.get(r.id); old != nil {
		w.pool.remove(old)
	}
	w.pool.add(r)
	w.out.record(RecordWitness, r.message.View, 0, r.message.Append(nil))
}

// recordOf returns the record of a strong write, with the footprints of the write and its
// bundle.
func (w *witness) recordOf(m *wire.Message) (*record, bool) {
	r := &record{id: opID{m.Session, m.Seq}, message: *m}
	r.message.Kind, r.message.Flags = wire.Record, 0
	if err := w.state.machine.Footprint(m.Data, &r.foot); err != nil {
		return nil, false
	}
	for i := range m.Bundle {
		if err := w.state.machine.Footprint(m.Bundle[i].Command, &r.bundle); err != nil {
			return nil, false
		}
	}
	return r, true
}
