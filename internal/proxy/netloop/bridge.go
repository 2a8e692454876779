package netloop

import (
	"context"
	"fmt"
	"net"
	"os"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// Detach takes the file descriptor out of a connection that is logged in. A
// TLS connection cannot be handed to an event loop: it stays with two
// goroutines that copy between it and a socket pair, whose other end is
// returned. background waits for them; they end soon after that other end is closed,
// or ctx ends. The caller must not use the connection any more, unless Detach fails.
func Detach(ctx context.Context, conn net.Conn, background *sync.WaitGroup) (int, error) {
	if sc, ok := conn.(syscall.Conn); ok {
		rc, err := sc.SyscallConn()
		if err != nil {
			return -1, fmt.Errorf("detach connection: %w", err)
		}
		fd := -1
		var dupErr error
		if err := rc.Control(func(p uintptr) { fd, dupErr = unix.FcntlInt(p, unix.F_DUPFD_CLOEXEC, 0) }); err != nil {
			return -1, fmt.Errorf("detach connection: %w", err)
		}
		if dupErr != nil {
			return -1, fmt.Errorf("detach connection: %w", dupErr)
		}
		return fd, conn.Close()
	}
	// A deadline that is still set is that of the login.
	if err := conn.SetDeadline(time.Time{}); err != nil {
		return -1, fmt.Errorf("bridge TLS connection: %w", err)
	}
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	if err != nil {
		return -1, fmt.Errorf("bridge TLS connection: %w", err)
	}
	f := os.NewFile(uintptr(fds[1]), "tls-bridge")
	inner, err := net.FileConn(f)
	_ = f.Close()
	if err != nil {
		_ = unix.Close(fds[0])
		return -1, fmt.Errorf("bridge TLS connection: %w", err)
	}
	b := &bridge{inner: inner.(*net.UnixConn), outer: conn}
	b.begin(ctx, background)
	return fds[0], nil
}

// A bridge copies bytes between a TLS connection and one end of a socket pair whose
// other end belongs to a loop. When either side ends, it closes both.
//
// Bytes that the loop wrote before it closed are still delivered, as the kernel does for a
// connection without TLS, for as long as the peer reads. A peer that does not read would keep
// the bridge for ever: a write to it never ends, and the writing goroutine does not see that
// the loop has closed. So a timer checks for that while a write takes long.
type bridge struct {
	inner *net.UnixConn
	outer net.Conn

	writing  atomic.Bool // to outer
	lingered atomic.Int32
	watch    *time.Timer
}

// If a write takes longer than lingerLook, the bridge checks whether the loop has
// closed; at the lingerLooks-th check it gives up the write.
const (
	lingerLook  = time.Second
	lingerLooks = 5
)

func (b *bridge) begin(ctx context.Context, background *sync.WaitGroup) {
	b.watch = time.AfterFunc(lingerLook, b.look)
	// When all loops have ended, weir must end, however slowly the peer reads.
	stop := context.AfterFunc(ctx, func() { time.AfterFunc(lingerLook*lingerLooks, b.cut) })
	background.Go(func() {
		b.toLoop()
		b.close()
	})
	background.Go(func() {
		b.toPeer()
		stop()
		b.watch.Stop()
		b.close()
	})
}

func (b *bridge) close() {
	_ = b.outer.Close()
	_ = b.inner.Close()
}

// cut closes the outer connection without TLS's closing message, which would also wait for
// the peer. That ends the bridge.
func (b *bridge) cut() {
	conn := b.outer
	if c, ok := conn.(interface{ NetConn() net.Conn }); ok {
		conn = c.NetConn()
	}
	_ = conn.Close()
}

// bridgeChunk is how much is read at a time: a TLS record holds no more.
const bridgeChunk = 16 << 10

func (b *bridge) toLoop() {
	buf := make([]byte, bridgeChunk)
	for {
		n, err := b.outer.Read(buf)
		if n > 0 {
			if _, err := b.inner.Write(buf[:n]); err != nil {
				return
			}
		}
		if err != nil {
			return
		}
	}
}

func (b *bridge) toPeer() {
	buf := make([]byte, bridgeChunk)
	for {
		n, err := b.inner.Read(buf)
		if n > 0 {
			b.lingered.Store(0)
			b.writing.Store(true)
			b.watch.Reset(lingerLook)
			_, err := b.outer.Write(buf[:n])
			b.writing.Store(false)
			if err != nil {
				return
			}
		}
		if err != nil {
			return
		}
	}
}

// look is called when a write takes long. It may come late, and find another write.
func (b *bridge) look() {
	if !b.writing.Load() {
		return
	}
	if b.left() && b.lingered.Add(1) >= lingerLooks {
		b.cut()
		return
	}
	b.watch.Reset(lingerLook)
}

// left reports whether the loop has closed its end.
func (b *bridge) left() bool {
	rc, err := b.inner.SyscallConn()
	if err != nil {
		return true
	}
	hungUp := false
	if err := rc.Control(func(fd uintptr) {
		set := []unix.PollFd{{Fd: int32(fd)}}
		n, err := unix.Poll(set, 0)
		hungUp = err == nil && n > 0 && set[0].Revents&unix.POLLHUP != 0
	}); err != nil {
		return true // it is closed already
	}
	return hungUp
}
