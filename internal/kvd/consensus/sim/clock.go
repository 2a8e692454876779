package sim

import (
	"time"

	"github.com/weirdb/weir/internal/kvd/consensus"
)

// machineClock is the clocks of one machine: a monotonic clock that runs a little fast or slow,
// and a wall clock that is off and may jump.
type machineClock struct {
	rate   float64 // 1 is exact
	origin int64   // monotonic time at the start of the world
	skew   int64   // wall clock minus monotonic clock, nanoseconds
}

// epoch is the wall clock's time at the start of the world.
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

// until returns how much true time passes until the monotonic clock shows mono.
func (c *machineClock) until(now, mono int64) int64 {
	return max(0, int64(float64(mono-c.origin)/c.rate)-now)
}

func (c *machineClock) jump(by int64) { c.skew += by }
