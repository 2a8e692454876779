package measure

import (
	"time"

	"golang.org/x/sys/unix"
)

// sharpenTimer asks the kernel not to round up this thread's sleeps by 50 us, which is the
// default. If the kernel refuses, sleeps are longer by that.
func sharpenTimer() { _ = unix.Prctl(unix.PR_SET_TIMERSLACK, 1, 0, 0, 0) }

// preciseSleep sleeps for about d; a signal may end it early.
func preciseSleep(d time.Duration) {
	ts := unix.NsecToTimespec(int64(d))
	_ = unix.Nanosleep(&ts, nil)
}
