package bulk

// A tuner chooses the number of workers by their throughput. It is pure: it gets rates and
// returns numbers.
//
// It measures the rate with the current number, then with one more worker. The additional
// worker stays if it adds at least a quarter of what each of the others moves; otherwise it is
// removed, and the tuner tries one worker fewer, which stays so if that costs less than a tenth
// of what each moves. After an unsuccessful attempt, the same attempt is not repeated for a
// while, twice as long each time, so that a machine at its limit is left alone.
type tuner struct {
	least, start, most int

	n       int     // current target
	base    int     // the number that the trial is compared with; n if no trial runs
	rate    float64 // at base
	last    float64 // at n before the last change
	sum     float64
	windows int
	holds   [2]hold // against more workers, against fewer
}

// hold prevents a trial for a number of windows.
type hold struct{ left, length int }

const (
	// tunerWindows is the number of windows that are averaged. After a change, tunerSettle
	// windows are ignored, in which sessions are opened.
	tunerWindows = 3
	tunerSettle  = 1

	// pays is what one more worker must add, and spares what one fewer may cost, relative to
	// what each moves.
	pays, spares = 0.25, 0.1

	firstHold, longestHold = 4, 64
)

const (
	more = iota
	fewer
)

func newTuner(least, start, most int) *tuner {
	return &tuner{
		least: least, start: start, most: most, n: start, base: start, windows: -tunerSettle,
		holds: [2]hold{{length: firstHold}, {length: firstHold}},
	}
}

// forget discards the measurements since the last change.
func (p *tuner) forget() { p.sum, p.windows = 0, 0 }

// window takes the rate of a window in which n workers were busy throughout, and returns the
// new number of workers.
func (p *tuner) window(rate float64) int {
	if p.windows++; p.windows > 0 {
		p.sum += rate
	}
	if p.windows < tunerWindows {
		return p.n
	}
	mean := p.sum / tunerWindows
	p.sum, p.windows = 0, 0
	next := p.decide(mean)
	if next != p.n {
		p.last, p.windows = mean, -tunerSettle
	}
	p.n = next
	return next
}

// decide takes the average rate with n workers.
func (p *tuner) decide(rate float64) int {
	if rate == 0 { // building indexes, for example: the rate tells nothing, and the profile decides
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
	case p.n < p.base: // one more worker has just been rejected
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

// rest shortens a hold by a window.
func (p *tuner) rest(i int) { p.holds[i].left = max(0, p.holds[i].left-1) }

// fail begins a hold, twice as long as the last one.
func (h *hold) fail() {
	h.left = h.length
	h.length = min(2*h.length, longestHold)
}
