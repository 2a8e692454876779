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
	// maxBatch is the number of requests that are submitted at once.
	maxBatch = 256
	// drainTime is how long a closing connection waits for replies in flight.
	drainTime = 5 * time.Second
	// writeSize is the number of bytes of replies that are collected before a write.
	writeSize = 64 << 10
	// largeSize is the size from which values are not copied to be written.
	largeSize = 4 * writeSize
)

// conn is a client's connection. The reader's goroutine owns the first fields; those below mu
// are shared with the writer and with whatever completes requests.
type conn struct {
	srv     *Server
	sock    net.Conn
	session Session
	state   // set by the client, see client.go

	in      parser
	*turn            // the current turn, nil between turns
	spare   []*Reply // for further commands
	foul    bool     // the client has violated the protocol
	closing bool     // no more commands are accepted
	barrier bool     // the next command waits for all replies

	mu       sync.Mutex
	changed  sync.Cond // the reader waits for progress
	waits    bool
	ring     ring
	pushes   pushQueue
	open     int // commands whose replies are not written
	inFlight int // their cost
	unread   unread
	broken   bool
	free     []*Reply // written replies, for reuse

	wake    chan struct{} // tells the writer that something is complete; has capacity 1
	writing sync.Mutex    // held while taking from the ring and writing
}

// turn collects the commands that have arrived. Connections borrow it while they execute
// commands, so that idle ones use no such memory.
type turn struct {
	replies []*Reply // of parsed commands that are not in the ring yet
	batch   []Request
	tracked []string // the keys that they read, if tracked
	waiting []waiting
	weight  int // cost of the replies
}

var turns = sync.Pool{New: func() any { return new(turn) }}

// waiting is a WAIT command in the turn.
type waiting struct {
	after    int // the number of requests of the turn before it
	replicas int
	timeout  time.Duration
	reply    *Reply
}

// ring has replies in the order of their commands.
type ring struct {
	replies []*Reply // the length is a power of two
	head    uint64   // number of the oldest reply that is not written
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

// item is the next thing to write: a reply or a push.
type item struct {
	reply *Reply
	push  []byte
}

// run serves the client until it disconnects or the connection is closed.
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
	c.abort()
	close(stop)
	<-written
	c.session.Close()
}

// read executes turns until the client disconnects.
func (c *conn) read() {
	var by time.Time
	for !c.closing {
		if next := c.readBy(); next != by {
			by = next
			_ = c.sock.SetReadDeadline(by) // fails on a closed connection, as Read will
			if c.srv.ending() {            // its deadline was replaced
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

// readBy returns the deadline for the client to send something; zero: none.
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

// linger reads and discards input after a protocol error, while the client is sending: a
// connection that is closed with unread bytes is reset, and the error message would be lost.
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

// lingerQuiet is how long a client must send nothing for linger to end.
const lingerQuiet = 200 * time.Millisecond

// busy reports whether the client waits for something, so that it is not idle.
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

// newReply adds a reply for a command of this size to the turn.
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

// submit submits the turn: first the replies enter the ring, since requests may be completed at
// once. Then keys are tracked, so that no change between a read and its tracking is missed.
// Then the store gets the requests.
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
	if c.writing.TryLock() { // no other goroutine is needed for what was completed at once
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

// reset clears the turn and keeps its memory.
func (t *turn) reset() {
	clear(t.replies)
	clear(t.batch)
	clear(t.tracked)
	clear(t.waiting)
	t.replies, t.batch, t.tracked, t.waiting, t.weight = t.replies[:0], t.batch[:0], t.tracked[:0], t.waiting[:0], 0
}

// hold waits while too much is in flight or, at a barrier, anything.
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

// drain waits until all replies are written, the client has disconnected or drainTime has
// passed.
func (c *conn) drain() {
	late := time.AfterFunc(drainTime, c.abort)
	defer late.Stop()
	c.barrier = true
	c.hold()
}

// abort gives up the connection. Both goroutines end soon.
func (c *conn) abort() {
	c.mu.Lock()
	c.broken = true
	c.changed.Broadcast()
	c.mu.Unlock()
	_ = c.sock.Close() // nothing is left to send
}
