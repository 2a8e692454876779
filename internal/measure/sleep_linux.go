package measure

import (
	"time"

	"golang.org/x/sys/unix"
)

// sharpenTimer asks the kernel not to round the sleeps of this thread up by the
// 50 us that it may by default. Where it refuses, sleeps are that much longer.
func sharpenTimer() { _ = unix.Prctl(unix.PR_SET_TIMERSLACK, 1, 0, 0, 0) }

// preciseSleep sleeps for about d; a signal may end it early.
func preciseSleep(d time.Duration) {
	ts := unix.NsecToTimespec(int64(d))
	_ = unix.Nanosleep(&ts, nil)
}
