package consensus

import (
	"encoding/binary"
	"fmt"
	"slices"
)

// Format is the newest format of the log, of snapshots and of commands that this version knows.
// What each format may contain is defined in package wire (Command.Needs):
//
//	1  entries without a format
//	2  entries that carry the format, snapshots of version 3, compare-and-extend
//	3  answers to increments distinguish a sum that does not fit from a value that is no integer;
//	   leaders know which missing keys were touched
//
// A cluster's format is part of the replicated state. An entry raises it when all members have
// reported that they know a newer one. It never falls. So no replica is sent an entry, a
// snapshot or a command that it cannot read, and all replicas execute a command in the same way
// or not at all. A replica that is older than its cluster stops at the first entry of a format
// that it does not know.
const Format = 3

// formatKnown returns the newest format that this replica knows.
func (st *state) formatKnown() uint64 { return st.cfg.Knows }

// formatIs puts a format into force.
func (st *state) formatIs(f uint64) {
	if f > st.format {
		st.format = f
		st.machine.SetFormat(f)
	}
}

// tooNew returns the error with which a replica stops when it finds data of a newer version.
func (st *state) tooNew(what string, format uint64) error {
	return fmt.Errorf("%s is of format %d, and this version of weir knows formats up to %d: the cluster is newer than this replica; start it with the version that the others have", what, format, st.formatKnown())
}

// raise proposes the newest format that all members know, if the cluster has an older one. The
// entry has no operations, and is proposed on busy clusters as well. A member that has not
// answered is assumed to know only the cluster's format.
func (l *leadership) raise() {
	c := l.c
	if !l.open || l.changes.underWay || l.refused != nil || c.state.format >= c.state.formatKnown() || l.raised > c.state.format {
		return
	}
	all := c.state.formatKnown()
	for _, m := range c.state.members.list {
		if m.ID != c.cfg.ID && !c.mutated(RaiseTooEarly) {
			all = min(all, l.knowing[m.ID])
		}
	}
	if all <= c.state.format {
		return
	}
	before := l.number
	l.raising = all
	l.propose(nil)
	l.raising = 0
	if l.number > before { // the engine accepted it
		l.raised = all
	}
}

// entryFormat returns the format of the next entry.
func (l *leadership) entryFormat() uint64 { return max(l.c.state.format, l.raising) }

// appendEntryFormat appends the start of an entry of this format.
func appendEntryFormat(b []byte, format uint64) []byte {
	if format <= 1 {
		return append(b, entryVersion)
	}
	return binary.AppendUvarint(append(b, entryVersionFormat), format)
}

// cutFormat removes the format from the front of an entry.
func cutFormat(b []byte) (format uint64, rest []byte, err error) {
	switch {
	case len(b) > 0 && b[0] == entryVersion:
		return 1, b[1:], nil
	case len(b) > 1 && b[0] == entryVersionFormat:
		f, n := binary.Uvarint(b[1:])
		if n <= 0 || f < 2 {
			return 0, nil, fmt.Errorf("%w: format", errEntry)
		}
		return f, b[1+n:], nil
	}
	return 0, nil, fmt.Errorf("%w: version", errEntry)
}

// knownBy notes the newest format that a member knows.
func (l *leadership) knownBy(id, format uint64) { l.knowing[id] = max(format, 1) }

// onlyMembers forgets replicas that are no longer members.
func (l *leadership) onlyMembers() {
	for id := range l.knowing {
		if !slices.ContainsFunc(l.c.state.members.list, func(m Member) bool { return m.ID == id }) {
			delete(l.knowing, id)
			delete(l.verdicts, id)
		}
	}
}
