package consensus

import (
	"go.etcd.io/raft/v3"
	pb "go.etcd.io/raft/v3/raftpb"
)

// memoryLog is the part of the log since the last snapshots, as the engine
// reads it. The disk's copy is for a restart only. entries[0] is a mark at the
// index and term before the first entry that is kept.
type memoryLog struct {
	entries []*pb.Entry
	bytes   int64 // of the entries' data

	hard  *pb.HardState
	conf  *pb.ConfState // at start
	saved snapshotMark  // the newest snapshot on disk
	want  bool          // a snapshot is needed for a replica that is too far behind
	since uint64        // entry of the last change of members: the engine refuses a snapshot from before it joined
}

// snapshotMark names a saved snapshot.
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

// append adds entries, of which the first replaces what stands at its index
// and after it. It returns what was replaced.
func (l *memoryLog) append(entries []*pb.Entry) (replaced []*pb.Entry) {
	if len(entries) == 0 {
		return nil
	}
	base := l.entries[0].GetIndex()
	at := entries[0].GetIndex()
	if at <= base { // a restart reads what the snapshot already holds
		entries = entries[min(base+1-at, uint64(len(entries))):]
		at = base + 1
	}
	if n := at - base; n < uint64(len(l.entries)) {
		replaced = append(replaced, l.entries[n:]...)
		l.entries = l.entries[:n:n] // readers may hold the old part
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

// compact forgets the entries up to index.
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

// reset empties the log; it goes on after index of term.
func (l *memoryLog) reset(index, term uint64) {
	l.entries = []*pb.Entry{{Index: &index, Term: &term}}
	l.bytes = 0
}

// keepIndex is the highest index up to which the log may be forgotten if at
// least keep bytes of entries are to stay for slow replicas.
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
