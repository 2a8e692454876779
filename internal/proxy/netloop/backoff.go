package netloop

import (
	"math/rand/v2"
	"time"
)

// A Backoff bounds how often something that may fail is begun. Failures one after
// the other make the next attempt wait, twice as long each time, up to two seconds;
// and attempts that seem to succeed are bounded in rate as well, so that whatever
// ends at once what was just begun makes no loop. The zero value is ready. Times
// are those of the loop that owns it.
type Backoff struct {
	wait   time.Duration // after the last failure
	notYet time.Duration // no attempt before
	spent  float64       // attempts not yet made up for by time
	at     time.Duration // when spent was brought up to date
}

const (
	firstWait = 50 * time.Millisecond
	maxWait   = 2 * time.Second
	// leastRate is how many attempts a second are always allowed in the long run.
	leastRate = 20
)

// Start reports whether an attempt may begin now, and counts it if so. In the long
// run there are at most perSecond of them, at least leastRate; twice as many may
// come at once.
func (b *Backoff) Start(now time.Duration, perSecond int) bool {
	if now < b.notYet {
		return false
	}
	rate := float64(max(perSecond, leastRate))
	b.spent = max(0, b.spent-rate*(now-b.at).Seconds())
	b.at = now
	if b.spent+1 > 2*rate {
		return false
	}
	b.spent++
	return true
}

// Failed makes the next attempt wait, by up to a quarter less or more than due, so
// that those who failed together do not come back together.
func (b *Backoff) Failed(now time.Duration) {
	b.wait = min(max(2*b.wait, firstWait), maxWait)
	b.notYet = now + b.wait*3/4 + rand.N(b.wait/2)
}

// Succeeded ends the wait after failures.
func (b *Backoff) Succeeded() { b.wait, b.notYet = 0, 0 }
