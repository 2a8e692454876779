package consensus

import (
	"math"
	"slices"
	"time"

	pb "go.etcd.io/raft/v3/raftpb"

	"github.com/weirdb/weir/batch"
	"github.com/weirdb/weir/internal/kvd/wire"
)

// leadership is the state of a leader: the rounds in flight, the clients that wait for answers,
// and the progress of opening its view. It is dropped at the end of the term.
type leadership struct {
	c    *Core
	open bool

	lease   lease
	view    viewChange
	changes changes
	holds   holds

	queue   *batch.Queue[*leadOp]
	group   []*leadOp // scratch
	number  uint64    // of the last round
	rounds  []*round  // in flight, oldest first: entries commit in that order
	lanes   []*round  // those that occupy a lane of the queue
	pace    pace      // duration of recent rounds
	refused []*leadOp // a round that the engine has refused; it is proposed first

	next        map[uint64]uint64 // by session with uncommitted writes: the number after the last of them
	weaks       map[uint64]int    // by session: its uncommitted weak writes, if the fast path is on
	byOp        map[opID]*leadOp  // not committed yet
	early       early             // writes that arrived before one of their session with a lower number
	uncommitted touches
	ordinal     uint64 // of the last operation admitted
	done        uint64 // of the last operation applied

	delayed []delayedRequest // arrived before the view was open
	delays  int              // bytes of their commands
	reads   []heldRead       // strong reads that wait for the lease, for a commit, or behind large answers
	waits   map[query]bool   // those of reads that were there at an earlier Take

	fed      map[uint64]uint64  // by replica: the tick at which it was last sent entries
	knowing  map[uint64]uint64  // by member: the newest format that it knows
	raising  uint64             // the format that the next entry raises the cluster to
	raised   uint64             // the newest format that an entry of this leader has raised the cluster to
	verdicts map[uint64]verdict // by member: how its state compared with this one's
	doubt    string             // why no requests are served: states differ, and no majority tells which is right
	ticks    int
}

// round is a log entry in flight.
type round struct {
	number uint64
	index  uint64 // in the log, once the engine has assigned it
	ops    []*leadOp
	cut    int64
	flush  time.Duration // how long this replica's disk took, 0: not written yet
	over   bool          // it is committed
}

// leadOp is an operation in progress at the leader.
type leadOp struct {
	op
	foot    wire.Footprint // set if footed; see leadership.footprint
	footed  bool
	from    Addr // who waits for the result, 0: no client
	request uint64
	ordinal uint64
	fast    bool   // the client gathers votes
	spec    []byte // the result, if it may be sent before the commit
	yes     bool   // spec is valid
	weakAck bool   // acknowledge when this replica's disk has it
	durable bool
	round   *round
}

type memberRequest struct {
	from    Addr
	request uint64
	change  Change
	index   uint64 // of the change, once it is in force here
}

// heldRead is a query that cannot be answered yet.
type heldRead struct {
	from  Addr
	m     *wire.Message
	at    int64  // Clock.Mono of its arrival
	after uint64 // leader: ordinal that must be applied
	index uint64 // leader: log position that must be applied
	old   bool   // leader: it was here at an earlier Take
}

// query identifies a query; repetitions have the same value.
type query struct {
	from             Addr
	session, request uint64
}

func (r *heldRead) query() query { return query{r.from, r.m.Session, r.m.Request} }

type delayedRequest struct {
	from Addr
	m    *wire.Message
	do   func(*leadership, Addr, *wire.Message)
}

func newLeadership(c *Core) *leadership {
	queue := c.cfg.Batch
	queue.Capacity = math.MaxInt // admit enforces the limit, because recovered writes must have room
	l := &leadership{
		c: c, queue: batch.NewQueue[*leadOp](queue),
		next: map[uint64]uint64{}, weaks: map[uint64]int{}, byOp: map[opID]*leadOp{}, early: early{of: map[uint64]*earlyWrites{}},
		uncommitted: newTouches(), knowing: map[uint64]uint64{}, verdicts: map[uint64]verdict{}, fed: map[uint64]uint64{}, waits: map[query]bool{}, holds: holds{},
	}
	l.assemble()
	c.trace(Event{Kind: EventElected, View: c.engine.term})
	return l
}

// assemble initializes the parts of a leadership.
func (l *leadership) assemble() {
	l.lease = lease{
		leadership: l, echoes: map[uint64]int64{}, promises: map[uint64]int64{}, clocks: map[uint64]voterClock{},
		lives: map[uint64]uint64{}, successors: map[uint64]int64{},
	}
	l.view.leadership = l
	l.changes = changes{leadership: l, known: map[uint64]uint64{}}
}

// resign tells all waiting clients to ask the next leader. What is in the log may still be
// committed; write numbers make repetitions safe.
func (l *leadership) resign() {
	for _, r := range l.reads {
		l.c.redirect(r.from, r.m)
	}
	for _, d := range l.delayed {
		l.c.redirect(d.from, d.m)
	}
	if l.changes.ask != nil {
		l.c.redirect(l.changes.ask.from, &wire.Message{Request: l.changes.ask.request})
	}
	if l.changes.candidate != nil {
		l.c.redirect(l.changes.candidate.from, &wire.Message{Request: l.changes.candidate.request})
	}
}

// delay keeps a request until the view is open.
func (l *leadership) delay(from Addr, m *wire.Message, do func(*leadership, Addr, *wire.Message)) {
	if l.delays += len(m.Data); len(l.delayed) >= maxWaiting || l.delays > maxWaitingBytes && len(l.delayed) > 0 {
		l.delays -= len(m.Data)
		l.c.refuse(from, m, wire.CodeBusy, "too many requests wait for the new leader")
		return
	}
	l.delayed = append(l.delayed, delayedRequest{from, m, do})
}

// nextSeq returns the number that the session's next write must have.
func (l *leadership) nextSeq(s *session) uint64 {
	if n, ok := l.next[s.id]; ok {
		return n
	}
	return s.next
}

// unpack admits the writes of a bundle that are not in the log yet.
func (l *leadership) unpack(s *session, m *wire.Message) {
	for i := range m.Bundle {
		w := &m.Bundle[i]
		if w.Seq != l.nextSeq(s) {
			continue
		}
		l.admit(s, bundled(s, m.Ack, w), nil)
	}
}

// bundled returns a write that came in the bundle of another write of its session.
func bundled(s *session, ack uint64, w *wire.Write) *leadOp {
	o := &leadOp{op: op{session: s.id, seq: w.Seq, ack: ack, command: w.Command}}
	if !w.Strong {
		o.flags = opWeak
	}
	return o
}

// write accepts a strong or weak write with its bundle. The session's earlier weak writes
// precede a strong one in the log (S9). Strong ones precede a weak one, because their client
// may have died before it sent them here.
func (l *leadership) write(from Addr, m *wire.Message) {
	s := l.c.state.sessions.get(m.Session)
	if s == nil {
		l.c.unknown(from, m)
		return
	}
	l.unpack(s, m)
	l.inOrder(s, from, m)
	l.unhold(s)
}

// inOrder admits a write if it is the next of its session. It answers an earlier one again, and
// keeps a later one.
func (l *leadership) inOrder(s *session, from Addr, m *wire.Message) {
	c := l.c
	next := l.nextSeq(s)
	switch {
	case m.Seq < next && !(m.Seq < s.next && c.mutated(NoDedup)):
		l.answerAgain(s, from, m)
	case m.Seq > next && !c.mutated(GapsIgnored):
		l.hold(s, from, m)
	case m.Kind == wire.Strong && (m.Seq > m.Ack+maxUnanswered || s.owed(m.Ack) > mostOwed):
		if m.Flags&wire.FlagForward == 0 {
			c.refuse(from, m, wire.CodeBusy, "too many answers are kept for the session")
		}
	default:
		o := &leadOp{op: op{session: s.id, seq: m.Seq, ack: m.Ack, command: m.Data}, from: from, fast: m.Flags&wire.FlagFast != 0}
		if m.Flags&wire.FlagForward != 0 {
			o.from = 0
		}
		if m.Flags&wire.FlagEnd != 0 {
			o.flags, o.command = opEnd, nil
		}
		if m.Kind == wire.Weak {
			o.flags |= opWeak
			o.weakAck = m.Flags&wire.FlagForward == 0 && l.c.cfg.WeakWrites != Quorum
		}
		l.admit(s, o, m)
	}
}

func compare(a, b uint64) int {
	switch {
	case a < b:
		return -1
	case a > b:
		return 1
	}
	return 0
}

// answerAgain answers a write that is already in the log.
func (l *leadership) answerAgain(s *session, from Addr, m *wire.Message) {
	if m.Flags&wire.FlagForward != 0 {
		return
	}
	weak := m.Kind == wire.Weak
	if m.Seq < s.next {
		if weak {
			l.c.out.send(from, wire.Message{Kind: wire.WeakDone, View: l.c.witness.view, Session: s.id, Seq: m.Seq, Stable: s.next - 1, Index: l.c.state.applied})
			return
		}
		if a, ok := s.answer(m.Seq); ok && a.lost {
			l.c.refuse(from, m, wire.CodeUnkept, "the write was executed; its result was too large to keep")
		} else if ok {
			l.c.out.send(from, wire.Message{Kind: wire.Done, View: l.c.witness.viewOf(a.index), Session: s.id, Seq: m.Seq, Index: a.index, Revision: a.revision, Stable: m.Seq, Data: a.result})
		} // otherwise the client has acknowledged the answer: a stray copy
		return
	}
	o := l.byOp[opID{s.id, m.Seq}]
	if o == nil {
		return
	}
	o.from = from
	if weak && l.c.cfg.WeakWrites != Quorum {
		o.weakAck = true
		if o.durable {
			l.c.weak.done(from, s.id, m.Seq)
		}
		return
	}
	if o.durable && m.Flags&wire.FlagFast != 0 {
		o.fast = true
		l.speculated(o)
	}
}

// admit appends the write to the order. m is the request of a strong write that came alone.
func (l *leadership) admit(s *session, o *leadOp, m *wire.Message) {
	c := l.c
	if l.open && (l.queue.Len() >= c.cfg.Batch.Capacity || l.queue.Bytes() >= maxWaitingBytes) {
		if o.from != 0 {
			c.refuse(o.from, &wire.Message{Session: s.id, Seq: o.seq}, wire.CodeBusy, "too much waits for the log")
		}
		return
	}
	l.decide(o)
	if c.cfg.Fast {
		if l.footprint(o); o.fast && m != nil {
			l.speculate(s, o, m)
		}
	}
	l.ordinal++
	o.ordinal = l.ordinal
	if c.cfg.Fast {
		l.uncommitted.add(&o.foot, s.id, o.flags&opWeak == 0, o.ordinal)
		if o.flags&opWeak != 0 {
			l.weaks[s.id]++
		}
	}
	l.next[s.id] = o.seq + 1
	l.byOp[opID{s.id, o.seq}] = o
	l.push(o)
}

func (l *leadership) push(o *leadOp) {
	if err := l.queue.Push(time.Duration(l.c.now.Mono), o, len(o.command)+32); err != nil {
		l.c.fatal(err) // admit has checked the limit
	}
}

// speculate computes the result of a strong write before it is committed, if no uncommitted
// operation could change it (S3).
func (l *leadership) speculate(s *session, o *leadOp, m *wire.Message) {
	c := l.c
	if l.changes.underWay && !c.mutated(SpecWhileChanging) || !o.foot.Fixed || !c.state.machine.Steady(&o.foot) {
		return
	}
	if c.state.alive-s.lastUsed > int64(c.cfg.SessionIdle)/2 {
		return // an uncommitted entry might end the session
	}
	r, ok := c.witness.recordOf(m)
	if !ok || !c.witness.hasPrior(s, m) {
		return
	}
	if c.witness.pool.full(r) {
		return
	}
	if r.bundle.Timed { // its time to live starts at the time of an entry that does not exist yet
		return
	}
	if r.meets(&l.uncommitted) && !c.mutated(SpecOverUncommitted) {
		return
	}
	var earlier [][]byte
	weaks := 0
	for i := range m.Bundle {
		w := &m.Bundle[i]
		if w.Seq < s.next {
			continue
		}
		if !w.Strong {
			weaks++
		}
		if !c.mutated(SpecWithoutBundle) {
			earlier = append(earlier, w.Command)
		}
	}
	if weaks != l.weaks[s.id] {
		// The session knows from another replica that a weak write is committed, and left it
		// out of the bundle; it is not applied here yet.
		return
	}
	r.message.View = c.witness.view // the client may not know of this view yet
	o.spec, o.yes = c.state.machine.Evaluate(l.lease.time(), earlier, o.command), true
	c.witness.keep(r) // the leader votes as a witness, too (S2)
}

// speculated sends the speculative result to a client that gathers votes. It is called when the
// entry and the record are durable.
func (l *leadership) speculated(o *leadOp) {
	m := wire.Message{Kind: wire.Spec, View: l.c.engine.term, Session: o.session, Seq: o.seq, Count: uint64(len(l.c.state.members.voters())), Index: o.round.index, Revision: l.c.state.members.index}
	if o.yes && l.open && (!l.changes.underWay || l.c.mutated(SpecWhileChanging)) {
		m.Flags = wire.FlagYes
		m.Data = o.spec
		l.c.counters.SpecYes++
	} else {
		l.c.counters.SpecNo++
	}
	l.c.trace(Event{Kind: EventSpec, View: l.c.engine.term, Session: o.session, Seq: o.seq, Yes: o.yes})
	l.c.out.send(o.from, m)
}

// startRounds proposes as many rounds as may be in flight.
func (l *leadership) startRounds() {
	c := l.c
	if l.refused != nil {
		l.propose(l.refused)
	}
	for i := 0; i < len(l.lanes); {
		if r := l.lanes[i]; c.now.Mono >= l.patience(r) {
			l.freed(r)
		} else {
			i++
		}
	}
	for l.refused == nil {
		l.group, _ = l.queue.Take(time.Duration(c.now.Mono), l.group[:0])
		if len(l.group) == 0 {
			return
		}
		l.propose(slices.Clone(l.group))
	}
}

// propose proposes a round as a log entry.
func (l *leadership) propose(ops []*leadOp) {
	c := l.c
	size := 32
	for _, o := range ops {
		size += len(o.command) + 32
	}
	data := appendEntryHead(make([]byte, 0, size), l.entryFormat(), l.number+1, l.lease.time(), int64(c.cfg.SessionIdle), len(ops))
	for _, o := range ops {
		data = o.append(data)
	}
	if err := c.engine.node.Propose(data); err != nil {
		l.refused = ops // leadership is being handed over, or too much is uncommitted
		return
	}
	l.refused = nil
	l.number++
	r := &round{number: l.number, ops: ops, cut: c.now.Mono}
	l.rounds = append(l.rounds, r)
	if len(ops) > 0 { // an entry without operations does not come out of the queue
		l.lanes = append(l.lanes, r)
	}
	c.counters.Rounds++
	c.counters.Operations += uint64(len(ops))
	l.proposed(r)
	c.out.whenDurable(func() {
		if c.lead == l {
			l.durable(r)
		}
	})
}

// durable is called when a round is on this replica's disk. It sends the answers that waited
// for that. The round keeps its lane until it is committed, because replicas that are near each
// other, or share a disk, do better with fewer and larger rounds. For distant replicas that
// would gain nothing, so many rounds are in flight (see patience). If results are sent before
// the commit, only the disk counts.
func (l *leadership) durable(r *round) {
	r.flush = max(1, time.Duration(l.c.now.Mono-r.cut))
	smooth(&l.pace.flush, r.flush)
	if r.over || l.c.cfg.Fast || l.c.cfg.Batch.Window != 0 || l.pace.far() {
		l.freed(r)
	}
	for _, o := range r.ops {
		o.durable, o.round = true, r
		if o.from == 0 {
			continue
		}
		if o.weakAck {
			l.c.weak.done(o.from, o.session, o.seq)
		} else if o.fast {
			l.speculated(o)
		}
	}
}

const (
	// patienceFlushes is the longest time that a round keeps its lane, as a multiple of this
	// replica's flush time.
	patienceFlushes = 4
	// farShare is the largest part of the commit time for which a round keeps its lane if
	// replicas are distant: messages to them should not wait for this replica's disk, but not
	// every turn should start a round.
	farShare = 64
	// farCommit is the least commit time at which replicas count as distant.
	farCommit = 2 * time.Millisecond
)

// patience returns when a round gives up its lane although it is not committed.
func (l *leadership) patience(r *round) int64 {
	switch {
	case l.pace.far() && !l.c.cfg.Fast && l.c.cfg.Batch.Window == 0:
		return r.cut + int64(l.pace.commit/farShare)
	case r.flush > 0:
		return r.cut + patienceFlushes*int64(r.flush)
	}
	return math.MaxInt64
}

// pace is the smoothed duration of recent rounds, until they are on this replica's disk and
// until they are committed.
type pace struct{ flush, commit time.Duration }

// far reports whether rounds are committed long after their patience.
func (p *pace) far() bool {
	return p.commit > farCommit && p.commit > 2*patienceFlushes*p.flush
}

func smooth(v *time.Duration, took time.Duration) { *v += (took - *v) / 8 }

// freed frees the lane of a round, if it still occupies one.
func (l *leadership) freed(r *round) {
	if at := slices.Index(l.lanes, r); at >= 0 {
		l.lanes = slices.Delete(l.lanes, at, at+1)
		l.queue.Done(time.Duration(l.c.now.Mono), len(r.ops), r.flush)
	}
}

// committed removes a committed round.
func (l *leadership) committed(r *round) {
	r.over = true
	smooth(&l.pace.commit, time.Duration(l.c.now.Mono-r.cut))
	if r.flush > 0 {
		l.freed(r)
	}
}

// logged notes the indexes that the engine has assigned to this leader's rounds.
func (l *leadership) logged(entries []*pb.Entry) {
	at := slices.IndexFunc(l.rounds, func(r *round) bool { return r.index == 0 })
	for _, e := range entries {
		if at >= 0 && at < len(l.rounds) && e.GetTerm() == l.c.engine.term && e.GetType() == pb.EntryNormal && len(e.GetData()) > 0 {
			l.rounds[at].index = e.GetIndex()
			if l.c.cfg.Trace != nil {
				l.c.trace(Event{Kind: EventPlaced, View: l.c.engine.term, Index: e.GetIndex(), Time: entryTime(e.GetData())})
			}
			at++
		}
	}
}

// applied is called with the result of each operation of this leader's rounds.
func (l *leadership) applied(o *leadOp, index, revision uint64, result []byte, stable uint64, executed bool) {
	c := l.c
	l.done = o.ordinal
	if o.session == 0 {
		c.out.send(o.from, wire.Message{Kind: wire.ReadDone, View: c.witness.view, Request: o.request, Index: index, Revision: revision, Count: o.seq})
		return
	}
	delete(l.byOp, opID{o.session, o.seq})
	if l.next[o.session] == o.seq+1 {
		delete(l.next, o.session)
	}
	if c.cfg.Fast {
		l.uncommitted.remove(&o.foot, o.session, o.flags&opWeak == 0)
		if o.flags&opWeak != 0 {
			if l.weaks[o.session]--; l.weaks[o.session] == 0 {
				delete(l.weaks, o.session)
			}
		}
	}
	switch {
	case o.from == 0:
	case !executed:
		c.refuse(o.from, &wire.Message{Session: o.session, Seq: o.seq}, wire.CodeExpired, "the session expired")
	case o.flags&opWeak == 0:
		c.out.send(o.from, wire.Message{Kind: wire.Done, View: c.witness.view, Session: o.session, Seq: o.seq, Index: index, Revision: revision, Stable: stable, Data: result})
	case !o.weakAck:
		c.weak.done(o.from, o.session, o.seq)
	}
}

// register grants session ids through the log, so that an unknown id has expired and is never
// granted again (S8).
func (l *leadership) register(from Addr, m *wire.Message) {
	const most = 4096
	if m.Count == 0 || m.Count > most || l.queue.Len() >= l.c.cfg.Batch.Capacity {
		l.c.refuse(from, m, wire.CodeBusy, "ask for 1 to 4096 sessions")
		return
	}
	l.ordinal++
	l.push(&leadOp{op: op{seq: m.Count}, from: from, request: m.Request, ordinal: l.ordinal})
}

// wake returns the time of the next round if nothing happens before: the end of a fixed window,
// or of the patience of a round in flight. There is none while a round waits that the engine
// has refused: the engine accepts it after another event.
func (l *leadership) wake() int64 {
	if l.queue.Len() == 0 || l.refused != nil {
		return 0
	}
	first := int64(0)
	if at, ok := l.queue.Deadline(); ok {
		first = int64(at)
	}
	for _, r := range l.lanes {
		if at := l.patience(r); at < math.MaxInt64 && (first == 0 || at < first) {
			first = at
		}
	}
	return first
}
