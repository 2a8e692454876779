package profile

import "time"

// clock reads monotonic time as nanoseconds since its creation, as measure.Clock does, and
// converts times that were read for another purpose: reading the time costs as much as
// everything else that is done at a boundary.
type clock struct{ origin time.Time }

func newClock() clock { return clock{time.Now()} }

// Now reads the clock.
func (c clock) Now() int64 { return int64(time.Since(c.origin)) }

// of converts t, which has a monotonic part.
func (c clock) of(t time.Time) int64 { return int64(t.Sub(c.origin)) }
