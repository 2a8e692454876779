package mysql

import (
	"time"

	"github.com/weirdb/weir/internal/proxy/core"
	"github.com/weirdb/weir/internal/proxy/session"
	"github.com/weirdb/weir/internal/proxy/sqlscan"
	"github.com/weirdb/weir/internal/proxy/sqlscan/myscan"
	"github.com/weirdb/weir/internal/wire/mywire"
)

// This file is the client without a backend: which way each command takes.

// feedOwn deals with the commands that weir answers itself, whether the client
// has a backend or not, and reports whether it did.
func (c *client) feedOwn(cmd byte, msg []byte) bool {
	switch cmd {
	case mywire.ComQuit:
		c.quit()
		return true
	case mywire.ComStmtClose:
		if id, err := mywire.ParseStmtID(msg[mywire.HeaderLen:]); err == nil {
			if cs := c.stmt(id); cs != nil {
				c.unname(cs)
				c.repin()
				if c.link != nil {
					c.quietSoon()
				}
			}
		}
		return true
	case mywire.ComBinlogDump, mywire.ComBinlogDumpGTID, mywire.ComTableDump, mywire.ComRegisterSlave, mywire.ComClone:
		c.refuseHere(mywire.NewError(mywire.ErrNotSupportedYet, "weir does not carry replication: connect to the server itself"))
		return true
	case mywire.ComQuery, mywire.ComStmtPrepare, mywire.ComStmtExecute, mywire.ComStmtSendLongData, mywire.ComStmtFetch, mywire.ComStmtReset,
		mywire.ComStmtBulkExecute, mywire.ComProcessKill, mywire.ComInitDB, mywire.ComFieldList, mywire.ComCreateDB, mywire.ComDropDB, mywire.ComRefresh, mywire.ComShutdown,
		mywire.ComStatistics, mywire.ComProcessInfo, mywire.ComDebug, mywire.ComPing, mywire.ComChangeUser, mywire.ComSetOption, mywire.ComResetConnection:
		return false
	}
	c.refuseHere(mywire.NewError(mywire.ErrUnknownCommand, "Unknown command"))
	return true
}

// killOwn runs a COM_PROCESS_KILL of a number that weir has given, and reports
// whether it is one.
func (c *client) killOwn(msg []byte) bool {
	id, err := mywire.ParseProcessKill(msg[mywire.HeaderLen:])
	if err != nil || !isOurs(uint64(id)) {
		return false
	}
	c.kill(id, false)
	return true
}

// feedFree takes the next command of a client without a backend. It returns how
// much of msg it consumed: 0 if the client waits.
func (c *client) feedFree(cmd byte, msg []byte) int {
	switch cmd {
	case mywire.ComQuery:
		return c.freeQuery(msg)
	case mywire.ComStmtPrepare:
		return c.freePrepare(msg)
	case mywire.ComStmtExecute:
		return c.freeExecute(msg)
	}
	if c.inflight > 0 {
		return 0
	}
	switch cmd {
	case mywire.ComPing:
		c.done()
	case mywire.ComStmtReset:
		if c.statement(cmd, msg[mywire.HeaderLen:]) != nil {
			c.done()
		}
	case mywire.ComResetConnection:
		c.resetSession()
		c.done()
	case mywire.ComChangeUser:
		c.changeUser(msg)
	case mywire.ComProcessKill:
		if !c.killOwn(msg) {
			return c.needBackend() // a number of the server's
		}
	case mywire.ComSetOption:
		if !c.setOption(msg) {
			return c.needBackend()
		}
	default:
		return c.needBackend()
	}
	return len(msg)
}

// setOption switches several statements in one text on or off, which takes
// another class of backends. It reports false if weir could not open one of those.
func (c *client) setOption(msg []byte) bool {
	option, err := mywire.ParseSetOption(msg[mywire.HeaderLen:])
	if err != nil || option > mywire.OptionMultiStatementsOff {
		c.refuseHere(mywire.NewError(mywire.ErrUnknownCommand, "Unknown command"))
		return true
	}
	caps := c.caps | mywire.CapMultiStatements
	if option == mywire.OptionMultiStatementsOff {
		caps &^= mywire.CapMultiStatements
	}
	key := c.p.key
	key.caps = caps & classCaps
	if !c.l.srv.mayDial(key) {
		return false
	}
	c.caps = caps
	c.p = c.l.pool(key) // which learns the client's statements when they are used
	c.readMode()
	c.s.Out = mywire.AppendEnd(c.s.OutBuf(), 1, c.caps, &mywire.OK{Status: c.status})
	c.s.Touch()
	return true
}

// freeQuery takes a text.
func (c *client) freeQuery(msg []byte) int {
	payload, _, err := mywire.Payload(msg)
	if err != nil {
		c.protocolError("malformed packet")
		return len(msg)
	}
	sql := text(payload[1:])
	info := myscan.Scan(sql, c.mode)
	if info.Hints.Bad != nil {
		c.complain(&info.Hints)
	}
	if c.inflight == 0 && (c.intercept(sql, &info) || c.refusesDiagnostics(mywire.ComQuery, sql, &info)) {
		return len(msg)
	}
	if !c.reach(sql, &info) {
		return c.needBackend()
	}
	switch routeOf(&info) {
	case routeRead:
		sh := c.p.shape(sql, c.mode, info.Verb)
		if !c.mayShare(sh.Sharable()) {
			return c.needBackend()
		}
		if c.inflight > 0 && (!c.mayFollow(nil) || sh.Stalled(c.l.Now)) {
			return 0
		}
		u := c.unitOf(mywire.ComQuery, msg)
		u.shape, u.verb = sh, info.Verb
		c.p.sharing.run(u)
		return len(msg)
	case routeWrite:
		window, ok := c.batchWindow(&info.Hints)
		if !ok {
			break
		}
		if c.inflight > 0 {
			return 0
		}
		ln := c.laneForText(sql, &info, window)
		if ln == nil {
			break
		}
		u := c.unitOf(mywire.ComQuery, msg)
		u.shape, u.verb, u.effects = c.p.shape(sql, c.mode, info.Verb), info.Verb, info.Effects
		u.generated = ln.rows != nil
		ln.push(u)
		return len(msg)
	}
	return c.needBackend()
}

// freePrepare takes a text to be prepared.
func (c *client) freePrepare(msg []byte) int {
	if c.inflight > 0 {
		return 0
	}
	if !c.p.facts.known {
		return c.needBackend() // which tells in what character set the text is to be read
	}
	payload, _, err := mywire.Payload(msg)
	if err != nil {
		c.protocolError("malformed packet")
		return len(msg)
	}
	st := c.p.intern(c.set, payload[1:], c.mode, false)
	if !c.described(st) {
		return c.needBackend()
	}
	if len(c.stmts) >= maxClientStmts {
		c.refuseHere(tooManyStatements())
		return len(msg)
	}
	if st.info.Hints.Bad != nil {
		c.complain(&st.info.Hints)
	}
	c.describe(st)
	return len(msg)
}

// freeExecute takes an execution of a prepared statement.
func (c *client) freeExecute(msg []byte) int {
	payload, _, err := mywire.Payload(msg)
	if err != nil {
		c.protocolError("malformed packet")
		return len(msg)
	}
	if c.inflight > 0 {
		if id, err := mywire.ParseStmtID(payload); err != nil || c.reader == nil || c.stmt(id) == nil {
			return 0
		}
	}
	cs := c.statement(mywire.ComStmtExecute, payload)
	if cs == nil {
		return len(msg)
	}
	st := cs.st
	if c.inflight == 0 && c.refusesDiagnostics(mywire.ComStmtExecute, st.sql, &st.info) {
		return len(msg)
	}
	m, err := mywire.ParseExecute(payload, st.params, 0)
	if !st.reach(c) {
		return c.needBackend()
	}
	if err != nil || m.Cursor() || cs.own != 0 || st.private {
		return c.needBackend()
	}
	switch st.route {
	case routeRead:
		if !c.mayShare(st.shape.Sharable()) {
			break
		}
		if c.inflight > 0 && (!c.mayFollow(st) || st.shape.Stalled(c.l.Now)) {
			return 0
		}
		cs.noteTypes(&m)
		u := c.unitOf(mywire.ComStmtExecute, msg)
		u.st, u.cs, u.shape, u.verb = st, cs, st.shape, st.info.Verb
		c.p.sharing.run(u)
		return len(msg)
	case routeWrite:
		window, ok := c.batchWindow(&st.info.Hints)
		if !ok {
			break
		}
		if c.inflight > 0 {
			return 0
		}
		cs.noteTypes(&m)
		if m.CheckValues(cs.types, nil) != nil {
			break // what is wrong with it must not reach others' values
		}
		ln := c.laneForStmt(cs, window)
		if ln == nil {
			break
		}
		u := c.unitOf(mywire.ComStmtExecute, msg)
		u.st, u.cs, u.shape, u.verb, u.effects = st, cs, st.shape, st.info.Verb, st.info.Effects
		u.generated = ln.rows != nil
		ln.push(u)
		return len(msg)
	}
	return c.needBackend()
}

// mayShare tells whether a read may run beside those of other clients.
func (c *client) mayShare(sharable bool) bool {
	return sharable && c.pins == 0 && !c.p.facts.silent && c.autocommit() && c.p.facts.known &&
		c.l.cfg.ReadLanes > 0 && c.l.cfg.Mode != session.ModeSession
}

// mayFollow tells whether one more shared read may be sent behind the client's
// earlier ones, on the same backend, so that their answers come in order.
func (c *client) mayFollow(st *stmt) bool {
	b := c.reader
	return b != nil && b.Mode == core.ModeShared && b.set == c.set && b.Depth() < core.MaxPipeline && b.Cancels == 0 && !b.Doomed &&
		c.p.facts.pipelines && len(c.p.Reads) == 0 && len(c.again) == 0 && (st == nil || b.prepared[st] != nil)
}

// batchWindow tells whether a write is to join a group, and the most it may
// wait for others: 0 is adaptive.
func (c *client) batchWindow(h *sqlscan.Hints) (time.Duration, bool) {
	cfg := c.l.cfg
	if c.inTx() || !c.autocommit() || c.pins != 0 || c.p.facts.silent || c.awaitsGTID() || cfg.Mode == session.ModeSession || !c.p.facts.known || !c.p.facts.pipelines {
		return 0, false
	}
	switch h.Batch.Kind {
	case sqlscan.BatchOff:
		return 0, false
	case sqlscan.BatchAuto:
		return 0, true
	case sqlscan.BatchWindow:
		return h.Batch.Window, true
	}
	return cfg.BatchDefault(c.p.key.database, c.p.key.user)
}

// intercept answers what is meant for weir itself, and reports whether it did.
func (c *client) intercept(sql string, info *myscan.Statement) bool {
	switch {
	case info.Effects.Has(myscan.EffWeirShow) && info.Count == 1 && info.Verb == myscan.VerbShow:
		t := c.weirStatus()
		rows := make([][][]byte, len(t.Rows))
		for i, r := range t.Rows {
			for _, cell := range r {
				rows[i] = append(rows[i], []byte(cell))
			}
		}
		c.reply(mywire.AppendTextResult(nil, c.caps, c.status, t.Cols, rows))
	case info.Verb == myscan.VerbKill && info.Count == 1 && !info.Kill.QueryID && isOurs(info.Kill.ID):
		c.kill(uint32(info.Kill.ID), info.Kill.Query)
	case c.l.cfg.Mode == session.ModeStatement && info.Effects.Has(myscan.EffTxBegin):
		c.refuseHere(mywire.NewError(mywire.ErrNotSupportedYet, "weir: transactions are refused in mode statement (--mode)"))
	default:
		return false
	}
	return true
}
