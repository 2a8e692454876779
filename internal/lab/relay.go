package lab

import (
	"errors"
	"fmt"
	"net"
	"sync"
	"time"
)

// Direction is a way through a Relay.
type Direction int

// The two ways, named after where the bytes go.
const (
	ToServer Direction = iota
	ToClient
)

func (d Direction) String() string {
	if d == ToServer {
		return "to server"
	}
	return "to client"
}

// Link describes one direction of a network. The zero value is a perfect one.
type Link struct {
	// Delay is the least time each byte travels; a round trip takes both
	// directions'. Waking up adds about 0.1 ms (BenchmarkRelayRoundTrip).
	Delay time.Duration
	// BytesPerSecond is shared by all connections, as on one wire.
	// Default: 0, no limit.
	BytesPerSecond int64
	// Jitter is the most that a piece may travel longer than Delay, evenly drawn.
	// Bytes arrive in the order in which they were sent, as with TCP. Default: 0.
	Jitter time.Duration
	// Loss is the part of the pieces, in [0, 1], that are lost once and sent again
	// after resendAfter: that is how packet loss shows in TCP where too little
	// follows for the receiver to ask for it. Default: 0.
	Loss float64
}

// resendAfter is the least time after which Linux sends a lost segment again.
const resendAfter = 200 * time.Millisecond

// Relay is a TCP relay that does to connections what bad networks do. It stands
// between two parts of a test: they connect to Addr, it connects to the target.
// Bytes are never lost, changed or reordered within a connection, as TCP would
// not allow it either; packet loss shows in TCP as delay.
//
// Its methods are safe for concurrent use, and their effect is complete when
// they return, but for what a kernel has already taken.
type Relay struct {
	target string
	pace   *pacer
	ports  *Ports // one

	mu       sync.Mutex // guards what follows
	listener net.Listener
	refusing bool
	closed   bool
	links    [2]*wire
	conns    map[*relayConn]struct{}
	wg       sync.WaitGroup
}

// StartRelay listens on a free port of the loopback, which stays its own until
// Close, and passes connections on to target: HOST:PORT, or the path of a Unix
// socket.
func StartRelay(target string) (*Relay, error) {
	ports, err := ReservePorts(1)
	if err != nil {
		return nil, fmt.Errorf("start relay: %w", err)
	}
	pace, err := newPacer()
	if err != nil {
		return nil, errors.Join(fmt.Errorf("start relay: %w", err), ports.Release())
	}
	r := &Relay{
		target: target, pace: pace, ports: ports,
		links: [2]*wire{newWire(), newWire()},
		conns: map[*relayConn]struct{}{},
	}
	if err := r.listen(); err != nil {
		pace.close()
		return nil, errors.Join(fmt.Errorf("start relay: %w", err), ports.Release())
	}
	return r, nil
}

// listen opens the port, the same one each time. The caller holds the lock, or
// is the only one who knows r.
func (r *Relay) listen() error {
	l, err := net.Listen("tcp", r.Addr())
	if err != nil {
		return err
	}
	r.listener = l
	r.wg.Go(func() { r.accept(l) })
	return nil
}

func (r *Relay) accept(l net.Listener) {
	for {
		client, err := l.Accept()
		if err != nil {
			return // closed by Refuse or Close
		}
		r.wg.Go(func() { r.serve(client.(*net.TCPConn)) })
	}
}

// serve carries one connection to its end.
func (r *Relay) serve(client *net.TCPConn) {
	c := &relayConn{client: client, gone: make(chan struct{})}
	if !r.add(c) {
		c.reset()
		return
	}
	defer r.drop(c)
	// A partitioned network lets no connection through to the server either.
	if !r.links[ToServer].pass(c.gone) {
		return
	}
	server, err := dialTarget(r.target)
	if err != nil || !c.attach(server) {
		c.reset()
		return
	}
	var both sync.WaitGroup
	both.Go(func() { r.carry(c, ToServer, client, server) })
	both.Go(func() { r.carry(c, ToClient, server, client) })
	both.Wait()
	c.close()
}

// dialPatience bounds how long Close may wait for a target that does not answer.
const dialPatience = 5 * time.Second

func dialTarget(target string) (duplex, error) {
	network := "tcp"
	if target != "" && target[0] == '/' {
		network = "unix"
	}
	conn, err := net.DialTimeout(network, target, dialPatience)
	if err != nil {
		return nil, err
	}
	return conn.(duplex), nil // *net.TCPConn or *net.UnixConn
}

func (r *Relay) add(c *relayConn) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.closed || r.refusing {
		return false
	}
	r.conns[c] = struct{}{}
	return true
}

func (r *Relay) drop(c *relayConn) {
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.conns, c)
}

// Addr is where the relay listens.
func (r *Relay) Addr() string { return loopback(r.Port()) }

// Port is the TCP port that the relay listens on.
func (r *Relay) Port() int { return r.ports.numbers[0] }

// Bytes is how many bytes have been delivered in a direction, over all
// connections since the start.
func (r *Relay) Bytes(d Direction) int64 { return r.links[d].delivered.Load() }

// SetLink changes the quality of one direction for bytes that come from now on.
func (r *Relay) SetLink(d Direction, l Link) { r.links[d].set(l) }

// SetDelay gives both directions the same delay: half a round trip's.
func (r *Relay) SetDelay(d time.Duration) {
	for _, w := range r.links {
		l := w.get()
		l.Delay = d
		w.set(l)
	}
}

// Stall lets nothing through in the given directions, both when none is given:
// connections stay open and nobody is told, neither of bytes nor of a close.
// That is a half-open connection in one direction, a partition in both. New
// connections are taken and hang.
func (r *Relay) Stall(ds ...Direction) {
	if len(ds) == 0 {
		ds = []Direction{ToServer, ToClient}
	}
	for _, d := range ds {
		r.links[d].stall()
	}
}

// Heal ends Stall in all directions. What was held goes on its way, as TCP
// would send it again.
func (r *Relay) Heal() {
	for _, w := range r.links {
		w.heal()
	}
}

// Cut resets all open connections, on both sides. New ones work.
func (r *Relay) Cut() {
	r.mu.Lock()
	conns := make([]*relayConn, 0, len(r.conns))
	for c := range r.conns {
		conns = append(conns, c)
	}
	r.mu.Unlock()
	for _, c := range conns {
		c.reset()
	}
}

// CutAfter delivers n more bytes in direction d, counted over all connections,
// and then resets the connection that carried the last of them, once. It is for
// ending a connection in the middle of a message. n = 0 resets the next
// connection that wants to send; a negative n takes the order back.
func (r *Relay) CutAfter(d Direction, n int64) { r.links[d].cutAfter(n) }

// Refuse closes the port, as when no server runs there, or opens it again. Open
// connections stay as they are.
func (r *Relay) Refuse(refuse bool) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.closed || r.refusing == refuse {
		return nil
	}
	if refuse {
		r.refusing = true
		return r.listener.Close()
	}
	if err := r.listen(); err != nil {
		return fmt.Errorf("listen again: %w", err)
	}
	r.refusing = false
	return nil
}

// Close resets all connections and ends the relay.
func (r *Relay) Close() error {
	r.mu.Lock()
	if r.closed {
		r.mu.Unlock()
		return nil
	}
	r.closed = true
	err := r.listener.Close()
	if errors.Is(err, net.ErrClosed) { // by Refuse
		err = nil
	}
	r.mu.Unlock()
	r.Cut()
	r.wg.Wait()
	r.pace.close()
	return errors.Join(err, r.ports.Release())
}
