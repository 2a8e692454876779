package wal

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"runtime"
	"sync/atomic"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"
)

// A ring has a thread of the kernel write and flush, by io_uring, while this
// goroutine is parked.
//
// A system call that blocks keeps its processor (a P of Go's scheduler) from all
// other goroutines until the runtime's monitor notices, and by then a quick disk is
// done. Where a process may use few processors, everything in it waits for each
// flush in this way, messages to other replicas too. The detour through the kernel's
// thread is worth it only then: by itself it takes some 30 us longer.
//
// A ring takes one write at a time, by one goroutine. The layout is that of
// io_uring_setup(2); what is used of it is in Linux since 5.6.
type ring struct {
	file *os.File // the ring; the poller says when it holds a completion
	conn syscall.RawConn

	queues, entries []byte // what is shared with the kernel

	op uint8 // how the kernel calls a write

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

// From linux/io_uring.h.
const (
	ringOpWrite       = 23      // IORING_OP_WRITE
	ringAsync         = 1 << 4  // IOSQE_ASYNC: by a thread of the kernel, not by this one
	ringSingleMap     = 1 << 0  // IORING_FEAT_SINGLE_MMAP
	ringEntriesOffset = 1 << 28 // IORING_OFF_SQES
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
// durable. It returns how much was written. After an errNoRing nothing is known of
// the write, and the ring is of no use any more.
func (r *ring) writeSync(fd int, b []byte, off int64) (int, error) {
	var pin runtime.Pinner // the kernel knows the place, the garbage collector does not know that
	pin.Pin(&b[0])
	defer pin.Unpin()
	*r.entry = ringEntry{
		op: r.op, flags: ringAsync, fd: int32(fd), offset: off,
		address: uint64(uintptr(unsafe.Pointer(&b[0]))), length: uint32(min(len(b), 1<<30)), writeFlag: unix.RWF_DSYNC,
	}
	atomic.AddUint32(r.submitted, 1)
	if err := control(r.conn, submit); err != nil {
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

// submit hands the entry to the kernel. It does not wait, so that the scheduler
// need not hear of it.
func submit(ring int) error {
	for {
		n, _, errno := syscall.RawSyscall6(unix.SYS_IO_URING_ENTER, uintptr(ring), 1, 0, 0, 0, 0)
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
