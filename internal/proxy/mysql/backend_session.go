package mysql

import (
	"fmt"

	"github.com/weirdb/weir/internal/proxy/session"
	"github.com/weirdb/weir/internal/wire/mywire"
)

// A backendSession is a backend's session on the server: its settings, and their change to
// those of another client.
type backendSession struct {
	b         *backend
	set       *session.Set // its settings when the queue is empty
	step      uint64       // auto_increment_increment of a session that has not set it
	maxPacket int          // max_allowed_packet, fixed for the lifetime of the connection
	listed    int          // max_error_count of a session that has not set it
	shows     bool         // its owner's session_track_system_variables is in effect: see tracked_variables.go

	began   mywire.Status // status of the login; in MySQL, autocommit is what the session reported when queried
	asked   bool          // that query was answered
	role    string        // the active role after the login
	renewed bool          // the session has been reset since
}

// adjustAutocommit handles a session that began with another autocommit than the pool knows:
// the server's global value has changed, so the session's settings differ.
func (f *backendSession) adjustAutocommit() {
	base, known := f.b.p.facts.base["autocommit"]
	_, own := f.set.Get("autocommit")
	if !known || own || f.renewed || !f.b.p.facts.mariadb && !f.asked {
		return
	}
	if autocommits(f.began) == isOff(base) {
		f.set = f.b.p.settings.With(f.set, autocommitOf(f.began))
	}
}

// noteAutocommit records with which autocommit the session began if the login did not report
// it: MySQL's answers to logins and resets set the flag whatever the setting is.
func (f *backendSession) noteAutocommit(value string) {
	b := f.b
	f.asked, f.began = true, f.began&^mywire.StatusAutocommit
	if !isOff(value) {
		f.began |= mywire.StatusAutocommit
	}
	base, known := b.p.facts.base["autocommit"]
	if !known || isOff(base) == isOff(value) {
		return
	}
	if b.owner != nil {
		b.Doomed = true // it does not run in its client's settings
	}
	f.adjustAutocommit()
	b.p.l.srv.renew(b.p.l)
}

func autocommits(s mywire.Status) bool { return s&mywire.StatusAutocommit != 0 }

// autocommitOf returns the setting of a session in the given status.
func autocommitOf(s mywire.Status) session.Setting {
	value := "0"
	if autocommits(s) {
		value = "1"
	}
	return session.Setting{Name: "autocommit", Value: value, Literal: true}
}

// introduce prepares a new or reset session: it makes the server report all changes. On the
// first one it also queries the facts about the server.
func (f *backendSession) introduce() {
	b := f.b
	p := b.p
	b.ask(trackSQL, b.tracked)
	role := "''"
	if p.facts.hasRoles() {
		role = "CURRENT_ROLE()"
	}
	again := f.renewed
	b.ask("SELECT @@auto_increment_increment, @@max_allowed_packet, @@autocommit, @@max_error_count, "+role, func(u *unit) {
		if !p.facts.mariadb {
			b.reportsInResults(u)
		}
		if rows := u.result(p.key.caps); len(rows) == 1 && len(rows[0]) == 5 {
			f.step, f.maxPacket = parseUint(rows[0][0]), int(min(parseUint(rows[0][1]), 1<<30))
			f.listed = int(parseUint(rows[0][3]))
			if !again && !p.facts.mariadb {
				f.noteAutocommit(string(rows[0][2]))
			}
			if !again {
				f.role = string(rows[0][4])
			} else if f.role != string(rows[0][4]) {
				b.Doomed = true // a client has set one, maybe invisibly, and no reset ends it
				if c := b.owner; c != nil {
					c.pins.add(pinRole)
				}
			}
			b.greeted = true
			p.Works()
			return
		}
		b.Doomed = true
	})
	b.ask(lockSQL, p.alone.learnLocks)
	if !p.facts.known || !again && p.facts.askNext {
		p.facts.askNext = false
		if p.facts.mariadb {
			b.ask(fixedSQL, func(u *unit) { p.facts.learnFixed(u.result(p.key.caps)) })
			b.ask(resultCanary, b.reportsInResults)
			b.ask(confusionCanary, b.confuses)
			// The server reports the restored settings with the next reported change, and weir
			// would attribute them to a client's statement.
			b.ask(trackSQL, func(*unit) {})
		}
		b.ask(factsSQL(p.facts.mariadb), p.learn)
		b.ask(noWarnings, func(*unit) {}) // of information_schema, and of its effect on the current database
		b.endLook()
	}
	if k := p.catalogue; (!k.known || k.stale) && k.loading == 0 {
		k.load(b)
	}
}

// prepare changes a taken backend's settings to set, which costs a round trip, and then calls
// then. Nothing may be sent behind the commands before they are answered: if the server refuses
// the settings, a statement would run in those of another client. After an error the backend is
// closed when it is released.
func (f *backendSession) prepare(set *session.Set, then func(err *mywire.Error)) {
	b := f.b
	b.Held = true
	l, p := b.p.l, b.p
	steps := f.transition(f.set, set)
	f.set = set
	p.Stats.Replays++
	var failure *mywire.Error
	left := len(steps)
	finish := func(u *unit) {
		if u.err != nil && failure == nil {
			failure = u.err
		}
		if left--; left > 0 {
			return
		}
		b.Doomed = b.Doomed || failure != nil
		l.Post(func() { // after the current answer is processed
			b.Held = false
			then(failure)
		})
	}
	for _, st := range steps {
		b.hidden(st.cmd, finish)
		b.s.Out = mywire.AppendCommand(b.s.OutBuf(), st.cmd, st.arg)
	}
	b.lastUser = nil
}

// readied changes a taken backend's settings to set, and prepares st there unless it is nil;
// then it calls then. If the backend is closed by then, then gets an error: nothing was sent
// that could not be sent to another one.
func (f *backendSession) readied(set *session.Set, st *stmt, then func(b *backend, err *mywire.Error)) {
	b := f.b
	if b.s.Closed { // it closed right behind the answer that made it ready
		then(b, errLostUnsent())
		return
	}
	if f.set != set {
		if !reachable(f.set, set, b.p.key.database) {
			if b.idOwner != nil { // the id that only it knows must survive it
				b.Held = true
				b.saveID(nil)
				b.ask(noWarnings, func(*unit) {
					b.p.l.Post(func() { // after the current answer is processed
						b.Held = false
						f.readied(set, st, then)
					})
				})
				return
			}
			b.Goodbye()
			then(b, mywire.NewError(mywire.ErrUnknown, "weir: a connection that has a current database cannot be one without"))
			return
		}
		f.prepare(set, func(err *mywire.Error) {
			if err != nil {
				then(b, refused(err))
				return
			}
			f.readied(set, st, then)
		})
		return
	}
	if st == nil || b.prepared[st] != nil {
		then(b, nil)
		return
	}
	b.Held = true
	b.learn(st, func(err *mywire.Error) {
		b.p.l.Post(func() { // after the current answer is processed
			b.Held = false
			if err == nil {
				f.readied(set, st, then)
				return
			}
			then(b, err)
		})
	})
}

// become changes the settings behind the units in flight, for the connection's owner. It closes
// the connection if that fails, since the next command would run in other settings.
func (f *backendSession) become(set *session.Set) {
	from := f.set
	f.set = set
	f.visit(from, set, func(e *mywire.Error) {
		if !f.b.s.Closed {
			f.b.fail(fmt.Errorf("restore the settings of a session: %w", e))
		}
	})
}

// visit changes the settings from one set to another, and calls failed on an error.
func (f *backendSession) visit(from, to *session.Set, failed func(e *mywire.Error)) {
	b := f.b
	for _, st := range f.transition(from, to) {
		b.hidden(st.cmd, func(u *unit) {
			if u.err != nil {
				failed(u.err)
			}
		})
		b.s.Out = mywire.AppendCommand(b.s.OutBuf(), st.cmd, st.arg)
	}
}

// readingAs returns the backend's settings with those that determine how a text is read taken
// from set.
func (f *backendSession) readingAs(set *session.Set) *session.Set {
	var list []session.Setting
	for _, s := range f.set.List() {
		if !affectsReading(s.Name) {
			list = append(list, s)
		}
	}
	for _, s := range set.List() {
		if affectsReading(s.Name) {
			list = append(list, s)
		}
	}
	return f.b.p.settings.Intern(list)
}

// renewSession resets the session.
func (f *backendSession) renewSession() {
	b := f.b
	b.hidden(mywire.ComResetConnection, func(u *unit) { b.Doomed = b.Doomed || u.err != nil })
	b.s.Out = mywire.AppendResetConnection(b.s.OutBuf())
	f.afterReset()
	f.introduce()
}

// afterReset clears what a COM_RESET_CONNECTION in flight resets, and prepares the session as a
// login does.
func (f *backendSession) afterReset() {
	b := f.b
	clear(b.prepared)
	b.textBytes, f.shows, f.renewed = 0, false, true
	db, other := f.set.Get(databaseSetting)
	f.set = b.p.settings.Empty()
	if other {
		f.set = b.p.settings.With(f.set, db) // the reset keeps the database
	}
	b.lastUser, b.idOwner, b.sameID, b.sequencer = nil, nil, nil, nil
	name := b.p.key.database
	if other {
		name = db.Value
	}
	if name != "" {
		// MariaDB's reset keeps the database, but takes the server's collation for the
		// database's.
		b.hidden(mywire.ComInitDB, func(u *unit) { b.Doomed = b.Doomed || u.err != nil })
		b.s.Out = mywire.AppendCommand(b.s.OutBuf(), mywire.ComInitDB, name)
	}
	if base := b.p.facts.base; base != nil {
		// Settings of a login that a reset may change.
		b.ask(baseSQL(base), func(u *unit) { b.Doomed = b.Doomed || u.err != nil })
	}
	if sql := b.p.facts.initConnect; sql != "" { // several statements fail if the class does not allow them
		b.ask(sql, func(u *unit) { b.Doomed = b.Doomed || u.err != nil })
	}
}
