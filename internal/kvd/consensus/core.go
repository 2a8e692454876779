package consensus

import (
	"fmt"
	"math"
	"slices"

	"go.etcd.io/raft/v3"
	pb "go.etcd.io/raft/v3/raftpb"

	"github.com/weirdb/weir/internal/kvd/wire"
)

// Core is one replica. Its methods must be called by one goroutine at a time. After one or
// several events, Take returns their effects. The parts embed Core, so that they can reach each
// other.
type Core struct {
	cfg      Config
	now      Clock
	ticks    uint64 // since the start
	counters Counters

	engine    engine      // Raft and its log
	state     state       // what replicas agree on
	witness   witness     // votes on operations that are not ordered yet
	weak      weakOps     // weak writes and reads of clients of this replica
	out       output      // records and messages for the next Take
	snapshots snapshots   // saving, installing and restoring
	election  election    // timers of elections, votes and promises
	lead      *leadership // nil unless this replica leads
	lastAck   ackSent     // the newest answer to the leader's entries
}

// New starts a replica from the contents of its disk. The machine must be empty; it is restored
// from r.Snapshot.
func New(cfg Config, m Machine, r Recovered) (*Core, error) {
	if err := cfg.fill(); err != nil {
		return nil, err
	}
	c := assemble(cfg, m)
	c.state.members.init(cfg.Members)
	c.engine.log = newMemoryLog(bootIndex, bootTerm)
	if len(cfg.Members) == 0 {
		c.engine.log = newMemoryLog(0, 0)
	}
	if err := c.snapshots.recover(r); err != nil {
		return nil, fmt.Errorf("recover replica %d: %w", cfg.ID, err)
	}
	c.state.members.relocate(cfg.Addresses)
	c.engine.log.conf = c.state.members.conf
	node, err := raft.NewRawNode(&raft.Config{
		ID:                        cfg.ID,
		ElectionTick:              cfg.ElectionTicks,
		HeartbeatTick:             cfg.HeartbeatTicks,
		Storage:                   c.engine.log,
		Applied:                   c.state.applied,
		AsyncStorageWrites:        true,
		MaxSizePerMsg:             4 << 20,
		MaxCommittedSizePerReady:  16 << 20,
		MaxUncommittedEntriesSize: 256 << 20,
		MaxInflightMsgs:           256,
		CheckQuorum:               true,
		PreVote:                   true,
		DisableProposalForwarding: true,
		Logger:                    discardLogger{},
	})
	if err != nil {
		return nil, fmt.Errorf("replica %d: %w", cfg.ID, err)
	}
	c.engine.node = node
	c.engine.observe()
	c.election.start()
	return c, nil
}

// assemble puts the parts of a core together.
func assemble(cfg Config, m Machine) *Core {
	c := &Core{cfg: cfg}
	c.state = state{Core: c, machine: m, sessions: newSessions(), format: 1, idle: int64(cfg.SessionIdle)}
	c.engine.Core, c.snapshots.Core, c.election.Core = c, c, c
	c.witness = witness{Core: c, pool: newPool()}
	c.weak = weakOps{Core: c, intents: newIntents(), waiters: commitWaiters{}}
	c.out = output{Core: c, large: map[querier]bool{}}
	return c
}

// The log of a new cluster starts after this position, with the first members in force.
const bootIndex, bootTerm = 1, 1

// Tick advances the timers. Call it every Config.TickNanos.
func (c *Core) Tick(now Clock) {
	c.now = now
	c.ticks++
	if c.engine.role == raft.StateLeader {
		c.engine.node.Tick() // heartbeats, and whether a majority still answers
	} else {
		c.engine.node.TickQuiesced() // only ages the engine's view of the leader: election decides when to start an election, from the seed
		c.election.tick()
	}
	c.engine.observe()
	if c.lead != nil {
		c.lead.tick()
	}
	c.weak.tickIntents()
	c.witness.tick()
	c.weak.tickReads()
}

// Deliver passes a message to the core, which owns the message's byte slices from now on.
func (c *Core) Deliver(now Clock, from Addr, m *wire.Message) {
	c.now = now
	switch m.Kind {
	case wire.Raft:
		c.engine.deliver(from, m, nil)
	case wire.Strong:
		c.atLeader(from, m, (*leadership).write)
	case wire.Weak:
		c.weak.write(from, m)
	case wire.Read:
		c.atLeader(from, m, (*leadership).read)
	case wire.Register:
		c.atLeader(from, m, (*leadership).register)
	case wire.Configure:
		c.atLeader(from, m, func(l *leadership, from Addr, m *wire.Message) { l.changes.configure(from, m) })
	case wire.WeakRead:
		c.weak.read(from, m)
	case wire.Stable:
		c.weak.awaitCommit(from, m)
	case wire.Record:
		c.witness.vote(from, m)
	case wire.PoolCollect:
		c.witness.collect(from, m)
	case wire.Pool:
		if c.lead != nil {
			c.lead.view.pooled(uint64(from), m)
		}
	case wire.NewView:
		c.witness.newView(m)
	case wire.Lease:
		c.election.lease(from, m)
	case wire.Refused:
		if m.Code == wire.CodeDiverged {
			c.diverged(from, m)
			return
		}
		c.weak.forwardRefused(m)
	}
}

// Persisted reports that the records of ticket, and of all tickets before it, are durable.
func (c *Core) Persisted(now Clock, ticket uint64) {
	c.now = now
	c.out.flushed = max(c.out.flushed, ticket)
	n := 0
	for n < len(c.out.waiting) && c.out.waiting[n].ticket <= ticket {
		n++
	}
	ready := append([]promise(nil), c.out.waiting[:n]...)
	c.out.waiting = append(c.out.waiting[:0], c.out.waiting[n:]...)
	for _, p := range ready {
		p.do()
	}
	c.engine.observe()
}

// Take starts a round if one is due, runs the engine, and returns all effects since the last
// Take. The caller owns them.
func (c *Core) Take(now Clock) Effects {
	c.now = now
	if c.lead != nil {
		c.lead.startRounds()
	}
	for c.engine.drain() {
		if c.lead != nil {
			c.lead.startRounds() // what was applied may have freed a lane
		}
	}
	if c.lead != nil {
		c.lead.release()
	}
	if len(c.weak.reads) > 0 {
		c.weak.retryReads()
	}
	c.snapshots.maybeSave()
	if len(c.out.waiting) > 0 && c.out.waiting[len(c.out.waiting)-1].ticket > c.out.ticket && len(c.out.effects.Records) == 0 {
		// Something waits for the disk but there are no new records: an empty set of records
		// takes its place behind those in flight.
		c.out.effects.Records = []Record{}
		c.out.sync = true
	}
	e := c.out.effects
	if e.Records != nil {
		c.out.ticket++
		e.Ticket = c.out.ticket
		e.Sync = c.out.sync
	}
	if c.lead != nil {
		e.Wake = c.lead.wake()
	}
	c.out.effects, c.out.sync, c.out.answerBytes = Effects{}, false, 0
	if len(c.weak.reads) == 0 && (c.lead == nil || len(c.lead.reads) == 0) {
		clear(c.out.large)
	}
	return e
}

func (c *Core) fatal(err error) {
	if c.out.effects.Fatal == nil {
		c.out.effects.Fatal = fmt.Errorf("replica %d: %w", c.cfg.ID, err)
	}
}

// refuse answers a request that this replica cannot serve.
func (c *Core) refuse(to Addr, m *wire.Message, code uint8, why string) {
	no := wire.Message{Kind: wire.Refused, Code: code, View: c.witness.view, Session: m.Session, Seq: m.Seq, Request: m.Request, Data: []byte(why)}
	if to == 0 {
		c.weak.forwardRefused(&no) // an intent of this replica
		return
	}
	c.out.send(to, no)
}

// unknown answers a request of a session that is not in the table. Session ids are revisions:
// an id up to the current revision was granted and has expired (S8). This replica does not know
// later ids yet, which means that it no longer leads.
func (c *Core) unknown(from Addr, m *wire.Message) {
	if m.Session <= c.state.revision {
		c.refuse(from, m, wire.CodeExpired, "the session is unknown: it expired")
	} else if m.Flags&wire.FlagForward == 0 {
		c.redirect(from, m)
	}
}

// redirect tells a client which replica leads, as far as this replica knows.
func (c *Core) redirect(to Addr, m *wire.Message) {
	if m.Flags&wire.FlagForward != 0 {
		return // the replica that forwards the request learns of the leader by itself
	}
	leader := c.engine.leader
	if leader == c.cfg.ID {
		leader = 0
	}
	c.out.send(to, wire.Message{Kind: wire.Redirect, View: c.witness.view, Session: m.Session, Seq: m.Seq, Request: m.Request, Leader: leader})
}

// atLeader calls do if this replica leads. A leader whose view is not open yet keeps the
// request until it is (S6).
func (c *Core) atLeader(from Addr, m *wire.Message, do func(*leadership, Addr, *wire.Message)) {
	switch {
	case c.lead == nil:
		c.redirect(from, m)
	case c.lead.doubt != "" && m.Kind != wire.Configure && m.Flags&wire.FlagForward == 0:
		c.refuse(from, m, wire.CodeDoubt, c.lead.doubt)
	case !c.lead.open && !c.mutated(ServeBeforeOpen) && !(c.mutated(ReadBeforeOpen) && m.Kind == wire.Read):
		c.lead.delay(from, m, do)
	default:
		do(c.lead, from, m)
	}
}

// Revision returns the number of operations that this replica has applied.
func (c *Core) Revision() uint64 { return c.state.revision }

// Fresh reports whether this replica has neither promised anything to another replica nor
// accepted anything from one, so that a new replica could take its place.
func (c *Core) Fresh() bool {
	hard := c.engine.log.hard
	return c.engine.log.lastIndex() <= bootIndex && hard.GetTerm() <= bootTerm && hard.GetVote() == 0 &&
		c.witness.view == 0 && len(c.witness.pool.records) == 0 && len(c.weak.intents.list) == 0 && c.election.longest == 0 && c.state.applied <= bootIndex
}

// FirstMembers returns the ids of the replicas that founded the cluster, in ascending order. It
// returns none if the members have changed since, even by an entry of the log that is not
// applied yet, or if this replica waits to be added.
func (c *Core) FirstMembers() (ids []uint64) {
	m := &c.state.members
	changes := func(e *pb.Entry) bool { return e.GetType() == pb.EntryConfChangeV2 }
	if m.index > 0 || slices.ContainsFunc(c.engine.log.entries, changes) {
		return nil
	}
	for _, p := range m.list {
		ids = append(ids, p.ID)
	}
	return ids
}

// SoleMember reports whether no other replica is or was a member.
func (c *Core) SoleMember() bool {
	f := c.FirstMembers()
	return len(f) == 1 && f[0] == c.cfg.ID
}

// Members returns the members in force, by ascending id.
func (c *Core) Members() []Member { return append([]Member(nil), c.state.members.list...) }

// never is a time that does not come.
const never = math.MaxInt64

// discardLogger drops the engine's log messages: the core counts and traces what matters.
type discardLogger struct{}

func (discardLogger) Debug(...any)            {}
func (discardLogger) Debugf(string, ...any)   {}
func (discardLogger) Error(...any)            {}
func (discardLogger) Errorf(string, ...any)   {}
func (discardLogger) Info(...any)             {}
func (discardLogger) Infof(string, ...any)    {}
func (discardLogger) Warning(...any)          {}
func (discardLogger) Warningf(string, ...any) {}
func (discardLogger) Fatal(v ...any)          { panic(fmt.Sprint(v...)) }
func (discardLogger) Fatalf(f string, v ...any) {
	panic(fmt.Sprintf(f, v...))
}
func (discardLogger) Panic(v ...any)            { panic(fmt.Sprint(v...)) }
func (discardLogger) Panicf(f string, v ...any) { panic(fmt.Sprintf(f, v...)) }
