package mysql

import (
	"io"
	"strings"
	"time"

	"github.com/weirdb/weir/internal/proxy/core"
	"github.com/weirdb/weir/internal/proxy/session"
	"github.com/weirdb/weir/internal/proxy/sight"
	"github.com/weirdb/weir/internal/proxy/sqlscan"
	"github.com/weirdb/weir/internal/proxy/sqlscan/myscan"
	"github.com/weirdb/weir/internal/wire/mywire"
)

// This file handles a client without a backend: it decides how each command runs.

// A router sends the commands of a client without a backend: it chooses whether each runs
// beside the reads of other clients, in a group, or on a backend of its own.
type router struct {
	c     *client
	facts *factsWait // while the client's next write waits for facts
	again *factsWait // while the router looks at it again
}

// own executes the commands that weir answers itself, whether the client has a backend or not,
// and reports whether it did.
func (rt *router) own(cmd byte, msg []byte) bool {
	c := rt.c
	switch cmd {
	case mywire.ComQuit:
		c.s.Close(io.EOF) // as the command requests
		return true
	case mywire.ComStmtClose:
		if id, err := mywire.ParseStmtID(msg[mywire.HeaderLen:]); err == nil {
			if cs := c.stmts.get(id); cs != nil {
				c.stmts.unname(cs)
				c.stmts.repin()
				if c.link != nil {
					c.quietSoon()
				}
			}
		}
		return true
	case mywire.ComBinlogDump, mywire.ComBinlogDumpGTID, mywire.ComTableDump, mywire.ComRegisterSlave, mywire.ComClone:
		c.responder.refuseHere(mywire.NewError(mywire.ErrNotSupportedYet, "weir does not carry replication: connect to the server itself"))
		return true
	case mywire.ComQuery, mywire.ComStmtPrepare, mywire.ComStmtExecute, mywire.ComStmtSendLongData, mywire.ComStmtFetch, mywire.ComStmtReset,
		mywire.ComStmtBulkExecute, mywire.ComProcessKill, mywire.ComInitDB, mywire.ComFieldList, mywire.ComCreateDB, mywire.ComDropDB, mywire.ComRefresh, mywire.ComShutdown,
		mywire.ComStatistics, mywire.ComProcessInfo, mywire.ComDebug, mywire.ComPing, mywire.ComChangeUser, mywire.ComSetOption, mywire.ComResetConnection:
		return false
	}
	c.responder.refuseHere(mywire.NewError(mywire.ErrUnknownCommand, "Unknown command"))
	return true
}

// killOwn executes a COM_PROCESS_KILL of a connection id that weir has given to a client, and
// reports whether it is one.
func (rt *router) killOwn(msg []byte) bool {
	id, err := mywire.ParseProcessKill(msg[mywire.HeaderLen:])
	if err != nil || !isOurs(uint64(id)) {
		return false
	}
	rt.c.kill(id, false)
	return true
}

// feed executes the next command of a client without a backend. It returns how much of msg it
// consumed: 0 if the client waits.
func (rt *router) feed(cmd byte, msg []byte) int {
	c := rt.c
	switch cmd {
	case mywire.ComQuery:
		return rt.query(msg)
	case mywire.ComStmtPrepare:
		return rt.prepare(msg)
	case mywire.ComStmtExecute:
		return rt.execute(msg)
	}
	if c.inflight > 0 {
		return 0
	}
	switch cmd {
	case mywire.ComPing:
		c.responder.done()
	case mywire.ComStmtReset:
		if c.stmts.find(cmd, msg[mywire.HeaderLen:]) != nil {
			c.responder.done()
		}
	case mywire.ComResetConnection:
		if c.p.facts.base == nil {
			return rt.needBackend() // the initial settings of sessions are not known yet
		}
		c.resetSession()
		c.responder.done()
	case mywire.ComChangeUser:
		c.login.changeUser(msg)
	case mywire.ComProcessKill:
		if !rt.killOwn(msg) {
			return rt.needBackend() // an id of the server's
		}
	case mywire.ComSetOption:
		if !rt.setOption(msg) {
			return rt.needBackend()
		}
	default:
		return rt.needBackend()
	}
	return len(msg)
}

// setOption switches multi-statements on or off, for which the client needs another class of
// backends. It returns false if weir cannot open backends of that class.
func (rt *router) setOption(msg []byte) bool {
	c := rt.c
	option, err := mywire.ParseSetOption(msg[mywire.HeaderLen:])
	if err != nil || option > mywire.OptionMultiStatementsOff {
		c.responder.refuseHere(mywire.NewError(mywire.ErrUnknownCommand, "Unknown command"))
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
	c.settings.readMode()
	c.s.Out = mywire.AppendEnd(c.s.OutBuf(), 1, c.caps, &mywire.OK{Status: c.status})
	c.s.Touch()
	c.diag.last.answeredHere()
	return true
}

// query executes a COM_QUERY.
func (rt *router) query(msg []byte) int {
	c := rt.c
	payload, _, err := mywire.Payload(msg)
	if err != nil {
		c.protocolError("malformed packet")
		return len(msg)
	}
	sql := text(payload[1:])
	if len(sql) > maxScanned {
		return rt.needBackend() // where it is parsed off the loop
	}
	info := c.texts.read(sql)
	c.texts.warn(&info.Hints)
	if c.inflight == 0 {
		if rt.intercept(sql, &info) {
			return len(msg)
		}
		if !c.diag.finds(info.Effects) {
			return 0
		}
		if c.diag.refuses(mywire.ComQuery, sql, &info) {
			return len(msg)
		}
	}
	own := info.Effects
	if c.settings.needsList(sql, &info) {
		return rt.needBackend()
	}
	if !c.texts.reach(sql, &info) {
		return rt.notReady(routeOf(&info), &info.Hints)
	}
	switch routeOf(&info) {
	case routeRead:
		sh := c.p.stmts.shape(c.texts.asRead(sql), c.texts.mode, info.Verb)
		if info.Hints.TTL > 0 {
			switch c.cached.query(msg, sql, &info, sh) {
			case cachedWaits:
				return 0
			case cachedDone:
				return len(msg)
			}
		}
		if !rt.mayShare(sh.Sharable()) {
			return rt.needBackend()
		}
		if c.inflight > 0 && (!rt.mayFollow(nil) || sh.Stalled(c.l.Now)) {
			return 0
		}
		u := rt.unitOf(mywire.ComQuery, msg)
		u.shape, u.verb = sh, info.Verb
		u.follow(c, &info.Hints, sql)
		c.p.sharing.run(u)
		return len(msg)
	case routeWrite:
		window, ok := rt.batchWindow(&info.Hints)
		if !ok {
			break
		}
		if c.inflight > 0 {
			return 0
		}
		way := rt.laneForText(c.texts.asRead(sql), info.Verb, own, window)
		if way.unknown != nil {
			return rt.awaitFacts(&way.unknown.writes)
		}
		if way.ln == nil {
			break
		}
		u := rt.unitOf(mywire.ComQuery, msg)
		u.shape, u.verb, u.effects = way.shape, info.Verb, info.Effects
		u.follow(c, &info.Hints, sql)
		u.generated, u.row, u.early = way.generated, way.row, c.l.Now-rt.arrived()
		way.ln.push(u)
		return len(msg)
	}
	return rt.needBackend()
}

// prepare executes a COM_STMT_PREPARE.
func (rt *router) prepare(msg []byte) int {
	c := rt.c
	if c.inflight > 0 {
		return 0
	}
	if !c.p.facts.known {
		return rt.needBackend() // whose first answers say in which character set the text is read
	}
	payload, _, err := mywire.Payload(msg)
	if err != nil {
		c.protocolError("malformed packet")
		return len(msg)
	}
	if len(payload)-1 > maxScanned {
		return rt.needBackend() // where it is parsed off the loop
	}
	st := c.p.stmts.intern(c.set, payload[1:], c.texts.mode, false)
	if !c.stmts.described(st) {
		return rt.needBackend()
	}
	if e := c.stmts.tooMany(st); e != nil {
		c.responder.refuseHere(e)
		return len(msg)
	}
	if st.info.Hints.Bad != nil {
		c.hints.warn(st.info.Hints.Bad)
	}
	c.stmts.describe(st)
	return len(msg)
}

// execute executes a COM_STMT_EXECUTE.
func (rt *router) execute(msg []byte) int {
	c := rt.c
	payload, _, err := mywire.Payload(msg)
	if err != nil {
		c.protocolError("malformed packet")
		return len(msg)
	}
	if c.inflight > 0 {
		if id, err := mywire.ParseStmtID(payload); err != nil || c.reader == nil || c.stmts.get(id) == nil {
			return 0
		}
	}
	cs := c.stmts.find(mywire.ComStmtExecute, payload)
	if cs == nil {
		return len(msg)
	}
	st := cs.st
	if c.inflight == 0 && !c.diag.finds(st.info.Effects) {
		return 0
	}
	if c.inflight == 0 && c.diag.refuses(mywire.ComStmtExecute, st.sql, &st.info) {
		return len(msg)
	}
	m, err := mywire.ParseExecute(payload, st.params, 0)
	judged := st.reach(c)
	if err != nil || m.Cursor() || cs.own != 0 || st.private || cs.untyped(&m) {
		return rt.needBackend()
	}
	if !judged {
		return rt.notReady(st.route, &st.info.Hints)
	}
	switch st.route {
	case routeRead:
		if st.info.Hints.TTL > 0 {
			switch c.cached.execute(msg, cs, &m) {
			case cachedWaits:
				return 0
			case cachedDone:
				return len(msg)
			}
		}
		if !rt.mayShare(st.shape.Sharable()) {
			break
		}
		if c.inflight > 0 && (!rt.mayFollow(st) || st.shape.Stalled(c.l.Now)) {
			return 0
		}
		cs.noteTypes(&m)
		u := rt.unitOf(mywire.ComStmtExecute, msg)
		u.st, u.cs, u.types, u.shape, u.verb = st, cs, cs.types, st.shape, st.info.Verb
		u.follow(c, &st.info.Hints, st.sql)
		c.p.sharing.run(u)
		return len(msg)
	case routeWrite:
		window, ok := rt.batchWindow(&st.info.Hints)
		if !ok {
			break
		}
		if c.inflight > 0 {
			return 0
		}
		cs.noteTypes(&m)
		if m.CheckValues(cs.types, nil) != nil {
			break // its error must not affect others' values
		}
		ln, unknown := rt.laneForStmt(cs, window)
		if unknown != nil {
			return rt.awaitFacts(&unknown.writes)
		}
		if ln == nil {
			break
		}
		u := rt.unitOf(mywire.ComStmtExecute, msg)
		u.st, u.cs, u.types, u.shape, u.verb, u.effects = st, cs, cs.types, st.shape, st.info.Verb, st.info.Effects
		u.follow(c, &st.info.Hints, st.sql)
		u.generated = ln.rows != nil || st.rows && c.diag.generatesID(st.set, &st.insert)
		u.early = c.l.Now - rt.arrived()
		ln.push(u)
		return len(msg)
	}
	return rt.needBackend()
}

// mayShare reports whether a read may run beside those of other clients.
func (rt *router) mayShare(sharable bool) bool {
	c := rt.c
	return sharable && c.pins.held == 0 && !c.diag.alone() && !c.p.facts.silent && c.autocommit() && c.p.facts.known &&
		c.l.cfg.ReadLanes > 0 && c.l.cfg.Mode != session.ModeSession
}

// mayFollow reports whether one more shared read may be sent behind the client's earlier ones
// on the same backend, so that their answers come in order.
func (rt *router) mayFollow(st *stmt) bool {
	c := rt.c
	b := c.reader
	return b != nil && b.Mode == core.ModeShared && b.set == c.set && b.Depth() < core.MaxPipeline && b.Cancels == 0 && !b.Doomed &&
		c.p.facts.pipelines && len(c.p.Reads) == 0 && len(c.again) == 0 && (st == nil || b.prepared[st] != nil)
}

// batchWindow reports whether a write joins a group, and the most that it may wait for others:
// 0 means adaptive.
func (rt *router) batchWindow(h *sqlscan.Hints) (time.Duration, bool) {
	c := rt.c
	cfg := c.l.cfg
	if c.inTx() || !c.autocommit() || c.pins.held != 0 || c.diag.alone() || c.p.facts.silent || c.settings.awaitsGTID() || cfg.Mode == session.ModeSession || !c.p.facts.known || !c.p.facts.pipelines {
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

// intercept executes statements that weir itself answers, and reports whether it did.
func (rt *router) intercept(sql string, info *myscan.Statement) bool {
	c := rt.c
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
	case c.l.cfg.Mode == session.ModeStatement && beginsTransactions(info):
		c.responder.refuseHere(errTransaction())
		c.transport.voids = true
	default:
		return false
	}
	return true
}

// leading are the effects of statements on which the ones after them depend.
const leading = myscan.EffTxBegin | myscan.EffXA | myscan.EffNextTx | myscan.EffSet | myscan.EffUse | myscan.EffLock | myscan.EffTableLock | myscan.EffTemp

// leads reports whether the commands that a client has sent after this one, without waiting for
// its answer, depend on it: they would run outside the transaction that it was to begin, or in
// the wrong database. With a direct connection clients can rely on such a command to succeed.
func (rt *router) leads(msg []byte) bool {
	c := rt.c
	payload, _, err := mywire.Payload(msg)
	if err != nil || len(payload) > maxScanned {
		return false
	}
	switch payload[0] {
	case mywire.ComInitDB, mywire.ComResetConnection, mywire.ComSetOption:
		return true
	case mywire.ComQuery:
		info := c.texts.read(text(payload[1:]))
		return info.Effects.Has(leading)
	case mywire.ComStmtExecute:
		id, err := mywire.ParseStmtID(payload)
		cs := c.stmts.get(id)
		return err == nil && cs != nil && cs.st.info.Effects.Has(leading)
	}
	return false
}

// beginsTransactions reports whether a statement begins a transaction, or makes the following
// ones begin one. Other statements that do so show it in their answers: see
// responder.refusesTransaction.
func beginsTransactions(info *myscan.Statement) bool {
	if info.Effects.Has(myscan.EffTxBegin) {
		return true
	}
	for a := range info.Set.All() {
		if a.Name == "autocommit" && a.Scope == myscan.ScopeSession {
			switch strings.ToLower(strings.Trim(a.Value, "'\"")) {
			case "0", "off", "false":
				return true
			}
		}
	}
	return false
}

func errTransaction() *mywire.Error {
	return mywire.NewError(mywire.ErrNotSupportedYet, "weir: transactions are refused in mode statement (--mode)")
}

// unitOf makes a unit of a whole message, and copies the message.
func (rt *router) unitOf(cmd byte, msg []byte) *unit {
	c := rt.c
	u := c.l.newUnit(unitClient, cmd)
	u.c, u.seq, u.flight = c, answerSeq(msg), c.cached.made(cmd)
	c.cached.counted = false
	u.raw = append(u.raw[:0], msg...)
	u.queuedAt = c.l.Now
	c.inflight++
	c.stats.units++
	return u
}

// needBackend queues the client for a backend of its own. It returns 0: nothing is consumed
// until the client has one.
func (rt *router) needBackend() int {
	c := rt.c
	if c.inflight > 0 {
		return 0 // in order: after its earlier units are answered
	}
	c.p.queueClient(c, rt.arrived())
	return 0
}

// laneForStmt returns the lane for the execution of a prepared write, or nil; unknown is its
// table, if weir does not know that yet.
func (rt *router) laneForStmt(cs *clientStmt, window time.Duration) (ln *lane, unknown *tableFacts) {
	c := rt.c
	p, st := c.p, cs.st
	if st.rows && c.settings.strict && !p.l.cfg.NoRowsLane && st.insert.Params > 0 && !st.insert.Returning && st.quiet {
		f := p.tables.look(p, st.set, st.insert.Schema, st.insert.Table) // the statement keeps the database in which it was prepared
		if f.state == tableUnknown {
			return nil, f
		}
		if f.state == tablePlain && f.Generates(&st.insert) && (!f.Counts() || !p.facts.galera) && st.shape.Groupable() {
			return p.lanes.of(laneKey{set: c.set, st: st, rows: true, window: window}, st.shape.Shown, func() *rowsPlan { return newRowsPlan(st) }), nil
		}
	}
	if st.shape.Long() {
		return nil, nil
	}
	return rt.transactionLane(st.info.Verb, st.own, st.target, window)
}

// A textWay says how a text joins others.
type textWay struct {
	ln        *lane       // nil for none
	unknown   *tableFacts // its table, if weir does not know that yet
	shape     *sight.Shape
	row       span // of the message, for a rows lane
	generated bool // an id in the answer is generated by the server
}

// laneForText returns the lane for a text; own are the effects that the text shows.
func (rt *router) laneForText(t *myscan.Text, verb myscan.Verb, own myscan.Effect, window time.Duration) (way textWay) {
	c := rt.c
	p, mode := c.p, c.texts.mode
	if verb == myscan.VerbInsert {
		ins, ok := t.Insert()
		if ok && c.settings.strict && !p.l.cfg.NoRowsLane && ins.Params == 0 && !ins.Returning && quiet(ins.Tuple, mode) {
			f := p.tables.look(p, c.set, ins.Schema, ins.Table)
			if f.state == tableUnknown {
				return textWay{unknown: f}
			}
			way.shape = p.stmts.shape(t, mode, verb)
			if f.state == tablePlain && f.Generates(&ins) && (!f.Counts() || !p.facts.galera) && way.shape.Groupable() {
				key := laneKey{set: c.set, shape: ins.ShapeKey(), rows: true, window: window}
				ln := p.lanes.of(key, way.shape.Shown, func() *rowsPlan { return newTextPlan(t.String(), mode) })
				if ln.rows.insert.Compatible(ins) {
					at := mywire.HeaderLen + 1 + ins.TupleAt
					way.ln, way.row, way.generated = ln, span{at, at + len(ins.Tuple)}, true
					return way
				}
			}
		}
		way.generated = ok && c.diag.generatesID(c.set, &ins)
	}
	if way.ln, way.unknown = rt.transactionLane(verb, own, targetOf(c.set, t), window); way.ln != nil && way.shape == nil {
		way.shape = p.stmts.shape(t, mode, verb)
	}
	if way.ln != nil && way.shape.Long() {
		way.ln = nil
	}
	return way
}

// transactionLane returns the lane for any other write to a table that rolls back a failed
// statement, or nil; unknown is the table, if weir does not know it yet.
func (rt *router) transactionLane(verb myscan.Verb, own myscan.Effect, to target, window time.Duration) (ln *lane, unknown *tableFacts) {
	c := rt.c
	p := c.p
	if p.l.cfg.NoSoloLane || !to.one || c.diag.keepsIDs && c.diag.hidesID(verb, own, to, false) {
		return nil, nil
	}
	switch f := p.tables.look(p, to.in, to.schema, to.table); f.state {
	case tablePlain:
		return p.lanes.transaction(c.set, window), nil
	case tableUnknown:
		return nil, f
	default:
		return nil, nil
	}
}
