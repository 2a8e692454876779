package peer

import (
	"runtime"
	"time"

	"golang.org/x/sys/unix"
)

// spinBelow is how much of a wait is spun: about what a thread takes to wake up.
const spinBelow = 60 * time.Microsecond

// napAtMost bounds one sleep, so that a connection that ends is noticed.
const napAtMost = 20 * time.Millisecond

// pacer waits for points in time that Go's own timers miss by a millisecond
// when the process is idle. It belongs to one goroutine, which it ties to its
// thread for good. Only artificial delays need it.
type pacer struct {
	origin time.Time
	exact  bool // spin for the last stretch
}

func newPacer(origin time.Time, exact bool) *pacer {
	runtime.LockOSThread()
	// By default the kernel may round a sleep up by 50 us. Where it refuses,
	// sleeps are that much longer.
	_ = unix.Prctl(unix.PR_SET_TIMERSLACK, 1, 0, 0, 0)
	return &pacer{origin, exact}
}

// nap sleeps until due, in nanoseconds since the origin, or some of the way, and
// reports whether due has come.
func (p *pacer) nap(due int64) bool {
	left := time.Duration(due - int64(time.Since(p.origin)))
	if left <= 0 {
		return true
	}
	sleep := min(left, napAtMost)
	if p.exact {
		sleep = min(left-spinBelow, napAtMost)
	}
	if sleep > 0 {
		ts := unix.NsecToTimespec(int64(sleep))
		_ = unix.Nanosleep(&ts, nil) // a signal may end it early: the caller looks again
		return false
	}
	for int64(time.Since(p.origin)) < due {
		runtime.Gosched()
	}
	return true
}
