package batch

import "time"

// alarm wakes a batcher at a deadline. Its goroutine, run, is owned by the
// batcher, which closes stop. Far deadlines sleep on a runtime timer, the last
// stretch of a near one in the kernel: a window of 25 µs is then late by 36 µs
// instead of 1025 on a busy two-core machine (BenchmarkWindow; see preciseBelow). A deadline that moves nearer during that last
// stretch is late by at most that stretch; windows never do so, because a later
// item has a later deadline.
type alarm struct {
	set     chan time.Duration // cap 1, time left; newest wins
	stop    chan struct{}
	fire    func()
	precise bool // false under a virtual clock, which the kernel does not know
}

func newAlarm(fire func(), precise bool) *alarm {
	return &alarm{set: make(chan time.Duration, 1), stop: make(chan struct{}), fire: fire, precise: precise && preciseBelow > 0}
}

// in asks for a wake-up after d. It never blocks. The caller holds the
// batcher's lock, so there is one sender.
func (a *alarm) in(d time.Duration) {
	select {
	case <-a.set:
	default:
	}
	a.set <- d
}

func (a *alarm) run() {
	if a.precise {
		ownThread()
	}
	timer := time.NewTimer(time.Hour)
	timer.Stop()
	var due time.Time // zero: nothing is due
	for {
		var wake <-chan time.Time
		if !due.IsZero() {
			left := time.Until(due)
			if a.precise && left <= preciseBelow {
				if left > 0 {
					preciseSleep(left)
					if time.Now().Before(due) {
						continue
					}
				}
				due = time.Time{}
				a.fire()
				continue
			}
			if a.precise {
				left -= preciseBelow * 3 / 4
			}
			timer.Reset(left)
			wake = timer.C
		}
		select {
		case <-a.stop:
			timer.Stop()
			return
		case d := <-a.set:
			timer.Stop()
			due = time.Now().Add(d)
		case <-wake:
			if !a.precise {
				due = time.Time{}
				a.fire()
			}
		}
	}
}
