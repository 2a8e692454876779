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
// or ctx. The connection is used up unless Detach fails.
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

// A bridge passes bytes between a TLS connection and the end of a socket pair whose
// other end is a loop's. When either side ends, it closes both: the loop sees a closed
// connection, and there is nothing more to say.
//
// Bytes that the loop wrote before it closed are passed on, as the kernel does for a connection
// without TLS, for as long as the peer reads. One that does not would keep the bridge for ever:
// a write to it never ends, and who writes does not see that the loop has closed. So a write
// that takes long looks for that.
type bridge struct {
	inner *net.UnixConn
	outer net.Conn

	writing  atomic.Bool // to outer
	lingered atomic.Int32
	watch    *time.Timer
}

// A write that takes longer than lingerLook has the bridge look whether the loop has
// closed; it is given up at the lingerLooks-th time.
const (
	lingerLook  = time.Second
	lingerLooks = 5
)

func (b *bridge) begin(ctx context.Context, background *sync.WaitGroup) {
	b.watch = time.AfterFunc(lingerLook, b.look)
	// When all loops have ended, weir is to end, however slowly the peer reads.
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

// cut closes the outer connection without the farewell of TLS, which would wait for the
// peer, too. That ends the bridge.
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

// look is called when a write has taken long. It may come late, and find another one.
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
