package consensus

import "github.com/weirdb/weir/internal/kvd/wire"

// A transaction may require that a missing key has not existed since a revision
// (wire.Untouched). The state does not contain that. The leader knows it when it appends the
// transaction: all earlier entries are applied here, or are in flight as operations of its own.
// If the leader has too little history, the transaction fails, as if another client had been
// faster. (A transaction that was in the log of an earlier leader, was replaced there, and
// comes back in the bundle of a weak write has the decision of that leader.)

// decide replaces a transaction's requirements of missing keys by what the leader knows.
func (l *leadership) decide(o *leadOp) {
	if len(o.command) == 0 || wire.Verb(o.command[0]) != wire.Transaction {
		return
	}
	var c wire.Command
	if c.Borrow(o.command) != nil {
		return // its result will report the error
	}
	var since map[string]uint64
	for i := range c.Guards {
		if g := &c.Guards[i]; g.Revision != wire.Never && g.Revision&wire.Untouched != 0 {
			if since == nil {
				since = make(map[string]uint64)
			}
			at := g.Revision &^ wire.Untouched
			if other, twice := since[g.Key]; !twice || at < other {
				since[g.Key] = at
			}
		}
	}
	if since == nil {
		return
	}
	l.untouched(since)
	for i := range c.Guards {
		g := &c.Guards[i]
		if g.Revision == wire.Never || g.Revision&wire.Untouched == 0 {
			continue
		}
		g.Revision = wire.Never
		if _, holds := since[g.Key]; holds {
			g.Revision = 0
		}
	}
	// Witnesses have the original command, so its result is not sent before the commit.
	o.command, o.fast = c.Append(nil), false
}

// untouched deletes from since the keys that may have been stored or removed after their
// revisions, by any operation before the next one.
func (l *leadership) untouched(since map[string]uint64) {
	l.c.state.machine.Untouched(since)
	for _, o := range l.byOp {
		if len(since) == 0 {
			return
		}
		for _, key := range l.footprint(o).Keys { // every operation that creates a key names it
			delete(since, key)
		}
	}
}

// footprint returns what an operation touches; nothing if it is malformed.
func (l *leadership) footprint(o *leadOp) *wire.Footprint {
	if !o.footed {
		o.footed = true
		if l.c.state.machine.Footprint(o.command, &o.foot) != nil {
			o.foot.Reset()
			o.fast = false
		}
	}
	return &o.foot
}
