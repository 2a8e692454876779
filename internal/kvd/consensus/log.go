package consensus

import (
	"go.etcd.io/raft/v3"
	pb "go.etcd.io/raft/v3/raftpb"
)

// memoryLog is the log since one of the last snapshots, as the engine reads it. The copy on
// disk is read only at a restart. entries[0] has the index and term before the first entry that
// is kept, and no data.
type memoryLog struct {
	entries []*pb.Entry
	bytes   int64 // of the entries' data

	hard  *pb.HardState
	conf  *pb.ConfState // at start
	saved snapshotMark  // the newest snapshot on disk
	want  bool          // a replica is so far behind that it needs a snapshot
	since uint64        // entry of the last change of members: the engine refuses an older snapshot
}

// snapshotMark identifies a saved snapshot.
type snapshotMark struct {
	index, term uint64
	conf        *pb.ConfState
}

func newMemoryLog(index, term uint64) *memoryLog {
	return &memoryLog{entries: []*pb.Entry{{Index: &index, Term: &term}}}
}

func (l *memoryLog) InitialState() (*pb.HardState, *pb.ConfState, error) {
	return l.hard, l.conf, nil
}

func (l *memoryLog) first() uint64 { return l.entries[0].GetIndex() + 1 }
func (l *memoryLog) lastIndex() uint64 {
	return l.entries[0].GetIndex() + uint64(len(l.entries)) - 1
}

func (l *memoryLog) FirstIndex() (uint64, error) { return l.first(), nil }
func (l *memoryLog) LastIndex() (uint64, error)  { return l.lastIndex(), nil }

func (l *memoryLog) Term(i uint64) (uint64, error) {
	if i < l.entries[0].GetIndex() {
		return 0, raft.ErrCompacted
	}
	if i > l.lastIndex() {
		return 0, raft.ErrUnavailable
	}
	return l.entries[i-l.entries[0].GetIndex()].GetTerm(), nil
}

func (l *memoryLog) Entries(lo, hi, maxSize uint64) ([]*pb.Entry, error) {
	if lo < l.first() {
		return nil, raft.ErrCompacted
	}
	if hi > l.lastIndex()+1 {
		return nil, raft.ErrUnavailable
	}
	base := l.entries[0].GetIndex()
	part := l.entries[lo-base : hi-base : hi-base]
	size := uint64(0)
	for i, e := range part {
		size += uint64(len(e.GetData())) + 32
		if i > 0 && size > maxSize {
			return part[:i:i], nil
		}
	}
	return part, nil
}

func (l *memoryLog) Snapshot() (*pb.Snapshot, error) {
	if l.saved.conf == nil || l.saved.index < l.since {
		l.want = true
		return nil, raft.ErrSnapshotTemporarilyUnavailable
	}
	index, term := l.saved.index, l.saved.term
	return &pb.Snapshot{Metadata: &pb.SnapshotMetadata{Index: &index, Term: &term, ConfState: l.saved.conf}}, nil
}

// append appends entries, the first of which replaces all entries from its index on. It returns
// the replaced entries.
func (l *memoryLog) append(entries []*pb.Entry) (replaced []*pb.Entry) {
	if len(entries) == 0 {
		return nil
	}
	base := l.entries[0].GetIndex()
	at := entries[0].GetIndex()
	if at <= base { // a restart reads entries that are in the snapshot already
		entries = entries[min(base+1-at, uint64(len(entries))):]
		at = base + 1
	}
	if n := at - base; n < uint64(len(l.entries)) {
		replaced = append(replaced, l.entries[n:]...)
		l.entries = l.entries[:n:n] // the old array may still have readers
		for _, e := range replaced {
			l.bytes -= int64(len(e.GetData()))
		}
	}
	l.entries = append(l.entries, entries...)
	for _, e := range entries {
		l.bytes += int64(len(e.GetData()))
	}
	return replaced
}

// compact drops the entries up to index.
func (l *memoryLog) compact(index uint64) {
	base := l.entries[0].GetIndex()
	if index <= base {
		return
	}
	n := index - base
	kept := make([]*pb.Entry, 0, len(l.entries)-int(n))
	i, t := index, l.entries[n].GetTerm()
	kept = append(kept, &pb.Entry{Index: &i, Term: &t})
	for _, e := range l.entries[1 : n+1] {
		l.bytes -= int64(len(e.GetData()))
	}
	l.entries = append(kept, l.entries[n+1:]...)
}

// reset drops all entries; the log continues after index of term.
func (l *memoryLog) reset(index, term uint64) {
	l.entries = []*pb.Entry{{Index: &index, Term: &term}}
	l.bytes = 0
}

// keepIndex returns the highest index up to which entries may be dropped so that keep bytes of
// entries stay for slow replicas.
func (l *memoryLog) keepIndex(upTo uint64, keep int64) uint64 {
	left := l.bytes
	index := l.entries[0].GetIndex()
	for _, e := range l.entries[1:] {
		if e.GetIndex() > upTo || left-int64(len(e.GetData())) < keep {
			break
		}
		left -= int64(len(e.GetData()))
		index = e.GetIndex()
	}
	return index
}
