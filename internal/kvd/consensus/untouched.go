package consensus

import (
	"bytes"

	"github.com/weirdb/weir/internal/kvd/wire"
)

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
	decided := false
	for i := range c.Guards {
		g := &c.Guards[i]
		if g.Revision == wire.Never || g.Revision&wire.Untouched == 0 {
			continue
		}
		decided = true
		if l.touched(g.Key, g.Revision&^wire.Untouched) {
			g.Revision = wire.Never
		} else {
			g.Revision = 0
		}
	}
	if decided {
		// Witnesses have it as it was: it is not told before the commit.
		o.command, o.fast = c.Append(nil), false
	}
}

// touched reports whether a key may have been stored or removed after a revision, up to
// the operation that comes next.
func (l *leadership) touched(key string, after uint64) bool {
	machine := l.c.state.machine
	if machine.Touched(key, after) {
		return true
	}
	for _, o := range l.byOp {
		if !bytes.Contains(o.command, []byte(key)) {
			continue // whatever makes a key names it
		}
		var foot wire.Footprint
		if machine.Footprint(o.command, &foot) == nil && foot.Holds(key) {
			return true
		}
	}
	return false
}
