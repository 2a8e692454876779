package peer

import (
	"runtime"
	"time"

	"golang.org/x/sys/unix"
)

// preciseSleep blocks the thread for about d; a signal may end it early. The
// goroutine keeps its thread no longer than that: one that owns its thread for
// good is slow to wake up by other means.
func preciseSleep(d time.Duration) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	// By default the kernel may round a sleep up by 50 us. That this is over for
	// the thread harms nobody; where it is refused, sleeps are that much longer.
	_ = unix.Prctl(unix.PR_SET_TIMERSLACK, 1, 0, 0, 0)
	ts := unix.NsecToTimespec(int64(d))
	_ = unix.Nanosleep(&ts, nil)
}
