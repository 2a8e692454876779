package resp_test

import (
	"bufio"
	"bytes"
	"io"
	"net"
	"sync"
	"testing"
	"time"

	"github.com/weirdb/weir/internal/kvwire"
	"github.com/weirdb/weir/internal/replica/resp"
)

// nullStore answers everything with OK: what is left is the front itself.
type nullStore struct{ status resp.Status }

type nullSession struct{}

func (n *nullStore) Open(resp.Replies) resp.Session { return nullSession{} }
func (n *nullStore) Status() *resp.Status           { return &n.status }

func (nullSession) Do(batch []resp.Request) {
	for i := range batch {
		batch[i].Reply.Done(kvwire.Result{}, nil)
	}
}
func (nullSession) Wait(int, time.Duration, *resp.Reply) {}
func (nullSession) Token() (view, index uint64)          { return 0, 0 }
func (nullSession) Advance(uint64, uint64)               {}
func (nullSession) Close()                               {}

// BenchmarkPipeline is what redis-benchmark -c 50 -P 16 -t set asks for, client
// included.
func BenchmarkPipeline(b *testing.B) {
	const clients, depth = 50, 16
	_, addr := serve(b, &nullStore{status: resp.Status{ID: 1, Leader: 1}}, resp.Config{})
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
