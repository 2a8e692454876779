package consensus

import (
	"go.etcd.io/raft/v3"
	pb "go.etcd.io/raft/v3/raftpb"
)

// A disk can hang: a write neither ends nor fails. Its replica then acknowledges
// nothing, but its core goes on, and as a leader it would keep the others from
// electing one whose disk works. So a leader whose disk hangs falls silent: it
// sends no heartbeats, entries or stamps, is not answered therefore, and the engine
// takes its leadership away within an election timeout, when the others elect
// another. While its disk hangs a replica does not stand for election, and takes
// leadership from nobody.

// Hang reports whether this replica's disk hangs. Call it before Tick.
func (c *Core) Hang(now Clock, hangs bool) {
	c.now = now
	if hangs && !c.out.hangs {
		c.counters.Hangs++
	}
	c.out.hangs = hangs
}

// silent reports that m is not sent, because a leader whose disk hangs must not be
// taken for one that can lead.
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
