package postgres

import (
	"context"
	"fmt"
	"time"

	"golang.org/x/sys/unix"

	"github.com/weirdb/weir/internal/proxy/cache"
	"github.com/weirdb/weir/internal/proxy/core"
	"github.com/weirdb/weir/internal/proxy/handover"
	"github.com/weirdb/weir/internal/proxy/session"
	"github.com/weirdb/weir/internal/wire/pgwire"
)

// This file hands clients over to another process: those whose whole state is data, because
// they have no backend, and nothing in flight or nothing of it sent. See
// package handover.

// A movedClient is a client as one process hands it to the next.
type movedClient struct {
	User, Database, Addr string
	ID                   uint32
	Secret               []byte
	App, StartApp        string

	Sets       [][]session.Setting // the sets that Set, Start and statements refer to by number
	Set, Start int
	As         movedLexical
	Statements []movedStatement
	Owed       []pgwire.Param
	// Told are the settings of new connections, as the client was told them.
	Told map[string]string

	// Role is the role whose connections the pool has.
	RoleServer, RoleID, RoleBegins string
	RoleHeard                      time.Time

	Age, Idle              time.Duration
	Units, Grouped, Errors uint64

	In, Out []byte // input that was not processed; output that was not written

	made []readStmt // of Statements, if their texts are long in total: see read
}

// read scans the texts of the client's statements, unless they are short enough in total to
// be scanned on a loop.
func (m *movedClient) read() {
	size := 0
	for i := range m.Statements {
		size += len(m.Statements[i].Tail)
	}
	if size <= maxScanned {
		return
	}
	m.made = make([]readStmt, len(m.Statements))
	for i := range m.Statements {
		if s := &m.Statements[i]; !s.Opaque {
			m.made[i] = readAway(s.Tail, lexical{s.As.Encoding, s.As.Conforming})
		}
	}
}

type movedLexical struct{ Encoding, Conforming string }

// A movedStatement is a statement that the client has prepared; also the unnamed one.
type movedStatement struct {
	Name   string
	Set    int // the set with which it was parsed
	As     movedLexical
	Opaque bool // its text is not scanned
	Tail   []byte
	// Params and Columns are what the client was told of it.
	Params  []byte
	Columns uint64
}

// A clientMover hands a client over.
type clientMover struct {
	c *client

	stays bool // it cannot be handed over
}

// bare reports whether all state of the client is in this process.
func (mv *clientMover) bare() bool {
	c := mv.c
	return c.login.greeted && (c.state == stateOpen || c.state == stateWaiting) && c.tx == pgwire.StatusIdle &&
		c.link == nil && c.cur == nil && len(c.again) == 0 &&
		c.transport.drop == 0 && c.transport.pass == 0 && c.transport.source == nil &&
		(c.pins.held&^pinMode == 0 || c.mode() == session.ModeTransaction) &&
		!c.listens.viaHub() && c.listens.move == nil && // its channels cannot move with it
		len(c.settings.unsure) == 0 && len(c.settings.txSets) == 0 &&
		!c.draining && !c.s.Closing && !c.s.Closed
}

// still reports whether no unit of the client was sent and not yet answered.
func (mv *clientMover) still() bool { return mv.c.inflight == 0 || mv.queued() != nil }

// queued returns the only unit of the client, if it waits in weir.
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

// recall turns the messages of a unit that waits in weir back into the client's next input.
func (mv *clientMover) recall() {
	c := mv.c
	if c.state == stateWaiting {
		c.state.leave(stateWaiting)
		c.cached.Cancel()
	}
	if u := mv.queued(); u != nil {
		u.dead = true
		for _, ln := range c.p.lanes.all {
			ln.Q.Remove(func(x *unit) bool { return x == u })
		}
		c.cached.Leave((*cache.Flight).Fail)
		u.exp, u.expAt = u.exp[:0], 0
		c.stmts.unparse(u) // it will be parsed again
		c.stmts.settle(u)
		c.inflight--
		c.stats.units--
		c.s.Unread(u.raw)
	}
}

// ready reports whether the client can be handed over now.
func (mv *clientMover) ready() bool {
	c := mv.c
	return mv.bare() && core.FewBytes(c.s) && mv.may() && mv.still()
}

// waits stops processing input of a client that sends one unit after another, since it must be
// handed over: at once, or when its units in flight have been answered.
func (mv *clientMover) waits() bool {
	c := mv.c
	if mv.stays || c.cur != nil || c.tx != pgwire.StatusIdle || c.state == stateCopying {
		return false
	}
	if mv.ready() {
		if !c.resuming {
			c.resuming = true
			c.l.Agenda.Session(c) // it may not leave while its input is being read
		}
		return true
	}
	if c.link == nil || c.link.Depth() == 0 {
		return c.pins.held == 0 && c.inflight > 0
	}
	return c.pins.held == 0 || c.pins.mayEnd()
}

// may reports whether another process could serve the client. That process
// must be able to log in as its user; and the state of a TLS connection stays here.
func (mv *clientMover) may() bool {
	c := mv.c
	if mv.stays {
		return false
	}
	size := 0
	for _, st := range c.stmts.byName {
		size += len(st.tail)
	}
	long := false
	c.stmts.each(func(_ string, st *stmt) { long = long || st.key == "" && !st.opaque() })
	mv.stays = c.login.entry != nil || long || size > handover.MaxSession/2 || c.s.Bridged()
	return !mv.stays && c.p.MayDial()
}

// each calls f for each statement, with the client's name for it.
func (ss *statements) each(f func(name string, st *stmt)) {
	for name, st := range ss.byName {
		f(name, st)
	}
	if ss.unnamed != nil {
		f("", ss.unnamed)
	}
}

// opaque reports whether weir does not scan the statement's text.
func (st *stmt) opaque() bool { return st.key == "" && st.sql == "" }

// move hands the client over, and reports whether it has left. It must not be called while its
// input is being read.
func (mv *clientMover) move() bool {
	c := mv.c
	if c.l.Giving() == nil || !mv.ready() {
		return false
	}
	mv.recall()
	c.l.Depart(core.DepartingClient{
		ID: c.id, Sock: c.s, Session: func(in, out []byte) any { return mv.pack(in, out) },
		Gone: func() { c.OnClosed(nil) }, Back: mv.comeBack,
	})
	return true
}

// pack encodes the client.
func (mv *clientMover) pack(in, out []byte) *movedClient {
	c := mv.c
	id := c.p.identity
	m := &movedClient{
		User: c.p.key.user, Database: c.p.key.database, Addr: c.addr,
		ID: c.id, Secret: c.login.secret, App: c.app, StartApp: c.settings.startApp,
		As: movedLexical{c.texts.lex.encoding, c.texts.lex.conforming}, Owed: c.settings.owed, Told: c.p.base,
		RoleServer: id.server, RoleID: id.id, RoleBegins: id.begins, RoleHeard: id.heard,
		Age: c.l.Now - c.since, Idle: c.l.Now - c.idleSince,
		Units: c.stats.units, Grouped: c.stats.grouped, Errors: c.stats.errors,
	}
	var sets core.SettingsNumbers
	m.Set, m.Start = sets.Of(mv.withRole(c.set)), sets.Of(mv.withRole(c.settings.start))
	c.stmts.each(func(name string, st *stmt) {
		s := movedStatement{Name: name, Opaque: st.opaque(), Tail: st.tail, As: movedLexical{st.as.encoding, st.as.conforming}, Params: st.desc.params, Columns: st.desc.columns}
		if s.Opaque {
			s.As = movedLexical{st.lex.encoding, st.lex.conforming}
		} else {
			s.Set = sets.Of(mv.withRole(st.set))
		}
		m.Statements = append(m.Statements, s)
	})
	m.Sets, m.In, m.Out = sets.Lists, in, out
	return m
}

// withRole is a set with the role of the startup message.
func (mv *clientMover) withRole(set *session.Set) *session.Set {
	if role := mv.c.p.key.role; role != "" {
		return mv.c.l.Settings.With(set, session.Setting{Name: roleName, Value: role, Literal: true})
	}
	return set
}

// comeBack continues with a client that was not handed over after all.
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

// A handoverSide is the server as a handover.Side.
type handoverSide struct {
	*core.Handover[*loop]
	srv *Server
}

// Heritage returns the handover.Side of a server.
func Heritage(s *Server) handover.Side { return &handoverSide{&s.Handover, s} }

// handedLogins are what the next process must know of logins.
type handedLogins struct {
	Gates core.Gates
	Keys  map[string]*pgwire.ClientKeys
	Open  map[string]bool
}

// Legacy implements handover.Side.
func (h *handoverSide) Legacy(context.Context) ([]byte, error) {
	return core.Encode(handedLogins{Gates: h.Gates(), Keys: h.srv.creds.All(), Open: h.srv.creds.allOpen()})
}

// Inherit implements handover.Side. The configuration takes precedence over what the other
// process had learned.
func (h *handoverSide) Inherit(data []byte) error {
	var from handedLogins
	if err := core.DecodeLegacy(data, &from); err != nil {
		return err
	}
	h.SetGates(from.Gates)
	h.srv.creds.Inherit(from.Keys)
	for user, open := range from.Open {
		h.srv.creds.learnOpen(user, open)
	}
	return nil
}

// A cancelQuestion is a cancel request that is passed to the process before.
type cancelQuestion struct {
	ID     uint32
	Secret []byte
}

// Answer implements handover.Side.
func (h *handoverSide) Answer(_ context.Context, question []byte) []byte {
	var q cancelQuestion
	if core.Decode(question, &q) == nil {
		h.srv.cancel(q.ID|forwarded, q.Secret)
	}
	return nil // as for clients: whether the key was right or not
}

// cancel passes a cancel request to the process before, which may have the client.
// It returns when the request cannot hit a later statement any more.
func (h *handoverSide) cancel(id uint32, secret []byte) {
	question, err := core.Encode(cancelQuestion{id, secret})
	if err != nil {
		h.srv.Log.Warn("cancel request not passed on", "error", err)
		return
	}
	h.Before(h.srv.DialCtx, question)
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

// mayEnter returns why the configuration does not permit a client, or nil.
func (h *handoverSide) mayEnter(m *movedClient) error {
	cfg := h.srv.cfg()
	_, held := h.srv.creds.Secret(m.User)
	switch {
	case cfg.checksSecrets() && !cfg.relays() && cfg.AuthQuery == "" && !held:
		return fmt.Errorf("user %q is no longer one of weir's", m.User)
	case !h.srv.mayDial(poolKey{database: m.Database, user: m.User}):
		return fmt.Errorf("weir cannot log in to the server as %q", m.User)
	}
	return nil
}

// turnOut is the message that tells a client that its session ends. Clients take the code as a
// request to log in again.
func (m *movedClient) turnOut(why error) (last []byte, said error) {
	e := pgwire.NewFatal(pgwire.CodeAdminShutdown, "terminating connection because weir was restarted, and the session cannot go on: %v", why)
	e.Hint = "Log in again."
	return pgwire.AppendError(m.Out, e), e
}

// takeIn makes a client of another process a client of the loop.
func (l *loop) takeIn(m *movedClient, fd int, drop func()) {
	c := newClient(l)
	sets := core.Numbered(l.Settings, m.Sets)
	role, _ := sets[m.Start].Get(roleName)
	for i, set := range sets {
		sets[i] = l.Settings.Without(set, roleName)
	}
	c.p = l.pool(poolKey{database: m.Database, user: m.User, role: role.Value})
	c.id, c.login.secret, c.addr, c.app, c.settings.startApp = m.ID, m.Secret, m.Addr, m.App, m.StartApp
	c.login.greeted = true
	c.since, c.idleSince = l.Now-m.Age, l.Now-m.Idle
	c.stats = clientStats{m.Units, m.Grouped, m.Errors}
	c.set, c.settings.start = sets[m.Set], sets[m.Start]
	c.texts.told(encodingName, m.As.Encoding)
	c.texts.told(conformingName, m.As.Conforming)
	if c.mode() == session.ModeSession {
		c.pins.held = pinMode
	}
	c.cached.Wrote() // what it wrote there must be visible here
	s, err := l.Watch(fd, c)
	if err != nil {
		l.srv.Log.Error("cannot watch client socket", "error", err)
		drop()
		return
	}
	c.s = s
	l.Clients[c.id] = c
	s.Return(nil, m.Out)
	if e := c.p.identity.compare(c.p, c, m.roleStatus()); e != nil {
		c.fatal(e)
		return
	}
	for i := range m.Statements {
		st := &m.Statements[i]
		was := stmtDescription{params: st.Params, columns: st.Columns}
		was.expire()
		switch {
		case st.Set >= len(sets):
		case m.made != nil && !st.Opaque:
			made := c.p.stmts.adopt(sets[st.Set], lexical{st.As.Encoding, st.As.Conforming}, m.made[i])
			made.reads(made.as)
			c.stmts.name(st.Name, c.p.stmts.toldAs(made, was))
		default:
			c.stmts.name(st.Name, c.p.stmts.toldAs(c.p.stmts.restore(st, sets[st.Set]), was))
		}
	}
	c.settings.owed = m.Owed
	c.settings.owe(toldAgain(c.p, m.Told))
	if l.Draining() {
		c.fatal(l.errShutdown())
		return
	}
	s.Return(m.In, nil)
	c.resume()
}

// roleStatus returns the role status under which the client's pool opened its connections; nil if unknown.
func (m *movedClient) roleStatus() *roleStatus {
	if m.RoleServer == "" {
		return nil
	}
	return &roleStatus{
		mark: "handed over", server: m.RoleServer, id: m.RoleID, begins: m.RoleBegins,
		asked: m.RoleHeard, heard: m.RoleHeard,
	}
}

// restore recreates a statement that a client has prepared in another process.
func (in *poolStmts) restore(m *movedStatement, set *session.Set) *stmt {
	as := lexical{m.As.Encoding, m.As.Conforming}
	if m.Opaque {
		return in.unreadable(m.Tail, as)
	}
	st := in.intern(set, as, m.Tail)
	st.reads(as)
	in.refresh(st)
	if st.own {
		return in.single(st)
	}
	return st
}

// toldAgain returns the settings that differ from what a client of another process was told.
func toldAgain(p *pool, told map[string]string) (changed []pgwire.Param) {
	if p.base == nil {
		p.base = told // new connections are compared with it
		return nil
	}
	for name, value := range p.base {
		if was, ok := told[name]; ok && was != value {
			changed = append(changed, pgwire.Param{Name: name, Value: value})
		}
	}
	return changed
}
