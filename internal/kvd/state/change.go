package state

import (
	"slices"
	"sort"

	"github.com/weirdb/weir/internal/kvd/wire"
)

// Change is a change of a key. Value is the store's memory, which never changes and must not be
// changed. A key that expired has the revision of the first operation since. There is a Put
// also if only the time to live changed.
type Change = wire.Change

// ChangeKind is a kind of change.
type ChangeKind = wire.ChangeKind

// Kinds of changes.
const (
	Put     = wire.ChangePut    // the key was set
	Deleted = wire.ChangeDelete // a command removed it
	Expired = wire.ChangeExpire // its time to live or its lease has ended
)

// changeLog has the newest changes, oldest first: those after kept[:head].
type changeLog struct {
	limit, limitBytes int
	kept              []Change
	head              int
	fresh             int    // number of the newest changes that Changes has not returned yet
	bytes             int    // size of the keys and values
	compacted         uint64 // changes up to this revision may be missing
}

func newChangeLog(c Config) changeLog {
	if c.ChangeBytes == 0 {
		c.ChangeBytes = 64 << 20
	}
	return changeLog{limit: c.Changes, limitBytes: c.ChangeBytes}
}

func sizeOf(c *Change) int { return len(c.Key) + len(c.Value) }

func (s *Store) record(c Change) {
	if l := &s.log; l.limit > 0 {
		l.kept = append(l.kept, c)
		l.bytes += sizeOf(&c)
		l.fresh++
	}
}

// Changes returns the changes since the last call, in order; several changes may have the same
// revision. The slice is valid until the next Apply or Restore. It does not include a Restore:
// after it, watchers must be told to start again.
func (s *Store) Changes() []Change {
	l := &s.log
	l.trim(len(l.kept) - l.fresh)
	fresh := l.kept[len(l.kept)-l.fresh:]
	l.fresh = 0
	return slices.Clip(fresh)
}

// trim drops the oldest changes while there are too many, but none at or after position end.
func (l *changeLog) trim(end int) {
	for l.head < end && (len(l.kept)-l.head > l.limit || l.bytes > l.limitBytes) {
		c := &l.kept[l.head]
		l.compacted = c.Revision
		l.bytes -= sizeOf(c)
		*c = Change{}
		l.head++
	}
	if l.head > len(l.kept)/2 {
		n := copy(l.kept, l.kept[l.head:])
		clear(l.kept[n:])
		l.kept, l.head = l.kept[:n], 0
	}
}

// forgetAll drops all changes: those up to revision are unknown now.
func (l *changeLog) forgetAll(revision uint64) {
	clear(l.kept)
	l.kept, l.head, l.fresh, l.bytes, l.compacted = l.kept[:0], 0, 0, 0, revision
}

// Untouched deletes from since each key that was stored or removed after its revision there,
// and each key for which the store does not know, because it keeps too few changes or was
// restored since. It visits each change once, whatever the number of keys.
func (s *Store) Untouched(since map[string]uint64) {
	l := &s.log
	first := s.revision
	for key, at := range since {
		if at > s.revision || at < l.compacted || l.limit == 0 && at < s.revision {
			delete(since, key)
		} else {
			first = min(first, at)
		}
	}
	kept := l.kept[l.head:]
	start := sort.Search(len(kept), func(i int) bool { return kept[i].Revision > first })
	for i := start; i < len(kept) && len(since) > 0; i++ {
		if at, asked := since[kept[i].Key]; asked && kept[i].Revision > at {
			delete(since, kept[i].Key)
		}
	}
}

// History returns the changes to keys of span from revision from on, about limit of them (0:
// all; changes of one revision stay together), and the revision to continue from. compacted
// reports that some of them are unknown: the watcher must read the keys again.
func (s *Store) History(from uint64, span wire.Span, limit int) (changes []Change, next uint64, compacted bool) {
	l := &s.log
	if from <= l.compacted || l.limit == 0 && from <= s.revision {
		return nil, 0, true
	}
	kept := l.kept[l.head:]
	start := sort.Search(len(kept), func(i int) bool { return kept[i].Revision >= from })
	for _, c := range kept[start:] {
		if limit > 0 && len(changes) >= limit && c.Revision != changes[len(changes)-1].Revision {
			return changes, c.Revision, false
		}
		if span.Holds(c.Key) {
			changes = append(changes, c)
		}
	}
	return changes, max(from, s.revision+1), false
}
