package measure

import (
	"context"
	"runtime"
	"time"
)

// preciseWithin is how much of a wait is left to the precise sleep. Go's own
// timer takes the rest: it may fire a millisecond late, and it can be cancelled.
const preciseWithin = 3 * time.Millisecond

// Sleeper waits until points in time, never less and about 0.06 ms more. Go's own
// timers cannot: in an idle process they fire up to 1 ms late, because the
// runtime waits for them in the network poller, which counts milliseconds. It
// does not spin for the rest either, since on a small machine that would take
// the processor from what is measured.
//
// A Sleeper belongs to the goroutine that made it.
type Sleeper struct{ timer *time.Timer }

// NewSleeper ties the calling goroutine to its thread, for good: the thread ends
// with the goroutine, and with it the timer precision that it was given.
func NewSleeper() *Sleeper {
	runtime.LockOSThread()
	sharpenTimer()
	t := time.NewTimer(time.Hour)
	t.Stop()
	return &Sleeper{t}
}

// Until returns when the clock reads at least ns, or with the cause of ctx when
// that is done first.
func (s *Sleeper) Until(ctx context.Context, clock Clock, ns int64) error {
	for {
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		left := time.Duration(ns - clock.Now())
		if left <= 0 {
			return nil
		}
		if left <= preciseWithin {
			preciseSleep(left)
			continue
		}
		s.timer.Reset(left - preciseWithin + time.Millisecond)
		select {
		case <-s.timer.C:
		case <-ctx.Done():
			s.timer.Stop()
		}
	}
}
