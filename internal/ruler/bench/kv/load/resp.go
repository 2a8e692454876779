package kvload

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"sync/atomic"
	"time"
)

// Place says to which node of a cluster streams connect.
type Place int

const (
	// AtLeader connects all streams to the leader.
	AtLeader Place = iota
	// Spread connects stream i to node i modulo their number.
	Spread
)

func (p Place) String() string {
	if p == AtLeader {
		return "leader"
	}
	return "spread"
}

// RESP drives servers of the Redis protocol, including weir kv, over one connection per stream.
type RESP struct {
	// Addrs are the nodes. Required.
	Addrs []string
	// Place chooses among them. AtLeader queries the ROLE of each.
	Place Place
	// Levels is set if the server supports WEIR.LEVEL, which switches a connection between
	// strong operations and those of its session. Default: every operation is a plain one.
	Levels bool
	// WeakWrites is set if session-level writes cost less there.
	WeakWrites bool

	leader   atomic.Pointer[string]
	patience time.Duration // with nodes that have no leader; default: leaderPatience
}

// Promises implements Driver.
func (d *RESP) Promises() Promises {
	return Promises{WeakReads: d.Levels, WeakWrites: d.Levels && d.WeakWrites, OwnWrites: true}
}

// Open implements Driver.
func (d *RESP) Open(ctx context.Context, stream, pendings int) (Client, error) {
	addr := d.Addrs[stream%len(d.Addrs)]
	if d.Place == AtLeader {
		var err error
		if addr, err = d.findLeader(ctx); err != nil {
			return nil, err
		}
	}
	c, err := dialRESP(ctx, addr)
	if err != nil {
		return nil, err
	}
	c.levels = d.Levels
	c.waiting = make([]int, 0, 2*pendings)
	return c, nil
}

// findLeader returns the address of the node that reports itself as master, and waits for one
// during an election. A single node is not asked.
func (d *RESP) findLeader(ctx context.Context) (string, error) {
	if len(d.Addrs) == 1 {
		return d.Addrs[0], nil
	}
	if known := d.leader.Load(); known != nil {
		return *known, nil
	}
	for deadline := time.Now().Add(cmp.Or(d.patience, leaderPatience)); ; {
		var errs []error
		for _, addr := range d.Addrs {
			role, err := askRole(ctx, addr)
			if err == nil && role == "master" {
				d.leader.Store(&addr)
				return addr, nil
			}
			errs = append(errs, err)
		}
		if ctx.Err() != nil || time.Now().After(deadline) {
			return "", errors.Join(append([]error{errors.New("no node reports that it is the leader")}, errs...)...)
		}
		select {
		case <-time.After(leaderPause):
		case <-ctx.Done():
		}
	}
}

// leaderPatience is how long to search for a leader, leaderPause the time between attempts.
const (
	leaderPatience = time.Minute
	leaderPause    = 20 * time.Millisecond
)

func askRole(ctx context.Context, addr string) (string, error) {
	c, err := dialRESP(ctx, addr)
	if err != nil {
		return "", err
	}
	defer c.Close()
	r, err := c.ask("ROLE")
	if err != nil {
		return "", fmt.Errorf("ask %s for its role: %w", addr, err)
	}
	if len(r.items) == 0 {
		return "", fmt.Errorf("ask %s for its role: no answer", addr)
	}
	return string(r.items[0].text), nil
}

// Near implements Driver.
func (d *RESP) Near() Driver { return &RESP{Addrs: d.Addrs, patience: d.patience} }

// respClient is one connection.
type respClient struct {
	line
	out     []byte
	in      []byte // in[at:] was read and is not yet parsed
	at      int
	levels  bool
	session bool  // the last requested level
	waiting []int // slots in the order of their replies; -1 for a change of level
	head    int
}

func dialRESP(ctx context.Context, addr string) (*respClient, error) {
	conn, err := dial(ctx, addr)
	if err != nil {
		return nil, err
	}
	return &respClient{line: line{conn: conn}, in: make([]byte, 0, 16<<10)}, nil
}

// level is the slot of a reply that belongs to no operation.
const level = -1

// Issue implements Client.
func (c *respClient) Issue(slot int, op *Op) {
	if c.levels && op.Class.Weak() != c.session {
		c.session = op.Class.Weak()
		name := "strong"
		if c.session {
			name = "session"
		}
		c.out = appendCommand(c.out, "WEIR.LEVEL", name)
		c.waiting = append(c.waiting, level)
	}
	if op.Class.Write() {
		c.out = appendBulk(appendBulk(appendBulk(appendHead(c.out, 3), "SET"), op.Key), op.Value)
	} else {
		c.out = appendBulk(appendBulk(appendHead(c.out, 2), "GET"), op.Key)
	}
	c.waiting = append(c.waiting, slot)
}

// Poll implements Client.
func (c *respClient) Poll(ended func(slot int, a Answer)) error {
	if err := c.send(); err != nil {
		return err
	}
	for some := false; ; {
		r, n, err := parseReply(c.in[c.at:])
		switch {
		case err == nil:
			c.at += n
			if r.kind == '>' {
				continue // an unsolicited push message
			}
			slot, err := c.next()
			if err != nil {
				return err
			}
			if slot == level {
				if r.kind == '-' {
					return fmt.Errorf("change the level: %w", ReplyError(r.text))
				}
				continue
			}
			some = true
			ended(slot, answerOf(r))
		case !errors.Is(err, errIncomplete):
			return err
		case some:
			return nil
		default:
			if err := c.fill(); err != nil {
				return err
			}
		}
	}
}

func answerOf(r reply) Answer {
	if r.kind == '-' || r.kind == '!' {
		return Answer{Err: ReplyError(r.text)}
	}
	return Answer{Value: r.text, Found: !r.null}
}

// next removes the slot of the next reply.
func (c *respClient) next() (int, error) {
	if c.head == len(c.waiting) {
		return 0, fmt.Errorf("%w: a reply without a request", errProtocol)
	}
	slot := c.waiting[c.head]
	if c.head++; c.head == len(c.waiting) {
		c.waiting, c.head = c.waiting[:0], 0
	} else if c.head > 1024 {
		c.waiting = append(c.waiting[:0], c.waiting[c.head:]...)
		c.head = 0
	}
	return slot, nil
}

func (c *respClient) send() error {
	if len(c.out) == 0 {
		return nil
	}
	_, err := c.conn.Write(c.out)
	c.out = c.out[:0]
	return c.lost(err)
}

// fill reads more into the buffer.
func (c *respClient) fill() error {
	if c.at > 0 {
		c.in = append(c.in[:0], c.in[c.at:]...)
		c.at = 0
	}
	if len(c.in) == cap(c.in) {
		c.in = append(make([]byte, 0, 2*cap(c.in)), c.in...)
	}
	n, err := c.conn.Read(c.in[len(c.in):cap(c.in)])
	c.in = c.in[:len(c.in)+n]
	if n > 0 {
		return nil
	}
	if err == nil {
		err = io.ErrNoProgress
	}
	return c.lost(err)
}

// ask sends a command and returns its answer. Nothing else may be in flight.
func (c *respClient) ask(args ...string) (reply, error) {
	c.out = appendCommand(c.out, args...)
	return c.answer()
}

// answer sends buffered commands and reads one reply.
func (c *respClient) answer() (reply, error) {
	if err := c.send(); err != nil {
		return reply{}, err
	}
	for {
		r, n, err := parseReply(c.in[c.at:])
		if err == nil {
			c.at += n
			if r.kind == '-' {
				return r, ReplyError(r.text)
			}
			return r, nil
		}
		if !errors.Is(err, errIncomplete) {
			return reply{}, err
		}
		if err := c.fill(); err != nil {
			return reply{}, err
		}
	}
}
