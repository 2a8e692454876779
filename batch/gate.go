package batch

import "time"

// gate decides whether a group may go, and keeps the counts. It knows nothing
// of items: [Queue] and the keyed queue of [Batcher] bring the age of their
// oldest item and get a verdict. Its clock never runs backwards.
type gate struct {
	cfg    Config // with defaults
	closed bool
	now    time.Duration // the latest time seen

	waiting      int // items that wait
	waitingBytes int // their sizes
	lanes        int // groups in flight
	flying       int // items in flight

	// The hold: see Config.NoHold. After a Done at a level of the controller that
	// holds, nothing goes before holdUntil unless enough items wait. holdFor are
	// those that wait when all clients of the groups that ended are back.
	holdUntil time.Duration
	holdFor   int

	ctl   controller
	stats Stats
}

func (g *gate) init(cfg Config) {
	g.cfg = cfg
	g.ctl.init(cfg)
}

// adaptive reports whether there is no window.
func (g *gate) adaptive() bool { return g.cfg.Window == 0 }

// limit is how many lanes may be in use now.
func (g *gate) limit() int {
	if !g.adaptive() {
		return g.cfg.MaxLanes
	}
	return g.ctl.lanes()
}

// tick moves the clock and accounts for the time that has passed.
func (g *gate) tick(now time.Duration) time.Duration {
	if now > g.now {
		g.ctl.pass(now-g.now, g.waiting+g.flying)
		g.now = now
	}
	return g.now
}

// arrive admits an item of this size, or returns why not.
func (g *gate) arrive(size int) error {
	switch {
	case g.closed:
		return ErrClosed
	case g.waiting >= g.cfg.Capacity,
		g.cfg.CapacityBytes > 0 && g.waiting > 0 && g.waitingBytes+size > g.cfg.CapacityBytes:
		g.stats.Refused++
		return ErrFull
	}
	g.waiting++
	g.waitingBytes += size
	g.stats.Pushed++
	if g.lanes >= g.limit() {
		g.ctl.blocked()
	}
	return nil
}

// remove subtracts n cancelled items.
func (g *gate) remove(n, bytes int) {
	g.waiting -= n
	g.waitingBytes -= bytes
	g.stats.Removed += uint64(n)
}

// fits reports whether an item of this size may join a group of n items and bytes.
// The first one always may.
func (g *gate) fits(n, bytes, size int) bool {
	return n == 0 || g.cfg.MaxBytes == 0 || bytes+size <= g.cfg.MaxBytes
}

// admit reports whether a group may go whose oldest item was pushed at oldest, and
// why. full is ReasonNone while the group is not yet full.
func (g *gate) admit(now, oldest time.Duration, full Reason) Reason {
	if g.lanes < g.limit() {
		switch {
		case g.closed:
			return ReasonClose
		case full != ReasonNone:
			return full
		case g.adaptive() && !g.holding(now):
			return ReasonIdle
		}
		if w, r := g.window(); r != ReasonNone && now-oldest >= w {
			return r
		}
		return ReasonNone
	}
	if g.lanes < g.cfg.MaxLanes {
		if g.cfg.MaxWait > 0 && now-oldest >= g.cfg.MaxWait {
			return ReasonMaxWait
		}
	}
	return ReasonNone
}

// window is the longest time that an item waits although a lane is free, and the
// reason with which it is sent then; ReasonNone if nothing bounds it.
func (g *gate) window() (time.Duration, Reason) {
	w, m := g.cfg.Window, g.cfg.MaxWait
	switch {
	case m > 0 && (w == 0 || m < w):
		return m, ReasonMaxWait
	case w > 0:
		return w, ReasonWindow
	}
	return 0, ReasonNone
}

// holding reports whether a free lane waits for clients to come back. It waits for
// its share of all clients: then groups become alike, and each gathers while the
// others are under way.
func (g *gate) holding(now time.Duration) bool {
	if !holds(g.ctl.level) || now >= g.holdUntil {
		return false
	}
	lanes := g.limit()
	share := (g.flying + g.holdFor + lanes - 1) / lanes
	return g.waiting < min(share, g.holdFor)
}

// deadline is when admit's answer will change by time alone.
func (g *gate) deadline(oldest time.Duration, full Reason) (time.Duration, bool) {
	switch {
	case g.lanes < g.limit():
		if g.closed || full != ReasonNone || g.adaptive() && !g.holding(g.now) {
			return g.now, true
		}
		at, ok := g.holdUntil, g.adaptive()
		if w, r := g.window(); r != ReasonNone && (!ok || oldest+w < at) {
			at, ok = oldest+w, true
		}
		return at, ok
	case g.lanes < g.cfg.MaxLanes && g.cfg.MaxWait > 0:
		return oldest + g.cfg.MaxWait, true
	}
	return 0, false
}

// depart counts a group that was taken.
func (g *gate) depart(n, bytes int, why Reason) {
	g.waiting -= n
	g.waitingBytes -= bytes
	g.holdFor = max(0, g.holdFor-n)
	g.flying += n
	g.lanes++
	g.ctl.depart(g.lanes)
	if g.waiting > 0 && g.lanes >= g.limit() {
		g.ctl.blocked()
	}
	g.stats.Groups++
	g.stats.Items += uint64(n)
	g.stats.Bytes += uint64(bytes)
	g.stats.Reasons[why]++
	g.stats.GroupSize.Record(int64(n))
	g.stats.PeakLanes = max(g.stats.PeakLanes, g.lanes)
}

// done counts a group whose flush has returned.
func (g *gate) done(now time.Duration, n int, took time.Duration) {
	if g.lanes == 0 || n > g.flying {
		panic("batch: Done without a group in flight")
	}
	g.lanes--
	g.flying -= n
	g.stats.Flush.Record(int64(took))
	if !g.adaptive() {
		return
	}
	g.ctl.done(n, took)
	if holds(g.ctl.level) {
		if now >= g.holdUntil {
			g.holdFor = g.waiting
		}
		g.holdFor += n // if lanes end together, wait for the clients of all of them
		g.holdUntil = now + g.ctl.flush/holdShare
	}
}

func (g *gate) snapshot() Stats {
	s := g.stats
	s.Waiting, s.WaitingBytes = g.waiting, g.waitingBytes
	s.InFlight, s.Lanes = g.lanes, g.limit()
	s.Holding = g.adaptive() && holds(g.ctl.level)
	s.Probes, s.Moves = g.ctl.probes, g.ctl.moves
	return s
}
