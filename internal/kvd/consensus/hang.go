package consensus

import (
	"go.etcd.io/raft/v3"
	pb "go.etcd.io/raft/v3/raftpb"
)

// A disk can hang: a write neither completes nor fails. The replica then acknowledges nothing,
// but its core goes on, and as a leader it would keep the others from electing one whose disk
// works. So a leader whose disk hangs sends no heartbeats, entries or stamps. It gets no
// answers then, so that its engine steps down within an election timeout, and the others elect
// another leader. A replica whose disk hangs neither starts an election nor takes over
// leadership.

// Hang sets whether this replica's disk hangs. Call it before Tick.
func (c *Core) Hang(now Clock, hangs bool) {
	c.now = now
	if hangs && !c.out.hangs {
		c.counters.Hangs++
	}
	c.out.hangs = hangs
}

// silent reports whether m must not be sent, because it would keep a leader whose disk hangs in
// office.
func (en *engine) silent(m *pb.Message) bool {
	if !en.out.hangs || en.role != raft.StateLeader || en.mutated(HungLeaderStays) {
		return false
	}
	switch m.GetType() {
	case pb.MsgApp, pb.MsgHeartbeat, pb.MsgTimeoutNow:
		return true
	}
	return false
}
