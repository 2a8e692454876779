// Package resp_test compares weir's Redis front with redcon, as package libraries does for
// other parts.
package resp_test

import (
	"bytes"
	"context"
	"io"
	"net"
	"sync"
	"testing"
	"time"

	"github.com/tidwall/redcon"
	"golang.org/x/sys/unix"

	"github.com/weirdb/weir/internal/kvd/resp"
	"github.com/weirdb/weir/internal/kvd/wire"
)

// store answers everything at once: what is left is the front itself.
type store struct{ status resp.Status }

type session struct{}

func (s *store) Open(resp.Replies) resp.Session { return session{} }
func (s *store) Status() *resp.Status           { return &s.status }

func (session) Do(batch []resp.Request) {
	for i := range batch {
		batch[i].Reply.Done(wire.Result{}, nil)
	}
}
func (session) Wait(int, time.Duration, *resp.Reply) {}
func (session) Token() (view, index uint64)          { return 0, 0 }
func (session) Advance(uint64, uint64)               {}
func (session) Resume()                              {}
func (session) Close()                               {}

// listener hands out one connection.
type listener struct {
	conns chan net.Conn
	once  sync.Once
}

func (l *listener) Accept() (net.Conn, error) {
	if c, ok := <-l.conns; ok {
		return c, nil
	}
	return nil, net.ErrClosed
}

func (l *listener) Close() error {
	l.once.Do(func() { close(l.conns) })
	return nil
}

func (l *listener) Addr() net.Addr { return &net.TCPAddr{} }

// client is a connection without a kernel below: it has sent a number of pipelines of 16
// commands, one a read, and counts the bytes of the answers. done is closed when all have come.
type client struct {
	net.Conn // nil
	pipeline []byte
	left     int // pipelines
	want     int // bytes of answers
	done     chan struct{}
	closed   chan struct{}
	once     sync.Once
}

const depth = 16

func newClient(commands int) *client {
	one := []byte("*3\r\n$3\r\nSET\r\n$16\r\nkey:000000000042\r\n$3\r\nxxx\r\n")
	n := max(commands/depth, 1)
	return &client{
		pipeline: bytes.Repeat(one, depth), left: n, want: n * depth * len("+OK\r\n"),
		done: make(chan struct{}), closed: make(chan struct{}),
	}
}

func (c *client) Read(b []byte) (int, error) {
	if c.left == 0 {
		<-c.closed
		return 0, io.EOF
	}
	if len(b) < len(c.pipeline) {
		panic("a buffer that is smaller than a pipeline")
	}
	c.left--
	return copy(b, c.pipeline), nil
}

func (c *client) Write(b []byte) (int, error) {
	if c.want -= len(b); c.want <= 0 {
		close(c.done)
	}
	return len(b), nil
}

func (c *client) Close() error {
	c.once.Do(func() { close(c.closed) })
	return nil
}

func (c *client) LocalAddr() net.Addr              { return &net.TCPAddr{} }
func (c *client) RemoteAddr() net.Addr             { return &net.TCPAddr{} }
func (c *client) SetDeadline(time.Time) error      { return nil }
func (c *client) SetReadDeadline(time.Time) error  { return nil }
func (c *client) SetWriteDeadline(time.Time) error { return nil }

// BenchmarkSet is a SET in pipelines of 16 by one client, from the bytes read to the bytes
// written.
func BenchmarkSet(b *testing.B) {
	b.Run("weir", func(b *testing.B) {
		server, err := resp.New(&store{status: resp.Status{ID: 1, Leader: 1}}, resp.Config{})
		if err != nil {
			b.Fatal(err)
		}
		run(b, func(ctx context.Context, ln net.Listener) error { return server.Serve(ctx, ln) })
	})
	b.Run("redcon", func(b *testing.B) {
		run(b, func(_ context.Context, ln net.Listener) error {
			return redcon.Serve(ln, func(conn redcon.Conn, cmd redcon.Command) {
				switch string(cmd.Args[0]) { // without an allocation
				case "SET", "set":
					conn.WriteString("OK")
				default:
					conn.WriteError("ERR unknown command")
				}
			}, nil, nil)
		})
	})
}

func run(b *testing.B, serve func(context.Context, net.Listener) error) {
	ctx, cancel := context.WithCancel(b.Context())
	ln := &listener{conns: make(chan net.Conn, 1)}
	served := make(chan struct{})
	go func() {
		defer close(served)
		_ = serve(ctx, ln) // it ends when the listener is closed
	}()
	c := newClient(b.N)
	b.ReportAllocs()
	before := cpuTime(b)
	b.ResetTimer()
	ln.conns <- c
	<-c.done
	b.StopTimer()
	b.ReportMetric(float64((cpuTime(b)-before).Nanoseconds())/float64(b.N), "cpu-ns/op")
	c.Close()
	cancel()
	ln.Close()
	<-served
}

// cpuTime is what this process has used.
func cpuTime(b *testing.B) time.Duration {
	b.Helper()
	var u unix.Rusage
	if err := unix.Getrusage(unix.RUSAGE_SELF, &u); err != nil {
		b.Fatal(err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}
