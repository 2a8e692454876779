package mysql

import (
	"slices"
	"strconv"
	"strings"

	"github.com/weirdb/weir/internal/proxy/core"
	"github.com/weirdb/weir/internal/proxy/session"
	"github.com/weirdb/weir/internal/proxy/sqlscan"
	"github.com/weirdb/weir/internal/proxy/sqlscan/myscan"
	"github.com/weirdb/weir/internal/wire/mywire"
)

// This file keeps right what a statement may ask of the one before:
// LAST_INSERT_ID(), SHOW WARNINGS, ROW_COUNT() and FOUND_ROWS() belong to the
// connection on the server, while a client of weir changes connections.
//
// The id is kept by weir: where an answer tells it for certain, from the answer;
// where it does not (an INSERT with an explicit id answers with that id, but
// leaves LAST_INSERT_ID() alone) it stays on the connection until somebody else
// is to write there, and is then asked for. A statement that reads it finds it
// set before, and so does one that may leave it as it is: otherwise somebody
// else's would be taken for the client's. In a group there is no setting it: an
// id that the client gave itself makes LAST_INSERT_ID() unknown, and refused.
//
// The diagnostics stay on the connection. A client whose statement failed or
// left warnings keeps it until its next command, unless others wait: then weir
// fetches the warnings. The statements of a client that has asked for warnings run
// beside no others from then on, and a client that has asked for something else keeps
// its connection. The one thing that cannot be had, counts that are already
// overwritten, is refused and never made up.

// lastStatement is what the session's last statement left.
type lastStatement struct {
	id        uint64   // LAST_INSERT_ID(), unless idBackend or unknown
	idBackend *backend // alone knows it: its idOwner is the client
	unknown   bool     // nobody knows it, unless idBackend has another one than 0
	idVersion uint64   // changes with it
	on        *backend // where it ran, unless beside those of others
	found     *backend // where the last one with FOUND_ROWS() ran, if nothing but the client's own did since
	warnings  uint16
	failed    bool
	spread    bool   // ran beside those of others: its diagnostics are gone
	ran       bool   // the session has run a statement that may have left something
	probed    bool   // weir has asked about the transaction since: ROW_COUNT() is gone
	stash     []byte // the answer to SHOW WARNINGS, fetched
	soft      bool   // the client keeps its backend for SHOW WARNINGS alone
}

// clear is for commands that leave no diagnostics.
func (l *lastStatement) clear() {
	l.warnings, l.failed, l.spread, l.stash = 0, false, false, nil
}

// setID is for a session that says what the id is.
func (l *lastStatement) setID(id uint64) {
	l.id, l.idBackend, l.unknown = id, nil, false
	l.idVersion++
}

// loseID is for an id that nobody knows.
func (l *lastStatement) loseID() {
	l.id, l.idBackend, l.unknown = 0, nil, true
	l.idVersion++
}

// leaveID is for an id that only the client's connection knows.
func (dg *diagnostics) leaveID() {
	c := dg.c
	l, b := &dg.last, c.link
	l.idVersion++
	b.noteIDOf(c)
	l.idBackend = b // one that was unknown was 0 here before the statement, see prepare
}

// known has the session's last id asked for, if only a connection knows it, and tells
// whether that need not be. The client is resumed when it is.
func (dg *diagnostics) known() bool {
	c, w := dg.c, dg.last.idBackend
	switch {
	case w == nil:
		return true
	case w == c.link && w.Depth() > 0:
		w.Then(c.resume) // perhaps it is asked already
		return false
	case w == c.link:
		w.idOwner = c
	case w.Mode == core.ModeFree && !w.s.Closed:
		w.p.Claim(w) // not always of the client's present pool
		w.Mode = core.ModeOwn
	}
	w.yieldID(nil) // if nobody has made it yield already
	return false
}

// finds reports whether it is known whether the id that a statement is to find is. If only a
// connection can tell that it is asked, and the client has to wait.
func (dg *diagnostics) finds(effects myscan.Effect) bool {
	return !dg.last.unknown || !effects.Has(myscan.EffLastID) || dg.known()
}

// leftDiagnostics are what statements have left on a connection, and of which clients.
type leftDiagnostics struct {
	b *backend

	// lastUser is the client whose statement was the last here; its diagnostics
	// are still on the connection. nil if it was weir or several.
	lastUser *client
	// warned is the client to whom the warnings on the connection belong, if that
	// is known: a statement without a table leaves MariaDB's as they are.
	warned *client
	// idOwner is the client whose LAST_INSERT_ID() is known to this connection
	// only; see diagnostics.go.
	idOwner *client
	// sameID is the client whose LAST_INSERT_ID() is also the connection's, if it is still
	// of sameIDVersion.
	sameID        *client
	sameIDVersion uint64
	// sequencer is the client that keeps the connection for its sequences, of which
	// nobody else has used any here.
	sequencer *client
	// gtidOf is the client whose transaction the connection's last_gtid names; nil
	// if it is that of several or of one gone, or if hasGTID says that there is none.
	gtidOf  *client
	hasGTID bool
}

// noteIDOf takes note that the connection's own LAST_INSERT_ID() is that of the client;
// nil that it is nobody's for certain.
func (lt *leftDiagnostics) noteIDOf(c *client) {
	if lt.sameID = c; c != nil {
		lt.sameIDVersion = c.diag.last.idVersion
	}
}

// hasIDOf reports whether the connection's own LAST_INSERT_ID() is c's.
func (lt *leftDiagnostics) hasIDOf(c *client) bool {
	return lt.sameID == c && lt.sameIDVersion == c.diag.last.idVersion
}

// ran takes note of a statement of the client that has ended on its backend, before
// it is looked at further.
func (dg *diagnostics) ran(b *backend, u *unit) {
	l := &dg.last
	if b.lastUser != dg.c || l.on != b {
		l.found = nil
		l.spread = l.spread || l.on != b || b.warned != dg.c // weir's own SET leaves warnings
	}
	b.lastUser, l.on, l.probed = dg.c, b, false
	l.ran = l.ran || !u.onlySets()
	if u.verb == myscan.VerbSelect && !u.failed {
		l.found = b
	}
}

// note takes note of a statement that ran on the client's own backend.
func (l *lastStatement) note(u *unit) {
	if u.effects.Has(myscan.EffDiag) && u.verb == myscan.VerbShow {
		return // SHOW WARNINGS leaves what it shows
	}
	if u.cmd == mywire.ComStmtPrepare && showsDiagnostics(&u.st.info) {
		return // and so does who prepares it
	}
	switch {
	case l.warnings == 0 && !l.failed || !u.keepsDiagnostics():
		l.clear()
		l.warnings = u.ok.Warnings
	case l.spread:
		l.on, l.stash = nil, nil // the server would put them in other words by now
	}
	switch {
	case u.hidesID:
		u.c.diag.leaveID()
	case u.ok.LastInsertID != 0:
		l.setID(u.ok.LastInsertID)
		u.c.link.noteIDOf(u.c)
	}
}

// fail takes note of one that failed there. It may have set the id.
func (l *lastStatement) fail(u *unit) {
	l.clear()
	l.failed = true
	if u.hidesID {
		u.c.diag.leaveID()
	}
}

// shared takes note of a statement that ran beside those of others.
func (l *lastStatement) shared(u *unit) {
	kept := (l.warnings > 0 || l.failed) && u.keepsDiagnostics()
	l.clear()
	l.warnings, l.failed, l.spread, l.on, l.ran = u.ok.Warnings, u.failed, true, nil, true
	if u.failed {
		l.warnings = 1
	}
	l.failed = l.failed || kept
	if id := u.ok.LastInsertID; id != 0 && !u.failed {
		l.told(u, id)
	}
	if l.warnings > 0 && u.shape != nil && !u.failed {
		u.shape.KeepAlone() // so that the warnings can be had the next time
	}
}

// keepsDiagnostics reports whether a statement left what the one before it had left,
// as MariaDB does where no table is read.
func (u *unit) keepsDiagnostics() bool {
	if u.failed || u.ok.Warnings > 0 || u.effects.Has(hidesIDEffects) || !u.c.p.facts.mariadb {
		return false
	}
	switch u.verb {
	case myscan.VerbBegin, myscan.VerbCommit, myscan.VerbRollback, myscan.VerbRollbackTo, myscan.VerbSavepoint, myscan.VerbRelease:
		return true
	case myscan.VerbSelect, myscan.VerbSet, myscan.VerbDo:
	default:
		return false
	}
	sql := u.asText()
	return sql != "" && !strings.Contains(strings.ToLower(sql), "from")
}

// onlySets reports whether a statement has left what was there before it, where that was
// nothing.
func (u *unit) onlySets() bool {
	if u.verb != myscan.VerbSet || u.failed || u.ok.Warnings > 0 || u.effects.Has(hidesIDEffects) {
		return false
	}
	sql := u.asText()
	return sql != "" && !strings.Contains(strings.ToLower(sql), "select")
}

// asText is the unit's text, "" if that is not kept.
func (u *unit) asText() string {
	if u.st != nil {
		return u.st.sql
	}
	return text(u.raw)
}

// grouped takes note of a write that ran in a group; id is what the client was
// told.
func (l *lastStatement) grouped(u *unit, id uint64, warnings uint16) {
	l.shared(u)
	l.warnings = warnings
	switch {
	case id != 0:
		l.told(u, id)
	case u.rows > 0 && (u.verb == myscan.VerbInsert || u.verb == myscan.VerbReplace):
		l.loseID() // RETURNING does not tell it
	}
}

// told takes note of an id that a write beside those of others answered with.
func (l *lastStatement) told(u *unit, id uint64) {
	if u.generated {
		l.setID(id)
		return
	}
	l.loseID() // perhaps the client gave it itself
}

// forget is for an error of weir's own.
func (dg *diagnostics) forget() {
	dg.last.clear()
	dg.last.failed, dg.last.spread, dg.last.on, dg.last.ran = true, true, nil, true
}

// lost is for a backend that is gone with what the last statement has left there.
func (dg *diagnostics) lost(b *backend) {
	if l := &dg.last; l.on == b {
		l.on, l.found, l.spread, l.soft = nil, nil, true, false
	}
}

// keepID leaves the client's id on a backend that it gives back, if that
// alone knows it.
func (dg *diagnostics) keepID(b *backend) {
	if dg.last.idBackend == b {
		b.idOwner = dg.c
	} else if b.idOwner == dg.c {
		b.idOwner = nil
	}
}

// yieldID asks for the id that only this connection knows, before somebody else
// than its client writes here.
func (lt *leftDiagnostics) yieldID(to *client) {
	b := lt.b
	if lt.sameID != to {
		lt.sameID = nil
	}
	c := lt.idOwner
	if c == nil || c == to {
		return
	}
	lt.idOwner = nil
	if c.s.Closed {
		return
	}
	b.ask("SELECT LAST_INSERT_ID()", func(u *unit) {
		if c.diag.last.idBackend != b {
			return // it has another one by now
		}
		l := &c.diag.last
		id := uint64(0)
		rows := u.result(b.p.key.caps)
		if len(rows) == 1 {
			id = parseUint(rows[0][0])
		}
		if len(rows) != 1 || l.unknown && id == 0 {
			l.loseID()
		} else {
			l.id, l.idBackend, l.unknown = id, nil, false
		}
		c.resume()
	})
}

// tellsID is for a connection that is to be closed. It has an id asked for that only this
// one knows, and reports whether that is under way: the answer ends the connection.
func (lt *leftDiagnostics) tellsID() bool {
	b, c := lt.b, lt.idOwner
	switch {
	case c == nil || c.s.Closed || c.diag.last.idBackend != b:
		return false // nobody will ask for it
	case b.s.Closed || b.Depth() > 0 || b.p.l.Draining() || !b.p.l.srv.Monitor.Goes(b.Endpoint):
		return false // nor would it be waited for
	}
	b.p.Claim(b)
	b.Mode, b.Doomed, b.Leaving = core.ModeOwn, true, true
	lt.yieldID(nil)
	return true
}

// hidesIDEffects are the effects of statements that may set LAST_INSERT_ID() without
// reporting it, or read it where weir does not see it.
const hidesIDEffects = myscan.EffSetLastID | myscan.EffUnknownFunc | myscan.EffUnknown | myscan.EffMulti | myscan.EffLoad

// hidesID reports whether a statement that is about to run may leave another
// LAST_INSERT_ID() than the one in its answer: a statement that changes it where weir
// does not see it, or an INSERT with an id of the client's own. Only a connection that
// has the client's id before such a statement has it afterwards.
func (dg *diagnostics) hidesID(verb myscan.Verb, effects myscan.Effect, to target, generated bool) bool {
	switch {
	case effects.Has(hidesIDEffects):
		return true
	case generated || verb != myscan.VerbInsert && verb != myscan.VerbReplace:
		return false
	}
	return !dg.withoutID(to)
}

// showsDiagnostics reports whether a statement does nothing but show what the one
// before has left. Nothing may be sent in front of it.
func showsDiagnostics(info *myscan.Statement) bool {
	return info.Verb == myscan.VerbShow && info.Count == 1 && info.Effects.Has(myscan.EffDiag) && !info.Effects.Has(myscan.EffUnknown)
}

// plainQuestion reports whether a text asks for what the statement before has left, and of
// no table and no function of the user's: whatever the catalog says, it does nothing else.
func plainQuestion(sql string, info *myscan.Statement) bool {
	return info.Verb == myscan.VerbSelect && info.Count == 1 && info.Effects.Has(myscan.EffDiag) &&
		!info.Effects.Has(hidesIDEffects) && !strings.Contains(strings.ToLower(sql), "from")
}

// overwrites answers a statement that asks for what the client's last one has left
// here, and for which weir would have to set LAST_INSERT_ID() before, which takes that
// away. It reports whether it did.
func (dg *diagnostics) overwrites(sql string, info *myscan.Statement, hidesID bool) bool {
	c := dg.c
	b := c.link
	if !hidesID || !info.Effects.Has(myscan.EffDiag) || asksItself(sql, info) || b.lastUser != c || dg.last.on != b || b.hasIDOf(c) {
		return false
	}
	c.pins.add(pinDiag)
	c.responder.refuseHere(gone("what the last statement left"))
	return true
}

// withoutID reports whether a write goes to a table that certainly generates no ids.
func (dg *diagnostics) withoutID(to target) bool {
	c := dg.c
	if c.pins.held&pinTemp != 0 || !to.one {
		return false
	}
	f := c.p.tables.look(c.p, to.in, to.schema, to.table)
	return f.state == tablePlain && f.auto == ""
}

// prepare sees to it that a statement about to run on the client's
// backend finds what it may ask about the session's last one. It reports false
// if the client has to wait.
func (dg *diagnostics) prepare(info *myscan.Statement, hidesID bool) (ready bool) {
	c := dg.c
	b := c.link
	if (hidesID || info.Effects.Has(myscan.EffLastID)) && !b.hasIDOf(c) {
		if !dg.known() {
			return false // resumed when it is
		}
		b.setLastID(strconv.FormatUint(dg.last.id, 10))
		b.noteIDOf(c)
	}
	return true
}

// refuses answers a question about the last statement that nobody can
// answer any more, or that weir can answer itself, and reports whether it did.
func (dg *diagnostics) refuses(cmd byte, sql string, info *myscan.Statement) bool {
	c := dg.c
	if info.Effects.Has(myscan.EffSequenceRead) && dg.refusesSequence() {
		return true
	}
	if info.Effects.Has(myscan.EffSessionRead) && dg.refusesGTID(sql) {
		return true
	}
	if info.Effects.Has(myscan.EffLastID) && dg.last.unknown {
		dg.keepsIDs = true
		c.responder.refuseHere(gone("LAST_INSERT_ID()"))
		return true
	}
	if !info.Effects.Has(myscan.EffDiag) || asksItself(sql, info) {
		return false
	}
	if l := &dg.last; !l.ran && !l.unknown && l.idBackend == nil && c.p.facts.initConnect == "" {
		if b := c.link; b != nil { // what a new session has
			b.ask(c.p.facts.newRows(), func(*unit) {})
			b.setLastID(strconv.FormatUint(l.id, 10)) // which leaves a ROW_COUNT() of 0
			b.noteIDOf(c)
		}
		return false
	}
	if b := c.link; b != nil && b.lastUser == c && dg.last.on == b {
		if info.Effects.Has(myscan.EffLastID) && !info.Effects.Has(myscan.EffMulti) && !b.hasIDOf(c) {
			// To set the one takes the other away.
			c.pins.add(pinDiag)
			c.responder.refuseHere(gone("what the last statement left"))
			return true
		}
		lower := strings.ToLower(sql)
		if dg.last.probed && strings.Contains(lower, "row_count") || dg.last.found != b && strings.Contains(lower, "found_rows") {
			c.pins.add(pinDiag)
			c.responder.refuseHere(gone("a number of rows"))
			return true
		}
		if b.warned != c && dg.last.warnings == 0 && !dg.last.failed && asksForWarnings(sql, info) {
			b.ask(noWarnings, func(*unit) {}) // those that are there may be another's
		}
		return false
	}
	l := &dg.last
	switch {
	case l.stash != nil && isShowWarnings(sql) && cmd == mywire.ComQuery:
		c.reply(l.stash)
		return true
	case l.warnings == 0 && !l.failed && info.Verb == myscan.VerbShow:
		if c.link != nil {
			c.link.ask(noWarnings, func(*unit) {}) // whose are there?
		}
		return false
	case c.link == nil && l.on != nil && l.on.lastUser == c && l.on.Mode == core.ModeFree && !l.on.s.Closed:
		return false // still there; take prefers it
	}
	dg.asked(cmd, sql)
	c.responder.refuseHere(gone("what the last statement left"))
	return true
}

// noWarnings leaves a connection without warnings, and has its answer tell what
// of the session's state is still to be told. A statement without a table would
// leave MariaDB's warnings as they are.
const noWarnings = "DO (SELECT 0 FROM (SELECT 0) AS weir)"

// newRows leaves a connection without warnings, and with the FOUND_ROWS() of a new session.
func (f *poolFacts) newRows() string {
	if f.mariadb {
		return "SELECT 0 FROM (SELECT 0) AS weir" // 1
	}
	return "SELECT 0 FROM (SELECT 0) AS weir LIMIT 0" // 0
}

// gone is the error for those who ask for what was overwritten.
func gone(what string) *mywire.Error {
	return mywire.NewError(mywire.ErrNotSupportedYet,
		"weir: %s was not kept, for its connection has served others since; from now on such sessions keep their connection: run both statements again, or use --mode session", what)
}

// asksItself reports whether a question is about a statement of the same text.
func asksItself(sql string, info *myscan.Statement) bool {
	if info.Count < 2 || info.First.Has(myscan.EffDiag) {
		return false
	}
	switch info.Verb {
	case myscan.VerbSelect:
		return true
	case myscan.VerbInsert, myscan.VerbReplace, myscan.VerbUpdate, myscan.VerbDelete:
		return !strings.Contains(strings.ToLower(sql), "found_rows") // which they leave as it is
	}
	return false
}

// asksForWarnings reports whether a question about the last statement is about its
// warnings alone.
func asksForWarnings(sql string, info *myscan.Statement) bool {
	if info.Verb == myscan.VerbShow {
		return true
	}
	lower := strings.ToLower(sql)
	return !strings.Contains(lower, "row_count") && !strings.Contains(lower, "found_rows")
}

func isShowWarnings(sql string) bool {
	return strings.EqualFold(strings.Join(strings.Fields(strings.TrimRight(strings.TrimSpace(sql), ";")), " "), "show warnings")
}

// asked takes note that the client has asked for what its last statement left. For warnings
// it need not keep its connection.
func (dg *diagnostics) asked(cmd byte, sql string) {
	if c := dg.c; cmd == mywire.ComQuery && isShowWarnings(sql) && c.l.cfg.Mode == session.ModeAuto {
		dg.asks = true
	} else {
		c.pins.add(pinDiag)
	}
}

// keepsBackend reports whether the client keeps its backend only because it may ask why its
// last statement failed: until others wait, or until the warnings are fetched.
func (dg *diagnostics) keepsBackend() bool {
	c := dg.c
	switch {
	case !dg.last.leftOn(c.link) || c.link.lastUser != c || c.l.cfg.Mode != session.ModeAuto || c.draining:
		return false
	case !c.p.soft.wanted():
		dg.last.soft = true
		c.p.soft.add(c)
		return true
	case dg.asks:
		dg.fetchWarnings(nil)
		return true
	}
	return false
}

// softDiagnostics are the clients that keep a backend for their diagnostics alone, perhaps.
type softDiagnostics struct {
	p       *pool
	clients []*client
}

// wanted reports whether there is use for such a backend: others wait, here or in a pool
// that is to have a connection of this one, or the pool is paused.
func (so *softDiagnostics) wanted() bool {
	p := so.p
	return len(p.Excl) > 0 || len(p.Reads) > 0 || p.Paused || p.ConnManager().Owes()
}

// reclaim takes backends back that clients keep for their diagnostics alone, when they are
// wanted.
func (so *softDiagnostics) reclaim() {
	if len(so.clients) == 0 || !so.wanted() {
		return
	}
	for _, c := range so.clients {
		c.diag.softly = false
		if c.diag.last.soft && c.link != nil && c.cur == nil && !c.state.asking() && !c.s.Closed {
			c.diag.fetchWarnings(nil)
		}
	}
	so.clients = so.clients[:0]
}

// add takes note of a client that keeps a backend for its diagnostics
// alone, perhaps. Those who have left in the meantime are forgotten from time to
// time.
func (so *softDiagnostics) add(c *client) {
	if c.diag.softly {
		return
	}
	c.diag.softly = true
	if len(so.clients) >= 2*len(so.p.Backends)+16 {
		so.clients = slices.DeleteFunc(so.clients, func(c *client) bool {
			c.diag.softly = c.diag.last.soft && !c.s.Closed
			return !c.diag.softly
		})
	}
	so.clients = append(so.clients, c)
}

// leftOn reports whether the last statement has left diagnostics on a connection.
func (l *lastStatement) leftOn(b *backend) bool {
	return (l.warnings > 0 || l.failed) && !l.spread && l.on == b
}

// fetchWarnings asks for the warnings of the last statement, so that the backend can
// be used for something else, and then calls then, if given.
func (dg *diagnostics) fetchWarnings(then func()) {
	c := dg.c
	b := c.link
	if !dg.last.leftOn(b) || b.lastUser != c {
		dg.last.soft, dg.last.spread = false, true // overwritten
		c.quietSoon()
		return
	}
	c.state.enter(stateAsking)
	b.ask("SHOW WARNINGS", func(u *unit) {
		c.state.leave(stateAsking)
		dg.last.soft = false
		dg.last.spread = true
		if at := len(u.resp) - b.answer.Tail(); u.err == nil && len(u.resp) <= maxStash && at >= 0 {
			// The client does not see the session's state at that moment.
			dg.last.stash = mywire.AppendEnd(append([]byte(nil), u.resp[:at]...), u.resp[at+3], c.caps, &u.ok)
		}
		if then != nil && !b.s.Closed {
			then()
		}
		c.resume()
	})
}

// maxStash bounds the warnings that are kept for a client, in bytes.
const maxStash = 64 << 10

// diagnostics are what a client may ask about its last statements: LAST_INSERT_ID(),
// warnings, numbers of rows, sequences and GTIDs; and the hints that it was warned of.
type diagnostics struct {
	c *client

	softly    bool // among those of the pool
	draws     bool // may have used a sequence
	wroteGTID bool // a transaction of it has got a GTID
	last      lastStatement
	asks      bool // for warnings: its statements run alone
	// keepsIDs: has asked for a LAST_INSERT_ID() that was not kept. Its writes with
	// ids of its own join no groups.
	keepsIDs bool
	noticed  map[string]bool // hints already complained of
}

// complain warns once per session about a hint that cannot be used. MySQL has no
// notices, so the operator is told.
func (dg *diagnostics) complain(h *sqlscan.Hints) {
	c := dg.c
	for _, msg := range h.Bad {
		c.l.BadHints++
		if dg.noticed[msg] || len(dg.noticed) >= 32 {
			continue
		}
		if dg.noticed == nil {
			dg.noticed = make(map[string]bool)
		}
		dg.noticed[strings.Clone(msg)] = true
		c.l.srv.Log.Warn("hint ignored", "client", c.addr, "user", c.p.key.user, "database", c.p.key.database, "hint", msg)
	}
}

// generatesID reports whether an INSERT of the client, which is read in the given
// settings, certainly has its id generated.
func (dg *diagnostics) generatesID(in *session.Set, ins *myscan.InsertShape) bool {
	c := dg.c
	f := c.p.tables.look(c.p, in, ins.Schema, ins.Table)
	return f.state == tablePlain && f.auto != "" && f.generates(ins) && !ins.Returning // whose answer does not tell it
}
