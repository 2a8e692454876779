package measure

import "time"

// Clock reads monotonic time in nanoseconds since the clock was created. All timestamps of one
// run must come from one Clock, so that they can be subtracted regardless of steps of the wall
// clock. A reading costs about 40 ns if the clock source is tsc. Safe for concurrent use.
type Clock struct {
	origin time.Time
}

// NewClock returns a Clock that reads zero now.
func NewClock() Clock { return Clock{origin: time.Now()} }

// Now returns the nanoseconds since the clock was created.
func (c Clock) Now() int64 { return int64(time.Since(c.origin)) }
