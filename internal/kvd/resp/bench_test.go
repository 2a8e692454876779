package resp_test

import (
	"bufio"
	"bytes"
	"io"
	"net"
	"sync"
	"testing"
	"time"

	"github.com/weirdb/weir/internal/kvd/resp"
	"github.com/weirdb/weir/internal/kvd/wire"
)

// nullStore answers everything with OK: what is left is the front itself.
type nullStore struct{ status resp.Status }

type nullSession struct{}

func (n *nullStore) Open(resp.Replies) resp.Session { return nullSession{} }
func (n *nullStore) Status() *resp.Status           { return &n.status }

func (nullSession) Do(batch []resp.Request) {
	for i := range batch {
		batch[i].Reply.Done(wire.Result{}, nil)
	}
}
func (nullSession) Wait(int, time.Duration, *resp.Reply) {}
func (nullSession) Token() (view, index uint64)          { return 0, 0 }
func (nullSession) Advance(uint64, uint64)               {}
func (nullSession) Resume()                              {}
func (nullSession) Close()                               {}

// coreStore completes requests on one goroutine, as a replica does: it takes all
// that was handed in since it looked last, and flushes each session once.
type coreStore struct {
	nullStore
	mu      sync.Mutex
	queue   []*coreSession
	waiting chan struct{} // holds one
}

type coreSession struct {
	nullSession
	core    *coreStore
	replies resp.Replies
	open    []*resp.Reply
	queued  bool
}

func (c *coreStore) Open(replies resp.Replies) resp.Session {
	return &coreSession{core: c, replies: replies}
}

func (s *coreSession) Do(batch []resp.Request) {
	c := s.core
	c.mu.Lock()
	for i := range batch {
		s.open = append(s.open, batch[i].Reply)
	}
	if !s.queued {
		s.queued = true
		c.queue = append(c.queue, s)
	}
	c.mu.Unlock()
	select {
	case c.waiting <- struct{}{}:
	default:
	}
}

// run ends when waiting is closed.
func (c *coreStore) run() {
	var queue []*coreSession
	for range c.waiting {
		c.mu.Lock()
		queue, c.queue = c.queue, queue[:0]
		for _, s := range queue {
			for _, r := range s.open {
				r.Done(wire.Result{}, nil)
			}
			s.open, s.queued = s.open[:0], false
		}
		c.mu.Unlock()
		for _, s := range queue {
			s.replies.Flush()
		}
	}
}

// BenchmarkPipeline is what redis-benchmark -c 50 -P 16 -t set asks for, client
// included, of a store that answers at once, and of one that answers on a
// goroutine of its own.
func BenchmarkPipeline(b *testing.B) {
	null := nullStore{status: resp.Status{ID: 1, Leader: 1}}
	b.Run("at once", func(b *testing.B) { benchmarkPipeline(b, &null) })
	b.Run("by a core", func(b *testing.B) {
		core := &coreStore{nullStore: null, waiting: make(chan struct{}, 1)}
		ended := make(chan struct{})
		go func() {
			defer close(ended)
			core.run()
		}()
		b.Cleanup(func() { // after the server has ended
			close(core.waiting)
			<-ended
		})
		benchmarkPipeline(b, core)
	})
}

func benchmarkPipeline(b *testing.B, backend resp.Backend) {
	const clients, depth = 50, 16
	_, addr := serve(b, backend, resp.Config{})
	one := []byte("*3\r\n$3\r\nSET\r\n$16\r\nkey:000000000042\r\n$3\r\nxxx\r\n")
	request := bytes.Repeat(one, depth)
	conns := make([]net.Conn, clients)
	for i := range conns {
		c, err := net.Dial("tcp", addr)
		if err != nil {
			b.Fatal(err)
		}
		defer c.Close()
		conns[i] = c
	}
	b.ReportAllocs()
	b.ResetTimer()
	var wg sync.WaitGroup
	for _, c := range conns {
		wg.Go(func() {
			answer := make([]byte, depth*len("+OK\r\n"))
			in := bufio.NewReaderSize(c, 4096)
			for n := 0; n < b.N/clients; n += depth {
				if _, err := c.Write(request); err != nil {
					b.Error(err)
					return
				}
				if _, err := io.ReadFull(in, answer); err != nil {
					b.Error(err)
					return
				}
			}
		})
	}
	wg.Wait()
}
