package consensus

import (
	"slices"

	"github.com/weirdb/weir/internal/kvd/kvwire"
)

// A view is the time of one leader, from when it is open until somebody else's
// is. A new leader opens it in these steps, whatever the switches say:
//
//	elected     its first, empty entry commits: all that it inherited is
//	            committed, and the configuration is the newest
//	collecting  it moves to its view, which stops it from voting in older
//	            ones, and asks the others to do the same and to send their
//	            pools. With those of a majority it appends every operation
//	            that enough of them hold: all that may have completed without
//	            being ordered are among them, and they commute (S5)
//	recovering  those entries commit
//	open        it tells everybody, and serves (S6)
//
// That recovery appends after all inherited entries is right: an inherited
// entry that conflicts with a completed operation came after it, in a log that
// holds both, or was committed before it, since otherwise the old leader would
// have said no (S3).
type viewChange struct {
	phase phase
	pools map[uint64][]*record // by replica, until they are a majority
	until uint64               // recovering: ordinal that must be applied
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
func (l *leadership) firstApplied() {
	c := l.c
	if c.view > c.term {
		l.supersede()
		return
	}
	l.view.phase = collecting
	l.view.pools = map[uint64][]*record{}
	l.changing = c.members.joint() // begun by an earlier leader
	c.moveTo(c.term, false)
	if c.mutated(OpenWithoutRecovery) {
		l.opens()
		return
	}
	c.whenDurable(func() {
		if c.lead == l && l.view.phase == collecting {
			l.gather(c.cfg.ID, slices.Clone(c.pool.records))
		}
	})
	l.stamp() // a replica that sends its pool has answered it: this one can be handed over to as soon as the view is open
	l.askPools()
}

func (l *leadership) askPools() {
	c := l.c
	for _, id := range c.members.voters() {
		if id != c.cfg.ID && l.view.pools[id] == nil {
			c.send(Addr(id), kvwire.Message{Kind: kvwire.PoolCollect, View: c.term})
		}
	}
}

// collect answers a new leader: from now on this witness votes in no older view.
func (c *Core) collect(from Addr, m *kvwire.Message) {
	if m.View < c.view || m.View < c.term || from == Addr(c.cfg.ID) {
		return
	}
	if m.View > c.view {
		c.moveTo(m.View, false)
	}
	c.whenDurable(func() {
		if c.view != m.View {
			return
		}
		answer := kvwire.Message{Kind: kvwire.Pool, View: m.View}
		for _, r := range c.pool.records {
			answer.Records = append(answer.Records, r.message)
		}
		c.send(from, answer)
		c.trace(Event{Kind: EventPooled, View: m.View})
		if c.mutated(PoolForgetsAtElected) {
			c.pool.drop(func(*record) bool { return true })
		}
	})
}

// pooled takes in a witness's pool.
func (l *leadership) pooled(from uint64, m *kvwire.Message) {
	c := l.c
	if l.view.phase != collecting || m.View != c.term || !c.members.votes(from) || from == c.cfg.ID {
		return
	}
	records := make([]*record, 0, len(m.Records))
	for i := range m.Records {
		r, ok := c.recordOf(&m.Records[i])
		if !ok {
			c.counters.Malformed++
			return
		}
		records = append(records, r)
	}
	l.gather(from, records)
}

// gather adds a pool; with those of exactly a majority it recovers. More would
// be wrong: then two operations that conflict could both be held often enough.
func (l *leadership) gather(from uint64, records []*record) {
	if l.view.pools[from] != nil {
		return
	}
	if records == nil {
		records = []*record{}
	}
	l.view.pools[from] = records
	n := len(l.c.members.voters())
	need, threshold := majority(n), recoverAt(n)
	if l.c.mutated(RecoverFromMinority) {
		need--
	}
	if l.c.mutated(RecoverTooLittle) {
		threshold++
	}
	if l.c.mutated(RecoverTooMuch) {
		threshold--
	}
	own := l.view.pools[l.c.cfg.ID] != nil || !l.c.members.votes(l.c.cfg.ID)
	if len(l.view.pools) < need || !own {
		if len(l.view.pools) == need { // this replica's own must be among them
			delete(l.view.pools, from)
		}
		return
	}
	l.recover(threshold)
}

// recover appends the operations that at least threshold pools hold, in the
// order of their sessions.
func (l *leadership) recover(threshold int) {
	c := l.c
	count := map[opID]int{}
	known := map[opID]kvwire.Write{} // all writes that the pools tell of
	var found []*record
	for _, id := range c.members.voters() { // a fixed order
		for _, r := range l.view.pools[id] {
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
	l.view.pools = nil
	l.view.phase = recovering
	before := l.ordinal
	for _, r := range found {
		s := c.sessions.get(r.id.session)
		if s == nil {
			continue
		}
		m := &r.message
		if c.mutated(RecoverInAnyOrder) {
			l.unpack(s, m)
		} else if !c.mutated(RecoverWithoutBundle) {
			l.fill(s, m, known)
		}
		if m.Seq == l.after(s) {
			c.counters.Recovered++
			c.trace(Event{Kind: EventRecovered, View: c.view, Session: s.id, Seq: m.Seq})
			l.admit(s, &leadOp{op: op{session: s.id, seq: m.Seq, ack: m.Ack, command: m.Data}}, nil)
		}
	}
	l.view.until = l.ordinal
	if l.ordinal == before {
		l.opens()
	}
}

// note adds to known what a record tells: its own write, and those that it
// brings along.
func note(known map[opID]kvwire.Write, r *record) {
	known[r.id] = kvwire.Write{Seq: r.id.seq, Strong: true, Command: r.message.Data}
	for _, w := range r.message.Bundle {
		id := opID{r.id.session, w.Seq}
		if _, twice := known[id]; !twice {
			known[id] = w
		}
	}
}

// fill admits the writes of a session that come before a write m that is
// recovered. Who voted for m has each of them in m's bundle or as a record, but
// not all in the same way: a write that waits for its commit moves into the
// bundle when m is sent again.
func (l *leadership) fill(s *session, m *kvwire.Message, known map[opID]kvwire.Write) {
	for seq := l.after(s); seq < m.Seq; seq++ {
		w, ok := known[opID{s.id, seq}]
		if !ok {
			return
		}
		l.admit(s, bundled(s, m.Ack, &w), nil)
	}
}

// opens begins to serve.
func (l *leadership) opens() {
	c := l.c
	l.view.phase = opened
	l.open = true
	c.viewOpened(c.term, c.cfg.ID, c.applied)
	c.toPeers(c.viewMessage())
	for _, d := range l.takeDelayed() {
		c.atLeader(d.from, d.m, d.do)
	}
}

func (l *leadership) takeDelayed() []delayedRequest {
	d := l.delayed
	l.delayed = nil
	return d
}

func (c *Core) viewMessage() kvwire.Message {
	return kvwire.Message{Kind: kvwire.NewView, Code: c.cfg.Encode(), View: c.openView, Leader: c.viewOwner, Index: c.openIndex}
}

// moveTo makes this witness vote in view and in no older one.
func (c *Core) moveTo(view uint64, open bool) {
	c.view = view
	if c.lead != nil && view > c.term {
		c.lead.supersede()
	}
	flag := uint64(0)
	if open {
		flag = 1
	}
	if c.mutated(ViewNotPersisted) && !open {
		return
	}
	c.record(RecordView, view, c.openIndex, appendUvarints(nil, view, flag, c.openView, c.viewOwner, c.openIndex))
}

// supersede closes a leadership whose replica has moved to the view of another
// leader, before its engine has heard of that one: what it told before the
// commit would be taken for that leader's word.
func (l *leadership) supersede() {
	l.open = false
	l.view.phase = superseded
}

// newView learns that a leader is open.
func (c *Core) newView(m *kvwire.Message) {
	if m.View < c.view || m.View == c.openView || m.View == 0 {
		return
	}
	c.viewOpened(m.View, m.Leader, m.Index)
}

// viewOpened moves to a view that is open. What older views left in the pool
// was recovered, or had not completed and is sent again by its client.
func (c *Core) viewOpened(view, owner, index uint64) {
	c.openView, c.viewOwner, c.openIndex = view, owner, index
	c.moveTo(view, true)
	c.pool.drop(func(r *record) bool { return r.message.View < view })
	c.trace(Event{Kind: EventOpened, View: view, Index: index})
	c.forwardIntents()
	c.send(Clients, c.viewMessage())
}
