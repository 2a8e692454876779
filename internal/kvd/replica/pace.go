package replica

import "time"

// A pace says how many ticks pass in a turn of the core. A replica with nothing to do would wake
// up mostly for its ticks, a hundred times a second. So when nothing but heartbeats has come for a
// while, a ticker as slow as the heartbeats wakes it, and each turn makes up for the ticks since
// the last one. Timeouts stay as exact as the ticks.
type pace struct {
	ticker    *time.Ticker
	heartbeat int // ticks between two heartbeats
	slow      bool
	idle      int   // ticks since there was work
	unheard   int   // ticks since another replica was heard
	last      int64 // Clock.Mono of the last tick, while slow
}

const (
	slowest = 5 // the longest period
	// idleTicks is the number of ticks without work after which the pace becomes slow.
	idleTicks = 20
)

func newPace(heartbeat int) *pace {
	return &pace{ticker: time.NewTicker(tickEvery), heartbeat: heartbeat}
}

// due returns the number of ticks that pass now. A turn that is late, as in a process that was
// stopped, must not hasten an election, which takes six heartbeats without one: it counts two.
func (p *pace) due(now int64, fired bool) int {
	switch {
	case !p.slow && fired:
		return 1
	case !p.slow:
		return 0
	}
	n := int((now - p.last + int64(tickEvery)/2) / int64(tickEvery))
	if most := 2 * p.period(); n > most {
		p.last = now
		return most
	}
	p.last += int64(n) * int64(tickEvery)
	return n
}

// period is the number of ticks between two turns of a slow pace.
func (p *pace) period() int { return min(p.heartbeat, slowest) }

// passed adapts the pace after ticks. calm says that there is a leader and nothing has to be done
// at a certain time, work that there was something to do in this turn, and heard that another
// replica was heard.
func (p *pace) passed(now int64, ticks int, leads, calm, work, heard bool) {
	p.idle += ticks
	p.unheard += ticks
	if work || !calm {
		p.idle = 0
	}
	if heard {
		p.unheard = 0
	}
	period := p.period()
	slow := p.idle >= idleTicks && p.unheard <= 2*p.heartbeat && period > 1
	if !leads {
		period++ // a heartbeat should come before
	}
	switch {
	case slow && !p.slow:
		p.last = now
		fallthrough
	case slow && ticks > 0:
		p.ticker.Reset(time.Duration(period) * tickEvery)
	case !slow && p.slow:
		p.ticker.Reset(tickEvery)
	}
	p.slow = slow
}
