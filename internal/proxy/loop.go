package proxy

import (
	"context"
	"fmt"
	"runtime"
	"sync"
	"sync/atomic"
	"syscall"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// A loop is one event loop on one operating-system thread. It owns its
// sockets, clients, pools and backends outright, so nothing on the data path
// takes a lock. One turn of the loop is the proxy's unit of batching:
//
//	epoll_wait -> read every ready socket -> units to backends, replies to clients
//	           -> posted calls, timers, write lanes -> one write() per socket with output
//
// Under load a turn finds more sockets ready, so each write carries more
// messages; idle, a turn carries one message at once. That is group commit at
// the wire without a timer.
//
// Why not a goroutine per connection: with many runnable goroutines Go polls
// the network late (golang/go#51651), and replies wait in socket buffers for
// most of their latency.
type loop struct {
	srv *Server
	id  int

	epfd   int
	wakefd int
	socks  []*sock // by file descriptor
	dirty  []*sock // have output to write at the end of this turn
	buf    []byte  // shared read buffer; a socket copies what it cannot consume
	events []unix.EpollEvent

	now time.Duration // monotonic, since the server's start; read once per turn

	mu      sync.Mutex
	posted  []func() // guarded by mu: calls from other goroutines
	running []func() // the batch of posted calls in progress

	pools    map[poolKey]*pool
	poolList []*pool
	clients  map[uint32]*client // by cancel id
	resume   []*client          // whose held bytes are to be looked at again
	hotPools []*pool            // whose queues are to be looked at
	hot      []*lane            // to be pumped at the end of this turn
	timed    []*lane            // waiting for a window to end
	nextTick time.Duration
	stopping bool
	leaving  bool // clients are asked to leave

	settings *settingsTable
	shapes   *shapes
	free     freeLists
	st       loopStats
	load     atomic.Int64 // clients
}

// readChunk is what one read() may return. 64 KiB is the loopback socket's
// usual segment, and enough for hundreds of key lookups.
const readChunk = 64 << 10

// tickEvery is the period of housekeeping: queue timeouts, idle backends.
// Nothing faster than this runs from a timer, except fixed windows.
const tickEvery = 100 * time.Millisecond

func newLoop(srv *Server, id int) (*loop, error) {
	ep, err := unix.EpollCreate1(unix.EPOLL_CLOEXEC)
	if err != nil {
		return nil, fmt.Errorf("create epoll: %w", err)
	}
	wake, err := unix.Eventfd(0, unix.EFD_NONBLOCK|unix.EFD_CLOEXEC)
	if err != nil {
		_ = unix.Close(ep)
		return nil, fmt.Errorf("create eventfd: %w", err)
	}
	l := &loop{
		srv: srv, id: id, epfd: ep, wakefd: wake,
		buf:      make([]byte, readChunk),
		events:   make([]unix.EpollEvent, 256),
		pools:    make(map[poolKey]*pool),
		settings: newSettingsTable(),
		shapes:   newShapes(),
		clients:  make(map[uint32]*client),
	}
	if err := unix.EpollCtl(ep, unix.EPOLL_CTL_ADD, wake, &unix.EpollEvent{Events: unix.EPOLLIN, Fd: int32(wake)}); err != nil {
		l.closeFDs()
		return nil, fmt.Errorf("watch eventfd: %w", err)
	}
	return l, nil
}

func (l *loop) closeFDs() {
	_ = unix.Close(l.epfd)
	_ = unix.Close(l.wakefd)
}

// post runs f on the loop's thread, soon. Safe from any goroutine. It reports
// false, without running f, when the loop has ended.
func (l *loop) post(f func()) bool {
	l.mu.Lock()
	if l.posted == nil && l.stopping {
		l.mu.Unlock()
		return false
	}
	first := len(l.posted) == 0
	l.posted = append(l.posted, f)
	l.mu.Unlock()
	if first {
		one := [8]byte{1}
		// EAGAIN means the counter is full: the loop is awake already.
		_, _ = unix.Write(l.wakefd, one[:])
	}
	return true
}

// call runs f on the loop and waits for it.
func (l *loop) call(ctx context.Context, f func()) error {
	done := make(chan struct{})
	if !l.post(func() { f(); close(done) }) {
		return errStopping
	}
	select {
	case <-done:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// run turns the loop until ctx ends and every client has left or the drain
// limit has passed; then it closes all sockets.
func (l *loop) run(ctx context.Context) error {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	stop := context.AfterFunc(ctx, func() { l.post(func() {}) })
	defer stop()
	var drainUntil time.Duration
	for {
		if ctx.Err() != nil {
			if drainUntil == 0 {
				drainUntil = l.srv.monotonic() + l.srv.cfg.DrainTimeout
				l.beginDrain()
			}
			if len(l.clients) == 0 || l.srv.monotonic() >= drainUntil {
				break
			}
		}
		if err := l.turn(); err != nil {
			return err
		}
	}
	l.shutdown()
	return nil
}

func (l *loop) turn() error {
	n, err := l.wait(l.untilNext())
	if err != nil {
		return err
	}
	started := l.srv.monotonic()
	l.now = started
	for i := range l.events[:n] {
		ev := &l.events[i]
		fd := int(ev.Fd)
		if fd == l.wakefd {
			var b [8]byte
			_, _ = unix.Read(fd, b[:])
			continue
		}
		// A socket closed earlier in this turn has left the table.
		// File descriptors enter the table only in runPosted, after
		// all events, so a reused number cannot be mistaken.
		s := l.socks[fd]
		if s == nil {
			continue
		}
		if ev.Events&(unix.EPOLLHUP|unix.EPOLLERR) != 0 {
			// These cannot be masked. What is left to be read is no more than
			// the kernel holds, and then the socket ends.
			s.paused = false
		}
		if ev.Events&(unix.EPOLLIN|unix.EPOLLHUP|unix.EPOLLERR|unix.EPOLLRDHUP) != 0 {
			s.readable()
		}
		if ev.Events&unix.EPOLLOUT != 0 && !s.closed {
			s.flush()
		}
	}
	l.runPosted()
	if l.now >= l.nextTick {
		l.nextTick = l.now + tickEvery
		l.tick()
	}
	l.endTurn()
	l.st.turns++
	l.st.events += uint64(n)
	l.st.busy += l.srv.monotonic() - started
	if n == len(l.events) && n < 8192 {
		l.events = make([]unix.EpollEvent, 2*n)
	}
	return nil
}

// endTurn lets clients, pools and lanes act on what the turn brought, then
// writes every socket's output, until none makes work for another.
func (l *loop) endTurn() {
	l.checkWindows()
	for {
		for len(l.resume) > 0 || len(l.hotPools) > 0 || len(l.hot) > 0 {
			for i := 0; i < len(l.resume); i++ {
				c := l.resume[i]
				l.resume[i] = nil
				c.resuming = false
				c.s.consume()
			}
			l.resume = l.resume[:0]
			for i := 0; i < len(l.hotPools); i++ {
				p := l.hotPools[i]
				p.hot = false
				p.dispatch()
			}
			l.hotPools = l.hotPools[:0]
			for i := 0; i < len(l.hot); i++ {
				ln := l.hot[i]
				l.hot[i] = nil
				ln.hot = false
				ln.pump()
			}
			l.hot = l.hot[:0]
		}
		if len(l.dirty) == 0 {
			return
		}
		for i := 0; i < len(l.dirty); i++ {
			s := l.dirty[i]
			l.dirty[i] = nil
			s.dirty = false
			if !s.closed && !s.wantWrite {
				s.flush()
			}
		}
		l.dirty = l.dirty[:0]
	}
}

// checkWindows wakes the lanes whose window has ended.
func (l *loop) checkWindows() {
	keep := l.timed[:0]
	for _, ln := range l.timed {
		if at, ok := ln.q.Deadline(); ok && at > l.now {
			keep = append(keep, ln)
			continue
		}
		ln.timed = false
		ln.touch()
	}
	clear(l.timed[len(keep):])
	l.timed = keep
}

func (l *loop) draining() bool { return l.leaving }

func (l *loop) runPosted() {
	for {
		l.mu.Lock()
		l.running, l.posted = l.posted, l.running[:0]
		l.mu.Unlock()
		if len(l.running) == 0 {
			return
		}
		for i, f := range l.running {
			f()
			l.running[i] = nil
		}
	}
}

// untilNext is how long the loop may sleep: to the next housekeeping tick
// while it has anything to keep, and to the nearest window's end.
func (l *loop) untilNext() time.Duration {
	now := l.srv.monotonic()
	next := l.nextTick
	for _, ln := range l.timed {
		if at, ok := ln.q.Deadline(); ok && at < next {
			next = at
		}
	}
	if next <= now {
		return 0
	}
	return next - now
}

// wait polls once without giving up the processor, which is the common case
// under load, and only then blocks.
func (l *loop) wait(d time.Duration) (int, error) {
	n, _, e := syscall.RawSyscall6(unix.SYS_EPOLL_PWAIT, uintptr(l.epfd), uintptr(unsafe.Pointer(&l.events[0])), uintptr(len(l.events)), 0, 0, 0)
	if e == 0 && n > 0 {
		return int(n), nil
	}
	if e != 0 && e != unix.EINTR {
		return 0, fmt.Errorf("epoll_wait: %w", e)
	}
	if d <= 0 {
		return 0, nil
	}
	ts := unix.NsecToTimespec(int64(d))
	for {
		n, _, e = syscall.Syscall6(unix.SYS_EPOLL_PWAIT2, uintptr(l.epfd), uintptr(unsafe.Pointer(&l.events[0])), uintptr(len(l.events)), uintptr(unsafe.Pointer(&ts)), 0, 0)
		switch e {
		case 0:
			return int(n), nil
		case unix.EINTR:
			return 0, nil
		case unix.ENOSYS: // Linux before 5.11: milliseconds, rounded up
			ms := (d + time.Millisecond - 1) / time.Millisecond
			k, err := unix.EpollWait(l.epfd, l.events, int(ms))
			if err == unix.EINTR {
				return 0, nil
			}
			return max(k, 0), err
		default:
			return 0, fmt.Errorf("epoll_pwait2: %w", e)
		}
	}
}

// tick does the housekeeping that needs no precision.
func (l *loop) tick() {
	for _, p := range l.poolList {
		p.tick()
	}
	for _, c := range l.clients {
		c.tick()
	}
}

// beginDrain asks every client to leave: idle ones are told so and closed at
// once, the others when their transaction ends.
func (l *loop) beginDrain() {
	l.leaving = true
	for _, c := range l.clients {
		c.draining = true
		c.leaveIfIdle()
	}
}

// shutdown closes everything that is left.
func (l *loop) shutdown() {
	for _, c := range l.clients {
		c.fatal(errShutdown())
	}
	l.endTurn()
	for _, p := range l.poolList {
		p.closeAll()
	}
	l.endTurn()
	l.mu.Lock()
	l.stopping = true
	rest := l.posted
	l.posted = nil
	l.mu.Unlock()
	for _, f := range rest {
		f() // may bring the socket of a login or a dial that has just ended
	}
	for _, s := range l.socks {
		if s != nil {
			s.close(errStopping)
		}
	}
	l.closeFDs()
}

// loopStats counts the loop's own work.
type loopStats struct {
	turns, events  uint64
	reads, writes  uint64
	bytesIn        uint64
	bytesOut       uint64
	badHints       uint64
	protocolErrors uint64
	busy           time.Duration // time awake
}
