package replica

import (
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/weirdb/weir/internal/kvd/consensus"
)

// now reads the clocks. The monotonic one goes on while the machine sleeps, so
// that a lease ends during a suspend.
func now() consensus.Clock {
	var ts unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_MONOTONIC_RAW, &ts); err != nil {
		panic("CLOCK_MONOTONIC_RAW: " + err.Error()) // every macOS since 10.12 has it
	}
	return consensus.Clock{Mono: ts.Nano(), Wall: time.Now().UnixNano()}
}

// longestSleep bounds how late an alarm is after the machine slept: timers of the
// runtime stand still meanwhile.
const longestSleep = time.Second

// An alarm calls a function at points of Clock.Mono, about 1 ms late.
type alarm struct {
	ring func()

	mu     sync.Mutex
	at     int64 // what it is set to, 0: nothing
	rung   bool  // at that moment
	closed bool
	timer  *time.Timer
}

// newAlarm makes an alarm that calls ring, which must not block.
func newAlarm(ring func()) (*alarm, error) {
	a := &alarm{ring: ring}
	a.timer = time.AfterFunc(longestSleep, a.look)
	return a, nil
}

// look rings if it is time, and looks again when it may be.
func (a *alarm) look() {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.closed {
		return
	}
	if a.at != 0 && !a.rung && now().Mono >= a.at {
		a.rung = true
		a.ring()
	}
	a.timer.Reset(a.wait())
}

func (a *alarm) wait() time.Duration {
	if a.at == 0 || a.rung {
		return longestSleep
	}
	return min(max(0, time.Duration(a.at-now().Mono)), longestSleep)
}

// set makes the alarm ring at a moment of Clock.Mono instead of whatever it was
// set to before; 0: never.
func (a *alarm) set(at int64) error {
	a.mu.Lock()
	defer a.mu.Unlock()
	if at != a.at && !a.closed {
		a.at, a.rung = at, false
		a.timer.Reset(a.wait())
	}
	return nil
}

// close ends the alarm: it does not ring any more.
func (a *alarm) close() error {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.closed = true
	a.timer.Stop()
	return nil
}
