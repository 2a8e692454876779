package consensus

import pb "go.etcd.io/raft/v3/raftpb"

// ackSent is the last acknowledgement of entries that this replica has sent to the leader of a
// term.
type ackSent struct {
	leader, term, index uint64
	tick                uint64 // when it was sent
}

// redundant reports whether the receiver can do without m for now. The engine announces every
// commit at once in a message of its own, and wants an answer to it: half of all messages. What
// is suppressed is sent again soon, with the next entries or after the tick, since a message is
// suppressed only within the tick in which another said the same. So if the receiver has missed
// that one, the message that it needs comes a tick late at worst.
func (en *engine) redundant(m *pb.Message) bool {
	switch m.GetType() {
	case pb.MsgApp:
		// The next entries carry the commit index, and some are in flight whose commit follows.
		if en.lead == nil {
			return false
		}
		if len(m.GetEntries()) > 0 {
			en.lead.fed[m.GetTo()] = en.ticks
			return false
		}
		tick, ok := en.lead.fed[m.GetTo()]
		return ok && en.thisTick(tick) && en.log.lastIndex() > m.GetCommit()
	case pb.MsgAppResp:
		if m.GetReject() {
			return false
		}
		t := ackSent{m.GetTo(), m.GetTerm(), m.GetIndex(), en.ticks}
		if t.leader == en.lastAck.leader && t.term == en.lastAck.term && en.thisTick(en.lastAck.tick) && t.index <= en.lastAck.index {
			return true
		}
		en.lastAck = t
	}
	return false
}

// thisTick reports whether what was sent at tick need not be repeated yet.
func (en *engine) thisTick(tick uint64) bool { return tick == en.ticks || en.mutated(SaidOnlyOnce) }
