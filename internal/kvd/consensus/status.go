package consensus

import (
	"slices"

	"go.etcd.io/raft/v3"
	"go.etcd.io/raft/v3/tracker"

	"github.com/weirdb/weir/internal/kvd/wire"
)

// Event is an event that matters for safety, for Config.Trace.
type Event struct {
	Kind         EventKind
	View         uint64
	Session, Seq uint64
	Index        uint64
	Time         int64
	Yes          bool
}

// EventKind is a kind of event.
type EventKind uint8

// Kinds of events.
const (
	EventElected   EventKind = iota + 1 // this replica leads the term View
	EventOpened                         // View is open from Index on
	EventVoted                          // this witness voted for a write in View
	EventSpec                           // this leader sent a result before the commit (Yes) or declined to
	EventRecovered                      // this leader found the write in enough pools
	EventWeakDone                       // a weak write was acknowledged
	EventApplied                        // the log entry Index of the term View was applied, completely
	EventPooled                         // this witness has moved to View and sends its pool to the leader
	EventChanging                       // this leader has proposed a change of members; Seq is its verb
	EventPlaced                         // this leader has appended a round at Index of its log, with the store's time Time
)

func (c *Core) trace(e Event) {
	if c.cfg.Trace != nil {
		c.cfg.Trace(e)
	}
}

// Counters count since the start.
type Counters struct {
	Elections, LeaderChanges, VotesWithheld uint64
	Rounds, Operations                      uint64 // as leader
	VotesYes, VotesNo, SpecYes, SpecNo      uint64
	Recovered                               uint64 // writes that this replica found in pools as a new leader
	Expired, Ended, IntentsLost             uint64 // sessions; weak writes
	Snapshots, SnapshotsFailed, Installed   uint64
	Malformed                               uint64
	Diverged                                uint64 // how often a replica's state was found to differ
	Hangs                                   uint64 // how often the disk hung
}

// Status describes a replica for people and metrics. It is a copy.
type Status struct {
	ID, Leader, Term, View uint64
	Open                   bool // View is the newest that this replica knows, and is open
	Role                   string
	Applied, Commit, Last  uint64
	Snapshot               uint64 // the newest saved snapshot
	First                  uint64 // first entry in memory
	Revision               uint64
	LogTime                int64
	StoreTime              int64 // the store's time, as estimated by this replica
	LogBytes               int64
	Members                []Member
	Left                   []uint64 // former members
	Leaves                 []uint64 // those that a change under way takes out: until it has ended their votes are needed
	Voter, Removed         bool
	Format, Knows          uint64 // members that the change in progress removes; their votes are needed until it has ended
	Doubt                  string // why this leader serves no requests: states differ
	Hangs                  bool   // the disk hangs, and this replica does not lead
	Joint                  bool   // a change of voters is half done: the voters before it are still needed
	Sessions               int
	Pool, Intents          int
	Waiting                int // operations that wait for a round, as leader
	InFlight               int // rounds in flight, as leader
	Lanes                  int // rounds that may be in flight
	Peers                  []PeerStatus
	Counters               Counters
}

// PeerStatus is the progress of a member, as the leader knows it.
type PeerStatus struct {
	ID, Match uint64
	State     string
	Learner   bool
}

// Status returns the current state.
func (c *Core) Status() Status {
	s := c.Brief()
	s.Members, s.Left, s.Leaves = c.Members(), slices.Clone(c.state.members.gone), c.state.members.leaving()
	if c.lead != nil {
		c.engine.node.WithProgress(func(id uint64, kind raft.ProgressType, p tracker.Progress) {
			s.Peers = append(s.Peers, PeerStatus{ID: id, Match: p.Match, State: p.State.String(), Learner: kind == raft.ProgressTypeLearner})
		})
	}
	return s
}

// Brief returns the Status without its lists, which are the costly part.
func (c *Core) Brief() Status {
	b := c.engine.node.BasicStatus()
	self, known := c.state.members.get(c.cfg.ID)
	s := Status{
		ID: c.cfg.ID, Leader: c.engine.leader, Term: c.engine.term, View: c.witness.view, Open: c.witness.openView != 0 && c.witness.openView == c.witness.view,
		Role: c.engine.role.String(), Applied: c.state.applied, Commit: b.GetCommit(), Last: c.engine.log.lastIndex(), Snapshot: c.engine.log.saved.index, First: c.engine.log.first(),
		Revision: c.state.revision, LogTime: c.state.logTime, StoreTime: c.state.time(), LogBytes: c.engine.log.bytes,
		Joint: c.state.members.joint(), Hangs: c.out.hangs, Format: c.state.format, Knows: c.state.formatKnown(), Voter: known && !self.Learner, Removed: !known && c.state.members.index > 0 && !slices.Contains(c.state.members.leaving(), c.cfg.ID),
		Sessions: len(c.state.sessions.byID), Pool: len(c.witness.pool.records), Intents: len(c.weak.intents.list), Counters: c.counters,
	}
	if l := c.lead; l != nil {
		s.Open, s.Doubt = s.Open && l.open, l.doubt
		s.Waiting, s.InFlight, s.Lanes = l.queue.Len(), l.queue.InFlight(), l.queue.Lanes()
	}
	return s
}

// View returns the message that a client receives when it connects.
func (c *Core) View() wire.Message { return c.witness.viewMessage() }
