package replica

import (
	"cmp"
	"errors"
	"slices"

	"github.com/weirdb/weir/internal/kvd/consensus/session"
	"github.com/weirdb/weir/internal/kvd/resp"
)

// unfit is a read whose answer did not fit the client's connection: it is asked
// again when the client has read others. Until then nothing that was issued after it
// is asked for, so that it sees no later write; and later reads in flight are
// asked for again, too, so that no answer is older than one that was asked for before it.
type unfit struct {
	tag     uint64
	command []byte
	size    int // of the answer that was dropped
}

// entry returns a request in flight, nil if it was given up.
func (l *line) entry(tag uint64) *entry {
	if tag < l.first || tag-l.first >= uint64(len(l.entries)) {
		return nil
	}
	return &l.entries[tag-l.first]
}

// unfit counts the answer in o, unless it must be dropped.
func (l *line) unfit(e *entry, o *session.Outcome) bool {
	l.coming -= e.coming
	e.coming = 0
	if o.Command != nil {
		l.learn(len(o.Result))
	}
	switch size := len(o.Result); {
	case e.reply == nil || e.wait != nil:
		return false
	case o.Command == nil:
		e.reply.ForceAccept(size)
		return false
	case !e.stale && e.reply.Accept(size):
		return false
	default:
		e.waits = true
		l.park(unfit{o.Tag, o.Command, size})
		for i := o.Tag - l.first + 1; i < uint64(len(l.entries)); i++ {
			behind := &l.entries[i]
			behind.stale = behind.stale || !behind.waits
		}
		return true
	}
}

// A line has as many reads in flight as their answers will probably fit: an answer that does not
// fit was sent in vain, through a connection that others use, too.
const (
	firstReads = 16
	mostReads  = 1000
	mostComing = 16 << 20 // bytes of answers
)

// learn adjusts the window to the size of an answer.
func (l *line) learn(size int) {
	most := min(max(mostComing/max(size, 1), 2), mostReads)
	l.window = min(l.window+1, most)
}

// locally is how many reads of this replica's state are in flight.
func (l *line) locally() int { return l.locals + len(l.local) }

// park keeps a read until it is asked again, in the order of issue.
func (l *line) park(u unfit) {
	at, _ := slices.BinarySearchFunc(l.again, u.tag, func(u unfit, tag uint64) int { return cmp.Compare(u.tag, tag) })
	l.again = slices.Insert(l.again, at, u)
}

// askAgain asks for the answers for which there is room now, and reports whether there
// were any.
func (l *line) askAgain(now int64) (asked bool) {
	for len(l.again) > 0 {
		u := l.again[0]
		e := l.entry(u.tag)
		if e.reply == nil { // it has timed out
			e.over = true
			l.again = l.again[1:]
			continue
		}
		if !e.reply.CouldAccept(u.size, l.coming) {
			break
		}
		err := l.handQueued(now, &queued{tag: u.tag, command: u.command, query: true, local: e.level == resp.Local, weak: e.level != resp.Strong})
		if errors.Is(err, session.ErrFull) {
			break
		}
		asked = true
		l.again = l.again[1:]
		e.waits, e.stale = false, false
		if err != nil {
			l.complete(&session.Outcome{Tag: u.tag, Err: err})
			continue
		}
		l.coming += u.size
		e.coming, e.deadline = u.size, l.due(e)
	}
	if len(l.again) == 0 {
		l.again = nil
	}
	return asked
}

// Resume implements resp.Session.
func (l *line) Resume() {
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(l.again) > 0 {
		l.settle()
	}
}
