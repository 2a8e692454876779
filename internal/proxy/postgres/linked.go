package postgres

import (
	"io"
	"slices"
	"strings"

	"github.com/weirdb/weir/internal/proxy/core"
	"github.com/weirdb/weir/internal/proxy/session"
	"github.com/weirdb/weir/internal/proxy/sqlscan"
	"github.com/weirdb/weir/internal/wire/pgwire"
)

// This file is the client with a backend of its own: its messages are passed
// on as they come, names of statements translated, effects noted.

// attach gives the client a backend, when that is in the client's settings.
func (c *client) attach(b *backend) {
	if app := b.appFor(c.app); !b.in(c.set, app) {
		c.waiting = true
		b.Mode = core.ModeOwn
		b.prepare(c.set, app, func(err *pgwire.Error) { c.attachPrepared(b, err) })
		return
	}
	c.waiting = false
	c.link = b
	c.linkSeq++
	b.Mode, b.owner = core.ModeOwned, c
	c.dropSequences()
	if !c.greeted {
		b.ask("", func(*unit) {}) // with its answer the server reports what has changed meanwhile
		return
	}
	c.resume()
}

// attachPrepared goes on with attach when the server has answered.
func (c *client) attachPrepared(b *backend, err *pgwire.Error) {
	gone := c.s.Closed || c.s.Closing || !c.waiting || c.link != nil
	switch {
	case gone || err != nil:
		c.p.release(b)
	default:
		c.attach(b)
	}
	if gone || err == nil {
		return
	}
	c.waiting = false
	f := *refused(err)
	if !c.greeted {
		f = *err // as the server would have refused the startup packet
	}
	f.Severity, f.SeverityRaw = "FATAL", "FATAL"
	c.fatal(&f)
}

// introduce completes the login of the first client with certain settings:
// the server has taken them and reported what they are.
func (c *client) introduce() {
	var params []pgwire.Param
	for name, value := range c.link.params {
		if name == "application_name" {
			value = c.link.startApp
		}
		params = append(params, pgwire.Param{Name: name, Value: value})
	}
	slices.SortFunc(params, func(a, b pgwire.Param) int { return strings.Compare(a.Name, b.Name) })
	if len(c.p.greeting) < session.MaxSets {
		c.p.greeting[c.set] = params
	}
	c.greet(params)
}

// open returns the unit that the client's next message belongs to.
func (c *client) open() *unit {
	if c.cur == nil {
		u := c.l.newUnit(unitClient)
		u.c, u.open = c, true
		u.queuedAt = c.l.Now
		c.link.Push(u, c.l.Now)
		c.cur = u
		c.stats.units++
	}
	return c.cur
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

// stream passes on a message of which perhaps only the beginning is here.
func (c *client) stream(n int, p []byte) int {
	have := min(n, len(p))
	c.toServer(p[:have])
	c.pass = n - have
	return have
}

// feedLinked passes one message on. It returns how much of p it consumed.
func (c *client) feedLinked(typ byte, n int, p []byte) int {
	b := c.link
	whole := n <= len(p)
	switch typ {
	case pgwire.ClientCopyData, pgwire.ClientCopyDone, pgwire.ClientCopyFail:
		if !c.copyIn && b.Depth() == 0 {
			c.drop = n // left over from a COPY that has ended with an error
			return c.takeDrop(len(p))
		}
		return c.stream(n, p)
	case pgwire.ClientTerminate:
		c.s.Close(io.EOF)
		return n
	case pgwire.ClientFlush:
		c.toServer(p[:n])
		b.giveOwn()
		return n
	}
	if !whole && (typ == pgwire.ClientBind && len(p) < maxWhole || typ != pgwire.ClientBind && n <= maxGathered) {
		return 0
	}
	if c.waits(typ) {
		return 0
	}
	if c.cur == nil && b.Cancels > 0 {
		return 0 // a cancel request under way must not hit what comes next
	}
	if b.Depth() > maxLinkedDepth {
		return 0 // looked at again when an answer has come
	}
	switch typ {
	case pgwire.ClientQuery:
		return c.linkedQuery(n, p)
	case pgwire.ClientFunction:
		u := c.open()
		c.close(u)
		c.addPins(pinUnknown)
		return c.stream(n, p)
	case pgwire.ClientSync:
		u := c.open()
		c.close(u)
		c.toServer(p[:n])
		return n
	case pgwire.ClientParse:
		return c.linkedParse(n, p)
	case pgwire.ClientBind:
		return c.linkedBind(n, p)
	case pgwire.ClientDescribe, pgwire.ClientClose, pgwire.ClientExecute:
		return c.linkedOther(typ, n, p)
	}
	c.protocolError("unknown message type %q", typ)
	return len(p)
}

const (
	// maxGathered bounds the Query and Parse messages that weir reads whole;
	// a longer one is passed on unread, and pins.
	maxGathered = 16 << 20
	// maxLinkedDepth bounds the units that one client may have under way.
	maxLinkedDepth = 10000
)

// close ends the open unit: its ReadyForQuery is what comes next.
func (c *client) close(u *unit) {
	u.open = false
	c.cur = nil
}

func (c *client) linkedQuery(n int, p []byte) int {
	if n > len(p) {
		u := c.open()
		c.close(u)
		c.addPins(pinUnknown)
		return c.stream(n, p)
	}
	sql, err := pgwire.ParseQuery(p[pgwire.HeaderLen:n])
	if err != nil {
		c.protocolError("malformed Query message")
		return len(p)
	}
	info, ok := c.scanNext(text(sql), nil)
	if !ok {
		return 0
	}
	if c.tx != pgwire.StatusIdle && info.Hints.Bad != nil {
		c.complain(info.Hints.Bad)
	}
	if c.cur == nil && c.weirs(&info.Statement) {
		if c.link.Depth() > 0 {
			return 0 // looked at again when the backend is quiet
		}
		if c.intercept(&info.Statement) {
			return n
		}
	}
	var lent *stmt
	if c.cur == nil && c.borrows(&info.Statement) {
		lent = c.lendStatement(info.Name)
	}
	var reached []*reach
	if info.Effects.Has(sqlscan.EffDDL) {
		reached = c.reaching(c.lexical().reads(text(sql)))
	}
	u := c.open()
	u.reached = reached
	c.unname("") // as the server does
	u.simple, u.statements = true, info.Count
	u.shape = c.shape(text(sql), &info)
	c.note(u, &info)
	if lent != nil {
		c.note(u, &lent.info)
	}
	c.close(u)
	c.toServer(p[:n])
	return n
}

func (c *client) linkedParse(n int, p []byte) int {
	b := c.link
	if n > len(p) {
		c.protocolError("Parse message of %d bytes is longer than weir's limit of %d", n, maxGathered)
		return len(p)
	}
	body := p[pgwire.HeaderLen:n]
	m, err := pgwire.ParseParse(body)
	if err != nil {
		c.protocolError("malformed Parse message")
		return len(p)
	}
	_, rest, _ := cstr(body, 0)
	var st *stmt
	if info, ok := c.scanNext(text(m.SQL), c.known(text(m.SQL), body[rest:])); !ok {
		return 0
	} else if info.Effects.Has(sqlscan.EffEncoding) {
		st = c.p.opaqueStmt(body[rest:], c.lexical())
	} else if len(m.SQL) > maxScanned {
		st = c.p.longStmt(body[rest:], c.lexical(), info)
	} else {
		st = c.p.internFor(c, body[rest:])
	}
	u := c.open()
	if c.borrows(&st.info.Statement) {
		c.lent = append(c.lent, strings.Clone(st.info.Name))
		c.leftovers = true
		lent := c.stmts[st.info.Name]
		c.p.current(lent)
		c.note(u, &lent.info)
		b.s.Out = pgwire.AppendParseRaw(b.s.OutBuf(), st.info.Name, lent.tail)
		u.exp = append(u.exp, expect{code: expHiddenParse})
	}
	if c.tx != pgwire.StatusIdle && st.info.Hints.Bad != nil {
		c.complain(st.info.Hints.Bad)
	}
	if len(m.Name) == 0 {
		// The unnamed statement goes as it is: the server parses it anew, as
		// it would directly, whatever happened to the schema.
		c.rename(u, parsedName{st: st})
		c.unnamedAt = c.linkSeq
		u.exp = append(u.exp, expect{code: expParse, st: nil})
		c.toServer(p[:n])
		return n
	}
	name := string(cutName(m.Name))
	if old := c.stmts[name]; old != nil {
		// The name is taken. Let the server say so, or what else is wrong: a
		// second Parse under a name that is prepared there.
		b.need(u, old)
		c.rename(u, parsedName{name: name, given: string(m.Name), st: old})
		b.s.Out = pgwire.AppendParseRaw(b.s.OutBuf(), old.srvName, st.tail)
		u.exp = append(u.exp, expect{code: expParse, st: nil})
	} else {
		c.rename(u, parsedName{name: name, st: st})
		if c.tx == pgwire.StatusFailed && b.Depth() == 1 && b.knows(st) && !st.info.Effects.Has(sqlscan.EffTx) {
			// A failed transaction refuses every Parse but that of its end.
			b.s.Out = pgwire.AppendParseRaw(b.s.OutBuf(), st.srvName, st.tail)
			u.exp = append(u.exp, expect{code: expParse, st: nil})
		} else {
			b.putParse(u, st)
		}
	}
	b.s.Touch()
	return n
}

// closeUnnamed ends an unnamed statement that another client may have left on
// the backend, so that the server can say that this client has none.
func (c *client) closeUnnamed(u *unit) {
	b := c.link
	b.s.Out = pgwire.AppendClose(b.s.OutBuf(), pgwire.KindStatement, "")
	u.exp = append(u.exp, expect{code: expHiddenClose})
}

func (c *client) linkedBind(n int, p []byte) int {
	b := c.link
	body := p[pgwire.HeaderLen:min(n, len(p))]
	_, at, ok := cstr(body, 0)
	var name []byte
	rest := 0
	if ok {
		name, rest, ok = cstr(body, at)
	}
	if !ok {
		c.protocolError("malformed Bind message")
		return len(p)
	}
	st := c.unnamed
	if len(name) > 0 {
		st = c.stmts[text(cutName(name))]
	}
	if st != nil {
		c.p.current(st)
	}
	info, ok := c.reparse(st, len(name) == 0)
	if !ok {
		return 0
	}
	var reached []*reach
	if st != nil && st.info.Effects.Has(sqlscan.EffDDL) {
		reached = c.reaching(st.asRead)
	}
	u := c.open()
	u.statements++
	u.reached = append(u.reached, reached...)
	srv := ""
	switch {
	case st == nil && len(name) == 0:
		c.closeUnnamed(u)
	case st == nil:
		srv = c.foreignName(name)
	case len(name) == 0 && c.unnamedAt == c.linkSeq:
		// Parsed during this link: it is the backend's unnamed one.
	default:
		b.need(u, st)
		srv = st.srvName
	}
	if st != nil {
		c.note(u, info)
		u.shape = st.shape
	}
	u.exp = append(u.exp, expect{code: expBind})
	head := pgwire.HeaderLen
	have := min(n, len(p))
	length := n - (rest - at) + len(srv) + 1
	out := b.s.OutBuf()
	out = append(out, pgwire.ClientBind, byte((length-1)>>24), byte((length-1)>>16), byte((length-1)>>8), byte(length-1))
	out = append(out, p[head:head+at]...)
	out = append(out, srv...)
	out = append(out, 0)
	b.s.Out = append(out, p[head+rest:have]...)
	b.s.Touch()
	c.pass = n - have
	if b.s.Pending() > maxClientOut {
		b.s.HoldBack(c.s)
	}
	return have
}

func (c *client) linkedOther(typ byte, n int, p []byte) int {
	if n > len(p) {
		return 0
	}
	b := c.link
	body := p[pgwire.HeaderLen:n]
	if typ == pgwire.ClientDescribe {
		if m, err := pgwire.ParseDescribe(body); err == nil && m.Kind == pgwire.KindStatement {
			if _, ok := c.reparse(c.stmtNamed(m.Name), len(m.Name) == 0); !ok {
				return 0
			}
		}
	}
	u := c.open()
	if typ == pgwire.ClientExecute {
		if _, err := pgwire.ParseExecute(body); err != nil {
			c.protocolError("malformed Execute message")
			return len(p)
		}
		u.exp = append(u.exp, expect{code: expExecute})
		c.toServer(p[:n])
		if u.awaited {
			c.toServer(pgwire.AppendFlush(nil))
			u.flushAt = len(u.exp)
		}
		return n
	}
	m, err := pgwire.ParseDescribe(body)
	if err != nil {
		c.protocolError("malformed message of type %q", typ)
		return len(p)
	}
	code := expDescribe
	if typ == pgwire.ClientClose {
		code = expClose
	}
	if m.Kind != pgwire.KindStatement {
		u.exp = append(u.exp, expect{code: code})
		c.toServer(p[:n])
		return n
	}
	if typ == pgwire.ClientClose {
		if len(m.Name) > 0 && u.lookup(c, m.Name) == nil && c.pins&pinPrepare != 0 {
			b.s.Out = pgwire.AppendClose(b.s.OutBuf(), pgwire.KindStatement, c.foreignName(m.Name))
			b.s.Touch()
			u.exp = append(u.exp, expect{code: expClose})
			return n
		}
		u.exp = append(u.exp, expect{code: expOwnClose})
		c.rename(u, parsedName{name: string(cutName(m.Name))})
		return n
	}
	srv := c.foreignName(m.Name)
	if st := u.lookup(c, m.Name); st != nil {
		if len(m.Name) == 0 && c.unnamedAt == c.linkSeq {
			srv = ""
		} else {
			b.need(u, st)
			srv = st.srvName
		}
	} else if len(m.Name) == 0 {
		c.closeUnnamed(u)
		srv = ""
	}
	b.s.Out = pgwire.AppendDescribe(b.s.OutBuf(), pgwire.KindStatement, srv)
	b.s.Touch()
	u.exp = append(u.exp, expect{code: expDescribe})
	return n
}

// backendQuiet is called when everything sent to the linked backend has been
// answered: it is given back unless the session still needs it.
func (c *client) backendQuiet() {
	b := c.link
	if b.Doomed {
		if c.tx == pgwire.StatusIdle && c.pins == 0 {
			c.detach()
		}
		return
	}
	if b.status != pgwire.StatusIdle || c.cur != nil || c.pass > 0 || c.copyIn {
		return
	}
	if !c.greeted {
		c.introduce()
	}
	if c.madeBodies {
		surely := c.makesSurely
		c.madeBodies, c.makesSurely = false, false
		if c.p.proof.changed(b, surely) {
			return
		}
	}
	if c.look {
		c.look = false
		c.asking, c.pinsAsked = true, 0
		b.ask(stateSQL, c.updatePins)
		return
	}
	if len(c.unsure) > 0 {
		c.learnSettings()
		return
	}
	if u := b.ensureFor(c); u != nil {
		// RESET went further than the client's own defaults, and told the
		// client so: it learns what it has instead.
		u.tell = true
		return
	}
	if c.leftovers {
		c.leftovers, c.lent = false, nil
		clear(b.prepared)
		b.ask("DEALLOCATE ALL", func(*unit) {})
		return
	}
	if c.pins == 0 || c.l.cfg.Mode == session.ModeTransaction {
		c.detach()
		return
	}
	c.resume()
}

// detach gives the backend back.
func (c *client) detach() {
	b := c.link
	c.link, b.owner, c.lent, c.prepares = nil, nil, nil, 0
	b.s.Throttle(false)
	c.s.Throttle(false)
	c.p.release(b)
	c.pay()
	c.resume()
}

// backendGone is called when the linked backend's connection is lost. Between
// transactions, with nothing of the session on it, the client can go on.
func (c *client) backendGone(fatal *pgwire.Error, busy bool, e *pgwire.Error) {
	c.link, c.cur, c.pass, c.copyIn, c.lent, c.awaiting = nil, nil, 0, false, nil, 0
	if c.s.Closed || c.s.Closing {
		return
	}
	c.s.Throttle(false)
	if c.tx != pgwire.StatusIdle || c.pins != 0 {
		c.fatal(fatal)
		return
	}
	if !busy {
		c.resume()
		return
	}
	// One statement outside a transaction was under way. Its outcome is
	// unknown; the session has lost nothing else. The protocol would allow to
	// go on, but clients take this class of error to mean that the connection
	// is gone, so it is closed, as the server itself would have done.
	f := *e
	f.Severity, f.SeverityRaw = "FATAL", "FATAL"
	c.fatal(&f)
}

// orphaned cleans up a backend whose client has gone.
func (b *backend) orphaned() {
	c := b.owner
	b.owner = nil
	b.s.Throttle(false)
	f := c.p.proof
	f.forgets(c)
	if f.reading && f.on == b && b.Held && c.cur == nil && c.pass == 0 && !c.copyIn && b.status == pgwire.StatusIdle && b.Depth() <= 1 {
		b.Mode, b.Retired = core.ModeOwn, true // closed when the catalogue has been read on it
		return
	}
	if b.Depth() > 0 || c.cur != nil || c.pass > 0 || c.copyIn || b.Held || c.pins&pinsSpoil != 0 || len(c.unsure) > 0 ||
		(c.pins != 0 || c.leftovers) && madeUp(b.set) {
		// In the middle of a statement: what the server would see directly is a
		// closed connection. Or the session holds what DISCARD ALL leaves.
		b.s.Close(io.EOF)
		return
	}
	b.Mode = core.ModeOwn
	sql := ""
	if b.status != pgwire.StatusIdle {
		sql = "ROLLBACK"
	}
	if c.pins != 0 || c.leftovers {
		clear(b.prepared)
		b.set, b.app, b.lastWriter, b.mixed = b.p.l.Settings.Empty(), b.startApp, nil, false
		if sql != "" {
			b.ask(sql, func(*unit) {})
		}
		sql = "DISCARD ALL"
	}
	if sql == "" {
		if b.Cancels == 0 { // otherwise it is released when no cancel request can hit anybody else
			b.p.release(b)
		}
		return
	}
	b.ask(sql, func(u *unit) {
		if u.err != nil {
			b.Doomed = true
		}
	})
}

// borrows tells whether a text names, by SQL, a protocol-level statement of the
// client, which the backend does not have under the client's name.
func (c *client) borrows(info *sqlscan.Statement) bool {
	return (info.Verb == sqlscan.VerbExecute || info.Verb == sqlscan.VerbDeallocate) &&
		c.stmts[info.Name] != nil && !slices.Contains(c.lent, info.Name) && c.tx != pgwire.StatusFailed
}

// lendStatement prepares a protocol-level statement of the client under its
// own name, because it is about to be named by SQL.
func (c *client) lendStatement(name string) *stmt {
	name = strings.Clone(name)
	st := c.stmts[name]
	c.p.current(st)
	b := c.link
	c.lent = append(c.lent, name)
	u := c.l.newUnit(unitHidden)
	u.done = func(*unit) {}
	b.Push(u, b.p.l.Now)
	out := pgwire.AppendParseRaw(b.s.OutBuf(), name, st.tail)
	b.s.Out = pgwire.AppendSync(out)
	b.s.Touch()
	c.leftovers = true
	return st
}

// intercept answers what only weir can: its own status, and DEALLOCATE of a
// statement whose name only weir knows.
func (c *client) intercept(info *sqlscan.Statement) bool {
	if c.inflight > 0 || (c.link != nil && c.link.Depth() > 0) {
		return false
	}
	switch {
	case !c.weirs(info):
		return false
	case info.Effects.Has(sqlscan.EffWeirShow):
		c.reply(c.status())
	default:
		c.unname(info.Name)
		out := pgwire.AppendCommandComplete(nil, "DEALLOCATE")
		c.reply(pgwire.AppendReadyForQuery(out, c.tx))
	}
	return true
}

// weirs tells whether a statement is one that only weir can answer.
func (c *client) weirs(info *sqlscan.Statement) bool {
	return info.Effects.Has(sqlscan.EffWeirShow) ||
		info.Verb == sqlscan.VerbDeallocate && !info.Effects.Has(sqlscan.EffMulti|sqlscan.EffDeallocateAll) && c.stmts[info.Name] != nil && !slices.Contains(c.lent, info.Name) && c.tx != pgwire.StatusFailed
}
