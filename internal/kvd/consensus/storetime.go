package consensus

// The store's time is the time by which keys and leases expire, and it is part of the log: each
// entry has its value. It advances only with monotonic clocks. When a wall clock jumps, at the
// leader or elsewhere, nothing expires early and nothing lives longer.
//
// The guarantee is this: between two entries, whichever replica leads, the store's time advances by no
// more than real time does, as measured by the monotonic clock of the leader. So nothing
// expires before the end of its time to live, counted from when its entry was written. Three
// rules ensure that:
//
//   - A leader continues the last time that it has issued, in an entry or a stamp, by its own
//     clock. It never makes up for time that was missed: that would end early what was written
//     meanwhile.
//   - A follower continues the last time that it has heard of, from when it heard of it. This is
//     later than it was issued, so time does not jump when the follower becomes leader either.
//   - The leader issues no more than a majority of the voters has measured by their own clocks:
//     see voterClock. So a single fast clock does not make time run faster. At the leader it gains
//     the round trip of one stamp, once.
//
// Missed time makes things expire later: by the delay of a message when the leader changes,
// while the leader has no answers of a majority, and by as much as the leader's clock is slow,
// up to a tenth: see catchUp. Only the first time of a new cluster comes from a wall clock, that
// of its first leader.
//
// While no replica runs that has the last entries of the log, time stands still: a time to live
// of an hour is an hour in which the store runs.

// storeClock is a replica's estimate of the store's time: the newest that it knows from a
// leader, continued by its own clock.
type storeClock struct {
	term uint64 // of that leader
	time int64  // nanoseconds
	at   int64  // Clock.Mono when the time was issued, or heard of
	runs bool   // at is a time of this life
}

// time returns the store's time as estimated by this replica, 0 if it knows none.
func (st *state) time() int64 {
	s := &st.steady
	if !s.runs && (st.logTime == 0 || st.now == (Clock{})) {
		return st.logTime
	}
	if !s.runs {
		*s = storeClock{time: st.logTime, at: st.now.Mono, runs: true}
	}
	return s.time + st.now.Mono - s.at
}

// noteIssued notes that the leader of a term has just issued a time. A time older than the
// newest known one arrives late and is ignored.
func (st *state) noteIssued(term uint64, to int64) {
	if st.mutated(TimeMadeUp) && to < st.time() {
		return
	}
	if st.now != (Clock{}) && (!st.steady.runs || term > st.steady.term || term == st.steady.term && to >= st.steady.time) {
		st.steady = storeClock{term, to, st.now.Mono, true}
	}
}

// noteLogged notes a time in the log. If it was heard when it was issued, the clock continues
// from then.
func (st *state) noteLogged(term uint64, t int64) {
	if term > st.steady.term || t > st.steady.time {
		st.noteIssued(term, t)
	}
}

// voterClock is what a leader knows of a voter's clock: its value when the voter answered a
// stamp, and the store's time that follows from that clock alone. The voter's own estimate of
// the time is only the start. Later estimates derive from what this leader says, and are no
// evidence.
type voterClock struct {
	life uint64 // the life of that replica
	mono int64  // its Clock.Mono
	time int64  // of the store
	sent int64  // when this leader sent the stamp, by its Clock.Mono: mono was read later

	since, asked int64 // mono and sent of an earlier answer, to compare the rates
}

// time issues the store's time, for an entry or a stamp.
func (le *lease) time() int64 {
	c := le.c
	st := &c.state
	own := st.time()
	if own == 0 { // no time was issued yet
		st.noteIssued(c.engine.term, c.now.Wall)
		own = st.time()
	}
	t := max(st.steady.time, st.logTime, min(own, le.agreed(le.timesNow(), own)))
	if c.mutated(TimeByWallClock) {
		t = max(st.steady.time, st.logTime, c.now.Wall)
	}
	if t == own || !c.mutated(TimeMadeUp) {
		st.steady = storeClock{c.engine.term, t, c.now.Mono, true}
	}
	return t
}

// timesNow returns the store's time that follows from each voter's clock. Clocks of voters that
// have not been heard from for long count as stopped.
func (le *lease) timesNow() map[uint64]int64 {
	times := make(map[uint64]int64, len(le.clocks))
	for id, v := range le.clocks {
		times[id] = v.time + min(le.c.now.Mono-v.sent, 2*le.c.election.electionNanos())
	}
	return times
}

// noteTime processes a voter's clock and its estimate of the store's time, from the answer to a
// stamp. For a version that does not report its clock only the estimate is used; for one that
// reports no estimate either, this replica's.
func (le *lease) noteTime(from, life uint64, mono, told, sent int64) {
	st := &le.c.state
	old, known := le.clocks[from]
	v := voterClock{life: life, mono: mono, time: told, sent: sent}
	switch {
	case known && sent < old.sent:
		return
	case mono <= 0 && told <= 0:
		v.time, v.sent = st.time(), le.c.now.Mono
	case mono <= 0:
	case known && life == old.life && old.mono > 0 && mono >= old.mono:
		v.time, v.since, v.asked = old.time+mono-old.mono, old.since, old.asked
	default:
		v.time = max(told, st.steady.time)
	}
	if v.since == 0 || mono-v.since > compareFor*le.c.election.electionNanos() {
		v.since, v.asked = mono, sent
	}
	if v.time == 0 { // no time was issued yet
		return
	}
	le.clocks[from] = v
	le.catchUp()
}

// compareFor is how long, in election timeouts, clocks are compared.
const compareFor = 8

// catchUp advances the time if this leader's clock stands still or is slower than a clock may be
// (Config.MaxDrift), to where a majority shows that a clock of the least permitted rate would
// be. Only in this case something may expire early, by about the interval between stamps.
func (le *lease) catchUp() {
	c := le.c
	lost := make(map[uint64]int64, len(le.clocks))
	for id, v := range le.clocks {
		lost[id] = int64(float64(v.mono-v.since)*(1-c.cfg.MaxDrift)) - (c.now.Mono - v.asked)
	}
	by := le.agreed(lost, 0)
	if by <= 0 {
		return
	}
	c.state.steady.at -= by
	for id, v := range le.clocks {
		v.asked -= by
		le.clocks[id] = v
	}
}

// readTime returns the time at which reads are evaluated here. A key's remaining time to live
// decreases with time, but the key disappears only by an entry.
func (st *state) readTime() int64 {
	t := st.time()
	if due := st.machine.Due(); due != 0 {
		t = min(t, due-1)
	}
	return max(t, st.logTime)
}
