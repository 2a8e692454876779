package load

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"runtime"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/weirdb/weir/internal/measure"
)

// eventsPerTurn limits how many sockets one epoll_wait reports. With more, the time read at the
// start would be stale for the last one.
const eventsPerTurn = 64

// loop is one operating system thread that drives its share of the connections. Only that
// thread uses it until run returns.
type loop struct {
	ctl    *control
	epoll  int
	wakeFD int // eventfd that interrupts epoll_wait when the phase changes
	conns  []*conn
	byFD   map[int32]*conn
	active int // connections with an operation in flight

	ops, totalOps int64
	latency       measure.Hist
	errors        map[string]int64
	examples      []string
}

// conn is one client.
type conn struct {
	id      int
	fd      int
	client  Client
	in      []byte // received and not yet consumed
	out     []byte // request buffer, reused
	unsent  []byte // the part of out that the socket has not accepted
	started int64  // when the operation in flight was sent
	busy    bool   // an operation is in flight
	ledger  clientLedger
}

// settle records an operation that never got its answer in the ledger.
func (c *conn) settle() {
	if c.busy {
		c.busy = false
		c.ledger.unknown = append(c.ledger.unknown, c.ledger.sent-1)
	}
}

func newLoop(ctl *control) (*loop, error) {
	l := &loop{ctl: ctl, byFD: make(map[int32]*conn), errors: make(map[string]int64), epoll: -1, wakeFD: -1}
	var err error
	if l.epoll, err = unix.EpollCreate1(unix.EPOLL_CLOEXEC); err != nil {
		return nil, fmt.Errorf("create epoll: %w", err)
	}
	if l.wakeFD, err = unix.Eventfd(0, unix.EFD_CLOEXEC|unix.EFD_NONBLOCK); err != nil {
		l.close()
		return nil, fmt.Errorf("create eventfd: %w", err)
	}
	if err := l.watch(unix.EPOLL_CTL_ADD, l.wakeFD, unix.EPOLLIN); err != nil {
		l.close()
		return nil, err
	}
	return l, nil
}

func (l *loop) watch(op, fd int, events uint32) error {
	if err := unix.EpollCtl(l.epoll, op, fd, &unix.EpollEvent{Events: events, Fd: int32(fd)}); err != nil {
		return fmt.Errorf("watch socket: %w", err)
	}
	return nil
}

// adopt takes over a connection. It duplicates the socket and closes the connection, which
// removes it from Go's own epoll instance.
func (l *loop) adopt(id int, nc net.Conn, client Client) error {
	defer nc.Close()
	sc, ok := nc.(syscall.Conn)
	if !ok {
		return fmt.Errorf("take over client %d: not a plain socket; the load generator does not support TLS, so the DSN must not request it", id)
	}
	raw, err := sc.SyscallConn()
	if err != nil {
		return fmt.Errorf("take over client %d: %w", id, err)
	}
	fd := -1
	var dupErr error
	if err := raw.Control(func(s uintptr) { fd, dupErr = unix.FcntlInt(s, unix.F_DUPFD_CLOEXEC, 0) }); err != nil || dupErr != nil {
		return fmt.Errorf("take over client %d: %w", id, errors.Join(err, dupErr))
	}
	c := &conn{id: id, fd: fd, client: client, in: make([]byte, 0, 1024), out: make([]byte, 0, 256)}
	l.conns = append(l.conns, c)
	l.byFD[int32(fd)] = c
	if err := unix.SetNonblock(fd, true); err != nil {
		return fmt.Errorf("take over client %d: %w", id, err)
	}
	return l.watch(unix.EPOLL_CTL_ADD, fd, unix.EPOLLIN)
}

// close ends all sessions. It tells the server, so that the server logs no lost connections.
func (l *loop) close() {
	for _, c := range l.conns {
		if c.fd >= 0 {
			unix.Write(c.fd, c.client.Quit())
			unix.Close(c.fd)
		}
	}
	if l.wakeFD >= 0 {
		unix.Close(l.wakeFD)
	}
	if l.epoll >= 0 {
		unix.Close(l.epoll)
	}
}

// wake makes the thread check the phase. Called from other goroutines.
func (l *loop) wake() {
	var one [8]byte
	binary.NativeEndian.PutUint64(one[:], 1)
	unix.Write(l.wakeFD, one[:]) // fails only if the counter is already set
}

// run sends a first operation on each connection and a further one after each answer, until the
// phase says stop and the last answer has come.
func (l *loop) run() error {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	for _, c := range l.conns {
		if err := l.next(c, l.ctl.clock.Now()); err != nil {
			return err
		}
	}
	var events [eventsPerTurn]unix.EpollEvent
	for l.active > 0 && l.ctl.phase.Load() != phaseAbort {
		n, err := unix.EpollWait(l.epoll, events[:], -1)
		if err != nil && !errors.Is(err, unix.EINTR) {
			return fmt.Errorf("wait for sockets: %w", err)
		}
		for _, e := range events[:max(n, 0)] {
			c := l.byFD[e.Fd]
			if c == nil {
				var b [8]byte
				unix.Read(l.wakeFD, b[:])
				continue
			}
			if e.Events&unix.EPOLLOUT != 0 {
				if err := l.flush(c); err != nil {
					return err
				}
			}
			if e.Events&^unix.EPOLLOUT != 0 && c.fd >= 0 {
				if err := l.receive(c); err != nil {
					return err
				}
			}
		}
	}
	return nil
}

// next sends the client's next operation, unless the run is over.
func (l *loop) next(c *conn, now int64) error {
	if !l.ctl.ticket(l.ctl.phase.Load()) {
		return nil
	}
	c.out = c.client.Ask(c.out[:0], c.ledger.sent)
	c.ledger.sent++
	c.busy, c.started = true, now
	l.active++
	c.unsent = c.out
	return l.flush(c)
}

// flush writes the rest of the operation. If the socket accepts only part of it, which is rare
// for a hundred bytes, the thread waits for it to be writable.
func (l *loop) flush(c *conn) error {
	for len(c.unsent) > 0 {
		n, err := writeSocket(c.fd, c.unsent)
		switch {
		case err == nil:
			c.unsent = c.unsent[n:]
		case errors.Is(err, unix.EINTR):
		case errors.Is(err, unix.EAGAIN):
			return l.watch(unix.EPOLL_CTL_MOD, c.fd, unix.EPOLLIN|unix.EPOLLOUT)
		default:
			l.lose(c, err.Error())
			return nil
		}
		if len(c.unsent) > 0 {
			continue
		}
		if n < len(c.out) { // it was being polled for writing
			return l.watch(unix.EPOLL_CTL_MOD, c.fd, unix.EPOLLIN)
		}
	}
	return nil
}

// receive reads what has arrived and, if the answer is complete, counts it and sends the next
// operation. One reading of the clock ends one operation and starts the next, so no time of a
// client is left out and Little's law holds.
func (l *loop) receive(c *conn) error {
	if len(c.in) == cap(c.in) {
		c.in = append(c.in, make([]byte, cap(c.in))...)[:len(c.in)]
	}
	n, err := readSocket(c.fd, c.in[len(c.in):cap(c.in)])
	switch {
	case errors.Is(err, unix.EAGAIN), errors.Is(err, unix.EINTR):
		return nil
	case err != nil:
		l.lose(c, err.Error())
		return nil
	case n == 0:
		l.lose(c, "closed by the server")
		return nil
	}
	c.in = c.in[:len(c.in)+n]
	used, done, err := c.client.Take(c.in)
	c.in = c.in[:copy(c.in, c.in[used:])]
	switch {
	case err != nil:
		l.lose(c, err.Error())
		return nil
	case !done:
		return nil
	case !c.busy || len(c.in) > 0:
		l.lose(c, "more answers than requests")
		return nil
	}
	now := l.ctl.clock.Now()
	l.book(c, now)
	return l.next(c, now)
}

// book counts an answered operation.
func (l *loop) book(c *conn, now int64) {
	c.busy = false
	l.active--
	measured := l.ctl.phase.Load() == phaseMeasure
	wrong := c.client.Judge()
	if wrong == nil {
		l.totalOps++
		if l.ctl.live != nil {
			l.ctl.live.Add(1)
		}
		if measured {
			l.ops++
			l.latency.Record(now - c.started)
		}
		return
	}
	n := c.ledger.sent - 1
	switch wrong.Effect {
	case Unknown:
		c.ledger.unknown = append(c.ledger.unknown, n)
	case Refused:
		c.ledger.refused = append(c.ledger.refused, n)
	case Claimed:
	}
	l.errors[wrong.Class]++ // also outside the window: an error always matters
	l.example(fmt.Sprintf("client %d, operation %d: %s", c.id, n, wrong.Text))
}

// lose abandons a connection.
func (l *loop) lose(c *conn, why string) {
	unix.Close(c.fd) // also removes it from epoll
	delete(l.byFD, int32(c.fd))
	c.fd = -1
	if c.busy {
		c.settle()
		l.active--
	}
	l.errors[ClassLost]++
	l.example(fmt.Sprintf("client %d: connection lost: %s", c.id, why))
}

func (l *loop) example(s string) {
	if len(l.examples) < maxExamples {
		l.examples = append(l.examples, s)
	}
}
