package consensus

import (
	"slices"

	pb "go.etcd.io/raft/v3/raftpb"

	"github.com/weirdb/weir/internal/kvd/kvwire"
)

// intents are the weak writes that this replica has acknowledged on its own
// disk and that it has not yet seen in the log. It passes them on to the leader
// in their order until it has.
type intents struct {
	list []*intent
	byOp map[opID]*intent
	age  int // ticks since they were last passed on

	bytes int // of the messages
}

type intent struct {
	id      opID
	message kvwire.Message
	whole   bool // nothing that comes before it in its session is missing here
}

// Beyond these, a replica acknowledges no more weak writes until the leader has
// some: they are in memory, and all of them begin each segment of the log.
const (
	maxIntents     = 64 << 10
	maxIntentBytes = 64 << 20
)

func newIntents() intents { return intents{byOp: map[opID]*intent{}} }

func (t *intents) add(i *intent) {
	t.list = append(t.list, i)
	t.byOp[i.id] = i
	t.bytes += i.message.Size()
}

func (t *intents) remove(id opID) {
	if i := t.byOp[id]; i != nil {
		delete(t.byOp, id)
		t.bytes -= i.message.Size()
		at := slices.Index(t.list, i) // near the front: they are applied in about this order
		t.list = slices.Delete(t.list, at, at+1)
	}
}

func (t *intents) drop(gone func(*intent) bool) (n int) {
	t.list = slices.DeleteFunc(t.list, func(i *intent) bool {
		if gone(i) {
			delete(t.byOp, i.id)
			t.bytes -= i.message.Size()
			n++
			return true
		}
		return false
	})
	return n
}

// weak takes in a weak write: at the leader into the log, at the nearest
// replica as an intent.
func (c *Core) weak(from Addr, m *kvwire.Message) {
	forwarded := m.Flags&kvwire.FlagForward != 0
	if !forwarded {
		c.foot.Reset()
		if err := c.machine.Footprint(m.Data, &c.foot); err != nil || !c.foot.Blind {
			c.refuse(from, m, kvwire.CodeInvalid, "only a write without an answer may be weak")
			return
		}
	}
	switch {
	case c.lead != nil:
		c.atLeader(from, m, (*leadership).weak)
	case forwarded: // it comes again when this replica's sender knows the leader
	case c.cfg.WeakWrites == Nearest && m.Flags&kvwire.FlagNearest != 0:
		c.intend(from, m)
	default:
		c.redirect(from, m)
	}
}

// intend acknowledges a weak write when it is on this replica's disk. It does
// so only for sessions that surely have not expired, because nothing that was
// acknowledged may be refused later.
func (c *Core) intend(from Addr, m *kvwire.Message) {
	s := c.sessions.get(m.Session)
	half := min(c.idle, int64(c.cfg.SessionIdle)) / 2
	switch {
	case s == nil, c.alive-s.lastUsed > half, c.now.Mono-c.standing.heardAt > half:
		c.redirect(from, m)
		return
	case m.Seq < s.next:
		c.weakDone(from, m.Session, m.Seq)
		return
	}
	id := opID{m.Session, m.Seq}
	if c.mutated(IntentWithGap) {
		m.Bundle = nil
	} else if !c.whole(m) {
		c.redirect(from, m) // the leader keeps the order
		return
	}
	if i := c.intents.byOp[id]; i == nil || !i.whole {
		if i == nil && (len(c.intents.list) >= maxIntents || c.intents.bytes >= maxIntentBytes) {
			c.refuse(from, m, kvwire.CodeBusy, "too many weak writes wait for the leader")
			return
		}
		c.intents.remove(id)
		c.addIntent(id, m)
		c.forward(c.intents.byOp[id])
	}
	if c.mutated(WeakBeforeDisk) {
		c.weakDone(from, id.session, id.seq)
		return
	}
	c.whenDurable(func() { c.weakDone(from, id.session, id.seq) })
}

// whole reports that all writes of the session before m are applied, among the
// intents, or in m's bundle, where the client puts the strong ones that are under
// way. Then m can be executed whatever becomes of the client: a session's writes
// enter the log in their order, so one that is nowhere would hold m back for ever.
func (c *Core) whole(m *kvwire.Message) bool {
	s := c.sessions.get(m.Session)
	if s == nil {
		return false
	}
	bundled := len(m.Bundle)
	for seq := m.Seq - 1; seq >= s.next; seq-- {
		if i := c.intents.byOp[opID{m.Session, seq}]; i != nil {
			if i.whole {
				return true
			}
			continue
		}
		for bundled > 0 && m.Bundle[bundled-1].Seq > seq {
			bundled--
		}
		if bundled == 0 || m.Bundle[bundled-1].Seq != seq {
			return false
		}
	}
	return true
}

func (c *Core) addIntent(id opID, m *kvwire.Message) {
	i := &intent{id: id, message: *m, whole: c.whole(m)}
	i.message.Kind, i.message.Flags = kvwire.Weak, kvwire.FlagForward
	c.intents.add(i)
	c.record(RecordIntent, 0, 0, i.message.Append(nil))
}

// weakDone acknowledges a weak write.
func (c *Core) weakDone(to Addr, session, seq uint64) {
	m := kvwire.Message{Kind: kvwire.WeakDone, View: c.viewOf(c.applied), Session: session, Seq: seq, Index: c.applied}
	if s := c.sessions.get(session); s != nil {
		m.Stable = s.next - 1
	}
	c.trace(Event{Kind: EventWeakDone, Session: session, Seq: seq})
	c.send(to, m)
}

func (c *Core) forward(i *intent) {
	if c.lead != nil {
		m := i.message
		c.atLeader(0, &m, (*leadership).weak)
		return
	}
	if c.leader != 0 {
		c.send(Addr(c.leader), i.message)
		if c.mutated(IntentForgotten) {
			c.intents.remove(i.id)
		}
	}
}

// forwardIntents passes all intents on again, because there is a new leader or
// because the last time did not help.
func (c *Core) forwardIntents() {
	c.intents.age = 0
	for _, i := range slices.Clone(c.intents.list) {
		c.forward(i)
	}
}

func (c *Core) tickIntents() {
	if len(c.intents.list) == 0 {
		c.intents.age = 0
		return
	}
	if c.intents.age++; c.intents.age >= 2*c.cfg.ElectionTicks {
		c.forwardIntents()
	}
}

// forwardRefused hears that a session of an intent is gone: its client has been
// silent for so long that it cannot come back.
func (c *Core) forwardRefused(m *kvwire.Message) {
	if m.Code != kvwire.CodeExpired {
		return
	}
	if c.intents.byOp[opID{m.Session, m.Seq}] != nil {
		c.intents.remove(opID{m.Session, m.Seq})
		c.counters.IntentsLost++
	}
}

// truncated keeps the weak writes of log entries that a new leader replaced, and
// the strong ones before them: this replica may have acknowledged the weak ones
// when it led.
func (c *Core) truncated(replaced []*pb.Entry) {
	if c.mutated(TruncatedForgotten) {
		return
	}
	var e entry
	strong := map[uint64][]kvwire.Write{} // per session: what comes before its next weak write
	for _, old := range replaced {
		if len(old.GetData()) == 0 || old.GetType() != pb.EntryNormal || e.decode(old.GetData()) != nil {
			continue // an entry that cannot be read is none that this replica acknowledged
		}
		for _, o := range e.ops {
			id := opID{o.session, o.seq}
			switch {
			case o.session == 0 || o.flags&opEnd != 0 || c.seen(id):
			case o.flags&opWeak == 0:
				strong[o.session] = append(strong[o.session], kvwire.Write{Seq: o.seq, Strong: true, Command: o.command})
			case c.intents.byOp[id] == nil:
				c.addIntent(id, &kvwire.Message{Session: o.session, Seq: o.seq, Ack: o.ack, Data: o.command, Bundle: slices.Clone(strong[o.session])})
			}
		}
	}
}

// weakRead answers from this replica's state as soon as that is not older than
// what the session has seen.
func (c *Core) weakRead(from Addr, m *kvwire.Message) {
	if c.caughtUpTo(m) && c.mayAnswer(from, m) {
		c.answer(from, m)
		return
	}
	if len(c.reads) >= maxWaiting {
		c.redirect(from, m)
		return
	}
	c.reads = append(c.reads, heldRead{from: from, m: m, at: c.now.Mono})
}

// caughtUpTo reports that this replica has applied what the token of m names
// (S11). Positions compare within a view; what an older view completed, this
// one holds since it was opened, perhaps at another position.
func (c *Core) caughtUpTo(m *kvwire.Message) bool {
	switch {
	case c.mutated(TokenIgnored):
		return true
	case c.mutated(TokenWithoutView):
		return c.applied >= m.Index
	case m.View == c.openView:
		return c.applied >= m.Index && c.placed(m.Index)
	case m.View < c.openView:
		return c.applied >= max(c.openIndex, m.Index) // the token's replica may not have heard of this view and yet be ahead
	}
	return false
}

// placed reports that the applied entry at index is of the newest view that this
// replica knows to be open, or of an older one. What comes after those is a new
// leader's: where it has an entry, the old one may have had an operation that
// completed on votes, and that this leader is about to append again.
func (c *Core) placed(index uint64) bool {
	if index == 0 {
		return true
	}
	term, err := c.log.Term(max(index, c.log.first()-1))
	return err == nil && term <= c.openView
}

// viewOf is the view of a token with index: the newest that was open by then, or
// 0 if this replica cannot tell. A token of a view covers all that completed in
// older ones.
func (c *Core) viewOf(index uint64) uint64 {
	if index < c.openIndex {
		return 0
	}
	return c.openView
}

// answer evaluates the query over the session's own writes that are not applied
// here: they come with the query, so nobody else can see them (S10).
func (c *Core) answer(to Addr, m *kvwire.Message) {
	s := c.sessions.get(m.Session)
	if s == nil && len(m.Bundle) > 0 && m.Session <= c.revision {
		c.refuse(to, m, kvwire.CodeExpired, "the session expired") // which of its writes are applied is no longer known
		return
	}
	var own [][]byte
	for i := range m.Bundle {
		if w := &m.Bundle[i]; s == nil || w.Seq >= s.next {
			own = append(own, w.Command)
		}
	}
	if c.mutated(OverlayShared) {
		for _, i := range c.intents.list {
			own = append(own, i.message.Data)
		}
	}
	a := kvwire.Message{Kind: kvwire.ReadDone, View: c.viewOf(c.applied), Session: m.Session, Request: m.Request, Index: c.applied}
	if s != nil {
		a.Stable = s.next - 1
	}
	a.Data = c.machine.Evaluate(c.readTime(), own, m.Data)
	c.spoken += len(a.Data)
	if len(a.Data) >= largeAnswer {
		c.large[asker{to, m.Session}] = true
	}
	c.send(to, a)
}

// asker is who has queries: a session, or a client that has none.
type asker struct {
	from    Addr
	session uint64
}

// mayAnswer reports whether there is room for one more answer in this turn.
func (c *Core) mayAnswer(from Addr, m *kvwire.Message) bool {
	if c.spoken < mostSpoken {
		return true
	}
	return c.spoken < 4*mostSpoken && !c.large[asker{from, m.Session}]
}

// patience is how long, in ticks, a weak read waits here before the client is
// sent to the leader.
const patience = 2

// retryReads answers the weak reads that can be answered now.
func (c *Core) retryReads() {
	c.reads = slices.DeleteFunc(c.reads, func(r heldRead) bool {
		if !c.caughtUpTo(r.m) || !c.mayAnswer(r.from, r.m) {
			return false
		}
		c.answer(r.from, r.m)
		return true
	})
}

func (c *Core) tickReads() {
	c.reads = slices.DeleteFunc(c.reads, func(r heldRead) bool {
		late := c.now.Mono-r.at > patience*c.cfg.TickNanos && !c.caughtUpTo(r.m)
		if late && c.mutated(WaitEnds) {
			c.answer(r.from, r.m)
		} else if late {
			c.redirect(r.from, r.m)
		}
		return late
	})
}

// settled is who waits until a session's writes are committed.
type settled map[uint64][]heldRead

// settle answers when the writes of a session up to m.Seq are committed.
func (c *Core) settle(from Addr, m *kvwire.Message) {
	s := c.sessions.get(m.Session)
	if s == nil {
		c.unknown(from, m)
		return
	}
	waiting := c.settled[s.id]
	if slices.ContainsFunc(waiting, func(r heldRead) bool { return r.from == from && r.m.Request == m.Request }) {
		return // it was asked again
	}
	if len(waiting) >= maxHeld {
		c.refuse(from, m, kvwire.CodeBusy, "too many requests wait for the session's writes")
		return
	}
	c.settled[s.id] = append(waiting, heldRead{from: from, m: m})
	c.settled.applied(c, s)
}

func (w settled) applied(c *Core, s *session) {
	waiting, ok := w[s.id]
	if !ok {
		return
	}
	left := slices.DeleteFunc(waiting, func(r heldRead) bool {
		if r.m.Seq >= s.next {
			return false
		}
		c.send(r.from, kvwire.Message{Kind: kvwire.ReadDone, View: c.viewOf(c.applied), Session: s.id, Request: r.m.Request, Index: c.applied, Stable: s.next - 1})
		return true
	})
	if len(left) == 0 {
		delete(w, s.id)
	} else {
		w[s.id] = left
	}
}

// expired answers those who wait for a session that is gone.
func (w settled) expired(c *Core, id uint64) {
	for _, r := range w[id] {
		c.refuse(r.from, r.m, kvwire.CodeExpired, "the session expired")
	}
	delete(w, id)
}

// all looks at every session, in the order of their last use.
func (w settled) all(c *Core) {
	for s := c.sessions.first; s != nil; s = s.after {
		w.applied(c, s)
	}
}
