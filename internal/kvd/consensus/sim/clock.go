package sim

import (
	"time"

	"github.com/weirdb/weir/internal/kvd/consensus"
)

// machineClock is the pair of clocks of one machine: the monotonic one runs a
// little fast or slow, and the wall clock is off and may jump besides.
type machineClock struct {
	rate   float64 // 1 is true time
	origin int64   // monotonic time at the beginning of the world
	skew   int64   // wall clock less monotonic clock, nanoseconds
}

// epoch is the wall clock's time when the world begins.
const epoch = int64(1_800_000_000) * int64(time.Second)

func newMachineClock(r *random, drift float64, skew time.Duration) machineClock {
	c := machineClock{rate: 1 + drift*(2*r.fraction()-1), origin: r.between(time.Hour, 1000*time.Hour)}
	c.skew = epoch - c.origin + r.between(-skew, skew)
	return c
}

func (c *machineClock) read(now int64) consensus.Clock {
	mono := c.origin + int64(float64(now)*c.rate)
	return consensus.Clock{Mono: mono, Wall: mono + c.skew}
}

// until is how much true time passes until the monotonic clock shows mono.
func (c *machineClock) until(now, mono int64) int64 {
	return max(0, int64(float64(mono-c.origin)/c.rate)-now)
}

func (c *machineClock) jump(by int64) { c.skew += by }
