package proxytest

import (
	"io"
	"net"
	"testing"
	"time"

	"github.com/weirdb/weir/internal/proxy/sight"
)

// A StalledLogin is a kind of client that never completes its login.
type StalledLogin struct {
	Name string
	Said []byte // sent at once
	Then []byte // a byte that is sent again and again
}

// StallLogins connects 20 clients of each kind to addr. ended waits until the server has
// disconnected all of them.
func StallLogins(t *testing.T, addr string, kinds []StalledLogin) (ended func()) {
	t.Helper()
	const each = 20
	ends := make(chan string, each*len(kinds))
	for _, k := range kinds {
		for range each {
			conn, err := net.Dial("tcp", addr)
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { _ = conn.Close() })
			_ = conn.SetDeadline(time.Now().Add(Patience))
			if _, err := conn.Write(k.Said); err != nil {
				t.Fatal(err)
			}
			go func() {
				for _, b := range k.Then {
					if _, err := conn.Write([]byte{b}); err != nil {
						break
					}
					time.Sleep(50 * time.Millisecond) // a deliberately slow client
				}
			}()
			go func() {
				_, err := io.Copy(io.Discard, conn)
				if e, ok := err.(net.Error); ok && e.Timeout() {
					ends <- k.Name + " and stays"
					return
				}
				ends <- ""
			}()
		}
	}
	return func() {
		t.Helper()
		for range each * len(kinds) {
			if what := <-ends; what != "" {
				t.Errorf("a client that %s", what)
			}
		}
	}
}

// Gateway listens in front of a server. For each client it calls pass, which copies in both
// directions and closes both connections.
func Gateway(t *testing.T, server string, pass func(client, be net.Conn)) (addr string) {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = ln.Close() })
	go func() {
		for {
			client, err := ln.Accept()
			if err != nil {
				return
			}
			be, err := net.Dial("tcp", server)
			if err != nil {
				_ = client.Close()
				continue
			}
			pass(client, be)
		}
	}()
	return ln.Addr().String()
}

// Reads checks how many texts are parsed, by scans, while run is called times times.
func Reads(t *testing.T, what string, times int, want uint64, scans func() uint64, run func()) {
	t.Helper()
	var got uint64
	for start := time.Now(); time.Since(start) < time.Minute; { // meanwhile weir may parse a text of its own, or all anew after another test's DDL
		before := scans()
		for range times {
			run()
		}
		if got = scans() - before; got == want {
			return
		}
	}
	t.Errorf("%d times %s: %d texts were read, want %d", times, what, got, want)
}

// Shape returns the statistics of statements with the given text.
func Shape(tb testing.TB, s Server, text string) sight.ShapeStatus {
	tb.Helper()
	snap := Snapshot(tb, s)
	for _, sh := range snap.Shapes {
		if sh.Text == text {
			return sh
		}
	}
	tb.Fatalf("no shape %q among %+v", text, snap.Shapes)
	return sight.ShapeStatus{}
}

// Failed returns the last shape with failed statements.
func Failed(tb testing.TB, s Server) (failed sight.ShapeStatus) {
	tb.Helper()
	for _, sh := range Snapshot(tb, s).Shapes {
		if sh.Errors > 0 {
			failed = sh
		}
	}
	return failed
}
