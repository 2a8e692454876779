package consensus

import pb "go.etcd.io/raft/v3/raftpb"

// told is what this replica has said of its log, to the leader of a term.
type told struct {
	leader, term, index uint64
	tick                uint64 // when
}

// needless reports that m tells its receiver nothing that it needs now. The engine
// says at once how far the log is committed, in a message of its own, and wants an
// answer to it, which is half of all messages. What is held back is said again soon:
// by what follows, or after the tick, from which on nothing is held back that was
// said in it. So a message that the engine depends on, because its receiver has
// missed one before, comes a tick late at worst.
func (en *engine) needless(m *pb.Message) bool {
	switch m.GetType() {
	case pb.MsgApp:
		// The next entries carry the commit index along, and there are some under
		// way: their commit follows.
		if en.lead == nil {
			return false
		}
		if len(m.GetEntries()) > 0 {
			en.lead.fed[m.GetTo()] = en.ticks
			return false
		}
		tick, ok := en.lead.fed[m.GetTo()]
		return ok && en.lately(tick) && en.log.lastIndex() > m.GetCommit()
	case pb.MsgAppResp:
		if m.GetReject() {
			return false
		}
		t := told{m.GetTo(), m.GetTerm(), m.GetIndex(), en.ticks}
		if t.leader == en.told.leader && t.term == en.told.term && en.lately(en.told.tick) && t.index <= en.told.index {
			return true
		}
		en.told = t
	}
	return false
}

// lately reports that something of the given tick need not be said again.
func (en *engine) lately(tick uint64) bool { return tick == en.ticks || en.mutated(SaidOnlyOnce) }
