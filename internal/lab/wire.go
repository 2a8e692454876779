package lab

import (
	"errors"
	"io"
	"math/rand/v2"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"
)

// wire is one direction of a Relay, shared by all its connections.
type wire struct {
	delivered atomic.Int64

	mu       sync.Mutex // guards the fields below
	link     Link
	busyTill time.Time     // when the last byte accepted so far has left the sender
	open     chan struct{} // closed when bytes may pass; replaced by stall
	budget   int64         // bytes until the cut; negative: no cut requested
}

func newWire() *wire {
	w := &wire{open: make(chan struct{}), budget: -1}
	close(w.open)
	return w
}

func (w *wire) get() Link {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.link
}

func (w *wire) set(l Link) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.link = l
	if l.BytesPerSecond <= 0 {
		w.busyTill = time.Time{}
	}
}

func (w *wire) stall() {
	w.mu.Lock()
	defer w.mu.Unlock()
	select {
	case <-w.open:
		w.open = make(chan struct{})
	default: // stalled already
	}
}

func (w *wire) heal() {
	w.mu.Lock()
	defer w.mu.Unlock()
	select {
	case <-w.open:
	default:
		close(w.open)
	}
}

// pass waits until the wire is not stalled; false means that gone was closed first.
func (w *wire) pass(gone <-chan struct{}) bool {
	w.mu.Lock()
	open := w.open
	w.mu.Unlock()
	select {
	case <-gone:
		return false
	case <-open:
		return true
	}
}

func (w *wire) cutAfter(n int64) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.budget = n
}

// grant takes n bytes from the budget of a requested cut and returns how many of them may pass,
// and whether to cut the connection after them.
func (w *wire) grant(n int) (pass int, cut bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.budget < 0 {
		return n, false
	}
	if int64(n) < w.budget {
		w.budget -= int64(n)
		return n, false
	}
	pass = int(w.budget)
	w.budget = -1
	return pass, true
}

// arrival is when n bytes that are sent now are there. On a wire with limited
// bandwidth they queue behind all that was sent before.
//
//	now      busyTill                 arrival
//	 |---------|=======|---------------|
//	  others'    n / B        delay
func (w *wire) arrival(now time.Time, n int) time.Time {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.link.BytesPerSecond > 0 {
		if w.busyTill.Before(now) {
			w.busyTill = now
		}
		w.busyTill = w.busyTill.Add(time.Duration(float64(n) / float64(w.link.BytesPerSecond) * float64(time.Second)))
		now = w.busyTill
	}
	now = now.Add(w.link.Delay)
	if w.link.Jitter > 0 {
		now = now.Add(time.Duration(rand.Int64N(int64(w.link.Jitter) + 1)))
	}
	if n > 0 && w.link.Loss > 0 && rand.Float64() < w.link.Loss {
		now = now.Add(resendAfter)
	}
	return now
}

// chunkSize is how much to read at once: about 2 ms worth of bytes for a narrow wire, so that
// they arrive evenly.
func (w *wire) chunkSize() int {
	l := w.get()
	if l.BytesPerSecond <= 0 {
		return maxChunk
	}
	return int(max(64, min(maxChunk, l.BytesPerSecond/500)))
}

const (
	maxChunk = 32 << 10
	// maxInFlight limits how much one connection has in flight in one direction. When it is
	// reached, the sender must wait, as with TCP's window.
	maxInFlight = 4 << 20
)

// chunk is some bytes in flight. end marks the sender's close, which is delivered like bytes.
type chunk struct {
	data []byte
	at   time.Time
	end  bool
}

// flight is the queue of chunks between a direction's reader and its writer.
type flight struct {
	mu     sync.Mutex // guards the fields below
	space  sync.Cond  // signalled when bytes have left or the flight was closed
	queue  []chunk
	bytes  int
	closed bool

	more chan struct{} // holds one token if the queue may have grown
}

func newFlight() *flight {
	f := &flight{more: make(chan struct{}, 1)}
	f.space.L = &f.mu
	return f
}

// push adds a chunk, and waits for room; false means that the flight is closed.
func (f *flight) push(c chunk) bool {
	f.mu.Lock()
	for f.bytes > maxInFlight && !f.closed {
		f.space.Wait()
	}
	if f.closed {
		f.mu.Unlock()
		return false
	}
	// If a wire becomes faster, bytes must not overtake earlier ones.
	if n := len(f.queue); n > 0 && c.at.Before(f.queue[n-1].at) {
		c.at = f.queue[n-1].at
	}
	f.queue = append(f.queue, c)
	f.bytes += len(c.data)
	f.mu.Unlock()
	select {
	case f.more <- struct{}{}:
	default:
	}
	return true
}

// pop removes the first chunk, if any.
func (f *flight) pop() (chunk, bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if len(f.queue) == 0 {
		return chunk{}, false
	}
	c := f.queue[0]
	f.queue[0] = chunk{}
	f.queue = f.queue[1:]
	f.bytes -= len(c.data)
	f.space.Signal()
	return c, true
}

func (f *flight) close() {
	f.mu.Lock()
	f.closed = true
	f.mu.Unlock()
	f.space.Broadcast()
}

// duplex is a connection whose two directions can be closed separately.
type duplex interface {
	net.Conn
	CloseWrite() error
}

// relayConn is one connection through a Relay.
type relayConn struct {
	client *net.TCPConn
	gone   chan struct{} // closed when the connection is over

	mu     sync.Mutex // guards the fields below
	server duplex
	over   bool
}

// attach adds the server's side; false means that the connection has ended.
func (c *relayConn) attach(server duplex) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.over {
		_ = server.Close()
		return false
	}
	c.server = server
	return true
}

// reset ends the connection abruptly: with RST, if the other side is TCP.
func (c *relayConn) reset() {
	c.finish(func(conn net.Conn) {
		if t, ok := conn.(*net.TCPConn); ok {
			_ = t.SetLinger(0)
		}
	})
}

// close ends the connection after both directions have ended.
func (c *relayConn) close() { c.finish(func(net.Conn) {}) }

func (c *relayConn) finish(before func(net.Conn)) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.over {
		return
	}
	c.over = true
	close(c.gone)
	before(c.client)
	_ = c.client.Close()
	if c.server != nil {
		before(c.server)
		_ = c.server.Close()
	}
}

// carry forwards the bytes of one direction of c until the sender closes or the connection
// ends.
func (r *Relay) carry(c *relayConn, d Direction, from io.Reader, to duplex) {
	w, f := r.links[d], newFlight()
	var reader sync.WaitGroup
	reader.Go(func() { r.collect(c, w, f, from) })
	r.deliver(c, w, f, to)
	f.close()
	reader.Wait()
}

// collect reads from the sender and computes each chunk's time of arrival.
func (r *Relay) collect(c *relayConn, w *wire, f *flight, from io.Reader) {
	buf := make([]byte, maxChunk)
	for {
		n, err := from.Read(buf[:w.chunkSize()])
		if n > 0 && !f.push(chunk{data: append([]byte(nil), buf[:n]...), at: w.arrival(time.Now(), n)}) {
			return
		}
		switch {
		case err == nil:
		case errors.Is(err, io.EOF):
			f.push(chunk{at: w.arrival(time.Now(), 0), end: true})
			return
		default: // reset by its peer, or by us
			c.reset()
			return
		}
	}
}

// deliver writes each chunk at its time.
func (r *Relay) deliver(c *relayConn, w *wire, f *flight, to duplex) {
	due := make(chan struct{}, 1)
	for {
		next, ok := f.pop()
		if !ok {
			select {
			case <-c.gone:
				return
			case <-f.more:
			}
			continue
		}
		if time.Until(next.at) > 0 {
			r.pace.at(next.at, func() { due <- struct{}{} })
			select {
			case <-c.gone:
				return
			case <-due:
			}
		}
		if !w.pass(c.gone) {
			return
		}
		if next.end {
			_ = to.CloseWrite()
			return
		}
		pass, cut := w.grant(len(next.data))
		n, err := to.Write(next.data[:pass])
		w.delivered.Add(int64(n))
		if cut {
			awaitSent(to)
		}
		if cut || err != nil {
			c.reset()
			return
		}
	}
}

// awaitSent waits until the kernel has sent what was written, as long as the peer reads: a
// reset drops the rest, and CutAfter promises every byte before the cut.
func awaitSent(conn net.Conn) {
	t, ok := conn.(*net.TCPConn)
	if !ok {
		return
	}
	raw, err := t.SyscallConn()
	if err != nil {
		return
	}
	for deadline := time.Now().Add(time.Second); time.Now().Before(deadline); time.Sleep(100 * time.Microsecond) {
		unsent := 0
		ctlErr := raw.Control(func(fd uintptr) { unsent, err = unix.IoctlGetInt(int(fd), unix.SIOCOUTQ) })
		if ctlErr != nil || err != nil || unsent == 0 {
			return
		}
	}
}
