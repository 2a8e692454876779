package kvbench

import (
	"encoding/binary"
	"fmt"
	"io"
	"net"
	"os"
	"runtime"
	"runtime/debug"
	"unsafe"

	"golang.org/x/sys/unix"

	kvload "github.com/weirdb/weir/internal/ruler/bench/kv/load"
)

// Calls go past Go's scheduler and memory is never collected, so that the floor costs
// what the kernel does.

// floorLog is a log of a fixed size that is written over and over, past the page
// cache, in whole blocks that the file has.
type floorLog struct {
	fd int
	at int64
}

const (
	logBytes   = 32 << 20
	logBlock   = 4096
	groupBytes = 1 << 20 // the most of one write
)

func openFloorLog(name string) (*floorLog, error) {
	err := os.WriteFile(name, make([]byte, logBytes), 0o600)
	if err == nil {
		var f *os.File
		if f, err = os.OpenFile(name, os.O_RDWR, 0); err == nil {
			err = f.Sync()
			_ = f.Close()
		}
	}
	if err != nil {
		return nil, fmt.Errorf("make a log: %w", err)
	}
	fd, err := unix.Open(name, unix.O_RDWR|unix.O_DIRECT|unix.O_DSYNC|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("open log %s past the page cache: %w", name, err)
	}
	return &floorLog{fd: fd}, nil
}

// flush writes the first n bytes of buf, which is aligned, and returns when they are
// on the disk.
func (l *floorLog) flush(buf []byte, n int) error {
	n = (n + logBlock - 1) &^ (logBlock - 1)
	if l.at+int64(n) > logBytes {
		l.at = 0
	}
	for {
		got, _, e := unix.RawSyscall6(unix.SYS_PWRITE64, uintptr(l.fd), uintptr(unsafe.Pointer(&buf[0])), uintptr(n), uintptr(l.at), 0, 0)
		if e == unix.EINTR {
			continue
		}
		if e != 0 || int(got) != n {
			return fmt.Errorf("write %d bytes to the log: %d were written: %w", n, got, e)
		}
		l.at += int64(n)
		return nil
	}
}

// alignedBytes are memory that a direct write takes.
func alignedBytes() ([]byte, error) {
	b, err := unix.Mmap(-1, 0, groupBytes, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_ANON|unix.MAP_PRIVATE)
	if err != nil {
		return nil, fmt.Errorf("take memory: %w", err)
	}
	return b, nil
}

// rawRead reads at least one byte and waits for it; 0 is the end.
func rawRead(fd int, b []byte) int {
	for {
		n, _, e := unix.RawSyscall(unix.SYS_READ, uintptr(fd), uintptr(unsafe.Pointer(&b[0])), uintptr(len(b)))
		switch {
		case e == unix.EINTR:
		case e != 0:
			return 0
		default:
			return int(n)
		}
	}
}

// rawWrite writes all; false says that the other side has gone.
func rawWrite(fd int, b []byte) bool {
	for len(b) > 0 {
		n, _, e := unix.RawSyscall(unix.SYS_WRITE, uintptr(fd), uintptr(unsafe.Pointer(&b[0])), uintptr(len(b)))
		switch {
		case e == unix.EINTR:
		case e != 0:
			return false
		default:
			b = b[n:]
		}
	}
	return true
}

// listening is a socket that blocks, and its address to out.
func listening(out io.Writer) (int, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return 0, err
	}
	defer l.Close()
	file, err := l.(*net.TCPListener).File()
	if err != nil {
		return 0, err
	}
	defer file.Close()
	fd, err := unix.Dup(int(file.Fd()))
	if err != nil {
		return 0, err
	}
	if err := unix.SetNonblock(fd, false); err != nil {
		return 0, err
	}
	_, err = fmt.Fprintln(out, l.Addr())
	return fd, err
}

// accepted takes a connection.
func accepted(listener int) (int, error) {
	fd, _, err := unix.Accept4(listener, unix.SOCK_CLOEXEC)
	if err == nil {
		err = unix.SetsockoptInt(fd, unix.IPPROTO_TCP, unix.TCP_NODELAY, 1)
	}
	return fd, err
}

// appendLog is a follower: it takes groups from one leader, each behind its length in
// four bytes, and answers each with a byte when it is on the disk.
func appendLog(name string, out io.Writer) error {
	runtime.LockOSThread()
	debug.SetGCPercent(-1)
	log, err := openFloorLog(name)
	if err != nil {
		return err
	}
	buf, err := alignedBytes()
	if err != nil {
		return err
	}
	listener, err := listening(out)
	if err != nil {
		return fmt.Errorf("listen: %w", err)
	}
	leader, err := accepted(listener)
	if err != nil {
		return fmt.Errorf("accept the leader: %w", err)
	}
	for have := 0; ; {
		for have < 4 || have < 4+int(binary.LittleEndian.Uint32(buf)) {
			n := rawRead(leader, buf[have:])
			if n == 0 {
				return nil
			}
			have += n
		}
		size := 4 + int(binary.LittleEndian.Uint32(buf))
		if err := log.flush(buf, size); err != nil {
			return err
		}
		if !rawWrite(leader, []byte{1}) {
			return nil
		}
		have = copy(buf, buf[size:have]) // of the next group, which does not wait for both followers
	}
}

// table is the store: one thread that waits, reads and writes, and a second one that
// flushes its log meanwhile.
type table struct {
	log       *floorLog
	epoll     int
	listener  int
	clients   map[int32]*tableClient
	followers map[int32]int // how many groups each has flushed
	data      map[string][]byte

	// gathering takes writes while flushing, if it holds any, is on its way.
	gathering, flushing group
	groups              int  // sent to the followers
	flushed             bool // our own log has the last of them
	wake, done          int  // eventfds: to the flusher, and from it
	dirty               []*tableClient
}

// group is writes that are flushed at once, as the followers get them: behind their
// length in four bytes.
type group struct {
	buf  []byte
	n    int
	from []*tableClient // of each write
}

type tableClient struct {
	fd   int
	in   []byte
	have int
	out  []byte
}

// serveTable serves until standard input ends.
func serveTable(name string, followers []string, out io.Writer) (err error) {
	runtime.LockOSThread()
	debug.SetGCPercent(-1)
	runtime.GOMAXPROCS(2) // the flusher's thread blocks in its calls, and so does this one
	t := &table{clients: map[int32]*tableClient{}, followers: map[int32]int{}, data: map[string][]byte{}}
	if t.log, err = openFloorLog(name); err != nil {
		return err
	}
	for _, g := range []*group{&t.gathering, &t.flushing} {
		g.n = 4
		if g.buf, err = alignedBytes(); err != nil {
			return err
		}
	}
	if t.epoll, err = unix.EpollCreate1(unix.EPOLL_CLOEXEC); err != nil {
		return fmt.Errorf("epoll: %w", err)
	}
	for _, fd := range []*int{&t.wake, &t.done} {
		if *fd, err = unix.Eventfd(0, unix.EFD_CLOEXEC); err != nil {
			return fmt.Errorf("eventfd: %w", err)
		}
	}
	for _, addr := range followers {
		if err := t.follow(addr); err != nil {
			return err
		}
	}
	if t.listener, err = listening(out); err != nil {
		return fmt.Errorf("listen: %w", err)
	}
	for _, fd := range []int{t.listener, t.done, int(os.Stdin.Fd())} {
		if err := t.watch(fd); err != nil {
			return err
		}
	}
	failed := make(chan error, 1)
	go func() {
		runtime.LockOSThread()
		failed <- t.flusher()
	}()
	return t.run(int32(os.Stdin.Fd()), failed)
}

func (t *table) watch(fd int) error {
	if err := unix.EpollCtl(t.epoll, unix.EPOLL_CTL_ADD, fd, &unix.EpollEvent{Events: unix.EPOLLIN, Fd: int32(fd)}); err != nil {
		return fmt.Errorf("watch a connection: %w", err)
	}
	return nil
}

func (t *table) follow(addr string) error {
	a, err := net.ResolveTCPAddr("tcp4", addr)
	if err != nil {
		return fmt.Errorf("find a follower: %w", err)
	}
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err == nil {
		err = unix.Connect(fd, &unix.SockaddrInet4{Port: a.Port, Addr: [4]byte(a.IP.To4())})
	}
	if err == nil {
		err = unix.SetsockoptInt(fd, unix.IPPROTO_TCP, unix.TCP_NODELAY, 1)
	}
	if err != nil {
		return fmt.Errorf("connect to a follower: %w", err)
	}
	t.followers[int32(fd)] = 0
	return t.watch(fd)
}

// flusher flushes the group that flushing is each time that it is woken.
func (t *table) flusher() error {
	var b [8]byte
	for {
		rawRead(t.wake, b[:])
		if err := t.log.flush(t.flushing.buf, t.flushing.n); err != nil {
			return err
		}
		binary.NativeEndian.PutUint64(b[:], 1)
		rawWrite(t.done, b[:])
	}
}

func (t *table) run(input int32, failed <-chan error) error {
	events := make([]unix.EpollEvent, 256)
	var b [64]byte
	for {
		n, _, e := unix.RawSyscall6(unix.SYS_EPOLL_PWAIT, uintptr(t.epoll), uintptr(unsafe.Pointer(&events[0])), uintptr(len(events)), ^uintptr(0), 0, 0)
		if e == unix.EINTR {
			continue
		}
		if e != 0 {
			return fmt.Errorf("epoll: %w", e)
		}
		for _, ev := range events[:n] {
			switch {
			case ev.Fd == input:
				return nil
			case ev.Fd == int32(t.listener):
				if err := t.accept(); err != nil {
					return err
				}
			case ev.Fd == int32(t.done):
				rawRead(t.done, b[:8])
				t.flushed = true
			case t.clients[ev.Fd] != nil:
				t.serve(t.clients[ev.Fd])
			default:
				got := rawRead(int(ev.Fd), b[:])
				if got == 0 {
					return fmt.Errorf("a follower has gone")
				}
				t.followers[ev.Fd] += got
			}
		}
		select {
		case err := <-failed:
			return err
		default:
		}
		if err := t.turn(); err != nil {
			return err
		}
	}
}

// turn ends the group that is durable, begins the next, and sends what there is to
// send.
func (t *table) turn() error {
	for {
		if t.durable() {
			t.apply()
		}
		t.send()
		if len(t.flushing.from) > 0 || len(t.gathering.from) == 0 {
			return nil
		}
		t.gathering, t.flushing = t.flushing, t.gathering
		g := &t.flushing
		binary.LittleEndian.PutUint32(g.buf, uint32(g.n-4))
		t.groups++
		t.flushed = false
		for fd := range t.followers {
			if !rawWrite(int(fd), g.buf[:g.n]) {
				return fmt.Errorf("a follower has gone")
			}
		}
		if len(t.clients) > 1 {
			var b [8]byte
			binary.NativeEndian.PutUint64(b[:], 1)
			rawWrite(t.wake, b[:])
			return nil
		}
		// Nobody else has anything to do meanwhile.
		if err := t.log.flush(g.buf, g.n); err != nil {
			return err
		}
		t.flushed = true
	}
}

// durable tells whether a majority of the logs has the group that is on its way.
func (t *table) durable() bool {
	if len(t.flushing.from) == 0 || !t.flushed {
		return false
	}
	most := len(t.followers) == 0
	for _, groups := range t.followers {
		most = most || groups >= t.groups
	}
	return most
}

// apply writes a group into the table and answers it.
func (t *table) apply() {
	g := &t.flushing
	at := 4
	for _, c := range g.from {
		request := g.buf[at : at+4+int(binary.LittleEndian.Uint32(g.buf[at:]))]
		at += len(request)
		key := kvload.PlainHead + int(request[9])
		old := t.data[string(request[kvload.PlainHead:key])]
		if value := request[key:]; len(old) == len(value) && old != nil {
			copy(old, value)
		} else {
			t.data[string(request[kvload.PlainHead:key])] = append([]byte{}, value...)
		}
		t.answer(c, request[4:8], nil, false)
	}
	g.n, g.from = 4, g.from[:0]
}

func (t *table) answer(c *tableClient, slot, value []byte, found bool) {
	if len(c.out) == 0 {
		t.dirty = append(t.dirty, c)
	}
	c.out = binary.LittleEndian.AppendUint32(c.out, uint32(kvload.PlainAnswer-4+len(value)))
	c.out = append(c.out, slot...)
	if found {
		c.out = append(append(c.out, 1), value...)
	} else {
		c.out = append(c.out, 0)
	}
}

func (t *table) send() {
	for _, c := range t.dirty {
		rawWrite(c.fd, c.out) // of one that has gone, epoll tells
		c.out = c.out[:0]
	}
	t.dirty = t.dirty[:0]
}

func (t *table) accept() error {
	fd, err := accepted(t.listener)
	if err != nil {
		return nil //nolint:nilerr // it has left again
	}
	t.clients[int32(fd)] = &tableClient{fd: fd, in: make([]byte, 64<<10)}
	return t.watch(fd)
}

// serve takes what a client has sent. What would not fit the group waits in its
// socket.
func (t *table) serve(c *tableClient) {
	if t.gathering.n+len(c.in) > groupBytes {
		return
	}
	n := rawRead(c.fd, c.in[c.have:])
	if n == 0 {
		delete(t.clients, int32(c.fd))
		_ = unix.Close(c.fd)
		c.fd = -1 // so that what of it is on its way is answered into nothing
		return
	}
	c.have += n
	at := 0
	for rest := c.in[:c.have]; len(rest) >= kvload.PlainHead; rest = c.in[at:c.have] {
		size := 4 + int(binary.LittleEndian.Uint32(rest))
		if size > len(rest) {
			break
		}
		if rest[8] == kvload.PlainWrite {
			g := &t.gathering
			g.n += copy(g.buf[g.n:], rest[:size])
			g.from = append(g.from, c)
		} else {
			value, ok := t.data[string(rest[kvload.PlainHead:size])]
			t.answer(c, rest[4:8], value, ok)
		}
		at += size
	}
	c.have = copy(c.in, c.in[at:c.have])
}
