package profile

import (
	"io"
	"net"
	"os"
	"sync"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"
)

// stampReader reads from a TCP socket and gets the kernel's time stamp of when the data arrived
// (SO_TIMESTAMPING, software, receive). It works on the loopback, too, but not on Unix sockets.
//
// A read allocates nothing: the message header and the functions for the poller are reused. The
// lock allows one read at a time.
type stampReader struct {
	mu      sync.Mutex // guards all below
	raw     syscall.RawConn
	attempt func(fd uintptr) bool
	msg     unix.Msghdr
	iov     unix.Iovec
	control [16]uint64 // uint64 for alignment
	n       int
	errno   syscall.Errno
}

// newStampReader returns nil if the connection cannot have its data stamped.
func newStampReader(conn net.Conn) *stampReader {
	tcp, ok := conn.(*net.TCPConn)
	if !ok {
		return nil
	}
	raw, err := tcp.SyscallConn()
	if err != nil {
		return nil
	}
	var errSet error
	err = raw.Control(func(fd uintptr) {
		errSet = unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_TIMESTAMPING,
			unix.SOF_TIMESTAMPING_RX_SOFTWARE|unix.SOF_TIMESTAMPING_SOFTWARE)
	})
	if err != nil || errSet != nil {
		return nil
	}
	s := &stampReader{raw: raw}
	s.msg.Iov = &s.iov
	s.msg.SetIovlen(1)
	s.attempt = s.receive
	return s
}

// read reads as a net.Conn does. at is when the last of the data arrived, in nanoseconds of the
// wall clock, and 0 if the kernel does not say.
func (s *stampReader) read(b []byte) (n int, at int64, err error) {
	if len(b) == 0 {
		return 0, 0, nil
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.iov.Base = &b[0]
	s.iov.SetLen(len(b))
	err = s.raw.Read(s.attempt)
	s.iov.Base = nil
	switch {
	case err != nil:
		return 0, 0, err
	case s.errno != 0:
		return 0, 0, os.NewSyscallError("recvmsg", s.errno)
	case s.n == 0:
		return 0, 0, io.EOF
	}
	return s.n, s.stamp(), nil
}

// receive tries once, and returns false if there is no data yet.
func (s *stampReader) receive(fd uintptr) bool {
	for {
		s.msg.Control = (*byte)(unsafe.Pointer(&s.control[0]))
		s.msg.SetControllen(len(s.control) * 8)
		n, _, errno := unix.Syscall(unix.SYS_RECVMSG, fd, uintptr(unsafe.Pointer(&s.msg)), 0)
		switch errno {
		case unix.EINTR:
		case unix.EAGAIN:
			return false
		default:
			s.n, s.errno = int(n), errno
			return true
		}
	}
}

// stamp returns the software time stamp of the message that was read last, in nanoseconds of
// the wall clock, or 0.
func (s *stampReader) stamp() int64 {
	const header = unix.SizeofCmsghdr
	if int(s.msg.Controllen) < header+int(unsafe.Sizeof(unix.Timespec{})) {
		return 0
	}
	h := (*unix.Cmsghdr)(unsafe.Pointer(&s.control[0]))
	if h.Level != unix.SOL_SOCKET || h.Type != unix.SCM_TIMESTAMPING {
		return 0
	}
	ts := (*unix.Timespec)(unsafe.Pointer(&s.control[header/8]))
	return ts.Nano()
}
