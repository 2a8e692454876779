package mysql

import (
	"github.com/weirdb/weir/internal/proxy/session"
	"github.com/weirdb/weir/internal/proxy/sqlscan/myscan"
)

// This file is what a connection remembers of the sequences that were used on it:
// LASTVAL gives the last value of each. They are used out of sight, too, by the DEFAULT
// of a column. So what a connection that has served others says of a sequence may be
// another client's.
//
// A session that asks, or uses a sequence in sight where somebody of its pool asks, gets
// a connection that was reset before, and keeps it. What it has used before that is
// gone, and refused once.

// refusesSequence answers a question about the last value of a sequence that only other
// connections could answer, and reports whether it did.
func (dg *diagnostics) refusesSequence() bool {
	c := dg.c
	c.p.keepSequences = true
	if c.link != nil && c.link.sequencer == c || c.l.cfg.Mode == session.ModeSession {
		return false
	}
	before := c.pins.held
	c.pins.add(pinSequence)
	if !dg.draws && c.link == nil && before == 0 {
		return false // there is none, as a fresh connection says
	}
	c.responder.refuseHere(gone("the last value of the sequence"))
	return true
}

// wantsSequences has a client that is about to use sequences run the statement on a
// connection that has forgotten those of others. It reports whether the client has left
// its own for that.
func (dg *diagnostics) wantsSequences(info *myscan.Statement) bool {
	c := dg.c
	b := c.link
	if !info.Effects.Has(myscan.EffSequence|myscan.EffSequenceRead) || !c.p.keepSequences || b.sequencer == c {
		return false
	}
	c.pins.add(pinSequence)
	if c.pins.held != pinSequence || c.inTx() || len(c.texts.unjudged) > 0 {
		b.sequencer = c // of what it uses from here on, at least
		return false
	}
	c.link, b.owner = nil, nil
	dg.keepID(b)
	b.p.release(b)
	return true
}

// forgetSequences has a taken backend forget the sequences that were used on it, for a
// client that is to keep it.
func (lt *leftDiagnostics) forgetSequences(c *client) {
	lt.yieldID(nil) // the reset takes it away
	lt.b.renewSession()
	lt.sequencer = c
}
