package consensus

import (
	"slices"

	pb "go.etcd.io/raft/v3/raftpb"

	"github.com/weirdb/weir/internal/kvd/wire"
)

// weakOps handles the weak operations of this replica's clients.
type weakOps struct {
	*Core
	intents intents
	reads   []heldRead    // wait for this replica to catch up
	waiters commitWaiters // requests that wait until writes are committed
}

// intents are the weak writes that this replica has acknowledged on its own disk and has not
// yet seen in the log. It forwards them to the leader, in order, until it does.
type intents struct {
	list []*intent
	byOp map[opID]*intent
	age  int // ticks since they were last forwarded

	bytes int // size of the messages
}

type intent struct {
	id      opID
	message wire.Message
	whole   bool // no earlier write of its session is missing here
}

// Beyond these limits a replica acknowledges no weak writes until the leader has accepted some.
// Intents are kept in memory, and are repeated at the start of each segment of the log.
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
		at := slices.Index(t.list, i) // near the front: intents are applied in about this order
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

// write accepts a weak write: the leader appends it to the log, a nearest replica makes it an
// intent.
func (w *weakOps) write(from Addr, m *wire.Message) {
	forwarded := m.Flags&wire.FlagForward != 0
	if !forwarded {
		w.state.foot.Reset()
		if err := w.state.machine.Footprint(m.Data, &w.state.foot); err != nil || !w.state.foot.Blind {
			w.refuse(from, m, wire.CodeInvalid, "only a write without an answer may be weak")
			return
		}
	}
	switch {
	case w.lead != nil:
		w.atLeader(from, m, (*leadership).write)
	case forwarded: // the replica that forwarded it does so again when it knows the leader
	case w.cfg.WeakWrites == Nearest && m.Flags&wire.FlagNearest != 0:
		w.intend(from, m)
	default:
		w.redirect(from, m)
	}
}

// intend acknowledges a weak write once it is on this replica's disk. It does so only for
// sessions that have certainly not expired, because an acknowledged write must not be refused
// later.
func (w *weakOps) intend(from Addr, m *wire.Message) {
	s := w.state.sessions.get(m.Session)
	half := min(w.state.idle, int64(w.cfg.SessionIdle)) / 2
	switch {
	case s == nil, w.state.alive-s.lastUsed > half, w.now.Mono-w.election.heardAt > half:
		w.redirect(from, m)
		return
	case m.Seq < s.next:
		w.done(from, m.Session, m.Seq)
		return
	}
	id := opID{m.Session, m.Seq}
	if w.mutated(IntentWithGap) {
		m.Bundle = nil
	} else if !w.complete(m) {
		w.redirect(from, m) // the leader keeps the order
		return
	}
	if i := w.intents.byOp[id]; i == nil || !i.whole {
		if i == nil && (len(w.intents.list) >= maxIntents || w.intents.bytes >= maxIntentBytes) {
			w.refuse(from, m, wire.CodeBusy, "too many weak writes wait for the leader")
			return
		}
		w.intents.remove(id)
		w.add(id, m)
		w.forward(w.intents.byOp[id])
	}
	if w.mutated(WeakBeforeDisk) {
		w.done(from, id.session, id.seq)
		return
	}
	w.out.whenDurable(func() { w.done(from, id.session, id.seq) })
}

// complete reports whether all writes of the session before m are applied, among the intents,
// or in m's bundle, where clients put their strong writes in flight. Then m can be executed
// whatever happens to the client. Writes of a session enter the log in order, so a missing
// write would block m forever.
func (w *weakOps) complete(m *wire.Message) bool {
	s := w.state.sessions.get(m.Session)
	if s == nil {
		return false
	}
	bundled := len(m.Bundle)
	for seq := m.Seq - 1; seq >= s.next; seq-- {
		if i := w.intents.byOp[opID{m.Session, seq}]; i != nil {
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

func (w *weakOps) add(id opID, m *wire.Message) {
	i := &intent{id: id, message: *m, whole: w.complete(m)}
	i.message.Kind, i.message.Flags = wire.Weak, wire.FlagForward
	w.intents.add(i)
	w.out.record(RecordIntent, 0, 0, i.message.Append(nil))
}

// done acknowledges a weak write.
func (w *weakOps) done(to Addr, session, seq uint64) {
	m := wire.Message{Kind: wire.WeakDone, View: w.witness.viewOf(w.state.applied), Session: session, Seq: seq, Index: w.state.applied}
	if s := w.state.sessions.get(session); s != nil {
		m.Stable = s.next - 1
	}
	w.trace(Event{Kind: EventWeakDone, Session: session, Seq: seq})
	w.out.send(to, m)
}

func (w *weakOps) forward(i *intent) {
	if w.lead != nil {
		m := i.message
		w.atLeader(0, &m, (*leadership).write)
		return
	}
	if w.engine.leader != 0 {
		w.out.send(Addr(w.engine.leader), i.message)
		if w.mutated(IntentForgotten) {
			w.intents.remove(i.id)
		}
	}
}

// forwardAll forwards all intents again, because there is a new leader or because forwarding
// had no effect.
func (w *weakOps) forwardAll() {
	w.intents.age = 0
	for _, i := range slices.Clone(w.intents.list) {
		w.forward(i)
	}
}

func (w *weakOps) tickIntents() {
	if len(w.intents.list) == 0 {
		w.intents.age = 0
		return
	}
	if w.intents.age++; w.intents.age >= 2*w.cfg.ElectionTicks {
		w.forwardAll()
	}
}

// forwardRefused drops an intent whose session has expired: its client has been silent for so
// long that it cannot come back.
func (w *weakOps) forwardRefused(m *wire.Message) {
	if m.Code != wire.CodeExpired {
		return
	}
	if w.intents.byOp[opID{m.Session, m.Seq}] != nil {
		w.intents.remove(opID{m.Session, m.Seq})
		w.counters.IntentsLost++
	}
}

// truncated makes intents of the weak writes in log entries that a new leader has replaced,
// together with the strong writes before them: this replica may have acknowledged the weak ones
// as leader.
func (w *weakOps) truncated(replaced []*pb.Entry) {
	if w.mutated(TruncatedForgotten) {
		return
	}
	var e entry
	strong := map[uint64][]wire.Write{} // by session: strong writes before its next weak write
	for _, old := range replaced {
		if len(old.GetData()) == 0 || old.GetType() != pb.EntryNormal || e.decode(old.GetData()) != nil {
			continue // this replica cannot have acknowledged an entry that it cannot read
		}
		for _, o := range e.ops {
			id := opID{o.session, o.seq}
			switch {
			case o.session == 0 || o.flags&opEnd != 0 || w.state.seen(id):
			case o.flags&opWeak == 0:
				strong[o.session] = append(strong[o.session], wire.Write{Seq: o.seq, Strong: true, Command: o.command})
			case w.intents.byOp[id] == nil:
				w.add(id, &wire.Message{Session: o.session, Seq: o.seq, Ack: o.ack, Data: o.command, Bundle: slices.Clone(strong[o.session])})
			}
		}
	}
}

// read answers from this replica's state once that includes what the session has seen.
func (w *weakOps) read(from Addr, m *wire.Message) {
	if w.caughtUpTo(m) && w.out.mayAnswer(from, m) {
		w.answer(from, m)
		return
	}
	if len(w.reads) >= maxWaiting {
		w.redirect(from, m)
		return
	}
	w.reads = append(w.reads, heldRead{from: from, m: m, at: w.now.Mono})
}

// caughtUpTo reports whether this replica has applied what the token of m names (S11). Indexes
// can be compared within a view. What completed in an older view, this replica has had since it
// opened its own, perhaps at another index.
func (w *weakOps) caughtUpTo(m *wire.Message) bool {
	switch {
	case w.mutated(TokenIgnored):
		return true
	case w.mutated(TokenWithoutView):
		return w.state.applied >= m.Index
	case m.View == w.witness.openView:
		return w.state.applied >= m.Index && w.placed(m.Index)
	case m.View < w.witness.openView:
		return w.state.applied >= max(w.witness.openIndex, m.Index) // the replica that issued the token may not know of this view and yet be ahead
	}
	return false
}

// placed reports whether the applied entry at index is of the newest view that this replica
// knows to be open, or of an older one. Later entries are those of a new leader, which may have
// put them where the old leader had an operation that completed by votes, and that the new
// leader will append again.
func (w *weakOps) placed(index uint64) bool {
	if index == 0 {
		return true
	}
	term, err := w.engine.log.Term(max(index, w.engine.log.first()-1))
	return err == nil && term <= w.witness.openView
}

// viewOf returns the view of a token with index: the newest view that was open by then, or 0 if
// this replica cannot tell. A token of a view includes all that completed in older views.
func (w *witness) viewOf(index uint64) uint64 {
	if index < w.openIndex {
		return 0
	}
	return w.openView
}

// answer evaluates a query on the state and the session's own writes that are not applied here.
// They are part of the request, so no other session can see them (S10).
func (w *weakOps) answer(to Addr, m *wire.Message) {
	s := w.state.sessions.get(m.Session)
	if s == nil && len(m.Bundle) > 0 && m.Session <= w.state.revision {
		w.refuse(to, m, wire.CodeExpired, "the session expired") // it is no longer known which of its writes are applied
		return
	}
	var own [][]byte
	for i := range m.Bundle {
		if b := &m.Bundle[i]; s == nil || b.Seq >= s.next {
			own = append(own, b.Command)
		}
	}
	if w.mutated(OverlayShared) {
		for _, i := range w.intents.list {
			own = append(own, i.message.Data)
		}
	}
	a := wire.Message{Kind: wire.ReadDone, View: w.witness.viewOf(w.state.applied), Session: m.Session, Request: m.Request, Index: w.state.applied}
	if s != nil {
		a.Stable = s.next - 1
	}
	a.Data = w.state.machine.Evaluate(w.state.readTime(), own, m.Data)
	w.out.answerBytes += len(a.Data)
	if len(a.Data) >= largeAnswer {
		w.out.large[querier{to, m.Session}] = true
	}
	w.out.send(to, a)
}

// patience is how long, in ticks, a weak read waits here before the client is redirected to the
// leader.
const patience = 2

// retryReads answers the weak reads that can be answered now.
func (w *weakOps) retryReads() {
	w.reads = slices.DeleteFunc(w.reads, func(r heldRead) bool {
		if !w.caughtUpTo(r.m) || !w.out.mayAnswer(r.from, r.m) {
			return false
		}
		w.answer(r.from, r.m)
		return true
	})
}

func (w *weakOps) tickReads() {
	w.reads = slices.DeleteFunc(w.reads, func(r heldRead) bool {
		late := w.now.Mono-r.at > patience*w.cfg.TickNanos && !w.caughtUpTo(r.m)
		if late && w.mutated(WaitEnds) {
			w.answer(r.from, r.m)
		} else if late {
			w.redirect(r.from, r.m)
		}
		return late
	})
}

// commitWaiters are requests that wait until the writes of a session are committed, by session.
type commitWaiters map[uint64][]heldRead

// awaitCommit answers once the writes of a session up to m.Seq are committed.
func (w *weakOps) awaitCommit(from Addr, m *wire.Message) {
	s := w.state.sessions.get(m.Session)
	if s == nil {
		w.unknown(from, m)
		return
	}
	waiting := w.waiters[s.id]
	if slices.ContainsFunc(waiting, func(r heldRead) bool { return r.from == from && r.m.Request == m.Request }) {
		return // a repeated request
	}
	if len(waiting) >= maxHeld {
		w.refuse(from, m, wire.CodeBusy, "too many requests wait for the session's writes")
		return
	}
	w.waiters[s.id] = append(waiting, heldRead{from: from, m: m})
	w.waiters.applied(w.Core, s)
}

func (w commitWaiters) applied(c *Core, s *session) {
	waiting, ok := w[s.id]
	if !ok {
		return
	}
	left := slices.DeleteFunc(waiting, func(r heldRead) bool {
		if r.m.Seq >= s.next {
			return false
		}
		c.out.send(r.from, wire.Message{Kind: wire.ReadDone, View: c.witness.viewOf(c.state.applied), Session: s.id, Request: r.m.Request, Index: c.state.applied, Stable: s.next - 1})
		return true
	})
	if len(left) == 0 {
		delete(w, s.id)
	} else {
		w[s.id] = left
	}
}

// expired answers the requests that wait for a session that has expired.
func (w commitWaiters) expired(c *Core, id uint64) {
	for _, r := range w[id] {
		c.refuse(r.from, r.m, wire.CodeExpired, "the session expired")
	}
	delete(w, id)
}

// all checks every session, in order of last use.
func (w commitWaiters) all(c *Core) {
	for s := c.state.sessions.first; s != nil; s = s.after {
		w.applied(c, s)
	}
}
