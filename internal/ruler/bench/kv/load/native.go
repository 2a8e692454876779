package kvload

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/weirdb/weir/kv"
)

// Native drives weir kv through its own Go client, one client per stream, as a program would
// use it: connected to all replicas, with strong operations to the leader, weak ones to the
// nearest replica, and writes by the fast path if that pays.
type Native struct {
	// Addrs are the replicas' addresses for native clients, by their ids from 1. Required.
	Addrs []string
	// Place says which replica a stream is close to: with Spread and RTT, stream i is close to
	// replica i modulo their number, and all others are RTT away.
	Place Place
	// RTT is an artificial round trip to all other replicas. Default: none.
	RTT time.Duration
	// Path says when strong writes try the fast path. Default: when it has proved faster.
	Path kv.Path
	// Weak is set if the preset of the cluster has weak operations. Default: every operation is
	// strong.
	Weak bool

	deaf atomic.Bool // the cluster did not answer a request to end a session
}

// Promises implements Driver.
func (d *Native) Promises() Promises {
	return Promises{WeakReads: d.Weak, WeakWrites: d.Weak, OwnWrites: true, TellsFast: true}
}

// Open implements Driver.
func (d *Native) Open(ctx context.Context, stream, _ int) (Client, error) {
	o := kv.Options{Path: d.Path}
	if d.RTT > 0 && d.Place == Spread {
		near := uint64(stream%len(d.Addrs)) + 1
		o.Latency = func(replica uint64) time.Duration {
			if replica == near {
				return 0
			}
			return d.RTT / 2
		}
	}
	client, err := kv.Open(ctx, d.Addrs, o)
	if err != nil {
		return nil, err
	}
	// A session gets its id with its first write, and finds the leader with its first strong
	// operation. Neither must be measured.
	if _, err := client.Put(ctx, warmKey, nil); err != nil {
		return nil, errors.Join(fmt.Errorf("begin a session: %w", err), client.Close())
	}
	return &nativeClient{driver: d, client: client, done: NewCompletions(), weak: d.Weak}, nil
}

// warmKey is written by each session before a run.
const warmKey = "weir:bench:session"

// Near implements Driver.
func (d *Native) Near() Driver { return &Native{Addrs: d.Addrs} }

// endPatience is how long a client waits for the cluster to end its session.
const endPatience = time.Second

// end ends the session of a client and closes the client, so that the cluster's state of one
// run does not slow down the next. If the cluster does not answer once, it is not asked again:
// it drops idle sessions by itself.
func (d *Native) end(client *kv.Client) error {
	if d.deaf.Load() {
		return client.Close()
	}
	ctx, cancel := context.WithTimeout(context.Background(), endPatience)
	defer cancel()
	err := client.Session.Close(ctx)
	if errors.Is(err, context.DeadlineExceeded) {
		d.deaf.Store(true)
		err = nil
	}
	return errors.Join(err, client.Close())
}

// nativeClient is one client of the store.
type nativeClient struct {
	driver *Native
	client *kv.Client
	done   *Completions
	weak   bool
}

// Issue implements Client.
func (c *nativeClient) Issue(slot int, op *Op) {
	var options []kv.Option
	if c.weak && op.Class.Weak() {
		options = weakOption
	}
	o := kv.Get(op.Key, options...)
	if op.Class.Write() {
		o = kv.Put(op.Key, op.Value, options...)
	}
	err := c.client.Issue(o, func(r kv.Result, err error) {
		a := Answer{Value: r.Value(), Found: err == nil, Fast: r.Fast, Err: err}
		if errors.Is(err, kv.ErrNotFound) {
			a.Err = nil
		}
		c.done.Put(slot, a)
	})
	if err != nil {
		c.done.Put(slot, Answer{Err: err})
	}
}

var weakOption = []kv.Option{kv.Weak()}

// Poll implements Client.
func (c *nativeClient) Poll(ended func(slot int, a Answer)) error { return c.done.Take(ended) }

// Close implements Client.
func (c *nativeClient) Close() error {
	c.done.Close()
	return c.driver.end(c.client)
}
