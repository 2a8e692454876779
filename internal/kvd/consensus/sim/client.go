package sim

import (
	"time"

	"github.com/weirdb/weir/internal/kvd/consensus"
	"github.com/weirdb/weir/internal/kvd/wire"
)

// driver is the client side of a session: it turns operations into messages and answers into
// outcomes.
type driver interface {
	issue(o *operation)
	connected(replica uint64)
	disconnected(replica uint64)
	receive(replica uint64, m *wire.Message)
	tick()
	take() ([]request, []outcome)
}

// request is a message for a replica.
type request struct {
	to      uint64
	message *wire.Message
}

// outcome is the outcome of an operation.
type outcome struct {
	operation *operation
	failure   string
	refused   bool
	result    []byte
	revision  uint64
	index     uint64
	view      uint64
	fast      bool
	lapsed    bool // it failed because the session has expired
}

// client is a process with one session at a time and several operations in flight. When it
// crashes, another process with a new session takes its place.
type client struct {
	w       *World
	place   place
	random  *random
	driver  driver
	make    func() driver
	session int // index in World.sessions
	conns   []*conn
	depth   int // operations in flight
	left    int // operations to issue
	issued  int
	open    int // in flight
	think   time.Duration
	writes  float64 // share of writes among its operations
	weak    bool    // its driver supports weak operations
	life    uint64
	turning bool
	lapsed  bool // the session has expired
	ending  bool // it has asked for the end of the session
	ended   bool // and has the answer
}

// conn is a client's connection to one replica.
type conn struct {
	client  *client
	replica *replica
	addr    consensus.Addr
	open    bool
}

// start starts a new session on new connections.
func (c *client) start() {
	c.life++
	c.session = len(c.w.sessions)
	c.w.sessions = append(c.w.sessions, &sessionRun{})
	c.driver, c.conns, c.issued, c.open, c.turning, c.lapsed, c.ending, c.ended = c.make(), nil, 0, 0, false, false, false, false
	for _, r := range c.w.replicas {
		c.connect(r)
	}
	c.plan()
	c.tick(c.life)
}

// crash ends the process. Its operations in flight may or may not happen.
func (c *client) crash() {
	c.w.Stats.Faults.ClientCrashes++
	c.w.note("client of session %d crashes", c.session)
	c.w.sessions[c.session].crashed = true
	c.renew()
}

// renew starts another session on new connections.
func (c *client) renew() {
	for _, k := range append([]*conn(nil), c.conns...) {
		k.shut()
	}
	c.start()
}

func (c *client) tick(life uint64) {
	c.w.after(int64(10*time.Millisecond), func() {
		if c.life != life || c.w.over { // a client that has all its answers still takes care of its weak writes
			return
		}
		if !c.w.Defects.NeverAskAgain {
			c.driver.tick()
		}
		c.plan()
		c.tick(life)
	})
}

// plan schedules a turn of the client a little later.
func (c *client) plan() {
	if c.turning {
		return
	}
	c.turning = true
	life := c.life
	c.w.after(c.random.between(time.Microsecond, 50*time.Microsecond), func() {
		if c.life == life {
			c.turn()
		}
	})
}

func (c *client) turn() {
	c.turning = false
	c.leave()
	for !c.ending && c.open < c.depth && c.left > 0 && (c.think == 0 || c.random.chance(0.5)) {
		c.issue()
	}
	c.exchange()
	if c.left > 0 && c.open < c.depth {
		life := c.life
		c.w.after(c.random.around(max(c.think, 100*time.Microsecond)), func() {
			if c.life == life {
				c.plan()
			}
		})
	}
}

// leave ends the session now and then, as a program does that is done; another one follows.
func (c *client) leave() {
	d, can := c.driver.(*sessionClient)
	if can && !c.ending && c.open == 0 && c.issued > 0 && c.left > 0 && c.random.chance(0.01) {
		c.ending = d.end()
	}
}

func (c *client) issue() {
	o := c.w.load.operation(c.writes, c.weak)
	o.session, o.order, o.called = c.session, c.issued, c.w.nextStep()
	c.issued++
	c.open++
	c.left--
	c.w.history = append(c.w.history, o)
	c.w.Stats.Operations++
	if c.w.tracing() {
		c.w.trace("call   #%d session %d.%d %s weak=%v", o.id, o.session, o.order, describeCommand(&o.command), o.weak)
	}
	c.driver.issue(o)
}

// exchange sends the driver's messages and records its outcomes.
func (c *client) exchange() {
	requests, outcomes := c.driver.take()
	for _, q := range requests {
		for _, k := range c.conns {
			if k.replica.id == q.to && k.open {
				k.toServer(q.message)
				break
			}
		}
	}
	for i := range outcomes {
		c.finish(&outcomes[i])
	}
	if len(outcomes) > 0 {
		c.plan()
	}
	if c.ended && !c.lapsed {
		c.w.Stats.Ended++
		c.w.note("session %d has ended", c.session)
		c.renew()
	}
	if c.lapsed {
		c.w.Stats.Expired++
		c.w.sessions[c.session].lapsed = true
		c.w.note("session %d has expired", c.session)
		c.renew()
	}
}

func (c *client) finish(f *outcome) {
	o := f.operation
	if o.returned != 0 {
		c.w.violate("outcome", "two answers: %v, then %s", o, describeResult(f.result))
		return
	}
	o.returned, o.failure, o.refused = c.w.nextStep(), f.failure, f.refused
	o.result, o.revision, o.index, o.view, o.fast = f.result, f.revision, f.index, f.view, f.fast
	c.open--
	if o.failure != "" {
		c.w.Stats.Failed++
		c.lapsed = c.lapsed || f.lapsed
	}
	if o.fast {
		c.w.Stats.Fast++
	}
	c.w.hashOutcome(o)
	if c.w.tracing() {
		c.w.trace("answer %v", o)
	}
}

// connect opens a connection as soon as the replica can be reached.
func (c *client) connect(r *replica) {
	life := c.life
	c.w.after(c.random.around(2*time.Millisecond), func() {
		if c.life != life {
			return
		}
		to, back := c.w.net.link(c.place, r.place()), c.w.net.link(r.place(), c.place)
		if !r.up || r.gone || to.cuts+back.cuts > 0 {
			c.w.after(c.random.between(5*time.Millisecond, 60*time.Millisecond), func() {
				if c.life == life && !c.w.over {
					c.connect(r)
				}
			})
			return
		}
		c.w.lastAddr++
		k := &conn{client: c, replica: r, addr: c.w.lastAddr, open: true}
		c.conns = append(c.conns, k)
		r.conns = append(r.conns, k)
		c.driver.connected(r.id)
		c.plan()
	})
}

func (k *conn) toServer(m *wire.Message) {
	if k.client.w.tracing() {
		k.client.w.trace("s%d -> %d  %s", k.client.session, k.replica.id, describe(m))
	}
	k.client.w.net.send(k.client.place, k.replica.place(), m.Append(nil), func(b []byte) {
		if k.open {
			k.replica.deliver(k.addr, b)
		}
	}, k.broken)
}

func (k *conn) toClient(b []byte) {
	if k.dropped() {
		return
	}
	k.client.w.net.send(k.replica.place(), k.client.place, b, func(b []byte) {
		if !k.open {
			return
		}
		m := new(wire.Message)
		if err := m.Decode(b); err != nil {
			k.client.w.violate("wire", "a message to session %d does not decode: %v", k.client.session, err)
			return
		}
		if k.client.w.tracing() {
			k.client.w.trace("%d -> s%d  %s", k.replica.id, k.client.session, describe(m))
		}
		k.client.w.hashMessage(k.replica.id, uint64(k.addr), b)
		k.client.driver.receive(k.replica.id, m)
		k.client.plan()
	}, k.broken)
}

// shut removes the connection from both lists.
func (k *conn) shut() {
	k.open = false
	k.replica.conns = without(k.replica.conns, k)
	k.client.conns = without(k.client.conns, k)
}

// broken ends the connection; the client soon notices and reconnects.
func (k *conn) broken() {
	if !k.open {
		return
	}
	k.shut()
	c, life := k.client, k.client.life
	c.w.Stats.Faults.Disconnects++
	c.w.after(c.random.between(100*time.Microsecond, 30*time.Millisecond), func() {
		if c.life == life {
			c.driver.disconnected(k.replica.id)
			c.plan()
			c.connect(k.replica)
		}
	})
}

func without(list []*conn, k *conn) []*conn {
	for i, x := range list {
		if x == k {
			return append(list[:i:i], list[i+1:]...)
		}
	}
	return list
}

// sessionRun is what the checkers need to know of a session besides its operations.
type sessionRun struct {
	crashed bool
	lapsed  bool // it has expired
}
