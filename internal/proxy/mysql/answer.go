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

// This file passes what a backend sends to the clients that it answers.

// A responder processes the answers to a client's commands, and sends weir's own.
type responder struct {
	c *client

	seq byte // of the first packet of weir's own answer to the current command
}

const (
	// maxClientOut is how much of a result weir buffers for a client that owns its backend
	// before it stops reading from that backend.
	maxClientOut = 1 << 20
	// maxHeld is how much of an answer weir keeps until it is complete. It is more than sockets
	// hold when weir kills a statement whose answer begins just then, so that such a statement
	// can still run again.
	maxHeld = 16 << 20
	// maxSharedOut is maxClientOut for a client whose backend is shared: to stop reading there
	// holds up others.
	maxSharedOut = 64 << 20
)

// OnData passes the server's output to the clients that it answers.
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

// unasked handles packets that answer no command: before the server closes a connection it may
// send the reason.
func (b *backend) unasked(p []byte) {
	err := errors.New("server sent what nothing asked for")
	if n, _, ok := mywire.Peek(p); ok && len(p) >= mywire.HeaderLen+n {
		if e, perr := mywire.ParseError(p[mywire.HeaderLen : mywire.HeaderLen+n]); perr == nil {
			err = e
		}
	}
	b.s.Close(err)
}

// forward passes the bytes of an answer to its client. It holds back the last bytes while they
// may be part of a packet that ends a result, which weir may have to rewrite.
func (b *backend) forward(u *unit, p []byte, event mywire.Event) {
	held := 0
	if event == mywire.EventMore {
		held = b.answer.Held()
	}
	if held > len(p) || (held == len(p) && held > 0) {
		b.hold = append(b.hold, p...)
		return
	}
	if len(u.resp) > b.p.l.cfg.held {
		u.goesOn(b) // not the packet that ends it, which may be in p
	}
	if len(b.hold) > 0 {
		b.emit(u, b.hold)
		b.hold = b.hold[:0]
	}
	b.emit(u, p[:len(p)-held])
	b.hold = append(b.hold, p[len(p)-held:]...)
}

// emit passes whole packets, or parts of rows, to the client of the unit.
func (b *backend) emit(u *unit, p []byte) {
	if len(p) == 0 {
		return
	}
	u.bytes += len(p)
	if u.park || u.held() {
		if u.most > 0 && u.bytes > u.most {
			u.resp = nil
			return
		}
		u.resp = append(u.resp, p...)
		if u.flight != nil && len(u.resp) > b.p.l.srv.Cache.MaxAnswer() {
			b.spill(u)
			return
		}
		if u.preempted && b.Cancels > 0 && len(u.resp) > maxClientOut {
			b.s.Throttle(true) // until the KILL is answered: see signal
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

// goesOn sends the client the beginning of an answer that is too long to be kept until it is
// complete. From here on the unit cannot run again. For a member of a group these are rows; the
// end of its answer, which says that they are complete, is kept until the group has committed.
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

// resultEnded records how a result ended, and rewrites its last packet as the client expects
// it.
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
			rewordError(b, u, mywire.NewError(code, "Lock wait timeout exceeded; try restarting transaction (of weir, which does not wait for a lock within a group, and had sent more than %d MB of rows: else it would have run the statement again; nothing of it has taken effect)", b.p.l.cfg.held>>20))
		}
		return
	}
	if u.chooses > 0 && u.c != nil {
		if u.results++; u.results >= u.chooses {
			u.c.settings.choseVariables, u.chooses = true, 0
		}
	}
	ok := a.OK()
	u.warned = u.warned || ok.Warnings > 0
	u.end = len(u.resp) - a.Tail()
	changed := ok.Status&mywire.StatusSessionState != 0
	u.stateful = u.stateful || changed && u.flight != nil && !onlyCounts(u, ok.State)
	switch {
	case changed && len(ok.State) > 0:
		b.track(u, ok.State)
	case changed && !b.caps.Has(mywire.CapDeprecateEOF):
		b.unreported(u)
	}
	if c := u.c; c != nil && len(c.settings.owed) > 0 && u.hasStatus() {
		ok.State, c.settings.owed = append(c.settings.owed, ok.State...), nil
		ok.Status |= mywire.StatusSessionState
		changed, u.stateful = true, true
	}
	if changed {
		b.reword(u, &ok) // an EOF has only the flag
	}
	ok.Info, ok.State = nil, nil
	u.ok, u.rows = ok, a.Rows()
}

// reword rewrites the packet that ended a result, which has just been passed on, as the server
// would have sent it to the client directly: without session state if the client has not
// enabled it, otherwise with what servers report by default.
func (b *backend) reword(u *unit, ok *mywire.OK) {
	out, caps := *ok, u.caps
	var buf *[]byte
	switch c := u.c; {
	case u.refresh:
		buf, out.State = &u.resp, nil // it is kept only if it has no state to report
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
		return // the client is closing, or the answer is too long to be kept
	}
	at := len(*buf) - tail
	seq, first := (*buf)[at+3], (*buf)[at+mywire.HeaderLen]
	if mywire.IsOK((*buf)[at+mywire.HeaderLen:]) && first == 0 {
		*buf = mywire.AppendOK((*buf)[:at], seq, caps, &out)
	} else {
		*buf = mywire.AppendEnd((*buf)[:at], seq, caps, &out)
	}
}

// rewordError replaces the error that has just come.
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

// overdueError is the error for a statement that exceeded the query timeout.
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
	c.diag.last.answeredHere()
}

// refuseHere answers a command with an error of weir's own.
func (bk *responder) refuseHere(e *mywire.Error) {
	c := bk.c
	c.stats.errors++
	c.cached.Leave((*cache.Flight).Leave) // the command was to be sent
	if c.link != nil {
		c.link.lastUser = nil // the diagnostics there are not those of this error
	}
	c.reply(mywire.AppendError(nil, bk.seq, e))
	c.diag.forget()
}

// answered is called when a unit of this client is answered.
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
			c.cached.Wrote() // a write of a lane that ran apart
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
		// The server would read the rest as another command, and would answer that. A server
		// that answers this early closes the connection.
		c.s.CloseAfterFlush()
		b.s.Close(errors.New("the server has answered a command before it had all of it"))
		return
	}
	switch {
	case u.failed || u.cmd == mywire.ComQuery || u.cmd == mywire.ComStmtExecute || u.cmd == mywire.ComStmtBulkExecute:
		c.diag.ran(b, u)
	case b.lastUser != c:
		b.lastUser = nil // a command that clears part of the diagnostics
	}
	if u.failed || u.warned {
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

// defined processes a unit that has changed the schema, or may have.
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
		l.srv.askAgain() // the database may be gone, or the password changed
	}
}

// settled processes the answer to a command of the linked client.
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
	c.settings.settledUnreported(b, u)
	if u.refused() {
		return
	}
	c.l.defined(u)
	switch {
	case u.change&changeSessions == 0:
	case u.failed:
		c.l.renewSoon = true // a part of it may have taken effect
	default:
		c.l.srv.renew(c.l)
	}
}

func (bk *responder) succeeded(u *unit) {
	c := bk.c
	began := c.inTx()
	if u.hasStatus() {
		c.status = u.ok.Status & keptStatus
	}
	if !began && c.inTx() {
		c.txSince = c.l.Now
	}
	c.diag.last.note(u)
	switch {
	case u.effects.Has(myscan.EffMulti): // a later statement may take again what an earlier one releases
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
	// The text has no such word, but the answer reports a change beyond settings: it called a
	// function or procedure that made it, or a trigger did.
	if u.change&changeState != 0 && (u.effects.Has(myscan.EffUnknownFunc) || u.effects == myscan.EffWrites) {
		c.pins.add(pinFunction)
	}
	if u.effects.Has(myscan.EffUnknownFunc) && !c.p.facts.reportsInResults && u.answersWithRows() {
		c.pins.add(pinFunction) // without CLIENT_DEPRECATE_EOF most servers do not report state in a result
	}
}

// failed processes an ERR, which says nothing about the transaction. If the error may have
// ended one, or the statement begun one, weir queries the server.
func (bk *responder) failed(b *backend, u *unit) {
	c := bk.c
	c.stats.errors++
	c.diag.last.fail(u)
	if u.change&changeDeallocate != 0 && u.code == mywire.ErrUnknownStatement {
		c.pins.deallocated() // it did not exist
	}
	if u.effects.Has(myscan.EffUnknownFunc) && !neverRan(u) {
		c.pins.add(pinFunction) // the server does not report the changes that it made before the error
	}
	if c.inTx() || !c.autocommit() || !plainVerb(u) {
		bk.probe(b)
	}
}

// refusesTransaction disconnects a client that is in a transaction in the statement mode, which
// rolls the transaction back. The text that began it did not show that, and is already
// answered.
func (bk *responder) refusesTransaction() {
	if c := bk.c; c.l.cfg.Mode == session.ModeStatement && c.inTx() {
		c.fatal(errTransaction())
	}
}

// probe queries the state of the transaction.
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
			c.pins.add(pinUnknown) // maybe a transaction
		}
		c.resume()
	})
	u.probe = true
	b.s.Out = mywire.AppendPing(b.s.OutBuf())
}

// backendQuiet is called when everything sent is answered: the client gives its backend back
// unless the session still needs it.
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

// quietSoon calls backendQuiet after the current event, for a command that weir has answered
// itself.
func (c *client) quietSoon() {
	c.l.Post(func() {
		if c.link != nil && c.link.Depth() == 0 && !c.s.Closed {
			c.backendQuiet()
		}
	})
}

// backendGone is called when the linked backend's connection is lost, and with it the session's
// state there. Between transactions, with no session state on it, the client goes on, and its
// command is sent again if none of it has been sent.
func (c *client) backendGone(b *backend, e *mywire.Error) {
	if c.diag.last.idBackend == b {
		c.diag.last.loseID()
	}
	c.link = nil
	c.cached.Wrote()
	c.cached.Leave((*cache.Flight).Fail)
	c.s.Throttle(false) // its bytes need not be written any more
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
		// The client kept it for the warnings of the last statement, for a statement that is
		// still to be judged, or for a query of weir's before the next one.
		c.texts.lost = len(c.texts.unjudged) > 0
		c.stmts.leave()
		c.diag.lost(b)
	case cur != nil && !cur.wrote && free:
		// The session has lost only the answer.
		c.texts.unjudged, c.texts.lost = nil, false
		c.stats.errors++
		c.stmts.leave()
		c.diag.forget()
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

// resetSession resets the session to its state after the login, as COM_RESET_CONNECTION does.
func (c *client) resetSession() {
	was := c.set
	c.forgetSession()
	c.set = c.settings.start
	if db, ok := was.Get(databaseSetting); ok {
		c.set = c.p.settings.With(c.set, db) // the reset keeps the database
	}
	if !c.p.facts.mariadb {
		for _, name := range charsetNames { // including those chosen by COM_CHANGE_USER
			c.set = c.p.settings.Without(c.set, name)
		}
	}
	for name, value := range c.p.facts.reset {
		c.set = c.p.settings.With(c.set, session.Setting{Name: name, Value: value, Literal: true})
	}
	c.settings.readMode()
	c.status = c.settings.status()
	if !c.p.facts.mariadb {
		c.status |= mywire.StatusAutocommit // MySQL answers so, whatever the setting is
	}
}

// forgetSession clears the state of the session except its settings.
func (c *client) forgetSession() {
	c.stmts.forget()
	c.pins.held &= outlastReset
	c.texts.forgetUnjudged(c.link)
	c.pins.locks, c.pins.named, c.pins.tableLocks, c.texts.namedEffects, c.texts.lost = nil, nil, 0, 0, false
	c.settings.choseVariables, c.settings.choseChanges, c.diag.wroteGTID, c.diag.draws, c.diag.asks, c.diag.asksRows = false, false, false, false, false, ""
	c.settings.owed, c.settings.list = nil, trackedVariables{}
	c.diag.last = lastStatement{idVersion: c.diag.last.idVersion + 1, ran: c.diag.last.ran} // FOUND_ROWS() survives a reset
	c.status = mywire.StatusAutocommit
}
