package kvload

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// Etcd drives an etcd cluster through etcd's own client, one client per stream. A weak read is
// a serializable one: the member that the stream is connected to answers it, and it may be
// older than the session's own writes.
type Etcd struct {
	// Endpoints are the members. Required.
	Endpoints []string
	// Place chooses among them.
	Place Place
}

// Promises implements Driver.
func (d *Etcd) Promises() Promises { return Promises{WeakReads: true} }

// Open implements Driver.
func (d *Etcd) Open(ctx context.Context, stream, pendings int) (Client, error) {
	at := d.Endpoints[stream%len(d.Endpoints)]
	if d.Place == AtLeader {
		var err error
		if at, err = d.leader(ctx); err != nil {
			return nil, err
		}
	}
	client, err := dialEtcd(at)
	if err != nil {
		return nil, err
	}
	// The client connects when it is first used, which must not be measured.
	if _, err := client.Get(ctx, "weir:bench:"); err != nil {
		return nil, errors.Join(fmt.Errorf("connect: %w", err), client.Close())
	}
	life, end := context.WithCancel(context.Background())
	c := &etcdClient{client: client, end: end, done: NewCompletions(), slots: make([]chan *Op, pendings)}
	for i := range c.slots {
		ops := make(chan *Op, 1)
		c.slots[i] = ops
		c.workers.Go(func() { c.work(life, i, ops) })
	}
	return c, nil
}

// dialEtcd makes a client that does not log its retries to the terminal.
func dialEtcd(endpoints ...string) (*clientv3.Client, error) {
	c, err := clientv3.New(clientv3.Config{Endpoints: endpoints, Logger: zap.NewNop()})
	if err != nil {
		return nil, fmt.Errorf("make a client of etcd: %w", err)
	}
	return c, nil
}

// leader returns the endpoint of the leader.
func (d *Etcd) leader(ctx context.Context) (string, error) {
	client, err := dialEtcd(d.Endpoints...)
	if err != nil {
		return "", err
	}
	defer client.Close()
	for _, at := range d.Endpoints {
		s, err := client.Status(ctx, at)
		if err != nil {
			return "", fmt.Errorf("ask %s for the leader: %w", at, err)
		}
		if s.Leader == s.Header.MemberId {
			return at, nil
		}
	}
	return "", errors.New("no member is the leader")
}

// Near implements Driver.
func (d *Etcd) Near() Driver { return &Etcd{Endpoints: d.Endpoints} }

// etcdClient is one client with a goroutine for each operation in flight, since etcd's calls
// block.
type etcdClient struct {
	client  *clientv3.Client
	end     context.CancelFunc
	done    *Completions
	slots   []chan *Op
	workers sync.WaitGroup
	once    sync.Once
	err     error
}

// Issue implements Client.
func (c *etcdClient) Issue(slot int, op *Op) { c.slots[slot] <- op }

// Poll implements Client.
func (c *etcdClient) Poll(ended func(slot int, a Answer)) error { return c.done.Take(ended) }

// work is the goroutine of a slot.
func (c *etcdClient) work(ctx context.Context, slot int, ops <-chan *Op) {
	for {
		select {
		case <-ctx.Done():
			return
		case op := <-ops:
			c.done.Put(slot, c.do(ctx, op))
		}
	}
}

func (c *etcdClient) do(ctx context.Context, op *Op) Answer {
	if op.Class.Write() {
		_, err := c.client.Put(ctx, op.Key, string(op.Value))
		return Answer{Err: named(err)}
	}
	var options []clientv3.OpOption
	if op.Class == WeakRead {
		options = append(options, clientv3.WithSerializable())
	}
	r, err := c.client.Get(ctx, op.Key, options...)
	if err != nil || len(r.Kvs) == 0 {
		return Answer{Err: named(err)}
	}
	return Answer{Value: r.Kvs[0].Value, Found: true}
}

// Close implements Client.
func (c *etcdClient) Close() error {
	c.once.Do(func() {
		c.end()
		c.done.Close()
		c.workers.Wait()
		if c.err = c.client.Close(); errors.Is(c.err, context.Canceled) {
			c.err = nil
		}
	})
	return c.err
}

// callError is the error of a call, whose class is its code.
type callError struct{ error }

func (e callError) Unwrap() error { return e.error }

// Class is the code's name, such as "Unavailable".
func (e callError) Class() string {
	if c := status.Code(e.error); c != codes.Unknown {
		return c.String()
	}
	class, _, _ := strings.Cut(e.Error(), ":")
	return class
}

func named(err error) error {
	if err == nil {
		return nil
	}
	return callError{err}
}
