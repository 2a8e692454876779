package postgres

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/weirdb/weir/internal/proxy/core"
	"github.com/weirdb/weir/internal/proxy/netloop"
	"github.com/weirdb/weir/internal/proxy/upstream"
	"github.com/weirdb/weir/internal/wire/pgwire"
)

// This file is the connection that listens for the idle clients of one user in one database,
// on all loops: see client_listener.go.

// hubs are the hubs of a server. Safe for concurrent use.
type hubs struct {
	moves atomic.Uint64 // of clients' channels, so far
	mute  atomic.Bool   // the server does not support it

	mu   sync.Mutex
	open map[poolKey]*hub // guarded by mu: those that accept clients
	made int              // guarded by mu
}

// of returns the hub of a pool, and makes one if necessary.
func (hs *hubs) of(s *Server, key poolKey) *hub {
	hs.mu.Lock()
	defer hs.mu.Unlock()
	h := hs.open[key]
	if h == nil {
		h = &hub{
			srv: s, l: s.Loops[hs.made%len(s.Loops)], key: key, mark: "weir " + rand.Text(),
			channels: make(map[string]*channel), feeds: make(map[*loopListener]*loopFeed),
		}
		if hs.open == nil {
			hs.open = make(map[poolKey]*hub)
		}
		hs.open[key] = h
		hs.made++
		h.l.Post(h.dial)
	}
	return h
}

// retire makes later clients use another hub; this one is closed when its last client has
// left.
func (hs *hubs) retire(key poolKey) {
	hs.mu.Lock()
	h := hs.open[key]
	delete(hs.open, key)
	hs.mu.Unlock()
	if h != nil {
		h.gone.Store(true)
		h.l.Post(h.leaveUnused)
	}
}

// remove removes a hub that is lost.
func (hs *hubs) remove(h *hub) {
	hs.mu.Lock()
	defer hs.mu.Unlock()
	h.gone.Store(true)
	if hs.open[h.key] == h {
		delete(hs.open, h.key)
	}
}

// A hub is a connection to the server that listens on the channels of many clients. It
// belongs to one loop's thread; requests of clients on other loops are posted there, and
// notifications are posted to their loops.
type hub struct {
	srv  *Server
	l    *loop
	key  poolKey
	mark string      // the channel for markers
	gone atomic.Bool // it accepts no more clients; for all threads

	p        *pool // shows it
	s        *netloop.Sock
	pid      uint32
	endpoint upstream.Endpoint
	born     time.Duration
	closed   bool
	up       bool // it listens for markers

	channels map[string]*channel
	feeds    map[*loopListener]*loopFeed
	orders   []hubQuery // sent and not answered, in order
	waiting  []hubQuery // to be sent when it is up
	failure  *pgwire.Error
	unusedAt time.Duration // since when no client has used it
	received uint64        // notifications
}

// A channel is a channel that some client listens on; ears counts those clients.
type channel struct {
	name string
	ears map[*loopListener]int
}

// A hubQuery is a query of the hub's own.
type hubQuery struct {
	sql  string
	done func(err error)
}

// A loopFeed is the events that a loopListener is about to get.
type loopFeed struct {
	bytes []byte
	items []hubEvent
}

// A hubEvent is a notification or a marker.
type hubEvent struct {
	channel string
	at, end int        // of the message, in the feed's bytes
	mark    moveMarker // number 0: it is a notification
}

// A moveMarker is the content of a marker: the number of a move, and the sender.
type moveMarker struct {
	number uint64
	pid    uint32
}

const (
	// keepUnused is how long a hub without clients stays open for the next one.
	keepUnused = 30 * time.Second
	// maxHubChannels bounds the channels of a hub: for each notification, the server searches
	// the whole list.
	maxHubChannels = 10000
	// maxHubMessage is larger than any message that a hub gets.
	maxHubMessage = 1 << 20
)

// hubSetup sets the session's encoding to the database's, and removes all timeouts by which the
// server could end it.
var hubSetup = own(`SELECT pg_catalog.set_config('client_encoding', pg_catalog.getdatabaseencoding(), false), pg_catalog.set_config('application_name', 'weir listener', false);
SELECT pg_catalog.set_config(name, '0', false) FROM pg_catalog.pg_settings
 WHERE name = ANY (ARRAY['statement_timeout', 'lock_timeout', 'transaction_timeout', 'idle_session_timeout', 'idle_in_transaction_session_timeout']); `)

// marker sends the marker of a move.
func (h *hub) marker(m *channelMove) string {
	return "NOTIFY " + quoteName(h.mark) + ", '" + strconv.FormatUint(m.number, 10) + "'"
}

// marked reads a marker. It reports false for any other notification.
func (h *hub) marked(msg []byte) (m moveMarker, ok bool) {
	pid, name, payload, err := pgwire.ParseNotification(msg[pgwire.HeaderLen:])
	if err != nil || string(name) != h.mark {
		return m, false
	}
	n, _ := strconv.ParseUint(string(payload), 10, 64) // 0 is no move's
	return moveMarker{n, pid}, true
}

// mute handles a server that does not send a session its own notifications before it
// reports that it is ready: channels cannot move there.
func (h *hub) mute(b *backend) {
	h.srv.Log.Error("the server does not tell of notifications when it should; listeners keep their backends", "pool", h.key.String(), "pid", b.pid)
	h.srv.hubs.mute.Store(true)
}

// dial opens the connection.
func (h *hub) dial() {
	h.p = h.l.pool(h.key)
	h.p.listeners.hubs = append(h.p.listeners.hubs, h)
	h.unusedAt = h.l.Now
	h.srv.Background.Go(func() {
		ctx, cancel := context.WithTimeout(h.srv.DialCtx, h.srv.cfg().ConnectTimeout)
		defer cancel()
		conn, err := h.srv.dialBackend(ctx, h.key)
		if !h.l.Post(func() { h.adopt(conn, err) }) && err == nil {
			conn.close()
		}
	})
}

// adopt takes the connection that was opened.
func (h *hub) adopt(conn *backendConn, err error) {
	if err == nil && !h.srv.Monitor.Goes(conn.endpoint) {
		conn.close()
		err = errors.New("connections go to another host meanwhile")
	}
	if err == nil {
		if h.s, err = h.l.Watch(conn.fd, h); err != nil {
			conn.close()
		}
	}
	if err != nil {
		h.end(nil, fmt.Errorf("open a connection that listens: %w", err))
		return
	}
	h.pid, h.endpoint, h.born = conn.pid, conn.endpoint, h.l.Now
	h.send(hubQuery{hubSetup + listenSQL([]string{h.mark}), func(err error) {
		if err != nil {
			return // it is closed
		}
		h.up = true
		list := h.waiting
		h.waiting = nil
		for _, o := range list {
			h.give(o)
		}
	}})
}

// send sends a query.
func (h *hub) send(o hubQuery) {
	h.orders = append(h.orders, o)
	h.s.Write(pgwire.AppendQuery(nil, o.sql))
}

// give runs a query when the hub is up. An order without a text is done when those before
// it are.
func (h *hub) give(o hubQuery) {
	switch {
	case h.closed:
		o.done(errHubGone)
	case !h.up:
		h.waiting = append(h.waiting, o)
	case o.sql == "" && len(h.orders) == 0:
		o.done(nil)
	default:
		h.send(o)
	}
}

var errHubGone = errors.New("the connection that listens is gone")

// want listens for one more client of a loopListener.
func (h *hub) want(e *loopListener, channels []string, done func(err error)) {
	var fresh []string
	for _, name := range channels {
		if h.channels[name] == nil {
			fresh = append(fresh, name)
		}
	}
	switch {
	case h.closed:
		done(errHubGone)
		return
	case len(h.channels)+len(fresh) > maxHubChannels:
		done(fmt.Errorf("it listens on %d channels already, and to no more than %d", len(h.channels), maxHubChannels))
		return
	}
	for _, name := range channels {
		ch := h.channels[name]
		if ch == nil {
			ch = &channel{name: name, ears: make(map[*loopListener]int)}
			h.channels[name] = ch
		}
		ch.ears[e]++
	}
	if h.feeds[e] == nil {
		h.feeds[e] = new(loopFeed)
	}
	h.give(hubQuery{listenSQL(fresh), done})
}

// drop ends that.
func (h *hub) drop(e *loopListener, channels []string) {
	if h.closed {
		return
	}
	sql := ""
	for _, name := range channels {
		ch := h.channels[name]
		if ch == nil {
			continue
		}
		if ch.ears[e]--; ch.ears[e] <= 0 {
			delete(ch.ears, e)
		}
		if len(ch.ears) == 0 {
			delete(h.channels, name)
			sql += unlistenSQL(name) + "; "
		}
	}
	if sql != "" {
		h.give(hubQuery{sql, func(error) {}})
	}
	if len(h.channels) == 0 {
		h.unusedAt = h.l.Now
		if h.gone.Load() {
			h.leaveUnused()
		}
	}
}

// unused reports whether no client needs the hub.
func (h *hub) unused() bool { return len(h.channels) == 0 && len(h.waiting) == 0 }

// leaveUnused closes the hub if no client needs it.
func (h *hub) leaveUnused() {
	if h.unused() && h.s != nil && !h.s.Closed {
		h.srv.hubs.remove(h)
		h.s.Write(pgwire.AppendTerminate(nil))
		h.s.Flush()
		h.s.Close(io.EOF)
	}
}

// Tick closes a hub that has been unused for some time.
func (h *hub) Tick() {
	if h.unused() && (h.gone.Load() || h.p.Paused || h.l.Now-h.unusedAt > keepUnused) {
		h.leaveUnused()
	}
}

// moved closes the connection if connections now go elsewhere.
func (h *hub) moved(now upstream.Endpoint) {
	if h.s != nil && h.endpoint != now {
		h.s.Close(fmt.Errorf("connections do not go to %s any more", h.endpoint.Host))
	}
}

// OnData implements netloop.Handler.
func (h *hub) OnData(p []byte) int {
	i := 0
	for !h.s.Closed {
		typ, n, ok := pgwire.Peek(p[i:])
		if ok && (n < pgwire.HeaderLen || n > maxHubMessage) {
			h.s.Close(errors.New("server sent a malformed message"))
			break
		}
		if !ok || i+n > len(p) {
			break
		}
		h.message(typ, p[i:i+n])
		i += n
	}
	if h.s.Closed {
		return len(p)
	}
	for e, f := range h.feeds {
		if len(f.items) > 0 {
			batch := *f
			*f = loopFeed{}
			e.p.l.Post(func() { e.hear(&batch) })
		}
	}
	return i
}

func (h *hub) message(typ byte, msg []byte) {
	switch typ {
	case pgwire.ServerNotification:
		h.notification(msg)
	case pgwire.ServerError:
		e, err := pgwire.ParseError(msg[pgwire.HeaderLen:])
		if err != nil {
			h.s.Close(err)
			return
		}
		h.failure = e
	case pgwire.ServerReady:
		if len(h.orders) == 0 {
			h.s.Close(errors.New("server sent ReadyForQuery that nothing asked for"))
			return
		}
		o := h.orders[0]
		h.orders = slices.Delete(h.orders, 0, 1)
		if e := h.failure; e != nil {
			o.done(e)
			h.s.Close(e) // what it listens on is unknown now
			return
		}
		o.done(nil)
	}
}

// notification adds a notification to the feeds of the ears that want it.
func (h *hub) notification(msg []byte) {
	_, name, _, err := pgwire.ParseNotification(msg[pgwire.HeaderLen:])
	if err != nil {
		h.s.Close(err)
		return
	}
	if m, ours := h.marked(msg); ours {
		if m.number > 0 {
			for _, f := range h.feeds {
				f.items = append(f.items, hubEvent{mark: m})
			}
		}
		return
	}
	h.received++
	ch := h.channels[string(name)]
	if ch == nil {
		return // no client wants it any more
	}
	for e := range ch.ears {
		f := h.feeds[e]
		at := len(f.bytes)
		f.bytes = append(f.bytes, msg...)
		f.items = append(f.items, hubEvent{channel: ch.name, at: at, end: len(f.bytes)})
	}
}

// OnDrained implements netloop.Handler.
func (h *hub) OnDrained() {}

// OnClosed implements netloop.Handler.
func (h *hub) OnClosed(err error) { h.end(h.failure, err) }

// end tells all ears that the hub is lost; said is the server's error, if any.
func (h *hub) end(said *pgwire.Error, err error) {
	if h.closed {
		return
	}
	h.closed = true
	h.srv.hubs.remove(h)
	h.p.listeners.hubs = slices.DeleteFunc(h.p.listeners.hubs, func(x *hub) bool { return x == h })
	for _, o := range append(h.orders, h.waiting...) {
		o.done(err)
	}
	h.orders, h.waiting = nil, nil
	h.p.listeners.heard += h.received
	e := said
	if e == nil || !e.Fatal() {
		e = pgwire.NewFatal(pgwire.CodeConnectionFailure, "the connection that listens for this session was lost: notifications may have been missed")
		e.Detail = lostDetail(err)
	}
	if !errors.Is(err, netloop.ErrStopped) && (!errors.Is(err, io.EOF) || len(h.channels) > 0) {
		h.srv.Log.Warn("a connection that listens was lost", "pool", h.key.String(), "pid", h.pid, "channels", len(h.channels), "error", fmt.Sprint(err))
	}
	for listener := range h.feeds {
		listener.p.l.Post(func() { listener.lost(e) })
	}
}

// info describes the hub for SHOW SERVERS.
func (h *hub) info() core.ServerInfo {
	return core.ServerInfo{Address: h.endpoint.Address, ID: h.pid, Mode: "listener", Beside: true, Retired: h.gone.Load(), InFlight: len(h.orders), App: "weir listener", Born: h.born, Last: h.born}
}
