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

	"github.com/weirdb/weir/internal/kvd/kvwire"
)

// A snapshot is a head, preceded by its length as a uvarint, and the machine's
// state:
//
//	version byte 2, or 3 and the format of the cluster as a uvarint
//	index, term, revision uvarint; log time, alive varint
//	members, sessions
//
// Version 1, which no release wrote, did not know the ids of members that left;
// it is refused.
const (
	snapshotVersion       = 2
	snapshotVersionFormat = 3
)

// head is the replicated state besides the machine's.
type head struct {
	format                uint64
	index, term, revision uint64
	logTime, alive        int64
	members               members
	sessions              *sessions
}

const maxHead = 1 << 30

// incoming is a snapshot that a leader sent, until the engine accepts it.
type incoming struct {
	index uint64
	head  head
	state io.Reader
}

// maybeSave asks for a snapshot when enough log has gathered, or when another
// replica needs one and there is none.
func (c *Core) maybeSave() {
	if c.saving || c.out.Fatal != nil || c.applied <= c.log.saved.index {
		return
	}
	if c.sinceSnapshot < c.cfg.SnapshotBytes && !c.log.want {
		return
	}
	term, err := c.log.Term(c.applied)
	if err != nil {
		c.fatal(fmt.Errorf("term of entry %d: %w", c.applied, err))
		return
	}
	h, err := c.appendHead(nil, term)
	if err != nil {
		c.fatal(err)
		return
	}
	c.saving, c.log.want, c.sinceSnapshot = true, false, 0
	c.out.Save = &Snapshot{Index: c.applied, Term: term, WriterTo: savedState{h, c.machine.Snapshot()}}
	c.savingMark = snapshotMark{c.applied, term, c.members.conf}
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

func (c *Core) appendHead(b []byte, term uint64) ([]byte, error) {
	if c.format <= 1 {
		b = append(b, snapshotVersion)
	} else {
		b = appendUvarints(append(b, snapshotVersionFormat), c.format)
	}
	b = appendUvarints(b, c.applied, term, c.revision)
	b = binary.AppendVarint(b, c.logTime)
	b = binary.AppendVarint(b, c.alive)
	b, err := c.members.append(b)
	if err != nil {
		return nil, err
	}
	return c.sessionsToSave().append(b), nil
}

// readHead reads the head of a snapshot and leaves the machine's state in the
// reader that it returns.
func readHead(r io.Reader) (head, io.Reader, error) {
	br := bufio.NewReader(r)
	n, err := binary.ReadUvarint(br)
	if err != nil {
		return head{}, nil, fmt.Errorf("head of the snapshot: %w", err)
	}
	if n > maxHead {
		return head{}, nil, fmt.Errorf("head of the snapshot: %d bytes", n)
	}
	var b bytes.Buffer // grows with what is there, not with what is promised
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

// adopt makes a snapshot this replica's state.
func (c *Core) adopt(h head, state io.Reader) error {
	if h.format > c.formatKnown() {
		return c.tooNew("the snapshot", h.format)
	}
	if err := c.machine.Restore(state); err != nil {
		return err
	}
	c.formatIs(h.format)
	c.applied, c.revision, c.logTime, c.alive = h.index, h.revision, h.logTime, h.alive
	c.members, c.sessions = h.members, h.sessions
	if c.steady.runs { // else it begins with the log's
		c.timeComes(c.logTime)
	}
	c.log.since = h.members.index
	return nil
}

// Install hands in a snapshot file that a leader sent along with m. The file is
// whole and verified, and is on this replica's disk.
func (c *Core) Install(now Clock, from Addr, m *kvwire.Message, state io.Reader) {
	c.now = now
	h, rest, err := readHead(state)
	if err != nil {
		c.counters.Malformed++
		return
	}
	c.deliverRaft(from, m, &incoming{h.index, h, rest})
}

// SnapshotSaved says that the snapshot up to index is on disk, or why it is not.
func (c *Core) SnapshotSaved(now Clock, index uint64, err error) {
	c.now = now
	c.saving = false
	if err != nil || index != c.savingMark.index || index <= c.log.saved.index {
		c.counters.SnapshotsFailed++
		return
	}
	c.counters.Snapshots++
	c.log.saved = c.savingMark
	c.log.compact(c.log.keepIndex(index, c.cfg.KeepBytes))
}

// Shipped says whether a replica has received this replica's snapshot.
func (c *Core) Shipped(now Clock, to Addr, ok bool) {
	c.now = now
	status := raft.SnapshotFinish
	if !ok {
		status = raft.SnapshotFailure
	}
	c.node.ReportSnapshot(uint64(to), status)
	c.observe()
}

// recover reads this replica's disk.
func (c *Core) recover(r Recovered) error {
	fresh := len(c.members.list) > 0
	if fresh {
		term, commit := uint64(bootTerm), uint64(bootIndex)
		c.log.hard = &pb.HardState{Term: &term, Commit: &commit}
		c.applied = bootIndex
	}
	if r.Snapshot != nil {
		h, rest, err := readHead(r.Snapshot)
		if err != nil {
			return err
		}
		if err := c.adopt(h, rest); err != nil {
			return fmt.Errorf("restore the snapshot of entry %d: %w", h.index, err)
		}
		c.log.reset(h.index, h.term)
		c.log.saved = snapshotMark{h.index, h.term, h.members.conf}
	}
	if r.Records == nil {
		return nil
	}
	if err := r.Records(c.replay); err != nil {
		return err
	}
	if hard := c.log.hard; hard.GetCommit() < c.applied {
		term, vote, commit := max(hard.GetTerm(), bootTerm), hard.GetVote(), c.applied
		c.log.hard = &pb.HardState{Term: &term, Vote: &vote, Commit: &commit}
	}
	if last := c.log.lastIndex(); c.log.hard.GetCommit() > last {
		// The commit may be known before the entries are durable here.
		c.log.hard.Commit = &last
	}
	c.out.Records = nil // what replaying an old leader's truncation repeated is on disk already
	return nil
}

// replay takes one record back.
func (c *Core) replay(r Record) error {
	in := reader{b: r.Data}
	switch r.Kind {
	case RecordEntry:
		if len(r.Data) == 0 {
			return fmt.Errorf("entry %d: %w", r.Index, errEntry)
		}
		if r.Index > c.log.lastIndex()+1 {
			return fmt.Errorf("entry %d follows entry %d: entries are missing between them", r.Index, c.log.lastIndex())
		}
		kind := pb.EntryType(r.Data[0])
		index, term := r.Index, r.Term
		c.log.append([]*pb.Entry{{Index: &index, Term: &term, Type: &kind, Data: r.Data[1:]}})
	case RecordHard:
		term, vote, commit := in.uvarint(), in.uvarint(), in.uvarint()
		if err := in.end(); err != nil {
			return fmt.Errorf("hard state: %w", err)
		}
		c.log.hard = &pb.HardState{Term: &term, Vote: &vote, Commit: &commit}
	case RecordView:
		view, open := in.uvarint(), in.uvarint() == 1
		c.view, c.openView, c.viewOwner, c.openIndex = view, in.uvarint(), in.uvarint(), in.uvarint()
		if err := in.end(); err != nil {
			return fmt.Errorf("view: %w", err)
		}
		if open {
			c.pool.drop(func(r *record) bool { return r.message.View < view })
		}
	case RecordWitness, RecordIntent:
		return c.replayMessage(r)
	case RecordPromise:
		length := in.uvarint()
		if err := in.end(); err != nil {
			return fmt.Errorf("promise: %w", err)
		}
		c.standing.longest = min(int64(length&math.MaxInt64), longestPromise)
	case RecordReset:
		if r.Index > c.log.saved.index {
			return fmt.Errorf("a snapshot of entry %d was installed, but the newest on disk is of entry %d", r.Index, c.log.saved.index)
		}
		if r.Index == c.log.saved.index {
			c.log.reset(r.Index, r.Term)
		}
	}
	return nil
}

func (c *Core) replayMessage(r Record) error {
	m := &kvwire.Message{}
	if err := m.Decode(r.Data); err != nil {
		return fmt.Errorf("record of kind %d: %w", r.Kind, err)
	}
	id := opID{m.Session, m.Seq}
	if c.over(id) {
		return nil
	}
	if r.Kind == RecordIntent {
		if c.intents.byOp[id] == nil {
			i := &intent{id: id, message: *m, whole: c.whole(m)}
			c.intents.add(i)
		}
		return nil
	}
	w, ok := c.recordOf(m)
	if !ok {
		return fmt.Errorf("record of write %d of session %d in the witness pool: %w", m.Seq, m.Session, errEntry)
	}
	if old := c.pool.get(id); old != nil {
		c.pool.remove(old)
	}
	c.pool.add(w)
	return nil
}

// Carry lists the records that are still needed besides the entries, as a new
// segment of the log begins with them.
func (c *Core) Carry() []Record {
	var hard, open []byte
	h := c.log.hard
	if s := c.node.BasicStatus(); s.HardState != nil {
		h = s.HardState
	}
	hard = appendUvarints(nil, h.GetTerm(), h.GetVote(), h.GetCommit())
	flag := uint64(0)
	if c.view == c.openView {
		flag = 1
	}
	open = appendUvarints(nil, c.view, flag, c.openView, c.viewOwner, c.openIndex)
	records := []Record{{Kind: RecordHard, Term: h.GetTerm(), Index: h.GetCommit(), Data: hard}, {Kind: RecordView, Term: c.view, Index: c.openIndex, Data: open}}
	if c.mutated(CarryForgotten) {
		return records
	}
	if c.standing.longest > 0 {
		records = append(records, Record{Kind: RecordPromise, Data: appendUvarints(nil, uint64(c.standing.longest))})
	}
	for _, r := range c.pool.records {
		records = append(records, Record{Kind: RecordWitness, Term: r.message.View, Data: r.message.Append(nil)})
	}
	for _, i := range c.intents.list {
		records = append(records, Record{Kind: RecordIntent, Data: i.message.Append(nil)})
	}
	return records
}
