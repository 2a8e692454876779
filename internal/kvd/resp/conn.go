package resp

import (
	"errors"
	"io"
	"net"
	"os"
	"sync"
	"time"
)

const (
	// maxBatch is how many requests are handed over at once.
	maxBatch = 256
	// drainTime is how long a connection that ends waits for replies under way.
	drainTime = 5 * time.Second
	// writeSize is how many bytes of replies are gathered before they are written.
	writeSize = 64 << 10
	// largeSize is from which size on a value is not copied to be written.
	largeSize = 4 * writeSize
)

// conn is one client. The reader's goroutine owns what stands first; what is
// below mu is shared with the writer and with anyone who completes requests.
type conn struct {
	srv     *Server
	sock    net.Conn
	session Session
	state   // of the client's making, see client.go

	in      parser
	*turn            // under way, nil between turns
	spare   []*Reply // for commands to come
	foul    bool     // the client breaks the protocol
	closing bool     // no more commands are taken
	barrier bool     // the next command waits for all replies

	mu       sync.Mutex
	changed  sync.Cond // the reader waits for progress
	waits    bool
	ring     ring
	pushes   pushQueue
	open     int // commands whose replies are not written
	inFlight int // what they cost
	unread   unread
	broken   bool
	free     []*Reply // replies that were written

	wake    chan struct{} // tells the writer that something is complete; holds one
	writing sync.Mutex    // held by who takes from the ring and writes
}

// turn is what the commands that have arrived become. Connections borrow it for
// as long as they execute commands: idle ones hold no such memory.
type turn struct {
	replies []*Reply // of commands that were parsed and have not entered the ring
	batch   []Request
	tracked []string // keys that they read, to be tracked
	waiting []waiting
	weight  int // what the replies cost
}

var turns = sync.Pool{New: func() any { return new(turn) }}

// waiting is a WAIT of the turn.
type waiting struct {
	after    int // so many of the turn's requests
	replicas int
	timeout  time.Duration
	reply    *Reply
}

// ring holds replies in the order of their commands.
type ring struct {
	replies []*Reply // a power of two
	head    uint64   // number of the oldest one that is not written
	tail    uint64   // number of the next command
}

func (r *ring) len() int { return int(r.tail - r.head) }

func (r *ring) add(reply *Reply) {
	if r.len() == len(r.replies) {
		larger := make([]*Reply, max(16, 2*len(r.replies)))
		for n := r.head; n < r.tail; n++ {
			larger[n&uint64(len(larger)-1)] = r.replies[n&uint64(len(r.replies)-1)]
		}
		r.replies = larger
	}
	r.replies[r.tail&uint64(len(r.replies)-1)] = reply
	r.tail++
}

// ready reports whether the oldest reply is complete.
func (r *ring) ready() bool {
	return r.head < r.tail && r.replies[r.head&uint64(len(r.replies)-1)].done.Load()
}

func (r *ring) take() *Reply {
	reply := r.replies[r.head&uint64(len(r.replies)-1)]
	r.head++
	return reply
}

// item is what the writer writes next: a reply or a push.
type item struct {
	reply *Reply
	push  []byte
}

// run serves the client until it is gone, or until it is told to go.
func (c *conn) run() {
	written := make(chan struct{})
	stop := make(chan struct{})
	go func() { // ends with run, which waits for it
		defer close(written)
		c.write(stop)
	}()
	c.read()
	c.drain()
	c.linger()
	c.srv.tracker.drop(c)
	c.breakOff()
	close(stop)
	<-written
	c.session.Close()
}

// read takes turns until the client has gone.
func (c *conn) read() {
	var by time.Time
	for !c.closing {
		if next := c.readBy(); next != by {
			by = next
			_ = c.sock.SetReadDeadline(by) // fails when it is closed, as Read will
			if c.srv.ending() {            // whose deadline was replaced
				return
			}
		}
		n, err := c.sock.Read(c.in.room())
		if n > 0 {
			c.in.wrote(n)
			c.takeTurn()
		}
		if err == nil {
			continue
		}
		if errors.Is(err, os.ErrDeadlineExceeded) && !c.srv.ending() && c.user != nil && c.busy() {
			continue
		}
		if !errors.Is(err, io.EOF) && !errors.Is(err, net.ErrClosed) {
			c.srv.log.Debug("client is gone", "client", c.sock.RemoteAddr(), "cause", err)
		}
		return
	}
}

// readBy is when the client must have sent something; zero: whenever it likes.
func (c *conn) readBy() time.Time {
	switch idle := c.srv.cfg.IdleTimeout; {
	case c.user == nil:
		return c.loginBy
	case idle > 0:
		return time.Now().Add(idle)
	default:
		return time.Time{}
	}
}

// linger reads on after an error of the protocol, as long as the client sends, and
// lets all of it go: a connection that is closed with bytes unread is reset, and what
// the client was told is lost with it.
func (c *conn) linger() {
	if !c.foul {
		return
	}
	spare := make([]byte, 64<<10)
	for left := redisBulk; left > 0 && !c.srv.ending(); {
		_ = c.sock.SetReadDeadline(time.Now().Add(lingerQuiet)) // fails when it is closed, as Read will
		n, err := c.sock.Read(spare)
		if left -= n; err != nil {
			return
		}
	}
}

// lingerQuiet is how long a client may send nothing before it has heard.
const lingerQuiet = 200 * time.Millisecond

// busy reports whether the client waits for something, which is no idleness.
func (c *conn) busy() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.open > 0 || c.listener.on()
}

// takeTurn executes all commands that have arrived.
func (c *conn) takeTurn() {
	c.turn = turns.Get().(*turn)
	defer func() {
		turns.Put(c.turn)
		c.turn = nil
	}()
	for !c.closing {
		args, size, err := c.in.next()
		if err != nil {
			c.srv.log.Debug("client breaks the protocol", "client", c.sock.RemoteAddr(), "cause", err)
			c.answer(c.newReply(0), func(e *encoder) { e.fail("ERR " + err.Error()) })
			c.closing, c.foul = true, true
			break
		}
		if args == nil {
			break
		}
		c.command(args, size)
		c.weight += c.replies[len(c.replies)-1].cost
		if c.barrier || len(c.replies) >= maxBatch || c.weight >= c.srv.cfg.MaxInFlightBytes {
			c.submit()
			c.hold()
		}
	}
	c.submit()
	c.hold()
}

// newReply enters a reply for a command of so many bytes into the turn.
func (c *conn) newReply(size int) *Reply {
	if len(c.spare) == 0 {
		c.mu.Lock()
		c.spare, c.free = c.free, c.spare
		c.mu.Unlock()
	}
	var r *Reply
	if n := len(c.spare); n > 0 {
		r, c.spare = c.spare[n-1], c.spare[:n-1]
	} else {
		r = new(Reply)
	}
	r.conn, r.proto, r.cost, r.read = c, c.proto, size, false
	c.replies = append(c.replies, r)
	return r
}

// submit hands the turn over: first the replies enter the ring, since requests
// may be completed at once, then keys are tracked, so that no change between a
// read and its tracking is missed, and then the store gets the requests.
func (c *conn) submit() {
	if len(c.replies) == 0 {
		return
	}
	c.mu.Lock()
	for _, r := range c.replies {
		c.ring.add(r)
		c.open++
		c.inFlight += r.cost
		if r.read {
			c.pushes.after = c.ring.tail
		}
	}
	c.mu.Unlock()
	if len(c.tracked) > 0 {
		c.srv.tracker.remember(c, c.tracked)
	}
	done := 0
	for _, w := range c.waiting {
		c.do(c.batch[done:w.after])
		done = w.after
		c.session.Wait(w.replicas, w.timeout, w.reply)
	}
	c.do(c.batch[done:])
	c.srv.commands.Add(uint64(len(c.replies)))
	c.turn.reset()
	if c.writing.TryLock() { // what was completed at once needs no other goroutine
		c.flush()
		c.writing.Unlock()
	} else {
		c.Flush()
	}
}

func (c *conn) do(batch []Request) {
	if len(batch) > 0 {
		c.session.Do(batch)
	}
}

// reset forgets what was handed over, and keeps the memory.
func (t *turn) reset() {
	clear(t.replies)
	clear(t.batch)
	clear(t.tracked)
	clear(t.waiting)
	t.replies, t.batch, t.tracked, t.waiting, t.weight = t.replies[:0], t.batch[:0], t.tracked[:0], t.waiting[:0], 0
}

// hold waits while too much is in flight, or, at a barrier, while anything is.
func (c *conn) hold() {
	count, bytes := c.srv.cfg.MaxInFlight, c.srv.cfg.MaxInFlightBytes
	if c.barrier {
		count, bytes = 1, 1<<62
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	for !c.broken && (c.open >= count || c.inFlight+c.unread.bytes >= bytes) {
		c.waits = true
		c.changed.Wait()
	}
	c.waits = false
	c.barrier = false
	c.closing = c.closing || c.broken
}

// drain waits until all replies are written, the client has gone or drainTime
// has passed.
func (c *conn) drain() {
	late := time.AfterFunc(drainTime, c.breakOff)
	defer late.Stop()
	c.barrier = true
	c.hold()
}

// breakOff gives the client up. Both goroutines end soon.
func (c *conn) breakOff() {
	c.mu.Lock()
	c.broken = true
	c.changed.Broadcast()
	c.mu.Unlock()
	_ = c.sock.Close() // nothing is left to be sent
}
