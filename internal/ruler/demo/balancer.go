package demo

import (
	"context"
	"errors"
	"io"
	"net"
	"sync"
	"sync/atomic"
	"time"
)

// balancer forwards TCP connections to the first of its targets that answers, starting with the
// next target each time.
type balancer struct {
	ln      net.Listener
	targets func() []string
	turn    atomic.Uint64

	mu    sync.Mutex
	open  map[net.Conn]struct{} // guarded by mu
	ended bool                  // guarded by mu
	conns sync.WaitGroup
}

// dialPatience limits one attempt to connect to a target, which is on this machine.
const dialPatience = 2 * time.Second

func newBalancer(targets func() []string) (*balancer, error) {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	b := &balancer{ln: ln, targets: targets, open: make(map[net.Conn]struct{})}
	b.conns.Go(b.accept)
	return b, nil
}

func (b *balancer) addr() string { return b.ln.Addr().String() }

func (b *balancer) accept() {
	for {
		c, err := b.ln.Accept()
		if err != nil {
			if errors.Is(err, net.ErrClosed) {
				return
			}
			time.Sleep(10 * time.Millisecond) // out of file descriptors
			continue
		}
		b.conns.Go(func() { b.pass(c) })
	}
}

// hold registers a connection so that close can close it; false if the balancer is closed.
func (b *balancer) hold(c net.Conn) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	if !b.ended {
		b.open[c] = struct{}{}
	}
	return !b.ended
}

func (b *balancer) drop(c net.Conn) {
	_ = c.Close()
	b.mu.Lock()
	delete(b.open, c)
	b.mu.Unlock()
}

func (b *balancer) pass(client net.Conn) {
	defer b.drop(client)
	if !b.hold(client) {
		return
	}
	targets := b.targets()
	first := int(b.turn.Add(1))
	for i := range targets {
		ctx, cancel := context.WithTimeout(context.Background(), dialPatience)
		server, err := (&net.Dialer{}).DialContext(ctx, "tcp", targets[(first+i)%len(targets)])
		cancel()
		if err != nil {
			continue
		}
		defer b.drop(server)
		if !b.hold(server) {
			return
		}
		both := make(chan struct{}, 2)
		copying := func(to, from net.Conn) {
			_, _ = io.Copy(to, from) // an error means that one side has gone
			both <- struct{}{}
		}
		go copying(server, client)
		go copying(client, server)
		<-both
		_, _ = client.Close(), server.Close()
		<-both
		return
	}
}

// close ends all connections.
func (b *balancer) close() {
	_ = b.ln.Close()
	b.mu.Lock()
	b.ended = true
	for c := range b.open {
		_ = c.Close()
	}
	b.mu.Unlock()
	b.conns.Wait()
}
