package postgres

import (
	"bytes"
	"context"
	"encoding/gob"
	"fmt"
	"time"

	"golang.org/x/sys/unix"

	"github.com/weirdb/weir/internal/proxy/core"
	"github.com/weirdb/weir/internal/proxy/handover"
	"github.com/weirdb/weir/internal/proxy/session"
	"github.com/weirdb/weir/internal/wire/pgwire"
)

// This file hands clients over to another process: those of which all that there is is
// data, because they have no backend and nothing under way. See package handover.

// A moved is a client as one process hands it to the next.
type moved struct {
	User, Database, Addr string
	ID                   uint32
	Secret               []byte
	App, StartApp        string

	Sets       [][]session.Setting // what Set, Start and statements number
	Set, Start int
	As         movedLexical
	Statements []movedStatement
	Owed       []pgwire.Param
	// Told is what the server tells new connections, as the client was told it.
	Told map[string]string

	// Role is whose connections the pool has.
	RoleServer, RoleID, RoleBegins string
	RoleHeard                      time.Time

	Age, Idle              time.Duration
	Units, Grouped, Errors uint64

	In, Out []byte // read and not consumed; not written
}

type movedLexical struct{ Encoding, Conforming string }

// A movedStatement is one that the client has prepared; that without a name, too.
type movedStatement struct {
	Name   string
	Set    int // in which it was parsed
	As     movedLexical
	Opaque bool // its text is not read
	Tail   []byte
}

// moving is the client as one that may be handed over.
type moving struct {
	c *client

	stays bool // it cannot be
}

// maxMovedBytes bounds the bytes of a client that are on their way: of one that has more
// the rest is waited for.
const maxMovedBytes = 1 << 20

// bare tells whether nothing of the client is anywhere but in this process.
func (mv *moving) bare() bool {
	c := mv.c
	return c.login.greeted && c.state == stateOpen && c.tx == pgwire.StatusIdle &&
		c.link == nil && c.cur == nil && c.inflight == 0 && len(c.again) == 0 &&
		c.transport.drop == 0 && c.transport.pass == 0 && c.transport.source == nil &&
		(c.pins.held&^pinMode == 0 || c.mode() == session.ModeTransaction) &&
		!c.listens.elsewhere() && c.listens.move == nil && // its channels cannot go along
		len(c.settings.unsure) == 0 && len(c.settings.txSets) == 0 &&
		!c.draining && !c.s.Closing && !c.s.Closed
}

// ready tells whether the client can be handed over now.
func (mv *moving) ready() bool {
	c := mv.c
	return mv.bare() && len(c.s.In) <= maxMovedBytes && c.s.Pending() <= maxMovedBytes && mv.may()
}

// waits has a client that sends one unit behind another take none now, since it is
// to be handed over: at once, or when what is under way has been answered.
func (mv *moving) waits() bool {
	c := mv.c
	if mv.stays || c.cur != nil || c.tx != pgwire.StatusIdle {
		return false
	}
	if mv.ready() {
		if !c.resuming {
			c.resuming = true
			c.l.Agenda.Session(c) // it may not go while its bytes are being read
		}
		return true
	}
	return c.pins.held == 0 && (c.inflight > 0 || c.link != nil && c.link.Depth() > 0)
}

// may tells whether another process could serve the client. The one that takes it in
// must be able to log in as its user; and what is known of a TLS connection stays here.
func (mv *moving) may() bool {
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

// each calls f with each statement, and the client's name for it.
func (ss *statements) each(f func(name string, st *stmt)) {
	for name, st := range ss.byName {
		f(name, st)
	}
	if ss.unnamed != nil {
		f("", ss.unnamed)
	}
}

// opaque tells whether weir does not read the statement's text.
func (st *stmt) opaque() bool { return st.key == "" && st.sql == "" }

// move hands the client over, and reports whether it has gone. Not to be called while its
// bytes are being read.
func (mv *moving) move() bool {
	c := mv.c
	give := c.l.Giving()
	if give == nil || !mv.ready() {
		return false
	}
	m := mv.pack()
	l := c.l
	fd, in, out := c.s.Depart()
	m.In, m.Out = in, out
	delete(l.Clients, c.id)
	give(&handover.Parcel{
		FD: fd, Session: m,
		Delivered: func() {
			_ = unix.Close(fd) // the other process has it
			l.Post(func() { c.OnClosed(nil) })
		},
		Returned: func(stays bool) {
			if !l.Post(func() { mv.comeBack(fd, m, stays) }) {
				_ = unix.Close(fd)
			}
		},
	})
	return true
}

// pack is the client as data.
func (mv *moving) pack() *moved {
	c := mv.c
	id := &c.p.identity
	m := &moved{
		User: c.p.key.user, Database: c.p.key.database, Addr: c.addr,
		ID: c.id, Secret: c.login.secret, App: c.app, StartApp: c.settings.startApp,
		As: movedLexical{c.texts.lex.encoding, c.texts.lex.conforming}, Owed: c.settings.owed, Told: c.p.base,
		RoleServer: id.server, RoleID: id.id, RoleBegins: id.begins, RoleHeard: id.heard,
		Age: c.l.Now - c.since, Idle: c.l.Now - c.idleSince,
		Units: c.stats.units, Grouped: c.stats.grouped, Errors: c.stats.errors,
	}
	numbers := make(map[*session.Set]int)
	number := func(set *session.Set) int {
		n, ok := numbers[set]
		if !ok {
			n = len(m.Sets)
			numbers[set] = n
			m.Sets = append(m.Sets, set.List())
		}
		return n
	}
	m.Set, m.Start = number(c.set), number(c.settings.start)
	c.stmts.each(func(name string, st *stmt) {
		s := movedStatement{Name: name, Opaque: st.opaque(), Tail: st.tail, As: movedLexical{st.as.encoding, st.as.conforming}}
		if s.Opaque {
			s.As = movedLexical{st.lex.encoding, st.lex.conforming}
		} else {
			s.Set = number(st.set)
		}
		m.Statements = append(m.Statements, s)
	})
	return m
}

// comeBack goes on with a client that was not handed over after all.
func (mv *moving) comeBack(fd int, m *moved, stays bool) {
	c := mv.c
	taken, written := c.s.Taken, c.s.Written
	s, err := c.l.Watch(fd, c)
	if err != nil {
		c.l.srv.Log.Error("cannot watch client socket", "error", err)
		_ = unix.Close(fd)
		c.OnClosed(err)
		return
	}
	s.Taken, s.Written = taken, written
	s.Return(m.In, m.Out)
	c.s, mv.stays = s, mv.stays || stays
	c.l.Clients[c.id] = c
	if c.l.Draining() {
		c.Drain()
	}
	c.resume()
}

// A heritage is a server as such.
type heritage struct {
	*core.Handing[*loop]
	srv *Server
}

// Heritage is a server as what hands over, and takes over.
func Heritage(s *Server) handover.Side { return &heritage{&s.Handing, s} }

// A legacy is what the next process is to know of logins.
type legacy struct {
	Gates core.Gates
	Keys  map[string]*pgwire.ClientKeys
	Open  map[string]bool
}

// Legacy implements handover.Side.
func (h *heritage) Legacy(context.Context) ([]byte, error) {
	var b bytes.Buffer
	err := gob.NewEncoder(&b).Encode(legacy{Gates: h.Gates(), Keys: h.srv.creds.All(), Open: h.srv.creds.allOpen()})
	return b.Bytes(), err
}

// Inherit implements handover.Side. What the configuration says goes before what the other
// process had learned.
func (h *heritage) Inherit(data []byte) error {
	var from legacy
	if err := gob.NewDecoder(bytes.NewReader(data)).Decode(&from); err != nil {
		return fmt.Errorf("read what the process before has left: %w", err)
	}
	h.SetGates(from.Gates)
	for user, keys := range from.Keys {
		if h.srv.creds.Keys(user) == nil {
			h.srv.creds.Learn(user, keys)
		}
	}
	for user, open := range from.Open {
		h.srv.creds.learnOpen(user, open)
	}
	return nil
}

// A cancelQuestion is a request to cancel that is passed to the process before.
type cancelQuestion struct {
	ID     uint32
	Secret []byte
}

// Answer implements handover.Side.
func (h *heritage) Answer(_ context.Context, question []byte) []byte {
	var q cancelQuestion
	if gob.NewDecoder(bytes.NewReader(question)).Decode(&q) == nil {
		h.srv.cancel(q.ID|forwarded, q.Secret)
	}
	return nil // as to clients: whether the key was right or not
}

// askBefore passes a request to cancel to the process before, which may have the client.
// It returns when the request can hit no later statement.
func (h *heritage) cancel(id uint32, secret []byte) {
	var b bytes.Buffer
	if err := gob.NewEncoder(&b).Encode(cancelQuestion{id, secret}); err != nil {
		h.srv.Log.Warn("cancel request not passed on", "error", err)
		return
	}
	h.Before(h.srv.DialCtx, b.Bytes())
}

// Receive implements handover.Side.
func (h *heritage) Receive(decode func(v any) error, fd int) (handover.Admission, error) {
	m := new(moved)
	if err := decode(m); err != nil {
		_ = unix.Close(fd)
		return handover.Admission{}, err
	}
	if e := h.mayEnter(m); e != nil {
		return h.turnOut(m, fd, e), nil
	}
	l := h.srv.LeastLoaded()
	if !h.srv.RegisterAs(l, m.ID) {
		h.PutOut(m.Database, m.User)
		return h.turnOut(m, fd, errCannotGoOn("its number is another session's by now")), nil
	}
	l.Given() // given back by OnClosed
	drop := func() {
		_ = unix.Close(fd)
		l.Taken()
		h.srv.Forget(m.ID)
		h.PutOut(m.Database, m.User)
	}
	return handover.Admission{Drop: drop, Serve: func() {
		if h.HandedOver(true); !l.Post(func() { l.takeIn(m, fd) }) {
			drop()
		}
	}}, nil
}

// errCannotGoOn is the end of a session that the new process does not go on with. Clients
// take the code to mean that they are to log in again.
func errCannotGoOn(why string) *pgwire.Error {
	e := pgwire.NewFatal(pgwire.CodeAdminShutdown, "terminating connection because weir was restarted, and the session cannot go on: %s", why)
	e.Hint = "Log in again."
	return e
}

// mayEnter tells why a client may not come in, nil if it may, which is counted then.
func (h *heritage) mayEnter(m *moved) *pgwire.Error {
	cfg := h.srv.cfg()
	_, held := h.srv.creds.Secret(m.User)
	checks := cfg.Auth != string(pgwire.AuthTrust) && cfg.Auth != string(pgwire.AuthCert)
	switch {
	case m.Set >= len(m.Sets) || m.Start >= len(m.Sets):
		return errCannotGoOn("its settings are not known")
	case checks && !cfg.relays() && cfg.AuthQuery == "" && !held:
		return errCannotGoOn(fmt.Sprintf("user %q is no longer one of weir's", m.User))
	case !h.srv.mayDial(poolKey{m.Database, m.User}):
		return errCannotGoOn(fmt.Sprintf("weir cannot log in to the server as %q", m.User))
	}
	if err := h.TakeIn(m.Database, m.User); err != nil {
		return errCannotGoOn(err.Error())
	}
	return nil
}

// turnOut tells a client that its session ends.
func (h *heritage) turnOut(m *moved, fd int, e *pgwire.Error) handover.Admission {
	h.HandedOver(false)
	_, _ = unix.Write(fd, pgwire.AppendError(m.Out, e)) // the client may be gone, or not read; e is what matters
	_ = unix.Close(fd)
	return handover.Admission{Refused: e}
}

// takeIn makes a client of another process one of the loop.
func (l *loop) takeIn(m *moved, fd int) {
	c := newClient(l)
	c.p = l.pool(poolKey{m.Database, m.User})
	c.id, c.login.secret, c.addr, c.app, c.settings.startApp = m.ID, m.Secret, m.Addr, m.App, m.StartApp
	c.login.greeted = true
	c.since, c.idleSince = l.Now-m.Age, l.Now-m.Idle
	c.stats = clientStats{m.Units, m.Grouped, m.Errors}
	sets := make([]*session.Set, len(m.Sets))
	for i, list := range m.Sets {
		sets[i] = l.Settings.Intern(list)
	}
	c.set, c.settings.start = sets[m.Set], sets[m.Start]
	c.texts.told(encodingName, m.As.Encoding)
	c.texts.told(conformingName, m.As.Conforming)
	if c.mode() == session.ModeSession {
		c.pins.held = pinMode
	}
	s, err := l.Watch(fd, c)
	if err != nil {
		l.srv.Log.Error("cannot watch client socket", "error", err)
		_ = unix.Close(fd)
		l.srv.Left(c.id)
		l.srv.Crowd.Leave(m.Database, m.User)
		l.Taken()
		return
	}
	c.s = s
	l.Clients[c.id] = c
	s.Return(nil, m.Out)
	if e := c.p.identity.compare(c.p, c, m.standing()); e != nil {
		c.fatal(e)
		return
	}
	for i := range m.Statements {
		st := &m.Statements[i]
		if st.Set < len(sets) {
			c.stmts.name(st.Name, c.p.stmts.again(st, sets[st.Set]))
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

// standing is whose connections the client's pool had; nil if that is not known.
func (m *moved) standing() *roleStanding {
	if m.RoleServer == "" {
		return nil
	}
	return &roleStanding{
		mark: "handed over", server: m.RoleServer, id: m.RoleID, begins: m.RoleBegins,
		asked: m.RoleHeard, heard: m.RoleHeard,
	}
}

// again is a statement that a client has prepared in another process.
func (in *interned) again(m *movedStatement, set *session.Set) *stmt {
	as := lexical{m.As.Encoding, m.As.Conforming}
	if m.Opaque {
		return in.opaque(m.Tail, as)
	}
	st := in.intern(set, as, m.Tail)
	st.reads(as)
	in.current(st)
	return st
}

// toldAgain returns what differs from what a client of another process was told.
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
