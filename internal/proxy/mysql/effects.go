package mysql

import (
	"slices"
	"strings"

	"github.com/weirdb/weir/internal/proxy/sqlscan"
	"github.com/weirdb/weir/internal/proxy/sqlscan/myscan"
	"github.com/weirdb/weir/internal/wire/mywire"
)

// A route is how a statement outside a transaction is run.
type route uint8

const (
	routeAlone route = iota // on a backend of the client's own
	routeRead               // may be pipelined with reads of others
	routeWrite              // may join a group
)

// batchable are the effects that a grouped write may have. It reads no settings:
// a lane's connections have some of their own.
const batchable = myscan.EffWrites

func routeOf(info *myscan.Statement) route {
	switch {
	case info.Count != 1 || info.Effects.Has(myscan.EffUnknown|myscan.EffMulti):
		return routeAlone
	case info.ReadOnly() && !info.Effects.Has(myscan.EffSleep|myscan.EffWeirShow|myscan.EffStatementSet):
		return routeRead
	}
	switch info.Verb {
	case myscan.VerbInsert, myscan.VerbReplace, myscan.VerbUpdate, myscan.VerbDelete:
		if info.Effects&^batchable == 0 {
			return routeWrite
		}
	}
	return routeAlone
}

// A change is what must be looked at when a unit's answer has come.
type change uint16

const (
	changeState            change = 1 << iota // the server says that something of the session has changed
	changeNames                               // SET NAMES, SET CHARACTER SET
	changeTimestampDefault                    // SET timestamp = DEFAULT
	changeUnlock                              // UNLOCK TABLES and the like
	changeReleaseAll                          // RELEASE_ALL_LOCKS()
	changeReleaseOne                          // RELEASE_LOCK()
	changeDeallocate                          // DEALLOCATE PREPARE
	changeXAEnd                               // XA COMMIT, XA ROLLBACK
	changeQuit                                // the server hangs up afterwards
	changeSessions                            // new sessions may be otherwise
)

// note records what a statement that is about to be sent may do.
func (c *client) note(u *unit, sql string, info *myscan.Statement) {
	u.verb, u.effects = info.Verb, info.Effects
	c.draws = c.draws || info.Effects.Has(drawing)
	c.pins &^= pinFoundRows
	c.addPins(pinsOf(info.Effects))
	if info.Effects.Has(myscan.EffSetGlobal|myscan.EffDDL|myscan.EffAdmin) && changesSessions(sql, info.Effects) {
		u.change |= changeSessions
	}
	if info.Effects.Has(myscan.EffDiag | myscan.EffSessionRead | myscan.EffSequence | myscan.EffSequenceRead) {
		c.noteReads(sql, info)
	}
	if info.Effects.Has(myscan.EffSet) {
		c.noteSet(u, info)
		c.noteUntold(u, info)
	}
	if info.Effects.Has(myscan.EffUnknownFunc) && info.Effects.Has(myscan.EffUserVarRead) {
		c.addPins(pinUserVar) // perhaps it is for a result
	}
	switch info.Verb {
	case myscan.VerbXA:
		if words := strings.Fields(plainText(strings.ToLower(sql))); len(words) > 1 && info.Count == 1 && (words[1] == "commit" || words[1] == "rollback") {
			u.change |= changeXAEnd
		}
	case myscan.VerbPrepare:
		if name := strings.ToLower(info.Name); !slices.Contains(c.named, name) {
			c.named = append(c.named, strings.Clone(name))
		}
	case myscan.VerbDeallocate:
		u.change |= changeDeallocate
		name := strings.ToLower(info.Name)
		c.named = slices.DeleteFunc(c.named, func(have string) bool { return have == name })
	case myscan.VerbUnlock:
		if strings.Contains(strings.ToLower(sql), "table") { // not INSTANCE, not a BACKUP lock
			u.change |= changeUnlock
		}
	}
	if info.Effects.Has(myscan.EffTableLock) {
		if info.Verb == myscan.VerbLock || info.Verb == myscan.VerbAdmin || info.Count != 1 {
			c.noteTableLocks(info)
		}
	}
	c.noteReached(info.Effects, sql)
	if info.Effects.Has(myscan.EffQuit) || info.Effects.Has(myscan.EffTxEnd) && c.releases(sql, info) {
		u.change |= changeQuit
	}
	if info.Effects.Has(myscan.EffLock | myscan.EffRelease) {
		c.noteLocks(u, sql)
	}
}

// releases tells whether the end of a transaction ends the connection as well,
// because the client has set completion_type so.
func (c *client) releases(sql string, info *myscan.Statement) bool {
	s, _ := c.set.Get("completion_type")
	return (s.Value == "RELEASE" || s.Value == "2") && !info.Effects.Has(myscan.EffTxBegin) && !strings.Contains(strings.ToLower(sql), "release")
}

// drawing are the effects of statements that may use a sequence, be it in the DEFAULT of
// a column.
const drawing = myscan.EffWrites | myscan.EffSequence | myscan.EffLoad | myscan.EffUnknownFunc | myscan.EffUnknown | myscan.EffMulti

// noteReads pins a session that asks for what its connection alone knows.
func (c *client) noteReads(sql string, info *myscan.Statement) {
	if info.Effects.Has(myscan.EffDiag) {
		c.addPins(pinDiag)
	}
	if info.Effects.Has(myscan.EffSessionRead) && strings.Contains(strings.ToLower(sql), "connection_id") {
		c.addPins(pinConnection) // so that a KILL of that number finds it
	}
	if info.Effects.Has(myscan.EffSequenceRead) {
		c.p.keepSequences = true
	}
	if info.Effects.Has(myscan.EffSequence) && (c.pins != 0 || c.inTx()) {
		c.link.sequencer = c // as long as it keeps the connection
	}
}

// noteSet looks at what SET assigns for what the server's own report leaves
// open.
func (c *client) noteSet(u *unit, info *myscan.Statement) {
	for a := range info.Set.All() {
		switch {
		case a.Name == "names" || a.Name == "character set":
			u.change |= changeNames
			if a.Collate != "" {
				u.collation = strings.Clone(strings.Trim(a.Collate, "'\"`"))
			}
		case a.Name == "character_set_connection":
			u.change |= changeNames
		case a.Scope == myscan.ScopeSession && strings.HasPrefix(a.Name, "session_track_"):
			// Of which variables the server tells decides whether it tells of this.
			c.choseVariables = c.choseVariables || a.Name == "session_track_system_variables"
			c.choseChanges = c.choseChanges || a.Name == "session_track_state_change"
			c.addPins(pinTrack)
			c.link.Doomed = true
		case a.Name == "timestamp" && a.Kind == myscan.ValueDefault:
			u.change |= changeTimestampDefault
		}
	}
}

// settled takes note of the answer to a command of the linked client.
func (c *client) settled(b *backend, u *unit) {
	if u.failed {
		c.failed(b, u)
	} else {
		c.succeeded(u)
	}
	c.noteOutcome(u)
	c.settledUntold(b, u)
	if u.refused() {
		return
	}
	if u.effects.Has(myscan.EffDDL) {
		c.l.srv.eachPool(c.l, (*pool).forgetSchema)
	}
	switch {
	case u.change&changeSessions == 0:
	case u.failed:
		c.l.renewSoon = true // a part of it may have been done
	default:
		c.l.srv.renew(c.l)
	}
}

// refused tells whether the server has done nothing of a statement: it could not
// read it, or the user may not do that. What did fail otherwise may have been done
// in part, such as a GRANT to several accounts.
func (u *unit) refused() bool {
	if !u.failed || u.effects.Has(myscan.EffMulti) {
		return false
	}
	switch u.code {
	case mywire.ErrAccessDenied, mywire.ErrDBAccessDenied, mywire.ErrSyntax, errTableAccessDenied, errColumnAccessDenied,
		errUnknownVariable, errGlobalVariable, errLocalVariable, errReadOnlyVariable, errWrongValue, errWrongType,
		errSpecificAccessDenied, errRoutineAccessDenied:
		return true
	}
	return false
}

// The server's numbers for what it refuses to do.
const (
	errColumnAccessDenied   = 1143
	errGlobalVariable       = 1229
	errLocalVariable        = 1228
	errReadOnlyVariable     = 1238
	errRoutineAccessDenied  = 1370
	errSpecificAccessDenied = 1227
	errTableAccessDenied    = 1142
	errUnknownVariable      = 1193
	errWrongType            = 1232
	errWrongValue           = 1231
)

// keptStatus are the flags that say something of the session.
const keptStatus = mywire.StatusInTrans | mywire.StatusAutocommit | mywire.StatusInTransReadOnly |
	mywire.StatusNoBackslashEscapes | mywire.StatusANSIQuotes

func (c *client) succeeded(u *unit) {
	began := c.inTx()
	if u.tellsStatus() {
		c.status = u.ok.Status & keptStatus
	}
	c.last.note(u)
	switch {
	case u.effects.Has(myscan.EffMulti): // what one statement of it releases, the next may take
	case u.change&changeTimestampDefault != 0:
		c.pins &^= pinTimestamp
	case u.change&changeUnlock != 0:
		c.tablesUnlocked(lockedTables | lockedServer)
	case u.change&changeReleaseAll != 0:
		c.pins &^= pinLock
		c.locks = c.locks[:0]
	case u.change&changeReleaseOne != 0:
		c.askLocks()
	}
	if u.verb == myscan.VerbBegin {
		c.tablesUnlocked(lockedTables) // implicitly
	}
	if len(c.named) == 0 && u.change&changeDeallocate != 0 {
		c.pins &^= pinPrepare
	}
	if c.pins&pinNextTx != 0 && !u.effects.Has(myscan.EffNextTx) && !c.inTx() && (began || u.wasTransaction()) {
		c.pins &^= pinNextTx
	}
	if u.change&changeXAEnd != 0 {
		c.pins &^= pinXA
	}
	// A text without such a word that changed something beyond settings called
	// a function or procedure that did, or a trigger.
	if u.change&changeState != 0 && (u.effects.Has(myscan.EffUnknownFunc) || u.effects == myscan.EffWrites) {
		c.addPins(pinFunction)
	}
	if u.effects.Has(myscan.EffUnknownFunc) && !c.p.facts.tellsInResults && u.answersWithRows() {
		c.addPins(pinFunction) // without CLIENT_DEPRECATE_EOF most servers do not tell in a result
	}
}

// answersWithRows tells whether an answer may have been one of rows.
func (u *unit) answersWithRows() bool {
	switch u.verb {
	case myscan.VerbInsert, myscan.VerbReplace, myscan.VerbUpdate, myscan.VerbDelete, myscan.VerbDo, myscan.VerbSet:
		return u.rows > 0
	case myscan.VerbCall:
		return false // its own end is an OK
	}
	return true
}

// wasTransaction tells whether a statement that has left no transaction certainly
// was one, or ended one. One that reads only constants is none.
func (u *unit) wasTransaction() bool {
	switch u.verb {
	case myscan.VerbCommit, myscan.VerbRollback:
		return true
	case myscan.VerbInsert, myscan.VerbReplace, myscan.VerbUpdate, myscan.VerbDelete:
		return u.ok.AffectedRows > 0
	}
	return false
}

// failed takes note of an ERR, which says nothing of the transaction. Where it
// may have ended one, or begun one, the server is asked.
func (c *client) failed(b *backend, u *unit) {
	c.stats.errors++
	c.last.fail(u)
	if u.effects.Has(myscan.EffUnknownFunc) && !neverRan(u) {
		c.addPins(pinFunction) // what it has changed until then is told by nothing
	}
	if c.inTx() || !c.autocommit() || !plainVerb(u) {
		c.probe(b)
	}
}

// neverRan tells whether a statement failed before anything of it was done.
func neverRan(u *unit) bool {
	if u.effects.Has(myscan.EffMulti) || u.verb == myscan.VerbCall || u.verb == myscan.VerbExecute {
		return false
	}
	return u.code == mywire.ErrSyntax || u.code == errNoSuchRoutine
}

// errNoSuchRoutine is ER_SP_DOES_NOT_EXIST.
const errNoSuchRoutine = 1305

// plainVerb tells whether a failed statement outside a transaction certainly
// leaves none.
func plainVerb(u *unit) bool {
	if u.effects.Has(myscan.EffUnknown | myscan.EffMulti | myscan.EffUnknownFunc | myscan.EffTxBegin | myscan.EffSet | myscan.EffXA) {
		return false
	}
	return u.cmd == mywire.ComQuery || u.cmd == mywire.ComStmtExecute || u.cmd == mywire.ComStmtPrepare
}

// probe asks the server for the state of the transaction.
func (c *client) probe(b *backend) {
	c.probing, c.last.probed = true, true
	u := b.hidden(mywire.ComPing, func(u *unit) {
		c.probing = false
		if u.err == nil {
			c.status = u.ok.Status & keptStatus
		}
		c.resume()
	})
	u.probe = true
	b.s.Out = mywire.AppendPing(b.s.OutBuf())
}

// forgetSchema forgets what was known of tables and statements.
func (p *pool) forgetSchema() {
	p.tables.forget()
	p.forgetAnswers()
	p.catalog.stale = true
}

// complain warns once per session about a hint that cannot be used. MySQL has no
// notices, so the operator is told.
func (c *client) complain(h *sqlscan.Hints) {
	for _, msg := range h.Bad {
		c.l.BadHints++
		if c.noticed[msg] || len(c.noticed) >= 32 {
			continue
		}
		if c.noticed == nil {
			c.noticed = make(map[string]bool)
		}
		c.noticed[strings.Clone(msg)] = true
		c.l.srv.Log.Warn("hint ignored", "client", c.addr, "user", c.p.key.user, "database", c.p.key.database, "hint", msg)
	}
}
