package netloop

import (
	"errors"
	"io"
	"syscall"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// A Handler consumes what a socket reads.
type Handler interface {
	// OnData consumes a prefix of p and returns its length. What it leaves
	// is kept by the socket and offered again, in front of newer bytes.
	// p is valid only during the call.
	OnData(p []byte) int
	// OnClosed tells that the socket is gone, once.
	OnClosed(err error)
	// OnDrained tells that the output of a watched socket has been written.
	OnDrained()
}

// A Sock is a non-blocking stream socket of a loop. Its output is gathered
// during a turn and written once at the turn's end.
//
// The output buffer is owned by the loop's thread alone; write() copies from it
// before anything can be appended again, so no answer of another backend can
// race with it.
type Sock struct {
	l  *Loop
	fd int
	h  Handler

	// In holds what was read and not consumed. For reading only.
	In []byte
	// Out is to be written, from outOff on. Append to it through OutBuf, then
	// call Touch.
	Out []byte
	// Flushes counts the times that output was handed to the kernel.
	Flushes uint64
	// Taken counts the bytes that were read, Written those of output that the kernel
	// took.
	Taken, Written uint64
	// Closing: the socket is closed when Out is written. Closed: it is gone.
	// For reading only.
	Closing, Closed bool

	outOff    int
	until     uint64 // see WriteUntil
	dirty     bool   // is in loop.dirty
	wantWrite bool   // the kernel's buffer is full: EPOLLOUT is armed
	paused    bool   // EPOLLIN is not armed
	full      bool   // ... because the handler leaves too much unconsumed
	throttled bool   // ... because the reader of the bytes is slow
	suspends  bool   // ... while the loop is suspended
	watched   bool   // a client is held back until the output is written
	eof       bool   // the peer has closed; In may still hold bytes
	lingers   bool   // ... and the handler has not ended with them: not watched for reading
}

// maxHeld is how much a handler may leave unconsumed before the socket stops
// reading, so that a client that sends faster than the database works is held
// back by TCP and not by our memory.
const maxHeld = 256 << 10

// Watch makes the descriptor of a connected socket, which it takes over, a socket
// of the loop. On an error the descriptor is still the caller's. To be called on
// the loop's thread.
func (l *Loop) Watch(fd int, h Handler) (*Sock, error) {
	if err := unix.SetNonblock(fd, true); err != nil {
		return nil, err
	}
	s, err := l.WatchAccepted(fd, h)
	if err == nil {
		s.Suspends(true)
	}
	return s, err
}

// WatchAccepted is Watch for a connection of a Porch, which is non-blocking, and is read
// from while the loop is suspended.
func (l *Loop) WatchAccepted(fd int, h Handler) (*Sock, error) {
	for fd >= len(l.socks) {
		l.socks = append(l.socks, make([]*Sock, max(64, fd+1-len(l.socks)))...)
	}
	if err := unix.EpollCtl(l.epfd, unix.EPOLL_CTL_ADD, fd, &unix.EpollEvent{Events: unix.EPOLLIN, Fd: int32(fd)}); err != nil {
		return nil, err
	}
	s := &Sock{l: l, fd: fd, h: h}
	l.socks[fd] = s
	return s, nil
}

func (s *Sock) arm() {
	if s.lingers {
		s.armLingering()
		return
	}
	var ev uint32
	if !s.paused && !s.eof {
		ev |= unix.EPOLLIN
	}
	if s.wantWrite {
		ev |= unix.EPOLLOUT
	}
	if err := unix.EpollCtl(s.l.epfd, unix.EPOLL_CTL_MOD, s.fd, &unix.EpollEvent{Events: ev, Fd: int32(s.fd)}); err != nil {
		s.Close(err)
	}
}

// armLingering watches a socket whose peer has closed only while there is something to
// write: that the peer is gone would be told again and again.
func (s *Sock) armLingering() {
	_ = unix.EpollCtl(s.l.epfd, unix.EPOLL_CTL_DEL, s.fd, nil) // it may not be watched
	if !s.wantWrite {
		return
	}
	if err := unix.EpollCtl(s.l.epfd, unix.EPOLL_CTL_ADD, s.fd, &unix.EpollEvent{Events: unix.EPOLLOUT, Fd: int32(s.fd)}); err != nil {
		s.Close(err)
	}
}

// Ended reports whether the peer has closed.
func (s *Sock) Ended() bool { return s.eof }

// readable reads once and offers the bytes to the handler. Level-triggered
// epoll brings the socket back if there is more.
func (s *Sock) readable() {
	if s.Closed || s.paused || s.eof {
		return
	}
	buf := s.l.buf
	n, _, e := syscall.RawSyscall(unix.SYS_READ, uintptr(s.fd), uintptr(unsafe.Pointer(&buf[0])), uintptr(len(buf)))
	if e != 0 {
		if e == unix.EAGAIN || e == unix.EINTR {
			return
		}
		s.Close(e)
		return
	}
	if n == 0 {
		s.eof = true
		if len(s.In) > 0 {
			s.Consume()
		}
		if s.Closed {
			return
		}
		if h, ok := s.h.(interface{ Lingers() bool }); ok && h.Lingers() {
			s.lingers = true // until the handler closes it
			s.arm()
			return
		}
		s.Close(io.EOF)
		return
	}
	s.l.stats.Reads++
	s.l.stats.BytesIn += uint64(n)
	s.Taken += uint64(n)
	p := buf[:n]
	if len(s.In) > 0 {
		s.In = append(s.In, p...)
		s.Consume()
		return
	}
	used := s.h.OnData(p)
	if s.Closed {
		return
	}
	if used < len(p) {
		if cap(s.In) == 0 {
			s.In = s.l.bufs.get()
		}
		s.In = append(s.In[:0], p[used:]...)
		s.hold()
	}
}

// Consume offers the held bytes to the handler again.
func (s *Sock) Consume() {
	if s.Closed || len(s.In) == 0 {
		return
	}
	used := s.h.OnData(s.In)
	if s.Closed {
		return
	}
	switch {
	case used == len(s.In):
		s.l.bufs.put(s.In)
		s.In = nil
	case used > 0:
		s.In = s.In[:copy(s.In, s.In[used:])]
	}
	s.hold()
}

// Unread puts bytes that the handler has consumed back in front of what is held. Not to be
// called within the handler's OnData.
func (s *Sock) Unread(p []byte) {
	if s.Closed {
		return
	}
	s.In = append(append(s.l.bufs.get(), p...), s.In...)
	s.hold()
}

// hold stops or resumes reading by what is held.
func (s *Sock) hold() {
	s.full = len(s.In) >= maxHeld && !s.needsMore()
	s.repause()
}

// Throttle stops or resumes reading because their receiver is slow.
func (s *Sock) Throttle(on bool) {
	if s.Closed {
		return
	}
	s.throttled = on
	s.repause()
}

// Suspends reports whether the socket is not read from while the loop is suspended.
func (s *Sock) Suspends(yes bool) {
	s.suspends = yes
	s.repause()
}

func (s *Sock) repause() {
	if p := s.full || s.throttled || s.suspends && s.l.suspended; p != s.paused {
		s.paused = p
		s.arm()
	}
}

// needsMore tells that the handler waits for the rest of one message that is
// longer than maxHeld; such a message must not stop the reading.
func (s *Sock) needsMore() bool {
	w, ok := s.h.(interface{ WantsMore() bool })
	return ok && w.WantsMore()
}

// Pending is the number of bytes that are still to be written.
func (s *Sock) Pending() int { return len(s.Out) - s.outOff }

// Touch marks the socket as having output. Callers append to s.Out first.
func (s *Sock) Touch() {
	if !s.dirty && !s.Closed {
		s.dirty = true
		s.l.dirty = append(s.l.dirty, s)
	}
}

// OutBuf returns the output buffer to append to, taking one from the free
// list if the socket has none.
func (s *Sock) OutBuf() []byte {
	if s.Out == nil {
		s.Out = s.l.bufs.get()
	}
	return s.Out
}

// Write adds p, which it copies, to the output.
func (s *Sock) Write(p []byte) {
	if s.Closed {
		return
	}
	s.Out = append(s.OutBuf(), p...)
	s.Touch()
}

// Flush writes what is pending.
func (s *Sock) Flush() {
	held := s.wantWrite
	s.Flushes++
	end := len(s.Out)
	if s.until > 0 {
		end = min(end, s.outOff+int(s.until-min(s.until, s.Written)))
	}
	for s.outOff < end {
		p := s.Out[s.outOff:end]
		n, _, e := syscall.RawSyscall(unix.SYS_WRITE, uintptr(s.fd), uintptr(unsafe.Pointer(&p[0])), uintptr(len(p)))
		if e != 0 {
			if e == unix.EINTR {
				continue
			}
			if e == unix.EAGAIN {
				if s.outOff > 1<<20 {
					s.Out = s.Out[:copy(s.Out, s.Out[s.outOff:])]
					s.outOff = 0
				}
				if !s.wantWrite {
					s.wantWrite = true
					s.arm()
				}
				return
			}
			s.Close(e)
			return
		}
		s.l.stats.Writes++
		s.l.stats.BytesOut += uint64(n)
		s.outOff += int(n)
		s.Written += uint64(n)
	}
	if held {
		s.wantWrite = false
		s.arm()
	}
	if end < len(s.Out) {
		return // see WriteUntil
	}
	s.l.bufs.put(s.Out)
	s.Out, s.outOff = nil, 0
	if s.Closing {
		s.Close(io.EOF)
		return
	}
	if s.watched && !s.Closed {
		s.watched = false
		s.h.OnDrained()
	}
}

// WriteUntil has output kept that comes behind so many bytes in all, until it is called
// anew; 0 ends that. at is not below Written.
func (s *Sock) WriteUntil(at uint64) {
	if at != s.until {
		s.until = at
		s.Touch()
	}
}

// HoldBack stops reading from src until this socket's output is written.
func (s *Sock) HoldBack(src *Sock) {
	s.watched = true
	s.Touch()
	src.Throttle(true)
}

// NotifyDrained has the handler's OnDrained called when the output is written.
func (s *Sock) NotifyDrained() {
	s.watched = true
	s.Touch()
}

// CloseAfterFlush closes the socket when its output is written, or when its peer does not
// take it.
func (s *Sock) CloseAfterFlush() {
	if s.Closed || s.Closing {
		return
	}
	s.Closing = true
	s.Touch()
	s.l.closing = append(s.l.closing, closing{s, s.Written, s.l.Now, s.l.Now})
}

// A closing is a socket that is closed when its output is written.
type closing struct {
	s       *Sock
	written uint64        // when that was looked at last
	at      time.Duration // since when no more was
	since   time.Duration
}

// A socket that is to be closed has unreadFor to write more, and unreadInAll to write all.
const (
	unreadFor   = 5 * time.Second
	unreadInAll = time.Minute
)

// errUnread ends a socket whose peer does not read what comes before the end.
var errUnread = errors.New("the peer does not read")

// closeUnread closes sockets that are to be closed and whose peers do not read.
func (l *Loop) closeUnread() {
	keep := l.closing[:0]
	for _, c := range l.closing {
		if c.written != c.s.Written {
			c.written, c.at = c.s.Written, l.Now
		}
		switch {
		case c.s.Closed:
		case l.Now-c.at > unreadFor, l.Now-c.since > unreadInAll:
			c.s.Close(errUnread)
		default:
			keep = append(keep, c)
		}
	}
	clear(l.closing[len(keep):])
	l.closing = keep
}

// Close closes the socket at once and tells the handler; what was not written is
// lost. Closing twice is fine.
func (s *Sock) Close(err error) {
	if s.Closed {
		return
	}
	s.Closed = true
	s.l.socks[s.fd] = nil
	_ = unix.Close(s.fd) // also leaves epoll
	s.l.bufs.put(s.In)
	s.l.bufs.put(s.Out)
	s.In, s.Out, s.outOff = nil, nil, 0
	s.h.OnClosed(err)
}

// Handle has another handler consume what the socket reads from now on. Not to be
// called within the handler's OnData.
func (s *Sock) Handle(h Handler) { s.h = h }

// Try reads what there is already, as a client that has just been accepted is likely to
// have sent something: that saves a turn.
func (s *Sock) Try() { s.readable() }

// FD is the socket's descriptor, for asking the kernel about it.
func (s *Sock) FD() int { return s.fd }

// Release takes the socket off the loop without closing it and returns its
// descriptor and the output that was not written, which are the caller's then.
// The handler is not called; for all other code the socket is closed. Not to be
// called within the handler's OnData.
func (s *Sock) Release() (fd int, unwritten []byte) {
	s.Closed = true
	s.l.socks[s.fd] = nil
	// It fails only for what is not watched, and this is.
	_ = unix.EpollCtl(s.l.epfd, unix.EPOLL_CTL_DEL, s.fd, nil)
	unwritten = append(unwritten, s.Out[s.outOff:]...)
	s.l.bufs.put(s.In)
	s.l.bufs.put(s.Out)
	s.In, s.Out, s.outOff = nil, nil, 0
	return s.fd, unwritten
}

// buffers keeps the loop's buffers for reuse. An idle connection holds none.
type buffers struct{ free [][]byte }

const (
	bufInitial = 4 << 10
	bufKeepMax = 128 << 10 // larger buffers go back to the collector
	bufKeepNum = 1024
)

func (b *buffers) get() []byte {
	if n := len(b.free); n > 0 {
		p := b.free[n-1]
		b.free = b.free[:n-1]
		return p[:0]
	}
	return make([]byte, 0, bufInitial)
}

func (b *buffers) put(p []byte) {
	if cap(p) == 0 || cap(p) > bufKeepMax || len(b.free) >= bufKeepNum {
		return
	}
	b.free = append(b.free, p[:0])
}
