package consensus

// The store's time is what keys and leases expire by, and it is in the log: each
// entry says how far it has come. It moves only with monotonic clocks. A wall clock
// that steps, at the leader or anywhere, neither ends anything early nor keeps it
// alive; and one machine whose monotonic clock is wrong does not either, since the
// leader lets time come only as far as a majority of the voters, by their own clocks,
// have it.
//
// Each replica carries on from the newest time that it has heard of, in an entry or
// in a stamp, by its own monotonic clock. It tells its leader how far it is with
// each answer to a stamp, and the stamp tells it how far a majority is. Only the first
// time of a new cluster is a wall clock's, that of its first leader.
//
// While no replica that has seen the log's last entries runs, time stands still: what
// lives for an hour lives for an hour of the store.

// steady is a replica's own idea of the store's time.
type steady struct {
	time int64 // at the moment at, nanoseconds
	at   int64 // Clock.Mono
	runs bool  // at is of this life
}

// timeHeard is how far a voter was, and when this leader sent the stamp that it
// answered: it was there later than that.
type timeHeard struct{ time, at int64 }

// time is how far the store's time has come, as this replica carries it on; 0 if
// it has never heard of any.
func (st *state) time() int64 {
	s := &st.steady
	if !s.runs && (st.logTime == 0 || st.now == (Clock{})) {
		return st.logTime
	}
	if !s.runs {
		*s = steady{time: st.logTime, at: st.now.Mono, runs: true}
	}
	return s.time + st.now.Mono - s.at
}

// timeComes notes that the store's time has come so far at least.
func (st *state) timeComes(to int64) {
	if st.time() < to {
		st.steady = steady{time: to, at: st.now.Mono, runs: true}
	}
}

// timeOfMajority notes how far a majority is: this replica is not behind, nor further
// ahead than a stamp may well be on its way.
func (st *state) timeOfMajority(t int64) {
	st.timeComes(t)
	if most := t + st.standing.electionNanos()/4; st.time() > most {
		st.steady.time, st.steady.at = most, st.now.Mono
		st.counters.TimesSet++
	}
}

// time is the time that an entry may carry now: that of a majority, not before
// that of the entries before it. Where clocks are right this is this leader's own: a
// voter counts for as much as it may have come to by now. Those that have not been
// heard for long count as if their clocks had stopped.
func (le *lease) time() int64 {
	c := le.c
	if max(le.leadership.time, c.state.logTime) == 0 { // nothing has happened yet
		if c.state.time() == 0 {
			c.state.timeComes(c.now.Wall)
		}
		return c.state.time()
	}
	if c.mutated(TimeByWallClock) {
		return max(le.leadership.time, c.state.logTime, c.now.Wall)
	}
	own := c.state.time()
	times := make(map[uint64]int64, len(le.times))
	for id, h := range le.times {
		times[id] = min(own, h.time+min(c.now.Mono-h.at, 2*c.standing.electionNanos()))
	}
	return max(le.leadership.time, c.state.logTime, le.agreed(times, own))
}

// timeIs takes in how far a voter's time is. One that does not know, or is of a version
// that does not say, has this replica's.
func (le *lease) timeIs(from, told uint64, sent int64) {
	t := int64(told)
	if t <= 0 {
		t, sent = max(le.c.state.time(), le.time()), le.c.now.Mono
	}
	le.times[from] = timeHeard{t, sent}
}

// readTime is the time at which a read is evaluated here: what lives for a while is
// shown to live shorter as time goes by, but nothing goes before an entry says so.
func (st *state) readTime() int64 {
	t := st.time()
	if due := st.machine.Due(); due != 0 {
		t = min(t, due-1)
	}
	return max(t, st.logTime)
}
