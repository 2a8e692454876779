package peer

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/weirdb/weir/internal/kvd/wire"
)

// ClientOptions configures a client's connection. Receive is required.
type ClientOptions struct {
	// Cluster is the name that the replica's cluster must have. Default: "", any.
	Cluster string
	// Replica is the id that the dialed replica must have. Default: 0, any.
	Replica uint64
	// Secret is the replicas' ClientSecret. Default: none.
	Secret []byte
	// TLS is set if the replicas demand it. Default: nil, none.
	TLS *Certificates

	// Receive is called with all messages that one read of the connection returned,
	// one call at a time. It owns all memory that the messages refer to; the
	// slice is reused after the call. A call that blocks delays the replica's answers, and one
	// that blocks for longer than the replica's patience loses the connection. It
	// must not call Close.
	Receive func(ms []wire.Message)
	// Down is called once, when the connection has ended, after the last Receive.
	// It must not call Close. Default: nil.
	Down func(why error)

	// QueueBytes bounds what waits to be written. Default: 64 MiB.
	QueueBytes int
	// PingEvery, SilentAfter and HandshakeTimeout are as in Options.
	PingEvery, SilentAfter, HandshakeTimeout time.Duration
	// Latency is an artificial one-way delay of messages, in both
	// directions, as on a wide-area network. It is for benchmarks on loopback
	// addresses; elsewhere the replica's answers are not delayed. Default: 0.
	Latency time.Duration
}

func (o ClientOptions) withDefaults() ClientOptions {
	o.QueueBytes = cmp.Or(o.QueueBytes, DefaultQueueBytes)
	o.PingEvery = cmp.Or(o.PingEvery, DefaultPingEvery)
	o.SilentAfter = max(cmp.Or(o.SilentAfter, DefaultSilentAfter), 2*o.PingEvery)
	o.HandshakeTimeout = cmp.Or(o.HandshakeTimeout, DefaultHandshakeTimeout)
	return o
}

func (o *ClientOptions) validate() error {
	switch {
	case o.Receive == nil:
		return errors.New("no function to receive messages")
	case len(o.Cluster) > maxCluster:
		return fmt.Errorf("cluster name of %d bytes: at most %d", len(o.Cluster), maxCluster)
	case o.Latency < 0 || o.Latency > maxLatency:
		return fmt.Errorf("latency %v: must be from 0 to %v", o.Latency, maxLatency)
	case o.QueueBytes < 0 || o.PingEvery < 0 || o.SilentAfter < 0 || o.HandshakeTimeout < 0:
		return errors.New("sizes and times must not be negative")
	}
	return nil
}

// Conn is a client's connection to one replica. It is not reopened when it
// ends: the client decides where to connect next. All methods are safe for concurrent
// use.
type Conn struct {
	l     *link
	count counters
	ended chan struct{}
	wg    sync.WaitGroup
}

// Dial connects to a replica at addr. ctx bounds the dialing, and not the connection's
// life. An error is a *HandshakeError if one of the sides refused. The caller must
// close the Conn.
func Dial(ctx context.Context, addr string, opts ClientOptions) (*Conn, error) {
	if err := opts.validate(); err != nil {
		return nil, fmt.Errorf("dial %s: %w", addr, err)
	}
	opts = opts.withDefaults()
	d := &dialer{
		hello:  hello{Role: roleClient, Cluster: opts.Cluster, To: opts.Replica, Latency: opts.Latency},
		secret: opts.Secret, certs: opts.TLS,
		connect: opts.HandshakeTimeout, handshake: opts.HandshakeTimeout, maxFrame: maxFrame,
	}
	s, err := d.open(ctx, addr)
	if err != nil {
		return nil, fmt.Errorf("dial %s: %w", addr, err)
	}
	c := &Conn{ended: make(chan struct{})}
	c.l = newLink(s, &c.count, linkConfig{
		latency: opts.Latency, limit: opts.QueueBytes, most: MaxClientMessage, keep: replicaKeep, again: true,
		silentTicks: silentTicks(opts.SilentAfter+2*opts.Latency, opts.PingEvery),
	})
	c.wg.Go(func() {
		why := c.l.run(opts.Receive)
		close(c.ended)
		if opts.Down != nil {
			opts.Down(why)
		}
	})
	c.wg.Go(func() { c.tend(opts.PingEvery) })
	return c, nil
}

func (c *Conn) tend(every time.Duration) {
	tick := time.NewTicker(every)
	defer tick.Stop()
	for {
		select {
		case <-c.ended:
			return
		case <-tick.C:
			c.l.tend()
		}
	}
}

// Send queues messages in order and does not block. It returns how many of them
// it accepted, from the first on, and if not all, why: ErrDown, ErrFull or
// ErrTooLarge.
func (c *Conn) Send(ms []wire.Message) (int, error) { return c.l.send(ms) }

// Remote is what the replica reported when the connection began.
func (c *Conn) Remote() Remote { return c.l.who }

// RTT returns the round trip, measured from the beginning on and every
// ClientOptions.PingEvery.
func (c *Conn) RTT() RTT { return c.l.rtt.read() }

// Done is closed when the connection has ended.
func (c *Conn) Done() <-chan struct{} { return c.ended }

// Err returns why the connection ended, nil while it lasts.
func (c *Conn) Err() error {
	select {
	case <-c.ended:
		return c.l.reason()
	default:
		return nil
	}
}

// Close ends the connection and waits until neither Receive nor Down is running. Queued messages
// are lost.
func (c *Conn) Close() error {
	c.l.end(ErrClosed)
	c.wg.Wait()
	return nil
}
