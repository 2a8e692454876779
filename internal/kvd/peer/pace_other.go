//go:build !linux

package peer

import "time"

// sleeper is as precise as the runtime's timers.
type sleeper struct{}

func newSleeper() *sleeper { return &sleeper{} }

func (*sleeper) sleep(d time.Duration) { time.Sleep(d) }

func (*sleeper) close() {}
