package netloop

import (
	"context"
	"io"
	"log/slog"
	"net"
	"path/filepath"
	"sync"
	"testing"
	"time"
)

// A loop accepts the connections of TCP and Unix sockets, each once, until their porch
// is closed; they can be taken off as ordinary connections.
func TestPorch(t *testing.T) {
	for _, c := range []struct{ network, address string }{{"tcp", "127.0.0.1:0"}, {"unix", filepath.Join(t.TempDir(), "s")}} {
		t.Run(c.network, func(t *testing.T) {
			ln, err := net.Listen(c.network, c.address)
			if err != nil {
				t.Fatal(err)
			}
			origin := time.Now()
			l := &Loop{}
			if err := l.Start(nobody{}, func() time.Duration { return time.Since(origin) }, time.Minute); err != nil {
				t.Fatal(err)
			}
			ctx, cancel := context.WithCancel(t.Context())
			var loop sync.WaitGroup
			loop.Go(func() {
				if err := l.Run(ctx); err != nil {
					t.Error(err)
				}
			})
			defer loop.Wait()
			defer cancel()
			type arrival struct {
				fd   int
				from net.Addr
			}
			arrivals := make(chan arrival, 200)
			ln = NewPausable(ln)
			p, err := NewPorch(ln, slog.New(slog.DiscardHandler), func(fd int, from net.Addr) { arrivals <- arrival{fd, from} })
			if err != nil {
				t.Fatal(err)
			}
			if err := l.Call(ctx, func() {
				if err := l.Accept(p); err != nil {
					t.Error(err)
				}
			}); err != nil {
				t.Fatal(err)
			}
			const clients = 100 // more than are accepted at once
			for range clients {
				far, err := net.Dial(c.network, ln.Addr().String())
				if err != nil {
					t.Fatal(err)
				}
				defer far.Close()
				if _, err := io.WriteString(far, "hello"); err != nil {
					t.Fatal(err)
				}
				a := <-arrivals
				if want := far.LocalAddr().String(); c.network == "tcp" && a.from.String() != want {
					t.Errorf("accepted from %s, want %s", a.from, want)
				}
				near, err := Surface(a.fd, a.from, []byte("unread "))
				if err != nil {
					t.Fatal(err)
				}
				got := make([]byte, len("unread hello"))
				if _, err := io.ReadFull(near, got); err != nil || string(got) != "unread hello" {
					t.Errorf("read %q, %v", got, err)
				}
				if near.RemoteAddr() != a.from || len(Unread(near)) != 0 {
					t.Errorf("%v, %q", near.RemoteAddr(), Unread(near))
				}
				_ = near.Close()
			}
			if err := l.Call(ctx, p.Close); err != nil {
				t.Fatal(err)
			}
			if err := ln.Close(); err != nil {
				t.Fatal(err)
			}
			if far, err := net.Dial(c.network, ln.Addr().String()); err == nil {
				_ = far.Close()
				t.Error("somebody listens still")
			}
		})
	}
}
