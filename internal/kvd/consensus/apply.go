package consensus

import (
	"errors"
	"fmt"
	"time"

	pb "go.etcd.io/raft/v3/raftpb"
	"google.golang.org/protobuf/proto"
)

// longestGap is how much a single entry may age the sessions. A cluster that
// was down for a day must not find all its sessions expired when the first
// client comes back to ask what became of its last write.
const longestGap = int64(time.Minute)

// apply carries out a committed entry, in order, the same on every replica.
func (c *Core) apply(e *pb.Entry) {
	if e.GetIndex() <= c.applied {
		return
	}
	c.applied = e.GetIndex()
	c.sinceSnapshot += int64(len(e.GetData()))
	switch e.GetType() {
	case pb.EntryConfChange, pb.EntryConfChangeV2:
		c.applyChange(e)
	case pb.EntryNormal:
		if len(e.GetData()) == 0 {
			c.appliedEmpty(e.GetTerm())
			break
		}
		if err := c.decoded.decode(e.GetData()); err != nil {
			c.fatal(fmt.Errorf("log entry %d: %w", e.GetIndex(), err))
			return
		}
		if c.decoded.format > c.formatKnown() {
			c.fatal(c.tooNew(fmt.Sprintf("log entry %d", e.GetIndex()), c.decoded.format))
			return
		}
		c.formatIs(c.decoded.format)
		c.applyRound(e)
	}
	c.digested()
	c.trace(Event{Kind: EventApplied, Index: c.applied})
	if l := c.lead; l != nil && l.view.phase == recovering && l.done >= l.view.until {
		l.opens()
	}
}

// appliedEmpty handles an entry without operations: the first of a leader's
// term, or what the engine put in the place of a change it did not take.
func (c *Core) appliedEmpty(term uint64) {
	if c.lead == nil || term != c.term {
		return
	}
	if c.lead.view.phase == elected {
		c.lead.firstApplied()
	} else if c.lead.changing {
		c.lead.memberChanged(true)
	}
}

func (c *Core) applyRound(e *pb.Entry) {
	d := &c.decoded
	if d.time > c.logTime {
		c.alive += min(d.time-c.logTime, longestGap, d.idle/4)
		c.logTime = d.time
		c.timeComes(d.time)
	}
	if c.mutated(SessionsByLocalClock) {
		c.alive = c.now.Wall
	}
	now := c.clockOfKeys()
	if due := c.machine.Due(); due != 0 && due <= now {
		c.revision++ // so that a watch which has seen the last write can ask for what came after it
	}
	c.machine.Advance(c.revision, now)
	l := c.lead
	own := l != nil && e.GetTerm() == c.term && len(l.rounds) > 0 && l.rounds[0].number == d.round
	for i := range d.ops {
		revision, result, stable, executed := c.execute(&d.ops[i], e.GetIndex())
		if own {
			l.applied(l.rounds[0].ops[i], e.GetIndex(), revision, result, stable, executed)
		}
	}
	c.idle = d.idle
	c.sessions.expire(c.alive-d.idle, func(id uint64) {
		c.counters.Expired++
		c.forgotten(id)
	})
	if own {
		l.committed(l.rounds[0])
		l.rounds = l.rounds[1:]
	}
}

// forgotten follows a session that is no longer in the table.
func (c *Core) forgotten(id uint64) {
	c.settled.expired(c, id)
	if c.lead != nil {
		delete(c.lead.held, id)
	}
	c.pool.drop(func(r *record) bool { return r.id.session == id })
}

// execute carries out one operation exactly once.
func (c *Core) execute(o *op, index uint64) (revision uint64, result []byte, stable uint64, executed bool) {
	if o.session == 0 {
		first := c.revision + 1
		c.sessions.grant(first, o.seq, c.alive)
		c.revision += o.seq
		return first, nil, 0, true
	}
	s := c.sessions.get(o.session)
	if s == nil || o.seq < s.next && !c.mutated(NoDedup) {
		return 0, nil, 0, false
	}
	if o.seq > s.next && !c.mutated(GapsIgnored) {
		c.fatal(fmt.Errorf("log entry %d holds write %d of session %d before write %d", index, o.seq, o.session, s.next))
		return 0, nil, 0, false
	}
	if o.flags&opEnd != 0 {
		c.sessions.remove(s)
		c.counters.Ended++
		c.forgotten(s.id)
		return 0, nil, o.seq, true
	}
	c.revision++
	result = c.machine.Apply(c.revision, c.logTime, o.command)
	s.next = max(s.next, o.seq+1)
	if o.flags&opWeak == 0 {
		s.keep(answer{seq: o.seq, index: index, revision: c.revision, result: result})
	}
	c.sessions.use(s, o.ack, c.alive)
	id := opID{o.session, o.seq}
	if r := c.pool.get(id); r != nil {
		c.pool.remove(r) // S7
	}
	c.intents.remove(id)
	c.settled.applied(c, s)
	return c.revision, result, s.next - 1, true
}

// applyChange puts a change of the members into force.
func (c *Core) applyChange(e *pb.Entry) {
	cc := &pb.ConfChangeV2{}
	if e.GetType() == pb.EntryConfChange {
		c.fatal(fmt.Errorf("log entry %d: a change of members in a form that weir never writes", e.GetIndex()))
		return
	}
	if err := proto.Unmarshal(e.GetData(), cc); err != nil {
		c.fatal(fmt.Errorf("log entry %d: change of members: %w", e.GetIndex(), err))
		return
	}
	conf := c.node.ApplyConfChange(cc)
	if err := c.members.applied(e.GetIndex(), conf, cc.GetContext()); err != nil {
		c.fatal(fmt.Errorf("log entry %d: %w", e.GetIndex(), err))
		return
	}
	c.forgetLeft()
	// A commit index alone is not synced. That of a change is: when the members
	// that it replaces are gone, nobody else may know that it is in force.
	index := e.GetIndex()
	c.whenDurable(func() {
		c.members.known = max(c.members.known, index)
		if c.lead != nil {
			c.lead.answerChange()
		}
	})
	c.log.since = e.GetIndex()
	if c.lead != nil {
		c.lead.onlyMembers()
		c.lead.memberChanged(false)
	}
	c.send(Clients, c.viewMessage())
}

// installed replaces this replica's whole state by a leader's snapshot.
func (c *Core) installed(s *pb.Snapshot) {
	in := c.incoming
	if in == nil {
		c.fatal(errors.New("the engine wants a snapshot that did not come along"))
		return
	}
	base := c.log.entries[0].GetIndex()
	if c.applied >= base && c.applied < c.log.lastIndex() {
		c.truncated(c.log.entries[c.applied-base+1:])
	}
	if err := c.adopt(in.head, in.state); err != nil {
		c.fatal(fmt.Errorf("install the snapshot of entry %d: %w", in.index, err))
		return
	}
	term := s.GetMetadata().GetTerm()
	c.log.reset(in.index, term)
	c.log.saved = snapshotMark{in.index, term, c.members.conf}
	c.sinceSnapshot = 0
	c.record(RecordReset, term, in.index, nil)
	c.pool.drop(func(r *record) bool { return c.over(r.id) })
	c.intents.drop(func(i *intent) bool { return c.over(i.id) })
	c.settled.all(c)
	c.counters.Installed++
}

// seen reports that a write was executed.
func (c *Core) seen(id opID) bool {
	s := c.sessions.get(id.session)
	return s != nil && id.seq < s.next
}

// over reports that a write was executed, or never will be, because its session was
// granted before and is not known any more.
func (c *Core) over(id opID) bool {
	return c.seen(id) || c.sessions.get(id.session) == nil && id.session <= c.revision
}
