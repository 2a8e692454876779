package batch

import (
	"runtime"
	"syscall"
	"time"
)

// preciseBelow is the stretch before a deadline that is slept in the kernel.
// The runtime's own timers wake an idle process through epoll, whose timeout is
// whole milliseconds: a sleep of 100 µs takes 1.08 ms here.
const preciseBelow = 2 * time.Millisecond

const (
	prSetTimerSlack   = 29 // PR_SET_TIMERSLACK, include/uapi/linux/prctl.h
	leastTimerSlackNs = 1
)

// ownThread gives the alarm's goroutine a thread of its own and takes away the
// 50 µs by which the kernel may be late with a thread's timers by default. The
// thread ends with its goroutine, because it is never unlocked. If prctl is
// refused, the slack stays: that costs precision only.
func ownThread() {
	runtime.LockOSThread()
	_, _, _ = syscall.RawSyscall(syscall.SYS_PRCTL, prSetTimerSlack, leastTimerSlackNs, 0)
}

// preciseSleep blocks the thread. A signal may end it early; the caller looks
// at the clock again.
func preciseSleep(d time.Duration) {
	ts := syscall.NsecToTimespec(int64(d))
	_ = syscall.Nanosleep(&ts, nil)
}
