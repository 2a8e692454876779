package profile

import "time"

// clock reads monotonic time as nanoseconds since it was made, as measure.Clock
// does, and places a time that was taken for other reasons on its scale: a look at
// the time costs as much as everything else that is done at a boundary.
type clock struct{ origin time.Time }

func newClock() clock { return clock{time.Now()} }

// Now is a reading.
func (c clock) Now() int64 { return int64(time.Since(c.origin)) }

// of is the reading at t, which has a monotonic part.
func (c clock) of(t time.Time) int64 { return int64(t.Sub(c.origin)) }
