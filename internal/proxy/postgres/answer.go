package postgres

import (
	"bytes"
	"errors"
	"fmt"
	"slices"

	"github.com/weirdb/weir/internal/proxy/core"
	"github.com/weirdb/weir/internal/proxy/session"
	"github.com/weirdb/weir/internal/proxy/sight"
	"github.com/weirdb/weir/internal/proxy/sqlscan"
	"github.com/weirdb/weir/internal/wire/pgwire"
)

// This file passes what a backend sends to the clients that it answers.

// OnData passes the server's output to the clients that it answers.
func (b *backend) OnData(p []byte) int {
	i := 0
	if b.pass > 0 {
		i = min(b.pass, len(p))
		b.pass -= i
		if u := b.Head(); u != nil {
			b.emit(u, p[:i])
			if b.pass == 0 && u.park {
				u.goesOn(b) // it has part of a row
			}
			u.passing(b.pass > 0)
		}
	}
	from := i // start of the bytes to be passed on unchanged to the head's client
	for {
		if b.s.Closed {
			return len(p) // p may have been reused
		}
		typ, n, ok := pgwire.Peek(p[i:])
		if !ok {
			break
		}
		if n < pgwire.HeaderLen {
			b.Cut(fmt.Errorf("server sent a message of type %q and length %d", typ, n-1))
			return len(p)
		}
		u := b.Head()
		if i+n > len(p) {
			// A long row is passed on as it comes, so that memory does
			// not grow with it.
			if (typ == pgwire.ServerDataRow || typ == pgwire.ServerCopyData) && u != nil && u.kind == unitClient && (!u.kept() || tooLong(u, b, n)) {
				if u.flight != nil {
					if n <= b.p.l.srv.Cache.MaxAnswer() {
						break
					}
					b.spill(u)
				}
				if len(u.exp) > 0 {
					from = b.ownAnswers(u, p, from, i)
				}
				b.pass = n - (len(p) - i)
				if u.kept() {
					b.emit(u, p[from:i])
					u.goesOn(b)
					from = i
				}
				b.emit(u, p[from:])
				u.passing(true)
				b.holdBack()
				return len(p)
			}
			break
		}
		msg := p[i : i+n]
		i += n
		switch typ {
		case pgwire.ServerDataRow, pgwire.ServerCopyData:
			if u != nil && u.kind == unitClient {
				if len(u.exp) > 0 {
					from = b.ownAnswers(u, p, from, i-n)
				}
				continue // passed on with the range
			}
		case pgwire.ServerReady:
			if u == nil {
				b.Cut(errors.New("server sent ReadyForQuery that nothing asked for"))
				return len(p)
			}
			if n != pgwire.HeaderLen+1 {
				b.malformed("ReadyForQuery")
				return len(p)
			}
			if u.kind == unitClient {
				from = b.ownAnswers(u, p, from, i-n)
				if e := u.instead; e != nil {
					u.instead, u.failed, u.err = nil, true, e
					b.emit(u, pgwire.AppendError(nil, e))
					from = i - n
				}
				if c := u.c; c != nil && c == b.owner && c.settings.delays(b, u, msg[pgwire.HeaderLen]) {
					b.emit(u, p[from:i-n])
				} else {
					b.emit(u, p[from:i])
				}
			}
			from = i
			b.ready(u, msg[pgwire.HeaderLen])
			if b.s.Closed {
				return len(p)
			}
			continue
		case pgwire.ServerParameterStatus:
			if b.parameter(u, msg) {
				continue
			}
			from = b.skip(u, p, from, i-n, i)
			continue
		case pgwire.ServerNotification:
			if notified(b, u, msg) {
				continue
			}
			from = b.skip(u, p, from, i-n, i)
			continue
		}
		switch {
		case u == nil:
			if typ == pgwire.ServerError {
				b.asyncError(msg)
			}
			from = i
		case u.kind == unitClient:
			if typ == pgwire.ServerError {
				from = b.ownAnswers(u, p, from, i-n)
				b.emit(u, p[from:i-n])
				b.clientError(u, msg)
				from = i
			} else if len(u.exp) > 0 || typ == pgwire.ServerCommandComplete || typ == pgwire.ServerCopyInResponse {
				from = b.clientMessage(u, typ, p, from, i-n, i)
			}
		case u.kind == unitHidden:
			b.hiddenMessage(u, typ, msg)
			from = i
		default:
			u.grp.message(u, typ, msg)
			from = i
		}
	}
	if from < i {
		if u := b.Head(); u != nil && u.kind == unitClient {
			b.emit(u, p[from:i])
		}
	}
	b.holdBack()
	return i
}

// skip passes on what precedes a message that is dropped.
func (b *backend) skip(u *unit, p []byte, from, at, after int) int {
	if u != nil && u.kind == unitClient && from < at {
		b.emit(u, p[from:at])
	}
	return after
}

// ownAnswers inserts the answers of weir's own that precede the message at p[at:]. It
// returns the new start of the range.
func (b *backend) ownAnswers(u *unit, p []byte, from, at int) int {
	for u.ownNext() {
		if from < at {
			b.emit(u, p[from:at])
			from = at
		}
		if u.exp[u.expAt].code == expOwnParse {
			b.emit(u, parseComplete)
		} else {
			b.emit(u, closeComplete)
		}
		u.expAt++
	}
	return from
}

var (
	parseComplete = pgwire.AppendParseComplete(nil)
	closeComplete = pgwire.AppendCloseComplete(nil)
)

// clientMessage handles a message to a client that weir must look at. It returns the new
// start of the range that is passed on unchanged.
func (b *backend) clientMessage(u *unit, typ byte, p []byte, from, at, after int) int {
	from = b.ownAnswers(u, p, from, at)
	var code expectCode
	tracked := u.expAt < len(u.exp)
	if tracked {
		code = u.exp[u.expAt].code
	}
	if tracked && (code == expDescribe || code == expHiddenDescribe) {
		b.described(u, u.exp[u.expAt], typ, p[at+pgwire.HeaderLen:after])
		if b.s.Closed {
			return after
		}
	}
	switch typ {
	case pgwire.ServerParameterDescription:
		if tracked && code == expHiddenDescribe {
			return b.skip(u, p, from, at, after)
		}
	case pgwire.ServerParseComplete, pgwire.ServerNotice:
		if typ == pgwire.ServerParseComplete {
			u.expAt++
		}
		switch {
		case tracked && code == expHiddenParse: // a notice was sent with the client's own Parse
			return b.skip(u, p, from, at, after)
		case tracked && code == expParse && typ == pgwire.ServerNotice && u.exp[u.expAt].st != nil:
			u.exp[u.expAt].st.noticed = true
		}
	case pgwire.ServerCloseComplete:
		u.expAt++
		if tracked && code == expHiddenClose {
			return b.skip(u, p, from, at, after)
		}
	case pgwire.ServerBindComplete:
		u.expAt++
	case pgwire.ServerRowDescription, pgwire.ServerNoData:
		if tracked && (code == expDescribe || code == expHiddenDescribe) {
			u.expAt++
		}
		if tracked && code == expHiddenDescribe {
			from = b.skip(u, p, from, at, after)
		}
	case pgwire.ServerCommandComplete:
		if tracked && code == expExecute {
			u.expAt++
		}
		u.tagged = true
		u.sawTag(p[at+pgwire.HeaderLen : after])
	case pgwire.ServerEmptyQuery, pgwire.ServerPortalSuspended:
		if tracked && code == expExecute {
			u.expAt++
		}
	case pgwire.ServerCopyInResponse:
		if c := u.c; c != nil && c == b.owner {
			c.fwd.copies(u)
		}
	}
	if u.open && u.ownNext() {
		// Nothing more may come before the client's Sync, and the client may
		// be waiting for this before it sends one.
		b.emit(u, p[from:after])
		from = b.ownAnswers(u, p, after, after)
	}
	if u.flushedTo > 0 && u.expAt >= u.flushedTo {
		goOn(b, u)
	}
	return from
}

// giveOwn sends those of weir's own answers that precede the server's next one, to a client
// that owns the backend and has sent Flush.
func (b *backend) giveOwn() {
	if u := b.Head(); u != nil && u.kind == unitClient && u.open && u.ownNext() {
		b.ownAnswers(u, nil, 0, 0)
	}
}

// sawTag looks for command tags that end a transaction or a session's state.
func (u *unit) sawTag(body []byte) {
	u.tuples += tagged(body)
	switch {
	case bytes.HasPrefix(body, []byte("COMMIT\x00")):
		u.commits = true
	case bytes.HasPrefix(body, []byte("ROLLBACK\x00")):
		u.commits, u.undoes = false, true
		u.probe = true
	case bytes.HasPrefix(body, []byte("DEALLOCATE\x00")):
		u.freed = true
	}
	c := u.c
	if c == nil {
		return
	}
	c.state.leave(stateCopying)
	if u.barrier && c.link != nil {
		all := bytes.HasPrefix(body, []byte("DISCARD ALL\x00"))
		if all || bytes.HasPrefix(body, []byte("DEALLOCATE ALL\x00")) {
			c.stmts.forgotten(all)
		}
	}
}

// tagged is the number at the end of a command tag, 0 if there is none.
func tagged(body []byte) (n uint64) {
	unit := uint64(1)
	for i := len(body) - 2; i >= 0 && body[i] >= '0' && body[i] <= '9'; i-- { // a NUL follows it
		n += uint64(body[i]-'0') * unit
		unit *= 10
	}
	return n
}

// emit passes bytes to the client of the unit.
func (b *backend) emit(u *unit, p []byte) {
	if len(p) == 0 || u.retry || u.instead != nil {
		return
	}
	u.bytes += len(p)
	if len(u.resp) > maxHeld && u.mayGoOn(b) {
		u.goesOn(b)
	}
	if u.park || u.held() {
		u.resp = append(u.resp, p...)
		if u.flight != nil && len(u.resp) > b.p.l.srv.Cache.MaxAnswer() {
			b.spill(u)
		}
		return
	}
	c := u.c
	if c == nil || c.s.Closed {
		return
	}
	s := c.s
	out := s.OutBuf()
	if !u.wrote {
		u.wrote = true
		u.mark = len(out)
		c.responder.markSeq = s.Flushes
	}
	s.Out = append(out, p...)
	s.Touch()
}

// parameter records a ParameterStatus and reports whether it is passed to the
// client: it is if it belongs to the answer to the client's own statement.
func (b *backend) parameter(u *unit, msg []byte) bool {
	name, value, err := pgwire.ParseParameterStatus(msg[pgwire.HeaderLen:])
	if err != nil {
		b.malformed("ParameterStatus")
		return false
	}
	b.reportedBy(string(name), string(value))
	if string(name) == "application_name" {
		b.app = string(value)
	}
	if b.outdated(u, string(name)) {
		// The server's configuration was reloaded, or a standby was promoted.
		clear(b.p.greeting)
	}
	c := b.owner
	if c != nil && u != nil && u.tell {
		c.settings.reported(string(name), string(value))
		c.s.Write(msg)
		return false
	}
	if u == nil || u.kind != unitClient || c == nil || u.c != c {
		return false
	}
	c.settings.reported(string(name), string(value))
	return true
}

// clientError handles an ErrorResponse to a client.
func (b *backend) clientError(u *unit, msg []byte) {
	e, err := pgwire.ParseError(msg[pgwire.HeaderLen:])
	if err != nil {
		b.malformed("ErrorResponse")
		return
	}
	if own := refusal(u, e); own != nil {
		e, msg = own, pgwire.AppendError(nil, own)
	}
	u.failed, u.err = true, e
	if e.Code == pgwire.CodeReadOnly {
		b.p.l.srv.Monitor.Refused()
	}
	if c := u.c; c != nil && c == b.owner && u.expAt < len(u.exp) {
		c.fwd.skips(u)
	}
	b.unlearn(u)
	if b.withholds(u, e) {
		u.retry = true
		b.s.Close(e) // as the server does
		return
	}
	if u.asking && e.Fatal() && pgwire.Unavailable(e) && u.remains(b) {
		b.s.Close(e) // nothing of it was sent: it goes elsewhere
		return
	}
	if b.owner == nil && missing(e) {
		b.backendStmts.forget()
		b.Doomed = true
	}
	if u.flushedTo > 0 {
		goOn(b, u)
	}
	if b.shouldRetry(u, e) {
		u.retry = true
		if u.wrote {
			u.c.s.Out = u.c.s.Out[:u.mark]
		}
		return
	}
	if u.shape != nil {
		u.shape.Errors++
	}
	if e.Fatal() && u.held() {
		if u.flight != nil {
			u.drop()
		}
		u.hold = false
		b.emit(u, u.resp)
	}
	b.emit(u, restoreNames(msg, e, u))
	if e.Fatal() && !u.park && u.c != nil {
		u.c.s.CloseAfterFlush() // the server closes the connection, and so does weir
	}
}

// hiddenMessage handles the answer to weir's own query.
func (b *backend) hiddenMessage(u *unit, typ byte, msg []byte) {
	switch typ {
	case pgwire.ServerParseComplete, pgwire.ServerCloseComplete:
		if u.expAt < len(u.exp) {
			u.expAt++
		}
	case pgwire.ServerNotice:
		if u.notice != nil {
			u.notice(msg)
		}
	case pgwire.ServerDataRow:
		if u.columns == 0 {
			return
		}
		vals, err := pgwire.ParseDataRow(msg[pgwire.HeaderLen:], nil)
		if err != nil {
			b.malformed("DataRow")
			return
		}
		if len(vals) != u.columns {
			b.Cut(fmt.Errorf("server sent a DataRow of %d columns where weir had asked for %d", len(vals), u.columns))
			return
		}
		for i, v := range vals {
			if v != nil {
				vals[i] = bytes.Clone(v)
			}
		}
		u.rows = append(u.rows, vals)
	case pgwire.ServerError:
		if e, err := pgwire.ParseError(msg[pgwire.HeaderLen:]); err == nil {
			u.err = e
		} else {
			b.malformed("ErrorResponse")
		}
	}
}

// A responder processes what the answers to a client's units mean for its session.
type responder struct {
	c *client

	reached   []*changeScope // in the current transaction
	markSeq   uint64
	cancelled *unit // the unit that a cancel request is aimed at
	changes   bool  // the current transaction has changed the catalogue
}

// answered is called when a unit of this client has been answered.
func (c *client) answered(b *backend, u *unit, status byte) {
	c.served = b
	c.idleSince = c.l.Now
	if u.failed {
		c.stats.errors++
	}
	c.stmts.answered(u)
	if c.responder.cancelled == u {
		c.responder.cancelled = nil
	}
	if b.owner == c {
		c.responder.settled(b, u, status)
	} else {
		c.inflight--
		if !u.read {
			c.cached.Wrote() // a write of a lane that ran apart
		}
		if status != pgwire.StatusIdle {
			c.fatal(pgwire.NewFatal(pgwire.CodeInternalError, "weir did not see that a statement begins a transaction, which is rolled back"))
		}
		c.nextAgain()
	}
	c.settings.pay()
	path := sight.Alone
	if b.Mode == core.ModeShared {
		path = sight.Shared
	}
	c.p.count(u, path)
	if status == pgwire.StatusIdle {
		c.p.Stats.Transactions++
	}
	c.resume()
	if c.draining && c.login.entry == nil {
		c.leaveIfIdle()
	}
}

// settled applies the effects of a linked client's unit.
func (bk *responder) settled(b *backend, u *unit, status byte) {
	c := bk.c
	before := c.tx
	c.fwd.first, c.fwd.takeBack = nil, core.Losses{}
	c.enter(status, u)
	if u.barrier {
		c.fwd.barriers--
	}
	if status == pgwire.StatusIdle {
		c.texts.lexicalTx = false
	}
	if status != pgwire.StatusIdle && c.mode() == session.ModeStatement {
		c.fatal(pgwire.NewFatal(pgwire.CodeFeatureNotSupported, "transaction blocks not allowed in statement pooling mode"))
		return
	}
	if u.failed && c.pins.held&pinsSeen != 0 {
		c.pins.look = true
	}
	if u.numbers && (!u.failed || u.statements > 1) {
		c.forgetSequences(b)
	}
	if u.effects.Has(sqlscan.EffUnknownFunc) {
		c.p.catalogue.lookAt = 0 // it may have changed the catalogue
	}
	if u.frees != "" && (!u.failed || u.freed) {
		c.stmts.unname(u.frees)
		c.stmts.takeBack(u.frees)
	}
	if u.effects.Has(sqlscan.EffDDL) && (!u.failed || u.statements > 1) {
		c.p.forgetTexts()
		bk.changes = true
	}
	bk.changes = bk.changes || u.hides
	if bk.changes && status == pgwire.StatusIdle {
		bk.changes = false
		c.l.srv.lookups.recent.forget()
	}
	if c.texts.makes && status == pgwire.StatusIdle && b.Depth() == 0 && c.cur == nil {
		c.p.catalogue.ended(c, c.l.Now)
	}
	c.cached.ran(u, status)
	c.settings.restoreStart(b, u)
	c.settings.settle(b, u, before)
	if status == pgwire.StatusIdle && c.texts.bodies && b.Depth() == 0 && c.cur == nil {
		c.texts.bodies, c.texts.madeBodies = false, true
		c.p.catalogue.outdated(c.texts.makesSurely)
	}
	if len(u.reached) > 0 || len(bk.reached) > 0 {
		bk.carriedOut(u, before, status)
	}
	if u.probe && c.pins.held&pinsSeen != 0 {
		c.pins.look = true
	}
}

// grouped ends a unit that a lane has answered.
func (bk *responder) grouped(u *unit) {
	c := bk.c
	c.inflight--
	c.idleSince = c.l.Now
	c.stats.grouped++
	c.transport.freeSource()
	c.cached.Wrote()
	if u.failed {
		c.stats.errors++
	} else if u.shape != nil {
		u.shape.Grouped++
	}
	c.stmts.answered(u)
	if bk.cancelled == u {
		bk.cancelled = nil
	}
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

// backendQuiet is called when everything sent to the linked backend is answered: the client
// gives the backend back unless the session still needs it.
func (c *client) backendQuiet() {
	b := c.link
	if b.Doomed {
		if c.tx == pgwire.StatusIdle && c.pins.held == 0 {
			c.detach()
		}
		return
	}
	if b.status != pgwire.StatusIdle || c.cur != nil || c.transport.pass > 0 || c.state == stateCopying {
		return
	}
	if !c.login.greeted {
		c.login.introduce()
	}
	if c.texts.madeBodies {
		surely := c.texts.makesSurely
		c.texts.madeBodies, c.texts.makesSurely = false, false
		if c.p.catalogue.changed(b, surely) {
			return
		}
	}
	if c.pins.look {
		c.pins.look = false
		c.pins.asking, c.pins.asked = true, 0
		b.ask(stateSQL, c.pins.update).columns = 5
		return
	}
	if len(c.settings.unsure) > 0 {
		c.settings.learn()
		return
	}
	if u := b.ensureFor(c); u != nil {
		// RESET went further than the client's own defaults, and told the
		// client so: it learns what it has instead.
		u.tell = true
		return
	}
	if c.stmts.leftovers && (c.pins.held&pinPrepare == 0 || c.mode() == session.ModeTransaction) {
		c.stmts.leftovers, c.stmts.lent = false, nil
		b.backendStmts.forget()
		b.ask("DEALLOCATE ALL", func(*unit) {})
		return
	}
	if c.pins.held == 0 || c.mode() == session.ModeTransaction {
		c.detach()
		return
	}
	if c.listens.quiet() {
		return
	}
	c.resume()
}

// detach gives the backend back.
func (c *client) detach() {
	b := c.link
	c.link, b.owner, c.stmts.lent, c.texts.prepares, c.settings.astray = nil, nil, nil, 0, 0
	b.s.Throttle(false)
	c.s.Throttle(false)
	c.p.release(b)
	c.settings.pay()
	c.resume()
}

// backendGone is called when the linked backend's connection is lost; units were in flight
// on it. Between transactions, with nothing of the session on it, the client can go on.
func (c *client) backendGone(b *backend, fatal *pgwire.Error, units []*unit, e *pgwire.Error) {
	c.link, c.cur, c.transport.pass, c.stmts.lent, c.fwd.barriers, c.settings.astray = nil, nil, 0, nil, 0, 0
	c.state.leave(stateCopying)
	if c.s.Closed || c.s.Closing {
		return
	}
	c.s.Throttle(false)
	if !c.login.greeted && c.fwd.again(b) {
		return
	}
	if c.fwd.takesBack(b, units) {
		c.resume()
		return
	}
	if c.tx != pgwire.StatusIdle || c.pins.held != 0 {
		c.fatal(fatal)
		return
	}
	if !slices.ContainsFunc(units, func(u *unit) bool { return !onlyAsks(u) }) {
		switch u := c.responder.cancelled; {
		case u != nil:
			c.responder.cancelled = nil
			c.refuse(errEnded(u))
		case len(units) > 0 && (c.l.Draining() || !c.fwd.takeBack.Again(c.l.Now, b.Born)):
			c.fatal(ending(e)) // the question may be what has ended the connection
		default:
			c.resume()
		}
		return
	}
	// One statement outside a transaction was in flight. Its outcome is unknown; the
	// session has lost nothing else. The protocol would allow it to continue, but clients
	// take this class of error to mean that the connection is lost, so weir closes it, as the
	// server itself would have done.
	c.fatal(ending(e))
}
