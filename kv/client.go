package kv

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/weirdb/weir/internal/kvd/consensus/session"
	"github.com/weirdb/weir/internal/kvd/peer"
	"github.com/weirdb/weir/internal/kvd/wire"
)

// Path says when strong writes try to complete in one round trip.
type Path = session.Policy

// Paths. They matter only where the cluster's preset has the fast path.
const (
	PathAuto = session.Auto   // where it has proved quicker
	PathFast = session.Always // always
	PathLog  = session.Never  // never: through the log
)

// Options of a client. The zero value is right for a cluster on one machine
// without a secret.
type Options struct {
	Cluster string // name of the cluster, checked when connecting; default: any
	Secret  []byte // the clients' secret; see peer secrets in docs/kv-operating.md
	// Certificate, Key and Authority are PEM files for TLS; all or none.
	Certificate, Key, Authority string
	Path                        Path
	// Retry is how long the client waits for an answer before it sends an operation
	// again. Default: 250 ms.
	Retry time.Duration
	// DialTimeout bounds one attempt to connect. Default: 5 s.
	DialTimeout time.Duration
	// Latency delays messages artificially, for benchmarks on loopback
	// addresses: one way, by the replica's id.
	Latency func(replica uint64) time.Duration
}

// Client is connected to all replicas of a cluster. It is safe for concurrent
// use. Close ends it.
type Client struct {
	*Session
	opts  Options
	certs *peer.Certificates

	mu       sync.Mutex
	links    atomic.Pointer[[]*link] // replaced, never changed in place
	turns    sync.Mutex              // held while a link comes up or ends, so that sessions learn of that in the right order
	sessions map[uint64]*Session     // by their numbers
	byID     map[uint64]*Session     // by the ids that the cluster gave them
	opened   uint64                  // number of the last session
	watches  map[uint64]*Watcher     // by request
	asks     map[uint64]chan wire.Message
	requests uint64
	closed   bool
	view     *wire.Message // the newest that a replica has sent, nil before the first: preset and leader
	told     bool          // all sessions know the first view
	changed  chan struct{} // closed and replaced when a connection or the first view arrives

	seeking bool      // a goroutine asks who the members are
	sought  time.Time // when it last began

	start time.Time
	life  context.Context // of the goroutines in the background
	stop  context.CancelFunc
	wait  sync.WaitGroup
}

// link is the place of one replica's connection.
type link struct {
	addr string

	mu   sync.Mutex
	conn *peer.Conn // nil while down
	id   uint64     // of the replica, once known
	err  error      // why the last attempt failed
}

// Open connects to the replicas at addrs (HOST:PORT). It returns as soon as one
// of them has reported the cluster's preset, and the leader if it knows one, and
// continues to connect to the others in the background. It fails when none has answered
// before ctx ends. Give several addresses, so that one of them answers: the client learns
// those of other members, the leader among them, from any replica.
func Open(ctx context.Context, addrs []string, opts Options) (*Client, error) {
	if len(addrs) == 0 {
		return nil, errors.New("kv: no addresses")
	}
	if opts.DialTimeout == 0 {
		opts.DialTimeout = 5 * time.Second
	}
	life, stop := context.WithCancel(context.Background())
	c := &Client{opts: opts, sessions: map[uint64]*Session{}, byID: map[uint64]*Session{}, watches: map[uint64]*Watcher{}, asks: map[uint64]chan wire.Message{}, changed: make(chan struct{}), start: time.Now(), stop: stop}
	if opts.Certificate != "" || opts.Key != "" || opts.Authority != "" {
		certs, err := peer.LoadCertificates(opts.Certificate, opts.Key, opts.Authority)
		if err != nil {
			stop()
			return nil, fmt.Errorf("kv: %w", err)
		}
		c.certs = certs
	}
	c.Session = c.newSession()
	c.life = life
	for _, a := range addrs {
		c.follow(a)
	}
	c.wait.Go(func() { c.tick(life) })
	if err := c.firstUp(ctx); err != nil {
		return nil, errors.Join(err, c.Close())
	}
	return c, nil
}

// firstUp waits until a replica has reported what sessions must know: before that, a
// weak read would ask the leader.
func (c *Client) firstUp(ctx context.Context) error {
	for {
		c.mu.Lock()
		changed, known := c.changed, c.told
		c.mu.Unlock()
		if known {
			return nil
		}
		var why []error
		down := map[string]error{}
		for _, l := range c.linked() {
			l.mu.Lock()
			if down[l.addr] = l.err; l.err != nil {
				why = append(why, l.err)
			}
			l.mu.Unlock()
		}
		for _, err := range why {
			var refused *peer.HandshakeError
			if errors.As(err, &refused) && len(why) == len(c.linked()) {
				return &UnreachableError{down, fmt.Errorf("kv: connect: %w", errors.Join(why...))} // trying again will not help
			}
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return &UnreachableError{down, noAnswer(append(why, ctx.Err()))}
		}
	}
}

// UnreachableError is why [Open] could not connect to any replica.
type UnreachableError struct {
	Down map[string]error // by address: why it is not connected, nil if it has not answered yet
	Err  error            // all of these, and the end of the context if that came first
}

// Error says why each replica is not connected.
func (e *UnreachableError) Error() string { return e.Err.Error() }

// Unwrap returns Err.
func (e *UnreachableError) Unwrap() error { return e.Err }

// noAnswer is the error of a client that no replica has answered.
func noAnswer(why []error) error {
	args := make([]any, len(why))
	for i, err := range why {
		args[i] = err
	}
	return fmt.Errorf("kv: no replica answers: %w"+strings.Repeat("; %w", len(why)-1), args...)
}

// Close closes all connections. Operations in flight fail with ErrClosed or an
// UnknownError. Close returns when all of them have been reported, so a function given
// to [Session.Issue] must not call it. It sends nothing, so the cluster keeps its
// sessions until they have been idle for long: a program that opens many
// clients closes its sessions first, by c.Session.Close(ctx).
func (c *Client) Close() error {
	c.mu.Lock()
	if c.closed {
		c.mu.Unlock()
		return nil
	}
	c.closed = true
	sessions := slices.Collect(maps.Values(c.sessions))
	var watches []*Watcher
	for _, w := range c.watches {
		watches = append(watches, w)
	}
	c.mu.Unlock()
	c.stop()
	for _, s := range sessions {
		s.abandon() // before the wait, in which other operations may wait for these
	}
	for _, w := range watches {
		w.end(ErrClosed)
	}
	c.wait.Wait()
	return nil
}

// keep holds a connection to one replica. A connection that ends at once is opened again
// after a pause, like one that could not be opened.
func (c *Client) keep(ctx context.Context, l *link) {
	const shortest, longest = 10 * time.Millisecond, time.Second
	pause := shortest
	for ctx.Err() == nil {
		began := time.Now()
		err := c.dial(ctx, l)
		l.mu.Lock()
		l.err = err
		conn := l.conn
		l.mu.Unlock()
		c.signal()
		if err == nil {
			select {
			case <-conn.Done():
			case <-ctx.Done():
			}
			c.lost(l, conn)
			if time.Since(began) >= longest {
				pause = shortest
				continue
			}
		}
		select {
		case <-time.After(pause):
			pause = min(2*pause, longest)
		case <-ctx.Done():
		}
	}
}

func (c *Client) signal() {
	c.mu.Lock()
	defer c.mu.Unlock()
	close(c.changed)
	c.changed = make(chan struct{})
}

// dial connects one link.
func (c *Client) dial(ctx context.Context, l *link) error {
	ctx, cancel := context.WithTimeout(ctx, c.opts.DialTimeout)
	defer cancel()
	var id uint64
	known := make(chan struct{}) // input waits until the replica's id is known
	o := peer.ClientOptions{
		Cluster: c.opts.Cluster, Secret: c.opts.Secret, TLS: c.certs,
		Receive: func(ms []wire.Message) { <-known; c.receive(id, ms) },
	}
	if c.opts.Latency != nil {
		who, err := c.ask(ctx, l.addr)
		if err != nil {
			return err
		}
		o.Latency = c.opts.Latency(who)
	}
	conn, err := peer.Dial(ctx, l.addr, o)
	if err != nil {
		return err
	}
	id = conn.Remote().ID
	c.turns.Lock()
	defer c.turns.Unlock()
	l.mu.Lock()
	l.conn, l.id = conn, id
	l.mu.Unlock()
	close(known)
	for _, s := range c.all() {
		s.connected(id, conn)
	}
	c.rewatch(id)
	return nil
}

// ask finds out which replica listens at addr.
func (c *Client) ask(ctx context.Context, addr string) (uint64, error) {
	conn, err := peer.Dial(ctx, addr, peer.ClientOptions{Cluster: c.opts.Cluster, Secret: c.opts.Secret, TLS: c.certs, Receive: func([]wire.Message) {}})
	if err != nil {
		return 0, err
	}
	return conn.Remote().ID, conn.Close()
}

// lost handles the end of a connection. What was asked over it is asked again, over another
// connection to the same replica if two addresses lead there.
func (c *Client) lost(l *link, conn *peer.Conn) {
	c.turns.Lock()
	l.mu.Lock()
	id := l.id
	l.conn, l.err = nil, conn.Err()
	l.mu.Unlock()
	for _, s := range c.all() {
		s.tend(func(p *session.Session, now int64) { p.Disconnected(now, id) })
	}
	c.unwatched(id)
	if other := c.to(id); other != nil {
		for _, s := range c.all() {
			s.connected(id, other)
		}
		c.rewatch(id)
	}
	c.turns.Unlock()
	if err := conn.Close(); err != nil && !errors.Is(err, peer.ErrClosed) {
		l.mu.Lock()
		l.err = errors.Join(l.err, err)
		l.mu.Unlock()
	}
}

func (c *Client) all() []*Session {
	c.mu.Lock()
	defer c.mu.Unlock()
	return slices.Collect(maps.Values(c.sessions))
}

// now is the sessions' clock.
func (c *Client) now() int64 { return int64(time.Since(c.start)) }

// to returns the connection to a replica, nil if there is none.
func (c *Client) to(id uint64) *peer.Conn {
	for _, l := range c.linked() {
		l.mu.Lock()
		conn, ok := l.conn, l.id == id
		l.mu.Unlock()
		if ok && conn != nil {
			return conn
		}
	}
	return nil
}

// send sends the sessions' messages, in order per replica. If a connection does not accept
// a message, it is about to end, or full; the session asks again. It returns batch, whose
// memory it uses.
func (c *Client) send(sends []session.Send, batch []wire.Message) []wire.Message {
	for len(sends) > 0 {
		to := sends[0].To
		batch = batch[:0]
		rest := sends[:0:0]
		for _, s := range sends {
			if s.To == to {
				batch = append(batch, s.Message)
			} else {
				rest = append(rest, s)
			}
		}
		if conn := c.to(to); conn != nil {
			if _, err := conn.Send(batch); err != nil && errors.Is(err, peer.ErrFull) {
				c.overflow(to)
			}
		}
		clear(batch)
		sends = rest
	}
	return batch
}

// overflow closes a connection that does not move; its sessions continue elsewhere.
func (c *Client) overflow(id uint64) {
	conn := c.to(id)
	c.mu.Lock()
	defer c.mu.Unlock()
	if conn != nil && !c.closed { // else it ends anyway
		c.wait.Go(func() { _ = conn.Close() }) // the reason is that it was full
	}
}

// receive passes a replica's messages to their sessions.
func (c *Client) receive(from uint64, ms []wire.Message) {
	for i := 0; i < len(ms); {
		m := &ms[i]
		if m.Kind == wire.WatchEvent || m.Kind == wire.NewView || m.Request>>32 == askRange {
			c.direct(from, m)
			i++
			continue
		}
		s := c.owner(m)
		j := i + 1
		for j < len(ms) && ms[j].Kind != wire.NewView && ms[j].Kind != wire.WatchEvent && ms[j].Request>>32 != askRange && c.owner(&ms[j]) == s {
			j++
		}
		if s != nil {
			part := ms[i:j]
			s.event(func(p *session.Session, now int64) {
				for k := range part {
					p.Receive(now, from, &part[k])
				}
			})
		}
		i = j
	}
}

// owner is the session that a message is for: each session has its own range of request
// numbers, and its writes name it.
func (c *Client) owner(m *wire.Message) *Session {
	c.mu.Lock()
	defer c.mu.Unlock()
	if m.Request != 0 {
		return c.sessions[m.Request>>32]
	}
	return c.byID[m.Session]
}

// named records the id that the cluster has given a session; 0 means none.
func (c *Client) named(s *Session, old, id uint64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.byID, old)
	if id != 0 && c.sessions[s.number] == s { // else it was closed meanwhile
		c.byID[id] = s
	}
}

// forget removes a session from the client.
func (c *Client) forget(s *Session) {
	c.named(s, s.id.Swap(0), 0)
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.sessions, s.number)
}

// direct handles messages for the client as a whole.
func (c *Client) direct(from uint64, m *wire.Message) {
	switch {
	case m.Kind == wire.WatchEvent:
		c.mu.Lock()
		w := c.watches[m.Request]
		c.mu.Unlock()
		if w != nil {
			w.receive(from, m)
		} else if conn := c.to(from); conn != nil {
			// The watch was closed, and the replica does not know that yet.
			_, _ = conn.Send([]wire.Message{{Kind: wire.Unwatch, Request: m.Request}})
		}
	case m.Kind == wire.NewView:
		c.viewed(m)
		c.seek(from, m.Leader)
		for _, s := range c.all() {
			s.event(func(p *session.Session, now int64) { p.Receive(now, from, m) })
		}
		c.viewTold()
	default:
		c.mu.Lock()
		ch := c.asks[m.Request]
		delete(c.asks, m.Request)
		w := c.watches[m.Request]
		c.mu.Unlock()
		switch {
		case ch != nil:
			ch <- *m
		case w != nil && m.Kind == wire.Refused:
			w.refused(from, m)
		}
	}
}

// linked are the links to all replicas that the client knows.
func (c *Client) linked() []*link {
	if l := c.links.Load(); l != nil {
		return *l
	}
	return nil
}

// follow adds a replica and keeps a connection to it, unless the client is
// closed.
func (c *Client) follow(addr string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed || slices.ContainsFunc(c.linked(), func(l *link) bool { return l.addr == addr }) {
		return
	}
	l := &link{addr: addr}
	all := append(slices.Clone(c.linked()), l)
	c.links.Store(&all)
	c.wait.Go(func() { c.keep(c.life, l) })
}

// seek asks a replica who the members are, because a replica leads that the client
// does not know: it was added after the client learned the addresses.
func (c *Client) seek(from, leader uint64) {
	if leader == 0 || c.knows(leader) {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.seeking || c.closed {
		return
	}
	c.seeking, c.sought = true, time.Now()
	c.wait.Go(func() {
		c.learn(from)
		c.mu.Lock()
		c.seeking = false
		c.mu.Unlock()
	})
}

func (c *Client) knows(id uint64) bool {
	for _, l := range c.linked() {
		l.mu.Lock()
		known := l.id == id
		l.mu.Unlock()
		if known {
			return true
		}
	}
	return false
}

// seekAgain asks once more, perhaps another replica, as long as the client does not know
// the leader's address: the replica that was asked may not have known it.
func (c *Client) seekAgain() {
	c.mu.Lock()
	view, rest := c.view, c.seeking || time.Since(c.sought) < seekPause
	c.mu.Unlock()
	if rest || view == nil || view.Leader == 0 || c.knows(view.Leader) {
		return
	}
	var up []uint64
	for _, l := range c.linked() {
		l.mu.Lock()
		if l.conn != nil {
			up = append(up, l.id)
		}
		l.mu.Unlock()
	}
	if len(up) > 0 {
		c.seek(up[rand.IntN(len(up))], view.Leader)
	}
}

// seekPause is how long a client that does not know the leader waits before it asks
// again.
const seekPause = 500 * time.Millisecond

// learn adds the members that a replica knows and this client does not.
func (c *Client) learn(from uint64) {
	ctx, cancel := context.WithTimeout(c.life, c.opts.DialTimeout)
	defer cancel()
	raw, err := c.Inspect(ctx, from)
	if err != nil {
		return
	}
	var state struct{ Members []Member }
	if json.Unmarshal(raw, &state) != nil {
		return
	}
	for _, m := range state.Members {
		if !c.knows(m.ID) {
			c.follow(m.Addr)
		}
	}
}

// viewed keeps the newest view for sessions that begin later.
func (c *Client) viewed(m *wire.Message) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.view == nil || m.View >= c.view.View {
		view := *m
		c.view = &view
	}
}

// viewTold lets Open return, once the sessions know a view. It is separate from viewed
// because a session that does not know the preset would send a weak read to the leader, and
// there may be none.
func (c *Client) viewTold() {
	c.mu.Lock()
	first := !c.told
	c.told = true
	c.mu.Unlock()
	if first {
		c.signal()
	}
}

// tick lets sessions retry, and tells them how far the replicas have come.
func (c *Client) tick(ctx context.Context) {
	t := time.NewTicker(25 * time.Millisecond)
	defer t.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-t.C:
		}
		c.seekAgain()
		c.rewatch(0)
		for _, s := range c.all() {
			s.tend(func(p *session.Session, now int64) {
				for _, l := range c.linked() {
					l.mu.Lock()
					conn, id := l.conn, l.id
					l.mu.Unlock()
					if conn != nil {
						p.Distance(id, int64(conn.RTT().Smoothed))
					}
				}
				p.Tick(now)
			})
		}
	}
}
