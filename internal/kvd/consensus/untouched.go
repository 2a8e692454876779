package consensus

import "github.com/weirdb/weir/internal/kvd/wire"

// A transaction may want that a key which is missing was not there since a revision, either
// (wire.Untouched). The state does not hold that. The leader knows it when it gives the
// transaction its place in the log: all entries before that place are applied here, or are
// on their way there as operations of its own; and where the leader has too little history,
// the transaction fails, as if somebody had been quicker. (One that was in the log of a
// leader before, was replaced there, and comes back as what precedes a weak write has what
// that leader has found.)

// decide puts what the leader knows in the place of what a transaction wants of missing keys.
func (l *leadership) decide(o *leadOp) {
	if len(o.command) == 0 || wire.Verb(o.command[0]) != wire.Transaction {
		return
	}
	var c wire.Command
	if c.Borrow(o.command) != nil {
		return // its result will say so
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
	// Witnesses have it as it was: it is not told before the commit.
	o.command, o.fast = c.Append(nil), false
}

// untouched removes from since the keys that may have been stored or removed after their
// revisions, up to the operation that comes next.
func (l *leadership) untouched(since map[string]uint64) {
	l.c.state.machine.Untouched(since)
	for _, o := range l.byOp {
		if len(since) == 0 {
			return
		}
		for _, key := range l.footprint(o).Keys { // whatever makes a key names it
			delete(since, key)
		}
	}
}

// footprint is what an operation touches; nothing if it is malformed.
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
