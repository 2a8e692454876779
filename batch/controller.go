package batch

import (
	"math"
	"time"
)

// The controller's levels. From 1 on, a level is so many lanes. From holdLevel
// down, it is 1, 2, 3... lanes that wait a moment for returning clients
// (Config.NoHold).
const holdLevel = 0

// lanesOf is how many lanes a level has.
func lanesOf(level int) int {
	if holds(level) {
		return 1 + holdLevel - level
	}
	return level
}

// holds reports whether a free lane waits at that level.
func holds(level int) bool { return level <= holdLevel }

// holding is the level of so many lanes that wait.
func holding(lanes int) int { return 1 + holdLevel - lanes }

// holdShare bounds the hold: a flush divided by this. A hold that gathers nothing then costs
// at most a third of throughput, and only until the next comparison notices. A quarter of a
// flush would be too short if clients share the processors with what they wait for: 128
// clients that come back at 9 µs each take 1.2 ms, of a flush of 2 ms (package sim).
const holdShare = 2

// Constants of the comparison. They were chosen by reasoning and checked with
// package sim, not swept: an epoch must average out Poisson arrivals, and yet at
// 10 ms per flush a comparison takes some seconds already.
const (
	epochGroups = 24   // groups measured in one epoch
	minPairs    = 2    // pairs of epochs before a verdict, unless it is clear
	maxPairs    = 6    // pairs after which the verdict is final
	blatant     = 0.12 // a log ratio so bad that it needs no second pair
	gainUp      = 0.03 // what one more lane must gain to be worth it
	lossDown    = 0.01 // what one lane fewer may cost to be preferred
	maxRest     = 64   // most epochs of rest between comparisons
	restless    = 0.5  // a log rise of R at rest that ends the rest (a fall only means that a backlog drains)
)

// controller finds how many groups should be in flight.
//
// The controller minimises R/X. R is the mean time that an item spends here from push to done,
// X the items done per second. By Little's law R = N/X with N items inside, and N is an integral
// that costs one multiplication per event. One number serves all three kinds of load:
//
//	open loop, below capacity   X is the arrival rate: least R/X is least latency
//	closed loop of c clients    R is c/X without their time away: least R/X is most throughput
//	overload, bounded queue     N is the capacity: least R/X is most throughput
//
// R alone would not do for a closed loop whose clients take long to come back: those of
// one large group do so one after another, on processors that are busy with it, and
// that time is not spent here.
//
// R/X is 1/power (Kleinrock 1979, throughput over delay, the point that BBR aims
// for as well), for one step at a time. A gradient of absolute latency as in
// TCP Vegas or Netflix's Gradient2 is no use here: a bigger group is slower and
// better, so latency rising with load is no sign of congestion.
//
// The rule is hill climbing by paired comparison. At rest it measures epochs of
// epochGroups groups at its level. From time to time it plays level a against a
// neighbour b in pairs of epochs, a b, b a, a b..., so that a drift of the load
// cancels out, and looks at the mean of the log ratios of R/X. One more lane must
// gain gainUp, one fewer may cost lossDown: of equals the fewer lanes win. After
// each change of level the groups that left under the old one are waited for
// before measuring. A comparison that changes nothing doubles the rest before
// the next, to maxRest epochs: the price of looking is then about 3 % of
// throughput at worst (package sim, overload at 10 ms per flush).
// Comparing upwards happens only if the limit was felt, downwards only if it
// was reached.
//
// The controller cannot see this: lanes that happen to finish together gather as one lane does,
// so a second one may look useless where two that are spaced out would help. Package sim's
// target test lists the cells where that costs latency.
type controller struct {
	min, max int  // lanes
	hold     bool // levels that hold are allowed
	level    int  // the level in force

	flush time.Duration // smoothed flush time, weight 1/8

	// The epoch being measured.
	skip  int     // groups to let pass before it starts
	left  int     // groups until its end
	span  float64 // its length in nanoseconds
	area  float64 // integral of items inside, in item-nanoseconds
	items float64 // items done
	felt  bool    // an item waited because of the limit
	peak  int     // most lanes in use

	// The comparison; base == rival means rest.
	base, rival int
	turn        int        // epochs done in this comparison
	cost        [2]float64 // R/X of base and rival in the present pair
	sum, sumSq  float64    // of ln(R/X rival / R/X base) over the pairs
	rest        int        // epochs of rest left
	restFor     int        // epochs of rest after the next comparison in vain
	restCost    float64    // R at rest, smoothed; 0 unknown
	look        int        // direction to look in next

	probes, moves uint64
}

func (c *controller) init(cfg Config) {
	c.min, c.max = cfg.MinLanes, cfg.MaxLanes
	c.hold = c.min == 1 && !cfg.NoHold && cfg.Lanes == 0
	c.level = cfg.MinLanes
	c.base, c.rival = c.level, c.level
	c.restFor, c.rest = 1, 1
	c.startEpoch(0)
}

// lanes is the limit in force.
func (c *controller) lanes() int { return lanesOf(c.level) }

// pass accounts for a stretch of time with n items inside.
func (c *controller) pass(d time.Duration, n int) {
	if c.skip > 0 {
		return
	}
	c.area += float64(d) * float64(n)
	if n == 0 {
		d = min(d, c.flush) // longer without an item says nothing of a level
	}
	c.span += float64(d)
}

// blocked notes that items wait only because of the limit.
func (c *controller) blocked() { c.felt = true }

// depart notes that so many lanes are in use.
func (c *controller) depart(lanes int) { c.peak = max(c.peak, lanes) }

// done notes the end of a group and may change the level.
func (c *controller) done(n int, took time.Duration) {
	if c.flush == 0 {
		c.flush = took
	}
	c.flush += (took - c.flush) / 8
	if c.min == c.max && !c.hold {
		return
	}
	if c.skip > 0 {
		c.skip--
		return
	}
	c.items += float64(n)
	if c.left--; c.left > 0 {
		return
	}
	items := max(c.items, 1)
	cost := c.area / items
	if c.base == c.rival {
		c.resting(cost)
	} else {
		c.compare(cost * c.span / items)
	}
}

// startEpoch begins a new epoch after skip groups.
func (c *controller) startEpoch(skip int) {
	c.skip, c.left = skip, epochGroups
	c.span, c.area, c.items = 0, 0, 0
	c.felt, c.peak = false, 0
}

// set changes the level and lets pass what left under the old one.
func (c *controller) set(level int) {
	skip := 0
	if level != c.level {
		skip = c.lanes() + lanesOf(level)
	}
	c.level = level
	c.startEpoch(skip)
}

// resting is the end of an epoch without a comparison.
func (c *controller) resting(cost float64) {
	if c.restCost > 0 && math.Log(max(cost, 1)/c.restCost) > restless {
		c.restFor, c.rest = 1, min(c.rest, 1)
		c.restCost = cost
	}
	if c.restCost == 0 {
		c.restCost = cost
	}
	c.restCost += (cost - c.restCost) / 8
	c.rest--
	rival, ok := c.neighbour()
	if c.rest > 0 || !ok {
		c.startEpoch(0)
		return
	}
	c.rival = rival
	c.turn, c.sum, c.sumSq = 0, 0, 0
	c.probes++
	c.set(c.base)
}

// The directions in which the controller looks, in turn.
const (
	lookUp   = iota // one lane more
	lookDown        // one lane fewer
	lookTurn        // as many lanes that hold, or do not
	lookHold        // all the way down to one lane that holds
	lookBoth        // one lane more, and all hold
	lookAll
)

// neighbour is the level to look at next, if any is worth a look. The hold on one
// lane is a neighbour of every level: clients that have split into as many groups as
// there are lanes make each single step down look bad, though all the steps
// together are the best that there is (2 ms per flush, two servers, 64 clients:
// 1.6 times the throughput of two lanes). So does one lane more that holds: where a log
// is flushed by one at a time, neither one lane that holds nor two that do not need be
// better than one, and two that hold 1.25 times as good.
func (c *controller) neighbour() (int, bool) {
	held, lanes := holds(c.base), lanesOf(c.base)
	more, fewer, other := c.base+1, c.base-1, holding(lanes)
	if held {
		more, fewer, other = c.base-1, c.base+1, lanes
	}
	for range lookAll {
		switch {
		case c.look == lookUp && lanes < c.max && c.felt:
			return more, true
		case c.look == lookDown && lanes > c.min && c.peak >= lanes:
			return fewer, true
		case c.look == lookTurn && c.hold && (held || c.felt):
			return other, true
		case c.look == lookHold && c.hold && lanes > 1 && c.felt:
			return holdLevel, true
		case c.look == lookBoth && c.hold && !held && lanes < c.max && c.felt:
			return holding(lanes + 1), true
		}
		c.look = (c.look + 1) % lookAll
	}
	return 0, false
}

// order says who plays in an epoch of a comparison: a b, b a, a b...
func (c *controller) order(turn int) int { return (turn + turn/2) & 1 }

// compare is the end of an epoch of a comparison.
func (c *controller) compare(cost float64) {
	c.cost[c.order(c.turn)] = max(cost, 1)
	c.turn++
	if c.turn&1 == 0 {
		d := math.Log(c.cost[1] / c.cost[0])
		c.sum += d
		c.sumSq += d * d
		if better, sure := c.verdict(c.turn / 2); sure {
			c.settle(better)
			return
		}
	}
	if c.order(c.turn) == 1 {
		c.set(c.rival)
	} else {
		c.set(c.base)
	}
}

// verdict reports whether the rival wins after so many pairs, and whether that is
// certain enough: twice the standard error away from the threshold, a clear
// difference, or maxPairs reached.
func (c *controller) verdict(pairs int) (better, sure bool) {
	n := float64(pairs)
	mean := c.sum / n
	line := lossDown
	if lanesOf(c.rival) > lanesOf(c.base) || holds(c.rival) && !holds(c.base) {
		line = -gainUp
	}
	better = mean < line
	if pairs >= maxPairs || mean > blatant && !better {
		return better, true
	}
	if pairs < minPairs {
		return better, false
	}
	se := math.Sqrt(max(c.sumSq/n-mean*mean, 0) / (n - 1))
	return better, math.Abs(mean-line) > 2*se
}

// settle ends a comparison.
func (c *controller) settle(won bool) {
	if won {
		c.moves++
		c.base = c.rival
		c.restFor, c.rest = 1, 1
	} else {
		c.rest = c.restFor
		c.restFor = min(2*c.restFor, maxRest)
		c.look = (c.look + 1) % lookAll
	}
	c.rival = c.base
	c.restCost = 0
	c.set(c.base)
}
