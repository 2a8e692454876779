package lab

import (
	"errors"
	"fmt"
	"net"
	"sync"
	"time"
)

// Direction is a direction through a Relay.
type Direction int

// The directions, named after the receiver.
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
	// Delay is the shortest time that each byte takes; a round trip takes both directions'
	// delays. Scheduling adds about 0.1 ms (BenchmarkRelayRoundTrip).
	Delay time.Duration
	// BytesPerSecond is the bandwidth, shared by all connections. Default: 0, no limit.
	BytesPerSecond int64
	// Jitter is the largest random addition to Delay, uniformly distributed. Bytes arrive in
	// the order in which they were sent, as with TCP. Default: 0.
	Jitter time.Duration
	// Loss is the share of chunks, in [0, 1], that are lost once and sent again after
	// resendAfter: this is the effect of packet loss on TCP if too little follows for the
	// receiver to request the packet. Default: 0.
	Loss float64
}

// resendAfter is the shortest time after which Linux sends a lost segment again.
const resendAfter = 200 * time.Millisecond

// Relay is a TCP relay that simulates bad networks. It stands between two parts of a test:
// clients connect to Addr, and it connects to the target. It never loses, changes or reorders
// bytes within a connection, just as TCP does not; packet loss appears as delay.
//
// Its methods are safe for concurrent use, and their effect is complete when they return,
// except for bytes that a kernel has already taken.
type Relay struct {
	target string
	pace   *pacer
	ports  *Ports // a single port

	mu       sync.Mutex // guards the fields below
	listener net.Listener
	refusing bool
	closed   bool
	links    [2]*wire
	conns    map[*relayConn]struct{}
	wg       sync.WaitGroup
}

// StartRelay listens on a free port of the loopback, which it keeps until Close, and forwards
// connections to target: HOST:PORT, or the path of a Unix socket.
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

// listen opens the port, the same one each time. The caller holds the lock, or is the only one
// that knows r.
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

// serve forwards one connection until it ends.
func (r *Relay) serve(client *net.TCPConn) {
	c := &relayConn{client: client, gone: make(chan struct{})}
	if !r.add(c) {
		c.reset()
		return
	}
	defer r.drop(c)
	// A partitioned network does not let a connection through to the server either.
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

// dialPatience limits how long Close waits for a target that does not answer.
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

// Addr is the relay's address.
func (r *Relay) Addr() string { return loopback(r.Port()) }

// Port is the TCP port that the relay listens on.
func (r *Relay) Port() int { return r.ports.numbers[0] }

// Bytes is how many bytes have been delivered in a direction, over all
// connections since the start.
func (r *Relay) Bytes(d Direction) int64 { return r.links[d].delivered.Load() }

// SetLink changes the quality of one direction for bytes that arrive from now on.
func (r *Relay) SetLink(d Direction, l Link) { r.links[d].set(l) }

// SetDelay gives both directions the same delay: half of a round trip.
func (r *Relay) SetDelay(d time.Duration) {
	for _, w := range r.links {
		l := w.get()
		l.Delay = d
		w.set(l)
	}
}

// Stall lets nothing through in the given directions, or in both if none is given: connections
// stay open and neither bytes nor closes pass. In one direction that is a half-open connection,
// in both a partition. New connections are accepted and hang.
func (r *Relay) Stall(ds ...Direction) {
	if len(ds) == 0 {
		ds = []Direction{ToServer, ToClient}
	}
	for _, d := range ds {
		r.links[d].stall()
	}
}

// Heal ends Stall in all directions. Bytes that were held are delivered, as TCP would send them
// again.
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

// CutAfter delivers n more bytes in direction d, counted over all connections, and then resets
// the connection that carried the last of them, once. It ends a connection in the middle of a
// message. n = 0 resets the next connection that sends; a negative n cancels.
func (r *Relay) CutAfter(d Direction, n int64) { r.links[d].cutAfter(n) }

// Refuse closes the port, as if no server ran there, or opens it again. Open connections are
// not affected.
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

// Close resets all connections and stops the relay.
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
