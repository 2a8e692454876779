package postgres

import (
	"encoding/binary"
	"encoding/hex"
	"errors"
	"strings"
	"time"

	"github.com/weirdb/weir/internal/proxy/session"
	"github.com/weirdb/weir/internal/wire/pgwire"
)

// This file moves the channels that a client listens on from its backend to the
// connection that listens for many clients (notify_hub.go), and back.
//
// A client that has a backend listens there itself: the server decides what LISTEN and UNLISTEN
// mean in transactions, after savepoints and in functions, and when notifications arrive. Once
// the client is idle, and LISTEN is all that keeps it on the backend, weir asks the server for
// its channels, and they move to the hub.
// Before its next statement they move back, to whatever backend it gets. So an idle listener
// costs no connection, and during its statements nothing differs from a direct connection.
//
// Each move has a marker: a notification that the client's backend sends to itself and
// to the hub. The server has one queue of notifications for all sessions, so both receive
// the same ones in the same order: the client gets those before the marker from where it
// listened, and those after it from where it listens then. None is lost, delivered
// twice or out of order.

// A clientListener is what one client listens on.
type clientListener struct {
	c *client

	loop     *loopListener // listens for the client, or is about to start or stop; nil: its backend does, if it listens
	channels []string      // in the order of LISTEN, in the database's encoding
	move     *channelMove  // in progress
	retryAt  time.Duration
}

// A channelMove is the move of a client's channels: before the marker its notifications come
// from one connection, after it from another.
type channelMove struct {
	number uint64 // in the marker
	pid    uint32 // of the backend, which sends it
	hub    *hub
	back   bool // from the hub to the client's backend
	began  time.Duration
	// ended: the old connection has reached the marker. begun: the new one has.
	ended, begun bool
	held         [][]byte // received after the marker, until ended
	bytes        int
	settled      bool // the backend has done its part
	void         bool // the hub is lost, and the channels stay on the backend
}

const (
	// restBeforeMove is how long an idle client keeps the backend where it listens, unless others
	// wait for one: it may go on.
	restBeforeMove = time.Second
	// movePatience bounds the time of a move, which takes a few round trips.
	movePatience = 30 * time.Second
	// retryMove is when a failed move is tried again.
	retryMove = 5 * time.Second
	// maxChannels bounds the channels of a client that may move: each statement has to listen on
	// them again.
	maxChannels = 1000
	// maxNotified bounds what waits in weir for a listener that does not read.
	maxNotified = 16 << 20
)

// channelsSQL asks for a session's channels, as the bytes of the database's encoding.
const channelsSQL = unbounded + `SELECT pg_catalog.encode(pg_catalog.convert_to(c, pg_catalog.getdatabaseencoding()), 'hex') FROM pg_catalog.pg_listening_channels() AS c`

// unbounded makes a query of weir's own independent of settings of the session that
// could end it or make it wait.
const unbounded = `SET LOCAL transaction_isolation = 'read committed'; SET LOCAL statement_timeout = 0; SET LOCAL lock_timeout = 0; `

// viaHub reports whether the client's channels are not on a backend of its own. Such a client
// looks idle and without state, but code that moves it must move those, too.
func (ls *clientListener) viaHub() bool { return ls.loop != nil }

// needsBackend reports whether a message, of a client without a backend, needs one because
// the hub listens for it.
func (ls *clientListener) needsBackend(typ byte) bool {
	if ls.loop == nil || ls.c.state == stateSkipping {
		return false
	}
	switch typ {
	case pgwire.ClientSync, pgwire.ClientDescribe, pgwire.ClientExecute, pgwire.ClientClose:
		return true // its answer says that there was no notification before
	}
	return reads(typ)
}

// rests reports whether the client is idle, and keeps its backend only because it listens.
func (ls *clientListener) rests() bool {
	c := ls.c
	b := c.link
	return b != nil && c.pins.held == pinListen && ls.move == nil && ls.loop == nil && c.l.Now >= ls.retryAt && len(c.s.In) == 0 &&
		c.login.greeted && c.cur == nil && c.transport.pass == 0 && c.state == stateOpen && !c.draining && !c.s.Closed && !c.s.Closing &&
		b.status == pgwire.StatusIdle && b.Depth() == 0 && b.Cancels == 0 && !b.Held && !b.Doomed && !b.s.Closed &&
		!c.pins.look && len(c.settings.unsure) == 0 && !c.stmts.leftovers && !c.texts.madeBodies && !c.p.catalogue.stale
}

// mayMove reports whether the client's channels may be on the hub.
func (ls *clientListener) mayMove() bool {
	c := ls.c
	cfg := c.l.cfg
	if cfg.NoSharedListen || c.l.srv.hubs.mute.Load() || cfg.Authenticator != nil || c.p.Paused || c.mode() != session.ModeAuto || !c.p.MayDial() {
		return false
	}
	// The hub receives in the database's encoding.
	encoding := c.link.params[encodingName]
	return encoding != "" && (encoding == c.link.params["server_encoding"] || encoding == "SQL_ASCII")
}

// quiet is called when the client's statements have been answered. It reports whether
// its channels move.
func (ls *clientListener) quiet() bool {
	if ls.c.pins.held != pinListen || ls.c.p.Waiting() == 0 && !ls.c.l.cfg.restless {
		return false
	}
	return ls.leave()
}

// Tick checks a client that is idle, and a move that takes too long.
func (ls *clientListener) Tick() {
	c := ls.c
	switch {
	case ls.move != nil && c.l.Now-ls.move.began > movePatience:
		c.fatal(pgwire.NewFatal(pgwire.CodeConnectionFailure, "weir could not move the channels of this session between connections within %s", movePatience))
	case c.pins.held == pinListen && c.link != nil && c.l.Now-c.idleSince > restBeforeMove:
		ls.leave()
	}
}

// leave begins the move to the hub, if the client is idle.
func (ls *clientListener) leave() bool {
	if !ls.rests() || !ls.mayMove() {
		return false
	}
	c := ls.c
	b := c.link
	b.Held = true
	m := &channelMove{number: c.l.srv.hubs.moves.Add(1), pid: b.pid, began: c.l.Now}
	ls.move = m
	b.ask(channelsSQL, func(u *unit) {
		if b.s.Closed || c.link != b {
			return
		}
		channels, ok := channelsIn(u)
		switch {
		case !ok || len(channels) > maxChannels:
			ls.stay(b)
		case len(channels) == 0: // a function has ended them
			c.pins.held, ls.move = 0, nil
			b.Held = false
		default:
			e := c.p.listeners.of(c.p)
			e.want(channels, func(err error) { ls.heard(b, m, e, channels, err) })
		}
	}).columns = 1
	return true
}

// channelsIn parses the answer to channelsSQL.
func channelsIn(u *unit) (channels []string, ok bool) {
	if u.err != nil {
		return nil, false
	}
	for _, row := range u.rows {
		name, err := hex.DecodeString(string(row[0]))
		if err != nil {
			return nil, false
		}
		channels = append(channels, string(name))
	}
	return channels, true
}

// stay leaves the channels where they are, for now.
func (ls *clientListener) stay(b *backend) {
	ls.move, ls.retryAt = nil, ls.c.l.Now+retryMove
	b.Held = false
}

// heard continues the move to the hub, which now listens on the channels.
func (ls *clientListener) heard(b *backend, m *channelMove, e *loopListener, channels []string, err error) {
	c := ls.c
	if b.s.Closed || c.link != b || ls.move != m || c.s.Closed {
		if err == nil {
			e.drop(channels)
		}
		return
	}
	if err != nil {
		if ls.stay(b); errors.Is(err, errHubGone) {
			ls.retryAt = 0 // there will be another hub
		} else if !c.p.listeners.said {
			c.p.listeners.said = true
			c.l.srv.Log.Warn("listeners keep their backends: no connection listens for them", "pool", c.p.key.String(), "error", err)
		}
		b.settle()
		return
	}
	c.p.listeners.said = false
	ls.loop, ls.channels, m.hub = e, channels, e.hub
	e.add(c, m)
	b.ask(unbounded+listenSQL([]string{m.hub.mark})+m.hub.marker(m), func(u *unit) {
		switch {
		case b.s.Closed || c.link != b:
		case u.err == nil && m.ended:
			ls.unlisten(b, m)
		default:
			if u.err == nil && !m.void {
				m.hub.mute(b)
			}
			ls.forget()
			ls.stay(b)
			if u.err == nil {
				b.Held = true
				b.ask(unlistenSQL(m.hub.mark), func(u *unit) { b.Held, b.Doomed = false, b.Doomed || u.err != nil })
			}
		}
	})
}

// unlisten ends the move on the backend, which has passed the marker.
func (ls *clientListener) unlisten(b *backend, m *channelMove) {
	c := ls.c
	b.ask("UNLISTEN *", func(u *unit) {
		if b.s.Closed || c.link != b {
			return
		}
		b.Held = false
		if u.err != nil {
			b.Doomed = true
			c.fatal(pgwire.NewFatal(pgwire.CodeConnectionFailure, "weir could not move the channels of this session: %s", u.err.Message))
			return
		}
		c.pins.held &^= pinListen
		m.settled = true
		ls.finish()
	})
}

// comeBack moves the channels to the client's new backend. The client's messages
// wait for that.
func (ls *clientListener) comeBack(b *backend) {
	c, e := ls.c, ls.loop
	c.pins.held |= pinListen
	b.Held = true
	m := &channelMove{number: c.l.srv.hubs.moves.Add(1), pid: b.pid, hub: e.hub, back: true, began: c.l.Now}
	ls.move = m
	e.moves[m.number] = c
	failed := func(e *pgwire.Error) {
		b.Doomed = true
		c.fatal(pgwire.NewFatal(pgwire.CodeConnectionFailure, "weir could not listen again for this session on another backend: %s", e.Message))
	}
	b.ask(unbounded+listenSQL(append(ls.channels[:len(ls.channels):len(ls.channels)], m.hub.mark))+m.hub.marker(m), func(u *unit) {
		switch {
		case b.s.Closed || c.link != b:
			return
		case u.err != nil:
			failed(u.err)
			return
		case !m.begun:
			m.hub.mute(b)
			failed(pgwire.NewError(pgwire.CodeInternalError, "the server does not say what it has heard"))
			return
		}
		b.ask(unlistenSQL(m.hub.mark), func(u *unit) {
			switch {
			case b.s.Closed || c.link != b:
			case u.err != nil:
				failed(u.err)
			default:
				m.settled = true
				ls.finish()
			}
		})
	})
}

// finish ends a move when both sides have done their part.
func (ls *clientListener) finish() {
	c, m := ls.c, ls.move
	if m == nil || !m.settled || !m.ended || !m.begun {
		return
	}
	ls.move = nil
	if !m.back {
		if c.resume(); c.draining {
			c.leaveIfIdle()
		}
		return
	}
	ls.loop, ls.channels = nil, nil
	if b := c.link; b != nil && b.Held {
		b.Held = false
		c.l.Post(func() { // when the answer has been processed
			if c.link == b && !b.s.Closed && b.Depth() == 0 {
				b.settle()
			}
		})
	}
}

// forget stops listening for the client.
func (ls *clientListener) forget() {
	if e := ls.loop; e != nil {
		e.remove(ls.c)
		if ls.move != nil {
			delete(e.moves, ls.move.number)
		}
	}
	ls.loop, ls.channels, ls.move = nil, nil, nil
}

// fromBackend handles a notification that the client's backend has received while the client
// has nothing in flight.
func (ls *clientListener) fromBackend(b *backend, msg []byte) {
	m := ls.move
	if m == nil {
		ls.c.s.Write(msg)
		return
	}
	if m.hub != nil {
		if mark, ours := m.hub.marked(msg); ours {
			if mark.number == m.number && mark.pid == ls.c.id && !m.void { // ownNotification has changed the process ID
				ls.reached(true)
			}
			return
		}
	}
	ls.arrived(true, msg)
}

// arrived handles a notification from the client's backend or from its pool's loopListener.
func (ls *clientListener) arrived(fromBackend bool, msg []byte) {
	m := ls.move
	switch {
	case m == nil:
		ls.notify(msg)
	case fromBackend != m.back: // from the old connection
		if !m.ended {
			ls.notify(msg)
		}
	case !m.begun: // the old connection delivers it, too
	case m.ended:
		ls.notify(msg)
	default:
		m.held = append(m.held, append([]byte(nil), msg...))
		if m.bytes += len(msg); m.bytes > maxNotified {
			ls.c.kick("too many notifications have arrived while its channels moved to another connection")
		}
	}
}

// reached records that the client's backend, or the loopListener, has reached the marker.
func (ls *clientListener) reached(backend bool) {
	m := ls.move
	if m == nil {
		return
	}
	if backend == m.back {
		m.begun = true
		return
	}
	m.ended = true
	for _, msg := range m.held {
		ls.notify(msg)
	}
	m.held = nil
}

// passed is called when the loopListener has reached the marker of the move.
func (ls *clientListener) passed() {
	m := ls.move
	ls.reached(false)
	if m.back {
		ls.loop.remove(ls.c)
	}
	ls.finish()
}

// notify passes a notification to the client.
func (ls *clientListener) notify(msg []byte) {
	c := ls.c
	if c.s.Closed || c.s.Closing {
		return
	}
	c.s.Write(msg)
	c.p.listeners.delivered++
	if c.s.Pending() > maxNotified {
		ls.tooSlow()
	}
}

// tooSlow disconnects a client that does not read its notifications.
func (ls *clientListener) tooSlow() {
	ls.c.p.listeners.ended++
	ls.c.kick("it reads its notifications too slowly")
}

// lost is called when the connection that listens for the client is lost. Like a direct
// session that loses its connection, this one may have missed notifications, and ends,
// unless its own backend still listens.
func (ls *clientListener) lost(e *pgwire.Error) {
	c := ls.c
	if m := ls.move; m != nil && !m.back && !m.ended && c.link != nil {
		m.void = true
		ls.loop, ls.channels = nil, nil
		return
	}
	ls.loop, ls.channels, ls.move = nil, nil, nil
	c.p.listeners.ended++
	c.fatal(e)
}

// listenSQL is the SQL that listens on channels.
func listenSQL(channels []string) string {
	var b strings.Builder
	for _, name := range channels {
		b.WriteString("LISTEN ")
		b.WriteString(quoteName(name))
		b.WriteString("; ")
	}
	return b.String()
}

// unlistenSQL is the SQL that stops listening on one.
func unlistenSQL(channel string) string { return "UNLISTEN " + quoteName(channel) }

// quoteName quotes one name.
func quoteName(name string) string { return `"` + strings.ReplaceAll(name, `"`, `""`) + `"` }

// notified handles a NotificationResponse of a backend and reports whether it is passed on within
// the present answer.
func notified(b *backend, u *unit, msg []byte) bool {
	c := b.owner
	if c == nil {
		return false
	}
	b.ownNotification(msg)
	if u != nil && u.kind != unitHidden {
		return u.kind == unitClient
	}
	c.listens.fromBackend(b, msg)
	return false
}

// ownNotification replaces the process ID in a notification that the client itself has
// sent by the one that the client knows as its own: clients recognize their own
// notifications by it.
func (b *backend) ownNotification(msg []byte) {
	if len(msg) >= pgwire.HeaderLen+4 {
		if pid := msg[pgwire.HeaderLen : pgwire.HeaderLen+4]; binary.BigEndian.Uint32(pid) == b.pid {
			binary.BigEndian.PutUint32(pid, b.owner.id)
		}
	}
}
