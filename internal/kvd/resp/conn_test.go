package resp_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/weirdb/weir/internal/kvd/resp"
	"github.com/weirdb/weir/internal/lab/labtest"
	"github.com/weirdb/weir/internal/testkit"
)

func forwards(n int) []int {
	order := make([]int, n)
	for i := range order {
		order[i] = i
	}
	return order
}

// TestRepliesKeepTheOrderOfCommands completes a pipeline in random order, local
// answers and errors in between.
func TestRepliesKeepTheOrderOfCommands(t *testing.T) {
	f, addr := serveFake(t, resp.Config{})
	p := dial(t, addr)
	f.hold()
	const n = 500
	var pipeline []byte
	var want strings.Builder
	requests := 0
	for i := range n {
		switch i % 3 {
		case 0:
			pipeline = append(pipeline, frame("SET", fmt.Sprint("key", i), fmt.Sprint(i))...)
			want.WriteString("+OK\r\n")
			requests++
		case 1:
			pipeline = append(pipeline, frame("ECHO", fmt.Sprint(i))...)
			fmt.Fprintf(&want, "$%d\r\n%d\r\n", len(fmt.Sprint(i)), i)
		default:
			pipeline = append(pipeline, frame("NOSUCH")...)
			want.WriteString("-ERR unknown command 'NOSUCH', with args beginning with: \r\n")
		}
	}
	p.send(pipeline)
	testkit.Eventually(t, "all requests are handed over", func() bool { return f.heldCount() == requests })
	f.release(rand.Perm)
	for line := range strings.SplitAfterSeq(want.String(), "\r\n") {
		if line == "" || line[0] >= '0' && line[0] <= '9' {
			continue
		}
		got := p.reply()
		if !strings.HasPrefix(got, line) {
			t.Fatalf("%q, not %q", got, line)
		}
	}
}

// TestBackPressure: of a client that sends and does not read, so much is taken
// as is allowed to be in flight; then nothing is lost.
func TestBackPressure(t *testing.T) {
	const limit, n = 100, 3000
	f, addr := serveFake(t, resp.Config{MaxInFlight: limit})
	p := dial(t, addr)
	f.hold()
	sent := make(chan error, 1)
	go func() {
		var all []byte
		for range n {
			all = append(all, frame("INCR", "n")...)
		}
		_, err := p.sock.Write(all)
		sent <- err
	}()
	testkit.Eventually(t, "the limit is reached", func() bool { return f.heldCount() >= limit })
	if got := f.heldCount(); got > limit+256 {
		t.Fatalf("%d requests are in flight, %d allowed and one batch", got, limit)
	}
	f.release(forwards)
	for i := range n {
		if got, want := p.reply(), fmt.Sprintf(":%d\r\n", i+1); got != want {
			t.Fatalf("%q, not %q", got, want)
		}
	}
	if err := <-sent; err != nil {
		t.Fatal(err)
	}
}

// TestSlowReader asks for far more than buffers hold before it reads anything.
func TestSlowReader(t *testing.T) {
	f, addr := serveFake(t, resp.Config{MaxInFlight: 64})
	p := dial(t, addr)
	value := strings.Repeat("v", 1<<20)
	p.want("+OK\r\n", "SET", "big", value)
	const n = 24
	for range n { // requests are small: all of them fit the socket's buffer
		p.send(frame("GET", "big"))
	}
	want := fmt.Sprintf("$%d\r\n%s\r\n", len(value), value)
	testkit.Eventually(t, "the first request arrives", func() bool { f.mu.Lock(); defer f.mu.Unlock(); return len(f.seen) > 1 })
	for i := range n {
		if p.reply() != want {
			t.Fatalf("reply %d is not the value", i)
		}
	}
	p.want("+OK\r\n", "SET", "small", "s")
	p.want("*3\r\n"+want+"$1\r\ns\r\n"+want, "MGET", "big", "small", "big")
	p.want("+PONG\r\n", "PING")
}

// TestBytesInFlight holds a client back by the size of its commands.
func TestBytesInFlight(t *testing.T) {
	const limit = 1 << 20
	f, addr := serveFake(t, resp.Config{MaxInFlightBytes: limit})
	p := dial(t, addr)
	f.hold()
	value := strings.Repeat("v", limit/4)
	sent := make(chan error, 1)
	go func() {
		for range 50 {
			if _, err := p.sock.Write(frame("SET", "big", value)); err != nil {
				sent <- err
				return
			}
		}
		sent <- nil
	}()
	testkit.Eventually(t, "the limit is reached", func() bool { return f.heldCount() >= 4 })
	if got := f.heldCount(); got > 12 { // what one read can hold beyond the limit
		t.Fatalf("%d requests of %d bytes are in flight", got, len(value))
	}
	f.release(forwards)
	for range 50 {
		if got := p.reply(); got != "+OK\r\n" {
			t.Fatal(got)
		}
	}
	if err := <-sent; err != nil {
		t.Fatal(err)
	}
}

// TestProtocolErrors: what is broken is named, after the replies before it, and
// the connection ends.
func TestProtocolErrors(t *testing.T) {
	f, addr := serveFake(t, resp.Config{})
	for _, test := range []struct{ send, want string }{
		{"*1\r\n:1\r\n", "-ERR Protocol error: expected '$', got ':'\r\n"},
		{"*1\r\n$4\r\nPING\r\n*x\r\nPING\r\n", "+PONG\r\n-ERR Protocol error: invalid multibulk length\r\n"},
		{"PING\r\nSET \"a\r\n", "+PONG\r\n-ERR Protocol error: unbalanced quotes in request\r\n"},
		{"*1\r\n$536870913\r\n", "-ERR Protocol error: invalid bulk length\r\n"},
		{"*2\r\n$3\r\nSET\r\n$-5\r\n", "-ERR Protocol error: invalid bulk length\r\n"},
		{"*1\r\n\r\n", "-ERR Protocol error: expected '$', got ' '\r\n"},
	} {
		p := dial(t, addr)
		p.send([]byte(test.send))
		if got := p.rest(); got != test.want {
			t.Errorf("%q answers %q, not %q", test.send, got, test.want)
		}
	}
	testkit.Eventually(t, "all sessions are closed", func() bool {
		f.mu.Lock()
		defer f.mu.Unlock()
		for _, s := range f.sessions {
			if !s.closed.Load() {
				return false
			}
		}
		return len(f.sessions) > 0
	})
}

// TestQuitAndHangUp: who ends the connection gets what is under way.
func TestQuitAndHangUp(t *testing.T) {
	f, addr := serveFake(t, resp.Config{})
	for _, end := range []string{"quit", "half-close"} {
		p := dial(t, addr)
		f.hold()
		p.send(frame("SET", "a", "1"))
		want := "+OK\r\n"
		if end == "quit" {
			p.send(append(frame("QUIT"), frame("PING")...))
			want += "+OK\r\n"
		} else if err := p.sock.(*net.TCPConn).CloseWrite(); err != nil {
			t.Fatal(err)
		}
		testkit.Eventually(t, "the request is there", func() bool { return f.heldCount() == 1 })
		f.release(forwards)
		if got := p.rest(); got != want {
			t.Errorf("%s: %q, not %q", end, got, want)
		}
	}
}

// TestShutdownDrains: replies under way when the server stops are still sent.
func TestShutdownDrains(t *testing.T) {
	f := newFakeStore()
	s, err := resp.New(f, resp.Config{IdleTimeout: time.Hour})
	if err != nil {
		t.Fatal(err)
	}
	ln, err := net.Listen("tcp", labtest.Addrs(t, 1)[0]) // where nobody else listens afterwards
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	served := make(chan error, 1)
	go func() { served <- s.Serve(ctx, ln) }()
	p, idle := dial(t, ln.Addr().String()), dial(t, ln.Addr().String())
	idle.want("+PONG\r\n", "PING")
	f.hold()
	p.send(frame("SET", "a", "1"))
	testkit.Eventually(t, "the request is there", func() bool { return f.heldCount() == 1 })
	cancel()
	if got := idle.rest(); got != "" {
		t.Errorf("an idle client reads %q", got)
	}
	f.release(forwards)
	if got := p.rest(); got != "+OK\r\n" {
		t.Errorf("the client reads %q", got)
	}
	if err := <-served; err != nil {
		t.Error(err)
	}
	if _, err := net.Dial("tcp", ln.Addr().String()); err == nil {
		t.Error("the listener is still open")
	}
}

func TestMaxClients(t *testing.T) {
	_, addr := serveFake(t, resp.Config{MaxClients: 2})
	a, b := dial(t, addr), dial(t, addr)
	a.want("+PONG\r\n", "PING")
	b.want("+PONG\r\n", "PING")
	if got := dial(t, addr).rest(); got != "-ERR max number of clients reached\r\n" {
		t.Errorf("one too many reads %q", got)
	}
	a.want("+OK\r\n", "QUIT")
	if got := a.rest(); got != "" {
		t.Error(got)
	}
	testkit.Eventually(t, "a place is free", func() bool {
		sock, err := net.Dial("tcp", addr)
		if err != nil {
			t.Fatal(err)
		}
		defer sock.Close()
		if _, err := sock.Write(frame("PING")); err != nil {
			return false
		}
		answer := make([]byte, 7)
		_, err = io.ReadFull(sock, answer)
		return err == nil && string(answer) == "+PONG\r\n"
	})
}

// ended reports whether the server has hung up by now; nothing was received before.
func (p *peer) ended() bool {
	p.tb.Helper()
	if err := p.sock.SetReadDeadline(time.Now().Add(time.Millisecond)); err != nil {
		p.tb.Fatal(err)
	}
	_, err := p.in.Peek(1)
	if err := p.sock.SetReadDeadline(time.Now().Add(patience)); err != nil {
		p.tb.Fatal(err)
	}
	return err != nil && !errors.Is(err, os.ErrDeadlineExceeded)
}

// TestIdleTimeout ends who says nothing, but not who waits for an answer or for
// changes.
func TestIdleTimeout(t *testing.T) {
	f, addr := serveFake(t, resp.Config{IdleTimeout: time.Second})
	f.hold()
	// A busy machine may take the timeout to get as far as to wait: once more then.
	var waiter, watcher *peer
	testkit.Eventually(t, "the watch begins", func() bool {
		watcher = dial(t, addr)
		_, _ = watcher.sock.Write(slices.Concat(frame("HELLO", "3"), frame("WEIR.WATCH", "a")))
		var hello, watch bytes.Buffer
		return readReply(watcher.in, &hello) == nil && readReply(watcher.in, &watch) == nil && watch.String() == "+OK\r\n"
	})
	testkit.Eventually(t, "the request is there", func() bool {
		waiter = dial(t, addr)
		_, _ = waiter.sock.Write(frame("SET", "a", "1"))
		for f.heldCount() == 0 && !waiter.ended() {
		}
		return f.heldCount() == 1
	})
	if got := dial(t, addr).rest(); got != "" { // takes the timeout
		t.Error(got)
	}
	f.release(forwards)
	if got := waiter.reply(); got != "+OK\r\n" {
		t.Error(got)
	}
	if got := watcher.reply(); !strings.HasPrefix(got, ">5\r\n$10\r\nweir.watch\r\n") {
		t.Error(got)
	}
}

// Strangers do not keep places for ever.
func TestLoginTimeout(t *testing.T) {
	_, addr := serveFake(t, resp.Config{LoginTimeout: time.Second / 2, Users: []resp.User{{Name: "default", Password: "p"}}})
	var known *peer
	testkit.Eventually(t, "a login in time", func() bool { // a busy machine may take longer
		known = dial(t, addr)
		_, _ = known.sock.Write(frame("AUTH", "p"))
		var reply bytes.Buffer
		return readReply(known.in, &reply) == nil && reply.String() == "+OK\r\n"
	})
	if got := dial(t, addr).rest(); got != "" { // takes the timeout
		t.Error(got)
	}
	known.want("+PONG\r\n", "PING")
	known.want("+RESET\r\n", "RESET")
	if got := known.rest(); got != "" {
		t.Error(got)
	}
}

// A page can make a browser send a request to any address, with commands in its body.
func TestHTTPIsNotListenedTo(t *testing.T) {
	for _, request := range []string{
		"POST / HTTP/1.1\r\nHost: localhost\r\n\r\nSET a 1\r\n",
		"PUT / HTTP/1.1\r\nhost: localhost\r\n\r\nSET a 1\r\n",
	} {
		_, addr := serveFake(t, resp.Config{})
		p := dial(t, addr)
		p.send([]byte(request))
		if got := p.rest(); !strings.HasSuffix(got, "-ERR Protocol error: this is HTTP\r\n") {
			t.Errorf("%q is answered %q", request, got)
		}
		dial(t, addr).want(":0\r\n", "EXISTS", "a")
	}
}
