package mysql

import (
	"github.com/weirdb/weir/internal/proxy/session"
	"github.com/weirdb/weir/internal/wire/mywire"
)

// This file follows the answers of a client's own backend: what a finished unit
// means for the session, and what becomes of it when the backend is quiet, lost or
// reset.

// answered is called when a unit of this client has been answered.
func (c *client) answered(b *backend, u *unit) {
	c.served = b
	c.idleSince = c.l.Now
	c.p.count(u, c.l.Now)
	if b.owner != c {
		c.p.Stats.Transactions++
		c.inflight--
		c.letRead()
		if u.failed {
			c.stats.errors++
		}
		c.last.shared(u)
		if !u.failed && u.ok.Status&mywire.StatusInTrans != 0 {
			b.Doomed = true
			c.fatal(mywire.NewError(mywire.ErrUnknown, "weir did not see that a statement begins a transaction, which is rolled back"))
		}
		c.nextAgain()
		c.resume()
		if c.draining {
			c.leaveIfIdle()
		}
		return
	}
	c.cur = nil
	switch {
	case u.failed || u.cmd == mywire.ComQuery || u.cmd == mywire.ComStmtExecute || u.cmd == mywire.ComStmtBulkExecute:
		c.ran(b, u)
	case b.lastUser != c:
		b.lastUser = nil // a command that leaves in part what was there
	}
	if u.failed || u.ok.Warnings > 0 {
		b.warned = c
	}
	if u.cmd == mywire.ComStmtPrepare {
		c.prepared(b, u)
	}
	c.settled(b, u)
	c.settleOwn(u)
	if !c.inTx() {
		c.p.Stats.Transactions++
	}
	if !u.failed && u.change&changeQuit != 0 {
		b.Doomed = true // the server is about to close it
		c.s.CloseAfterFlush()
	}
	if c.infile {
		b.Doomed, c.infile = true, false
		c.kick("the server has answered in the middle of a file")
		return
	}
	c.resume()
	if c.draining {
		c.leaveIfIdle()
	}
}

// backendQuiet decides whether the client keeps its backend, when everything that
// was sent has been answered.
func (c *client) backendQuiet() {
	b := c.link
	if c.cur != nil || c.probing || c.pass > 0 || c.streams || c.infile || b.s.Closed {
		return
	}
	if c.inTx() || c.pins != 0 || !c.judged() || c.pins != 0 {
		return
	}
	if c.keepsForDiagnostics() {
		if !c.last.soft {
			c.last.soft = true
			c.p.keepsSoftly(c)
		}
		return
	}
	c.last.soft = false
	c.link = nil
	c.s.Throttle(false)
	b.owner = nil
	c.keepLastID(b)
	b.p.release(b)
	c.resume()
}

// quietSoon has backendQuiet called when the present event has been dealt with,
// for a command that weir has answered itself.
func (c *client) quietSoon() {
	c.l.Post(func() {
		if c.link != nil && c.link.Depth() == 0 && !c.s.Closed {
			c.backendQuiet()
		}
	})
}

// backendGone tells the client that its backend is gone, and with it the
// session's state.
func (c *client) backendGone(e *mywire.Error) {
	if c.last.where == c.link {
		c.last.loseID()
	}
	c.link = nil
	c.s.Throttle(false) // what it sent need not be written any more
	c.probing, c.infile = false, false
	cur := c.cur
	c.cur = nil
	if c.s.Closed || c.s.Closing {
		return
	}
	if cur != nil && !cur.wrote && c.pins == 0 && !c.inTx() && c.pass == 0 {
		// Nothing of the session is lost but the answer.
		c.unjudged = nil
		c.stats.errors++
		for _, cs := range c.stmts {
			cs.own, cs.long, cs.cursor = 0, false, false
		}
		c.reply(mywire.AppendError(nil, cur.firstSeq(), e))
		c.resume()
		return
	}
	if cur != nil && cur.wrote {
		c.kick("the connection to the server was lost in the middle of an answer")
		return
	}
	c.cur = cur
	c.fatal(e)
	c.cur = nil
}

// resetSession brings the client back to what it was after the login, as
// COM_RESET_CONNECTION does.
func (c *client) resetSession() {
	was := c.set
	c.forgetSession()
	c.set = c.startSet
	if db, ok := was.Get(databaseSetting); ok {
		c.set = c.p.settings.With(c.set, db) // the reset leaves the database
	}
	for name, value := range c.p.facts.reset {
		c.set = c.p.settings.With(c.set, session.Setting{Name: name, Value: value, Literal: true})
	}
	c.readMode()
}

// forgetSession forgets what the client has made of its session but its
// settings.
func (c *client) forgetSession() {
	c.forgetStatements()
	c.pins &= pinMode | pinOption | pinTrack | pinUntracked
	c.locks, c.named, c.tableLocks, c.namedEffects, c.unjudged = nil, nil, 0, 0, nil
	c.choseVariables, c.choseChanges, c.wroteGTID, c.draws = false, false, false, false
	c.owed = nil
	c.last = lastStatement{version: c.last.version + 1}
	c.status = mywire.StatusAutocommit
}
