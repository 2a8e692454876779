package consensus

import (
	"bufio"
	"bytes"
	"encoding/binary"
	"fmt"
	"io"
	"math"

	"go.etcd.io/raft/v3"
	pb "go.etcd.io/raft/v3/raftpb"

	"github.com/weirdb/weir/internal/kvd/wire"
)

// snapshots saves the state of this replica and restores it after a restart.
type snapshots struct {
	*Core
	saving     bool // a snapshot is being written
	savingMark snapshotMark
	since      int64 // bytes of log applied since the last one
}

// A snapshot is a head, preceded by its length as a uvarint, followed by the machine's state:
//
//	version byte 2, or 3 and the format of the cluster as a uvarint
//	index, term, revision uvarint; log time, alive varint
//	members, sessions
//
// Version 1, which no release wrote, did not have the ids of former members; it is refused.
const (
	snapshotVersion       = 2
	snapshotVersionFormat = 3
)

// head is the replicated state beside that of the machine.
type head struct {
	format                uint64
	index, term, revision uint64
	logTime, alive        int64
	members               members
	sessions              *sessions
}

const maxHead = 1 << 30

// incoming is a snapshot of a leader that the engine has not accepted yet.
type incoming struct {
	index uint64
	head  head
	state io.Reader
}

// maybeSave requests a snapshot when enough log has accumulated, or when another replica needs
// one and there is none.
func (s *snapshots) maybeSave() {
	if s.saving || s.out.effects.Fatal != nil || s.state.applied <= s.engine.log.saved.index {
		return
	}
	if s.since < s.cfg.SnapshotBytes && !s.engine.log.want {
		return
	}
	term, err := s.engine.log.Term(s.state.applied)
	if err != nil {
		s.fatal(fmt.Errorf("term of entry %d: %w", s.state.applied, err))
		return
	}
	h, err := s.appendHead(nil, term)
	if err != nil {
		s.fatal(err)
		return
	}
	s.saving, s.engine.log.want, s.since = true, false, 0
	s.out.effects.Save = &Snapshot{Index: s.state.applied, Term: term, WriterTo: savedState{h, s.state.machine.Snapshot()}}
	s.savingMark = snapshotMark{s.state.applied, term, s.state.members.conf}
}

// savedState writes a head and a machine's state.
type savedState struct {
	head  []byte
	state io.WriterTo
}

func (s savedState) WriteTo(w io.Writer) (int64, error) {
	n, err := w.Write(append(binary.AppendUvarint(nil, uint64(len(s.head))), s.head...))
	if err != nil {
		return int64(n), err
	}
	m, err := s.state.WriteTo(w)
	return int64(n) + m, err
}

func (s *snapshots) appendHead(b []byte, term uint64) ([]byte, error) {
	if s.state.format <= 1 {
		b = append(b, snapshotVersion)
	} else {
		b = appendUvarints(append(b, snapshotVersionFormat), s.state.format)
	}
	b = appendUvarints(b, s.state.applied, term, s.state.revision)
	b = binary.AppendVarint(b, s.state.logTime)
	b = binary.AppendVarint(b, s.state.alive)
	b, err := s.state.members.append(b)
	if err != nil {
		return nil, err
	}
	return s.state.sessionsToSave().append(b), nil
}

// readHead reads the head of a snapshot and returns a reader for the machine's state.
func readHead(r io.Reader) (head, io.Reader, error) {
	br := bufio.NewReader(r)
	n, err := binary.ReadUvarint(br)
	if err != nil {
		return head{}, nil, fmt.Errorf("head of the snapshot: %w", err)
	}
	if n > maxHead {
		return head{}, nil, fmt.Errorf("head of the snapshot: %d bytes", n)
	}
	var b bytes.Buffer // grows with what is read, not by what the length says
	if _, err := io.CopyN(&b, br, int64(n)); err != nil {
		return head{}, nil, fmt.Errorf("head of the snapshot: %w", err)
	}
	h, err := parseHead(b.Bytes())
	if err != nil {
		return head{}, nil, fmt.Errorf("head of the snapshot: %w", err)
	}
	return h, br, nil
}

func parseHead(b []byte) (head, error) {
	in := reader{b: b}
	format := uint64(1)
	switch v := in.byte(); v {
	case snapshotVersion:
	case snapshotVersionFormat:
		format = in.uvarint()
	default:
		return head{}, fmt.Errorf("version %d, want %d or %d: another version of weir wrote it", v, snapshotVersion, snapshotVersionFormat)
	}
	h := head{format: format, index: in.uvarint(), term: in.uvarint(), revision: in.uvarint(), logTime: in.varint(), alive: in.varint()}
	var err error
	if h.members, err = readMembers(&in); err != nil {
		return head{}, err
	}
	if h.sessions, err = readSessions(&in); err != nil {
		return head{}, err
	}
	return h, in.end()
}

// adopt makes a snapshot the state of this replica.
func (s *snapshots) adopt(h head, state io.Reader) error {
	if h.format > s.state.formatKnown() {
		return s.state.tooNew("the snapshot", h.format)
	}
	if err := s.state.machine.Restore(state); err != nil {
		return err
	}
	s.state.formatIs(h.format)
	s.state.applied, s.state.revision, s.state.logTime, s.state.alive = h.index, h.revision, h.logTime, h.alive
	s.state.members, s.state.sessions = h.members, h.sessions
	s.state.members.relocate(s.cfg.Addresses)
	s.state.noteLogged(h.term, h.logTime)
	s.engine.log.since = h.members.index
	return nil
}

// Install passes a snapshot file that a leader has sent together with m. The file is complete,
// verified and on this replica's disk.
func (c *Core) Install(now Clock, from Addr, m *wire.Message, state io.Reader) {
	c.now = now
	h, rest, err := readHead(state)
	if err != nil {
		c.counters.Malformed++
		return
	}
	c.engine.deliver(from, m, &incoming{h.index, h, rest})
}

// SnapshotSaved reports that the snapshot up to index is on disk, or why it is not.
func (c *Core) SnapshotSaved(now Clock, index uint64, err error) {
	c.now = now
	c.snapshots.saving = false
	if err != nil || index != c.snapshots.savingMark.index || index <= c.engine.log.saved.index {
		c.counters.SnapshotsFailed++
		return
	}
	c.counters.Snapshots++
	c.engine.log.saved = c.snapshots.savingMark
	c.snapshots.forget(index)
}

// Shipped reports whether a replica has received this replica's snapshot.
func (c *Core) Shipped(now Clock, to Addr, ok bool) {
	c.now = now
	status := raft.SnapshotFinish
	if !ok {
		status = raft.SnapshotFailure
	}
	if c.lead != nil {
		c.lead.holds.shipped(uint64(to), ok)
	}
	c.engine.node.ReportSnapshot(uint64(to), status)
	c.engine.observe()
}

// recover restores the state from this replica's disk.
func (s *snapshots) recover(r Recovered) error {
	fresh := len(s.state.members.list) > 0
	if fresh {
		term, commit := uint64(bootTerm), uint64(bootIndex)
		s.engine.log.hard = &pb.HardState{Term: &term, Commit: &commit}
		s.state.applied = bootIndex
	}
	if r.Snapshot != nil {
		h, rest, err := readHead(r.Snapshot)
		if err != nil {
			return err
		}
		if err := s.adopt(h, rest); err != nil {
			return fmt.Errorf("restore the snapshot of entry %d: %w", h.index, err)
		}
		s.engine.log.reset(h.index, h.term)
		s.engine.log.saved = snapshotMark{h.index, h.term, h.members.conf}
	}
	if r.Records == nil {
		return nil
	}
	if err := r.Records(s.replay); err != nil {
		return err
	}
	if hard := s.engine.log.hard; hard.GetCommit() < s.state.applied {
		term, vote, commit := max(hard.GetTerm(), bootTerm), hard.GetVote(), s.state.applied
		s.engine.log.hard = &pb.HardState{Term: &term, Vote: &vote, Commit: &commit}
	}
	if last := s.engine.log.lastIndex(); s.engine.log.hard.GetCommit() > last {
		// The commit index may be known before the entries are durable here.
		s.engine.log.hard.Commit = &last
	}
	s.out.effects.Records = nil // records that replaying an old leader's truncation has repeated are on disk already
	return nil
}

// replay applies one record.
func (s *snapshots) replay(r Record) error {
	in := reader{b: r.Data}
	switch r.Kind {
	case RecordEntry:
		if len(r.Data) == 0 {
			return fmt.Errorf("entry %d: %w", r.Index, errEntry)
		}
		if r.Index > s.engine.log.lastIndex()+1 {
			return fmt.Errorf("entry %d follows entry %d: entries are missing between them", r.Index, s.engine.log.lastIndex())
		}
		kind := pb.EntryType(r.Data[0])
		index, term := r.Index, r.Term
		s.engine.log.append([]*pb.Entry{{Index: &index, Term: &term, Type: &kind, Data: r.Data[1:]}})
	case RecordHard:
		term, vote, commit := in.uvarint(), in.uvarint(), in.uvarint()
		if err := in.end(); err != nil {
			return fmt.Errorf("hard state: %w", err)
		}
		s.engine.log.hard = &pb.HardState{Term: &term, Vote: &vote, Commit: &commit}
	case RecordView:
		view, open := in.uvarint(), in.uvarint() == 1
		s.witness.view, s.witness.openView, s.witness.viewOwner, s.witness.openIndex = view, in.uvarint(), in.uvarint(), in.uvarint()
		if err := in.end(); err != nil {
			return fmt.Errorf("view: %w", err)
		}
		if open {
			s.witness.pool.drop(func(r *record) bool { return r.message.View < view })
		}
	case RecordWitness, RecordIntent:
		return s.replayMessage(r)
	case RecordPromise:
		length := in.uvarint()
		if err := in.end(); err != nil {
			return fmt.Errorf("promise: %w", err)
		}
		s.election.longest = min(int64(length&math.MaxInt64), longestPromise)
	case RecordReset:
		if r.Index > s.engine.log.saved.index {
			return fmt.Errorf("a snapshot of entry %d was installed, but the newest on disk is of entry %d", r.Index, s.engine.log.saved.index)
		}
		if r.Index == s.engine.log.saved.index {
			s.engine.log.reset(r.Index, r.Term)
		}
	}
	return nil
}

func (s *snapshots) replayMessage(r Record) error {
	m := &wire.Message{}
	if err := m.Decode(r.Data); err != nil {
		return fmt.Errorf("record of kind %d: %w", r.Kind, err)
	}
	id := opID{m.Session, m.Seq}
	if s.state.decided(id) {
		return nil
	}
	if r.Kind == RecordIntent {
		if s.weak.intents.byOp[id] == nil {
			i := &intent{id: id, message: *m, whole: s.weak.complete(m)}
			s.weak.intents.add(i)
		}
		return nil
	}
	w, ok := s.witness.recordOf(m)
	if !ok {
		return fmt.Errorf("record of write %d of session %d in the witness pool: %w", m.Seq, m.Session, errEntry)
	}
	if old := s.witness.pool.get(id); old != nil {
		s.witness.pool.remove(old)
	}
	s.witness.pool.add(w)
	return nil
}

// Carry returns the records that are still needed besides the entries. A new segment of the log
// starts with them.
func (c *Core) Carry() []Record {
	var hard, open []byte
	h := c.engine.log.hard
	if s := c.engine.node.BasicStatus(); s.HardState != nil {
		h = s.HardState
	}
	hard = appendUvarints(nil, h.GetTerm(), h.GetVote(), h.GetCommit())
	flag := uint64(0)
	if c.witness.view == c.witness.openView {
		flag = 1
	}
	open = appendUvarints(nil, c.witness.view, flag, c.witness.openView, c.witness.viewOwner, c.witness.openIndex)
	records := []Record{{Kind: RecordHard, Term: h.GetTerm(), Index: h.GetCommit(), Data: hard}, {Kind: RecordView, Term: c.witness.view, Index: c.witness.openIndex, Data: open}}
	if c.mutated(CarryForgotten) {
		return records
	}
	if c.election.longest > 0 {
		records = append(records, Record{Kind: RecordPromise, Data: appendUvarints(nil, uint64(c.election.longest))})
	}
	for _, r := range c.witness.pool.records {
		records = append(records, Record{Kind: RecordWitness, Term: r.message.View, Data: r.message.Append(nil)})
	}
	for _, i := range c.weak.intents.list {
		records = append(records, Record{Kind: RecordIntent, Data: i.message.Append(nil)})
	}
	return records
}
