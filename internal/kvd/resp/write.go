package resp

import "sync"

// Flush implements Replies: it wakes the writer if there is something to write.
func (c *conn) Flush() {
	if !c.anythingReady() {
		return
	}
	select {
	case c.wake <- struct{}{}:
	default: // it is awake, and will check again
	}
}

// write is the writer's goroutine.
func (c *conn) write(stop <-chan struct{}) {
	for {
		select {
		case <-c.wake:
		case <-stop:
			return
		}
		c.writing.Lock()
		c.flush()
		c.writing.Unlock()
	}
}

// flush writes all replies that are complete and in order. The caller holds writing.
func (c *conn) flush() {
	var o *output
	for {
		if !c.anythingReady() {
			break
		}
		if o == nil {
			o = outputs.Get().(*output)
		}
		c.take(o)
		for i := range o.items {
			if reply := o.items[i].reply; reply != nil {
				reply.render(&o.encoder)
			} else {
				o.raw(o.items[i].push)
			}
			if len(o.b) >= writeSize || len(o.large) > 0 {
				c.send(o)
			}
		}
		c.send(o)
		c.release(o)
	}
	if o != nil {
		outputs.Put(o)
	}
}

// output is the state of a writer.
type output struct {
	items []item
	encoder
}

var outputs = sync.Pool{New: func() any { return &output{encoder: encoder{byReference: true}} }}

// maxTake is the largest number of replies that are taken from the ring at once.
const maxTake = 1024

func (c *conn) anythingReady() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.ring.ready() || c.pushes.ready(c.ring.head)
}

// take takes from the ring what is complete and in order.
func (c *conn) take(o *output) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for len(o.items) < maxTake {
		if c.pushes.ready(c.ring.head) {
			o.items = append(o.items, item{push: c.pushes.take()})
			continue
		}
		if !c.ring.ready() {
			return
		}
		o.items = append(o.items, item{reply: c.ring.take()})
	}
}

// send writes the collected bytes.
func (c *conn) send(o *output) {
	if len(o.b) == 0 && len(o.large) == 0 {
		return
	}
	from := 0
	for _, l := range o.large {
		c.sendBytes(o.b[from:l.at])
		c.sendBytes(l.bytes)
		from = l.at
	}
	c.sendBytes(o.b[from:])
	clear(o.large)
	o.large = o.large[:0]
	if cap(o.b) > largeSize {
		o.b = nil
	}
	o.b = o.b[:0]
}

// sendBytes writes to the client, unless the connection was given up.
func (c *conn) sendBytes(b []byte) {
	c.mu.Lock()
	broken := c.broken
	c.mu.Unlock()
	if broken || len(b) == 0 {
		return
	}
	c.srv.writes.Add(1)
	if _, err := c.sock.Write(b); err != nil {
		c.srv.log.Debug("client is gone", "client", c.sock.RemoteAddr(), "cause", err)
		c.abort()
	}
}

// maxFree is the largest number of written replies that a connection keeps for reuse.
const maxFree = 128

// release accounts for what was written, and wakes the reader.
func (c *conn) release(o *output) {
	c.mu.Lock()
	for i := range o.items {
		r := o.items[i].reply
		if r == nil {
			continue
		}
		c.inFlight -= r.cost
		c.unread.bytes -= r.size
		c.open--
		if len(c.free) < maxFree {
			r.reset() // drop the answer
			c.free = append(c.free, r)
		}
	}
	if c.waits {
		c.changed.Signal()
	}
	resume := c.unread.refused
	c.unread.refused = false
	c.mu.Unlock()
	clear(o.items)
	o.items = o.items[:0]
	if resume {
		c.session.Resume()
	}
}
