package mysql

import (
	"bytes"
	"strings"
	"time"

	"github.com/weirdb/weir/internal/proxy/core"
	"github.com/weirdb/weir/internal/proxy/session"
	"github.com/weirdb/weir/internal/proxy/sqlscan/myscan"
	"github.com/weirdb/weir/internal/wire/mywire"
)

// This file handles a client that has a backend of its own: it passes on commands one by one,
// translates ids of statements, and records effects.

// attach gives the client a backend and applies the client's settings to it.
func (c *client) attach(b *backend) {
	c.login.reset()
	c.state.enter(stateWaiting)
	c.fwd.attempt++
	attempt := c.fwd.attempt
	b.Mode, c.fwd.readying = core.ModeOwn, b
	if c.pins.held&pinSequence != 0 && b.sequencer != c {
		b.forgetSequences(c)
	}
	b.readied(c.set, nil, func(b *backend, err *mywire.Error) {
		if c.fwd.readying == b {
			c.fwd.readying = nil
		}
		gone := c.s.Closed || c.s.Closing || c.state != stateWaiting || c.link != nil || attempt != c.fwd.attempt
		if gone || err != nil {
			lost := b.s.Closed
			b.p.release(b) // the client's class may have changed meanwhile
			switch {
			case gone:
			case lost && c.fwd.again(b):
				c.p.queueClient(c, c.l.Now) // nothing was sent yet
			case lost:
				c.state.leave(stateWaiting)
				c.refuse(errLostUnsent())
			default:
				c.state.leave(stateWaiting)
				c.refuse(err)
			}
			return
		}
		c.state.leave(stateWaiting)
		if c.p.facts.silent {
			c.pins.add(pinUntracked)
		}
		c.link, c.fwd.fresh = b, true
		b.Mode, b.owner = core.ModeOwned, c
		if b.lastUser != c {
			b.warned = nil
		}
		b.saveID(c)
		c.resume()
	})
}

// begin makes the unit of a command that is about to be passed on. msg is the whole message, or
// nil if that is not complete.
func (fw *forwarder) begin(cmd byte, msg []byte) *unit {
	c := fw.c
	u := c.l.newUnit(unitClient, cmd)
	u.c = c
	fw.keep(u, msg)
	u.queuedAt, u.early, u.flight = c.l.Now, fw.waited(), c.cached.made(cmd)
	c.link.push(u)
	c.cur = u
	c.stats.units++
	return u
}

// waited returns how long the next unit, and nothing before it, has waited for the backend.
func (fw *forwarder) waited() (d time.Duration) {
	if fw.askedAt > 0 {
		d, fw.askedAt = fw.c.l.Now-fw.askedAt, 0
	}
	return d
}

// forward passes a command on unchanged.
func (fw *forwarder) forward(cmd byte, msg []byte) *unit {
	u := fw.begin(cmd, msg)
	u.seq = answerSeq(msg)
	fw.c.transport.toServer(msg)
	return u
}

// answerSeq returns the sequence number of the first packet of the answer to a whole message.
func answerSeq(msg []byte) byte { return seqBehind(len(msg)) }

// seqBehind is answerSeq for a message of n bytes.
func seqBehind(n int) byte {
	return byte((n-mywire.HeaderLen)/(mywire.MaxPayload+mywire.HeaderLen)) + 1
}

// feed passes on one command. It returns how much of msg it consumed: 0 if it has to wait.
func (fw *forwarder) feed(cmd byte, msg []byte) int {
	c := fw.c
	if c.link.Cancels > 0 {
		return 0 // a KILL in flight must not hit the next command
	}
	c.diag.last.soft = false
	n := len(msg)
	if !c.texts.interrupted() {
		n = fw.passOn(cmd, msg)
	}
	if n > 0 && c.cur == nil && !c.state.asking() {
		c.quietSoon() // weir has answered it
	}
	return n
}

func (fw *forwarder) passOn(cmd byte, msg []byte) int {
	c := fw.c
	b := c.link
	payload, _, err := mywire.Payload(msg)
	if err != nil {
		c.protocolError("malformed packet")
		return len(msg)
	}
	if b.shows && cmd != mywire.ComQuery {
		c.settings.dropList()
		return 0
	}
	switch cmd {
	case mywire.ComQuery:
		return fw.query(msg, payload)
	case mywire.ComStmtPrepare:
		return fw.prepare(msg, payload)
	case mywire.ComStmtExecute, mywire.ComStmtBulkExecute:
		return fw.execute(cmd, msg, payload)
	case mywire.ComStmtSendLongData:
		return fw.longData(msg, payload)
	case mywire.ComStmtFetch, mywire.ComStmtReset:
		fw.cursor(cmd, msg, payload)
	case mywire.ComChangeUser:
		c.link = nil
		b.orphaned(c)
		c.forgetSession()
		c.login.changeUser(msg)
	case mywire.ComResetConnection:
		switch {
		case c.pins.held&(pinXA|outlastReset) == pinXA:
			c.link = nil
			b.orphaned(c) // see pins.mayHideXA
			c.resetSession()
			c.responder.done()
			return len(msg)
		case c.pins.held&pinXA != 0:
			b.Doomed = true
		case c.pins.mayHideXA():
			c.state.enter(stateAsking)
			b.ask(rollbackSQL, func(u *unit) {
				if u.err != nil {
					c.pins.add(pinXA)
				} else {
					c.status = u.ok.Status & keptStatus
				}
				fw.goOn()
			})
			return 0
		}
		fw.forward(cmd, msg)
		c.resetSession()
		b.afterReset()
		b.introduce()
		b.become(c.set)
	case mywire.ComProcessKill:
		if !c.router.killOwn(msg) {
			fw.forward(cmd, msg)
		}
	case mywire.ComSetOption:
		fw.option(payload)
		fw.forward(cmd, msg)
	default:
		u := fw.forward(cmd, msg)
		switch {
		case cmd == mywire.ComInitDB:
			u.effects = myscan.EffUse
		case cmd == mywire.ComCreateDB, cmd == mywire.ComDropDB:
			u.effects = myscan.EffDDL
		case cmd == mywire.ComRefresh:
			u.effects = myscan.EffAdmin
			if len(payload) > 1 && payload[1]&refreshGrant != 0 {
				u.change |= changeSessions // as FLUSH PRIVILEGES does
			}
		}
	}
	return len(msg)
}

// refreshGrant is the option of COM_REFRESH that makes the server reload the accounts.
const refreshGrant = 1

// option records an option that the client sets on its connection. No reset undoes it, so the
// backend is not reused afterwards.
func (fw *forwarder) option(payload []byte) {
	c := fw.c
	option, err := mywire.ParseSetOption(payload)
	if err != nil || option > mywire.OptionMultiStatementsOff {
		return // the server refuses it
	}
	c.caps |= mywire.CapMultiStatements
	if option == mywire.OptionMultiStatementsOff {
		c.caps &^= mywire.CapMultiStatements
	}
	c.settings.readMode()
	c.pins.add(pinOption)
	c.link.Doomed = true
}

func (fw *forwarder) query(msg, payload []byte) int {
	c := fw.c
	sql := text(payload[1:])
	info, ready := c.texts.scan(sql)
	if !ready {
		return 0
	}
	c.texts.warn(&info.Hints)
	if c.router.intercept(sql, &info) {
		return len(msg)
	}
	if !c.diag.finds(info.Effects) {
		return 0
	}
	if c.diag.refuses(mywire.ComQuery, sql, &info) {
		return len(msg)
	}
	if c.diag.wantsSequences(&info) {
		return c.router.needBackend()
	}
	if of := c.settings.needsList(sql, &info); of != c.link.shows {
		if of {
			c.settings.useList()
		} else {
			c.settings.dropList()
		}
		return 0
	}
	judged := c.texts.reach(sql, &info)
	generated := false
	long := len(sql) > maxScanned
	var asRead *myscan.Text
	var to target
	if long {
		to = c.texts.long.target
	} else {
		asRead = c.texts.asRead(sql)
		to = targetOf(c.set, asRead)
	}
	if info.Verb == myscan.VerbInsert && c.pins.held&pinTemp == 0 && !long {
		if ins, ok := asRead.Insert(); ok {
			generated = c.diag.generatesID(c.set, &ins)
		}
	}
	hidesID := !showsDiagnostics(&info) &&
		(!judged && !plainQuestion(sql, &info) || c.diag.hidesID(info.Verb, info.Effects, to, generated))
	if c.diag.overwrites(sql, &info, hidesID) {
		return len(msg)
	}
	if !c.diag.prepare(&info, hidesID) {
		return 0
	}
	u := fw.begin(mywire.ComQuery, msg)
	if u.shape = c.l.Shapes.Other(); !long {
		u.shape = c.p.stmts.shape(asRead, c.texts.mode, info.Verb)
	}
	u.follow(c, &info.Hints, sql)
	c.cached.linked(&info, u.shape, judged)
	u.generated, u.hidesID = generated, hidesID
	if !judged {
		c.texts.judgeLater(u, sql, &info, c.texts.mode, c.set)
	}
	fw.note(u, sql, &info)
	u.movable = judged && !long && len(u.raw) > 0 && fw.mayMove(u, &info)
	u.seq = answerSeq(msg)
	c.transport.toServer(msg)
	return len(msg)
}

func (fw *forwarder) prepare(msg, payload []byte) int {
	c := fw.c
	var st *stmt
	if sql := payload[1:]; len(sql) <= maxScanned {
		st = c.p.stmts.intern(c.set, sql, c.texts.mode, c.pins.held&pinTemp != 0)
	} else if made, ready := c.texts.statement(sql); ready {
		st = made
	} else {
		return 0
	}
	if e := c.stmts.tooMany(st); e != nil {
		c.responder.refuseHere(e)
		return len(msg)
	}
	if st.info.Hints.Bad != nil {
		c.hints.warn(st.info.Hints.Bad)
	}
	u := fw.begin(mywire.ComStmtPrepare, msg)
	u.seq = answerSeq(msg)
	u.st, u.park = st, true // the id in it is not the client's
	u.noteTables(st.sql, st.mode)
	c.stmts.last = nil // until this one is prepared
	c.link.makeRoom(st)
	c.link.Doomed = c.link.Doomed || traces(st.sql, &st.info)
	c.transport.toServer(msg)
	return len(msg)
}

// execute runs a prepared statement on the client's backend, and prepares it there first if
// necessary.
func (fw *forwarder) execute(cmd byte, msg, payload []byte) int {
	c := fw.c
	b := c.link
	cs := c.stmts.find(cmd, payload)
	if cs == nil {
		return len(msg)
	}
	if c.diag.wantsSequences(&cs.st.info) {
		return c.router.needBackend()
	}
	if !c.texts.judge(cs.st) {
		return 0
	}
	judged := cs.st.reach(c)
	if cs.own == 0 && b.prepared[cs.st] == nil {
		c.stmts.learn(cs.st)
		return 0
	}
	if cmd == mywire.ComStmtBulkExecute {
		m, err := mywire.ParseBulk(payload, cs.st.params)
		if err != nil {
			c.responder.refuseHere(mywire.NewError(mywire.ErrMalformedPacket, "Malformed communication packet."))
			return len(msg)
		}
		if !c.diag.prepare(&cs.st.info, true) {
			return 0
		}
		u := fw.run(cmd, cs, msg)
		u.hidesID = true
		if m.Flags&mywire.BulkSendTypes != 0 {
			cs.types = bytes.Clone(m.Types)
		}
		at := len(b.s.OutBuf())
		b.s.Out = appendBulk(b.s.OutBuf(), msg, payload, &m, cs, c.stmts.instanceOf(cs))
		u.seq = answerSeq(b.s.Out[at:])
		b.s.Touch()
		return len(msg)
	}
	m, err := mywire.ParseExecute(payload, cs.st.params, 0)
	if err != nil && len(payload) < 10 {
		c.responder.refuseHere(mywire.NewError(mywire.ErrMalformedPacket, "Malformed communication packet."))
		return len(msg)
	}
	if err == nil && cs.untyped(&m) {
		// The connection may know types, but for another client's values.
		c.responder.refuseHere(mywire.NewError(mywire.ErrWrongArguments, "Incorrect arguments to mysqld_stmt_execute"))
		return len(msg)
	}
	if m.Cursor() && cs.own == 0 {
		c.stmts.ownInstance(cs)
		return 0
	}
	if !c.diag.finds(cs.st.info.Effects) {
		return 0
	}
	if c.diag.refuses(cmd, cs.st.sql, &cs.st.info) {
		return len(msg)
	}
	if c.l.cfg.Mode == session.ModeStatement && beginsTransactions(&cs.st.info) {
		c.responder.refuseHere(errTransaction())
		c.transport.voids = true
		return len(msg)
	}
	generated := cs.st.rows && c.pins.held&pinTemp == 0 && c.diag.generatesID(cs.st.set, &cs.st.insert)
	sql, info := cs.st.sql, &cs.st.info
	hidesID := !showsDiagnostics(info) &&
		(!judged && !plainQuestion(sql, info) || c.diag.hidesID(info.Verb, info.Effects, cs.st.target, generated))
	if c.diag.overwrites(sql, info, hidesID) {
		return len(msg)
	}
	if !c.diag.prepare(info, hidesID) {
		return 0
	}
	if err == nil {
		cs.noteTypes(&m)
	}
	id := c.stmts.instanceOf(cs)
	u := fw.run(cmd, cs, msg)
	if m.Cursor() {
		c.pins.held |= pinCursor
	}
	u.generated, u.hidesID = generated, hidesID
	u.movable = err == nil && judged && cs.own == 0 && !cs.st.private && len(u.raw) > 0 && fw.mayMove(u, &cs.st.info)
	at := len(b.s.OutBuf())
	if err != nil { // too few parameters: the server reports that
		b.s.Out = append(b.s.OutBuf(), msg...)
		mywire.SetStmtID(b.s.Out[at:], id)
	} else {
		b.s.Out = appendExecute(b.s.OutBuf(), msg, cs.st.params, cs.types, id)
	}
	u.seq = answerSeq(b.s.Out[at:])
	b.s.Touch()
	return len(msg)
}

// run makes the unit of an execution.
func (fw *forwarder) run(cmd byte, cs *clientStmt, msg []byte) *unit {
	u := fw.begin(cmd, msg)
	u.st, u.cs, u.types, u.shape = cs.st, cs, cs.types, cs.st.shape
	u.follow(fw.c, &cs.st.info.Hints, cs.st.sql)
	judged := cs.st.reach(fw.c)
	fw.c.cached.linked(&cs.st.info, cs.st.shape, judged)
	if !judged {
		fw.c.texts.judgeLater(u, cs.st.sql, &cs.st.info, cs.st.mode, cs.st.set)
	}
	fw.note(u, cs.st.sql, &cs.st.info)
	return u
}

// goOn looks again at the command for which the linked backend was prepared. Until then the
// client keeps that backend.
func (fw *forwarder) goOn() {
	c := fw.c
	b := c.link
	c.l.Post(func() { // after the current answer is processed
		if c.s.Closed || c.link == nil || c.link != b {
			return
		}
		c.state.leave(stateAsking)
		c.s.Consume()
		if !c.s.Closed && c.link != nil && c.link.Depth() == 0 {
			c.backendQuiet()
		}
	})
}

// longData passes on a part of a parameter. It has no answer.
func (fw *forwarder) longData(msg, payload []byte) int {
	c := fw.c
	cs := c.stmts.find(mywire.ComStmtSendLongData, payload)
	if cs == nil {
		return len(msg)
	}
	if cs.own == 0 {
		c.stmts.ownInstance(cs)
		return 0
	}
	cs.long = true
	c.pins.held |= pinLongData
	at := len(c.link.s.OutBuf())
	c.transport.toServer(msg)
	mywire.SetStmtID(c.link.s.Out[at:], cs.own)
	return len(msg)
}

// cursor passes on a command on a cursor.
func (fw *forwarder) cursor(cmd byte, msg, payload []byte) {
	c := fw.c
	cs := c.stmts.find(cmd, payload)
	if cs == nil {
		return
	}
	if cs.own == 0 {
		if cmd == mywire.ComStmtReset {
			c.responder.done()
		} else {
			c.responder.refuseHere(c.stmts.noCursor(cs.id))
		}
		return
	}
	u := fw.begin(cmd, msg)
	u.cs, u.seq = cs, answerSeq(msg)
	at := len(c.link.s.OutBuf())
	c.transport.toServer(msg)
	mywire.SetStmtID(c.link.s.Out[at:], cs.own)
}

// stream passes on a message that is not complete and too long to be read whole.
func (fw *forwarder) stream(cmd byte, p []byte) int {
	c := fw.c
	if c.link.Cancels > 0 {
		return 0 // as in feed
	}
	c.diag.last.soft = false
	if c.link.shows {
		c.settings.dropList()
		return 0
	}
	if cmd == mywire.ComQuery && !c.diag.finds(myscan.EffLastID) {
		return 0
	}
	c.transport.asksID = asksID{on: cmd == mywire.ComQuery && c.diag.last.unknown}
	switch cmd {
	case mywire.ComQuery:
		unread := myscan.Statement{Verb: myscan.VerbOther, Effects: myscan.EffUnknown | myscan.EffMulti | myscan.EffWrites | myscan.EffDDL}
		if !c.diag.prepare(&unread, true) {
			return 0
		}
		u := fw.begin(cmd, nil)
		u.verb, u.effects, u.hidesID = unread.Verb, unread.Effects, true
		c.diag.draws = true
		c.pins.held |= pinUnknown
	case mywire.ComStmtExecute, mywire.ComStmtSendLongData:
		if len(p) < mywire.HeaderLen+10 {
			return 0
		}
		return fw.streamExecute(cmd, p)
	default:
		return c.transport.refuse(p, mywire.NewError(mywire.ErrPacketTooLarge, "Got a packet bigger than weir takes for this command"), true)
	}
	return c.transport.nextPacket(p)
}

// streamExecute passes on a huge execution or part of a parameter. weir cannot add types to it,
// so they must be in it.
func (fw *forwarder) streamExecute(cmd byte, p []byte) int {
	c := fw.c
	cs := c.stmts.find(cmd, p[mywire.HeaderLen:])
	if cs == nil {
		c.s.CloseAfterFlush()
		return len(p)
	}
	if cs.own == 0 && (cmd == mywire.ComStmtSendLongData || c.link.prepared[cs.st] == nil) {
		c.stmts.ownInstance(cs)
		return 0
	}
	if cmd == mywire.ComStmtExecute {
		switch known, here := cs.typesIn(p[mywire.HeaderLen:]); {
		case !here:
			return 0
		case !known:
			return c.transport.refuse(p, mywire.NewError(mywire.ErrPacketTooLarge, "weir: an execution of more than %d bytes must carry the types of its parameters", maxGathered), true)
		}
		if !c.texts.judge(cs.st) {
			return 0
		}
		info, judged := &cs.st.info, cs.st.reach(c)
		if !c.diag.finds(info.Effects) {
			return 0
		}
		if info.Effects.Has(myscan.EffLastID) && c.diag.last.unknown {
			c.diag.keepsIDs = true
			return c.transport.refuse(p, c.diag.gone("LAST_INSERT_ID()"), false)
		}
		hidesID := !judged || c.diag.hidesID(info.Verb, info.Effects, cs.st.target, false)
		if !c.diag.prepare(info, hidesID) {
			return 0
		}
		fw.run(cmd, cs, nil).hidesID = hidesID
	} else {
		cs.long = true
		c.pins.held |= pinLongData
	}
	at := len(c.link.s.OutBuf())
	used := c.transport.nextPacket(p)
	mywire.SetStmtID(c.link.s.Out[at:], c.stmts.instanceOf(cs))
	return used
}

// A forwarder sends the commands of a client that has a backend: it passes them on as they
// come, and records their effects.
type forwarder struct {
	c *client

	askedAt time.Duration // when it queued for its backend; 0 if it has sent something since

	attempt  uint64   // to get a backend; outdated attempts are dropped
	readying *backend // the backend that is being prepared for it

	// The command in flight, and the session's state before it: see lost_conn.go.
	fresh    bool // no command has been passed on yet on the backend
	whole    bool // it is kept, and the session holds nothing on the backend except through it
	held     pin
	unjudged int         // number of statements that were still to be judged
	lost     core.Losses // of backends on which nothing was sent
}

// note records the effects that a statement may have; it is about to be sent.
func (fw *forwarder) note(u *unit, sql string, info *myscan.Statement) {
	c := fw.c
	u.verb, u.effects = info.Verb, info.Effects
	if u.st == nil {
		u.noteTables(sql, c.texts.mode)
	} else {
		u.noteTables(sql, u.st.mode)
	}
	c.diag.draws = c.diag.draws || info.Effects.Has(drawing)
	c.pins.held &^= pinFoundRows
	c.pins.add(pinsOf(info.Effects))
	if info.Effects.Has(myscan.EffRole) {
		c.link.Doomed = true // no reset ends a role
	}
	if traces(sql, info) {
		c.pins.add(pinSet)
		c.link.Doomed = true
	}
	if info.Effects.Has(myscan.EffSetGlobal|myscan.EffDDL|myscan.EffAdmin) && changesSessions(sql, info.Effects) {
		u.change |= changeSessions
	}
	if info.Effects.Has(myscan.EffDiag | myscan.EffSessionRead | myscan.EffSequence | myscan.EffSequenceRead) {
		fw.noteReads(u.cmd, sql, info)
	}
	if info.Effects.Has(myscan.EffSet) {
		if c.link.shows {
			c.settings.noteList(u, info)
		} else {
			c.settings.noteSet(u, info)
			c.settings.noteUnreported(u, info)
		}
	}
	if info.Effects.Has(myscan.EffUnknownFunc) && info.Effects.Has(myscan.EffUserVarRead) {
		c.pins.add(pinUserVar) // it may get a result assigned
	}
	switch info.Verb {
	case myscan.VerbXA:
		if words := strings.Fields(plainText(strings.ToLower(sql))); len(words) > 1 && info.Count == 1 && (words[1] == "commit" || words[1] == "rollback") {
			u.change |= changeXAEnd
		}
	case myscan.VerbPrepare:
		c.pins.notePrepared(info.Name)
	case myscan.VerbDeallocate:
		if info.Count == 1 { // a later statement of the text may prepare another of that name
			u.change |= changeDeallocate
			c.pins.leaves = strings.Clone(strings.ToLower(info.Name)) // a copy: the name points into the input buffer
		}
	case myscan.VerbUnlock:
		if info.Effects.Has(myscan.EffImplicitCommit) { // TABLES, not INSTANCE, not a BACKUP lock
			u.change |= changeUnlock
		}
	}
	if info.Effects.Has(myscan.EffTableLock) {
		if info.Verb == myscan.VerbLock || info.Verb == myscan.VerbAdmin || info.Count != 1 {
			c.pins.noteTableLocks(info)
		}
	}
	if info.Effects.Has(myscan.EffMulti) && info.Effects.Has(myscan.EffSet|myscan.EffPrepare) {
		fw.noteLater(u, sql, info)
	}
	c.pins.noteReached(info.Effects)
	if info.Effects.Has(myscan.EffQuit) || info.Effects.Has(myscan.EffTxEnd) && c.settings.releases(sql, info) {
		u.change |= changeQuit
	}
	if info.Effects.Has(myscan.EffLock | myscan.EffRelease) {
		c.pins.noteLocks(u, sql)
	}
}

// noteLater does for the further statements of a text what note does for the first. Some of
// them may not run, if an earlier one fails: state that they would have undone counts as still
// there.
func (fw *forwarder) noteLater(u *unit, sql string, info *myscan.Statement) {
	c := fw.c
	if len(sql) > maxScanned {
		c.pins.add(pinSet | pinIf(info.Effects.Has(myscan.EffPrepare), pinPrepare))
		c.pins.notePrepared("") // the names in it are unknown
		return
	}
	n := 1
	for st := range myscan.Later(sql, c.texts.mode) {
		n++
		if st.Effects.Has(myscan.EffSet) {
			c.settings.noteLaterSet(u, &st, n)
		}
		if st.Verb == myscan.VerbPrepare {
			c.pins.notePrepared(st.Name)
		}
	}
}

// noteReads records that a session reads state of its connection, and pins it unless that can
// be had without.
func (fw *forwarder) noteReads(cmd byte, sql string, info *myscan.Statement) {
	c := fw.c
	if info.Effects.Has(myscan.EffDiag) {
		c.diag.asked(cmd, sql)
	}
	if info.Effects.Has(myscan.EffSessionRead) && strings.Contains(strings.ToLower(sql), "connection_id") {
		c.pins.add(pinConnection) // so that a KILL of that number finds it
	}
	if info.Effects.Has(myscan.EffSequenceRead) {
		c.p.keepSequences = true
	}
	if info.Effects.Has(myscan.EffSequence) && (c.pins.held != 0 || c.inTx()) {
		c.link.sequencer = c // as long as it keeps the connection
	}
}

// drawing are the effects of statements that may use a sequence, possibly in the DEFAULT of a
// column.
const drawing = myscan.EffWrites | myscan.EffSequence | myscan.EffLoad | myscan.EffUnknownFunc | myscan.EffUnknown | myscan.EffMulti
