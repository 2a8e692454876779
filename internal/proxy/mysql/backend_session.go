package mysql

import (
	"fmt"

	"github.com/weirdb/weir/internal/proxy/session"
	"github.com/weirdb/weir/internal/wire/mywire"
)

// A backendSession is a backend's session on the server: its settings, and how they change
// to those of another client.
type backendSession struct {
	b         *backend
	set       *session.Set // settings in force when the queue is empty
	step      uint64       // auto_increment_increment of a session without an own one
	maxPacket int          // max_allowed_packet, which lasts as long as the connection
	listed    int          // max_error_count of a session without an own one
	shows     bool         // its owner's session_track_system_variables is in force: see tracked_variables.go

	began   mywire.Status // of the login; of MySQL, autocommit is what the server has said when asked
	asked   bool          // that is so
	role    string        // the one in force after the login
	renewed bool          // the session has been reset since
}

// accord is for a session that began with another autocommit than the pool knows of: the
// server's global value has changed. So its settings are others, too.
func (f *backendSession) accord() {
	base, known := f.b.p.facts.base["autocommit"]
	_, own := f.set.Get("autocommit")
	if !known || own || f.renewed || !f.b.p.facts.mariadb && !f.asked {
		return
	}
	if autocommits(f.began) == isOff(base) {
		f.set = f.b.p.settings.With(f.set, autocommitOf(f.began))
	}
}

// noteAutocommit notes with which autocommit the session began, where the login did not
// say so: MySQL's answers to logins and resets have the flag whatever the setting is.
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
		b.Doomed = true // it runs in settings that are not those of its client
	}
	f.accord()
	b.p.l.srv.renew(b.p.l)
}

func autocommits(s mywire.Status) bool { return s&mywire.StatusAutocommit != 0 }

// autocommitOf is the setting of a session in the given status.
func autocommitOf(s mywire.Status) session.Setting {
	value := "0"
	if autocommits(s) {
		value = "1"
	}
	return session.Setting{Name: "autocommit", Value: value, Literal: true}
}

// introduce prepares a new or reset session: the server is to tell of all
// changes. The first one also says what sessions are like.
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
			b.tellsInResults(u)
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
				b.Doomed = true // a client has set one, perhaps out of sight, and no reset ends it
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
	if !p.facts.known {
		if p.facts.mariadb {
			b.ask(fixedSQL, func(u *unit) { p.facts.learnFixed(u.result(p.key.caps)) })
			b.ask(resultCanary, b.tellsInResults)
			b.ask(confusionCanary, b.confuses)
			// That the settings are back is told with the next change that is told of,
			// and would be laid to a client's statement.
			b.ask(trackSQL, func(*unit) {})
		}
		b.ask(factsSQL(p.facts.mariadb), p.learn)
		b.ask(noWarnings, func(*unit) {}) // of information_schema, and what it made of the current database
		b.endLook()
	}
	if k := p.catalog; !k.known || k.stale && k.loading == 0 {
		k.load(b)
	}
}

// prepare brings a taken backend to the given settings, which costs a round trip,
// and then calls then. Nothing may be sent behind the command before it is
// answered: if the server refuses the settings, a statement would run in those of
// another client. On an error the backend is used up.
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
		l.Post(func() { // when the answer has been dealt with
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

// readied brings a taken backend into the given settings and has a statement
// prepared there, if one is given; then it calls then, with an error if the backend
// is closed by then: nothing was sent yet that could not be sent to another one.
func (f *backendSession) readied(set *session.Set, st *stmt, then func(b *backend, err *mywire.Error)) {
	b := f.b
	if b.s.Closed { // right behind the answer that made it ready
		then(b, errLostUnsent())
		return
	}
	if f.set != set {
		if !reachable(f.set, set, b.p.key.database) {
			if b.idOwner != nil { // what it alone knows does not end with it
				b.Held = true
				b.yieldID(nil)
				b.ask(noWarnings, func(*unit) {
					b.p.l.Post(func() { // when the answer has been dealt with
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
		b.p.l.Post(func() { // when the answer has been dealt with
			b.Held = false
			if err == nil {
				f.readied(set, st, then)
				return
			}
			then(b, err)
		})
	})
}

// become changes the settings behind what is under way, for the connection's owner. What
// comes next would run in others if that failed.
func (f *backendSession) become(set *session.Set) {
	from := f.set
	f.set = set
	f.visit(from, set, func(e *mywire.Error) {
		if !f.b.s.Closed {
			f.b.fail(fmt.Errorf("restore the settings of a session: %w", e))
		}
	})
}

// visit changes the settings for a moment.
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

// readingAs returns the backend's settings with those by which a text is read taken
// from another set.
func (f *backendSession) readingAs(set *session.Set) *session.Set {
	var list []session.Setting
	for _, s := range f.set.List() {
		if !saysHowToRead(s.Name) {
			list = append(list, s)
		}
	}
	for _, s := range set.List() {
		if saysHowToRead(s.Name) {
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

// afterReset forgets what a COM_RESET_CONNECTION under way takes away, and has the
// session made as a login makes it.
func (f *backendSession) afterReset() {
	b := f.b
	clear(b.prepared)
	b.textBytes, f.shows, f.renewed = 0, false, true
	db, other := f.set.Get(databaseSetting)
	f.set = b.p.settings.Empty()
	if other {
		f.set = b.p.settings.With(f.set, db) // the reset leaves the database
	}
	b.lastUser, b.idOwner, b.sameID, b.sequencer = nil, nil, nil, nil
	name := b.p.key.database
	if other {
		name = db.Value
	}
	if name != "" {
		// MariaDB's reset leaves the database, but takes the server's collation for the database's.
		b.hidden(mywire.ComInitDB, func(u *unit) { b.Doomed = b.Doomed || u.err != nil })
		b.s.Out = mywire.AppendCommand(b.s.OutBuf(), mywire.ComInitDB, name)
	}
	if base := b.p.facts.base; base != nil {
		// Settings of a login that a reset may set otherwise.
		b.ask(baseSQL(base), func(u *unit) { b.Doomed = b.Doomed || u.err != nil })
	}
	if sql := b.p.facts.initConnect; sql != "" { // several statements fail where the class has none
		b.ask(sql, func(u *unit) { b.Doomed = b.Doomed || u.err != nil })
	}
}
