package mysql

import (
	"bytes"
	"encoding/binary"

	"github.com/weirdb/weir/internal/wire/mywire"
)

// statements are the prepared statements of the client, by the ids that it has for them.
type statements struct {
	c *client

	byID map[uint32]*clientStmt
	last *clientStmt // prepared last: MariaDB's clients call it -1
	seq  uint32
	// bytes is the size of their texts.
	bytes int
}

// name adds a statement to the client's, with an id of its own.
func (ss *statements) name(st *stmt) *clientStmt {
	for {
		ss.seq++
		if ss.seq != 0 && ss.seq != lastPrepared && ss.byID[ss.seq] == nil {
			break
		}
	}
	cs := &clientStmt{id: ss.seq, st: st}
	if ss.byID == nil {
		ss.byID = make(map[uint32]*clientStmt)
	}
	ss.byID[cs.id] = cs
	ss.last = cs
	ss.use(st)
	return cs
}

// A clientStmt is a prepared statement of a client.
type clientStmt struct {
	id    uint32
	st    *stmt
	types []byte // of the parameters, as the client last sent them; never modified, since executions in flight use them
	long  bool   // the client has sent long data for the next execution
	// own is an instance on the client's current backend that is not shared: one with a cursor
	// or with long data. 0: none.
	own uint32
}

// lastPrepared is the id that MariaDB's clients use for the statement that they prepared last
// if they have not waited for its own id.
const lastPrepared = 1<<32 - 1

func (ss *statements) get(id uint32) *clientStmt {
	if id == lastPrepared && ss.onMariaDB() {
		return ss.last
	}
	return ss.byID[id]
}

// find returns the statement of a command. If there is none, it sends the server's error.
func (ss *statements) find(cmd byte, payload []byte) *clientStmt {
	id, err := mywire.ParseStmtID(payload)
	if err != nil {
		ss.c.protocolError("malformed packet")
		return nil
	}
	cs := ss.get(id)
	if cs == nil && mywire.HasAnswer(cmd) {
		name := map[byte]string{mywire.ComStmtFetch: "mysqld_stmt_fetch", mywire.ComStmtReset: "mysqld_stmt_reset"}[cmd]
		if name == "" {
			name = "mysqld_stmt_execute"
		}
		if !ss.onMariaDB() {
			name = "mysql_stmt_precheck"
		}
		ss.c.responder.refuseHere(mywire.NewError(mywire.ErrUnknownStatement, "Unknown prepared statement handler (%d) given to %s", id, name))
	}
	return cs
}

// noCursor is the server's error for a fetch without a cursor.
func (ss *statements) noCursor(id uint32) *mywire.Error {
	format := "The statement (%d) has no open cursor."
	if ss.onMariaDB() {
		format = format[:len(format)-1]
	}
	return mywire.NewError(mywire.ErrNoCursor, format, id)
}

// unname removes a statement of the client.
func (ss *statements) unname(cs *clientStmt) {
	ss.dropOwn(cs)
	cs.st.refs--
	ss.bytes -= len(cs.st.sql)
	delete(ss.byID, cs.id)
	if ss.last == cs {
		ss.last = nil
	}
}

// forget removes all statements.
func (ss *statements) forget() {
	for _, cs := range ss.byID {
		cs.st.refs--
	}
	ss.byID, ss.last, ss.bytes = nil, nil, 0
}

// onMariaDB reports whether the server is MariaDB, also before the pool has a connection.
func (ss *statements) onMariaDB() bool {
	c := ss.c
	if c.p.facts.text != "" {
		return c.p.facts.mariadb
	}
	g := c.l.srv.known.get()
	return g != nil && g.IsMariaDB()
}

// described reports whether describe can answer.
func (ss *statements) described(st *stmt) bool {
	return len(st.answer) > 0 && ss.c.l.Now-st.at < answerKeep && ss.c.pins.held&^pinHarmless == 0
}

// describe answers COM_STMT_PREPARE from the server's recent answer to the same text.
func (ss *statements) describe(st *stmt) {
	c := ss.c
	cs := ss.name(st)
	s := c.s
	at := len(s.OutBuf())
	s.Out = append(s.OutBuf(), st.answer...)
	mywire.SetStmtID(s.Out[at:], cs.id)
	ss.restate(s.Out[at:])
	s.Touch()
	c.idleSince = c.l.Now
	c.stats.units++
	c.diag.described(st)
}

// restate puts the client's status into the EOF packets of a description, which carry that of
// the session in which it was prepared.
func (ss *statements) restate(answer []byte) {
	for len(answer) >= mywire.HeaderLen {
		n, _, _ := mywire.Peek(answer)
		if payload := answer[mywire.HeaderLen : mywire.HeaderLen+n]; mywire.IsEOF(payload) {
			binary.LittleEndian.PutUint16(payload[3:], uint16(ss.c.status))
		}
		answer = answer[mywire.HeaderLen+n:]
	}
}

// prepared answers the client's COM_STMT_PREPARE.
func (ss *statements) prepared(b *backend, u *unit) {
	if !u.failed {
		b.learned(u.st, u)
		mywire.SetStmtID(u.resp, ss.name(u.st).id)
	}
	ss.c.reply(u.resp)
}

// learn prepares a statement on the client's backend; the client's command waits.
func (ss *statements) learn(st *stmt) {
	c := ss.c
	c.state.enter(stateAsking)
	b := c.link
	b.learn(st, func(err *mywire.Error) {
		if c.s.Closed || c.link == nil || b.s.Closed { // see backendGone
			return
		}
		if err != nil {
			ss.refused(err)
			return
		}
		c.fwd.goOn()
	})
}

// refused sends the client the server's error when its statement could not be prepared on
// another connection than before: the schema has changed, or the server has too many
// statements.
func (ss *statements) refused(err *mywire.Error) {
	c := ss.c
	c.state.leave(stateAsking)
	c.l.Post(func() {
		if !c.s.Closed {
			c.refuse(err)
			c.quietSoon()
		}
	})
}

// instanceOf returns the statement's id on the linked backend.
func (ss *statements) instanceOf(cs *clientStmt) uint32 {
	if cs.own != 0 {
		return cs.own
	}
	return ss.c.link.use(cs.st)
}

// ownInstance prepares the statement once more for this client alone, for cursors and long
// data, which must not be shared.
func (ss *statements) ownInstance(cs *clientStmt) {
	c := ss.c
	b := c.link
	c.state.enter(stateAsking)
	b.prepareAway(cs.st, func(u *unit) {
		if c.s.Closed || c.link == nil || b.s.Closed { // see backendGone
			return
		}
		if u.err != nil {
			ss.refused(u.err)
			return
		}
		m, err := mywire.ParsePrepared(u.resp[mywire.HeaderLen:])
		if err != nil {
			b.fail(err)
			return
		}
		cs.own = m.StmtID
		c.pins.held |= pinCursor // whatever else the command has to wait for
		c.fwd.goOn()
	})
}

// dropOwn closes the statement's own instance on the linked backend.
func (ss *statements) dropOwn(cs *clientStmt) {
	c := ss.c
	if cs.own != 0 && c.link != nil {
		c.link.s.Out = mywire.AppendStmtClose(c.link.s.OutBuf(), cs.own)
		c.link.s.Touch()
	}
	cs.own, cs.long = 0, false
}

// settleOwn closes a statement's own instance when it is no longer needed.
func (ss *statements) settleOwn(u *unit) {
	cs := u.cs
	if cs == nil || cs.own == 0 {
		return
	}
	ended := u.failed || u.cmd == mywire.ComStmtReset || u.ok.Status&mywire.StatusLastRowSent != 0 ||
		(u.cmd == mywire.ComStmtExecute && u.ok.Status&mywire.StatusCursorExists == 0)
	if u.cmd == mywire.ComStmtFetch && u.failed {
		ended = false // the cursor may still be open
	}
	if !ended {
		cs.long = false
		return
	}
	ss.dropOwn(cs)
	ss.repin()
}

// repin drops the pins of own instances if no statement has one.
func (ss *statements) repin() {
	for _, cs := range ss.byID {
		if cs.own != 0 {
			return
		}
	}
	ss.c.pins.held &^= pinLongData | pinCursor
}

// noteTypes keeps the types that an execution carries, for those that carry none.
func (cs *clientStmt) noteTypes(m *mywire.ExecuteMsg) {
	if m.NewTypes && !bytes.Equal(m.Types, cs.types) {
		cs.types = bytes.Clone(m.Types)
	}
}

// untyped reports whether an execution has values of unknown types: neither it nor an earlier
// execution declares them.
func (cs *clientStmt) untyped(m *mywire.ExecuteMsg) bool {
	if m.NewTypes || len(cs.types) > 0 || cs.long {
		return false
	}
	for i := range m.NumParams {
		if !mywire.IsNull(m.Nulls, i) {
			return true
		}
	}
	return false
}

// typesIn stores the types at the beginning of an execution. known reports whether they are
// known, here whether enough of the message has been received to decide.
func (cs *clientStmt) typesIn(payload []byte) (known, here bool) {
	at := 10 + mywire.NullsLen(cs.st.params)
	if cs.st.params == 0 {
		return true, true
	}
	if len(payload) <= at {
		return false, false
	}
	types := payload[at+1:]
	if payload[at] == 0 || len(types) < 2*cs.st.params {
		return false, payload[at] == 0
	}
	cs.types = bytes.Clone(types[:2*cs.st.params])
	return true, true
}

// use counts one more statement of the client.
func (ss *statements) use(st *stmt) {
	st.refs++
	ss.bytes += len(st.sql)
}

// tooMany returns the error if the client cannot have one more statement, or nil.
func (ss *statements) tooMany(st *stmt) *mywire.Error {
	switch {
	case len(ss.byID) >= maxClientStmts:
		return mywire.NewError(mywire.ErrTooManyStatements, "Can't create more than %d prepared statements in one session of weir", maxClientStmts)
	case len(ss.byID) > 0 && ss.bytes+len(st.sql) > maxClientTexts:
		return mywire.NewError(mywire.ErrTooManyStatements, "Can't create prepared statements with more than %d MB of text in one session of weir", maxClientTexts>>20)
	}
	return nil
}

// leave drops the statements' own instances on a backend that the client has lost.
func (ss *statements) leave() {
	for _, cs := range ss.byID {
		cs.own, cs.long = 0, false
	}
}
