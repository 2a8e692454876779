package kvbench

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"runtime"
	"runtime/debug"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/weirdb/weir/internal/ruler/bench/floor"
	kvload "github.com/weirdb/weir/internal/ruler/bench/kv/load"
)

// floorLog is a log of a fixed size that is overwritten repeatedly with direct writes of whole,
// allocated blocks.
type floorLog struct {
	fd int
	at int64
}

const (
	logBytes   = 32 << 20
	logBlock   = 4096
	groupBytes = 1 << 20 // largest write
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
		return nil, fmt.Errorf("open log %s for direct writes: %w", name, err)
	}
	return &floorLog{fd: fd}, nil
}

// flush writes the first n bytes of buf, which is aligned, and returns when they are on disk.
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

// alignedBytes returns memory with the alignment that direct writes need.
func alignedBytes() ([]byte, error) {
	b, err := unix.Mmap(-1, 0, groupBytes, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_ANON|unix.MAP_PRIVATE)
	if err != nil {
		return nil, fmt.Errorf("take memory: %w", err)
	}
	return b, nil
}

// appendLog is a follower: it receives groups from one leader, each with a four-byte length,
// and answers each with a byte when it is on disk.
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
	listener, err := floor.Listen(out)
	if err != nil {
		return err
	}
	leader, e := floor.Accept(listener)
	if e != 0 {
		return fmt.Errorf("accept the leader: %w", e)
	}
	for have := 0; ; {
		for have < 4 || have < 4+int(binary.LittleEndian.Uint32(buf)) {
			n := floor.Read(leader, buf[have:])
			if n == 0 {
				return nil
			}
			have += n
		}
		size := 4 + int(binary.LittleEndian.Uint32(buf))
		if err := log.flush(buf, size); err != nil {
			return err
		}
		if !floor.Write(leader, []byte{1}) {
			return nil
		}
		have = copy(buf, buf[size:have]) // the start of the next group: the leader does not wait for both followers
	}
}

// table is the store: one thread that waits, reads and writes, and a second one that flushes
// the log in the meantime.
type table struct {
	log       *floorLog
	loop      *floor.Loop
	clients   map[int32]*tableClient
	followers map[int32]int // how many groups each has flushed
	data      map[string][]byte

	// gathering collects writes while flushing, if not empty, is being flushed.
	gathering, flushing group
	groups              int  // sent to the followers
	flushed             bool // our own log has flushed the last of them
	wake, done          int  // eventfds: to the flusher, and from it
	failed              chan error
	dirty               []*tableClient
}

// group is a group of writes that are flushed together, in the form in which followers get
// them: after a four-byte length.
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
	runtime.GOMAXPROCS(2) // both threads block in system calls
	t := &table{clients: map[int32]*tableClient{}, followers: map[int32]int{}, data: map[string][]byte{}, failed: make(chan error, 1)}
	if t.loop, err = floor.NewLoop(); err != nil {
		return err
	}
	if t.log, err = openFloorLog(name); err != nil {
		return err
	}
	for _, g := range []*group{&t.gathering, &t.flushing} {
		g.n = 4
		if g.buf, err = alignedBytes(); err != nil {
			return err
		}
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
	if err := t.loop.Listen(out); err != nil {
		return err
	}
	if err := t.loop.Watch(t.done); err != nil {
		return err
	}
	go func() {
		runtime.LockOSThread()
		t.failed <- t.flusher()
	}()
	return t.loop.Run(t.accept, t.ready, t.turn)
}

func (t *table) follow(addr string) error {
	a, err := net.ResolveTCPAddr("tcp", addr)
	if err != nil {
		return fmt.Errorf("find a follower: %w", err)
	}
	fd, err := floor.Connect(a)
	if err != nil {
		return fmt.Errorf("follower: %w", err)
	}
	t.followers[int32(fd)] = 0
	return t.loop.Watch(fd)
}

// flusher flushes the group flushing each time it is woken.
func (t *table) flusher() error {
	var b [8]byte
	for {
		floor.Read(t.wake, b[:])
		if err := t.log.flush(t.flushing.buf, t.flushing.n); err != nil {
			return err
		}
		binary.NativeEndian.PutUint64(b[:], 1)
		floor.Write(t.done, b[:])
	}
}

// ready handles readable data.
func (t *table) ready(fd int) error {
	var b [64]byte
	if c := t.clients[int32(fd)]; c != nil {
		t.serve(c)
		return nil
	}
	got := floor.Read(fd, b[:])
	switch {
	case fd == t.done:
		t.flushed = true
	case got == 0:
		return errors.New("a follower has gone")
	default:
		t.followers[int32(fd)] += got
	}
	return nil
}

// turn ends the group that is durable, starts the next one, and sends pending output.
func (t *table) turn() error {
	select {
	case err := <-t.failed:
		return err
	default:
	}
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
			if !floor.Write(int(fd), g.buf[:g.n]) {
				return errors.New("a follower has gone")
			}
		}
		if len(t.clients) > 1 {
			var b [8]byte
			binary.NativeEndian.PutUint64(b[:], 1)
			floor.Write(t.wake, b[:])
			return nil
		}
		// There is nothing else to do in the meantime.
		if err := t.log.flush(g.buf, g.n); err != nil {
			return err
		}
		t.flushed = true
	}
}

// durable reports whether a majority of the logs has flushed the group.
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

// apply applies a group to the table and answers it.
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
		floor.Write(c.fd, c.out) // epoll reports clients that have gone
		c.out = c.out[:0]
	}
	t.dirty = t.dirty[:0]
}

func (t *table) accept(fd int) error {
	t.clients[int32(fd)] = &tableClient{fd: fd, in: make([]byte, 64<<10)}
	return t.loop.Watch(fd)
}

// serve handles a client's requests. Data that would not fit into the group stays in the
// socket.
func (t *table) serve(c *tableClient) {
	if t.gathering.n+len(c.in) > groupBytes {
		return
	}
	n := floor.Read(c.fd, c.in[c.have:])
	if n == 0 {
		delete(t.clients, int32(c.fd))
		_ = unix.Close(c.fd)
		c.fd = -1 // so that answers to its pending writes are dropped
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
