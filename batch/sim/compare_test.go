package sim

import (
	"fmt"
	"io"
	"math"
	"time"

	"github.com/weirdb/weir/batch"
)

// Windows are the fixed windows of the reference reports. Zero takes what is
// waiting at once, on all lanes.
func Windows() []time.Duration {
	const us = time.Microsecond
	return []time.Duration{0, 25 * us, 50 * us, 75 * us, 100 * us, 150 * us, 1000 * us, 10_000 * us, 100_000 * us}
}

// Adaptive is the policy of the zero Config with that many lanes at most.
func Adaptive(maxLanes int) Policy {
	return Policy{Name: "adaptive", Config: batch.Config{MaxLanes: maxLanes, Capacity: capacity}}
}

// Fixed is a fixed window with that many lanes. Both policies get the same
// lanes: a lane is a connection, and who may open more is not the question.
func Fixed(window time.Duration, lanes int) Policy {
	cfg := batch.Config{Window: window, MaxLanes: lanes, Capacity: capacity}
	if window == 0 {
		cfg = batch.Config{Lanes: lanes, Capacity: capacity}
	}
	return Policy{Name: window.String(), Config: cfg}
}

// capacity bounds the queue in overload: sixteen full groups.
const capacity = 16 * batch.DefaultMaxItems

// Cell is one load on one cost, played by adaptive and by every fixed window.
type Cell struct {
	Cost     Cost
	Load     Load
	Adaptive Result
	Windows  []time.Duration
	Fixed    []Result // one per window
}

// Compare plays one cell with so many lanes for each policy. The length is chosen
// so that each policy makes some thousand flushes and sees some ten thousand
// items where it can.
func Compare(cost Cost, load Load, lanes int, seed uint64) Cell {
	c := Cell{Cost: cost, Load: load, Windows: Windows()}
	run := Run{Cost: cost, Load: load, Seed: seed}
	run.Warmup, run.Length = span(cost, load)
	run.Policy = Adaptive(lanes)
	c.Adaptive = Simulate(run)
	for _, w := range c.Windows {
		run.Policy = Fixed(w, lanes)
		c.Fixed = append(c.Fixed, Simulate(run))
	}
	return c
}

// span is how long to warm up and to measure.
func span(cost Cost, load Load) (warmup, length time.Duration) {
	length = 1500 * cost.Fixed
	if load.Rate > 0 {
		length = max(length, time.Duration(4000/load.Rate*1e9), min(2*time.Second, time.Duration(1e5/load.Rate*1e9)))
	}
	length = max(length, 150*time.Millisecond)
	return length, length
}

// Costs are the crossings that are compared: a system call or a calm disk, a
// cloud disk, and a slow one; each with lanes that do not disturb each other,
// with two servers and with one.
func Costs() []Cost {
	const us = time.Microsecond
	var all []Cost
	for _, c := range []Cost{
		{Fixed: 50 * us, PerItem: us},
		{Fixed: 2000 * us, PerItem: 2 * us},
		{Fixed: 10_000 * us, PerItem: us},
	} {
		for _, servers := range []int{0, 2, 1} {
			c.Servers = servers
			all = append(all, c)
		}
	}
	return all
}

// OpenLoads are Poisson arrivals from 100/s to 1M/s.
func OpenLoads() []Load {
	return []Load{{Rate: 100}, {Rate: 1000}, {Rate: 10_000}, {Rate: 100_000}, {Rate: 1e6}}
}

// ClosedLoads are 1 to 1000 clients that come back after 50 µs on average, a
// round trip on loopback.
func ClosedLoads() []Load {
	var all []Load
	for _, n := range []int{1, 4, 16, 64, 256, 1000} {
		all = append(all, Load{Clients: n, Think: 50 * time.Microsecond})
	}
	return all
}

// tie is how close throughputs must be to count as the same: arrivals of a few
// thousand items vary by more than this.
const tie = 0.01

// Best is the index of the best fixed window: the highest throughput, and among
// those within 1 % of it the one with the least median response, which is what
// one would choose by hand.
func (c *Cell) Best() int {
	top := 0.0
	for _, r := range c.Fixed {
		top = math.Max(top, r.Throughput)
	}
	best := -1
	for i, r := range c.Fixed {
		if r.Throughput >= top*(1-tie) && (best < 0 || r.Response50 < c.Fixed[best].Response50) {
			best = i
		}
	}
	return best
}

// Overloaded reports whether even the best window had to refuse arrivals. The
// wait is then the capacity divided by the throughput, whatever the policy
// (Little's law).
func (c *Cell) Overloaded() bool { return c.Fixed[c.Best()].Full > 0.01 }

// WriteTable prints one line per cell: adaptive against the best fixed window.
func WriteTable(w io.Writer, cells []Cell) error {
	_, err := fmt.Fprintf(w, "%-14s %-12s | %-8s %9s %9s %9s %7s %5s | %9s %9s %9s %7s %5s %-6s | %6s %6s\n",
		"cost", "load", "best fix", "items/s", "wait50", "resp50", "group", "lanes",
		"items/s", "wait50", "resp50", "group", "lanes", "limit", "thr", "resp")
	if err != nil {
		return fmt.Errorf("write table: %w", err)
	}
	for i := range cells {
		c := &cells[i]
		b := c.Best()
		f, a := c.Fixed[b], c.Adaptive
		limit := fmt.Sprint(a.Limit)
		if a.Holding {
			limit += "+hold"
		}
		name := c.Windows[b].String()
		if c.Overloaded() {
			name += "*"
		}
		_, err := fmt.Fprintf(w, "%-14v %-12v | %-8s %9.0f %9v %9v %7.1f %5.2f | %9.0f %9v %9v %7.1f %5.2f %-6s | %6.3f %6.3f\n",
			c.Cost, c.Load, name, f.Throughput, round(f.Wait50), round(f.Response50), f.Group, f.Lanes,
			a.Throughput, round(a.Wait50), round(a.Response50), a.Group, a.Lanes, limit,
			a.Throughput/f.Throughput, float64(a.Response50)/float64(f.Response50))
		if err != nil {
			return fmt.Errorf("write table: %w", err)
		}
	}
	return nil
}

// round keeps three digits or so for reading.
func round(d time.Duration) time.Duration {
	switch {
	case d > 100*time.Millisecond:
		return d.Round(time.Millisecond)
	case d > time.Millisecond:
		return d.Round(10 * time.Microsecond)
	case d > 10*time.Microsecond:
		return d.Round(100 * time.Nanosecond)
	}
	return d
}
