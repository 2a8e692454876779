package postgres

import (
	"slices"
	"strings"

	"github.com/weirdb/weir/internal/proxy/session"
	"github.com/weirdb/weir/internal/proxy/sqlscan"
	"github.com/weirdb/weir/internal/wire/pgwire"
)

// This file follows what a linked client's statements do to its session: settings,
// pins, sequences. It is noted when a statement is sent, and holds from the moment
// when its unit has succeeded.

// note records what a statement will have done when its unit has succeeded.
// Pins count from the moment of sending: until proven otherwise it took effect.
func (c *client) note(u *unit, info *reading) {
	e := info.Effects
	made := c.bodies && e&^sqlscan.EffTx != 0 || info.Verb == sqlscan.VerbExecute && c.prepares != 0 && c.prepares != c.p.proof.epoch
	if made {
		e |= sqlscan.EffUnknownFunc // what it calls may have been made since it was judged
	}
	if e&^sqlscan.EffBackslash == 0 {
		return
	}
	pins := pinsOf(e)
	if info.unread != "" && !made && c.remember(info.unread) {
		pins = pinsOf(e&^sqlscan.EffUnknownFunc) | pinUnread
	}
	u.effects |= e
	u.unsettles = u.unsettles || c.unsettles(&info.Statement)
	if info.hidden || info.runs {
		c.bodies, c.makesSurely = true, c.makesSurely || info.hidden
	}
	if len(info.fresh) > 0 {
		c.p.proof.add(c, info.fresh)
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
		for _, set := range clauses(&info.Statement) {
			set.Name, set.Value = strings.Clone(set.Name), strings.Clone(set.Value)
			switch {
			case !set.Local:
				u.sets = append(u.sets, set)
				u.resets = u.resets || resets(&set)
			case sqlscan.Custom(set.Name):
				c.doubt(set.Name)
			}
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
	switch info.Verb {
	case sqlscan.VerbCommit, sqlscan.VerbRollback, sqlscan.VerbPrepareTx:
		u.ends = true
	default:
		u.ends = u.ends || e.Has(sqlscan.EffTx) && e.Has(sqlscan.EffMulti)
	}
	if e.Has(sqlscan.EffDiscardAll|sqlscan.EffDeallocateAll) || u.resets {
		c.awaits(u)
	}
	if info.Verb == sqlscan.VerbDeallocate {
		u.frees = strings.Clone(info.Name)
	}
	if pins != 0 {
		c.addPins(pins)
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

// maxRemembered bounds the texts that a client has judged afterwards, in bytes.
const maxRemembered = 64 << 10

// remember keeps a text that nothing was known of, to judge it when something is.
func (c *client) remember(sql string) bool {
	if c.pins&pinUnread == 0 {
		c.unread, c.unreadBytes = nil, 0
	}
	if _, ok := c.unread[sql]; ok {
		return true
	}
	if c.unreadBytes += len(sql); c.unreadBytes > maxRemembered || c.pins&pinFunc != 0 {
		return false
	}
	if c.unread == nil {
		c.unread = make(map[string]struct{})
	}
	c.unread[strings.Clone(sql)] = struct{}{}
	return true
}

// rejudge judges what the client did while nothing was known. Without an index it
// stays pinned.
func (c *client) rejudge(x *index) {
	c.pins &^= pinUnread
	if x == nil {
		c.addPins(pinFunc)
	}
	var t sqlscan.Text
	for sql := range c.unread {
		t.Read(sql)
		if x == nil {
			break
		}
		info := x.judge(t.Scan(), &t)
		if info.Effects.Has(sqlscan.EffTouch) {
			c.doubt(info.touches...)
		}
		c.look = c.look || info.makes
		c.addPins(pinsOf(info.Effects))
	}
	c.unread = nil
	if c.link != nil {
		c.link.settle()
	}
}

// clauses are the SET and RESET of a text.
func clauses(info *sqlscan.Statement) []sqlscan.SetClause {
	if info.Count > 1 {
		return info.Sets
	}
	return []sqlscan.SetClause{info.Set}
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
	b.ask("DISCARD SEQUENCES", func(u *unit) { b.Doomed = b.Doomed || u.err != nil })
}

// forgetSequences makes DISCARD SEQUENCES, which b has done, hold on the client's
// other backends too: they do it before they are used again.
func (c *client) forgetSequences(done *backend) {
	for _, b := range c.p.Backends {
		if b != done && b.lastWriter == c {
			b.lastWriter, b.mixed = nil, true
		}
	}
}

// settled applies what a linked unit did.
func (c *client) settled(b *backend, u *unit, status byte) {
	before := c.tx
	c.tx = status
	if u.awaited {
		c.awaiting--
	}
	if status == pgwire.StatusIdle {
		c.lexicalTx = false
	}
	if status != pgwire.StatusIdle && c.l.cfg.Mode == session.ModeStatement {
		c.fatal(pgwire.NewFatal(pgwire.CodeFeatureNotSupported, "transaction blocks are not allowed in weir's pool mode statement"))
		return
	}
	if u.failed && c.pins&pinsSeen != 0 {
		c.look = true
	}
	if u.numbers && (!u.failed || u.statements > 1) {
		c.forgetSequences(b)
	}
	if u.effects.Has(sqlscan.EffUnknownFunc) {
		c.p.proof.lookAt = 0 // it may have changed the catalogue
	}
	if u.frees != "" && (!u.failed || u.freed) {
		c.unname(u.frees)
		c.lent = slices.DeleteFunc(c.lent, func(s string) bool { return s == u.frees })
	}
	if u.effects.Has(sqlscan.EffDDL) && (!u.failed || u.statements > 1) {
		c.p.forgetTexts()
	}
	if c.makes && status == pgwire.StatusIdle && b.Depth() == 0 && c.cur == nil {
		c.p.proof.ended(c, c.l.Now)
	}
	c.restoreStart(b, u)
	c.settleSets(b, u, before)
	if status == pgwire.StatusIdle && c.bodies && b.Depth() == 0 && c.cur == nil {
		c.bodies, c.madeBodies = false, true
		c.p.proof.outdated(c.makesSurely)
	}
	if len(u.reached) > 0 || len(c.reached) > 0 {
		c.carriedOut(u, before, status)
	}
	if u.probe && c.pins&pinsSeen != 0 {
		c.look = true
	}
}

// settleSets follows the settings of a unit that has been answered. What a text
// says is believed where it is plain what has become of it: all of the unit was one
// transaction, or it is part of one, or it is the COMMIT or ROLLBACK of one. A unit
// may also commit in its middle and fail behind that, or set something behind the
// end of a transaction: there the server is asked.
func (c *client) settleSets(b *backend, u *unit, before byte) {
	status, one := c.tx, u.statements <= 1
	switch {
	case before == pgwire.StatusIdle && status == pgwire.StatusIdle && !u.effects.Has(sqlscan.EffTx) && !u.failed:
		for _, s := range u.sets {
			c.apply(b, s)
		}
	case before == pgwire.StatusIdle && status == pgwire.StatusIdle && one && !u.resets:
		c.doubtCustom(u.sets) // it was undone
	case status != pgwire.StatusIdle && !u.ends:
		c.txSets = append(c.txSets, u.sets...)
	case before != pgwire.StatusIdle && one && !u.failed && !c.txUnclear && (u.commits || u.undoes):
		for _, s := range c.txSets {
			if u.commits {
				c.apply(b, s)
			}
		}
		if !u.commits {
			c.doubtCustom(c.txSets)
		}
		c.txSets = nil
	default:
		c.doubtSets(b, c.txSets)
		c.doubtSets(b, u.sets)
		c.txSets = nil
	}
	if status == pgwire.StatusIdle || u.ends {
		c.txUnclear = false
	}
}

// apply follows a SET or RESET that took effect, for the client and for its
// backend, whose defaults may differ: the client's includes what it asked for
// at startup.
func (c *client) apply(b *backend, s sqlscan.SetClause) {
	t := c.l.Settings
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

// restoreStart follows a unit that resets parameters: the backend's defaults are
// the pool's, the client's include what it asked for at startup. Behind the unit, in
// its transaction if there is one, those are set again, and the client learns what
// it has.
func (c *client) restoreStart(b *backend, u *unit) {
	if !u.resets || c.tx == pgwire.StatusFailed {
		return
	}
	t := c.l.Settings
	again, app := t.Empty(), false
	for i := range u.sets {
		switch s := &u.sets[i]; {
		case s.All:
			again, app = c.startSet, true
		case !resets(s) && s.Name == "application_name":
			app = false
		case !resets(s):
			again = t.Without(again, s.Name)
		case s.Name == "application_name":
			app = true
		default:
			if start, ok := c.startSet.Get(s.Name); ok {
				again = t.With(again, start)
			}
		}
	}
	list := again.List()
	if app && c.startApp != "" {
		list = append(slices.Clone(list), session.Setting{Name: "application_name", Value: c.startApp, Literal: true})
	}
	if len(list) == 0 {
		return
	}
	var sql strings.Builder
	for _, s := range list {
		if u.failed {
			sql.WriteString(setIfReset(s))
		} else {
			sql.WriteString(set(s))
		}
	}
	b.ask(sql.String(), func(u *unit) {
		if u.err != nil {
			b.Doomed = true
			c.fatal(pgwire.NewFatal(pgwire.CodeConnectionFailure, "weir could not restore the settings of the startup message: %s", u.err.Message))
		}
	}).tell = true
}

// awaits has what the client sends behind u wait for its answer.
func (c *client) awaits(u *unit) {
	if !u.awaited {
		u.awaited = true
		c.awaiting++
	}
}

// waits tells whether a message must wait for the answer to what is under way: a
// statement that ends all prepared statements, so that names mean something else
// behind it, or one that resets settings, which are then to be restored.
func (c *client) waits(typ byte) bool {
	if c.awaiting == 0 {
		return false
	}
	switch typ {
	case pgwire.ClientQuery, pgwire.ClientParse, pgwire.ClientBind, pgwire.ClientDescribe, pgwire.ClientClose, pgwire.ClientExecute, pgwire.ClientFunction:
		u := c.cur
		return u == nil || u.flushAt > u.expAt && !u.failed
	}
	return false
}

// forgotten follows DISCARD ALL and DEALLOCATE ALL, when the server has carried
// them out: it does so whatever becomes of the transaction. What else was sent in
// the same text may have made new ones.
func (c *client) forgotten(all bool) {
	b := c.link
	clear(b.prepared)
	for name := range c.stmts {
		c.unname(name)
	}
	c.lent = nil
	if all {
		if c.pins&pinsSpoil != 0 {
			b.Retired = true // it may hold what DISCARD ALL leaves
		}
		c.pins &= pinMode | pinLoad | pinUnknown | pinBackup | pinEncoding | pinsSeen
		b.lastWriter, b.mixed = nil, false
		c.forgetSequences(b)
	}
	c.look = c.look || c.pins&pinsSeen != 0
}

// reported follows a ParameterStatus in the answer to this client.
func (c *client) reported(name, value string) {
	if name == "application_name" {
		c.app = value
	}
	c.told(name, value)
}
