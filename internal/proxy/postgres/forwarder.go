package postgres

import (
	"cmp"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/weirdb/weir/internal/proxy/core"
	"github.com/weirdb/weir/internal/proxy/postgres/catalogue"
	"github.com/weirdb/weir/internal/proxy/sqlscan"
	"github.com/weirdb/weir/internal/wire/pgwire"
)

// This file handles a client that has a backend of its own: it passes on messages as
// they come, translates names of statements, and records effects.

// attach gives the client a backend and applies the client's settings to it.
func (c *client) attach(b *backend) {
	if app := b.appFor(c.app); !b.in(c.set, app) {
		c.state = stateWaiting
		b.Mode = core.ModeOwn
		b.prepare(c.set, app, func(err *pgwire.Error) { c.attachPrepared(b, err) })
		return
	}
	c.state.leave(stateWaiting)
	if c.login.greeted {
		c.fwd.lost = core.Losses{}
	}
	c.link = b
	c.p.Stats.Assignments++
	c.fwd.linkSeq++
	c.fwd.begins()
	b.Mode, b.owner = core.ModeOwned, c
	if c.p.facts.silent {
		c.pins.add(pinUntracked)
	}
	c.dropSequences()
	if !c.login.greeted {
		b.ask("", func(*unit) {}) // with its answer the server reports what has changed meanwhile
		return
	}
	if c.listens.viaHub() {
		c.listens.comeBack(b)
		return
	}
	c.resume()
}

// attachPrepared continues attach when the server has answered.
func (c *client) attachPrepared(b *backend, err *pgwire.Error) {
	gone := c.s.Closed || c.s.Closing || c.state != stateWaiting || c.link != nil
	switch {
	case !gone && err != nil && b.died(err) && c.fwd.again(b):
		c.p.release(b)
		return
	case gone || err != nil:
		c.p.release(b)
	default:
		c.attach(b)
	}
	if gone || err == nil {
		return
	}
	c.state.leave(stateWaiting)
	f := *refused(err)
	if !c.login.greeted {
		f = *err // as the server would have refused the startup packet
	}
	f.Severity, f.SeverityRaw = "FATAL", "FATAL"
	c.fatal(&f)
}

// introduce completes the login of the first client with new startup settings:
// the server has accepted them and reported their values.
func (lg *login) introduce() {
	c := lg.c
	params := greetingOf(c.link.params, c.link.startApp)
	c.p.remember(c.set, params)
	lg.greet(params)
}

// open returns the unit that the client's next message belongs to.
func (fw *forwarder) open() *unit {
	c := fw.c
	if c.cur == nil {
		u := c.l.newUnit(unitClient)
		u.c, u.open = c, true
		u.queuedAt, u.early = c.l.Now, fw.waited()
		if fw.fresh {
			fw.fresh, fw.first = false, u
			u.sendsAt(c.link)
		}
		c.link.Push(u, c.l.Now)
		c.cur = u
		c.stats.units++
		return u
	}
	u := c.cur
	if (u.failed || u.expAt >= len(u.exp)) && c.link.Head() == u {
		c.link.Resumed = c.l.Now
	}
	return u
}

// openExtended is open for a message of the extended protocol.
func (fw *forwarder) openExtended() *unit {
	started := fw.c.cur == nil
	u := fw.open()
	if started {
		fw.c.link.begin(u)
	}
	return u
}

// waited is how long the next unit, and nothing before it, has waited for the backend.
func (fw *forwarder) waited() (d time.Duration) {
	if fw.askedAt > 0 {
		d, fw.askedAt = fw.c.l.Now-fw.askedAt, 0
	}
	return d
}

// feed passes one message on. It returns how much of p it consumed.
func (fw *forwarder) feed(typ byte, n int, p []byte) int {
	c := fw.c
	b := c.link
	whole := n <= len(p)
	switch typ {
	case pgwire.ClientCopyData, pgwire.ClientCopyDone, pgwire.ClientCopyFail:
		if c.state != stateCopying && b.Depth() == 0 {
			c.transport.drop = n // left over from a COPY that has ended with an error
			return c.transport.takeDrop(len(p))
		}
		if typ != pgwire.ClientCopyData {
			fw.endsData()
		}
		return c.transport.stream(n, p)
	case pgwire.ClientTerminate:
		return c.transport.terminate()
	case pgwire.ClientFlush:
		c.transport.toServer(p[:n])
		b.giveOwn()
		return n
	}
	if fw.skipped(typ) {
		return c.transport.stream(n, p)
	}
	if !whole && (typ == pgwire.ClientBind && len(p) < maxWhole || typ != pgwire.ClientBind && n <= maxGathered) {
		return 0
	}
	if fw.blocked(typ) {
		return 0
	}
	if c.cur == nil && b.Cancels > 0 {
		return 0 // a cancel request in flight must not hit what comes next
	}
	if b.Depth() > maxLinkedDepth {
		return 0 // tried again after the next answer
	}
	switch typ {
	case pgwire.ClientQuery:
		return fw.query(n, p)
	case pgwire.ClientFunction:
		u := fw.open()
		u.byQuery = true
		fw.close(u)
		c.pins.add(pinUnknown)
		return c.transport.stream(n, p)
	case pgwire.ClientSync:
		if fw.ignoresSync() {
			c.transport.toServer(p[:n])
			return n
		}
		u := fw.open()
		fw.close(u)
		c.transport.toServer(p[:n])
		return n
	case pgwire.ClientParse:
		counted(c.p, &c.p.Stats.Parses)
		return fw.parse(n, p)
	case pgwire.ClientBind:
		counted(c.p, &c.p.Stats.Binds)
		return fw.bind(n, p)
	case pgwire.ClientDescribe, pgwire.ClientClose, pgwire.ClientExecute:
		return fw.other(typ, n, p)
	}
	c.protocolError("unknown message type %q", typ)
	return len(p)
}

const (
	// maxGathered bounds the Query and Parse messages that weir reads whole;
	// a longer one is passed on unread, and pins.
	maxGathered = 16 << 20
	// maxLinkedDepth bounds the units that one client may have in flight.
	maxLinkedDepth = 10000
)

// close ends the open unit: its ReadyForQuery comes next.
func (fw *forwarder) close(u *unit) {
	u.open = false
	fw.c.cur = nil
}

func (fw *forwarder) query(n int, p []byte) int {
	c := fw.c
	if n > len(p) {
		u := fw.open()
		u.byQuery = true
		fw.close(u)
		c.pins.add(pinUnknown)
		return c.transport.stream(n, p)
	}
	sql, err := pgwire.ParseQuery(p[pgwire.HeaderLen:n])
	if err != nil {
		c.protocolError("malformed Query message")
		return len(p)
	}
	info, ok := c.texts.scanNext(text(sql), nil)
	if !ok {
		return 0
	}
	c.texts.warn(&info.Hints)
	if c.cur == nil && c.stmts.nameHangs(&info.Statement) {
		return 0
	}
	if c.cur == nil && c.router.weirs(&info.Statement) {
		if c.link.Depth() > 0 {
			return 0 // tried again when the backend is quiet
		}
		if c.router.intercept(&info.Statement) {
			return n
		}
	}
	var lent []*stmt
	if names := c.stmts.borrows(&info.Statement); len(names) > 0 && c.cur == nil {
		switch failed := fw.mayHaveFailed(); {
		case failed && c.link.Depth() > 0:
			return 0 // tried again after the next answer
		case !failed: // otherwise the server refuses the text
			for _, name := range names {
				lent = append(lent, c.stmts.lend(name))
			}
		}
	}
	var reached []*changeScope
	if info.Effects.Has(sqlscan.EffDDL) {
		reached = c.reaching(c.texts.lexical().reads(text(sql)))
	}
	c.cached.linked(&info)
	u := fw.open()
	u.reached = reached
	c.stmts.unname("") // as the server does
	u.simple, u.byQuery, u.statements = true, true, info.Count
	u.shape = c.texts.shape(text(sql), &info)
	u.follow(c, &info, text(sql))
	fw.note(u, &info)
	for _, st := range lent {
		fw.note(u, &st.info)
	}
	fw.close(u)
	c.transport.toServer(p[:n])
	return n
}

func (fw *forwarder) parse(n int, p []byte) int {
	c := fw.c
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
	if len(m.Name) > 0 && c.stmts.hangs(m.Name) {
		return 0
	}
	_, rest, _ := cstr(body, 0)
	var st *stmt
	if info, ok := c.texts.scanNext(text(m.SQL), c.stmts.known(text(m.SQL), body[rest:])); !ok {
		return 0
	} else if info.Effects.Has(sqlscan.EffEncoding) {
		st = c.p.stmts.unreadable(body[rest:], c.texts.lexical())
	} else if len(m.SQL) > maxScanned {
		st = c.p.stmts.longText(body[rest:], c.texts.lexical(), info)
	} else {
		st = c.p.stmts.forClient(c, body[rest:])
	}
	if !c.stmts.fits(m.Name, st) {
		return len(p)
	}
	if c.stmts.nameHangs(&st.info.Statement) {
		return 0
	}
	if len(m.Name) > 0 && b.pending(c, cmp.Or(c.stmts.byName[text(cutName(m.Name))], st)) {
		return 0
	}
	if why := c.cached.whyNot(&st.info); why != 0 {
		c.cached.tell(why) // no notice can be sent in the middle of its answers
	}
	u := fw.openExtended()
	fw.lendTo(u, &st.info.Statement)
	if c.tx != pgwire.StatusIdle && st.info.Hints.Bad != nil {
		c.hints.warn(st.info.Hints.Bad, true)
	}
	if len(m.Name) == 0 {
		// The unnamed statement is passed on unchanged: the server parses it again, as it
		// would directly, whatever happened to the schema.
		c.stmts.rename(u, parsedName{st: st})
		c.stmts.unnamedAt = fw.linkSeq
		u.exp = append(u.exp, expect{code: expParse, st: nil})
		c.transport.toServer(p[:n])
		if st.desc.old(c.l.Now) || !st.desc.known() && st.infers() { // it may outlive the link
			st.desc.asked = c.l.Now
			b.describe(u, "", expect{st: st, own: true, named: numberOf("")})
			b.s.Touch()
		}
		return n
	}
	name := string(cutName(m.Name))
	if old := c.stmts.byName[name]; old != nil {
		// The name is taken. Let the server report that, or another error: send a
		// second Parse under a name that is prepared there.
		b.need(u, old)
		c.stmts.rename(u, parsedName{name: name, given: string(m.Name), st: old})
		b.s.Out = pgwire.AppendParseRaw(b.s.OutBuf(), old.srvName, st.tail)
		u.exp = append(u.exp, expect{code: expParse, st: nil})
	} else {
		c.stmts.rename(u, parsedName{name: name, st: st})
		if c.stmts.mayBeSQL(name) {
			fw.lend(u, name, st)
		}
		if fw.mayHaveFailed() && !endsTransaction(st.info.Verb) {
			b.parseAnew(u, st)
		} else {
			b.putParse(u, st)
		}
	}
	b.s.Touch()
	return n
}

// closeUnnamed closes an unnamed statement that another client may have left on
// the backend, so that the server can say that this client has none.
func (fw *forwarder) closeUnnamed(u *unit) {
	b := fw.c.link
	b.s.Out = pgwire.AppendClose(b.s.OutBuf(), pgwire.KindStatement, "")
	u.exp = append(u.exp, expect{code: expHiddenClose})
}

func (fw *forwarder) bind(n int, p []byte) int {
	c := fw.c
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
	if c.stmts.hangs(name) {
		return 0
	}
	st := c.stmts.unnamed
	if len(name) > 0 {
		st = c.stmts.byName[text(cutName(name))]
	}
	if st != nil && (!c.texts.judged(st) || c.stmts.nameHangs(&st.info.Statement)) {
		return 0
	}
	info, ok := c.stmts.reparse(st, len(name) == 0)
	if !ok {
		return 0
	}
	own := len(name) == 0 && c.stmts.unnamedAt == fw.linkSeq // parsed during this link: the backend's unnamed statement
	if st != nil && !own && !fw.mayBind(st) {
		return 0
	}
	var reached []*changeScope
	if st != nil && st.info.Effects.Has(sqlscan.EffDDL) {
		reached = c.reaching(st.asRead)
	}
	if st != nil {
		c.cached.linked(info)
	}
	u := fw.openExtended()
	u.statements++
	u.reached = append(u.reached, reached...)
	if st != nil {
		fw.lendTo(u, &info.Statement)
	}
	srv := ""
	switch {
	case st == nil && len(name) == 0:
		fw.closeUnnamed(u)
	case st == nil:
		srv = c.stmts.foreignName(name)
	case own:
	default:
		srv = b.bindName(u, st)
	}
	if st != nil {
		fw.note(u, info)
		u.shape = st.shape
		u.follow(c, info, st.sql)
	}
	u.exp = append(u.exp, expect{code: expBind, own: own, named: numberOf(text(cutName(name))), st: st})
	fw.bound = numberOf(text(body[:at-1]))
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
	c.transport.pass = n - have
	if b.s.Pending() > maxClientOut {
		b.s.HoldBack(c.s)
	}
	return have
}

func (fw *forwarder) other(typ byte, n int, p []byte) int {
	c := fw.c
	if n > len(p) {
		return 0
	}
	b := c.link
	body := p[pgwire.HeaderLen:n]
	if m, err := pgwire.ParseDescribe(body); typ != pgwire.ClientExecute && err == nil && m.Kind == pgwire.KindStatement {
		if c.stmts.hangs(m.Name) {
			return 0
		}
		if typ == pgwire.ClientDescribe {
			if _, ok := c.stmts.reparse(c.stmts.named(m.Name), len(m.Name) == 0); !ok {
				return 0
			}
		}
	}
	u := fw.openExtended()
	if typ == pgwire.ClientExecute {
		if _, err := pgwire.ParseExecute(body); err != nil {
			c.protocolError("malformed Execute message")
			return len(p)
		}
		u.exp = append(u.exp, expect{code: expExecute})
		c.transport.toServer(p[:n])
		if u.barrier {
			c.transport.toServer(pgwire.AppendFlush(nil))
			u.flushedTo = len(u.exp)
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
		x := expect{code: code}
		if n := len(u.exp); n > 0 && u.exp[n-1].code == expBind && fw.bound == numberOf(text(m.Name)) {
			x.own, x.st, x.named = u.exp[n-1].own, u.exp[n-1].st, u.exp[n-1].named
		}
		u.exp = append(u.exp, x)
		c.transport.toServer(p[:n])
		return n
	}
	if typ == pgwire.ClientClose {
		if len(m.Name) > 0 && u.lookup(c, m.Name) == nil && c.pins.held&pinPrepare != 0 {
			b.s.Out = pgwire.AppendClose(b.s.OutBuf(), pgwire.KindStatement, c.stmts.foreignName(m.Name))
			b.s.Touch()
			u.exp = append(u.exp, expect{code: expClose})
			return n
		}
		name := string(cutName(m.Name))
		u.exp = append(u.exp, expect{code: expOwnClose})
		c.stmts.rename(u, parsedName{name: name})
		if slices.Contains(c.stmts.lent, name) {
			fw.closeLent(u, name)
		}
		return n
	}
	srv := c.stmts.foreignName(m.Name)
	st := u.lookup(c, m.Name)
	if st != nil {
		if len(m.Name) == 0 && c.stmts.unnamedAt == fw.linkSeq {
			srv = ""
		} else {
			fw.lendTo(u, &st.info.Statement)
			b.need(u, st)
			srv = st.srvName
		}
	} else if len(m.Name) == 0 {
		fw.closeUnnamed(u)
		srv = ""
	}
	b.s.Out = pgwire.AppendDescribe(b.s.OutBuf(), pgwire.KindStatement, srv)
	b.s.Touch()
	u.exp = append(u.exp, expect{code: expDescribe, own: srv == "", named: numberOf(text(cutName(m.Name))), st: st})
	return n
}

// orphaned cleans up a backend whose client has left.
func (b *backend) orphaned() {
	c := b.owner
	b.owner = nil
	b.s.Throttle(false)
	f := c.p.catalogue
	f.forgets(c)
	if f.reading && f.on == b && b.Held && c.cur == nil && c.transport.pass == 0 && c.state != stateCopying && b.status == pgwire.StatusIdle && b.Depth() <= 1 {
		b.Mode, b.Retired = core.ModeOwn, true // closed when the catalogue has been read on it
		return
	}
	if b.Depth() > 0 || c.cur != nil || c.transport.pass > 0 || c.state == stateCopying || b.Held || c.pins.held&pinsSpoil != 0 || len(c.settings.unsure) > 0 ||
		c.settings.makesUp(b) || (c.pins.held != 0 || c.stmts.leftovers) && madeUp(b.set) {
		// In the middle of a statement: do what the server would see directly, a closed
		// connection. Also if the session holds state that DISCARD ALL leaves.
		b.s.Close(io.EOF)
		return
	}
	b.Mode = core.ModeOwn
	sql := ""
	if b.status != pgwire.StatusIdle {
		sql = "ROLLBACK"
	}
	if c.pins.held != 0 || c.stmts.leftovers {
		b.backendStmts.forget()
		b.set, b.app, b.lastWriter, b.mixed = b.p.l.Settings.Empty(), b.startApp, nil, false
		if sql != "" {
			b.ask(sql, func(*unit) {})
		}
		sql = "DISCARD ALL"
	}
	if sql == "" {
		if b.Cancels == 0 { // otherwise it is released when no cancel request can hit another client
			b.p.release(b)
		}
		return
	}
	clean := func(u *unit) { b.Doomed = b.Doomed || u.err != nil }
	b.ask(sql, clean)
	if sql == "DISCARD ALL" && b.p.key.role != "" {
		b.ask("RESET ROLE", clean) // see restores
	}
}

// A forwarder sends the messages of a client that has a backend: it passes them on as they
// come, and records their effects.
type forwarder struct {
	c *client

	askedAt  time.Duration // when it asked for its backend; 0 if it has sent something since
	linkSeq  uint64
	bound    uint32      // numberOf the portal that it last bound
	lost     core.Losses // before its settings were applied on one
	barriers int         // units in flight that the client's later messages wait for

	dataEnded bool // while copying: a CopyDone or CopyFail was passed on

	// State that may have to be undone: see lost_conn.go.
	fresh    bool  // nothing was passed on yet to the backend that it got
	first    *unit // first unit there, until any of it has been sent; its raw is what was passed on
	held     pin   // before it got the backend
	takeBack core.Losses
}

// again makes a client wait for another backend, since b is lost and nothing of the
// client's was sent on it. It returns false if that has happened too often.
func (fw *forwarder) again(b *backend) bool {
	c := fw.c
	if c.l.Draining() || !fw.lost.Again(c.l.Now, b.Born) {
		return false
	}
	c.state = stateWaiting
	c.p.Enqueue(waiter{Client: c})
	return true
}

// note records what a statement will have done when its unit has succeeded.
// Pins count from the moment of sending: it is assumed to take effect.
func (fw *forwarder) note(u *unit, info *catalogue.Reading) {
	c := fw.c
	e := info.Effects
	c.settings.strays(info)
	made := c.texts.bodies && e&^sqlscan.EffTx != 0 || info.Verb == sqlscan.VerbExecute && c.texts.prepares != 0 && c.texts.prepares != c.p.catalogue.epoch
	if made {
		e |= sqlscan.EffUnknownFunc // the function may have been created after weir read the catalogue
	}
	if e&^sqlscan.EffBackslash == 0 {
		return
	}
	pins := pinsOf(e)
	if info.Unread != "" && !made && c.texts.remember(info.Unread) {
		pins = pinsOf(e&^sqlscan.EffUnknownFunc) | pinUnread
	}
	u.effects |= e
	u.hides = u.hides || info.Verb == sqlscan.VerbDo || info.Verb == sqlscan.VerbCall
	u.unsettles = u.unsettles || c.texts.unsettles(&info.Statement)
	if info.Hidden || info.Runs {
		c.texts.bodies, c.texts.makesSurely = true, c.texts.makesSurely || info.Hidden
	}
	if len(info.Fresh) > 0 {
		c.p.catalogue.add(c, info.Fresh)
	}
	if e.Has(sqlscan.EffPrepare) && c.texts.prepares == 0 {
		c.texts.prepares = c.p.catalogue.epoch
	}
	if info.Makes {
		c.pins.look = true
	}
	if e.Has(sqlscan.EffTouch) {
		c.settings.doubt(info.Touches...)
	}
	if e.Has(sqlscan.EffSet) {
		for _, set := range clauses(&info.Statement) {
			set.Name, set.Value = strings.Clone(set.Name), strings.Clone(set.Value)
			switch {
			case !set.Local:
				u.sets = append(u.sets, set)
				u.resets = u.resets || resets(&set)
			case sqlscan.Custom(set.Name):
				c.settings.doubt(set.Name)
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
		c.settings.txUnclear = true
	}
	if info.Verb == sqlscan.VerbCommitPrepared {
		u.effects |= sqlscan.EffWrites // those of the transaction, of whatever session
	}
	switch info.Verb {
	case sqlscan.VerbCommit, sqlscan.VerbRollback, sqlscan.VerbPrepareTx:
		u.ends = true
	default:
		u.ends = u.ends || e.Has(sqlscan.EffTx) && e.Has(sqlscan.EffMulti)
	}
	if e.Has(sqlscan.EffDiscardAll|sqlscan.EffDeallocateAll) || u.resets {
		fw.addBarrier(u)
	}
	if info.Verb == sqlscan.VerbDeallocate {
		if u.frees = strings.Clone(info.Name); u.frees != "" {
			c.stmts.renames(u, u.frees)
		}
	}
	if pins != 0 {
		c.pins.add(pins)
	}
	if e.Has(sqlscan.EffSequenceRead) && c.link.lastWriter != c {
		c.p.keepSequences = true
	}
	if e.Has(sqlscan.EffSequence | sqlscan.EffRoutine | sqlscan.EffUnknownFunc | sqlscan.EffUnknown) {
		c.link.lastWriter = c
		if c.p.keepSequences {
			c.pins.add(pinSequence)
		}
	}
}
