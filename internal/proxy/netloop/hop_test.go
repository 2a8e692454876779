package netloop

import (
	"context"
	"net"
	"os"
	"runtime"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// BenchmarkHop says what the least is that a message costs who stands in the way: one
// read and one write of some bytes on each of 64 TCP connections, all of which have
// asked at once, in CPU time of that thread alone. raw is epoll with nothing around it,
// loop is the event loop. docs/results/hop.md says what follows.
func BenchmarkHop(b *testing.B) {
	for _, c := range []struct {
		name  string
		serve func(b *testing.B, fds []int, stop <-chan struct{})
	}{{"raw", rawHop}, {"loop", loopHop}} {
		b.Run(c.name, func(b *testing.B) { benchmarkHop(b, c.serve) })
	}
}

const (
	hopClients = 64
	hopBytes   = 100 // about a Bind, Execute and Sync
)

func benchmarkHop(b *testing.B, serve func(b *testing.B, fds []int, stop <-chan struct{})) {
	var clients []net.Conn
	var fds []int
	var files []*os.File
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		b.Fatal(err)
	}
	defer ln.Close()
	for range hopClients {
		c, err := net.Dial("tcp", ln.Addr().String())
		if err != nil {
			b.Fatal(err)
		}
		defer c.Close()
		s, err := ln.Accept()
		if err != nil {
			b.Fatal(err)
		}
		f, err := s.(*net.TCPConn).File() // another descriptor: the first one is the poller's
		if err != nil {
			b.Fatal(err)
		}
		if err := s.Close(); err != nil {
			b.Fatal(err)
		}
		fd, err := unix.Dup(int(f.Fd()))
		if err != nil {
			b.Fatal(err)
		}
		if err := unix.SetNonblock(fd, true); err != nil {
			b.Fatal(err)
		}
		clients, fds, files = append(clients, c), append(fds, fd), append(files, f)
	}
	for _, f := range files {
		if err := f.Close(); err != nil {
			b.Fatal(err)
		}
	}
	stop, done := make(chan struct{}), make(chan time.Duration)
	go func() {
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		from := threadTime()
		serve(b, fds, stop)
		done <- threadTime() - from
	}()
	msg, buf := make([]byte, hopBytes), make([]byte, hopBytes)
	n := 0
	for b.Loop() {
		for _, c := range clients {
			if _, err := c.Write(msg); err != nil {
				b.Fatal(err)
			}
		}
		for _, c := range clients {
			if _, err := c.Read(buf); err != nil {
				b.Fatal(err)
			}
		}
		n += len(clients)
	}
	close(stop)
	if _, err := clients[0].Write(msg); err != nil { // who serves looks up
		b.Fatal(err)
	}
	b.ReportMetric(float64((<-done).Nanoseconds())/float64(n)/1000, "cpu-us/msg")
	b.ReportMetric(0, "ns/op")
}

func threadTime() time.Duration {
	var u unix.Rusage
	_ = unix.Getrusage(unix.RUSAGE_THREAD, &u) // it cannot fail for the thread itself
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

func rawHop(b *testing.B, fds []int, stop <-chan struct{}) {
	ep, err := unix.EpollCreate1(0)
	if err != nil {
		b.Error(err)
		return
	}
	defer unix.Close(ep)
	for _, fd := range fds {
		defer unix.Close(fd)
		if err := unix.EpollCtl(ep, unix.EPOLL_CTL_ADD, fd, &unix.EpollEvent{Events: unix.EPOLLIN, Fd: int32(fd)}); err != nil {
			b.Error(err)
			return
		}
	}
	events, buf := make([]unix.EpollEvent, 256), make([]byte, readChunk)
	for {
		n, err := unix.EpollWait(ep, events, -1)
		if err != nil && err != unix.EINTR {
			b.Error(err)
			return
		}
		select {
		case <-stop:
			return
		default:
		}
		for _, ev := range events[:max(n, 0)] {
			got, err := unix.Read(int(ev.Fd), buf)
			if err != nil || got == 0 {
				continue
			}
			if _, err := unix.Write(int(ev.Fd), buf[:got]); err != nil {
				b.Error(err)
			}
		}
	}
}

// mirror gives back what it is sent.
type mirror struct{ s *Sock }

func (m *mirror) OnData(p []byte) int { m.s.Write(p); return len(p) }
func (m *mirror) OnClosed(error)      {}
func (m *mirror) OnDrained()          {}

func loopHop(b *testing.B, fds []int, stop <-chan struct{}) {
	var l Loop
	origin := time.Now()
	if err := l.Start(nobody{}, func() time.Duration { return time.Since(origin) }, time.Second); err != nil {
		b.Error(err)
		return
	}
	for _, fd := range fds {
		m := &mirror{}
		s, err := l.Watch(fd, m)
		if err != nil {
			b.Error(err)
			return
		}
		m.s = s
	}
	ctx, cancel := context.WithCancel(context.Background())
	go func() { <-stop; cancel() }()
	if err := l.Run(ctx); err != nil {
		b.Error(err)
	}
}
