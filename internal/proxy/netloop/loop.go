// Package netloop is the event loop under the data path of both protocols: one
// operating-system thread, epoll, raw non-blocking read and write. It knows
// nothing of messages. docs/design/001-event-loop.md says why it exists.
package netloop

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"sync"
	"syscall"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// ErrStopped is the error of requests to a loop that is ending or has ended.
var ErrStopped = errors.New("the proxy is stopping")

// An Owner holds what lives on a loop: sessions, pools, backends. All its methods
// are called on the loop's thread.
type Owner interface {
	// Settle acts on the events of the turn so far. It is called again after the sockets
	// were written to, until neither produces output.
	Settle()
	// Tick does housekeeping that needs no precision.
	Tick()
	// Alarm returns the next moment at which Settle must be called although
	// no socket is ready; ok is false if there is none.
	Alarm() (at time.Duration, ok bool)
	// Drain is called once, when the loop must end: every session has to leave.
	Drain()
	// Drained reports whether all sessions have left.
	Drained() bool
	// Shutdown ends what is left when all have left or the patience has run out.
	// Its output is still written if the peer takes it at once.
	Shutdown()
}

// A Loop is one event loop. It owns its sockets, and its owner's sessions
// outright, so nothing on the data path takes a lock. One turn is the proxy's
// unit of batching:
//
//	epoll_wait -> read every ready socket -> units to backends, replies to clients
//	           -> posted calls, timers, write lanes -> one write() per socket with output
//
// Under load a turn finds more sockets ready, so each write carries more
// messages; idle, a turn carries one message at once. That is group commit at
// the wire without a timer.
//
// There is no goroutine per connection because with many runnable goroutines Go polls
// the network late (golang/go#51651), and replies wait in socket buffers for
// most of their latency.
type Loop struct {
	// Now is the time since the clock's start, read once per turn.
	Now time.Duration

	owner    Owner
	clock    func() time.Duration
	patience time.Duration // for a drain

	epfd   int
	wakefd int
	socks  []*Sock // by file descriptor
	dirty  []*Sock // have output to write at the end of this turn
	buf    []byte  // shared read buffer; a socket copies what it cannot consume
	events []unix.EpollEvent
	bufs   buffers

	closing []closing

	porches []*Porch

	mu      sync.Mutex
	posted  []func() // guarded by mu: calls from other goroutines
	running []func() // the batch of posted calls in progress

	nextTick time.Duration
	pressure pressure
	stopping bool
	draining bool

	suspended bool // see Suspend

	stats Stats
}

// Stats counts a loop's work since its start. Bytes and system calls are those
// of all its sockets; Busy is the time in which it did not sleep.
type Stats struct {
	Turns, Events, Reads, Writes, BytesIn, BytesOut uint64
	Busy                                            time.Duration
}

// readChunk is what one read() may return. 64 KiB is the loopback socket's
// usual segment, and enough for hundreds of key lookups.
const readChunk = 64 << 10

// tickEvery is the period of housekeeping: queue timeouts, idle backends.
// Nothing faster than this runs from a timer, except what Alarm asks for.
const tickEvery = 100 * time.Millisecond

// Start initializes a loop for owner; Run runs it. clock is monotonic; patience is
// how long a drain may take.
func (l *Loop) Start(owner Owner, clock func() time.Duration, patience time.Duration) error {
	ep, err := unix.EpollCreate1(unix.EPOLL_CLOEXEC)
	if err != nil {
		return fmt.Errorf("create epoll: %w", err)
	}
	wake, err := unix.Eventfd(0, unix.EFD_NONBLOCK|unix.EFD_CLOEXEC)
	if err != nil {
		_ = unix.Close(ep)
		return fmt.Errorf("create eventfd: %w", err)
	}
	l.owner, l.clock, l.patience = owner, clock, patience
	l.epfd, l.wakefd = ep, wake
	l.buf = make([]byte, readChunk)
	l.events = make([]unix.EpollEvent, 256)
	if err := unix.EpollCtl(ep, unix.EPOLL_CTL_ADD, wake, &unix.EpollEvent{Events: unix.EPOLLIN, Fd: int32(wake)}); err != nil {
		l.Abandon()
		return fmt.Errorf("watch eventfd: %w", err)
	}
	return nil
}

// Abandon frees a loop that was started and will never run.
func (l *Loop) Abandon() {
	_ = unix.Close(l.epfd)
	_ = unix.Close(l.wakefd)
}

// Stats returns the counters; on the loop's thread only.
func (l *Loop) Stats() Stats { return l.stats }

// SetPatience changes how long a drain may take, counted from its beginning; on the loop's
// thread only.
func (l *Loop) SetPatience(d time.Duration) { l.patience = d }

// Suspend stops or resumes reading from clients and servers; output is still written.
// On the loop's thread only, as Unwritten. A drain ends the suspension.
func (l *Loop) Suspend(on bool) {
	l.suspended = on
	for _, s := range l.socks {
		if s != nil {
			s.repause()
		}
	}
}

// Unwritten counts the suspended sockets that still have output to write.
func (l *Loop) Unwritten() (n int) {
	for _, s := range l.socks {
		if s != nil && s.suspends && s.Pending() > 0 {
			n++
		}
	}
	return n
}

// Draining reports whether Owner.Drain has been called.
func (l *Loop) Draining() bool { return l.draining }

// Post runs f on the loop's thread, soon. Safe from any goroutine. It reports
// false, without running f, when the loop has ended.
func (l *Loop) Post(f func()) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.posted == nil && l.stopping {
		return false
	}
	first := len(l.posted) == 0
	l.posted = append(l.posted, f)
	if first {
		one := [8]byte{1}
		// Under the lock: a loop that ends meanwhile closes the descriptor, and a client may
		// have its number by now. EAGAIN means that the counter is
		// full: the loop is awake already.
		_, _ = unix.Write(l.wakefd, one[:])
	}
	return true
}

// Call runs f on the loop and waits for it.
func (l *Loop) Call(ctx context.Context, f func()) error {
	done := make(chan struct{})
	if !l.Post(func() { f(); close(done) }) {
		return ErrStopped
	}
	select {
	case <-done:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// Run runs the loop until ctx ends and every client has left or the patience
// has run out; then it closes all sockets.
func (l *Loop) Run(ctx context.Context) error {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	stop := context.AfterFunc(ctx, func() { l.Post(func() {}) })
	defer stop()
	l.pressure.watch(l.clock())
	defer l.pressure.end()
	var began time.Duration
	for {
		if ctx.Err() != nil {
			if !l.draining {
				began = l.clock()
				l.draining = true
				l.Suspend(false)
				l.owner.Drain()
			}
			if l.owner.Drained() || l.clock()-began >= l.patience {
				break
			}
		}
		if err := l.turn(); err != nil {
			l.shutdown() // connected clients get an error
			return err
		}
	}
	l.shutdown()
	return nil
}

func (l *Loop) turn() error {
	n, err := l.wait(l.untilNext())
	if err != nil {
		return err
	}
	started := l.clock()
	l.Now = started
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
		s := l.sock(fd)
		if s == nil {
			l.knocked(fd)
			continue
		}
		if ev.Events&(unix.EPOLLHUP|unix.EPOLLERR) != 0 {
			// These events cannot be masked. At most the data in the kernel's buffer is left to read,
			// and then the socket ends.
			s.paused = false
		}
		if ev.Events&(unix.EPOLLIN|unix.EPOLLHUP|unix.EPOLLERR|unix.EPOLLRDHUP) != 0 {
			s.readable()
		}
		if ev.Events&unix.EPOLLOUT != 0 && !s.Closed {
			s.Flush()
		}
	}
	l.runPosted()
	l.acceptAll()
	if l.Now >= l.nextTick {
		l.nextTick = l.Now + tickEvery
		l.watchAgain()
		l.pressure.look(l.Now)
		l.closeUnread()
		l.owner.Tick()
	}
	l.endTurn()
	l.stats.Turns++
	l.stats.Events += uint64(n)
	l.stats.Busy += l.clock() - started
	if n == len(l.events) && n < 8192 {
		l.events = make([]unix.EpollEvent, 2*n)
	}
	return nil
}

// sock is the socket of a descriptor, or nil.
func (l *Loop) sock(fd int) *Sock {
	if fd < len(l.socks) {
		return l.socks[fd]
	}
	return nil
}

// endTurn lets the owner act on the turn's events, then writes every
// socket's output, until neither makes work for the other.
func (l *Loop) endTurn() {
	for {
		l.owner.Settle()
		if len(l.dirty) == 0 {
			return
		}
		for i := 0; i < len(l.dirty); i++ {
			s := l.dirty[i]
			l.dirty[i] = nil
			s.dirty = false
			if !s.Closed && !s.wantWrite {
				s.Flush()
			}
		}
		l.dirty = l.dirty[:0]
	}
}

func (l *Loop) runPosted() {
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

// untilNext is how long the loop may sleep: to the next housekeeping tick, and
// to the owner's next alarm.
func (l *Loop) untilNext() time.Duration {
	for _, p := range l.porches {
		if p.ready {
			return 0
		}
	}
	now := l.clock()
	next := l.nextTick
	if at, ok := l.owner.Alarm(); ok && at < next {
		next = at
	}
	if next <= now {
		return 0
	}
	return next - now
}

// shortWait is how long a loop waits without telling Go's scheduler. The scheduler would find
// another thread for other goroutines, look after this one every 20 µs, and make it queue
// for a processor when it comes back, which costs more than a short wait takes. Stopping the
// world, as the garbage collector does, waits for it.
const shortWait = 50 * time.Microsecond

// wait polls once without giving up the processor, which is the common case
// under load, then waits for a short time, and only then blocks.
func (l *Loop) wait(d time.Duration) (int, error) {
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
	short := unix.NsecToTimespec(int64(min(d, shortWait)))
	n, _, e = syscall.RawSyscall6(unix.SYS_EPOLL_PWAIT2, uintptr(l.epfd), uintptr(unsafe.Pointer(&l.events[0])), uintptr(len(l.events)), uintptr(unsafe.Pointer(&short)), 0, 0)
	if e == 0 {
		if d -= shortWait; n > 0 || d <= 0 {
			return int(n), nil
		}
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

// shutdown closes everything that is left.
func (l *Loop) shutdown() {
	l.owner.Shutdown()
	l.endTurn()
	l.mu.Lock()
	l.stopping = true
	rest := l.posted
	l.posted = nil
	l.mu.Unlock()
	for _, f := range rest {
		f() // may add the socket of a login or a dial that has just ended
	}
	for _, s := range l.socks {
		if s != nil {
			s.Close(ErrStopped)
		}
	}
	for len(l.porches) > 0 {
		l.porches[0].Close()
	}
	l.Abandon()
}
