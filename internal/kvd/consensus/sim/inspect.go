package sim

// inspection is the state of a core at an inspection, to be compared with the next one.
type inspection struct {
	term, view, commit, applied, revision uint64
}

// inspect checks a core's state after each turn.
func (r *replica) inspect() {
	s := r.core.Brief()
	w := r.w
	now := inspection{term: s.Term, view: s.View, commit: s.Commit, applied: s.Applied, revision: r.core.Revision()}
	old := r.seen
	switch {
	case now.term < old.term, now.view < old.view, now.commit < old.commit, now.applied < old.applied, now.revision < old.revision:
		w.violate("backwards", "replica %d goes from %+v to %+v", r.id, old, now)
	case now.applied > now.commit || now.commit > s.Last:
		w.violate("backwards", "replica %d applied %d, committed %d, has %d", r.id, now.applied, now.commit, s.Last)
	}
	r.seen = now
	if s.Leader == r.id {
		w.unique("leaders", w.leaders, s.Term, r.id)
	}
	if s.Leader == r.id && s.Open {
		w.unique("views", w.openers, s.Term, r.id)
	}
}

// unique checks that a term or view has one holder.
func (w *World) unique(check string, holders map[uint64]uint64, number, id uint64) {
	if holder, ok := holders[number]; ok && holder != id {
		w.violate(check, "term %d belongs to replica %d and to replica %d", number, holder, id)
		return
	}
	holders[number] = id
}
