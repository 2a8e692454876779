package mysql

import (
	"strconv"
	"strings"

	"github.com/weirdb/weir/internal/proxy/core"
	"github.com/weirdb/weir/internal/proxy/session"
	"github.com/weirdb/weir/internal/proxy/sqlscan/myscan"
	"github.com/weirdb/weir/internal/wire/mywire"
)

// This file keeps LAST_INSERT_ID(), SHOW WARNINGS, ROW_COUNT() and FOUND_ROWS() right: on the
// server they belong to the connection, while a client of weir changes connections.
//
// weir keeps the id. If an answer certainly contains it, weir takes it from there; if not (an
// INSERT with an explicit id answers with that id, but does not change LAST_INSERT_ID()), it
// stays on the connection until another client is about to write there, and weir then queries
// it. Before a statement that reads the id weir sets it on the connection, and also before one
// that may leave it unchanged: otherwise another client's id would be taken for this client's.
// In a group weir cannot set it: an id that the client supplied itself makes LAST_INSERT_ID()
// unknown, and weir refuses it.
//
// The diagnostics stay on the connection. A client whose statement failed or caused warnings
// keeps the connection until its next command, unless others wait: then weir fetches the
// warnings. Once a client has asked for warnings, its statements run beside no others, and if
// its warnings are too long to fetch, it keeps its connection. The same goes for SELECT
// ROW_COUNT() and SELECT FOUND_ROWS(), whose answer weir fetches in the client's own words. A
// client that has asked for anything else keeps its connection. weir refuses the one thing that
// it cannot get, diagnostics that are already overwritten, and never makes them up.

// lastStatement is what weir knows about the diagnostics of the session's last statement.
type lastStatement struct {
	id        uint64   // LAST_INSERT_ID(), unless idBackend or unknown
	idBackend *backend // the backend that alone knows it, with the client as its idOwner
	unknown   bool     // lost, unless idBackend has a value other than 0
	idVersion uint64   // changes with the id
	on        *backend // where it ran, unless beside other clients' statements
	found     *backend // where the last statement with FOUND_ROWS() ran, if only the client's own ran there since
	warnings  uint16
	failed    bool
	spread    bool   // it ran beside other clients' statements: its diagnostics are lost
	ran       bool   // the session has run a statement that may have left diagnostics
	probed    bool   // weir has run something of its own there since: ROW_COUNT() is lost
	stash     []byte // the fetched answer to stashOf
	stashOf   string // showWarnings, or the client's question for a number of rows
	// stashWarnings is how many warnings a question for a number of rows has itself: MySQL's, that
	// FOUND_ROWS() is deprecated.
	stashWarnings uint16
	soft          bool // the client keeps its backend only for its diagnostics
}

// clear is for commands that leave no diagnostics.
func (l *lastStatement) clear() {
	l.warnings, l.failed, l.spread, l.stash = 0, false, false, nil
}

// dropRows drops a fetched number of rows.
func (l *lastStatement) dropRows() {
	if l.stashOf != showWarnings {
		l.stash = nil
	}
}

// answeredHere records that weir itself has answered a command that sets ROW_COUNT().
func (l *lastStatement) answeredHere() {
	l.probed = true
	if saysOnly(l.stashOf, selectRowCount) {
		l.stash = nil
	}
}

// left reports whether there may be diagnostics.
func (l *lastStatement) left() bool { return l.warnings > 0 || l.failed }

// setID sets a known id.
func (l *lastStatement) setID(id uint64) {
	l.id, l.idBackend, l.unknown = id, nil, false
	l.idVersion++
}

// loseID marks the id as unknown.
func (l *lastStatement) loseID() {
	l.id, l.idBackend, l.unknown = 0, nil, true
	l.idVersion++
}

// leaveID marks the id as known only to the client's connection.
func (dg *diagnostics) leaveID() {
	c := dg.c
	l, b := &dg.last, c.link
	l.idVersion++
	b.noteIDOf(c)
	l.idBackend = b // an unknown id was 0 here before the statement, see prepare
}

// known reports whether weir knows the session's last id, or the id is lost. If only a
// connection knows it, known queries it and returns false; the client is resumed after the
// answer.
func (dg *diagnostics) known() bool {
	c, w := dg.c, dg.last.idBackend
	switch {
	case w == nil:
		return true
	case w == c.link && w.Depth() > 0:
		w.Then(c.resume) // it may be queried already
		return false
	case w == c.link:
		w.idOwner = c
	case w.Mode == core.ModeFree && !w.s.Closed:
		w.p.Claim(w) // may belong to another pool than the client's current one
		w.Mode = core.ModeOwn
	}
	w.saveID(nil) // unless the id was saved just now
	return false
}

// finds reports whether weir knows if the id that a statement reads exists. If only a
// connection knows, finds queries it and returns false, and the client has to wait.
func (dg *diagnostics) finds(effects myscan.Effect) bool {
	return !dg.last.unknown || !effects.Has(myscan.EffLastID) || dg.known()
}

// leftDiagnostics are the diagnostics that statements have left on a connection, and the
// clients they belong to.
type leftDiagnostics struct {
	b *backend

	// lastUser is the client whose statement was the last here; its diagnostics are still on
	// the connection. nil if that was weir's, or several clients'.
	lastUser *client
	// warned is the client to which the warnings on the connection belong, if known: a
	// statement without a table does not clear MariaDB's.
	warned *client
	// idOwner is the client whose LAST_INSERT_ID() only this connection knows; see the comment
	// above.
	idOwner *client
	// sameID is the client whose LAST_INSERT_ID() is also the connection's, as long as its
	// version is sameIDVersion.
	sameID        *client
	sameIDVersion uint64
	// sequencer is the client that keeps the connection for its sequences; no other client has
	// used any here.
	sequencer *client
	// gtidOf is the client whose transaction the connection's last_gtid names; nil if that is a
	// transaction of several clients or of one that has left, or if hasGTID is false.
	gtidOf  *client
	hasGTID bool
}

// noteIDOf records that the connection's own LAST_INSERT_ID() is the client's; nil means that
// it certainly belongs to no client.
func (lt *leftDiagnostics) noteIDOf(c *client) {
	if lt.sameID = c; c != nil {
		lt.sameIDVersion = c.diag.last.idVersion
	}
}

// hasIDOf reports whether the connection's own LAST_INSERT_ID() is c's.
func (lt *leftDiagnostics) hasIDOf(c *client) bool {
	return lt.sameID == c && lt.sameIDVersion == c.diag.last.idVersion
}

// ran records that a statement of the client has ended on its backend, before its answer is
// processed further.
func (dg *diagnostics) ran(b *backend, u *unit) {
	l := &dg.last
	if b.lastUser != dg.c || l.on != b {
		l.found = nil
		l.spread = l.spread || l.on != b || b.warned != dg.c // weir's own SET causes warnings
	}
	b.lastUser, l.on, l.probed = dg.c, b, false
	l.ran = l.ran || !u.onlySets()
	if u.verb == myscan.VerbSelect && !u.failed {
		l.found = b
	}
}

// note records the answer to a statement that ran on the client's own backend.
func (l *lastStatement) note(u *unit) {
	l.dropRows()
	if u.effects.Has(myscan.EffDiag) && u.verb == myscan.VerbShow && !u.effects.Has(myscan.EffMulti) {
		return // SHOW WARNINGS does not clear what it shows
	}
	if u.cmd == mywire.ComStmtPrepare && showsDiagnostics(&u.st.info) {
		return // and neither does preparing it
	}
	switch {
	case !u.mayKeepDiagnostics() || !u.warned && !l.left():
		l.clear()
		l.warnings = u.ok.Warnings
	default: // its answer does not say whether there are any
		lost := l.spread && !u.warned // the server would phrase them differently by now
		l.clear()
		l.failed, l.spread = true, lost
		if lost {
			l.on = nil
		}
	}
	switch {
	case u.hidesID:
		u.c.diag.leaveID()
	case u.ok.LastInsertID != 0:
		l.setID(u.ok.LastInsertID)
		u.c.link.noteIDOf(u.c)
	}
}

// fail records a statement that failed there. It may have set the id.
func (l *lastStatement) fail(u *unit) {
	l.clear()
	l.failed = true
	if u.hidesID {
		u.c.diag.leaveID()
	}
}

// shared records a statement that ran beside other clients' statements.
func (l *lastStatement) shared(u *unit) {
	u.noteTables(u.asText(), u.c.texts.mode)
	kept := l.left() && u.mayKeepDiagnostics()
	l.clear()
	l.warnings, l.failed, l.spread, l.on, l.ran = u.ok.Warnings, u.failed, true, nil, true
	if u.failed {
		l.warnings = 1
	}
	l.failed = l.failed || kept
	if id := u.ok.LastInsertID; id != 0 && !u.failed {
		l.sharedID(u, id)
	}
	if l.warnings > 0 && u.shape != nil && !u.failed {
		u.shape.KeepAlone() // so that the warnings can be shown the next time
	}
}

// described records that weir itself has answered a COM_STMT_PREPARE, which clears the warnings
// and the error of the last statement like the statement itself.
func (dg *diagnostics) described(st *stmt) {
	c, l := dg.c, &dg.last
	if l.left() {
		u := unit{cmd: mywire.ComStmtPrepare, c: c, st: st}
		u.noteTables(st.sql, st.mode)
		if showsDiagnostics(&st.info) || u.mayKeepDiagnostics() {
			return
		}
	}
	if b := l.on; b != nil && b.warned == c {
		b.warned = nil // they are still there
	}
	l.clear()
}

// mayKeepDiagnostics reports whether a statement may not have cleared the diagnostics of the one
// before it: MariaDB's do so only if they use a table. The last statement of a text with several
// may keep those of an earlier one.
func (u *unit) mayKeepDiagnostics() bool {
	switch {
	case u.failed || u.ok.Warnings > 0:
		return false
	case u.effects.Has(myscan.EffMulti):
		return u.warned || u.effects.Has(myscan.EffDiag) || u.c.p.facts.mariadb
	case u.verb == myscan.VerbDiagnose:
		return true
	case !u.c.p.facts.mariadb:
		return false
	}
	verb := u.verb
	if u.cmd == mywire.ComStmtPrepare {
		verb = u.st.info.Verb // as if it ran
	}
	switch verb {
	case myscan.VerbInsert, myscan.VerbReplace, myscan.VerbUpdate, myscan.VerbDelete, myscan.VerbTable, myscan.VerbLoad:
		return false
	case myscan.VerbSelect, myscan.VerbSet, myscan.VerbDo:
		return !u.readsTable
	}
	return true
}

// noteTables records whether a statement reads a table, if that matters for what it leaves.
func (u *unit) noteTables(sql string, mode myscan.Mode) {
	if u.c.diag.last.left() && len(sql) <= maxScanned {
		var t myscan.Text
		t.Read(sql, mode)
		u.readsTable = t.ReadsTable()
	}
}

// onlySets reports whether a statement leaves a session without diagnostics as it was.
func (u *unit) onlySets() bool {
	if u.verb != myscan.VerbSet || u.failed || u.ok.Warnings > 0 || u.effects.Has(hidesIDEffects) {
		return false
	}
	sql := u.asText()
	return sql != "" && !strings.Contains(strings.ToLower(sql), "select")
}

// asText returns the unit's text, or "" if it is not kept.
func (u *unit) asText() string {
	if u.st != nil {
		return u.st.sql
	}
	return text(u.raw[min(len(u.raw), mywire.HeaderLen+1):])
}

// grouped records a write that ran in a group; id is the one in the client's answer.
func (l *lastStatement) grouped(u *unit, id uint64, warnings uint16) {
	l.shared(u)
	l.warnings = warnings
	switch {
	case id != 0:
		l.sharedID(u, id)
	case u.rows > 0 && (u.verb == myscan.VerbInsert || u.verb == myscan.VerbReplace):
		l.loseID() // RETURNING does not report it
	}
}

// sharedID records the id in the answer to a write that ran beside others.
func (l *lastStatement) sharedID(u *unit, id uint64) {
	if u.generated {
		l.setID(id)
		return
	}
	l.loseID() // the client may have supplied it
}

// forget is for an error of weir's own.
func (dg *diagnostics) forget() {
	dg.last.clear()
	dg.last.failed, dg.last.spread, dg.last.on, dg.last.ran = true, true, nil, true
}

// lost records that the connection of a backend is lost, with the diagnostics of the last
// statement if they were there.
func (dg *diagnostics) lost(b *backend) {
	if l := &dg.last; l.on == b {
		l.on, l.found, l.spread, l.soft = nil, nil, true, false
	}
}

// keepID marks a backend that the client gives back as the only one that knows the client's id,
// if it is.
func (dg *diagnostics) keepID(b *backend) {
	if dg.last.idBackend == b {
		b.idOwner = dg.c
	} else if b.idOwner == dg.c {
		b.idOwner = nil
	}
}

// saveID queries the id that only this connection knows, before another client writes here.
func (lt *leftDiagnostics) saveID(to *client) {
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
			return // the client's id is a newer one
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

// saveIDAndClose queries, on a connection that is to be closed, the id that only it knows. It
// reports whether the query is in flight: its answer ends the connection.
func (lt *leftDiagnostics) saveIDAndClose() bool {
	b, c := lt.b, lt.idOwner
	switch {
	case c == nil || c.s.Closed || c.diag.last.idBackend != b:
		return false // no client needs it
	case b.s.Closed || b.Depth() > 0 || b.p.l.Draining() || !b.p.l.srv.Monitor.Goes(b.Endpoint):
		return false // nor would it be waited for
	}
	b.p.Claim(b)
	b.Mode, b.Doomed, b.Leaving = core.ModeOwn, true, true
	lt.saveID(nil)
	return true
}

// hidesIDEffects are the effects of statements that may set LAST_INSERT_ID() without reporting
// it, or read it invisibly.
const hidesIDEffects = myscan.EffSetLastID | myscan.EffUnknownFunc | myscan.EffUnknown | myscan.EffMulti | myscan.EffLoad

// hidesID reports whether a statement that is about to run may leave another LAST_INSERT_ID()
// than the one in its answer: a statement that changes it invisibly, or an INSERT with an id
// that the client supplies. A connection has the client's id after such a statement only if it
// had it before.
func (dg *diagnostics) hidesID(verb myscan.Verb, effects myscan.Effect, to target, generated bool) bool {
	switch {
	case effects.Has(hidesIDEffects):
		return true
	case generated || verb != myscan.VerbInsert && verb != myscan.VerbReplace:
		return false
	}
	return !dg.withoutID(to)
}

// showsDiagnostics reports whether a statement only shows the diagnostics of the one before.
// weir must not send anything between the two.
func showsDiagnostics(info *myscan.Statement) bool {
	return info.Verb == myscan.VerbShow && info.Count == 1 && info.Effects.Has(myscan.EffDiag) && !info.Effects.Has(myscan.EffUnknown)
}

// plainQuestion reports whether a text reads diagnostics, but no table and no user-defined
// function: it has no other effects, whatever the catalogue says.
func plainQuestion(sql string, info *myscan.Statement) bool {
	return info.Verb == myscan.VerbSelect && info.Count == 1 && info.Effects.Has(myscan.EffDiag) &&
		!info.Effects.Has(hidesIDEffects) && !strings.Contains(strings.ToLower(sql), "from")
}

// overwrites refuses a statement that reads the diagnostics of the client's last one on this
// connection, if weir would have to set LAST_INSERT_ID() first, which overwrites them. It
// reports whether it did.
func (dg *diagnostics) overwrites(sql string, info *myscan.Statement, hidesID bool) bool {
	c := dg.c
	b := c.link
	if !hidesID || !info.Effects.Has(myscan.EffDiag) || asksItself(sql, info) || b.lastUser != c || dg.last.on != b || b.hasIDOf(c) {
		return false
	}
	c.pins.add(pinDiag)
	c.responder.refuseHere(dg.gone("what the last statement left"))
	return true
}

// withoutID reports whether a write goes to a table that certainly generates no ids.
func (dg *diagnostics) withoutID(to target) bool {
	c := dg.c
	if c.pins.held&pinTemp != 0 || !to.one {
		return false
	}
	f := c.p.tables.look(c.p, to.in, to.schema, to.table)
	return f.state == tablePlain && !f.Counts()
}

// prepare sets LAST_INSERT_ID() on the client's backend if a statement about to run there needs
// it. It returns false if the client has to wait.
func (dg *diagnostics) prepare(info *myscan.Statement, hidesID bool) (ready bool) {
	c := dg.c
	b := c.link
	if (hidesID || info.Effects.Has(myscan.EffLastID)) && !b.hasIDOf(c) {
		if !dg.known() {
			return false // the client is resumed after the query
		}
		b.setLastID(strconv.FormatUint(dg.last.id, 10))
		b.noteIDOf(c)
	}
	return true
}

// refuses answers a query for diagnostics that are lost, or that weir itself has, and reports
// whether it did.
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
		c.responder.refuseHere(dg.gone("LAST_INSERT_ID()"))
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
			// Setting the id overwrites the other.
			c.pins.add(pinDiag)
			c.responder.refuseHere(dg.gone("what the last statement left"))
			return true
		}
		lower := strings.ToLower(sql)
		if dg.last.probed && strings.Contains(lower, "row_count") || dg.last.found != b && strings.Contains(lower, "found_rows") {
			c.pins.add(pinDiag)
			c.responder.refuseHere(dg.gone("a number of rows"))
			return true
		}
		if b.warned != c && dg.last.warnings == 0 && !dg.last.failed && asksForWarnings(sql, info) {
			b.ask(noWarnings, func(*unit) {}) // existing ones may be another client's
		}
		return false
	}
	l := &dg.last
	switch {
	case l.stash != nil && cmd == mywire.ComQuery && (sql == l.stashOf || isShowWarnings(sql) && l.stashOf == showWarnings):
		c.reply(l.stash)
		if l.stashOf != showWarnings {
			l.stash, l.on, l.found, l.spread = nil, nil, nil, true // this one has overwritten it
			l.warnings = max(l.warnings, l.stashWarnings)
		}
		return true
	case l.warnings == 0 && !l.failed && info.Verb == myscan.VerbShow:
		if c.link != nil {
			c.link.ask(noWarnings, func(*unit) {}) // existing ones may be another client's
		}
		return false
	case c.link == nil && l.on != nil && l.on.lastUser == c && l.on.Mode == core.ModeFree && !l.on.s.Closed:
		return false // still there; take prefers that backend
	}
	if dg.asksRows == sql { // it was not enough to run its statements alone
		c.pins.add(pinDiag)
	}
	dg.asked(cmd, sql)
	c.responder.refuseHere(dg.gone("what the last statement left"))
	return true
}

// noWarnings clears a connection's warnings, and its answer reports the changes of session
// state that are still unreported. A statement without a table would not clear MariaDB's
// warnings.
const noWarnings = "DO (SELECT 0 FROM (SELECT 0) AS weir)"

// newRows returns a statement that clears a connection's warnings, and sets FOUND_ROWS() as in
// a new session.
func (f *poolFacts) newRows() string {
	if f.mariadb {
		return "SELECT 0 FROM (SELECT 0) AS weir" // FOUND_ROWS() is 1
	}
	return "SELECT 0 FROM (SELECT 0) AS weir LIMIT 0" // FOUND_ROWS() is 0
}

// gone is the error for a client that reads overwritten diagnostics.
func (dg *diagnostics) gone(what string) *mywire.Error {
	if mode := dg.c.l.cfg.Mode; mode != session.ModeAuto {
		return mywire.NewError(mywire.ErrNotSupportedYet,
			"weir: %s was not kept, for its connection has served others since: use --mode auto, which keeps it for sessions that ask for it, or --mode session", what)
	}
	return mywire.NewError(mywire.ErrNotSupportedYet,
		"weir: %s was not kept, for its connection has served others since; from now on it is kept for this session: run both statements again, or use --mode session", what)
}

// goneUnread is gone for a text that is passed on unread: the server has a part of it, so that
// the session ends, in every mode.
func goneUnread(what string) *mywire.Error {
	return mywire.NewError(mywire.ErrNotSupportedYet,
		"weir: %s was not kept, for its connection has served others since; a part of this text is at the server already, so the session ends: ask for it in a text of its own, or use --mode session", what)
}

// asksItself reports whether a text reads the diagnostics of a statement in the same text.
func asksItself(sql string, info *myscan.Statement) bool {
	if info.Count < 2 || info.First.Has(myscan.EffDiag) {
		return false
	}
	switch info.Verb {
	case myscan.VerbSelect:
		return true
	case myscan.VerbInsert, myscan.VerbReplace, myscan.VerbUpdate, myscan.VerbDelete:
		return !strings.Contains(strings.ToLower(sql), "found_rows") // which they do not change
	}
	return false
}

// asksForWarnings reports whether a text reads only the warnings of the last statement.
func asksForWarnings(sql string, info *myscan.Statement) bool {
	if info.Verb == myscan.VerbShow {
		return true
	}
	lower := strings.ToLower(sql)
	return !strings.Contains(lower, "row_count") && !strings.Contains(lower, "found_rows")
}

// diagnostics are what a client may query about its last statements: LAST_INSERT_ID(),
// warnings, numbers of rows, sequences and GTIDs.
type diagnostics struct {
	c *client

	softIn    *pool // in whose softDiagnostics it is
	draws     bool  // it may have used a sequence
	wroteGTID bool  // one of its transactions has a GTID
	last      lastStatement
	asks      bool   // it reads warnings
	asksRows  string // the text in which it reads a number of rows; "" if it does not
	// keepsIDs: it has asked for a LAST_INSERT_ID() that was lost. Its writes with ids of its
	// own join no groups.
	keepsIDs bool
}

// generatesID reports whether an INSERT of the client, which is read in the given settings,
// certainly gets a generated id.
func (dg *diagnostics) generatesID(in *session.Set, ins *myscan.InsertShape) bool {
	c := dg.c
	f := c.p.tables.look(c.p, in, ins.Schema, ins.Table)
	return f.state == tablePlain && f.Counts() && f.Generates(ins) && !ins.Returning // whose answer does not report it
}
