package postgres

import (
	"slices"
	"strings"

	"github.com/weirdb/weir/internal/pgwire"
	"github.com/weirdb/weir/internal/proxy/session"
	"github.com/weirdb/weir/internal/sqlscan"
)

// This file follows what a linked client's statements do to its session: settings,
// pins, sequences. It is noted when a statement is sent, and holds from the moment
// when its unit has succeeded.

// note records what a statement will have done when its unit has succeeded.
// Pins count from the moment of sending: until proven otherwise it took effect.
func (c *client) note(u *unit, info *reading) {
	e := info.Effects
	if c.bodies && e&^sqlscan.EffTx != 0 || info.Verb == sqlscan.VerbExecute && c.prepares != 0 && c.prepares != c.p.proof.epoch {
		e |= sqlscan.EffUnknownFunc // what it calls may have been made since it was judged
	}
	if e&^sqlscan.EffBackslash == 0 {
		return
	}
	u.effects |= e
	u.unsettles = u.unsettles || c.unsettles(&info.Statement)
	if info.hidden {
		c.bodies = true
	}
	if e.Has(sqlscan.EffPrepare) && c.prepares == 0 {
		c.prepares = c.p.proof.epoch
	}
	if info.makes {
		c.look = true
	}
	if e.Has(sqlscan.EffTouch) {
		c.doubt(info.touches...)
	}
	if e.Has(sqlscan.EffSet) {
		set := info.Set
		set.Name, set.Value = strings.Clone(set.Name), strings.Clone(set.Value)
		switch {
		case !set.Local:
			u.sets = append(u.sets, set)
			u.resets = u.resets || resets(&set)
		case sqlscan.Custom(set.Name):
			c.doubt(set.Name)
		}
	}
	if e.Has(sqlscan.EffDiscardAll) {
		u.sets = append(u.sets, sqlscan.SetClause{Reset: true, All: true})
		u.resets = true
	}
	u.numbers = u.numbers || e.Has(sqlscan.EffDiscardAll) || e.Has(sqlscan.EffMulti) && e.Has(sqlscan.EffRelease) ||
		info.Verb == sqlscan.VerbDiscard && info.Name == "sequences"
	if e.Has(sqlscan.EffRelease) {
		u.probe = true
	}
	if info.Verb == sqlscan.VerbRollbackTo {
		c.txUnclear = true
	}
	if info.Verb == sqlscan.VerbCommit || info.Verb == sqlscan.VerbRollback {
		u.ends = true
	}
	if info.Verb == sqlscan.VerbDeallocate {
		u.frees = strings.Clone(info.Name)
	}
	if e.Has(pinEffects) {
		c.addPins(pinsOf(e))
	}
	if e.Has(sqlscan.EffSequenceRead) && c.link.lastWriter != c {
		c.p.keepSequences = true
	}
	if e.Has(sqlscan.EffSequence | sqlscan.EffRoutine | sqlscan.EffUnknownFunc | sqlscan.EffUnknown) {
		c.link.lastWriter = c
		if c.p.keepSequences {
			c.addPins(pinSequence)
		}
	}
}

// dropSequences makes sure that currval and lastval cannot return what another
// session left on the backend that the client has got. If the client's own last
// value is not here either, the server will say that it is not defined, which is
// an error but never a wrong number; from then on weir keeps this pool's writing
// clients on their backends.
func (c *client) dropSequences() {
	b := c.link
	if !b.mixed && (b.lastWriter == nil || b.lastWriter == c) {
		return
	}
	b.lastWriter, b.mixed = nil, false
	b.ask("DISCARD SEQUENCES", func(u *unit) { b.doomed = b.doomed || u.err != nil })
}

// forgetSequences makes DISCARD SEQUENCES, which b has done, hold on the client's
// other backends too: they do it before they are used again.
func (c *client) forgetSequences(done *backend) {
	for _, b := range c.p.backends {
		if b != done && b.lastWriter == c {
			b.lastWriter, b.mixed = nil, true
		}
	}
}

// settled applies what a linked unit did.
func (c *client) settled(b *backend, u *unit, status byte) {
	before := c.tx
	c.tx = status
	if status == pgwire.StatusIdle {
		c.lexicalTx = false
	}
	if status != pgwire.StatusIdle && c.l.srv.cfg.Mode == session.ModeStatement {
		c.fatal(pgwire.NewFatal(pgwire.CodeFeatureNotSupported, "transaction blocks are not allowed in weir's pool mode statement"))
		return
	}
	if u.failed && c.pins&pinsSeen != 0 {
		c.look = true
	}
	if !u.failed {
		if u.effects.Has(sqlscan.EffDiscardAll | sqlscan.EffDeallocateAll) {
			c.forgotten(b, u.effects)
		}
		if u.numbers {
			c.forgetSequences(b)
		}
		if u.effects.Has(sqlscan.EffDDL) {
			c.p.forgetTexts()
		}
		if u.effects.Has(sqlscan.EffUnknownFunc) {
			c.p.proof.lookAt = 0 // it may have changed the catalogue
		}
		if u.frees != "" {
			c.unname(u.frees)
			c.lent = slices.DeleteFunc(c.lent, func(s string) bool { return s == u.frees })
		}
		if before == pgwire.StatusIdle && status == pgwire.StatusIdle {
			for _, s := range u.sets {
				c.apply(b, s)
			}
		} else {
			c.txSets = append(c.txSets, u.sets...)
		}
	}
	if u.failed {
		c.doubtCustom(u.sets)
	}
	if status != pgwire.StatusIdle && u.ends && !u.failed {
		c.endTxSets(b, u)
	}
	if status == pgwire.StatusIdle && before != pgwire.StatusIdle {
		c.endTxSets(b, u)
	}
	if status == pgwire.StatusIdle && c.bodies && b.depth() == 0 && c.cur == nil {
		c.bodies, c.madeBodies = false, true
		c.p.proof.stale = true
	}
	if len(u.reached) > 0 || len(c.reached) > 0 {
		c.carriedOut(u, before, status)
	}
	if u.probe && c.pins&pinsSeen != 0 {
		c.look = true
	}
}

// endTxSets applies or drops the settings of a transaction that u has ended.
func (c *client) endTxSets(b *backend, u *unit) {
	if u.commits && !u.failed {
		for _, s := range c.txSets {
			c.apply(b, s)
		}
	} else {
		c.doubtCustom(c.txSets)
	}
	if len(c.txSets) > 0 && c.txUnclear {
		c.addPins(pinSet)
	}
	c.txSets, c.txUnclear = nil, false
}

// apply follows a SET or RESET that took effect, for the client and for its
// backend, whose defaults may differ: the client's includes what it asked for
// at startup.
func (c *client) apply(b *backend, s sqlscan.SetClause) {
	t := c.l.settings
	switch {
	case s.All:
		for _, have := range c.set.List() {
			if sqlscan.Custom(have.Name) {
				c.doubt(have.Name) // it is empty now, or what its library says; it does not go away
			}
		}
		c.set, b.set = c.startSet, c.startSet
		c.app, b.app = c.startApp, b.appFor(c.startApp)
	case resets(&s) && s.Name == "application_name":
		c.app, b.app = c.startApp, b.appFor(c.startApp)
	case resets(&s):
		if start, ok := c.startSet.Get(s.Name); ok {
			c.set, b.set = t.With(c.set, start), t.With(b.set, start)
		} else if sqlscan.Custom(s.Name) {
			c.doubt(s.Name)
		} else {
			c.set, b.set = t.Without(c.set, s.Name), t.Without(b.set, s.Name)
		}
	case s.Name == "application_name":
		// ParameterStatus tells the value.
	default:
		v := session.Setting{Name: s.Name, Value: s.Value}
		if told, ok := b.told(s.Name); ok && ascii(told) {
			v.Value, v.Literal = told, true // the whole of it, where SET gives a part, as of datestyle
		} else if !ascii(v.Name) || !ascii(v.Value) {
			v.Encoding = b.params[encodingName]
		}
		c.set, b.set = t.With(c.set, v), t.With(b.set, v)
	}
}

// resets tells whether a clause goes back to a session's own default.
func resets(s *sqlscan.SetClause) bool {
	return s.All || s.Reset || s.Default || strings.EqualFold(s.Value, "default")
}

// restoreStart follows a unit that resets parameters: the backend's defaults
// are the pool's, the client's include what it asked for at startup. Right
// behind the unit, in its transaction if there is one, those are set again, and
// the client learns what it has.
func (c *client) restoreStart(u *unit) {
	if !u.resets {
		return
	}
	b, t := c.link, c.l.settings
	again, app := t.Empty(), false
	for i := range u.sets {
		switch s := &u.sets[i]; {
		case s.All:
			again, app = c.startSet, true
		case !resets(s):
		case s.Name == "application_name":
			app = true
		default:
			if start, ok := c.startSet.Get(s.Name); ok {
				again = t.With(again, start)
			}
		}
	}
	sql := transition(t.Empty(), again)
	if app && c.startApp != "" {
		sql += "SELECT pg_catalog.set_config('application_name', " + anyLiteral(c.startApp) + ", false)"
	}
	if sql != "" {
		// An error is that of a transaction that has failed: then nothing
		// was reset either.
		b.ask(sql, func(*unit) {}).tell = true
	}
}

// forgotten follows DISCARD ALL and DEALLOCATE ALL.
func (c *client) forgotten(b *backend, e sqlscan.Effect) {
	clear(b.prepared)
	for name := range c.stmts {
		c.unname(name)
	}
	c.unname("")
	c.lent = nil
	c.pins &^= pinPrepare
	if e.Has(sqlscan.EffDiscardAll) {
		if c.pins&pinsSpoil != 0 {
			b.retired = true // it may hold what DISCARD ALL leaves
		}
		c.pins &= pinMode | pinLoad | pinUnknown | pinBackup | pinEncoding
		b.lastWriter, b.mixed = nil, false
	}
}

// reported follows a ParameterStatus in the answer to this client.
func (c *client) reported(name, value string) {
	if name == "application_name" {
		c.app = value
	}
	c.told(name, value)
}
