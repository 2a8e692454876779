package mysql

import (
	"github.com/weirdb/weir/internal/proxy/session"
	"github.com/weirdb/weir/internal/proxy/sqlscan/myscan"
)

// This file tracks the sequences that were used on a connection: LASTVAL returns the last value
// of each. The DEFAULT of a column uses them invisibly, too. So on a connection that has served
// other clients, LASTVAL may return another client's value.
//
// A session that calls LASTVAL, or uses a sequence visibly in a pool where some client calls
// LASTVAL, gets a connection that was reset before, and keeps it. The values of sequences that
// it used before are lost, and weir refuses the first call that may need one.

// refusesSequence refuses a call of LASTVAL whose answer only other connections could know, and
// reports whether it did.
func (dg *diagnostics) refusesSequence() bool {
	c := dg.c
	c.p.keepSequences = true
	if c.link != nil && c.link.sequencer == c || c.l.cfg.Mode == session.ModeSession {
		return false
	}
	before := c.pins.held
	c.pins.add(pinSequence)
	if !dg.draws && c.link == nil && before == 0 {
		return false // no value exists, and a fresh connection says so
	}
	c.responder.refuseHere(dg.gone("the last value of the sequence"))
	return true
}

// wantsSequences makes a client that is about to use sequences run the statement on a
// connection that was reset, without other clients' sequences. It reports whether the client
// has given its own connection back for that.
func (dg *diagnostics) wantsSequences(info *myscan.Statement) bool {
	c := dg.c
	b := c.link
	if !info.Effects.Has(myscan.EffSequence|myscan.EffSequenceRead) || !c.p.keepSequences || b.sequencer == c {
		return false
	}
	c.pins.add(pinSequence)
	if c.pins.held != pinSequence || c.inTx() || len(c.texts.unjudged) > 0 {
		b.sequencer = c // from here on, at least
		return false
	}
	c.link, b.owner = nil, nil
	dg.keepID(b)
	b.p.release(b)
	return true
}

// forgetSequences resets a backend, which clears the sequences that were used on it, for a
// client that will keep it.
func (lt *leftDiagnostics) forgetSequences(c *client) {
	lt.saveID(nil) // the reset clears it
	lt.b.renewSession()
	lt.sequencer = c
}
