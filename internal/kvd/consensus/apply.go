package consensus

import (
	"errors"
	"fmt"
	"time"

	pb "go.etcd.io/raft/v3/raftpb"
	"google.golang.org/protobuf/proto"

	"github.com/weirdb/weir/internal/kvd/wire"
)

// state is the replicated state beside that of the machine. It changes only when an entry is
// applied, except for the clock of keys, which advances with time.
type state struct {
	*Core
	machine  Machine
	applied  uint64
	revision uint64     // of the last operation
	logTime  int64      // time of the last entry: the clock by which keys expire
	alive    int64      // time that has passed in the log, without outages: the clock by which sessions expire
	steady   storeClock // this replica's estimate of the clock by which keys expire
	sessions *sessions
	members  members
	format   uint64   // of the log, of snapshots and commands
	digests  *digests // of the last entries
	idle     int64    // idle time after which sessions expired at the last entry; not in snapshots, because each entry has it

	foot    wire.Footprint // scratch
	decoded entry          // scratch
}

// longestGap limits how much one entry ages the sessions. When a cluster was down for a day,
// its sessions must not all have expired when the first client comes back to ask for the
// outcome of its last write.
const longestGap = int64(time.Minute)

// apply applies a committed entry.
func (st *state) apply(e *pb.Entry) {
	if e.GetIndex() <= st.applied {
		return
	}
	st.applied = e.GetIndex()
	st.snapshots.since += int64(len(e.GetData()))
	switch e.GetType() {
	case pb.EntryConfChange, pb.EntryConfChangeV2:
		st.applyChange(e)
	case pb.EntryNormal:
		if len(e.GetData()) == 0 {
			st.appliedEmpty(e.GetTerm())
			break
		}
		if err := st.decoded.decode(e.GetData()); err != nil {
			st.fatal(fmt.Errorf("log entry %d: %w", e.GetIndex(), err))
			return
		}
		if st.decoded.format > st.formatKnown() {
			st.fatal(st.tooNew(fmt.Sprintf("log entry %d", e.GetIndex()), st.decoded.format))
			return
		}
		st.formatIs(st.decoded.format)
		st.applyRound(e)
	}
	st.digested()
	st.trace(Event{Kind: EventApplied, View: e.GetTerm(), Index: st.applied})
	if l := st.lead; l != nil && l.view.phase == recovering && l.done >= l.view.until {
		l.view.openView()
	}
}

// appliedEmpty applies an entry without operations: the first one of a leader's term, or one
// that the engine put in place of a rejected change of members.
func (st *state) appliedEmpty(term uint64) {
	if st.lead == nil || term != st.engine.term {
		return
	}
	if st.lead.view.phase == elected {
		st.lead.view.firstApplied()
	} else if st.lead.changes.underWay {
		st.lead.changes.finish(true)
	}
}

func (st *state) applyRound(e *pb.Entry) {
	d := &st.decoded
	if d.time > st.logTime {
		st.alive += min(d.time-st.logTime, longestGap, d.idle/4)
		st.logTime = d.time
		st.noteLogged(e.GetTerm(), d.time)
	}
	if st.mutated(SessionsByLocalClock) {
		st.alive = st.now.Wall
	}
	now := st.clockOfKeys()
	if due := st.machine.Due(); due != 0 && due <= now {
		st.revision++ // so that a watch that has seen the last write can ask for what follows it
	}
	st.machine.Advance(st.revision, now)
	l := st.lead
	own := l != nil && e.GetTerm() == st.engine.term && len(l.rounds) > 0 && l.rounds[0].number == d.round
	for i := range d.ops {
		revision, result, stable, executed := st.execute(&d.ops[i], e.GetIndex())
		if own {
			l.applied(l.rounds[0].ops[i], e.GetIndex(), revision, result, stable, executed)
		}
	}
	st.idle = d.idle
	st.sessions.expire(st.alive-d.idle, func(id uint64) {
		st.counters.Expired++
		st.sessionRemoved(id)
	})
	if own {
		l.committed(l.rounds[0])
		l.rounds = l.rounds[1:]
	}
}

// sessionRemoved removes what refers to a session that was removed.
func (st *state) sessionRemoved(id uint64) {
	st.weak.waiters.expired(st.Core, id)
	if st.lead != nil {
		st.lead.early.drop(id)
	}
	st.witness.pool.drop(func(r *record) bool { return r.id.session == id })
}

// execute executes an operation exactly once.
func (st *state) execute(o *op, index uint64) (revision uint64, result []byte, stable uint64, executed bool) {
	if o.session == 0 {
		first := st.revision + 1
		st.sessions.grant(first, o.seq, st.alive)
		st.revision += o.seq
		return first, nil, 0, true
	}
	s := st.sessions.get(o.session)
	if s == nil || o.seq < s.next && !st.mutated(NoDedup) {
		return 0, nil, 0, false
	}
	if o.seq > s.next && !st.mutated(GapsIgnored) {
		st.fatal(fmt.Errorf("log entry %d holds write %d of session %d before write %d", index, o.seq, o.session, s.next))
		return 0, nil, 0, false
	}
	if o.flags&opEnd != 0 {
		st.sessions.remove(s)
		st.counters.Ended++
		st.sessionRemoved(s.id)
		return 0, nil, o.seq, true
	}
	st.revision++
	result = st.machine.Apply(st.revision, st.logTime, o.command)
	s.next = max(s.next, o.seq+1)
	if o.flags&opWeak == 0 {
		s.keep(answer{seq: o.seq, index: index, revision: st.revision, result: result})
	}
	st.sessions.use(s, o.ack, st.alive)
	id := opID{o.session, o.seq}
	if r := st.witness.pool.get(id); r != nil {
		st.witness.pool.remove(r) // S7
	}
	st.weak.intents.remove(id)
	st.weak.waiters.applied(st.Core, s)
	return st.revision, result, s.next - 1, true
}

// applyChange applies a change of members.
func (st *state) applyChange(e *pb.Entry) {
	cc := &pb.ConfChangeV2{}
	if e.GetType() == pb.EntryConfChange {
		st.fatal(fmt.Errorf("log entry %d: a change of members in a form that weir never writes", e.GetIndex()))
		return
	}
	if err := proto.Unmarshal(e.GetData(), cc); err != nil {
		st.fatal(fmt.Errorf("log entry %d: change of members: %w", e.GetIndex(), err))
		return
	}
	if st.members.removesLastVoter(cc) { // the engine would panic
		st.fatal(fmt.Errorf("log entry %d removes the last voter that this replica lists: it was first started with another list of members than those who made the cluster; replace this member (weir kv member replace)", e.GetIndex()))
		return
	}
	conf := st.engine.node.ApplyConfChange(cc)
	if err := st.members.applied(e.GetIndex(), conf, cc.GetContext()); err != nil {
		st.fatal(fmt.Errorf("log entry %d: %w", e.GetIndex(), err))
		return
	}
	st.members.relocate(st.cfg.Addresses)
	st.forgetLeft()
	// A commit index alone is not flushed, but that of a change of members must be: when the
	// replaced members are gone, no other replica may know that the change was committed.
	index := e.GetIndex()
	st.out.whenDurable(func() {
		st.members.known = max(st.members.known, index)
		if st.lead != nil {
			st.lead.changes.answer()
		}
	})
	st.engine.log.since = e.GetIndex()
	if st.lead != nil {
		st.lead.onlyMembers()
		st.lead.changes.finish(false)
	}
	st.out.send(Clients, st.witness.viewMessage())
}

// installed replaces the whole state by a leader's snapshot.
func (st *state) installed(s *pb.Snapshot) {
	in := st.engine.incoming
	if in == nil {
		st.fatal(errors.New("the engine wants a snapshot that did not come along"))
		return
	}
	base := st.engine.log.entries[0].GetIndex()
	if st.applied >= base && st.applied < st.engine.log.lastIndex() {
		st.weak.truncated(st.engine.log.entries[st.applied-base+1:])
	}
	if err := st.snapshots.adopt(in.head, in.state); err != nil {
		st.fatal(fmt.Errorf("install the snapshot of entry %d: %w", in.index, err))
		return
	}
	term := s.GetMetadata().GetTerm()
	st.engine.log.reset(in.index, term)
	st.engine.log.saved = snapshotMark{in.index, term, st.members.conf}
	st.snapshots.since = 0
	st.out.record(RecordReset, term, in.index, nil)
	st.witness.pool.drop(func(r *record) bool { return st.decided(r.id) })
	st.weak.intents.drop(func(i *intent) bool { return st.decided(i.id) })
	st.weak.waiters.all(st.Core)
	st.counters.Installed++
}

// seen reports whether a write was executed.
func (st *state) seen(id opID) bool {
	s := st.sessions.get(id.session)
	return s != nil && id.seq < s.next
}

// decided reports whether a write was executed or never will be, because its session has expired.
func (st *state) decided(id opID) bool {
	return st.seen(id) || st.sessions.get(id.session) == nil && id.session <= st.revision
}
