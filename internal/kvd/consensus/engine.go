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

// engine is the Raft engine with its log, and what it last told of itself.
type engine struct {
	*Core
	node     *raft.RawNode
	log      *memoryLog
	term     uint64
	leader   uint64
	role     raft.StateType
	hard     hardState // the newest term and vote among the records
	incoming *incoming // a snapshot on its way into the engine
}

// hardState is what a replica must not forget of an election.
type hardState struct{ term, vote uint64 }

// maxTermLeap is by how much a term may exceed this replica's: elections take
// milliseconds, so that more is no term that anybody has reached.
const maxTermLeap = 1 << 40

// sane reports whether m is something that the engine of another replica says.
// The engine itself takes what it is told for true, and panics over what it
// cannot make sense of, or goes on with it.
func (en *engine) sane(m *pb.Message) bool {
	switch m.GetType() {
	case pb.MsgApp:
		return en.saneTerm(m) && saneEntries(m)
	case pb.MsgAppResp:
		return en.saneTerm(m) && len(m.GetEntries()) == 0 && (m.GetReject() || m.GetTerm() != en.term || m.GetIndex() <= en.log.lastIndex())
	case pb.MsgVote, pb.MsgVoteResp, pb.MsgPreVote, pb.MsgPreVoteResp, pb.MsgSnap, pb.MsgHeartbeat, pb.MsgHeartbeatResp, pb.MsgTimeoutNow:
		return en.saneTerm(m) && len(m.GetEntries()) == 0
	}
	return false
}

func (en *engine) saneTerm(m *pb.Message) bool {
	return m.GetTerm() > 0 && (m.GetTerm() <= en.term || m.GetTerm()-en.term < maxTermLeap)
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

// ready carries out what the engine asks for.
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

// store writes entries and votes down and lets the engine's answers wait for
// the disk (S13).
func (en *engine) store(m *pb.Message) {
	if s := m.GetSnapshot(); !raft.IsEmptySnap(s) {
		en.state.installed(s)
	}
	// Entries that a new leader's entries replace go to the disk as intents before they are gone
	// from there.
	en.weak.truncated(en.log.append(m.GetEntries()))
	for _, e := range m.GetEntries() {
		en.out.record(RecordEntry, e.GetTerm(), e.GetIndex(), append([]byte{byte(e.GetType())}, e.GetData()...))
	}
	// After the entries: the commit index may cover them, and a crash that keeps
	// it and loses them would leave what they replaced, as if it were committed.
	if m.Term != nil || m.Vote != nil || m.Commit != nil {
		en.recordHard(hardState{m.GetTerm(), en.vote(m.GetVote())}, m.GetCommit())
	}
	if en.lead != nil {
		en.lead.logged(m.GetEntries())
	} else {
		for _, e := range slices.Backward(m.GetEntries()) { // the last one that has a time
			if e.GetType() != pb.EntryNormal || len(e.GetData()) == 0 {
				continue
			}
			if t := entryTime(e.GetData()); t > 0 {
				en.state.timeComes(e.GetTerm(), t)
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

// recordHard writes down the state of the election, and how far the log is
// committed.
func (en *engine) recordHard(h hardState, commit uint64) {
	write := en.out.note
	if h != en.hard && !en.mutated(VoteNotAwaited) {
		en.hard, write = h, en.out.record
	}
	write(RecordHard, h.term, commit, appendUvarints(nil, h.term, h.vote, commit))
}

// transmit sends an engine's message to whom it is for.
func (en *engine) transmit(m *pb.Message) {
	if m.GetTo() == en.cfg.ID {
		en.step(m)
		return
	}
	if en.silent(m) || en.needless(m) {
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
		// S13: others can elect this replica before its own vote counts. Were
		// the term not on disk, it could lead the same term twice, with two logs.
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

// deliver hands the engine a peer's message. state is the snapshot that
// came along, if one did.
func (en *engine) deliver(from Addr, w *wire.Message, state *incoming) {
	m := &pb.Message{}
	if err := proto.Unmarshal(w.Data, m); err != nil || m.GetFrom() != uint64(from) || !en.sane(m) {
		en.counters.Malformed++
		return
	}
	en.tamper(m)
	switch m.GetType() {
	case pb.MsgVote, pb.MsgPreVote:
		if !en.standing.mayVote(m) {
			en.counters.VotesWithheld++
			return
		}
	case pb.MsgTimeoutNow:
		if !en.standing.mayTakeOver(m.GetTerm(), w) {
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
			en.standing.heard()
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

// drain lets the engine run until it has nothing left to ask for, and reports
// whether it had anything.
func (en *engine) drain() bool {
	ran := false
	for en.out.effects.Fatal == nil && en.node.HasReady() {
		en.ready(en.node.Ready())
		en.observe()
		ran = true
	}
	return ran
}

// observe notices that the engine's term, role or leader changed.
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

// lostLog reports, and makes fatal, that the leader knows of more entries on
// this replica's disk than it has: what it acknowledged is gone, and so may be
// its vote.
func (en *engine) lostLog(m *pb.Message) bool {
	en.drain()
	last := en.log.lastIndex()
	if m.GetCommit() <= last {
		return false
	}
	en.fatal(fmt.Errorf("leader %d knows that this replica had the log up to entry %d, but it ends at %d: its disk was lost or is an older copy; replace this member (weir kv member replace)", m.GetFrom(), m.GetCommit(), last))
	return true
}
