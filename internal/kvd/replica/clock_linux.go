package replica

import (
	"errors"
	"fmt"
	"os"
	"syscall"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/weirdb/weir/internal/kvd/consensus"
)

// now reads the clocks. The monotonic one continues while the machine sleeps, so
// that a lease ends during a suspend.
func now() consensus.Clock {
	var ts unix.Timespec
	// Bypass the scheduler, whose monitor a system call would wake: see netwire.Quick.
	if _, _, errno := syscall.RawSyscall(unix.SYS_CLOCK_GETTIME, unix.CLOCK_BOOTTIME, uintptr(unsafe.Pointer(&ts)), 0); errno != 0 {
		panic("CLOCK_BOOTTIME: " + errno.Error()) // every Linux since 2.6.39 has it
	}
	return consensus.Clock{Mono: ts.Nano(), Wall: time.Now().UnixNano()}
}

// An alarm calls a function at times of CLOCK_BOOTTIME, about 0.05 ms late. The
// runtime's timers are up to 1 ms late in a process that is otherwise idle,
// because it waits for them in the network poller, which counts milliseconds; a
// timerfd is an event for the poller.
type alarm struct {
	file *os.File
	raw  syscall.RawConn
	at   int64 // what it is set to, 0: nothing
	done chan struct{}
}

// newAlarm makes an alarm that calls ring, which must not block.
func newAlarm(ring func()) (*alarm, error) {
	fd, err := unix.TimerfdCreate(unix.CLOCK_BOOTTIME, unix.TFD_NONBLOCK|unix.TFD_CLOEXEC)
	if err != nil {
		return nil, fmt.Errorf("create timer: %w", err)
	}
	a := &alarm{file: os.NewFile(uintptr(fd), "timerfd"), done: make(chan struct{})}
	if a.raw, err = a.file.SyscallConn(); err != nil {
		return nil, errors.Join(fmt.Errorf("create timer: %w", err), a.file.Close())
	}
	go func() {
		defer close(a.done)
		for a.raw.Read(expired) == nil { // until it is closed
			ring()
		}
	}()
	return a, nil
}

// expired reports whether the timer has fired since the last call, bypassing the scheduler.
func expired(fd uintptr) bool {
	var count [8]byte
	for {
		_, _, errno := syscall.RawSyscall(unix.SYS_READ, fd, uintptr(unsafe.Pointer(&count[0])), uintptr(len(count)))
		if errno != syscall.EINTR {
			return errno != syscall.EAGAIN
		}
	}
}

// set makes the alarm ring at a moment of Clock.Mono instead of whatever it was
// set to before; 0: never. One goroutine at a time calls it.
func (a *alarm) set(at int64) error {
	if at == a.at {
		return nil
	}
	a.at = at
	var failed error
	err := a.raw.Control(func(fd uintptr) {
		failed = unix.TimerfdSettime(int(fd), unix.TFD_TIMER_ABSTIME, &unix.ItimerSpec{Value: unix.NsecToTimespec(at)}, nil)
	})
	if err == nil {
		err = failed
	}
	if err != nil {
		return fmt.Errorf("set timer: %w", err)
	}
	return nil
}

// close ends the alarm and its goroutine.
func (a *alarm) close() error {
	err := a.file.Close()
	<-a.done
	return err
}
