package netwire

import (
	"io"
	"net"
	"os"
	"syscall"
	"unsafe"
)

// Quick returns conn with reads and writes that bypass the Go scheduler's system call hooks, if
// it is a TCP connection; otherwise it returns conn. At most one goroutine at a time may read
// from it, and one write to it.
//
// A process that waits for one message at a time sleeps in between, and so does Go's monitor
// thread (sysmon). Every system call that might block wakes the monitor, which costs a thread
// switch, and makes it check five times or more, 20 us apart, whether the call has blocked:
// half of the thread switches of a process that handles a message in 50 us. A socket of the
// poller does not block, so these checks are useless.
func Quick(conn net.Conn) net.Conn {
	tcp, ok := conn.(*net.TCPConn)
	if !ok {
		return conn
	}
	raw, err := tcp.SyscallConn()
	if err != nil {
		return conn
	}
	q := &quick{TCPConn: tcp, raw: raw}
	q.in.try, q.out.try = q.in.read, q.out.write
	return q
}

type quick struct {
	*net.TCPConn
	raw     syscall.RawConn
	in, out transfer
}

// transfer is the reading or writing side, used by one goroutine at a time.
type transfer struct {
	b     []byte
	n     int
	errno syscall.Errno
	try   func(fd uintptr) bool // read or write, allocated once
}

// mostAtOnce limits one call, in bytes: during a call, no other goroutine gets the processor.
const mostAtOnce = 128 << 10

func (t *transfer) call(trap, fd uintptr) bool {
	for {
		b := t.b[:min(len(t.b), mostAtOnce)]
		n, _, errno := syscall.RawSyscall(trap, fd, uintptr(unsafe.Pointer(&b[0])), uintptr(len(b)))
		switch errno {
		case syscall.EINTR:
			continue
		case syscall.EAGAIN:
			return false
		}
		t.n, t.errno = int(n), errno
		return true
	}
}

func (t *transfer) read(fd uintptr) bool {
	done := t.call(syscall.SYS_READ, fd)
	if done {
		afterRead(fd)
	}
	return done
}

func (t *transfer) write(fd uintptr) bool {
	beforeWrite()
	return t.call(syscall.SYS_WRITE, fd)
}

// Read implements net.Conn.
func (q *quick) Read(b []byte) (int, error) {
	if len(b) == 0 {
		return 0, nil
	}
	q.in.b = b
	err := q.raw.Read(q.in.try)
	q.in.b = nil
	switch {
	case err != nil:
		return 0, err
	case q.in.errno != 0:
		return 0, q.failed("read", q.in.errno)
	case q.in.n == 0:
		return 0, io.EOF
	}
	return q.in.n, nil
}

// Write implements net.Conn.
func (q *quick) Write(b []byte) (int, error) {
	done := 0
	for done < len(b) {
		q.out.b = b[done:]
		err := q.raw.Write(q.out.try)
		q.out.b = nil
		switch {
		case err != nil:
			return done, err
		case q.out.errno != 0:
			return done, q.failed("write", q.out.errno)
		case q.out.n == 0:
			return done, io.ErrUnexpectedEOF
		}
		done += q.out.n
	}
	return done, nil
}

func (q *quick) failed(op string, errno syscall.Errno) error {
	return &net.OpError{Op: op, Net: "tcp", Source: q.LocalAddr(), Addr: q.RemoteAddr(), Err: os.NewSyscallError(op, errno)}
}
