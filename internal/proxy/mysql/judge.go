package mysql

import (
	"fmt"
	"strings"

	"github.com/weirdb/weir/internal/proxy/mysql/catalogue"
	"github.com/weirdb/weir/internal/proxy/session"
	"github.com/weirdb/weir/internal/proxy/sqlscan/myscan"
	"github.com/weirdb/weir/internal/wire/mywire"
)

// This file combines the effects that a statement's text shows with what the catalogue knows
// about the names in it.

// reachMask are the effects of a prepared text that apply to its execution.
const reachMask = pinEffects | myscan.EffSet | myscan.EffSetBare | myscan.EffUnknownFunc | myscan.EffSetLastID | myscan.EffDDL | myscan.EffLockUnseen

// databaseOf returns the database of a session with the given settings.
func (k poolKey) databaseOf(set *session.Set) string {
	if s, ok := set.Get(databaseSetting); ok {
		return s.Value
	}
	return k.database
}

// reach adds to a text's effects those of the objects that it names. It returns false if the
// catalogue is not ready.
func (tx *texts) reach(sql string, info *myscan.Statement) (ready bool) {
	c := tx.c
	if !sharesNothing(c) {
		return tx.follow(sql, info)
	}
	if c.p.facts.groupsSessions() {
		all := *info
		ready := tx.follow(sql, &all)
		info.Effects |= joined(all.Effects, ready)
	}
	return true
}

// follow is reach for pools whose sessions share connections.
func (tx *texts) follow(sql string, info *myscan.Statement) (ready bool) {
	c := tx.c
	k := c.p.catalogue
	k.used = true
	if info.Verb == myscan.VerbPrepare || info.Verb == myscan.VerbExecute {
		tx.reachPrepared(sql, info)
	}
	switch {
	case !k.ready():
	case len(sql) <= maxScanned:
		info.Effects |= k.index.Reach(tx.asRead(sql), info, c.p.key.databaseOf(c.set))
		return true
	case tx.long.epoch == k.epoch:
		info.Effects |= tx.long.reach
		return true
	}
	return plainText(sql) == "" && !strings.Contains(sql, "!") // otherwise weir has to know the objects
}

// joining are the effects of a statement that may join a resource group.
const joining = myscan.EffGroup | myscan.EffOpaque

// joined returns the effects that matter where sessions share nothing: whether the statement
// may join a resource group. A call that the catalogue does not know may do that.
func joined(e myscan.Effect, ready bool) myscan.Effect {
	if !ready && e.Has(myscan.EffUnknownFunc) {
		e |= myscan.EffOpaque
	}
	return e & joining
}

// sharesNothing reports whether each session of the client's pool keeps its connection.
func sharesNothing(c *client) bool {
	return c.l.cfg.Mode == session.ModeSession || c.p.facts.silent
}

// reachPrepared handles statements that are prepared in SQL: the effects of their text are
// those of their execution. It does not parse a long one, since that would block the loop: such
// a text may do anything.
func (tx *texts) reachPrepared(sql string, info *myscan.Statement) {
	c := tx.c
	var text string
	ok := false
	if len(sql) <= maxScanned {
		text, ok = myscan.PreparedText(sql, tx.mode)
	}
	inner := myscan.Statement{Effects: catalogue.Opaque}
	if ok {
		mode := tx.mode
		mode.Multi = false
		var t myscan.Text
		t.Read(text, mode)
		inner = t.Scan()
		if k := c.p.catalogue; k.ready() {
			inner.Effects |= k.index.Reach(&t, &inner, c.p.key.databaseOf(c.set))
		} else {
			tx.later(text, text, mode, c.set) // as if it ran
		}
	}
	if inner.Effects.Has(myscan.EffLock) {
		inner.Effects |= myscan.EffLockUnseen
	}
	switch {
	case info.Verb == myscan.VerbPrepare:
		tx.namedEffects |= inner.Effects & reachMask
	case ok || strings.Contains(strings.ToLower(sql), "immediate"):
		info.Effects |= inner.Effects & reachMask
	default:
		info.Effects |= tx.namedEffects
	}
}

// reach is texts.reach for a prepared statement, which keeps the result while the catalogue is
// the same.
func (st *stmt) reach(c *client) (ready bool) {
	if !sharesNothing(c) {
		return st.follow(c)
	}
	if c.p.facts.groupsSessions() {
		ready := st.follow(c)
		if st.info.Effects = st.own | joined(st.info.Effects, ready); !ready {
			st.epoch = 0
		}
	}
	return true
}

// follow is reach for pools whose sessions share connections.
func (st *stmt) follow(c *client) (ready bool) {
	k := c.p.catalogue
	k.used = true
	if !k.ready() {
		return false
	}
	if st.epoch != k.epoch || st.epoch == 0 {
		if st.long() {
			return false // see texts.judge
		}
		st.reaches(k.index.Reach(c.l.read(st.sql, st.mode), &st.info, c.p.key.databaseOf(st.set)), k.epoch)
	}
	return true
}

// reaches records the effects of the objects that the statement names, by one version of the
// catalogue.
func (st *stmt) reaches(e myscan.Effect, epoch uint64) {
	st.info.Effects, st.epoch = st.own|e, epoch
	st.route = routeOf(&st.info)
}

// maxUnjudged bounds the texts of a client that are to be judged later.
const maxUnjudged = 16

// An unjudged statement ran, maybe more than once, while the catalogue was not ready.
type unjudged struct {
	sql     string // of one of the texts that are alike
	alike   string // see texts.alike
	mode    myscan.Mode
	db      string // in which it ran
	failed  bool   // ... with an error after it had begun
	changed bool   // the server reported a change of the session
	rows    bool   // it may have answered with rows
}

// alike returns what a text has in common with those that are judged alike: the text itself, or
// without constants if these cannot matter. Otherwise an application that writes its values
// into its texts would soon have more of them than weir keeps.
func (tx *texts) alike(sql string, info *myscan.Statement, mode myscan.Mode) string {
	switch info.Verb {
	case myscan.VerbSelect, myscan.VerbInsert, myscan.VerbReplace, myscan.VerbUpdate, myscan.VerbDelete:
		if info.Count == 1 && len(sql) <= maxScanned {
			if rest, ok := tx.readIn(sql, mode).WithoutConstants(); ok {
				return rest
			}
		}
	}
	return sql
}

// judgeLater keeps a text that is about to run while the catalogue is not ready: weir judges it
// before another client gets the connection. A prepared one keeps the mode and the settings in
// which it was prepared.
func (tx *texts) judgeLater(u *unit, sql string, info *myscan.Statement, mode myscan.Mode, in *session.Set) {
	u.unjudged = tx.later(sql, tx.alike(sql, info, mode), mode, in)
}

// later adds a text to those that are to be judged later, and returns one more than its index,
// or 0 if there are too many.
func (tx *texts) later(sql, alike string, mode myscan.Mode, in *session.Set) int {
	c := tx.c
	db := c.p.key.databaseOf(in)
	for i, o := range tx.unjudged {
		if o.alike == alike && o.mode == mode && o.db == db {
			return i + 1
		}
	}
	if len(tx.unjudged) >= maxUnjudged || len(sql) > maxSharedText {
		c.pins.add(pinOpaque)
		return 0
	}
	tx.unjudged = append(tx.unjudged, unjudged{sql: strings.Clone(sql), alike: strings.Clone(alike), mode: mode, db: db})
	return len(tx.unjudged)
}

// forgetUnjudged drops these texts when the session is reset or has ended. It has the
// connection closed if they may have joined a resource group there, which no reset ends.
func (tx *texts) forgetUnjudged(b *backend) {
	if b != nil && len(tx.unjudged) > 0 && tx.c.pins.joining()&pinOpaque != 0 {
		b.Doomed = true
	}
	tx.unjudged = nil
}

// noteOutcome records how an unjudged statement ended.
func (tx *texts) noteOutcome(u *unit) {
	if u.unjudged == 0 || u.unjudged > len(tx.unjudged) {
		return
	}
	o := &tx.unjudged[u.unjudged-1]
	o.failed = o.failed || u.failed && !neverRan(u)
	o.changed = o.changed || u.change&changeState != 0 || u.rows > 0 && u.effects == myscan.EffWrites && !tx.c.caps.Has(mywire.CapDeprecateEOF)
	o.rows = o.rows || u.answersWithRows()
}

// judged reports whether the effects of all statements of the client are known. If not, it
// loads the catalogue, on the client's own backend unless a load is in progress, and backendQuiet
// is called again after that.
func (tx *texts) judged() bool {
	c := tx.c
	if len(tx.unjudged) == 0 {
		return true
	}
	k := c.p.catalogue
	if k.ready() {
		var t myscan.Text
		for _, o := range tx.unjudged {
			t.Read(o.sql, o.mode)
			info := t.Scan()
			e := k.index.Reach(&t, &info, o.db)
			c.pins.add(pinsOf(e))
			c.pins.noteReached(e)
			if e.Has(myscan.EffUnknownFunc) && (o.failed || o.changed || o.rows && !c.p.facts.reportsInResults) {
				c.pins.add(pinFunction)
			}
		}
		tx.unjudged = nil
		return true
	}
	if k.loading == 0 && c.diag.leftOn(c.link) {
		if c.diag.fetch(nil); c.pins.held != 0 {
			return false // the load would overwrite what cannot be fetched
		}
	}
	k.waiting = append(k.waiting, c)
	if k.loading == 0 {
		k.load(c.link)
	}
	return false
}

// settlesLost judges what ran on a lost connection, before the client's next command: session
// state there is lost, too. It returns false if the command has to wait or the client is
// disconnected.
func (tx *texts) settlesLost() bool {
	c := tx.c
	switch {
	case c.link == nil && !c.p.catalogue.ready():
		c.router.needBackend() // on which the catalogue is loaded
	case c.pins.held&^(pinMode|pinUntracked) == 0 && !tx.judged():
	case c.pins.held&^(pinMode|pinUntracked) != 0:
		c.responder.refuseHere(errLostUnsent())
		c.s.CloseAfterFlush()
	default:
		tx.lost = false
		return true
	}
	return false
}

// noteReached records locks that a statement takes invisibly: without a known name, until all
// are released.
func (ps *pins) noteReached(e myscan.Effect) {
	if e.Has(myscan.EffLockUnseen) && len(ps.locks) < maxLocks {
		ps.locks = append(ps.locks, "")
	}
	if e.Has(myscan.EffTableLock) && ps.tableLocks == 0 {
		ps.tableLocks |= lockedServer
	}
}

// unreported handles a result whose end reports that the session has changed, but not how:
// without CLIENT_DEPRECATE_EOF it has no room for that.
func (b *backend) unreported(u *unit) {
	switch {
	case u.kind == unitHidden:
		u.reported |= reportedState
	case u.kind != unitClient:
	case u.effects == myscan.EffWrites:
		// With a binary log each write has a GTID, which raises the flag, too. What the catalogue
		// knows about the statement must suffice.
	case b.owner != nil && b.owner == u.c:
		u.change |= changeState
	case !looksIntoSchema(u):
		b.Doomed = true // the next client must not get it
	}
}

// looksIntoSchema reports whether a read may have made the server open databases, which it
// reports as a change.
func looksIntoSchema(u *unit) bool {
	return u.verb == myscan.VerbShow || strings.Contains(strings.ToLower(u.asText()), "information_schema")
}

// trackedChanges are the kinds of changes that a server has reported in an answer.
type trackedChanges uint8

const (
	reportedVariable trackedChanges = 1 << iota
	reportedState
)

func (t trackedChanges) has(x trackedChanges) bool { return t&x != 0 }

// noteReported records which changes the answer to a statement of weir's own reports.
func (u *unit) noteReported(state []byte) {
	for len(state) > 0 {
		ch, rest, err := mywire.ParseChange(state)
		if err != nil {
			return
		}
		state = rest
		switch {
		case ch.Kind == mywire.TrackStateChange:
			u.reported |= reportedState
		case ch.Kind == mywire.TrackSystemVariables:
			u.reported |= reportedVariable
			u.reportedVars++
		}
	}
}

// tracked judges the answer to the statement that switches session tracking on: it changes
// settings itself, so the server must report that. A server's version or capabilities prove
// nothing, with proxies and forks in between.
func (b *backend) tracked(u *unit) {
	p := b.p
	if u.err != nil {
		switch u.err.Code {
		case mywire.ErrNetRead, mywire.ErrQueryInterrupted, mywire.ErrQueryTimeout, mywire.ErrMariaStatementTimeout:
			b.Doomed = true // another one will show it
			return
		}
	}
	if u.err == nil && u.reported.has(reportedVariable) || p.facts.silent {
		return
	}
	p.facts.silent = true
	p.l.srv.Log.Warn("the server does not tell of changes of sessions: each session keeps its connection, and nothing is shared or grouped",
		"pool", p.key.String(), "server", p.facts.text, "error", fmt.Sprint(u.err))
}

// resultCanary changes a setting of MariaDB within a statement that answers with rows. MySQL
// needs none: it reports the number of each statement.
const resultCanary = "SET STATEMENT max_error_count=64 FOR SELECT 1"

// reportsInResults records whether the server has reported a change in an answer with rows, or
// at least that there is one.
func (b *backend) reportsInResults(u *unit) {
	if u.reported != 0 {
		b.p.facts.reportsInResults = true
	}
}
