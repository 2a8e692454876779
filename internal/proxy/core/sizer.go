package core

import (
	"math"
	"time"
)

// Constants of the sizer. Its tests run it against simulated servers.
const (
	// sizerTurns is how many statements each connection answers in a window: a server that
	// commits in groups answers several at once, and a window must span several groups.
	sizerTurns = 16
	// sizerFew is the same if that many would take longer than sizerLong.
	sizerFew  = 4
	sizerLong = time.Second
	// sizerShort is the shortest window.
	sizerShort = 20 * time.Millisecond

	sizerMinPairs = 2    // pairs of windows before a verdict, unless it is clear
	sizerMaxPairs = 8    // pairs after which nothing changes
	sizerBlatant  = 0.15 // a log ratio so far from the threshold that one pair is enough

	gainFar  = 0.03 // what twice as many connections must gain
	gainNear = 0.02 // what 1.4 times as many must gain
	lossDown = 0.01 // what 0.7 times as many may cost

	sizerFirstRest = 100 * time.Millisecond // pause after the first comparison that changed nothing
	sizerLastRest  = time.Minute            // what that pause grows to, by doubling
	sizerRestless  = 0.5                    // a log ratio of costs that ends the pause

	// sizerPatience bounds the time for opening the connections of a new size.
	sizerPatience = 2 * time.Second
	// sizerPause is a pause between two answers that invalidates a window, if answers usually
	// come more often.
	sizerPause = 100 * time.Millisecond
	// sizerLull is how long a comparison goes on without an answer before it is abandoned.
	sizerLull = 5 * time.Second
)

// A sizer finds how many connections a pool should use (--pool-size auto).
//
// With more of them the server does more at a time: it commits more transactions in one
// flush, or waits for more clients that are idle in a transaction. With fewer it switches
// less between them. The sizer looks for the most statements answered per second, with the
// fewest connections. It compares sizes only while clients wait for a connection: only then
// does the throughput depend on the server, and not on what the clients ask for.
//
// The rule is hill climbing by paired comparison, as in batch's controller: the current size
// plays against another one in windows a b, b a, a b..., so that a drift of the load
// cancels out, and the mean of the log ratios decides. More connections must gain
// something, fewer may cost a little, and of equal sizes the smaller one wins. A comparison
// that changes nothing doubles the pause before the next one.
//
//	clients wait ─► size × 2 ─► gains: that, and on
//	                            does not: × 1.4; the limit is reached: × 0.7; rest
//	no waiters   ─► what is in use, and at least base
//	they are back ─► what it had grown to before, then × 0.7
//
// A sizer is called for each answer, and reads no clock.
type sizer struct {
	on         bool
	base, most int        // bounds of the number of connections
	spare      func() int // how many more the server can take now; nil: any number

	size  int // the current size
	held  int // the best known size, to which a lost comparison returns
	rival int // the size it is compared with; 0: no comparison

	// The window. It begins and ends between two turns of the loop.
	last    time.Duration // the turn of the last answer
	began   time.Duration
	settles bool          // it has not begun: statements sent under another size are in flight
	skip    int           // answers to ignore until it begins
	answers int           // answers in the window
	felt    int           // answers while a client waited for a connection
	peak    int           // most connections in use
	wants   int           // most connections that could have been in use
	ticked  int           // answers at the last tick
	quiet   time.Duration // when the number of answers last changed between ticks

	// The comparison.
	turn       int        // windows done
	cost       [2]float64 // of held and rival in the current pair: nanoseconds per answer
	sum, sumSq float64    // of ln(cost of rival / cost of held) over the pairs

	restUntil time.Duration
	restSince time.Duration
	restFor   time.Duration // after the next comparison that changes nothing
	restCost  float64       // smoothed, while nothing is compared; 0: unknown
	restWants int           // most connections that could have been in use then
	look      int           // where to look next
	grown     int           // the size that it gave up when clients stopped waiting; 0: none

	moves, probes uint64
}

// The directions in which a sizer looks, in this order.
const (
	lookFar  = iota // twice as many
	lookNear        // 1.4 times as many
	lookDown        // 0.7 times as many
	lookAll
)

// limit sets the bounds. The current size stays as far as they permit it.
func (z *sizer) limit(on bool, base, most int) {
	z.most = max(base, most)
	if !on || !z.on || base != z.base {
		z.on, z.base = on, base
		z.held, z.grown = base, 0
	}
	z.rest(min(max(z.held, z.base), z.most), 0)
	z.restFor, z.look = sizerFirstRest, lookFar
}

// answered is called for an answer to a statement, in the turn of the loop at the given time,
// with how many connections are in use, how many statements wait for one, and how many are
// open. It reports whether the size has changed.
func (z *sizer) answered(now time.Duration, busy, waiting, open int) bool {
	if !z.on {
		return false
	}
	before := z.size
	if now != z.last {
		z.turned(waiting, open)
		if z.paused(now) {
			z.last = now
			z.window()
		}
		z.last = now
	}
	z.answers++
	if waiting > 0 {
		z.felt++
	}
	z.peak, z.wants = max(z.peak, busy), max(z.wants, busy+waiting)
	return z.size != before
}

// paused reports whether there was a pause before this turn that says nothing about the
// current size: the clients sent nothing, or the server was busy with something else.
func (z *sizer) paused(now time.Duration) bool {
	gap := now - z.last
	return gap > sizerPause && z.answers >= z.size && gap > 8*(z.last-z.began)/time.Duration(z.answers)*time.Duration(z.size)
}

// turned checks the window after a turn.
func (z *sizer) turned(waiting, open int) {
	took := z.last - z.began
	if z.settles {
		opening := open < z.size && waiting > 0
		switch {
		case opening && took > sizerPatience:
			z.settle(false) // no more can be opened
		case !opening && z.answers >= z.skip:
			z.settles = false
			z.window()
		}
		return
	}
	if (z.answers < sizerTurns*z.size || took < sizerShort) && (z.answers < sizerFew*z.size || took < sizerLong) {
		return
	}
	cost := float64(took) / float64(z.answers)
	if z.rival == 0 {
		z.resting(cost)
	} else {
		z.compare(cost)
	}
}

// tick is called about ten times a second, with the number of connections in use. It reports
// whether the size has changed.
func (z *sizer) tick(now time.Duration, busy, waiting int) bool {
	if !z.on {
		return false
	}
	before := z.size
	if z.answers != z.ticked {
		z.ticked, z.quiet = z.answers, now
		return false
	}
	if now-z.quiet < sizerLull {
		return false
	}
	z.quiet, z.last = now, now
	if z.rival != 0 {
		z.rest(z.held, sizerFirstRest)
	}
	if waiting == 0 {
		z.trim(busy)
	}
	z.window()
	return z.size != before
}

// window begins a new window.
func (z *sizer) window() {
	z.began, z.answers, z.ticked = z.last, 0, 0
	z.felt, z.peak, z.wants = 0, 0, 0
}

// use changes the size; statements that were sent under another one do not count.
func (z *sizer) use(size int) {
	z.settles = size != z.size
	z.skip = 2 * max(size, z.size)
	z.size = size
	z.window()
}

// rest ends a comparison, sets the size, and begins no comparison for a time.
func (z *sizer) rest(size int, d time.Duration) {
	z.held, z.rival = size, 0
	z.restSince, z.restUntil = z.last, z.last+d
	z.restCost, z.restWants = 0, 0
	z.use(size)
}

// yield gives up what was gained, since no more connections can be opened.
func (z *sizer) yield() {
	z.grown = 0
	z.rest(z.base, sizerLastRest)
}

// rested reports whether the sizer has compared nothing for at least so long.
func (z *sizer) rested(now, least time.Duration) bool {
	return z.rival == 0 && now-z.restSince >= least
}

// trim gives up connections that are not in use.
func (z *sizer) trim(used int) {
	if size := max(z.base, used+used/8+1); z.rival == 0 && size < z.size {
		z.grown = max(z.grown, z.size)
		z.held, z.size = size, size
	}
}

// regain returns to the size that was given up when clients stopped waiting, now that they
// wait again. If that is too much for the load now, the comparison with fewer shows it.
func (z *sizer) regain() bool {
	size := min(z.grown, z.top())
	if !z.waited() || !z.worth(size) {
		return false
	}
	z.grown = 0
	z.restFor, z.look = sizerFirstRest, lookDown
	z.rest(size, 0)
	return true
}

// waited reports whether clients waited for a connection during most of the window.
func (z *sizer) waited() bool { return 2*z.felt > z.answers }

// resting handles the end of a window without a comparison.
func (z *sizer) resting(cost float64) {
	if z.restCost == 0 {
		z.restCost, z.restWants = cost, z.wants
	}
	if 5*z.wants < 4*z.restWants {
		z.restWants = z.wants
	}
	if 4*z.wants > 5*z.restWants || math.Abs(math.Log(cost/z.restCost)) > sizerRestless { // the load has changed
		z.restCost, z.restWants = cost, z.wants
		z.restFor, z.restUntil = sizerFirstRest, z.last
	}
	z.restCost += (cost - z.restCost) / 8
	if z.felt == 0 {
		z.trim(z.peak)
	}
	if z.regain() {
		return
	}
	rival := 0
	if z.last >= z.restUntil {
		rival = z.neighbour()
	}
	if rival == 0 {
		z.window()
		return
	}
	z.probes++
	z.rival = rival
	z.turn, z.sum, z.sumSq = 1, 0, 0 // this window is the first
	z.cost[0] = cost
	z.use(rival)
}

// neighbour is the size to compare with next, 0 if there is none.
func (z *sizer) neighbour() int {
	top := z.top()
	for range lookAll {
		switch rival := z.size * 2; {
		case z.look == lookDown:
			if rival = max(z.base, z.size*5/7); rival < z.size && 10*z.peak >= 9*z.size {
				return rival
			}
		default:
			if z.look == lookNear {
				rival = z.size * 7 / 5
			}
			if rival = min(rival, top); z.waited() && z.worth(rival) {
				return rival
			}
		}
		z.look = (z.look + 1) % lookAll
	}
	return 0
}

// top is the most connections that could be in use.
func (z *sizer) top() int {
	top := min(z.most, z.wants)
	if z.spare != nil {
		top = min(top, z.size+z.spare())
	}
	return top
}

// worth reports whether a size is enough above the current one to be compared.
func (z *sizer) worth(size int) bool { return size >= z.size+max(2, z.size/8) }

// plays says whose turn it is in a comparison: a b, b a, a b...
func (z *sizer) plays() int { return (z.turn + z.turn/2) & 1 }

// compare handles the end of a window of a comparison.
func (z *sizer) compare(cost float64) {
	if z.size == min(z.held, z.rival) && !z.waited() {
		z.rest(z.held, 0) // the load has gone: fewer are enough for it
		return
	}
	z.cost[z.plays()] = cost
	z.turn++
	if z.turn&1 == 0 {
		d := math.Log(z.cost[1] / z.cost[0])
		z.sum += d
		z.sumSq += d * d
		if better, sure := z.verdict(); sure {
			z.settle(better)
			return
		}
	}
	if z.plays() == 1 {
		z.use(z.rival)
	} else {
		z.use(z.held)
	}
}

// sizerSure is how many standard errors away from the threshold the mean of that many pairs
// must be: the 97.5 % quantiles of Student's t.
var sizerSure = [sizerMaxPairs + 1]float64{2: 12.7, 3: 4.3, 4: 3.2, 5: 2.8, 6: 2.6, 7: 2.4, 8: 2.4}

// verdict reports whether the rival wins, and whether that is certain: the mean is far enough
// from the threshold. After sizerMaxPairs it is final.
func (z *sizer) verdict() (better, sure bool) {
	n := float64(z.turn / 2)
	mean := z.sum / n
	line := lossDown
	switch {
	case z.rival >= z.held*5/3:
		line = -gainFar
	case z.rival > z.held:
		line = -gainNear
	}
	better = mean < line
	if math.Abs(mean-line) > sizerBlatant {
		return better, true
	}
	if n < sizerMinPairs {
		return better, false
	}
	se := math.Sqrt(max(z.sumSq/n-mean*mean, 0) / (n - 1))
	if math.Abs(mean-line) > sizerSure[int(n)]*se {
		return better, true
	}
	return false, n >= sizerMaxPairs
}

// settle ends a comparison.
func (z *sizer) settle(won bool) {
	if won {
		z.moves++
		if z.rival < z.held {
			z.grown = 0
		}
		z.restFor = sizerFirstRest
		z.rest(z.rival, 0)
		return
	}
	z.look = (z.look + 1) % lookAll
	z.rest(z.held, z.restFor)
	z.restFor = min(2*z.restFor, sizerLastRest)
}
