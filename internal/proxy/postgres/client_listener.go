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

// This file is what a client listens on, and the way of that from its backend to the
// connection that listens for many clients (notify_hub.go), and back.
//
// A client that has a backend listens there itself: what LISTEN, UNLISTEN and their kin
// mean in transactions, behind savepoints and in functions is the server's matter, and
// so is when notifications arrive. Once the client rests, and LISTEN is all that keeps
// it on the backend, the server is asked for its channels, and they move to the hub.
// Before its next statement they move back, to whatever backend it gets. So between
// its statements a listener costs no connection, and within them nothing differs from
// a direct one.
//
// Each move has a marker: a notification that the client's backend sends to itself and
// to the hub. The server has one queue of notifications for all sessions, so both hear
// the same ones in the same order: what is in front of the marker the client gets from
// where it listened, what is behind it from where it listens then. None is lost, given
// twice or out of order.

// A clientListener is what one client listens on.
type clientListener struct {
	c *client

	ear      *loopListener // hears for the client, or is about to, or no more in a moment; nil: its backend does, if it listens
	channels []string      // ... these, in the order in which they were listened on; in the database's encoding
	move     *channelMove  // under way
	retryAt  time.Duration
}

// A channelMove is the move of a client's channels from where notifications come from until the
// marker to where they come from behind it.
type channelMove struct {
	number uint64 // in the marker
	pid    uint32 // of the backend, which sends it
	hub    *hub
	back   bool // from the hub to the client's backend
	began  time.Duration
	// ended: where they came from has come to the marker. begun: where they will
	// come from has.
	ended, begun bool
	held         [][]byte // behind the marker, until ended
	bytes        int
	settled      bool // the backend has done what it has to do
	void         bool // the hub is gone, and the channels stay on the backend
}

const (
	// restBeforeMove is how long a client keeps the backend where it listens in the
	// hope that it goes on, unless others wait for one.
	restBeforeMove = time.Second
	// movePatience bounds a move, which takes a few round trips.
	movePatience = 30 * time.Second
	// retryMove is when a move that came to nothing is tried again.
	retryMove = 5 * time.Second
	// maxChannels bounds those of a client that may move: they are listened on again
	// before each of its statements.
	maxChannels = 1000
	// maxNotified bounds what waits in weir for a listener that does not read.
	maxNotified = 16 << 20
)

// channelsSQL asks for a session's channels, as the bytes of the database's encoding.
const channelsSQL = unbounded + `SELECT pg_catalog.encode(pg_catalog.convert_to(c, pg_catalog.getdatabaseencoding()), 'hex') FROM pg_catalog.pg_listening_channels() AS c`

// unbounded makes a query of weir's own independent of the session's settings that
// could end it or have it wait.
const unbounded = `SET LOCAL transaction_isolation = 'read committed'; SET LOCAL statement_timeout = 0; SET LOCAL lock_timeout = 0; `

// viaHub tells that the client's channels are not on a backend of its own. Such a client
// looks idle and free of state, but whatever takes it elsewhere must take those along.
func (ls *clientListener) viaHub() bool { return ls.ear != nil }

// needsBackend reports whether a message, of a client without a backend, needs one because
// others hear for it.
func (ls *clientListener) needsBackend(typ byte) bool {
	if ls.ear == nil || ls.c.state == stateSkipping {
		return false
	}
	switch typ {
	case pgwire.ClientSync, pgwire.ClientDescribe, pgwire.ClientExecute, pgwire.ClientClose:
		return true // its answer says that there has been no notification before
	}
	return reads(typ)
}

// rests reports whether the client does nothing, and keeps its backend for what it listens
// on alone.
func (ls *clientListener) rests() bool {
	c := ls.c
	b := c.link
	return b != nil && c.pins.held == pinListen && ls.move == nil && ls.ear == nil && c.l.Now >= ls.retryAt && len(c.s.In) == 0 &&
		c.login.greeted && c.cur == nil && c.transport.pass == 0 && c.state == stateOpen && !c.draining && !c.s.Closed && !c.s.Closing &&
		b.status == pgwire.StatusIdle && b.Depth() == 0 && b.Cancels == 0 && !b.Held && !b.Doomed && !b.s.Closed &&
		!c.pins.look && len(c.settings.unsure) == 0 && !c.stmts.leftovers && !c.texts.madeBodies && !c.p.catalogue.stale
}

// mayMove reports whether the client's channels may be on the hub at all.
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

// Tick looks after a client that rests, and after a move that takes too long.
func (ls *clientListener) Tick() {
	c := ls.c
	switch {
	case ls.move != nil && c.l.Now-ls.move.began > movePatience:
		c.fatal(pgwire.NewFatal(pgwire.CodeConnectionFailure, "weir could not move the channels of this session between connections within %s", movePatience))
	case c.pins.held == pinListen && c.link != nil && c.l.Now-c.idleSince > restBeforeMove:
		ls.leave()
	}
}

// leave begins the move to the hub, if the client rests.
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

// channelsIn reads the answer to channelsSQL.
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

// heard goes on with the move to the hub, which listens on the channels by now.
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
			ls.retryAt = 0 // there will be another
		} else if !c.p.listeners.said {
			c.p.listeners.said = true
			c.l.srv.Log.Warn("listeners keep their backends: no connection listens for them", "pool", c.p.key.String(), "error", err)
		}
		b.settle()
		return
	}
	c.p.listeners.said = false
	ls.ear, ls.channels, m.hub = e, channels, e.hub
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

// unlisten ends the move on the backend, which is behind the marker.
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

// comeBack moves the channels to the client's new backend. What the client has sent
// waits for that.
func (ls *clientListener) comeBack(b *backend) {
	c, e := ls.c, ls.ear
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

// finish ends a move when both sides are done with it.
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
	ls.ear, ls.channels = nil, nil
	if b := c.link; b != nil && b.Held {
		b.Held = false
		c.l.Post(func() { // when the answer has been dealt with
			if c.link == b && !b.s.Closed && b.Depth() == 0 {
				b.settle()
			}
		})
	}
}

// forget has nobody hear for the client.
func (ls *clientListener) forget() {
	if e := ls.ear; e != nil {
		e.remove(ls.c)
		if ls.move != nil {
			delete(e.moves, ls.move.number)
		}
	}
	ls.ear, ls.channels, ls.move = nil, nil, nil
}

// fromBackend takes a notification that the client's backend has heard while nothing of
// the client's is under way.
func (ls *clientListener) fromBackend(b *backend, msg []byte) {
	m := ls.move
	if m == nil {
		ls.c.s.Write(msg)
		return
	}
	if m.hub != nil {
		if mark, ours := m.hub.marked(msg); ours {
			if mark.number == m.number && mark.pid == ls.c.id && !m.void { // ownNotification has been there
				ls.reached(true)
			}
			return
		}
	}
	ls.arrived(true, msg)
}

// arrived takes a notification, from the client's backend or from the ear.
func (ls *clientListener) arrived(fromBackend bool, msg []byte) {
	m := ls.move
	switch {
	case m == nil:
		ls.notify(msg)
	case fromBackend != m.back: // where they came from
		if !m.ended {
			ls.notify(msg)
		}
	case !m.begun: // has come from there as well
	case m.ended:
		ls.notify(msg)
	default:
		m.held = append(m.held, append([]byte(nil), msg...))
		if m.bytes += len(msg); m.bytes > maxNotified {
			ls.c.kick("too many notifications have arrived while its channels moved to another connection")
		}
	}
}

// reached tells that the client's backend, or the ear, has come to the marker.
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

// passed is called when the ear has come to the marker of the move, from its backend.
func (ls *clientListener) passed() {
	m := ls.move
	ls.reached(false)
	if m.back {
		ls.ear.remove(ls.c)
	}
	ls.finish()
}

// notify gives the client a notification.
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

// tooSlow disconnects a client that does not read what it listens for.
func (ls *clientListener) tooSlow() {
	ls.c.p.listeners.ended++
	ls.c.kick("it reads its notifications too slowly")
}

// lost is called when the connection that listens for the client is gone. Like a direct
// session that loses its connection this one may have missed notifications, and ends,
// unless its own backend still listens.
func (ls *clientListener) lost(e *pgwire.Error) {
	c := ls.c
	if m := ls.move; m != nil && !m.back && !m.ended && c.link != nil {
		m.void = true
		ls.ear, ls.channels = nil, nil
		return
	}
	ls.ear, ls.channels, ls.move = nil, nil, nil
	c.p.listeners.ended++
	c.fatal(e)
}

// listenSQL listens on channels.
func listenSQL(channels []string) string {
	var b strings.Builder
	for _, name := range channels {
		b.WriteString("LISTEN ")
		b.WriteString(quoteName(name))
		b.WriteString("; ")
	}
	return b.String()
}

// unlistenSQL ends that for one.
func unlistenSQL(channel string) string { return "UNLISTEN " + quoteName(channel) }

// quoteName quotes one name.
func quoteName(name string) string { return `"` + strings.ReplaceAll(name, `"`, `""`) + `"` }

// notified takes a NotificationResponse of a backend and reports whether it goes on within
// the answer that it stands in.
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

// ownNotification puts the process ID that the client knows as its own into a
// notification that the client itself has sent: clients tell by it which ones
// are their own.
func (b *backend) ownNotification(msg []byte) {
	if len(msg) >= pgwire.HeaderLen+4 {
		if pid := msg[pgwire.HeaderLen : pgwire.HeaderLen+4]; binary.BigEndian.Uint32(pid) == b.pid {
			binary.BigEndian.PutUint32(pid, b.owner.id)
		}
	}
}
