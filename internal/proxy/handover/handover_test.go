package handover

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/weirdb/weir/internal/proxy/netloop"
	"github.com/weirdb/weir/internal/testkit"
)

// A fakeSession is what a fakeSide hands over.
type fakeSession struct {
	Name string
	Text []byte
}

// A fakeSide has clients that consist of a name and a descriptor.
type fakeSide struct {
	ln *netloop.Pausable

	mu        sync.Mutex
	clients   map[string]int // guarded by mu: descriptors, by name
	leaving   int            // guarded by mu
	inherited string         // guarded by mu
	ask       Ask            // guarded by mu
	delivered func()         // guarded by mu: called for each client that has gone; nil: nothing
	refuses   string         // a name
}

func newFakeSide(t *testing.T) *fakeSide {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	s := &fakeSide{ln: netloop.NewPausable(ln), clients: make(map[string]int)}
	t.Cleanup(func() {
		_ = s.ln.Close()
		s.mu.Lock()
		defer s.mu.Unlock()
		for _, fd := range s.clients {
			_ = unix.Close(fd)
		}
	})
	return s
}

// client makes a client and returns its own end of the connection.
func (s *fakeSide) client(t *testing.T, name string) *os.File {
	t.Helper()
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	s.mu.Lock()
	s.clients[name] = fds[0]
	s.mu.Unlock()
	f := os.NewFile(uintptr(fds[1]), name)
	t.Cleanup(func() { _ = f.Close() })
	return f
}

func (s *fakeSide) has() (names []string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for name := range s.clients {
		names = append(names, name)
	}
	return names
}

func (s *fakeSide) Listener() *netloop.Pausable { return s.ln }

func (s *fakeSide) Legacy(context.Context) ([]byte, error) { return []byte("a legacy"), nil }

func (s *fakeSide) Give(_ context.Context, give func(*Parcel)) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if give == nil {
		return nil
	}
	delivered := s.delivered
	for name, fd := range s.clients {
		delete(s.clients, name)
		s.leaving++
		gone := func() {
			s.mu.Lock()
			defer s.mu.Unlock()
			s.leaving--
		}
		give(&Parcel{
			FD: fd, Session: &fakeSession{name, bytes.Repeat([]byte(name), 1000)},
			Delivered: func() {
				gone()
				_ = unix.Close(fd)
				if delivered != nil {
					delivered()
				}
			},
			Returned: func(bool) {
				gone()
				s.mu.Lock()
				defer s.mu.Unlock()
				s.clients[name] = fd
			},
		})
	}
	return nil
}

func (s *fakeSide) Left() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.clients) + s.leaving
}

func (s *fakeSide) Answer(_ context.Context, question []byte) []byte {
	return append([]byte("no idea of "), question...)
}

func (s *fakeSide) Inherit(legacy []byte) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.inherited = string(legacy)
	return nil
}

func (s *fakeSide) Receive(decode func(v any) error, fd int) (Admission, error) {
	var got fakeSession
	if err := decode(&got); err != nil {
		_ = unix.Close(fd)
		return Admission{}, err
	}
	if got.Name == s.refuses {
		_ = unix.Close(fd)
		return Admission{Refused: errors.New("not wanted")}, nil
	}
	if !bytes.Equal(got.Text, bytes.Repeat([]byte(got.Name), 1000)) {
		return Admission{}, fmt.Errorf("%s came with %q", got.Name, got.Text)
	}
	return Admission{Drop: func() { _ = unix.Close(fd) }, Serve: func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.clients[got.Name] = fd
	}}, nil
}

func (s *fakeSide) AskBefore(ask Ask) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.ask = ask
}

// A giving is a process that serves, and waits for the one that takes over.
type giving struct {
	*Giver
	side  *fakeSide
	ended chan struct{}
}

func newGiving(t *testing.T, change ...func(*Giver)) *giving {
	t.Helper()
	g := &giving{side: newFakeSide(t), ended: make(chan struct{})}
	g.Giver = &Giver{
		Path: filepath.Join(t.TempDir(), "takeover"), Version: "1.2.3", Log: slog.New(slog.DiscardHandler),
		Sides: map[string]Side{"fake": g.side}, Patience: func() time.Duration { return time.Minute },
		Sockets: []Socket{{"fake", "here", g.side.ln}}, Busy: func() string { return "" },
		End: func() { close(g.ended) },
	}
	for _, change := range change {
		change(g.Giver)
	}
	if err := g.Listen(); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- g.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := testkit.Receive(t, "the process before ends", done); err != nil {
			t.Error(err)
		}
	})
	return g
}

// accepts reports whether a process accepts connections of a listener.
func accepts(t *testing.T, ln net.Listener) {
	t.Helper()
	conn, err := net.Dial("tcp", ln.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	got, err := ln.Accept()
	if err != nil {
		t.Fatal(err)
	}
	_ = got.Close()
}

func dialed(t *testing.T, path string) *Taker {
	t.Helper()
	next, err := Dial(path)
	if err != nil || next == nil {
		t.Fatalf("dial: %v, %v", next, err)
	}
	t.Cleanup(next.Close)
	return next
}

func TestHandOver(t *testing.T) {
	g := newGiving(t)
	ends := map[string]*os.File{}
	for i := range 50 {
		name := fmt.Sprintf("client %d", i)
		ends[name] = g.side.client(t, name)
	}
	next := dialed(t, g.Path)
	if next.Version() != "1.2.3" || next.PID() != os.Getpid() || string(next.Legacy("fake")) != "a legacy" {
		t.Errorf("offered: version %q, process %d, legacy %q", next.Version(), next.PID(), next.Legacy("fake"))
	}
	if next.Socket("fake", "elsewhere") != nil {
		t.Error("a socket of another address was inherited")
	}
	ln := next.Socket("fake", "here")
	if ln == nil {
		t.Fatal("the socket was not inherited")
	}
	defer ln.Close()
	side := newFakeSide(t)
	side.refuses = "client 7"
	if err := next.Take(map[string]Side{"fake": side}); err != nil {
		t.Fatal(err)
	}
	n, err := next.Run(t.Context(), slog.New(slog.DiscardHandler))
	if err != nil || n != (Counts{49, 1}) {
		t.Errorf("taken over: %+v, %v", n, err)
	}
	testkit.Receive(t, "all clients have been handed over", g.ended)
	accepts(t, ln)
	if len(side.has()) != 49 || len(g.side.has()) != 0 {
		t.Errorf("%d clients have moved, %d stay", len(side.has()), len(g.side.has()))
	}
	for name, end := range ends {
		if name == side.refuses {
			if _, err := end.Read(make([]byte, 1)); err != io.EOF {
				t.Errorf("a refused client reads %v", err)
			}
			continue
		}
		if _, err := unix.Write(side.clients[name], []byte(name)); err != nil {
			t.Fatal(err)
		}
		got := make([]byte, len(name))
		if _, err := io.ReadFull(end, got); err != nil || string(got) != name {
			t.Errorf("%s reads %q, %v", name, got, err)
		}
	}
}

// A hand-over may end before its reader has handled the last receipt. The connection must not be
// closed while the reader uses it, which the race detector would report.
func TestReaderThatIsLate(t *testing.T) {
	g := newGiving(t)
	g.side.client(t, "somebody")
	late := make(chan struct{})
	g.side.mu.Lock()
	g.side.delivered = func() { <-g.ended; close(late) }
	g.side.mu.Unlock()
	next := dialed(t, g.Path)
	if err := next.Take(map[string]Side{"fake": newFakeSide(t)}); err != nil {
		t.Fatal(err)
	}
	if n, err := next.Run(t.Context(), slog.New(slog.DiscardHandler)); err != nil || n.Taken != 1 {
		t.Errorf("taken over: %+v, %v", n, err)
	}
	testkit.Receive(t, "the last receipt", late)
}

// TestWithoutReceipt checks that clients that were sent, but for which no receipt was written,
// go on in the first process.
func TestWithoutReceipt(t *testing.T) {
	g := newGiving(t)
	for i := range 20 {
		g.side.client(t, fmt.Sprintf("client %d", i))
	}
	next := dialed(t, g.Path)
	if err := next.Take(nil); err != nil {
		t.Fatal(err)
	}
	const receipts = 5
	served := map[string]bool{}
	for i := range 10 {
		if k, err := next.w.receive(); k != kindClient || err != nil {
			t.Fatalf("%q, %v", byte(k), err)
		}
		var c client
		var s fakeSession
		if err := errors.Join(next.w.decode(&c), next.w.decode(&s)); err != nil {
			t.Fatal(err)
		}
		if i < receipts {
			if err := next.w.send(kindReceipt, -1, receipt{Seq: c.Seq}); err != nil {
				t.Fatal(err)
			}
			served[s.Name] = true
		}
	}
	next.Close()
	testkit.Eventually(t, "the return of clients", func() bool { return len(g.side.has()) == 20-receipts })
	for _, name := range g.side.has() {
		if served[name] {
			t.Errorf("%s is served by both", name)
		}
	}
	accepts(t, g.side.ln)
	again := dialed(t, g.Path) // and the process waits for the next one
	again.Close()
}

// TestNextHangs checks that a process that hangs while clients are sent to it gets none for
// which it has written no receipt, even if it continues later.
func TestNextHangs(t *testing.T) {
	for _, clients := range []int{20, 2000} { // fewer than the socket's buffer holds, and more
		t.Run(fmt.Sprint(clients), func(t *testing.T) {
			g := newGiving(t, func(g *Giver) { g.Hung = 200 * time.Millisecond })
			for i := range clients {
				g.side.client(t, fmt.Sprintf("client %d", i))
			}
			next := dialed(t, g.Path)
			late := newFakeSide(t)
			if err := next.Take(map[string]Side{"fake": late}); err != nil {
				t.Fatal(err)
			}
			next.patience = time.Millisecond // both are this process
			testkit.Eventually(t, "the return of clients", func() bool { return len(g.side.has()) == clients })
			accepts(t, g.side.ln)
			if n, err := next.Run(t.Context(), slog.New(slog.DiscardHandler)); !errors.Is(err, errGoesOn) || n.Taken > 0 {
				t.Errorf("the process that goes on late: %+v, %v, want %v", n, err, errGoesOn)
			}
			if n := len(late.has()); n > 0 {
				t.Errorf("%d clients are served by both", n)
			}
			again := dialed(t, g.Path) // and the process waits for the next one
			again.Close()
		})
	}
}

// TestBeforeTake checks that a process that disconnects before it has taken over changes
// nothing, whatever it sends.
func TestBeforeTake(t *testing.T) {
	g := newGiving(t)
	g.side.client(t, "somebody")
	for name, send := range map[string]string{
		"nothing": "", "no preamble": strings.Repeat("x", preambleLen), "half a frame": magic + "\x01\x01T\x10",
		"another frame": magic + "\x01\x01Q\x00\x00\x00\x00", "a later version": magic + "\x02\x09T\x00\x00\x00\x00",
		"a huge frame": magic + "\x01\x01T\xff\xff\xff\xff", "garbage": magic + "\x01\x01T\x03\x00\x00\x00abc",
	} {
		conn, err := net.Dial("unix", g.Path)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := conn.Write([]byte(send)); err != nil {
			t.Fatal(err)
		}
		if err := conn.(*net.UnixConn).CloseWrite(); err != nil {
			t.Fatal(err)
		}
		_, _ = io.Copy(io.Discard, conn) // until the other side closes it, too
		_ = conn.Close()
		if len(g.side.has()) != 1 {
			t.Errorf("%s: the client is gone", name)
		}
		accepts(t, g.side.ln)
	}
	dialed(t, g.Path).Close()
}

func TestAnotherVersion(t *testing.T) {
	path := filepath.Join(t.TempDir(), "takeover")
	ln, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	defer ln.Close()
	go func() {
		conn, err := ln.Accept()
		if err == nil {
			_, _ = conn.Write([]byte(magic + "\x07\x09"))
			_, _ = io.Copy(io.Discard, conn)
			_ = conn.Close()
		}
	}()
	if _, err := Dial(path); err == nil || !strings.Contains(err.Error(), "speaks versions 7 to 9") {
		t.Errorf("a process of another version: %v", err)
	}
	if next, err := Dial(filepath.Join(t.TempDir(), "nobody")); next != nil || err != nil {
		t.Errorf("nobody: %v, %v", next, err)
	}
}

// TestServingProcessHangs checks that the next process does not wait for ever for one that
// hangs, at whatever point.
func TestServingProcessHangs(t *testing.T) {
	const hung = 100 * time.Millisecond
	for _, c := range []struct {
		name string
		says func(w *wire) error // before it hangs
	}{
		{"at once", func(*wire) error { return nil }},
		{"behind its preamble", func(w *wire) error { return w.agree(time.Minute) }},
		{"amid its offer", func(w *wire) error {
			return errors.Join(w.agree(time.Minute), w.send(kindLegacy, -1, legacy{"a", nil}))
		}},
		{"behind its offer", func(w *wire) error {
			return errors.Join(w.agree(time.Minute), w.send(kindOffered, -1, offered{1, "1"}))
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "s")
			ln, err := net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"})
			if err != nil {
				t.Fatal(err)
			}
			defer func() { _ = ln.Close() }()
			said := make(chan *wire, 1)
			go func() {
				defer close(said)
				conn, err := ln.AcceptUnix()
				if err != nil {
					t.Error(err)
					return
				}
				w := newWire(conn)
				_ = c.says(w) // the next process may have given up by now
				said <- w
			}()
			taker, err := dial(path, hung)
			if w := <-said; w != nil {
				defer w.close()
			}
			if taker != nil {
				err = taker.Take(nil)
				taker.Close()
			}
			if err == nil || !strings.Contains(err.Error(), "has not answered within 100ms") {
				t.Errorf("the next process: %v", err)
			}
		})
	}
}

// TestOneAtATime checks that a second process is refused, with the reason, while one takes over.
func TestOneAtATime(t *testing.T) {
	g := newGiving(t)
	g.side.client(t, "somebody")
	first := dialed(t, g.Path)
	if _, err := Dial(g.Path); err == nil || !strings.Contains(err.Error(), "handed over already") {
		t.Errorf("a second process: %v", err)
	}
	first.Close()
}

// TestQuestions checks that the new process asks the old one about clients that it does not
// have.
func TestQuestions(t *testing.T) {
	g := newGiving(t)
	next := dialed(t, g.Path)
	hold := g.side.client(t, "somebody")
	defer hold.Close()
	g.side.mu.Lock()
	g.side.leaving++ // another one that cannot be handed over yet
	g.side.mu.Unlock()
	side := newFakeSide(t)
	if err := next.Take(map[string]Side{"fake": side}); err != nil {
		t.Fatal(err)
	}
	side.mu.Lock()
	ask := side.ask
	side.mu.Unlock()
	early := make(chan string, 1)
	go func() {
		got, _ := ask(t.Context(), []byte("it, early"))
		early <- string(got)
	}()
	ended := make(chan error, 1)
	go func() {
		_, err := next.Run(t.Context(), slog.New(slog.DiscardHandler))
		ended <- err
	}()
	if got := testkit.Receive(t, "the text before the end", early); got != "no idea of it, early" {
		t.Errorf("answered %q to a question from before it ran", got)
	}
	testkit.Eventually(t, "a client", func() bool { return len(side.has()) == 1 })
	if got, ok := ask(t.Context(), []byte("it")); !ok || string(got) != "no idea of it" {
		t.Errorf("answered %q, %v", got, ok)
	}
	g.side.mu.Lock()
	g.side.leaving--
	g.side.mu.Unlock()
	if err := testkit.Receive(t, "the end", ended); err != nil {
		t.Error(err)
	}
	if _, ok := ask(t.Context(), []byte("it")); ok {
		t.Error("answered by a process that has ended")
	}
}

// The outcome does not depend on whether the next process was reading or writing when the first
// one ended.
func TestOutcomeOfALostConnection(t *testing.T) {
	self, err := unix.PidfdOpen(os.Getpid(), 0)
	if err != nil {
		t.Skip("no descriptor of a process: ", err)
	}
	defer unix.Close(self)
	broken := errors.New("broken")
	for _, c := range []struct {
		process   int
		err, want error
	}{
		{-1, io.EOF, nil},
		{-1, unix.EPIPE, nil},
		{-1, broken, broken},
		{self, io.EOF, errGoesOn},
		{self, unix.EPIPE, errGoesOn},
		{self, broken, broken},
	} {
		if got := (&Taker{process: c.process}).outcome(c.err); got != c.want {
			t.Errorf("process %d, %v: %v, want %v", c.process, c.err, got, c.want)
		}
	}
}
