package mysql

import (
	"github.com/weirdb/weir/internal/proxy/core"
	"github.com/weirdb/weir/internal/proxy/sqlscan/myscan"
	"github.com/weirdb/weir/internal/wire/mywire"
)

// This file is the client with a backend of its own: its commands are passed on
// one by one, numbers of statements translated, effects noted.

// attach gives the client a backend, when that is in the client's settings.
func (c *client) attach(b *backend) {
	c.waiting = true
	c.attempt++
	attempt := c.attempt
	b.Mode, c.readying = core.ModeOwn, b
	if c.pins&pinSequence != 0 && b.sequencer != c {
		b.forgetSequences(c)
	}
	b.readied(c.set, nil, func(b *backend, err *mywire.Error) {
		if c.readying == b {
			c.readying = nil
		}
		gone := c.s.Closed || c.s.Closing || !c.waiting || c.link != nil || attempt != c.attempt
		if gone || err != nil {
			lost := b.s.Closed
			b.p.release(b) // the client may have changed its class meanwhile
			switch {
			case gone:
			case lost:
				c.p.queueClient(c) // nothing was sent yet
			default:
				c.waiting = false
				c.refuse(err)
			}
			return
		}
		c.waiting = false
		if c.p.facts.silent {
			c.addPins(pinUntracked)
		}
		c.link = b
		b.Mode, b.owner = core.ModeOwned, c
		if b.lastUser != c {
			b.warned = nil
		}
		b.yieldID(c)
		c.resume()
	})
}

// toServer appends bytes for the linked backend.
func (c *client) toServer(p []byte) {
	b := c.link
	if b == nil {
		return
	}
	b.s.Write(p)
	if b.s.Pending() > maxClientOut {
		b.s.HoldBack(c.s)
	}
}

// begin makes the unit of a command that is about to be passed on.
func (c *client) begin(cmd byte) *unit {
	u := c.l.newUnit(unitClient, cmd)
	u.c = c
	u.queuedAt = c.l.Now
	c.link.Push(u, c.l.Now)
	c.cur = u
	c.stats.units++
	return u
}

// forward passes a command on as it is.
func (c *client) forward(cmd byte, msg []byte) *unit {
	u := c.begin(cmd)
	u.seq = answerSeq(msg)
	c.toServer(msg)
	return u
}

// answerSeq is the sequence number of the first packet of the answer to a whole
// message.
func answerSeq(msg []byte) byte {
	return byte((len(msg)-mywire.HeaderLen)/(mywire.MaxPayload+mywire.HeaderLen)) + 1
}

// feedLinked passes one command on. It returns how much of msg it consumed: 0
// if it has to wait.
func (c *client) feedLinked(cmd byte, msg []byte) int {
	if c.link.Cancels > 0 {
		return 0 // a KILL under way must not hit what comes next
	}
	c.last.soft = false
	n := c.passOn(cmd, msg)
	if n > 0 && c.cur == nil && !c.probing {
		c.quietSoon() // weir has answered it
	}
	return n
}

func (c *client) passOn(cmd byte, msg []byte) int {
	b := c.link
	payload, _, err := mywire.Payload(msg)
	if err != nil {
		c.protocolError("malformed packet")
		return len(msg)
	}
	switch cmd {
	case mywire.ComQuery:
		return c.linkedQuery(msg, payload)
	case mywire.ComStmtPrepare:
		c.linkedPrepare(msg, payload)
	case mywire.ComStmtExecute, mywire.ComStmtBulkExecute:
		return c.linkedExecute(cmd, msg, payload)
	case mywire.ComStmtSendLongData:
		return c.linkedLongData(msg, payload)
	case mywire.ComStmtFetch, mywire.ComStmtReset:
		c.linkedOwn(cmd, msg, payload)
	case mywire.ComChangeUser:
		c.link = nil
		c.forgetSession()
		b.orphaned(c)
		c.changeUser(msg)
	case mywire.ComResetConnection:
		c.forward(cmd, msg)
		c.resetSession()
		b.afterReset()
		b.introduce()
		b.become(c.set)
	case mywire.ComProcessKill:
		if !c.killOwn(msg) {
			c.forward(cmd, msg)
		}
	case mywire.ComSetOption:
		c.linkedOption(payload)
		c.forward(cmd, msg)
	default:
		u := c.forward(cmd, msg)
		if cmd == mywire.ComInitDB {
			u.effects = myscan.EffUse
		}
	}
	return len(msg)
}

// linkedOption takes note of an option that the client sets where it is. No reset
// takes that back, so the backend is for nobody else afterwards.
func (c *client) linkedOption(payload []byte) {
	option, err := mywire.ParseSetOption(payload)
	if err != nil || option > mywire.OptionMultiStatementsOff {
		return // the server refuses it
	}
	c.caps |= mywire.CapMultiStatements
	if option == mywire.OptionMultiStatementsOff {
		c.caps &^= mywire.CapMultiStatements
	}
	c.readMode()
	c.addPins(pinOption)
	c.link.Doomed = true
}

func (c *client) linkedQuery(msg, payload []byte) int {
	sql := text(payload[1:])
	info, ready := c.scan(sql)
	if !ready {
		return 0
	}
	if info.Hints.Bad != nil {
		c.complain(&info.Hints)
	}
	if c.intercept(sql, &info) || c.refusesDiagnostics(mywire.ComQuery, sql, &info) {
		return len(msg)
	}
	if c.wantsSequences(&info) {
		return c.needBackend()
	}
	judged := c.reach(sql, &info)
	generated := false
	long := len(sql) > maxScanned
	if info.Verb == myscan.VerbInsert && c.pins&pinTemp == 0 && !long {
		if ins, ok := myscan.Insert(sql, c.mode); ok {
			generated = c.generatesID(&ins)
		}
	}
	murky := !showsDiagnostics(&info) && (!judged || c.murky(sql, &info, generated))
	if !c.prepareDiagnostics(&info, murky) {
		return 0
	}
	u := c.begin(mywire.ComQuery)
	if u.shape = c.p.shapes.Other(); !long {
		u.shape = c.p.shape(sql, c.mode, info.Verb)
	}
	u.generated, u.murky = generated, murky
	if !judged {
		c.judgeLater(u, sql)
	}
	c.note(u, sql, &info)
	if judged && !long && c.mayMove(u, &info) {
		u.keep(msg)
	}
	u.seq = answerSeq(msg)
	c.toServer(msg)
	return len(msg)
}

func (c *client) linkedPrepare(msg, payload []byte) {
	st := c.p.intern(c.set, payload[1:], c.mode, c.pins&pinTemp != 0)
	if len(c.stmts) >= maxClientStmts {
		c.refuseHere(tooManyStatements())
		return
	}
	if st.info.Hints.Bad != nil {
		c.complain(&st.info.Hints)
	}
	u := c.begin(mywire.ComStmtPrepare)
	u.seq = answerSeq(msg)
	u.st, u.park = st, true // the number in it is not the client's
	c.lastStmt = nil        // until it is prepared
	c.link.makeRoom(st)
	c.toServer(msg)
}

func tooManyStatements() *mywire.Error {
	return mywire.NewError(mywire.ErrTooManyStatements, "Can't create more than %d prepared statements in one session of weir", maxClientStmts)
}

// prepared answers the client's COM_STMT_PREPARE.
func (c *client) prepared(b *backend, u *unit) {
	if !u.failed {
		b.learned(u.st, u)
		mywire.SetStmtID(u.resp, c.name(u.st).id)
	}
	c.reply(u.resp)
}

// statement finds what a command is about. Without it the client is told, as by
// the server.
func (c *client) statement(cmd byte, payload []byte) *clientStmt {
	id, err := mywire.ParseStmtID(payload)
	if err != nil {
		c.protocolError("malformed packet")
		return nil
	}
	cs := c.stmt(id)
	if cs == nil && mywire.HasAnswer(cmd) {
		name := map[byte]string{mywire.ComStmtFetch: "mysqld_stmt_fetch", mywire.ComStmtReset: "mysqld_stmt_reset"}[cmd]
		if name == "" {
			name = "mysqld_stmt_execute"
		}
		if !c.onMariaDB() {
			name = "mysql_stmt_precheck"
		}
		c.refuseHere(mywire.NewError(mywire.ErrUnknownStatement, "Unknown prepared statement handler (%d) given to %s", id, name))
	}
	return cs
}

// linkedExecute runs a prepared statement on the client's backend, where it may
// have to be prepared first.
func (c *client) linkedExecute(cmd byte, msg, payload []byte) int {
	b := c.link
	cs := c.statement(cmd, payload)
	if cs == nil {
		return len(msg)
	}
	if c.wantsSequences(&cs.st.info) {
		return c.needBackend()
	}
	judged := cs.st.reach(c)
	if cs.own == 0 && b.prepared[cs.st] == nil {
		c.learnLinked(cs.st)
		return 0
	}
	if cmd == mywire.ComStmtBulkExecute {
		m, err := mywire.ParseBulk(payload, cs.st.params)
		if err != nil {
			c.refuseHere(mywire.NewError(mywire.ErrMalformedPacket, "Malformed communication packet."))
			return len(msg)
		}
		if !c.prepareDiagnostics(&cs.st.info, true) {
			return 0
		}
		u := c.execute(cmd, cs)
		u.murky = true
		if m.Flags&mywire.BulkSendTypes != 0 {
			cs.types = append(cs.types[:0], m.Types...)
		}
		at := len(b.s.OutBuf())
		b.s.Out = appendBulk(b.s.OutBuf(), msg, payload, &m, cs, c.instanceOf(cs))
		u.seq = answerSeq(b.s.Out[at:])
		b.s.Touch()
		return len(msg)
	}
	m, err := mywire.ParseExecute(payload, cs.st.params, 0)
	if err != nil {
		c.refuseHere(mywire.NewError(mywire.ErrMalformedPacket, "Malformed communication packet."))
		return len(msg)
	}
	if m.Cursor() && cs.own == 0 {
		c.ownInstance(cs)
		return 0
	}
	if c.refusesDiagnostics(cmd, cs.st.sql, &cs.st.info) {
		return len(msg)
	}
	generated := cs.st.rows && c.pins&pinTemp == 0 && c.generatesID(&cs.st.insert)
	murky := !showsDiagnostics(&cs.st.info) && (!judged || c.murky(cs.st.sql, &cs.st.info, generated))
	if !c.prepareDiagnostics(&cs.st.info, murky) {
		return 0
	}
	cs.noteTypes(&m)
	if m.Cursor() {
		cs.cursor = true
		c.pins |= pinCursor
	}
	id := c.instanceOf(cs)
	u := c.execute(cmd, cs)
	u.generated, u.murky = generated, murky
	if judged && cs.own == 0 && !cs.st.private && c.mayMove(u, &cs.st.info) {
		u.keep(msg)
	}
	at := len(b.s.OutBuf())
	b.s.Out = appendExecute(b.s.OutBuf(), msg, cs, id)
	u.seq = answerSeq(b.s.Out[at:])
	b.s.Touch()
	return len(msg)
}

// execute makes the unit of an execution.
func (c *client) execute(cmd byte, cs *clientStmt) *unit {
	u := c.begin(cmd)
	u.st, u.cs, u.shape = cs.st, cs, cs.st.shape
	if !cs.st.reach(c) {
		c.judgeLater(u, cs.st.sql)
	}
	c.note(u, cs.st.sql, &cs.st.info)
	return u
}

// instanceOf is the number by which the linked backend knows the statement.
func (c *client) instanceOf(cs *clientStmt) uint32 {
	if cs.own != 0 {
		return cs.own
	}
	return c.link.use(cs.st)
}

// learnLinked has a statement prepared on the client's backend; the client's
// command waits.
func (c *client) learnLinked(st *stmt) {
	c.probing = true
	c.link.learn(st, func(err *mywire.Error) {
		if c.s.Closed || c.link == nil {
			return
		}
		if err != nil {
			c.probing = false
			// It was prepared before, elsewhere: the schema has changed, or the
			// server has too many statements.
			c.l.Post(func() {
				if !c.s.Closed {
					c.refuse(err)
					c.quietSoon()
				}
			})
			return
		}
		c.goOn()
	})
}

// goOn has the command looked at again for which the linked backend has been made
// ready. Until then the client keeps that backend.
func (c *client) goOn() {
	c.l.Post(func() { // when the answer has been dealt with
		if c.s.Closed || c.link == nil {
			return
		}
		c.probing = false
		c.s.Consume()
		if !c.s.Closed && c.link != nil && c.link.Depth() == 0 {
			c.backendQuiet()
		}
	})
}

// ownInstance prepares the statement once more for this client alone, for what
// must not be shared: cursors and long data.
func (c *client) ownInstance(cs *clientStmt) {
	b := c.link
	c.probing = true
	b.prepareAway(cs.st, func(u *unit) {
		if c.s.Closed || c.link == nil {
			return
		}
		if u.err != nil {
			c.probing = false
			err := u.err
			c.l.Post(func() {
				if !c.s.Closed {
					c.refuse(err)
					c.quietSoon()
				}
			})
			return
		}
		m, err := mywire.ParsePrepared(u.resp[mywire.HeaderLen:])
		if err != nil {
			b.fail(err)
			return
		}
		cs.own = m.StmtID
		c.pins |= pinCursor // whatever the command has to wait for still
		c.goOn()
	})
}

// linkedLongData passes on a part of a parameter. It has no answer.
func (c *client) linkedLongData(msg, payload []byte) int {
	cs := c.statement(mywire.ComStmtSendLongData, payload)
	if cs == nil {
		return len(msg)
	}
	if cs.own == 0 {
		c.ownInstance(cs)
		return 0
	}
	cs.long = true
	c.pins |= pinLongData
	at := len(c.link.s.OutBuf())
	c.toServer(msg)
	mywire.SetStmtID(c.link.s.Out[at:], cs.own)
	return len(msg)
}

// linkedOwn passes on a command about a cursor.
func (c *client) linkedOwn(cmd byte, msg, payload []byte) {
	cs := c.statement(cmd, payload)
	if cs == nil {
		return
	}
	if cs.own == 0 {
		if cmd == mywire.ComStmtReset {
			c.done()
		} else {
			c.refuseHere(c.noCursor(cs.id))
		}
		return
	}
	u := c.begin(cmd)
	u.cs = cs
	at := len(c.link.s.OutBuf())
	c.toServer(msg)
	mywire.SetStmtID(c.link.s.Out[at:], cs.own)
}

// noCursor is the server's error for a fetch without a cursor.
func (c *client) noCursor(id uint32) *mywire.Error {
	format := "The statement (%d) has no open cursor."
	if c.onMariaDB() {
		format = format[:len(format)-1]
	}
	return mywire.NewError(mywire.ErrNoCursor, format, id)
}

// settleOwn closes a statement's own instance when its purpose has ended.
func (c *client) settleOwn(u *unit) {
	cs := u.cs
	if cs == nil || cs.own == 0 {
		return
	}
	ended := u.failed || u.cmd == mywire.ComStmtReset || u.ok.Status&mywire.StatusLastRowSent != 0 ||
		(u.cmd == mywire.ComStmtExecute && u.ok.Status&mywire.StatusCursorExists == 0)
	if u.cmd == mywire.ComStmtFetch && u.failed {
		ended = false // the cursor may still be open
	}
	if !ended {
		cs.long = false
		return
	}
	c.dropOwn(cs)
	c.repin()
}

// repin drops the pins of statements' own instances when there are none.
func (c *client) repin() {
	for _, cs := range c.stmts {
		if cs.own != 0 {
			return
		}
	}
	c.pins &^= pinLongData | pinCursor
}

// streamLinked passes a message on of which only the beginning is here, and which
// is too long to be read whole.
func (c *client) streamLinked(cmd byte, p []byte) int {
	switch cmd {
	case mywire.ComQuery:
		c.pins |= pinUnknown
		c.begin(cmd).effects = myscan.EffUnknown
	case mywire.ComStmtExecute, mywire.ComStmtSendLongData:
		if len(p) < mywire.HeaderLen+10 {
			return 0
		}
		return c.streamExecute(cmd, p)
	default:
		c.refuseHere(mywire.NewError(mywire.ErrPacketTooLarge, "Got a packet bigger than weir takes for this command"))
		c.s.CloseAfterFlush()
		return len(p)
	}
	return c.nextPacket(p)
}

// streamExecute passes on a huge execution or part of a parameter. Its types
// cannot be added any more, so they must be in it.
func (c *client) streamExecute(cmd byte, p []byte) int {
	cs := c.statement(cmd, p[mywire.HeaderLen:])
	if cs == nil {
		c.s.CloseAfterFlush()
		return len(p)
	}
	if cs.own == 0 && (cmd == mywire.ComStmtSendLongData || c.link.prepared[cs.st] == nil) {
		c.ownInstance(cs)
		return 0
	}
	if cmd == mywire.ComStmtExecute {
		switch known, here := cs.typesIn(p[mywire.HeaderLen:]); {
		case !here:
			return 0
		case !known:
			c.refuseHere(mywire.NewError(mywire.ErrPacketTooLarge, "weir: an execution of more than %d bytes must carry the types of its parameters", maxGathered))
			c.s.CloseAfterFlush()
			return len(p)
		}
		c.execute(cmd, cs)
	} else {
		cs.long = true
		c.pins |= pinLongData
	}
	at := len(c.link.s.OutBuf())
	used := c.nextPacket(p)
	mywire.SetStmtID(c.link.s.Out[at:], c.instanceOf(cs))
	return used
}

// sendFile has the client send the file that the server asks for.
func (c *client) sendFile() {
	c.infile = true
	c.resume()
}

// feedFile passes on one packet of a file. An empty one ends it.
func (c *client) feedFile(p []byte) int {
	n, seq, ok := mywire.Peek(p)
	if !ok {
		return 0
	}
	size := mywire.HeaderLen + n
	have := min(size, len(p))
	c.toServer(p[:have])
	c.pass = size - have
	if n == 0 {
		c.infile = false
		c.link.answer.Resume(seq + 1)
	}
	return have
}
