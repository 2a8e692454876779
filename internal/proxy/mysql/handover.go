package mysql

import (
	"context"
	"fmt"
	"time"

	"golang.org/x/sys/unix"

	"github.com/weirdb/weir/internal/proxy/cache"
	"github.com/weirdb/weir/internal/proxy/core"
	"github.com/weirdb/weir/internal/proxy/handover"
	"github.com/weirdb/weir/internal/proxy/session"
	"github.com/weirdb/weir/internal/proxy/sqlscan/myscan"
	"github.com/weirdb/weir/internal/wire/mywire"
)

// This file hands clients over to another process: those whose whole state is data, because
// they have no backend, and either nothing in flight or none of it sent. See package handover.

// A movedClient is a client as one process sends it to the next.
type movedClient struct {
	User, Database, Addr string
	Class                mywire.Caps // of the pool
	Charset              byte
	ID                   uint32
	Caps                 mywire.Caps
	Status               mywire.Status
	Salt                 []byte
	TLS, Borrows         bool // see login
	Changes              int  // refused changes of the user
	AwaitsFacts          bool // see login

	Sets       [][]session.Setting // the lists that Set, Start and statements refer to by index
	Set, Start int
	Mode       myscan.Mode
	Owed       []byte
	List       string // of tracked variables, if it is chosen
	ListChosen bool
	Statements []movedStatement
	Seq, Last  uint32 // the last id given, and that of the statement prepared last

	// Diagnostics of its last statements.
	LastID                   uint64
	IDUnknown                bool
	Warnings                 uint16
	Failed, Spread, Probed   bool
	Stash                    []byte
	Draws, KeepsIDs, HasGTID bool
	Asks                     bool   // it reads warnings
	AsksRows                 string // the text in which it reads a number of rows
	Age, Idle                time.Duration
	Units, Grouped, Errors   uint64
	In, Out                  []byte // read and not consumed; not written

	made []readStmt // the Statements, parsed by read if their texts are long
}

// read parses the texts of the client's statements, unless they are short enough together to be
// parsed on a loop.
func (m *movedClient) read() {
	size := 0
	for i := range m.Statements {
		size += len(m.Statements[i].SQL)
	}
	if size <= maxScanned {
		return
	}
	m.made = make([]readStmt, len(m.Statements))
	for i := range m.Statements {
		s := &m.Statements[i]
		m.made[i] = readAway(s.SQL, s.Mode, s.Private)
	}
}

// A movedStatement is a prepared statement of the client.
type movedStatement struct {
	ID      uint32
	SQL     string
	Set     int // in which it was prepared
	Mode    myscan.Mode
	Private bool
	Params  int
	Types   []byte // of its last execution
}

// A clientMover hands a client over.
type clientMover struct {
	c *client

	stays bool // it cannot be handed over
}

// bare reports whether the client's state is nowhere but in this process.
func (mv *clientMover) bare() bool {
	c := mv.c
	return (c.state == stateOpen || c.state == stateWaiting) && !c.inTx() && c.link == nil && c.cur == nil && len(c.again) == 0 &&
		c.transport.drop == 0 && c.transport.pass == 0 && !c.transport.streams && !c.transport.voids && c.transport.source == nil &&
		(c.pins.held&^pinMode == 0 || c.l.cfg.Mode == session.ModeTransaction) && len(c.texts.unjudged) == 0 &&
		!c.login.packs && !c.draining && !c.s.Closing && !c.s.Closed
}

// still reports whether none of the client's unanswered commands has been sent.
func (mv *clientMover) still() bool { return mv.c.inflight == 0 || mv.queued() != nil }

// queued returns the client's only command in flight, if that waits in weir.
func (mv *clientMover) queued() *unit {
	c := mv.c
	if c.inflight != 1 {
		return nil
	}
	is := func(u *unit) bool { return u.c == c && u.kind == unitClient && !u.dead && len(u.raw) > 0 }
	if u, ok := c.p.Waits(is); ok {
		return u
	}
	for _, ln := range c.p.lanes.all {
		if u, ok := ln.Find(is); ok {
			return u
		}
	}
	return nil
}

// recall makes the command that waits in weir the client's next command again.
func (mv *clientMover) recall() {
	c := mv.c
	if c.state == stateWaiting {
		c.state.leave(stateWaiting)
		c.router.stopAwaiting()
		c.fwd.attempt++ // a backend that is being prepared for it goes to others
	}
	if u := mv.queued(); u != nil {
		u.dead = true
		for _, ln := range c.p.lanes.all {
			ln.Q.Remove(func(x *unit) bool { return x == u })
		}
		c.cached.Leave((*cache.Flight).Fail)
		c.inflight--
		c.stats.units--
		c.s.Unread(u.raw)
	}
}

// ready reports whether the client can be handed over now.
func (mv *clientMover) ready() bool { return mv.near() && mv.c.diag.known() }

// near reports whether it can be, except that its last id may have to be queried.
func (mv *clientMover) near() bool {
	c := mv.c
	return mv.bare() && core.FewBytes(c.s) && mv.may() && mv.still()
}

// waits stops a client that sends commands without a pause, since it is to be handed over: at
// once, or after the answers to what is in flight.
func (mv *clientMover) waits() bool {
	c := mv.c
	if mv.stays || c.inTx() {
		return false
	}
	if mv.near() {
		// It cannot leave while its bytes are being read. It also resumes when its id is known,
		// which the next write would make unknown again.
		if c.diag.known() && !c.resuming {
			c.resuming = true
			c.l.Agenda.Session(c)
		}
		return true
	}
	return c.pins.held == 0 && c.inflight > 0
}

// may reports whether another process could serve the client. That process must be able to log
// in as its user, and the state of a TLS connection cannot be moved.
func (mv *clientMover) may() bool {
	c := mv.c
	if mv.stays {
		return false
	}
	size := 0
	for _, cs := range c.stmts.byID {
		size += len(cs.st.sql)
	}
	mv.stays = size > handover.MaxSession/2 || c.s.Bridged()
	return !mv.stays && c.p.MayDial()
}

// move hands the client over, and reports whether it has gone. It must not be called while the
// client's bytes are being read.
func (mv *clientMover) move() bool {
	c := mv.c
	if c.l.Giving() == nil || c.s.Closed || mv.stays {
		return false
	}
	if c.diag.last.soft && c.link != nil && c.cur == nil && !c.state.asking() && len(c.s.In) == 0 {
		c.diag.fetch(nil) // it keeps its backend only for these
		return false
	}
	if !mv.ready() {
		return false
	}
	mv.recall()
	c.l.Depart(core.DepartingClient{
		ID: c.id, Sock: c.s, Session: func(in, out []byte) any { return mv.pack(in, out) },
		Gone: func() { c.OnClosed(nil) }, Back: mv.comeBack,
	})
	return true
}

// pack returns the client as data.
func (mv *clientMover) pack(in, out []byte) *movedClient {
	c := mv.c
	d, last := &c.diag, &c.diag.last
	m := &movedClient{
		User: c.p.key.user, Database: c.p.key.database, Class: c.p.key.caps, Charset: c.p.key.charset,
		Addr: c.addr, ID: c.id, Caps: c.caps, Status: c.status, Salt: c.login.salt, TLS: c.login.tls, Borrows: c.login.borrows,
		Changes: c.login.failed, AwaitsFacts: c.login.awaitsFacts,
		Mode: c.texts.mode, Owed: c.settings.owed, Seq: c.stmts.seq,
		LastID: last.id, IDUnknown: last.unknown, Warnings: last.warnings, Failed: last.failed, Probed: last.probed,
		Spread: last.spread || last.on != nil, // it will be on another connection in any case
		Stash:  last.stash, Draws: d.draws, KeepsIDs: d.keepsIDs, HasGTID: d.wroteGTID, Asks: d.asks, AsksRows: d.asksRows,
		Age: c.l.Now - c.since, Idle: c.l.Now - c.idleSince,
		Units: c.stats.units, Grouped: c.stats.grouped, Errors: c.stats.errors,
	}
	if last.stashOf != showWarnings {
		m.Stash = nil // numbers of rows do not move
	}
	var sets core.SettingsNumbers
	m.Set, m.Start = sets.Of(c.set), sets.Of(c.settings.start)
	for id, cs := range c.stmts.byID {
		m.Statements = append(m.Statements, movedStatement{
			ID: id, SQL: cs.st.sql, Set: sets.Of(cs.st.set), Mode: cs.st.mode, Private: cs.st.private, Params: cs.st.params, Types: cs.types,
		})
	}
	if c.stmts.last != nil {
		m.Last = c.stmts.last.id
	}
	m.Sets, m.In, m.Out = sets.Lists, in, out
	m.List, m.ListChosen = c.settings.list.text, c.settings.list.chosen
	return m
}

// comeBack continues a client whose handover failed.
func (mv *clientMover) comeBack(fd int, in, out []byte, stays bool) {
	c := mv.c
	s, err := c.l.WatchAgain(fd, c, c.s, in, out)
	if err != nil {
		c.l.srv.Log.Error("cannot watch client socket", "error", err)
		c.OnClosed(err)
		return
	}
	c.s, mv.stays = s, mv.stays || stays
	c.l.Clients[c.id] = c
	if c.l.Draining() {
		c.Drain()
	}
	c.resume()
}

// A handoverSide implements handover.Side for the server.
type handoverSide struct {
	*core.Handover[*loop]
	srv *Server
}

// Heritage returns the side of a server that hands over and takes over.
func Heritage(s *Server) handover.Side { return &handoverSide{&s.Handover, s} }

// handedLogins are the facts about logins that the next process needs.
type handedLogins struct {
	Gates  core.Gates
	Keys   map[string]*mywire.ClientKeys
	LastID uint32
}

// idGap is how many connection ids are reserved for logins in progress.
const idGap = 1 << 12

// Legacy implements handover.Side.
func (h *handoverSide) Legacy(context.Context) ([]byte, error) {
	return core.Encode(handedLogins{Gates: h.Gates(), Keys: h.srv.creds.All(), LastID: h.srv.lastID.Load()})
}

// Inherit implements handover.Side. The configuration takes precedence over what the other
// process had learned.
func (h *handoverSide) Inherit(data []byte) error {
	var from handedLogins
	if err := core.DecodeLegacy(data, &from); err != nil {
		return err
	}
	h.SetGates(from.Gates)
	h.srv.lastID.Store(from.LastID + idGap)
	h.srv.creds.Inherit(from.Keys)
	return nil
}

// A forwardedKill is a KILL that is forwarded to the previous process; a killResult is its
// result, with a nil error if it was done.
type (
	forwardedKill struct {
		ID    uint32
		Query bool
		User  string
		Admin bool
	}
	killResult struct{ Err *mywire.Error }
)

// Answer implements handover.Side.
func (h *handoverSide) Answer(ctx context.Context, question []byte) []byte {
	var q forwardedKill
	if core.Decode(question, &q) != nil {
		return nil
	}
	ended := make(chan *mywire.Error, 1)
	killRequest{id: q.ID, query: q.Query, user: q.User, admin: q.Admin}.here(h.srv, func(e *mywire.Error) { ended <- e })
	var a killResult
	select {
	case a.Err = <-ended:
	case <-ctx.Done():
		return nil
	}
	answer, err := core.Encode(a)
	if err != nil {
		return nil
	}
	return answer
}

// before forwards the KILL to the previous process, which may have the client; ok is false if
// there is none.
func (k killRequest) before(srv *Server) (e *mywire.Error, ok bool) {
	question, err := core.Encode(forwardedKill{k.id, k.query, k.user, k.admin})
	if err != nil {
		return nil, false
	}
	data, ok := srv.Handover.Before(srv.DialCtx, question)
	if !ok {
		return nil, false
	}
	var a killResult
	if core.Decode(data, &a) != nil {
		return nil, false
	}
	return a.Err, true
}

// Receive implements handover.Side.
func (h *handoverSide) Receive(decode func(v any) error, fd int) (handover.Admission, error) {
	m := new(movedClient)
	if err := decode(m); err != nil {
		_ = unix.Close(fd)
		return handover.Admission{}, err
	}
	m.read()
	return h.Admit(&core.ArrivingClient[*loop]{
		FD: fd, ID: m.ID, Database: m.Database, User: m.User,
		Known:    m.Set < len(m.Sets) && m.Start < len(m.Sets),
		MayEnter: func() error { return h.mayEnter(m) },
		TurnOut:  m.turnOut,
		TakeIn:   func(l *loop, drop func()) { l.takeIn(m, fd, drop) },
	}), nil
}

// mayEnter returns why the configuration does not admit a client, or nil.
func (h *handoverSide) mayEnter(m *movedClient) error {
	cfg := h.srv.cfg()
	_, held := h.srv.creds.Secret(m.User)
	switch {
	case cfg.Auth != AuthTrust && cfg.Auth != AuthLDAP && !cfg.relays() && cfg.AuthQuery == "" && !held:
		return fmt.Errorf("user '%s' is no longer one of weir's", m.User)
	case !h.srv.mayDial(poolKey{user: m.User, database: m.Database}):
		return fmt.Errorf("weir cannot log in to the server as '%s'", m.User)
	}
	return nil
}

// turnOut sends a client the error that its session ends, as a server that stops does: clients
// log in again.
func (m *movedClient) turnOut(why error) (last []byte, said error) {
	e := mywire.NewError(mywire.ErrServerShutdown, "weir was restarted, and the session cannot go on: %v", why)
	return mywire.AppendError(m.Out, 0, e), why
}

// takeIn adds a client of another process to the loop.
func (l *loop) takeIn(m *movedClient, fd int, drop func()) {
	c := newClient(l)
	c.p = l.pool(poolKey{user: m.User, database: m.Database, caps: m.Class, charset: m.Charset})
	c.id, c.addr, c.caps, c.status = m.ID, m.Addr, m.Caps, m.Status
	c.login.salt, c.login.tls, c.login.borrows = m.Salt, m.TLS, m.Borrows
	c.login.failed, c.login.awaitsFacts = m.Changes, m.AwaitsFacts
	c.since, c.idleSince = l.Now-m.Age, l.Now-m.Idle
	c.stats = clientStats{m.Units, m.Grouped, m.Errors}
	sets := core.Numbered(l.Settings, m.Sets)
	c.set, c.settings.start, c.settings.owed = sets[m.Set], sets[m.Start], m.Owed
	if m.ListChosen {
		c.settings.list = listOf(m.List)
	}
	c.cached.Wrote() // its writes there must be visible here
	s, err := l.Watch(fd, c)
	if err != nil {
		l.srv.Log.Error("cannot watch client socket", "error", err)
		drop()
		return
	}
	c.s = s
	l.Clients[c.id] = c
	s.Return(nil, m.Out)
	if l.cfg.Mode == session.ModeSession {
		c.pins.add(pinMode)
	}
	c.settings.readMode()
	if c.p.facts.text == "" {
		c.texts.mode = m.Mode // until a connection has reported more
	}
	c.stmts.takeIn(m, sets)
	d, last := &c.diag, &c.diag.last
	d.draws, d.keepsIDs, d.wroteGTID, d.asks, d.asksRows = m.Draws, m.KeepsIDs, m.HasGTID, m.Asks, m.AsksRows
	last.id, last.unknown, last.warnings, last.failed, last.ran = m.LastID, m.IDUnknown, m.Warnings, m.Failed, true
	last.spread, last.probed, last.stash, last.stashOf = m.Spread, m.Probed, m.Stash, showWarnings
	if l.Draining() {
		c.fatal(errShutdown())
		return
	}
	s.Return(m.In, nil)
	c.resume()
}

// takeIn adds the statements of a client of another process.
func (ss *statements) takeIn(m *movedClient, sets []*session.Set) {
	p := ss.c.p
	ss.seq = m.Seq
	ss.byID = make(map[uint32]*clientStmt, len(m.Statements))
	for i := range m.Statements {
		s := &m.Statements[i]
		if s.Set >= len(sets) {
			continue
		}
		var st *stmt
		if m.made != nil {
			st = p.stmts.adopt(sets[s.Set], m.made[i])
		} else {
			st = p.stmts.intern(sets[s.Set], []byte(s.SQL), s.Mode, s.Private)
		}
		st.params = s.Params
		ss.use(st)
		cs := &clientStmt{id: s.ID, st: st, types: s.Types}
		ss.byID[s.ID] = cs
		if s.ID == m.Last {
			ss.last = cs
		}
	}
}
