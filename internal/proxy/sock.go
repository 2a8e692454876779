package proxy

import (
	"io"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"
)

// A handler consumes what a socket reads.
type handler interface {
	// onData consumes a prefix of p and returns its length. What it leaves
	// is kept by the socket and offered again, in front of newer bytes.
	// p is valid only during the call.
	onData(p []byte) int
	// onClosed tells that the socket is gone, once.
	onClosed(err error)
	// onDrained tells that the output of a watched socket has been written.
	onDrained()
}

// A sock is a non-blocking stream socket of a loop. Its output is gathered
// during a turn and written once at the turn's end.
//
// The out buffer is owned by the loop's thread alone; write() copies from it
// before anything can be appended again, so no answer of another backend can
// race with it.
type sock struct {
	l  *loop
	fd int
	h  handler

	in        []byte // read but not consumed
	out       []byte // to be written, from outOff on
	outOff    int
	dirty     bool   // is in loop.dirty
	wantWrite bool   // the kernel's buffer is full: EPOLLOUT is armed
	paused    bool   // EPOLLIN is not armed
	full      bool   // ... because the handler leaves too much unconsumed
	throttled bool   // ... because whoever the bytes are for is slow
	watched   bool   // somebody is held back until the output is written
	flushes   uint64 // times that output was handed to the kernel
	eof       bool   // the peer has closed; in may still hold bytes
	closing   bool   // close when out is written
	closed    bool
}

// maxHeld is how much a handler may leave unconsumed before the socket stops
// reading, so that a client that sends faster than the database works is held
// back by TCP and not by our memory.
const maxHeld = 256 << 10

func (l *loop) newSock(fd int, h handler) (*sock, error) {
	if err := unix.SetNonblock(fd, true); err != nil {
		return nil, err
	}
	for fd >= len(l.socks) {
		l.socks = append(l.socks, make([]*sock, max(64, fd+1-len(l.socks)))...)
	}
	if err := unix.EpollCtl(l.epfd, unix.EPOLL_CTL_ADD, fd, &unix.EpollEvent{Events: unix.EPOLLIN, Fd: int32(fd)}); err != nil {
		return nil, err
	}
	s := &sock{l: l, fd: fd, h: h}
	l.socks[fd] = s
	return s, nil
}

func (s *sock) arm() {
	var ev uint32
	if !s.paused && !s.eof {
		ev |= unix.EPOLLIN
	}
	if s.wantWrite {
		ev |= unix.EPOLLOUT
	}
	if err := unix.EpollCtl(s.l.epfd, unix.EPOLL_CTL_MOD, s.fd, &unix.EpollEvent{Events: ev, Fd: int32(s.fd)}); err != nil {
		s.close(err)
	}
}

// readable reads once and offers the bytes to the handler. Level-triggered
// epoll brings the socket back if there is more.
func (s *sock) readable() {
	if s.closed || s.paused || s.eof {
		return
	}
	buf := s.l.buf
	n, _, e := syscall.RawSyscall(unix.SYS_READ, uintptr(s.fd), uintptr(unsafe.Pointer(&buf[0])), uintptr(len(buf)))
	if e != 0 {
		if e == unix.EAGAIN || e == unix.EINTR {
			return
		}
		s.close(e)
		return
	}
	if n == 0 {
		s.eof = true
		if len(s.in) > 0 {
			s.consume()
		}
		if !s.closed {
			s.close(io.EOF)
		}
		return
	}
	s.l.st.reads++
	s.l.st.bytesIn += uint64(n)
	p := buf[:n]
	if len(s.in) > 0 {
		s.in = append(s.in, p...)
		s.consume()
		return
	}
	used := s.h.onData(p)
	if s.closed {
		return
	}
	if used < len(p) {
		if cap(s.in) == 0 {
			s.in = s.l.free.getBuf()
		}
		s.in = append(s.in[:0], p[used:]...)
		s.hold()
	}
}

// consume offers the held bytes to the handler again.
func (s *sock) consume() {
	if s.closed || len(s.in) == 0 {
		return
	}
	used := s.h.onData(s.in)
	if s.closed {
		return
	}
	switch {
	case used == len(s.in):
		s.l.free.putBuf(s.in)
		s.in = nil
	case used > 0:
		s.in = s.in[:copy(s.in, s.in[used:])]
	}
	s.hold()
}

// hold stops or resumes reading by what is held.
func (s *sock) hold() {
	s.full = len(s.in) >= maxHeld && !s.needsMore()
	s.repause()
}

// throttle stops or resumes reading because of the other side.
func (s *sock) throttle(on bool) {
	if s.closed {
		return
	}
	s.throttled = on
	s.repause()
}

func (s *sock) repause() {
	if p := s.full || s.throttled; p != s.paused {
		s.paused = p
		s.arm()
	}
}

// needsMore tells that the handler waits for the rest of one message that is
// longer than maxHeld; such a message must not stop the reading.
func (s *sock) needsMore() bool {
	w, ok := s.h.(interface{ wantsMore() bool })
	return ok && w.wantsMore()
}

func (s *sock) pending() int { return len(s.out) - s.outOff }

// touch marks the socket as having output. Callers append to s.out first.
func (s *sock) touch() {
	if !s.dirty && !s.closed {
		s.dirty = true
		s.l.dirty = append(s.l.dirty, s)
	}
}

// outBuf returns the output buffer to append to, taking one from the free
// list if the socket has none.
func (s *sock) outBuf() []byte {
	if s.out == nil {
		s.out = s.l.free.getBuf()
	}
	return s.out
}

func (s *sock) write(p []byte) {
	if s.closed {
		return
	}
	s.out = append(s.outBuf(), p...)
	s.touch()
}

// flush writes what is pending.
func (s *sock) flush() {
	held := s.wantWrite
	s.flushes++
	for s.outOff < len(s.out) {
		p := s.out[s.outOff:]
		n, _, e := syscall.RawSyscall(unix.SYS_WRITE, uintptr(s.fd), uintptr(unsafe.Pointer(&p[0])), uintptr(len(p)))
		if e != 0 {
			if e == unix.EINTR {
				continue
			}
			if e == unix.EAGAIN {
				if s.outOff > 1<<20 {
					s.out = s.out[:copy(s.out, s.out[s.outOff:])]
					s.outOff = 0
				}
				if !s.wantWrite {
					s.wantWrite = true
					s.arm()
				}
				return
			}
			s.close(e)
			return
		}
		s.l.st.writes++
		s.l.st.bytesOut += uint64(n)
		s.outOff += int(n)
	}
	s.l.free.putBuf(s.out)
	s.out, s.outOff = nil, 0
	if s.closing {
		s.close(io.EOF)
		return
	}
	if held {
		s.wantWrite = false
		s.arm()
	}
	if s.watched && !s.closed {
		s.watched = false
		s.h.onDrained()
	}
}

// holdBack stops reading from src until this socket's output is written.
func (s *sock) holdBack(src *sock) {
	s.watched = true
	s.touch()
	src.throttle(true)
}

// closeAfterFlush closes the socket when its output is written.
func (s *sock) closeAfterFlush() {
	if s.closed || s.closing {
		return
	}
	s.closing = true
	s.touch()
}

func (s *sock) close(err error) {
	if s.closed {
		return
	}
	s.closed = true
	s.l.socks[s.fd] = nil
	_ = unix.Close(s.fd) // also leaves epoll
	s.l.free.putBuf(s.in)
	s.l.free.putBuf(s.out)
	s.in, s.out, s.outOff = nil, nil, 0
	s.h.onClosed(err)
}

// freeLists keep the loop's buffers and units for reuse. An idle connection
// holds none.
type freeLists struct {
	bufs  [][]byte
	units []*unit
}

const (
	bufInitial = 4 << 10
	bufKeepMax = 128 << 10 // larger buffers go back to the collector
	bufKeepNum = 1024
)

func (f *freeLists) getBuf() []byte {
	if n := len(f.bufs); n > 0 {
		b := f.bufs[n-1]
		f.bufs = f.bufs[:n-1]
		return b[:0]
	}
	return make([]byte, 0, bufInitial)
}

func (f *freeLists) putBuf(b []byte) {
	if cap(b) == 0 || cap(b) > bufKeepMax || len(f.bufs) >= bufKeepNum {
		return
	}
	f.bufs = append(f.bufs, b[:0])
}
