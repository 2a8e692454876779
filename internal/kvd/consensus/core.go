package consensus

import (
	"errors"
	"fmt"
	"math"

	"go.etcd.io/raft/v3"
	pb "go.etcd.io/raft/v3/raftpb"
	"google.golang.org/protobuf/proto"

	"github.com/weirdb/weir/internal/kvd/kvwire"
)

// Core is one replica. Its methods are called by one goroutine at a time. After
// each event, or each handful of them, Take hands out what they caused.
type Core struct {
	cfg     Config
	machine Machine
	node    *raft.RawNode
	log     *memoryLog
	now     Clock

	// What the engine last told of itself.
	term   uint64
	leader uint64
	role   raft.StateType

	// The replicated state, besides the machine. All of it changes only when
	// an entry is applied.
	applied  uint64
	revision uint64 // of the last operation
	logTime  int64  // of the last entry: the clock by which keys expire
	alive    int64  // time that the log has seen pass, without outages: the clock by which sessions expire
	steady   steady // the clock by which keys expire, as this replica carries it on
	sessions *sessions
	members  members
	format   uint64   // of the log, of snapshots and commands
	digests  *digests // of the last entries
	idle     int64    // by what sessions expired at the last entry; not in snapshots, because each entry says it

	view      uint64 // S5: this witness votes in no older one. On disk before it counts
	openView  uint64 // the newest view that this replica knows to be open
	openIndex uint64 // what was applied at its leader then
	viewOwner uint64 // that leader
	pool      *pool
	intents   intents
	reads     []heldRead // weak reads that wait for this replica to catch up
	settled   settled    // clients that wait until writes are committed

	lead     *leadership // nil unless this replica leads
	standing standing    // timers of elections and votes
	ticks    uint64      // that have passed
	told     told        // the newest answer to a leader

	ticket        uint64         // of the last Effects with records
	flushed       uint64         // the newest ticket that is on disk
	flushing      uint64         // the newest ticket that is synced, or will be
	needed        uint64         // the newest ticket with records that a restart must not miss
	hard          hardState      // the newest term and vote among the records
	waiting       []promise      // what leaves when a ticket is on disk
	out           Effects        // gathered since the last Take
	sync          bool           // out.Records hold something that is waited for
	spoken        int            // bytes of the answers to queries in out
	large         map[asker]bool // who had a large answer since no query waited
	hangs         bool           // the disk neither ends a write nor fails it
	saving        bool           // a snapshot is being written
	savingMark    snapshotMark
	sinceSnapshot int64     // bytes of log applied since the last one
	incoming      *incoming // a snapshot on its way into the engine
	foot          kvwire.Footprint
	decoded       entry
	counters      Counters
}

// promise is what may happen once the records of a ticket are durable.
type promise struct {
	ticket uint64
	do     func()
}

// hardState is what a replica must not forget of an election.
type hardState struct{ term, vote uint64 }

// New starts a replica from what its disk holds. The machine is empty, or is
// restored from r.Snapshot.
func New(cfg Config, m Machine, r Recovered) (*Core, error) {
	if err := cfg.fill(); err != nil {
		return nil, err
	}
	c := &Core{cfg: cfg, machine: m, sessions: newSessions(), pool: newPool(), format: 1, intents: newIntents(), settled: settled{}, large: map[asker]bool{}, idle: int64(cfg.SessionIdle)}
	c.members.init(cfg.Members)
	c.log = newMemoryLog(bootIndex, bootTerm)
	if len(cfg.Members) == 0 {
		c.log = newMemoryLog(0, 0)
	}
	if err := c.recover(r); err != nil {
		return nil, fmt.Errorf("recover replica %d: %w", cfg.ID, err)
	}
	c.log.conf = c.members.conf
	node, err := raft.NewRawNode(&raft.Config{
		ID:                        cfg.ID,
		ElectionTick:              cfg.ElectionTicks,
		HeartbeatTick:             cfg.HeartbeatTicks,
		Storage:                   c.log,
		Applied:                   c.applied,
		AsyncStorageWrites:        true,
		MaxSizePerMsg:             4 << 20,
		MaxCommittedSizePerReady:  16 << 20,
		MaxUncommittedEntriesSize: 256 << 20,
		MaxInflightMsgs:           256,
		CheckQuorum:               true,
		PreVote:                   true,
		DisableProposalForwarding: true,
		Logger:                    quiet{},
	})
	if err != nil {
		return nil, fmt.Errorf("replica %d: %w", cfg.ID, err)
	}
	c.node = node
	c.observe()
	c.standing.start(c)
	return c, nil
}

// The log of a new cluster begins after this position, with the first members
// in force.
const bootIndex, bootTerm = 1, 1

// Tick tells the time. Call it every Config.TickNanos.
func (c *Core) Tick(now Clock) {
	c.now = now
	c.ticks++
	if c.role == raft.StateLeader {
		c.node.Tick() // heartbeats, and whether a majority still answers
	} else {
		c.node.TickQuiesced() // only ages the engine's view of its leader: when to stand is decided here, from the seed
		c.standing.tick(c)
	}
	c.observe()
	if c.lead != nil {
		c.lead.tick()
	}
	c.tickIntents()
	c.tickPool()
	c.tickReads()
}

// Deliver hands in a message. Its byte slices belong to the core from now on.
func (c *Core) Deliver(now Clock, from Addr, m *kvwire.Message) {
	c.now = now
	switch m.Kind {
	case kvwire.Raft:
		c.deliverRaft(from, m, nil)
	case kvwire.Strong:
		c.atLeader(from, m, (*leadership).strong)
	case kvwire.Weak:
		c.weak(from, m)
	case kvwire.Read:
		c.atLeader(from, m, (*leadership).read)
	case kvwire.Register:
		c.atLeader(from, m, (*leadership).register)
	case kvwire.Configure:
		c.atLeader(from, m, (*leadership).configure)
	case kvwire.WeakRead:
		c.weakRead(from, m)
	case kvwire.Stable:
		c.settle(from, m)
	case kvwire.Record:
		c.witness(from, m)
	case kvwire.PoolCollect:
		c.collect(from, m)
	case kvwire.Pool:
		if c.lead != nil {
			c.lead.pooled(uint64(from), m)
		}
	case kvwire.NewView:
		c.newView(m)
	case kvwire.Lease:
		c.lease(from, m)
	case kvwire.Refused:
		if m.Code == kvwire.CodeDiverged {
			c.diverged(from, m)
			return
		}
		c.forwardRefused(m)
	}
}

// Persisted says that the records of ticket, and of all before it, are durable.
func (c *Core) Persisted(now Clock, ticket uint64) {
	c.now = now
	c.flushed = max(c.flushed, ticket)
	n := 0
	for n < len(c.waiting) && c.waiting[n].ticket <= ticket {
		n++
	}
	ready := append([]promise(nil), c.waiting[:n]...)
	c.waiting = append(c.waiting[:0], c.waiting[n:]...)
	for _, p := range ready {
		p.do()
	}
	c.observe()
}

// whenDurable runs do once everything that is recorded so far is on disk.
func (c *Core) whenDurable(do func()) {
	c.sync = true
	c.flushing = c.ticket + 1
	c.waiting = append(c.waiting, promise{c.flushing, do})
}

// whenSafe runs do once everything that is recorded so far is on disk, except for
// commit indexes: a restart learns them from its leader. Where only those are
// missing there, nothing is waited for, least of all a sync for their sake.
func (c *Core) whenSafe(do func()) {
	switch {
	case c.needed <= c.flushed:
		do()
	case c.needed <= c.flushing:
		c.waiting = append(c.waiting, promise{c.flushing, do})
	default:
		c.whenDurable(do)
	}
}

func (c *Core) record(kind uint8, term, index uint64, data []byte) {
	c.needed = c.ticket + 1
	c.note(kind, term, index, data)
}

// note records what may be lost.
func (c *Core) note(kind uint8, term, index uint64, data []byte) {
	c.out.Records = append(c.out.Records, Record{Kind: kind, Term: term, Index: index, Data: data})
}

// send queues a message; to 0 is nobody.
func (c *Core) send(to Addr, m kvwire.Message) {
	if to == 0 {
		return
	}
	c.out.Sends = append(c.out.Sends, Send{to, m})
}

// toPeers sends m to every other member.
func (c *Core) toPeers(m kvwire.Message) {
	for _, p := range c.members.list {
		if p.ID != c.cfg.ID {
			c.send(Addr(p.ID), m)
		}
	}
}

// Take cuts a round if one may go, lets the engine run, and hands out all
// effects since the last Take. The caller owns them.
func (c *Core) Take(now Clock) Effects {
	c.now = now
	if c.lead != nil {
		c.lead.cut()
	}
	for c.drain() {
		if c.lead != nil {
			c.lead.cut() // what was applied may have freed a lane
		}
	}
	if c.lead != nil {
		c.lead.release()
	}
	if len(c.reads) > 0 {
		c.retryReads()
	}
	c.maybeSave()
	if len(c.waiting) > 0 && c.waiting[len(c.waiting)-1].ticket > c.ticket && len(c.out.Records) == 0 {
		// Something waits for the disk and nothing new goes there: an empty
		// set of records keeps its place behind those in flight.
		c.out.Records = []Record{}
		c.sync = true
	}
	e := c.out
	if e.Records != nil {
		c.ticket++
		e.Ticket = c.ticket
		e.Sync = c.sync
	}
	if c.lead != nil {
		e.Wake = c.lead.wake()
	}
	c.out, c.sync, c.spoken = Effects{}, false, 0
	if len(c.reads) == 0 && (c.lead == nil || len(c.lead.reads) == 0) {
		clear(c.large)
	}
	return e
}

// ready carries out what the engine asks for.
func (c *Core) ready(rd raft.Ready) {
	for _, m := range rd.Messages {
		switch m.GetTo() {
		case raft.LocalAppendThread:
			c.store(m)
		case raft.LocalApplyThread:
			for _, e := range m.GetEntries() {
				c.apply(e)
			}
			for _, r := range m.GetResponses() {
				c.step(r)
			}
		default:
			c.transmit(m)
		}
	}
}

// store writes entries and votes down and lets the engine's answers wait for
// the disk (S13).
func (c *Core) store(m *pb.Message) {
	if s := m.GetSnapshot(); !raft.IsEmptySnap(s) {
		c.installed(s)
	}
	// What a new leader's entries replace goes to the disk as intents before
	// it is gone from there.
	c.truncated(c.log.append(m.GetEntries()))
	for _, e := range m.GetEntries() {
		c.record(RecordEntry, e.GetTerm(), e.GetIndex(), append([]byte{byte(e.GetType())}, e.GetData()...))
	}
	// After the entries: the commit index may cover them, and a crash that keeps
	// it and loses them would leave what they replaced, as if it were committed.
	if m.Term != nil || m.Vote != nil || m.Commit != nil {
		c.recordHard(hardState{m.GetTerm(), c.vote(m.GetVote())}, m.GetCommit())
	}
	if c.lead != nil {
		c.lead.logged(m.GetEntries())
	}
	if c.mutated(PoolForgetsAtAppend) {
		c.forgetAppended(m.GetEntries())
	}
	if responses := m.GetResponses(); len(responses) > 0 {
		c.whenSafe(func() {
			for _, r := range responses {
				c.transmit(r)
			}
		})
	}
}

// recordHard writes down the state of the election, and how far the log is
// committed.
func (c *Core) recordHard(h hardState, commit uint64) {
	write := c.note
	if h != c.hard && !c.mutated(VoteNotAwaited) {
		c.hard, write = h, c.record
	}
	write(RecordHard, h.term, commit, appendUvarints(nil, h.term, h.vote, commit))
}

// transmit sends an engine's message to whom it is for.
func (c *Core) transmit(m *pb.Message) {
	if m.GetTo() == c.cfg.ID {
		c.step(m)
		return
	}
	if c.silent(m) || c.needless(m) {
		return
	}
	data, err := proto.Marshal(m)
	if err != nil {
		c.fatal(fmt.Errorf("encode a message of the engine: %w", err))
		return
	}
	w := kvwire.Message{Kind: kvwire.Raft, Data: data}
	if m.GetType() == pb.MsgSnap {
		c.out.Ships = append(c.out.Ships, Ship{To: Addr(m.GetTo()), Index: m.GetSnapshot().GetMetadata().GetIndex(), Message: w})
		return
	}
	if m.GetType() == pb.MsgVote {
		// S13: others can elect this replica before its own vote counts. Were
		// the term not on disk, it could lead the same term twice, with two logs.
		c.whenDurable(func() { c.send(Addr(m.GetTo()), w) })
		return
	}
	if m.GetType() == pb.MsgTimeoutNow && c.lead != nil {
		c.lead.handOver(m.GetTo(), &w)
	}
	c.send(Addr(m.GetTo()), w)
}

func (c *Core) step(m *pb.Message) {
	if err := c.node.Step(m); err != nil && !errors.Is(err, raft.ErrProposalDropped) && !errors.Is(err, raft.ErrStepPeerNotFound) {
		c.fatal(fmt.Errorf("engine: %w", err))
	}
}

// deliverRaft hands the engine a peer's message. state is the snapshot that
// came along, if one did.
func (c *Core) deliverRaft(from Addr, w *kvwire.Message, state *incoming) {
	m := &pb.Message{}
	if err := proto.Unmarshal(w.Data, m); err != nil || m.GetFrom() != uint64(from) || !c.sane(m) {
		c.counters.Malformed++
		return
	}
	c.tamper(m)
	switch m.GetType() {
	case pb.MsgVote, pb.MsgPreVote:
		if !c.standing.mayVote(c, m) {
			c.counters.VotesWithheld++
			return
		}
	case pb.MsgTimeoutNow:
		if !c.standing.mayTakeOver(c, m.GetTerm(), w) {
			return
		}
	case pb.MsgSnap:
		if state == nil || m.GetSnapshot().GetMetadata().GetIndex() != state.index {
			c.counters.Malformed++
			return
		}
		c.incoming = state
	case pb.MsgHeartbeat, pb.MsgApp:
		if m.GetTerm() >= c.term {
			c.standing.heard(c)
		}
		if m.GetTerm() >= c.term && (m.GetType() == pb.MsgHeartbeat && c.lostLog(m) || c.contradicts(m)) {
			return
		}
	}
	c.step(m)
	c.observe()
	c.drain()
	c.incoming = nil
}

// drain lets the engine run until it has nothing left to ask for, and reports
// whether it had anything.
func (c *Core) drain() bool {
	ran := false
	for c.out.Fatal == nil && c.node.HasReady() {
		c.ready(c.node.Ready())
		c.observe()
		ran = true
	}
	return ran
}

// observe notices that the engine's term, role or leader changed.
func (c *Core) observe() {
	s := c.node.BasicStatus()
	term, leader, role := s.GetTerm(), s.Lead, s.RaftState
	if term == c.term && leader == c.leader && role == c.role {
		return
	}
	wasTerm := c.term
	if leader != c.leader && leader != 0 {
		c.counters.LeaderChanges++
	}
	c.term, c.leader, c.role = term, leader, role
	if c.lead != nil && (role != raft.StateLeader || term != wasTerm) {
		c.lead.resign()
		c.lead = nil
	}
	if role == raft.StateLeader && c.lead == nil {
		c.lead = newLeadership(c)
	}
}

// lostLog reports, and makes fatal, that the leader knows of more entries on
// this replica's disk than it has: what it acknowledged is gone, and so may be
// its vote.
func (c *Core) lostLog(m *pb.Message) bool {
	c.drain()
	last := c.log.lastIndex()
	if m.GetCommit() <= last {
		return false
	}
	c.fatal(fmt.Errorf("leader %d knows that this replica had the log up to entry %d, but it ends at %d: its disk was lost or is an older copy; replace this member (weir kv member replace)", m.GetFrom(), m.GetCommit(), last))
	return true
}

func (c *Core) fatal(err error) {
	if c.out.Fatal == nil {
		c.out.Fatal = fmt.Errorf("replica %d: %w", c.cfg.ID, err)
	}
}

// refuse answers a request that this replica cannot serve.
func (c *Core) refuse(to Addr, m *kvwire.Message, code uint8, why string) {
	no := kvwire.Message{Kind: kvwire.Refused, Code: code, View: c.view, Session: m.Session, Seq: m.Seq, Request: m.Request, Data: []byte(why)}
	if to == 0 {
		c.forwardRefused(&no) // an intent of this replica
		return
	}
	c.send(to, no)
}

// unknown answers a request of a session that is not in the table. Ids are
// revisions: what was granted up to here and is not here has expired (S8), what
// was granted later this replica does not know yet. Then it no longer leads.
func (c *Core) unknown(from Addr, m *kvwire.Message) {
	if m.Session <= c.revision {
		c.refuse(from, m, kvwire.CodeExpired, "the session is unknown: it expired")
	} else if m.Flags&kvwire.FlagForward == 0 {
		c.redirect(from, m)
	}
}

// redirect tells a client where the leader is, as far as this replica knows.
func (c *Core) redirect(to Addr, m *kvwire.Message) {
	if m.Flags&kvwire.FlagForward != 0 {
		return // the replica that passes it on hears of the leader by itself
	}
	leader := c.leader
	if leader == c.cfg.ID {
		leader = 0
	}
	c.send(to, kvwire.Message{Kind: kvwire.Redirect, View: c.view, Session: m.Session, Seq: m.Seq, Request: m.Request, Leader: leader})
}

// atLeader calls do if this replica leads; a leader that is not open yet keeps
// the request until it is (S6).
func (c *Core) atLeader(from Addr, m *kvwire.Message, do func(*leadership, Addr, *kvwire.Message)) {
	switch {
	case c.lead == nil:
		c.redirect(from, m)
	case c.lead.doubt != "" && m.Kind != kvwire.Configure && m.Flags&kvwire.FlagForward == 0:
		c.refuse(from, m, kvwire.CodeDoubt, c.lead.doubt)
	case !c.lead.open && !c.mutated(ServeBeforeOpen) && !(c.mutated(ReadBeforeOpen) && m.Kind == kvwire.Read):
		c.lead.later(from, m, do)
	default:
		do(c.lead, from, m)
	}
}

// Revision is the number of operations that this replica has applied.
func (c *Core) Revision() uint64 { return c.revision }

// Members lists the members in force, by rising id.
func (c *Core) Members() []Member { return append([]Member(nil), c.members.list...) }

// never is a moment that does not come.
const never = math.MaxInt64

// quiet drops the engine's log lines: what matters is counted and traced here.
type quiet struct{}

func (quiet) Debug(...any)            {}
func (quiet) Debugf(string, ...any)   {}
func (quiet) Error(...any)            {}
func (quiet) Errorf(string, ...any)   {}
func (quiet) Info(...any)             {}
func (quiet) Infof(string, ...any)    {}
func (quiet) Warning(...any)          {}
func (quiet) Warningf(string, ...any) {}
func (quiet) Fatal(v ...any)          { panic(fmt.Sprint(v...)) }
func (quiet) Fatalf(f string, v ...any) {
	panic(fmt.Sprintf(f, v...))
}
func (quiet) Panic(v ...any)            { panic(fmt.Sprint(v...)) }
func (quiet) Panicf(f string, v ...any) { panic(fmt.Sprintf(f, v...)) }
