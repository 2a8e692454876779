package consensus

import (
	"slices"

	"github.com/weirdb/weir/internal/kvd/wire"
)

// A view is the period of one leader, from when it is open until the view of another leader is.
// A new leader opens its view in these steps, under all protocols:
//
//	elected     its first, empty entry commits: all inherited entries are
//	            committed, and the configuration is the newest
//	collecting  it moves to its view, so that it votes in no older one, and
//	            asks the others to do the same and to send their pools. With
//	            the pools of a majority it appends every operation that
//	            enough of them have: those include all that may have completed
//	            without being ordered, and they commute (S5)
//	recovering  those entries commit
//	open        it announces the view and serves clients (S6)
//
// Recovery may append after all inherited entries: an inherited entry that conflicts with a
// completed operation either follows it, in a log that has both, or was committed before it,
// since otherwise the old leader would have said no (S3).
type viewChange struct {
	*leadership
	phase phase
	pools map[uint64][]*record // by replica, until they are a majority
	until uint64               // recovering: the ordinal that must be applied
}

type phase uint8

const (
	elected phase = iota
	collecting
	recovering
	opened
	superseded
)

// firstApplied is called when this leader's empty entry was applied.
func (v *viewChange) firstApplied() {
	c := v.c
	if c.witness.view > c.engine.term {
		v.supersede()
		return
	}
	v.phase = collecting
	v.pools = map[uint64][]*record{}
	v.changes.underWay = c.state.members.joint() // started by an earlier leader
	c.witness.moveTo(c.engine.term, false)
	if c.mutated(OpenWithoutRecovery) {
		v.openView()
		return
	}
	c.out.whenDurable(func() {
		if c.lead == v.leadership && v.phase == collecting {
			v.gather(c.cfg.ID, slices.Clone(c.witness.pool.records))
		}
	})
	v.lease.stamp() // a replica that sends its pool has answered this stamp: leadership can be handed to it as soon as the view is open
	v.askPools()
}

func (v *viewChange) askPools() {
	c := v.c
	for _, id := range c.state.members.voters() {
		if id != c.cfg.ID && v.pools[id] == nil {
			c.out.send(Addr(id), wire.Message{Kind: wire.PoolCollect, View: c.engine.term})
		}
	}
}

// collect answers a new leader. From now on this witness votes in no older view.
func (w *witness) collect(from Addr, m *wire.Message) {
	if m.View < w.view || m.View < w.engine.term || from == Addr(w.cfg.ID) {
		return
	}
	if m.View > w.view {
		w.moveTo(m.View, false)
	}
	w.out.whenDurable(func() {
		if w.view != m.View {
			return
		}
		answer := wire.Message{Kind: wire.Pool, View: m.View}
		for _, r := range w.pool.records {
			answer.Records = append(answer.Records, r.message)
		}
		w.out.send(from, answer)
		w.trace(Event{Kind: EventPooled, View: m.View})
		if w.mutated(PoolForgetsAtElected) {
			w.pool.drop(func(*record) bool { return true })
		}
	})
}

// pooled processes a witness's pool.
func (v *viewChange) pooled(from uint64, m *wire.Message) {
	c := v.c
	if v.phase != collecting || m.View != c.engine.term || !c.state.members.votes(from) || from == c.cfg.ID {
		return
	}
	records := make([]*record, 0, len(m.Records))
	for i := range m.Records {
		r, ok := c.witness.recordOf(&m.Records[i])
		if !ok {
			c.counters.Malformed++
			return
		}
		records = append(records, r)
	}
	v.gather(from, records)
}

// gather adds a pool, and recovers with the pools of exactly a majority. With more pools two
// conflicting operations could both be in enough of them.
func (v *viewChange) gather(from uint64, records []*record) {
	if v.pools[from] != nil {
		return
	}
	if records == nil {
		records = []*record{}
	}
	v.pools[from] = records
	n := len(v.c.state.members.voters())
	need, threshold := majority(n), recoverAt(n)
	if v.c.mutated(RecoverFromMinority) {
		need--
	}
	if v.c.mutated(RecoverTooLittle) {
		threshold++
	}
	if v.c.mutated(RecoverTooMuch) {
		threshold--
	}
	own := v.pools[v.c.cfg.ID] != nil || !v.c.state.members.votes(v.c.cfg.ID)
	if len(v.pools) < need || !own {
		if len(v.pools) == need { // this replica's own pool must be among them
			delete(v.pools, from)
		}
		return
	}
	v.recover(threshold)
}

// recover appends the operations that at least threshold pools have, in the order of their
// sessions.
func (v *viewChange) recover(threshold int) {
	c := v.c
	count := map[opID]int{}
	known := map[opID]wire.Write{} // all writes in the pools
	var found []*record
	for _, id := range c.state.members.voters() { // in a fixed order
		for _, r := range v.pools[id] {
			note(known, r)
			count[r.id]++
			if count[r.id] == threshold {
				found = append(found, r)
			}
		}
	}
	slices.SortFunc(found, func(a, b *record) int {
		if a.id.session != b.id.session {
			return compare(a.id.session, b.id.session)
		}
		return compare(a.id.seq, b.id.seq)
	})
	if c.mutated(RecoverInAnyOrder) {
		slices.Reverse(found)
	}
	v.pools = nil
	v.phase = recovering
	before := v.ordinal
	for _, r := range found {
		s := c.state.sessions.get(r.id.session)
		if s == nil {
			continue
		}
		m := &r.message
		if c.mutated(RecoverInAnyOrder) {
			v.unpack(s, m)
		} else if !c.mutated(RecoverWithoutBundle) {
			v.fill(s, m, known)
		}
		if m.Seq == v.nextSeq(s) {
			c.counters.Recovered++
			c.trace(Event{Kind: EventRecovered, View: c.witness.view, Session: s.id, Seq: m.Seq})
			v.admit(s, &leadOp{op: op{session: s.id, seq: m.Seq, ack: m.Ack, command: m.Data}}, nil)
		}
	}
	v.until = v.ordinal
	if v.ordinal == before {
		v.openView()
	}
}

// note adds to known the write of a record and those of its bundle.
func note(known map[opID]wire.Write, r *record) {
	known[r.id] = wire.Write{Seq: r.id.seq, Strong: true, Command: r.message.Data}
	for _, w := range r.message.Bundle {
		id := opID{r.id.session, w.Seq}
		if _, twice := known[id]; !twice {
			known[id] = w
		}
	}
}

// fill admits the writes of a session before a recovered write m. Each witness that voted for m
// has all of them, in m's bundle or as records, but not all witnesses in the same way: a write
// that waits for its commit moves to the bundle when m is sent again.
func (v *viewChange) fill(s *session, m *wire.Message, known map[opID]wire.Write) {
	for seq := v.nextSeq(s); seq < m.Seq; seq++ {
		w, ok := known[opID{s.id, seq}]
		if !ok {
			return
		}
		v.admit(s, bundled(s, m.Ack, &w), nil)
	}
}

// openView starts to serve clients.
func (v *viewChange) openView() {
	c := v.c
	v.phase = opened
	v.open = true
	c.witness.opened(c.engine.term, c.cfg.ID, c.state.applied)
	c.out.toPeers(c.witness.viewMessage())
	for _, d := range v.takeDelayed() {
		c.atLeader(d.from, d.m, d.do)
	}
}

func (v *viewChange) takeDelayed() []delayedRequest {
	d := v.delayed
	v.delayed = nil
	return d
}

func (w *witness) viewMessage() wire.Message {
	return wire.Message{Kind: wire.NewView, Code: w.cfg.Encode(), View: w.openView, Leader: w.viewOwner, Index: w.openIndex}
}

// moveTo makes this witness vote in view and in no older one.
func (w *witness) moveTo(view uint64, open bool) {
	w.view = view
	if w.lead != nil && view > w.engine.term {
		w.lead.view.supersede()
	}
	flag := uint64(0)
	if open {
		flag = 1
	}
	if w.mutated(ViewNotPersisted) && !open {
		return
	}
	w.out.record(RecordView, view, w.openIndex, appendUvarints(nil, view, flag, w.openView, w.viewOwner, w.openIndex))
}

// supersede ends the leadership of a replica that has moved to another leader's view, before
// its engine knows of that leader: otherwise results that it sends before the commit would
// count as those of the other leader.
func (v *viewChange) supersede() {
	v.open = false
	v.phase = superseded
}

// newView notes that a leader's view is open.
func (w *witness) newView(m *wire.Message) {
	if m.View < w.view || m.View == w.openView || m.View == 0 {
		return
	}
	w.opened(m.View, m.Leader, m.Index)
}

// opened moves to an open view. Operations of older views in the pool were recovered, or have
// not completed and their clients send them again.
func (w *witness) opened(view, owner, index uint64) {
	w.openView, w.viewOwner, w.openIndex = view, owner, index
	w.moveTo(view, true)
	w.pool.drop(func(r *record) bool { return r.message.View < view })
	w.trace(Event{Kind: EventOpened, View: view, Index: index})
	w.weak.forwardAll()
	w.out.send(Clients, w.viewMessage())
}
