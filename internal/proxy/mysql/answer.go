package mysql

import (
	"errors"

	"github.com/weirdb/weir/internal/proxy/cache"
	"github.com/weirdb/weir/internal/proxy/core"
	"github.com/weirdb/weir/internal/proxy/session"
	"github.com/weirdb/weir/internal/proxy/sight"
	"github.com/weirdb/weir/internal/proxy/sqlscan/myscan"
	"github.com/weirdb/weir/internal/wire/mywire"
)

// This file is the way back: what a backend says, given to whom it answers.

// A responder is the way back of a client: what the answers to its commands mean for its session.
type responder struct {
	c *client

	seq byte // of the first packet of weir's own answer to the present command
}

const (
	// maxClientOut is how much of a result waits in weir for a client that
	// owns its backend, before weir stops reading from that backend.
	maxClientOut = 1 << 20
	// maxHeld is how much of an answer is kept until it is whole. It is more than what
	// lies in sockets when weir kills a statement whose answer begins just then: that one
	// can still be run again.
	maxHeld = 16 << 20
	// maxSharedOut is the same as maxClientOut for a client whose backend is shared:
	// there, to stop reading holds up others.
	maxSharedOut = 64 << 20
)

// OnData routes what the server sent to the clients that it answers.
func (b *backend) OnData(p []byte) int {
	for rest := p; len(rest) > 0 && !b.s.Closed; {
		u := b.Head()
		if u == nil || u.unsent(b) {
			b.unasked(rest)
			return len(p)
		}
		if !b.walking {
			b.answer.Reset(u.cmd, b.caps)
			if u.seq > 1 {
				b.answer.Resume(u.seq)
			}
			b.walking = true
		}
		n, event, err := b.answer.Feed(rest)
		if err != nil {
			b.fail(err)
			return len(p)
		}
		code := uint16(0)
		if event == mywire.EventDone {
			code = b.answer.ErrorCode()
		}
		if code == mywire.ErrOptionPrevents || code == mywire.ErrReadOnlyMode {
			b.p.l.srv.Monitor.Refused()
		}
		if code != 0 && b.runsAgain(u) {
			u.retry, b.hold = true, b.hold[:0]
		} else {
			b.forward(u, rest[:n], event)
		}
		rest = rest[n:]
		switch event {
		case mywire.EventResult:
			b.resultEnded(u, false)
		case mywire.EventDone:
			b.walking = false
			b.resultEnded(u, true)
			b.ended(u)
		case mywire.EventInfile:
			if u.c == nil || u.c != b.owner {
				b.fail(errors.New("server asks for a file in the answer to a shared statement"))
				return len(p)
			}
			u.c.transport.sendFile()
		case mywire.EventAuth:
			b.fail(errors.New("server asks for authentication in the middle of a session"))
			return len(p)
		}
	}
	return len(p)
}

// unasked is called with what the server says by itself: before it closes a
// connection it says why.
func (b *backend) unasked(p []byte) {
	err := errors.New("server sent what nothing asked for")
	if n, _, ok := mywire.Peek(p); ok && len(p) >= mywire.HeaderLen+n {
		if e, perr := mywire.ParseError(p[mywire.HeaderLen : mywire.HeaderLen+n]); perr == nil {
			err = e
		}
	}
	b.s.Close(err)
}

// forward gives the bytes of an answer to the client that it answers. The last bytes are
// held back while they may be part of a packet that ends a result: that one may
// have to be put differently.
func (b *backend) forward(u *unit, p []byte, event mywire.Event) {
	held := 0
	if event == mywire.EventMore {
		held = b.answer.Held()
	}
	if held > len(p) || (held == len(p) && held > 0) {
		b.hold = append(b.hold, p...)
		return
	}
	if len(u.resp) > maxHeld {
		u.goesOn(b) // not the packet that ends it, which may come now
	}
	if len(b.hold) > 0 {
		b.emit(u, b.hold)
		b.hold = b.hold[:0]
	}
	b.emit(u, p[:len(p)-held])
	b.hold = append(b.hold, p[len(p)-held:]...)
}

// emit gives whole packets, or parts of rows, to the client that the unit answers.
func (b *backend) emit(u *unit, p []byte) {
	if len(p) == 0 {
		return
	}
	u.bytes += len(p)
	if u.park || u.held() {
		u.resp = append(u.resp, p...)
		if u.flight != nil && len(u.resp) > b.p.l.srv.Cache.MaxAnswer() {
			b.spill(u)
			return
		}
		if u.preempted && b.Cancels > 0 && len(u.resp) > maxClientOut {
			b.s.Throttle(true) // until the KILL has been answered: see signal
		}
		return
	}
	c := u.c
	if c == nil || c.s.Closed {
		return
	}
	u.wrote = true
	s := c.s
	s.Out = append(s.OutBuf(), p...)
	s.Touch()
	c.transport.holdBack(b)
}

// goesOn gives the client what is here of an answer that was to be kept until it is
// whole: it is too long for that. From here on the unit cannot be run again. Of a member
// of a group these are rows; the end of its answer, which says that they are all, is kept
// until the group has committed.
func (u *unit) goesOn(b *backend) {
	member := u.park && b.Mode == core.ModeLaned
	if u.kind != unitClient || u.flight != nil || u.park && !member || u.hold && b.Cancels > 0 {
		return
	}
	resp := u.resp
	u.resp, u.hold = nil, false
	c := u.c
	if c == nil || c.s.Closed {
		return
	}
	if member && !u.wrote {
		outOfTransaction(resp, c.caps, false)
	}
	u.wrote = true
	c.s.Write(resp)
	c.transport.holdBack(b)
}

// resultEnded takes note of how a result ended, and puts its last packet as the
// client expects it.
func (b *backend) resultEnded(u *unit, last bool) {
	a := &b.answer
	if code := a.ErrorCode(); last && code != 0 {
		u.failed, u.code = true, code
		if u.kind != unitClient || u.park || b.owner == u.c {
			u.err = a.Err()
		}
		switch {
		case u.overdue && code == mywire.ErrQueryInterrupted:
			rewordError(b, u, overdueError(b.p))
		case u.wrote && code == mywire.ErrLockWaitTimeout && (u.park && b.Mode == core.ModeLaned || u.bounded && b.p.l.Now-b.Since >= u.owned):
			rewordError(b, u, mywire.NewError(code, "Lock wait timeout exceeded; try restarting transaction (of weir, which does not wait for a lock within a group, and had sent more than %d MB of rows: else it would have run the statement again; nothing of it has taken effect)", maxHeld>>20))
		}
		return
	}
	if u.chooses > 0 && u.c != nil {
		if u.results++; u.results >= u.chooses {
			u.c.settings.choseVariables, u.chooses = true, 0
		}
	}
	ok := a.OK()
	u.end = len(u.resp) - a.Tail()
	changed := ok.Status&mywire.StatusSessionState != 0
	u.stateful = u.stateful || changed && u.flight != nil && !onlyCounts(u, ok.State)
	switch {
	case changed && len(ok.State) > 0:
		b.track(u, ok.State)
	case changed && !b.caps.Has(mywire.CapDeprecateEOF):
		b.untold(u)
	}
	if c := u.c; c != nil && len(c.settings.owed) > 0 && u.tellsStatus() {
		ok.State, c.settings.owed = append(c.settings.owed, ok.State...), nil
		ok.Status |= mywire.StatusSessionState
		changed, u.stateful = true, true
	}
	if changed {
		b.reword(u, &ok) // an EOF has the flag alone
	}
	ok.Info, ok.State = nil, nil
	u.ok, u.rows = ok, a.Rows()
}

// reword puts the packet that ended a result, which has just been passed on, as
// the client would have got it directly: without session state if it did not ask
// for that, else with what servers tell of by default.
func (b *backend) reword(u *unit, ok *mywire.OK) {
	out, caps := *ok, u.caps
	var buf *[]byte
	switch c := u.c; {
	case u.refresh:
		buf, out.State = &u.resp, nil // it is kept only if there is nothing to tell
	case u.kind != unitClient || c == nil || c.s.Closed:
		return
	default:
		buf, caps, out.State = &c.s.Out, c.caps, c.settings.stateFor(ok.State, u.park)
		if u.park || u.held() {
			buf = &u.resp
		}
	}
	tail := b.answer.Tail()
	if tail > len(*buf) {
		return // the client is closing, or the answer too long to be kept
	}
	at := len(*buf) - tail
	seq, first := (*buf)[at+3], (*buf)[at+mywire.HeaderLen]
	if mywire.IsOK((*buf)[at+mywire.HeaderLen:]) && first == 0 {
		*buf = mywire.AppendOK((*buf)[:at], seq, caps, &out)
	} else {
		*buf = mywire.AppendEnd((*buf)[:at], seq, caps, &out)
	}
}

// rewordError puts another error in the place of the one that has just come.
func rewordError(b *backend, u *unit, e *mywire.Error) {
	if u.c == nil || u.c.s.Closed {
		return
	}
	buf := &u.c.s.Out
	if u.park || u.held() {
		buf = &u.resp
	}
	at := len(*buf) - b.answer.Tail()
	if b.answer.Tail() < mywire.HeaderLen || at < 0 {
		return
	}
	*buf = mywire.AppendError((*buf)[:at], (*buf)[at+3], e)
}

// overdueError is that of a statement that weir has ended for its length.
func overdueError(p *pool) *mywire.Error {
	if p.facts.mariadb {
		return mywire.NewError(mywire.ErrMariaStatementTimeout, "Query execution was interrupted (--query-timeout %s of weir)", p.Limits.QueryTimeout)
	}
	return mywire.NewError(mywire.ErrQueryTimeout, "Query execution was interrupted, maximum statement execution time exceeded (--query-timeout %s of weir)", p.Limits.QueryTimeout)
}

// done answers a command with an OK of weir's own.
func (bk *responder) done() {
	c := bk.c
	c.s.Out = mywire.AppendOK(c.s.OutBuf(), bk.seq, c.caps, &mywire.OK{Status: c.status})
	c.s.Touch()
	c.idleSince = c.l.Now
}

// refuseHere answers a command with an error of weir's own.
func (bk *responder) refuseHere(e *mywire.Error) {
	c := bk.c
	c.stats.errors++
	c.cached.Leave((*cache.Flight).Leave) // it was to be sent
	if c.link != nil {
		c.link.lastUser = nil // what is there is not this error
	}
	c.reply(mywire.AppendError(nil, bk.seq, e))
	c.diag.forget()
}

// answered is called when a unit of this client has been answered.
func (c *client) answered(b *backend, u *unit) {
	c.served, c.fwd.lost = b, core.Losses{}
	c.idleSince = c.l.Now
	path := sight.Alone
	if b.Mode == core.ModeShared {
		path = sight.Shared
	}
	c.p.count(u, path)
	if b.owner != c {
		c.p.Stats.Transactions++
		c.inflight--
		if !u.read {
			c.cached.Wrote() // a write of a lane that has run apart
		}
		if u.failed {
			c.stats.errors++
		}
		c.diag.last.shared(u)
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
	unasked := c.state == stateSending // the server has answered in the middle of a file
	c.state.leave(stateSending)
	if !unasked && (c.transport.pass > 0 || c.transport.streams) {
		// The server would take the rest for another command, and its answer would be that
		// command's. A server that does this closes the connection.
		c.s.CloseAfterFlush()
		b.s.Close(errors.New("the server has answered a command before it had all of it"))
		return
	}
	switch {
	case u.failed || u.cmd == mywire.ComQuery || u.cmd == mywire.ComStmtExecute || u.cmd == mywire.ComStmtBulkExecute:
		c.diag.ran(b, u)
	case b.lastUser != c:
		b.lastUser = nil // a command that leaves in part what was there
	}
	if u.failed || u.ok.Warnings > 0 {
		b.warned = c
	}
	if u.cmd == mywire.ComStmtPrepare {
		c.stmts.prepared(b, u)
	}
	c.responder.settled(b, u)
	c.stmts.settleOwn(u)
	if !c.inTx() {
		c.p.Stats.Transactions++
	}
	if !u.failed && u.change&changeQuit != 0 {
		b.Doomed = true // the server is about to close it
		c.s.CloseAfterFlush()
	}
	if unasked {
		b.Doomed = true
		c.kick("the server has answered in the middle of a file")
		return
	}
	c.resume()
	if c.draining {
		c.leaveIfIdle()
	}
}

// defined takes note of a unit that has defined something, or may have.
func (l *loop) defined(u *unit) {
	if u.hidesAccounts() {
		l.srv.askAgain()
	}
	if !u.effects.Has(myscan.EffDDL) {
		return
	}
	l.srv.eachPool(l, (*pool).forgetSchema)
	if !u.effects.Has(myscan.EffTemp) || u.effects.Has(myscan.EffMulti) {
		l.srv.Cache.Purge("")
		l.srv.askAgain() // the database may be gone, or the password another
	}
}

// settled takes note of the answer to a command of the linked client.
func (bk *responder) settled(b *backend, u *unit) {
	c := bk.c
	if u.failed {
		bk.failed(b, u)
	} else {
		bk.succeeded(u)
	}
	bk.refusesTransaction()
	c.cached.ran(u)
	c.texts.noteOutcome(u)
	c.settings.settledUntold(b, u)
	if u.refused() {
		return
	}
	c.l.defined(u)
	switch {
	case u.change&changeSessions == 0:
	case u.failed:
		c.l.renewSoon = true // a part of it may have been done
	default:
		c.l.srv.renew(c.l)
	}
}

func (bk *responder) succeeded(u *unit) {
	c := bk.c
	began := c.inTx()
	if u.tellsStatus() {
		c.status = u.ok.Status & keptStatus
	}
	if !began && c.inTx() {
		c.txSince = c.l.Now
	}
	c.diag.last.note(u)
	switch {
	case u.effects.Has(myscan.EffMulti): // what one statement of it releases, the next may take
	case u.change&changeTimestampDefault != 0:
		c.pins.held &^= pinTimestamp
	case u.change&changeUnlock != 0:
		c.pins.tablesUnlocked(lockedTables | lockedServer)
	case u.change&changeReleaseAll != 0 && (u.rows > 0 || u.verb == myscan.VerbDo):
		c.pins.held &^= pinLock
		c.pins.locks = c.pins.locks[:0]
	case u.change&(changeReleaseAll|changeReleaseOne) != 0:
		c.pins.askLocks()
	}
	if u.verb == myscan.VerbBegin {
		c.pins.tablesUnlocked(lockedTables) // implicitly
	}
	if u.change&changeDeallocate != 0 {
		c.pins.deallocated()
	}
	if c.pins.held&pinNextTx != 0 && !u.effects.Has(myscan.EffNextTx) && !c.inTx() && (began || u.wasTransaction()) {
		c.pins.held &^= pinNextTx
	}
	if u.change&changeXAEnd != 0 {
		c.pins.held &^= pinXA
	}
	// A text without such a word that changed something beyond settings called
	// a function or procedure that did, or a trigger.
	if u.change&changeState != 0 && (u.effects.Has(myscan.EffUnknownFunc) || u.effects == myscan.EffWrites) {
		c.pins.add(pinFunction)
	}
	if u.effects.Has(myscan.EffUnknownFunc) && !c.p.facts.tellsInResults && u.answersWithRows() {
		c.pins.add(pinFunction) // without CLIENT_DEPRECATE_EOF most servers do not tell in a result
	}
}

// failed takes note of an ERR, which says nothing of the transaction. Where it
// may have ended one, or begun one, the server is asked.
func (bk *responder) failed(b *backend, u *unit) {
	c := bk.c
	c.stats.errors++
	c.diag.last.fail(u)
	if u.change&changeDeallocate != 0 && u.code == mywire.ErrUnknownStatement {
		c.pins.deallocated() // it was not there
	}
	if u.effects.Has(myscan.EffUnknownFunc) && !neverRan(u) {
		c.pins.add(pinFunction) // what it has changed until then is told by nothing
	}
	if c.inTx() || !c.autocommit() || !plainVerb(u) {
		bk.probe(b)
	}
}

// refusesTransaction disconnects a client that is in a transaction though there are to be
// none, which rolls it back. The text of what began it did not show that, and it has been
// answered.
func (bk *responder) refusesTransaction() {
	if c := bk.c; c.l.cfg.Mode == session.ModeStatement && c.inTx() {
		c.fatal(errTransaction())
	}
}

// probe asks the server for the state of the transaction.
func (bk *responder) probe(b *backend) {
	c := bk.c
	c.state.enter(stateAsking)
	c.diag.last.probed = true
	u := b.hidden(mywire.ComPing, func(u *unit) {
		c.state.leave(stateAsking)
		if u.err == nil {
			c.status = u.ok.Status & keptStatus
			bk.refusesTransaction()
		} else {
			c.pins.add(pinUnknown) // a transaction, perhaps
		}
		c.resume()
	})
	u.probe = true
	b.s.Out = mywire.AppendPing(b.s.OutBuf())
}

// backendQuiet decides whether the client keeps its backend, when everything that
// was sent has been answered.
func (c *client) backendQuiet() {
	b := c.link
	if c.texts.lost {
		c.resume()
		return
	}
	if c.cur != nil || c.state.asking() || c.state == stateSending || c.transport.pass > 0 || c.transport.streams || b.s.Closed {
		return
	}
	if c.inTx() || c.pins.held != 0 || !c.texts.judged() || c.pins.held != 0 {
		return
	}
	if c.diag.keepsBackend() {
		return
	}
	c.diag.last.soft = false
	c.link = nil
	c.s.Throttle(false)
	b.owner = nil
	c.diag.keepID(b)
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
// session's state. Between transactions, with nothing of the session on it, the client
// goes on; with its command, too, if that has not left weir.
func (c *client) backendGone(b *backend, e *mywire.Error) {
	if c.diag.last.idBackend == b {
		c.diag.last.loseID()
	}
	c.link = nil
	c.cached.Wrote()
	c.cached.Leave((*cache.Flight).Fail)
	c.s.Throttle(false) // what it sent need not be written any more
	c.state.leave(stateAsking)
	c.state.leave(stateSending)
	c.texts.forgetScan()
	cur := c.cur
	c.cur = nil
	if c.s.Closed || c.s.Closing {
		return
	}
	unsent := cur != nil && cur.unsent(b)
	if unsent {
		e = errLostUnsent()
	}
	free := c.pins.held == 0 && !c.inTx() && c.transport.pass == 0
	switch {
	case unsent && c.fwd.takeBack(b, cur):
	case cur == nil && free && (len(c.s.In) == 0 || c.fwd.again(b)):
		// It was kept for the warnings of the last statement, for one that is to be
		// judged, or for a question of weir's before the next.
		c.texts.lost = len(c.texts.unjudged) > 0
		c.stmts.leave()
		c.diag.lost(b)
	case cur != nil && !cur.wrote && free:
		// Nothing of the session is lost but the answer.
		c.texts.unjudged, c.texts.lost = nil, false
		c.stats.errors++
		c.stmts.leave()
		c.reply(mywire.AppendError(nil, cur.firstSeq(), e))
		c.transport.voids = len(c.s.In) > 0 && (cur.effects.Has(leading) || cur.cmd == mywire.ComResetConnection)
	case cur != nil && cur.wrote:
		c.kick("the connection to the server was lost in the middle of an answer")
		return
	default:
		c.cur = cur
		c.fatal(e)
		c.cur = nil
		return
	}
	c.resume()
	if c.draining {
		c.leaveIfIdle()
	}
}

// grouped ends a unit that a lane has answered.
func (bk *responder) grouped(u *unit, id uint64, warnings uint16) {
	c := bk.c
	c.inflight--
	c.idleSince = c.l.Now
	c.stats.grouped++
	c.cached.Wrote()
	c.diag.wroteGTID, c.diag.draws = c.diag.wroteGTID || !u.failed, true
	if u.failed {
		c.stats.errors++
	} else if u.shape != nil {
		u.shape.Grouped++
	}
	c.diag.last.grouped(u, id, warnings)
	c.p.Stats.Grouped++
	u.took = c.l.Now - u.began
	c.p.count(u, sight.Grouped)
	c.p.Stats.Transactions++
	c.resume()
	if c.draining {
		c.leaveIfIdle()
	}
	c.l.recycle(u)
}

// resetSession brings the client back to what it was after the login, as
// COM_RESET_CONNECTION does.
func (c *client) resetSession() {
	was := c.set
	c.forgetSession()
	c.set = c.settings.start
	if db, ok := was.Get(databaseSetting); ok {
		c.set = c.p.settings.With(c.set, db) // the reset leaves the database
	}
	if !c.p.facts.mariadb {
		for _, name := range charsetNames { // whatever it has chosen with COM_CHANGE_USER
			c.set = c.p.settings.Without(c.set, name)
		}
	}
	for name, value := range c.p.facts.reset {
		c.set = c.p.settings.With(c.set, session.Setting{Name: name, Value: value, Literal: true})
	}
	c.settings.readMode()
	c.status = c.settings.status()
	if !c.p.facts.mariadb {
		c.status |= mywire.StatusAutocommit // as MySQL answers, whatever the setting is
	}
}

// forgetSession forgets what the client has made of its session but its
// settings.
func (c *client) forgetSession() {
	c.stmts.forget()
	c.pins.held &= outlastReset
	c.texts.forgetUnjudged(c.link)
	c.pins.locks, c.pins.named, c.pins.tableLocks, c.texts.namedEffects, c.texts.lost = nil, nil, 0, 0, false
	c.settings.choseVariables, c.settings.choseChanges, c.diag.wroteGTID, c.diag.draws, c.diag.asks = false, false, false, false, false
	c.settings.owed, c.settings.list = nil, trackedVariables{}
	c.diag.last = lastStatement{idVersion: c.diag.last.idVersion + 1, ran: c.diag.last.ran} // FOUND_ROWS() outlives a reset
	c.status = mywire.StatusAutocommit
}
