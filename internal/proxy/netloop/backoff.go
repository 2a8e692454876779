package netloop

import (
	"math/rand/v2"
	"time"
)

// A Backoff bounds how often something that may fail is tried. After consecutive failures
// the next attempt waits, twice as long each time, up to two seconds; and the rate of attempts
// that seem to succeed is bounded as well, so that a connection that always ends at once does
// not cause a busy loop. The zero value is ready. Times are those of the loop that owns it.
type Backoff struct {
	wait   time.Duration // after the last failure
	notYet time.Duration // no attempt before this
	spent  float64       // attempts that time has not made up for yet
	at     time.Duration // when spent was last updated
}

const (
	firstWait = 50 * time.Millisecond
	maxWait   = 2 * time.Second
	// leastRate is how many attempts per second are always allowed in the long run.
	leastRate = 20
)

// Start reports whether an attempt may begin now, and counts it if so. In the long
// run there are at most perSecond of them, or leastRate if that is more; a burst may have
// twice as many.
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

// Failed makes the next attempt wait, by a time that varies by up to a quarter, so that
// attempts that failed together are not repeated together.
func (b *Backoff) Failed(now time.Duration) {
	b.wait = min(max(2*b.wait, firstWait), maxWait)
	b.notYet = now + b.wait*3/4 + rand.N(b.wait/2)
}

// Succeeded ends the wait after failures.
func (b *Backoff) Succeeded() { b.wait, b.notYet = 0, 0 }
