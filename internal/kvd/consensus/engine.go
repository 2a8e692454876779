package consensus

import (
	"fmt"

	pb "go.etcd.io/raft/v3/raftpb"
)

// maxTermLeap is by how much a term may exceed this replica's: elections take
// milliseconds, so that more is no term that anybody has reached.
const maxTermLeap = 1 << 40

// sane reports whether m is something that the engine of another replica says.
// The engine itself takes what it is told for true, and panics over what it
// cannot make sense of, or goes on with it.
func (c *Core) sane(m *pb.Message) bool {
	switch m.GetType() {
	case pb.MsgApp:
		return c.saneTerm(m) && saneEntries(m)
	case pb.MsgAppResp:
		return c.saneTerm(m) && len(m.GetEntries()) == 0 && (m.GetReject() || m.GetTerm() != c.term || m.GetIndex() <= c.log.lastIndex())
	case pb.MsgVote, pb.MsgVoteResp, pb.MsgPreVote, pb.MsgPreVoteResp, pb.MsgSnap, pb.MsgHeartbeat, pb.MsgHeartbeatResp, pb.MsgTimeoutNow:
		return c.saneTerm(m) && len(m.GetEntries()) == 0
	}
	return false
}

func (c *Core) saneTerm(m *pb.Message) bool {
	return m.GetTerm() > 0 && (m.GetTerm() <= c.term || m.GetTerm()-c.term < maxTermLeap)
}

// saneEntries reports that the entries follow on each other, in terms that do
// not fall and are not newer than the leader's.
func saneEntries(m *pb.Message) bool {
	index, term := m.GetIndex(), m.GetLogTerm()
	for _, e := range m.GetEntries() {
		if index++; e.GetIndex() != index || index == 0 || e.GetTerm() < term || e.GetTerm() > m.GetTerm() {
			return false
		}
		term = e.GetTerm()
	}
	return true
}

// contradicts reports, and makes fatal, that a leader's entries differ from what
// is committed here: one of the two has lost what it acknowledged.
func (c *Core) contradicts(m *pb.Message) bool {
	if len(m.GetEntries()) == 0 {
		return false
	}
	committed := c.node.BasicStatus().GetCommit()
	for _, e := range m.GetEntries() {
		if e.GetIndex() > committed {
			break
		}
		if term, err := c.log.Term(e.GetIndex()); err == nil && term != e.GetTerm() && e.GetIndex() >= c.log.first() {
			c.fatal(fmt.Errorf("entry %d of leader %d is of term %d, but the one that is committed here is of term %d: one of the two disks was lost or is an older copy", e.GetIndex(), m.GetFrom(), e.GetTerm(), term))
			return true
		}
	}
	return false
}
