package measure

import (
	"context"
	"runtime"
	"time"
)

// preciseWithin is the last part of a wait, for which the precise sleep is used. Go's timer,
// which may fire a millisecond late but can be cancelled, does the rest.
const preciseWithin = 3 * time.Millisecond

// Sleeper waits until points in time, never less and about 0.06 ms more. Go's timers are less
// precise: in an idle process they fire up to 1 ms late, because the runtime waits for them in
// the network poller, which counts milliseconds. It does not spin, because on a small machine
// that would take the processor from what is measured.
//
// A Sleeper is used by the goroutine that created it.
type Sleeper struct{ timer *time.Timer }

// NewSleeper locks the calling goroutine to its thread permanently: the thread ends with the
// goroutine, and with it the timer precision that was set for it.
func NewSleeper() *Sleeper {
	runtime.LockOSThread()
	sharpenTimer()
	t := time.NewTimer(time.Hour)
	t.Stop()
	return &Sleeper{t}
}

// Until returns nil when the clock reads at least ns, or the cause of ctx if ctx ends first.
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
