package bulk

// A pilot chooses a number of workers by what they move. It is pure: rates come in,
// numbers come out.
//
// It measures the rate at its number, then at one more. One more stays if it adds at
// least a quarter of what each of the others moves; else it goes, and the pilot
// tries one fewer, which stays if it costs less than a tenth of that. After an
// attempt that did not pay, the same is not tried again for a while, twice as long
// each time, so that a machine at its limit is left in peace.
type pilot struct {
	least, start, most int

	n       int     // how many there are to be
	base    int     // the number that the trial is compared with; n while there is none
	rate    float64 // at base
	last    float64 // at n before the last change
	sum     float64
	windows int
	holds   [2]hold // against more, against fewer
}

// hold keeps a trial from being made.
type hold struct{ left, length int }

const (
	// pilotWindows are averaged; as many more after a change are thrown away as
	// pilotSettle says, in which sessions are opened.
	pilotWindows = 3
	pilotSettle  = 1

	// pays is what one more must add, and spares what one fewer may cost, of what
	// each moves.
	pays, spares = 0.25, 0.1

	firstHold, longestHold = 4, 64
)

const (
	more = iota
	fewer
)

func newPilot(least, start, most int) *pilot {
	return &pilot{
		least: least, start: start, most: most, n: start, base: start, windows: -pilotSettle,
		holds: [2]hold{{length: firstHold}, {length: firstHold}},
	}
}

// forget throws away what was measured since the last change.
func (p *pilot) forget() { p.sum, p.windows = 0, 0 }

// window takes the rate of a window in which n workers worked all the time, and
// returns how many there are to be now.
func (p *pilot) window(rate float64) int {
	if p.windows++; p.windows > 0 {
		p.sum += rate
	}
	if p.windows < pilotWindows {
		return p.n
	}
	mean := p.sum / pilotWindows
	p.sum, p.windows = 0, 0
	next := p.decide(mean)
	if next != p.n {
		p.last, p.windows = mean, -pilotSettle
	}
	p.n = next
	return next
}

// decide takes the rate at n.
func (p *pilot) decide(rate float64) int {
	if rate == 0 { // index builds, say: nothing can be told, and the profile knows best
		p.base = p.start
		return p.start
	}
	each := p.rate / float64(p.base)
	switch {
	case p.n > p.base && rate-p.rate < pays*each:
		p.holds[more].fail()
		p.rest(fewer)
		return p.base
	case p.n < p.base && p.rate-rate > spares*each:
		p.holds[fewer].fail()
		p.rest(more)
		return p.base
	case p.n > p.base:
		p.holds[more].length = firstHold
	case p.n < p.base: // one more has just been found not to pay
		p.holds[more].fail()
	}
	p.base, p.rate = p.n, rate
	p.rest(more)
	p.rest(fewer)
	switch {
	case p.n < p.most && p.holds[more].left == 0:
		return p.n + 1
	case p.n > p.least && p.holds[fewer].left == 0:
		return p.n - 1
	}
	return p.n
}

// rest shortens a hold.
func (p *pilot) rest(i int) { p.holds[i].left = max(0, p.holds[i].left-1) }

// fail begins a hold, twice as long as the last one.
func (h *hold) fail() {
	h.left = h.length
	h.length = min(2*h.length, longestHold)
}
