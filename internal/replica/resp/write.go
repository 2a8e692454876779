package resp

// Flush implements Replies: it wakes the writer if there is something to write.
func (c *conn) Flush() {
	c.mu.Lock()
	ready := c.ring.ready() || c.pushes.ready(c.ring.head)
	c.mu.Unlock()
	if !ready {
		return
	}
	select {
	case c.wake <- struct{}{}:
	default: // it is awake, and will look once more
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

// flush writes all that is complete and in order. The caller holds writing.
func (c *conn) flush() {
	for c.take() {
		for i := range c.items {
			if reply := c.items[i].reply; reply != nil {
				reply.render(&c.out)
			} else {
				c.out.b = append(c.out.b, c.items[i].push...)
			}
			if len(c.out.b) >= writeSize {
				c.send()
			}
		}
		c.send()
		c.release()
	}
}

// maxTake is how many replies are taken from the ring at once.
const maxTake = 1024

// take moves what is complete and in order to items.
func (c *conn) take() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	for len(c.items) < maxTake {
		if c.pushes.ready(c.ring.head) {
			c.items = append(c.items, item{push: c.pushes.take()})
			continue
		}
		if !c.ring.ready() {
			break
		}
		c.items = append(c.items, item{reply: c.ring.take()})
	}
	return len(c.items) > 0
}

// send writes the gathered bytes.
func (c *conn) send() {
	if len(c.out.b) == 0 {
		return
	}
	c.mu.Lock()
	broken := c.broken
	c.mu.Unlock()
	if !broken {
		if _, err := c.sock.Write(c.out.b); err != nil {
			c.srv.log.Debug("client is gone", "client", c.sock.RemoteAddr(), "cause", err)
			c.breakOff()
		}
	}
	if cap(c.out.b) > 4*writeSize {
		c.out.b = nil
	}
	c.out.b = c.out.b[:0]
}

// maxFree is how many written replies a connection keeps to be used again.
const maxFree = 1024

// release accounts for what was written, and lets the reader go on.
func (c *conn) release() {
	c.mu.Lock()
	for i := range c.items {
		r := c.items[i].reply
		c.items[i] = item{}
		if r == nil {
			continue
		}
		c.inFlight -= r.cost
		c.open--
		if len(c.free) < maxFree {
			c.free = append(c.free, r)
		}
	}
	if c.waits {
		c.changed.Signal()
	}
	c.mu.Unlock()
	c.items = c.items[:0]
}
