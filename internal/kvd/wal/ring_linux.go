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

// A ring lets the kernel write and flush, by io_uring, while this goroutine is parked. A direct
// write needs nothing else; for any other the kernel uses a thread.
//
// A blocking system call keeps its processor (a P of Go's scheduler) from other goroutines
// until the runtime's monitor notices, and by then a fast disk is done. If a process may use
// few processors, the whole process, messages to other replicas included, waits for each flush,
// and the monitor wakes up every 20 us. The kernel thread takes some 30 us longer, which pays
// only if there is other work. A direct write needs no thread.
//
// A ring takes one write at a time, from one goroutine. For the layout see io_uring_setup(2);
// the parts used here exist since Linux 5.6.
type ring struct {
	file *os.File // the ring; the poller reports when it has a completion
	conn syscall.RawConn

	queues, entries []byte // shared with the kernel

	op     uint8 // the kernel's operation for a write
	waits  bool  // the kernel supports a timeout for a wait
	bound  ringBound
	atMost unix.Timespec

	// Pointers into the queues. One entry can be submitted at a time: the first.
	entry                  *ringEntry
	submitted              *uint32 // the number of entries submitted so far
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
	result   int32 // bytes written, or a negative error number
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

// patience is the longest time that a write occupies a processor: several times the duration of
// a write on a fast disk, and negligible if the disk hangs.
const patience = time.Millisecond

// From linux/io_uring.h.
const (
	ringOpWrite       = 23      // IORING_OP_WRITE
	ringAsync         = 1 << 4  // IOSQE_ASYNC: by a kernel thread instead of this one
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
	if err := unix.SetNonblock(int(fd), true); err != nil { // otherwise the poller does not accept it
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
		*at(p.submission.array) = 0 // the only element of the queue always refers to the first entry
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

// writeSync writes b, which must not be empty, to the file fd at off and makes it durable, by a
// kernel thread unless the write is direct. It returns the number of bytes written. After an
// errNoRing the outcome of the write is unknown, and the ring cannot be used any more.
//
// Unless aside is set, this thread waits in the call that submits the write, and keeps its
// processor, but no longer than patience.
func (r *ring) writeSync(fd int, b []byte, off int64, direct, aside bool) (int, error) {
	var pin runtime.Pinner // the kernel has the address, which the garbage collector does not know
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

// submit submits the entry to the kernel, and may wait for the end of the write. It does not
// tell the scheduler: to hand the processor over and back costs more than a fast write.
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

// close closes the ring. No write may be in progress.
func (r *ring) close() error {
	err := r.file.Close()
	for _, shared := range [][]byte{r.queues, r.entries} {
		if shared != nil {
			err = errors.Join(err, unix.Munmap(shared))
		}
	}
	return err
}
