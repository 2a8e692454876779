package consensus

// The store's time is what keys and leases expire by, and it is in the log: each
// entry says how far it has come. It moves only with monotonic clocks. A wall clock
// that steps, at the leader or anywhere, neither ends anything early nor keeps it
// alive.
//
// What is promised: from one entry to a later one, under whatever leaders, the store's
// time does not move by more than real time does, as the monotonic clock of the leader
// measures it. So nothing ends before its time to live is over, counted from the moment
// when its entry was written. Three rules keep that:
//
//   - A leader carries the time on from the last that it has issued, in an entry or a
//     stamp, by its own clock. What it has once left out it never makes up for: it would
//     end early what was written meanwhile.
//   - A follower carries on what it has heard last, from when it heard that. This is
//     later than it was issued; so time does not jump when it comes to lead, either.
//   - The leader issues no more than a majority of the voters, by their own clocks, has
//     seen pass: see voterClock. So one clock that runs fast does not hurry the time. At
//     the leader it gains what a stamp and its answer take, once.
//
// What is left out makes things end later: by the delay of a message when the leader
// changes; while the leader has no answers of a majority; and by as much as the leader's
// clock is slow, up to a tenth: see makeUp. Only the first time of a new cluster is a wall
// clock's, that of its first leader.
//
// While no replica that has seen the log's last entries runs, time stands still: what
// lives for an hour lives for an hour of the store.

// steady is a replica's own idea of the store's time: the newest that it knows of a
// leader, carried on by its own clock.
type steady struct {
	term uint64 // of that leader
	time int64  // nanoseconds
	at   int64  // Clock.Mono when it was issued, or heard of
	runs bool   // at is of this life
}

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

// timeComes notes that the leader of a term has just been heard to issue a time. What
// is older than the newest that is known comes late and says nothing.
func (st *state) timeComes(term uint64, to int64) {
	if st.mutated(TimeMadeUp) && to < st.time() {
		return
	}
	if st.now != (Clock{}) && (!st.steady.runs || term > st.steady.term || term == st.steady.term && to >= st.steady.time) {
		st.steady = steady{term, to, st.now.Mono, true}
	}
}

// timeFound notes a time in the log. If it was heard when it came, it goes on from then.
func (st *state) timeFound(term uint64, t int64) {
	if term > st.steady.term || t > st.steady.time {
		st.timeComes(term, t)
	}
}

// voterClock is what a leader knows of a voter's clock: what it showed when it answered
// a stamp, and how far the store's time would have come there by that clock alone.
// The voter's idea of the time is only what it begins with. After that it carries on
// what this leader says, which is no evidence.
type voterClock struct {
	life uint64 // which life of that replica
	mono int64  // its Clock.Mono
	time int64  // of the store
	sent int64  // when this leader sent the stamp, by its own Clock.Mono: mono is later than that

	since, asked int64 // mono and sent of an earlier answer: what has gone by since is compared
}

// time issues the store's time: an entry or a stamp carries it now.
func (le *lease) time() int64 {
	c := le.c
	st := &c.state
	own := st.time()
	if own == 0 { // nothing has happened yet
		st.timeComes(c.engine.term, c.now.Wall)
		own = st.time()
	}
	t := max(st.steady.time, st.logTime, min(own, le.agreed(le.timesNow(), own)))
	if c.mutated(TimeByWallClock) {
		t = max(st.steady.time, st.logTime, c.now.Wall)
	}
	if t == own || !c.mutated(TimeMadeUp) {
		st.steady = steady{c.engine.term, t, c.now.Mono, true}
	}
	return t
}

// timesNow is how far the store's time may have come by now by the voters' clocks. Those
// that have not been heard for long count as if they had stopped.
func (le *lease) timesNow() map[uint64]int64 {
	times := make(map[uint64]int64, len(le.clocks))
	for id, v := range le.clocks {
		times[id] = v.time + min(le.c.now.Mono-v.sent, 2*le.c.standing.electionNanos())
	}
	return times
}

// timeIs takes in what a voter that answers a stamp says of its clock and of its idea of
// the store's time. A version that says nothing of its clock has its idea alone, one that
// says nothing of that either has this replica's.
func (le *lease) timeIs(from, life uint64, mono, told, sent int64) {
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
	if v.since == 0 || mono-v.since > compareFor*le.c.standing.electionNanos() {
		v.since, v.asked = mono, sent
	}
	if v.time == 0 { // nothing has happened yet
		return
	}
	le.clocks[from] = v
	le.makeUp()
}

// compareFor is for how long, in election timeouts, clocks are compared.
const compareFor = 8

// makeUp has the time go on where this leader's clock stands or is slower than a clock
// may be (Config.MaxDrift): as far as a majority shows that it should have come by a
// clock which is just not too slow. This is the one case in which something may end
// early, by about the time from one stamp to the next.
func (le *lease) makeUp() {
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

// readTime is the time at which a read is evaluated here: what lives for a while is
// shown to live shorter as time goes by, but nothing goes before an entry says so.
func (st *state) readTime() int64 {
	t := st.time()
	if due := st.machine.Due(); due != 0 {
		t = min(t, due-1)
	}
	return max(t, st.logTime)
}
