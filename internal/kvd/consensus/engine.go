package consensus

import (
	"errors"
	"fmt"
	"slices"

	"go.etcd.io/raft/v3"
	pb "go.etcd.io/raft/v3/raftpb"
	"google.golang.org/protobuf/proto"

	"github.com/weirdb/weir/internal/kvd/wire"
)

// engine is the Raft engine with its log, and the state that it last reported.
type engine struct {
	*Core
	node     *raft.RawNode
	log      *memoryLog
	term     uint64
	leader   uint64
	role     raft.StateType
	hard     hardState // the newest recorded term and vote
	incoming *incoming // a snapshot that is being passed to the engine
}

// hardState is what a replica must remember of an election.
type hardState struct{ term, vote uint64 }

// maxTermLeap limits how much newer than this replica's a term may be. Elections take
// milliseconds, so no replica can have reached a term beyond it.
const maxTermLeap = 1 << 40

// plausible reports whether m can come from the engine of another replica. The engine does not check
// its input: it panics on messages that make no sense, or accepts them.
func (en *engine) plausible(m *pb.Message) bool {
	switch m.GetType() {
	case pb.MsgApp:
		return en.plausibleTerm(m) && plausibleEntries(m)
	case pb.MsgAppResp:
		return en.plausibleTerm(m) && len(m.GetEntries()) == 0 && (m.GetReject() || m.GetTerm() != en.term || m.GetIndex() <= en.log.lastIndex())
	case pb.MsgVote, pb.MsgVoteResp, pb.MsgPreVote, pb.MsgPreVoteResp, pb.MsgSnap, pb.MsgHeartbeat, pb.MsgHeartbeatResp, pb.MsgTimeoutNow:
		return en.plausibleTerm(m) && len(m.GetEntries()) == 0
	}
	return false
}

func (en *engine) plausibleTerm(m *pb.Message) bool {
	return m.GetTerm() > 0 && (m.GetTerm() <= en.term || m.GetTerm()-en.term < maxTermLeap)
}

// plausibleEntries reports whether the indexes are consecutive, and the terms neither decrease nor
// exceed the leader's.
func plausibleEntries(m *pb.Message) bool {
	index, term := m.GetIndex(), m.GetLogTerm()
	for _, e := range m.GetEntries() {
		if index++; e.GetIndex() != index || index == 0 || e.GetTerm() < term || e.GetTerm() > m.GetTerm() {
			return false
		}
		term = e.GetTerm()
	}
	return true
}

// contradicts reports whether a leader's entries differ from those committed here. Then one of
// the two has lost what it acknowledged, and this replica stops.
func (en *engine) contradicts(m *pb.Message) bool {
	if len(m.GetEntries()) == 0 {
		return false
	}
	committed := en.node.BasicStatus().GetCommit()
	for _, e := range m.GetEntries() {
		if e.GetIndex() > committed {
			break
		}
		if term, err := en.log.Term(e.GetIndex()); err == nil && term != e.GetTerm() && e.GetIndex() >= en.log.first() {
			en.fatal(fmt.Errorf("entry %d of leader %d is of term %d, but the one that is committed here is of term %d: one of the two disks was lost or is an older copy", e.GetIndex(), m.GetFrom(), e.GetTerm(), term))
			return true
		}
	}
	return false
}

// ready carries out the engine's requests.
func (en *engine) ready(rd raft.Ready) {
	for _, m := range rd.Messages {
		switch m.GetTo() {
		case raft.LocalAppendThread:
			en.store(m)
		case raft.LocalApplyThread:
			for _, e := range m.GetEntries() {
				en.state.apply(e)
			}
			for _, r := range m.GetResponses() {
				en.step(r)
			}
		default:
			en.transmit(m)
		}
	}
}

// store records entries and votes, and holds back the engine's answers until they are durable
// (S13).
func (en *engine) store(m *pb.Message) {
	if s := m.GetSnapshot(); !raft.IsEmptySnap(s) {
		en.state.installed(s)
	}
	// The weak writes of entries that a new leader replaces are recorded as intents before the
	// entries are overwritten on the disk.
	en.weak.truncated(en.log.append(m.GetEntries()))
	for _, e := range m.GetEntries() {
		en.out.record(RecordEntry, e.GetTerm(), e.GetIndex(), append([]byte{byte(e.GetType())}, e.GetData()...))
	}
	// After the entries, which the commit index may include: a crash that keeps the index and
	// loses the entries would leave the replaced entries as if they were committed.
	if m.Term != nil || m.Vote != nil || m.Commit != nil {
		en.recordHard(hardState{m.GetTerm(), en.vote(m.GetVote())}, m.GetCommit())
	}
	if en.lead != nil {
		en.lead.logged(m.GetEntries())
	} else {
		for _, e := range slices.Backward(m.GetEntries()) { // the last entry with a time
			if e.GetType() != pb.EntryNormal || len(e.GetData()) == 0 {
				continue
			}
			if t := entryTime(e.GetData()); t > 0 {
				en.state.noteIssued(e.GetTerm(), t)
				break
			}
		}
	}
	if en.mutated(PoolForgetsAtAppend) {
		en.forgetAppended(m.GetEntries())
	}
	if responses := m.GetResponses(); len(responses) > 0 {
		en.out.whenSafe(func() {
			for _, r := range responses {
				en.transmit(r)
			}
		})
	}
}

// recordHard records term and vote, and the commit index.
func (en *engine) recordHard(h hardState, commit uint64) {
	write := en.out.note
	if h != en.hard && !en.mutated(VoteNotAwaited) {
		en.hard, write = h, en.out.record
	}
	write(RecordHard, h.term, commit, appendUvarints(nil, h.term, h.vote, commit))
}

// transmit sends a message of the engine.
func (en *engine) transmit(m *pb.Message) {
	if m.GetTo() == en.cfg.ID {
		en.step(m)
		return
	}
	if en.silent(m) || en.redundant(m) {
		return
	}
	data, err := proto.Marshal(m)
	if err != nil {
		en.fatal(fmt.Errorf("encode a message of the engine: %w", err))
		return
	}
	w := wire.Message{Kind: wire.Raft, Data: data}
	if m.GetType() == pb.MsgSnap {
		if en.lead != nil {
			en.lead.holds.sent(m.GetTo(), m.GetSnapshot().GetMetadata().GetIndex())
		}
		en.out.effects.Ships = append(en.out.effects.Ships, Ship{To: Addr(m.GetTo()), Index: m.GetSnapshot().GetMetadata().GetIndex(), Message: w})
		return
	}
	if m.GetType() == pb.MsgVote {
		// S13: other replicas can elect this one before its own vote counts. If the term were
		// not on disk, it could lead the same term twice, with two logs.
		en.out.whenDurable(func() { en.out.send(Addr(m.GetTo()), w) })
		return
	}
	if m.GetType() == pb.MsgTimeoutNow && en.lead != nil {
		en.lead.lease.handOver(m.GetTo(), &w)
	}
	en.out.send(Addr(m.GetTo()), w)
}

func (en *engine) step(m *pb.Message) {
	if err := en.node.Step(m); err != nil && !errors.Is(err, raft.ErrProposalDropped) && !errors.Is(err, raft.ErrStepPeerNotFound) {
		en.fatal(fmt.Errorf("engine: %w", err))
	}
}

// deliver passes a message of another replica to the engine. state is the snapshot that came
// with it, if any.
func (en *engine) deliver(from Addr, w *wire.Message, state *incoming) {
	m := &pb.Message{}
	if err := proto.Unmarshal(w.Data, m); err != nil || m.GetFrom() != uint64(from) || !en.plausible(m) {
		en.counters.Malformed++
		return
	}
	en.tamper(m)
	switch m.GetType() {
	case pb.MsgVote, pb.MsgPreVote:
		if !en.election.mayVote(m) {
			en.counters.VotesWithheld++
			return
		}
	case pb.MsgTimeoutNow:
		if !en.election.mayTakeOver(m.GetTerm(), w) {
			return
		}
	case pb.MsgSnap:
		if state == nil || m.GetSnapshot().GetMetadata().GetIndex() != state.index {
			en.counters.Malformed++
			return
		}
		en.incoming = state
	case pb.MsgHeartbeat, pb.MsgApp:
		if m.GetTerm() >= en.term {
			en.election.heard()
		}
		if m.GetTerm() >= en.term && (m.GetType() == pb.MsgHeartbeat && en.lostLog(m) || en.contradicts(m)) {
			return
		}
	}
	en.step(m)
	en.observe()
	en.drain()
	en.incoming = nil
}

// drain runs the engine until it has no more requests, and reports whether it had any.
func (en *engine) drain() bool {
	ran := false
	for en.out.effects.Fatal == nil && en.node.HasReady() {
		en.ready(en.node.Ready())
		en.observe()
		ran = true
	}
	return ran
}

// observe notices changes of the engine's term, role and leader.
func (en *engine) observe() {
	s := en.node.BasicStatus()
	term, leader, role := s.GetTerm(), s.Lead, s.RaftState
	if term == en.term && leader == en.leader && role == en.role {
		return
	}
	wasTerm := en.term
	if leader != en.leader && leader != 0 {
		en.counters.LeaderChanges++
	}
	en.term, en.leader, en.role = term, leader, role
	if en.lead != nil && (role != raft.StateLeader || term != wasTerm) {
		en.lead.resign()
		en.lead = nil
	}
	if role == raft.StateLeader && en.lead == nil {
		en.lead = newLeadership(en.Core)
	}
}

// lostLog reports whether the leader knows of more entries on this replica's disk than it has.
// Then what it acknowledged is lost, perhaps its vote as well, and it stops.
func (en *engine) lostLog(m *pb.Message) bool {
	en.drain()
	last := en.log.lastIndex()
	if m.GetCommit() <= last {
		return false
	}
	en.fatal(fmt.Errorf("leader %d knows that this replica had the log up to entry %d, but it ends at %d: its disk was lost or is an older copy; replace this member (weir kv member replace)", m.GetFrom(), m.GetCommit(), last))
	return true
}
