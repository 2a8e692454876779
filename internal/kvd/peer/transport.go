package peer

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/weirdb/weir/internal/kvd/wire"
)

// Why this side ends a connection.
var (
	errSuperseded = errors.New("replaced by a newer connection")
	errRemoved    = errors.New("no longer among the peers")
	errMoved      = errors.New("the peer's address has changed")
)

// Transport is a replica's side: one listener for replicas and clients, a
// connection to each known replica, and the queues in front of them. All
// methods are safe for concurrent use.
//
// Its goroutines: one accepts, one tends all connections, one for each replica
// that this side dials, and a reader and a writer for each connection. Close ends
// them and waits.
type Transport struct {
	opts     Options
	h        Handler
	ln       net.Listener
	instance [16]byte
	ctx      context.Context // ends with Close
	cancel   context.CancelFunc
	wg       sync.WaitGroup
	greeting greeting // handshakes under way

	clients counters
	corrupt atomic.Uint64
	silent  atomic.Uint64

	mu         sync.RWMutex // guards what follows
	closed     bool
	delay      time.Duration // of the writers of connections with replicas
	known      map[uint64]*replica
	links      map[Addr]*link
	seats      map[seat]*holder
	lastClient Addr
	open       int // clients' connections
	refused    map[Code]uint64
}

// replica is what is known of another replica. The transport's lock guards fields that
// change.
type replica struct {
	id       uint64
	member   bool   // among the peers, otherwise admitted by AllowPeer
	addr     string // by which it is dialed
	count    counters
	snapshot struct{ sent, received atomic.Uint64 } // bytes
	lastErr  string
	rtt      RTT // of the last connection

	hangUp  context.CancelCauseFunc // ends the goroutine that dials; nil if there is none
	dialing chan struct{}           // closed when that goroutine has ended
}

// seat is something that only one connection may have at a time.
type seat struct {
	role role
	id   uint64
}

// holder is the connection that has a seat.
type holder struct {
	address string // of the replica, as it reports it
	end     func(why error)
	done    chan struct{} // closed when nothing of it is running
}

// handshakesAtOnce bounds what unauthenticated connections can occupy.
const handshakesAtOnce = 256

// Open listens and begins to connect to opts.Peers. It may call handler h from now
// on. The caller must close the Transport.
func Open(opts Options, h Handler) (*Transport, error) {
	opts = opts.withDefaults()
	if err := opts.validate(); err != nil {
		return nil, fmt.Errorf("open transport: %w", err)
	}
	ln, err := net.Listen("tcp", opts.Listen)
	if err != nil {
		return nil, fmt.Errorf("open transport: %w", err)
	}
	t := &Transport{
		opts: opts, h: h, ln: ln,
		greeting:   greeting{most: handshakesAtOnce},
		known:      map[uint64]*replica{},
		links:      map[Addr]*link{},
		seats:      map[seat]*holder{},
		refused:    map[Code]uint64{},
		lastClient: FirstClient - 1,
	}
	t.instance = newInstance(opts.LogID)
	if t.opts.Advertise == "" {
		t.opts.Advertise = ln.Addr().String()
	}
	t.ctx, t.cancel = context.WithCancel(context.Background())
	t.delay = opts.Delay
	t.SetPeers(opts.Peers)
	t.wg.Go(t.accept)
	t.wg.Go(t.tend)
	return t, nil
}

// Addr is where the transport listens, HOST:PORT.
func (t *Transport) Addr() string { return t.ln.Addr().String() }

// Close ends all connections and goroutines, and returns when no handler is
// running. Queued messages are lost. A handler must not call
// it.
func (t *Transport) Close() error {
	t.mu.Lock()
	first := !t.closed
	t.closed = true
	holders := slices.Collect(maps.Values(t.seats))
	links := slices.Collect(maps.Values(t.links))
	t.mu.Unlock()
	var err error
	if first {
		t.cancel()
		err = t.ln.Close()
	}
	for _, h := range holders {
		h.end(ErrClosed)
	}
	for _, l := range links {
		l.end(ErrClosed)
	}
	t.wg.Wait()
	return err
}

// SetPeers sets the other replicas and their addresses. Connections to replicas that are not
// among them end, and so do those
// that were dialed by another address. It does not wait for that, so
// that a handler may call it.
func (t *Transport) SetPeers(peers map[uint64]string) {
	for _, l := range t.setPeers(peers) {
		if t.opts.AllowPeer == nil || t.opts.AllowPeer(l.who, false) != nil {
			l.end(errRemoved)
		}
	}
}

// setPeers sets the peers, and returns the connections to those that
// are no longer among them.
func (t *Transport) setPeers(peers map[uint64]string) (removed []*link) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.closed {
		return nil
	}
	for id, r := range t.known {
		if _, still := peers[id]; still || !r.member {
			continue
		}
		r.member, r.addr = false, ""
		r.stop(errRemoved)
		if l := t.links[Addr(id)]; l != nil {
			removed = append(removed, l)
		}
	}
	for id, addr := range peers {
		if id == 0 || id == t.opts.ID || Addr(id) >= FirstClient {
			continue
		}
		r := t.replica(id)
		if r.member && r.addr == addr {
			continue
		}
		r.member, r.addr = true, addr
		r.stop(errMoved)
		if id < t.opts.ID {
			t.start(r)
		}
	}
	return removed
}

// replica returns the entry of an id. The caller holds the lock.
func (t *Transport) replica(id uint64) *replica {
	r := t.known[id]
	if r == nil {
		r = &replica{id: id}
		t.known[id] = r
	}
	return r
}

// stop ends the goroutine that dials a replica, without waiting for it. The
// caller holds the transport's lock.
func (r *replica) stop(why error) {
	if r.hangUp != nil {
		r.hangUp(why)
		r.hangUp = nil
	}
}

// start starts the goroutine that dials a replica, after the one before it has
// ended. The caller holds the lock.
func (t *Transport) start(r *replica) {
	before, done := r.dialing, make(chan struct{})
	ctx, cancel := context.WithCancelCause(t.ctx)
	r.hangUp, r.dialing = cancel, done
	addr := r.addr
	t.wg.Go(func() {
		defer close(done)
		defer cancel(nil)
		if before != nil {
			<-before
		}
		t.keepDialing(ctx, r, addr)
	})
}

// Send queues messages for a replica or client, in order, and does not block. It
// returns how many of them it accepted, from the first on, and if not all, why:
// ErrDown, ErrFull or ErrTooLarge. Raft and lease messages that do not fit are
// dropped and counted instead, because their sender repeats them. Accepted means
// queued: a message arrives unless the connection ends first.
//
// If a client does not read its answers, the transport stops reading from it, so that the
// number of waiting answers is bounded by what it had asked before; ErrFull for a client means
// that this was not enough.
//
// Everything that one call sends, and everything that gathers while the connection is
// busy writing, goes with one system call: pass several messages for one
// address in one call.
func (t *Transport) Send(to Addr, ms []wire.Message) (int, error) {
	t.mu.RLock()
	l := t.links[to]
	t.mu.RUnlock()
	if l == nil {
		t.drop(to, len(ms))
		return 0, ErrDown
	}
	return l.send(ms)
}

func (t *Transport) drop(to Addr, n int) {
	t.mu.RLock()
	defer t.mu.RUnlock()
	if to.Client() {
		t.clients.dropped.Add(uint64(n))
	} else if r := t.known[uint64(to)]; r != nil {
		r.count.dropped.Add(uint64(n))
	}
}

// SetDelay changes Options.Delay, also for existing connections.
func (t *Transport) SetDelay(d time.Duration) error {
	if err := checkDelay(d); err != nil {
		return err
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	t.delay = d
	for a, l := range t.links {
		if !a.Client() {
			l.setDelay(d)
		}
	}
	return nil
}

// Delay returns the present delay: Options.Delay or that of the last SetDelay.
func (t *Transport) Delay() time.Duration {
	t.mu.RLock()
	defer t.mu.RUnlock()
	return t.delay
}

// RTT returns the round trip to a connected replica or client, and zero
// otherwise.
func (t *Transport) RTT(to Addr) RTT {
	t.mu.RLock()
	defer t.mu.RUnlock()
	if l := t.links[to]; l != nil {
		return l.rtt.read()
	}
	return RTT{}
}

// Disconnect ends the connection to a replica or client, if there is one, and
// does not wait for Down. A replica connects again.
func (t *Transport) Disconnect(a Addr, why error) {
	t.mu.RLock()
	l := t.links[a]
	t.mu.RUnlock()
	if l != nil {
		l.end(why)
	}
}

// Stats returns a copy of all counters.
func (t *Transport) Stats() Stats {
	t.mu.RLock()
	defer t.mu.RUnlock()
	s := Stats{Refused: maps.Clone(t.refused), Corrupt: t.corrupt.Load(), Silent: t.silent.Load()}
	s.Clients = ClientStats{
		Open: t.open, Sent: t.clients.sent.read(), Received: t.clients.received.read(),
		Dropped: t.clients.dropped.Load(), Connects: t.clients.connects.Load(),
	}
	for _, id := range slices.Sorted(maps.Keys(t.known)) {
		r := t.known[id]
		p := PeerStats{
			ID: id, Address: r.addr, Sent: r.count.sent.read(), Received: r.count.received.read(),
			Dropped: r.count.dropped.Load(), Connects: r.count.connects.Load(), Failures: r.count.failures.Load(),
			SnapshotSent: r.snapshot.sent.Load(), SnapshotReceived: r.snapshot.received.Load(),
			RTT: r.rtt, LastErr: r.lastErr,
		}
		if l := t.links[Addr(id)]; l != nil {
			p.Up, p.Queued, p.RTT = true, l.queued(), l.rtt.read()
		}
		s.Peers = append(s.Peers, p)
	}
	return s
}

// tend maintains all connections.
func (t *Transport) tend() {
	tick := time.NewTicker(t.opts.PingEvery)
	defer tick.Stop()
	var links []*link
	for {
		select {
		case <-t.ctx.Done():
			return
		case <-tick.C:
		}
		t.mu.RLock()
		links = links[:0]
		for _, l := range t.links {
			links = append(links, l)
		}
		t.mu.RUnlock()
		for i, l := range links {
			l.tend()
			links[i] = nil
		}
	}
}
