package wal

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"runtime"
	"sync/atomic"
	"syscall"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// A ring has the kernel write and flush, by io_uring, while this goroutine is parked:
// a direct write by itself, any other by a thread of the kernel.
//
// A system call that blocks keeps its processor (a P of Go's scheduler) from all
// other goroutines until the runtime's monitor notices, and by then a quick disk is
// done. Where a process may use few processors, everything in it waits for each
// flush in this way, messages to other replicas too, and the monitor wakes up every 20
// us for it. The detour through the kernel's thread is worth it only where much else is
// to be done: by itself it takes some 30 us longer. A direct write needs none.
//
// A ring takes one write at a time, by one goroutine. The layout is that of
// io_uring_setup(2); what is used of it is in Linux since 5.6.
type ring struct {
	file *os.File // the ring; the poller says when it holds a completion
	conn syscall.RawConn

	queues, entries []byte // what is shared with the kernel

	op     uint8 // how the kernel calls a write
	waits  bool  // the kernel takes a bound for a wait
	bound  ringBound
	atMost unix.Timespec

	// Places in it. One entry can be submitted at a time: the first.
	entry                  *ringEntry
	submitted              *uint32 // how many entries ever were
	completed, taken, mask *uint32
	completions            []ringCompletion
}

// ringEntry is struct io_uring_sqe.
type ringEntry struct {
	op, flags uint8
	priority  uint16
	fd        int32
	offset    int64
	address   uint64
	length    uint32
	writeFlag uint32
	userData  uint64
	_         [3]uint64
}

// ringCompletion is struct io_uring_cqe.
type ringCompletion struct {
	userData uint64
	result   int32 // bytes written, or an error's number, negative
	flags    uint32
}

// ringParams is struct io_uring_params.
type ringParams struct {
	entries, completions, flags, cpu, idle, features, worker uint32
	_                                                        [3]uint32
	submission                                               struct {
		head, tail, mask, entries, flags, dropped, array, _ uint32
		_                                                   uint64
	}
	completion struct {
		head, tail, mask, entries, overflow, entry, flags, _ uint32
		_                                                    uint64
	}
}

// ringBound is struct io_uring_getevents_arg.
type ringBound struct {
	mask         uint64
	maskSize, _0 uint32
	time         uint64
}

// patience is how long a write holds a processor at most: several times what a disk
// takes that is worth it, and nothing beside what a disk that hangs takes.
const patience = time.Millisecond

// From linux/io_uring.h.
const (
	ringOpWrite       = 23      // IORING_OP_WRITE
	ringAsync         = 1 << 4  // IOSQE_ASYNC: by a thread of the kernel, not by this one
	ringSingleMap     = 1 << 0  // IORING_FEAT_SINGLE_MMAP
	ringEntriesOffset = 1 << 28 // IORING_OFF_SQES
	ringBounds        = 1 << 8  // IORING_FEAT_EXT_ARG
	ringAwait         = 1 << 0  // IORING_ENTER_GETEVENTS
	ringBounded       = 1 << 3  // IORING_ENTER_EXT_ARG
)

func newRing() (*ring, error) {
	var p ringParams
	fd, _, errno := unix.Syscall(unix.SYS_IO_URING_SETUP, 1, uintptr(unsafe.Pointer(&p)), 0)
	if errno != 0 {
		return nil, fmt.Errorf("%w: io_uring_setup: %w", errNoRing, errno)
	}
	if err := unix.SetNonblock(int(fd), true); err != nil { // or the poller does not take it
		return nil, errors.Join(fmt.Errorf("%w: %w", errNoRing, err), unix.Close(int(fd)))
	}
	r := &ring{file: os.NewFile(fd, "io_uring"), op: ringOpWrite}
	if err := r.share(&p); err != nil {
		return nil, errors.Join(fmt.Errorf("%w: %w", errNoRing, err), r.close())
	}
	return r, nil
}

// share maps the queues.
func (r *ring) share(p *ringParams) error {
	r.waits = p.features&ringBounds != 0
	if p.features&ringSingleMap == 0 {
		return errors.New("the kernel is older than 5.4")
	}
	size := max(p.submission.array+p.entries*4, p.completion.entry+p.completions*uint32(unsafe.Sizeof(ringCompletion{})))
	conn, err := r.file.SyscallConn()
	if err != nil {
		return err
	}
	r.conn = conn
	const prot, flags = unix.PROT_READ | unix.PROT_WRITE, unix.MAP_SHARED | unix.MAP_POPULATE
	return control(conn, func(fd int) (err error) {
		if r.queues, err = unix.Mmap(fd, 0, int(size), prot, flags); err != nil {
			return fmt.Errorf("map the queues: %w", err)
		}
		if r.entries, err = unix.Mmap(fd, ringEntriesOffset, int(p.entries)*int(unsafe.Sizeof(ringEntry{})), prot, flags); err != nil {
			return fmt.Errorf("map the entries: %w", err)
		}
		at := func(offset uint32) *uint32 { return (*uint32)(unsafe.Pointer(&r.queues[offset])) }
		r.entry = (*ringEntry)(unsafe.Pointer(&r.entries[0]))
		*at(p.submission.array) = 0 // the only place of the queue always names the first entry
		r.submitted = at(p.submission.tail)
		r.taken, r.completed, r.mask = at(p.completion.head), at(p.completion.tail), at(p.completion.mask)
		r.completions = unsafe.Slice((*ringCompletion)(unsafe.Pointer(&r.queues[p.completion.entry])), p.completions)
		return nil
	})
}

func control(conn syscall.RawConn, f func(fd int) error) error {
	var err error
	if outer := conn.Control(func(fd uintptr) { err = f(int(fd)) }); outer != nil {
		return outer
	}
	return err
}

// writeSync writes b, which is not empty, to the file fd at off and makes it
// durable, by a thread of the kernel if it is not direct. It returns how much was
// written. After an errNoRing nothing is known of the write, and the ring is of no use
// any more.
//
// Unless the write is aside, this thread waits for it in the call that begins it, and
// keeps its processor for so long, but for no longer than patience.
func (r *ring) writeSync(fd int, b []byte, off int64, direct, aside bool) (int, error) {
	var pin runtime.Pinner // the kernel knows the place, the garbage collector does not know that
	pin.Pin(&b[0])
	defer pin.Unpin()
	flags := uint8(ringAsync)
	if direct {
		flags = 0
	}
	*r.entry = ringEntry{
		op: r.op, flags: flags, fd: int32(fd), offset: off,
		address: uint64(uintptr(unsafe.Pointer(&b[0]))), length: uint32(min(len(b), 1<<30)), writeFlag: unix.RWF_DSYNC,
	}
	atomic.AddUint32(r.submitted, 1)
	if err := control(r.conn, func(ring int) error { return r.submit(ring, direct && !aside) }); err != nil {
		return 0, fmt.Errorf("%w: io_uring_enter: %w", errNoRing, err)
	}
	var result int32
	err := r.conn.Read(func(uintptr) bool {
		taken := *r.taken
		if taken == atomic.LoadUint32(r.completed) {
			return false
		}
		result = r.completions[taken&*r.mask].result
		atomic.StoreUint32(r.taken, taken+1)
		return true
	})
	switch {
	case err != nil:
		return 0, fmt.Errorf("%w: wait for a write: %w", errNoRing, err)
	case result < 0:
		return 0, syscall.Errno(-result)
	}
	return int(result), nil
}

// submit hands the entry to the kernel, and may wait for the end of the write. The
// scheduler does not hear of it: to have the processor taken away and given back costs
// more than a quick write.
func (r *ring) submit(ring int, wait bool) error {
	var least, flags, bound, size uintptr
	if wait && r.waits {
		r.atMost = unix.NsecToTimespec(int64(patience))
		r.bound = ringBound{time: uint64(uintptr(unsafe.Pointer(&r.atMost)))}
		least, flags, bound, size = 1, ringAwait|ringBounded, uintptr(unsafe.Pointer(&r.bound)), unsafe.Sizeof(r.bound)
	}
	for {
		n, _, errno := syscall.RawSyscall6(unix.SYS_IO_URING_ENTER, uintptr(ring), 1, least, flags, bound, size)
		switch {
		case errno == syscall.EINTR:
		case errno != 0:
			return errno
		case n != 1:
			return fs.ErrInvalid
		default:
			return nil
		}
	}
}

// close gives the ring up. No write is under way.
func (r *ring) close() error {
	err := r.file.Close()
	for _, shared := range [][]byte{r.queues, r.entries} {
		if shared != nil {
			err = errors.Join(err, unix.Munmap(shared))
		}
	}
	return err
}
