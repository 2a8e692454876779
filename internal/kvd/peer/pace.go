package peer

import (
	"runtime"
	"time"
)

// spinBelow is how much of a wait is spun: about what a thread takes to wake up.
const spinBelow = 60 * time.Microsecond

// napAtMost bounds one sleep, so that a connection that ends is noticed.
const napAtMost = 20 * time.Millisecond

// pacer waits for points in time that Go's own timers miss by a millisecond
// when the process is idle. Only artificial delays need it.
type pacer struct {
	origin time.Time
	exact  bool // spin for the last stretch
	*sleeper
}

// open makes a pacer ready that may not have been.
func (p *pacer) open(origin time.Time, exact bool) {
	p.origin, p.exact = origin, exact
	if p.sleeper == nil {
		p.sleeper = newSleeper()
	}
}

func (p *pacer) close() {
	if p.sleeper != nil {
		p.sleeper.close()
	}
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
		p.sleep(sleep)
		return false
	}
	for int64(time.Since(p.origin)) < due {
		runtime.Gosched()
	}
	return true
}
