package peer

import (
	"os"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// sleeper sleeps by a timerfd, which is an event to the network poller: neither a
// thread nor a processor of the process waits with it, and it wakes about 0.05 ms
// late. Where the kernel gives none, it sleeps as precisely as the runtime.
type sleeper struct {
	file *os.File // nil without one
	raw  syscall.RawConn
}

func newSleeper() *sleeper {
	fd, err := unix.TimerfdCreate(unix.CLOCK_MONOTONIC, unix.TFD_NONBLOCK|unix.TFD_CLOEXEC)
	if err != nil {
		return &sleeper{}
	}
	f := os.NewFile(uintptr(fd), "timerfd")
	raw, err := f.SyscallConn()
	if err != nil {
		_ = f.Close() // nothing was written to it
		return &sleeper{}
	}
	return &sleeper{f, raw}
}

// sleep waits for d, which is more than 0.
func (s *sleeper) sleep(d time.Duration) {
	if s.file == nil || !s.wait(d) {
		time.Sleep(d)
	}
}

func (s *sleeper) wait(d time.Duration) bool {
	var failed error
	err := s.raw.Control(func(fd uintptr) {
		failed = unix.TimerfdSettime(int(fd), 0, &unix.ItimerSpec{Value: unix.NsecToTimespec(int64(d))}, nil)
	})
	if err != nil || failed != nil {
		return false
	}
	var count [8]byte
	_, err = s.file.Read(count[:])
	return err == nil
}

func (s *sleeper) close() {
	if s.file != nil {
		_ = s.file.Close() // nothing was written to it
	}
}
