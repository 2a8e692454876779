package consensus

import (
	"slices"
	"time"

	"github.com/weirdb/weir/internal/kvd/wire"
)

// A lease rests on promises. With each stamp of its clock a leader asks the other
// voters to vote for nobody else, and not to stand for election, for a length of
// time that it names: its own election timeout. A voter promises exactly that, by
// its own monotonic clock from when the stamp arrived, and says so in its answer.
// A replica's own timeout does not matter, so that replicas may be configured differently, as
// they are while a setting is rolled out (S12).
//
// The fields of a Lease message:
//
//	stamp   Time the leader's clock, Count the promise that is asked for, Index and
//	        Code what NewView says, Revision the store's time
//	answer  Time of the stamp, Session the voter's own clock (0: a version that does
//	        not say), Stable the promise that was given (0: none, as by a version
//	        that knows no promises), Count which life of the replica, Index
//	        its last change of members, Revision its time, Ack how far it has
//	        applied, Prior the digest of its state there, Request that of the members,
//	        Seq the newest form of the log that it understands

// lease is how a leader knows that no other can exist.
type lease struct {
	*leadership
	stamped int64            // when a stamp was last sent
	echoes  map[uint64]int64 // per voter: the newest stamp that it has answered
	// promises is until when (Clock.Mono) a voter votes for nobody else.
	promises map[uint64]int64
	clocks   map[uint64]voterClock
	lives    map[uint64]uint64 // who answered: which life of that replica
	heirs    map[uint64]int64  // who was asked to lead, and when: the lease is off while there are any
}

// longestPromise is the most that a voter promises: what it promised keeps it from
// voting after a restart, too.
const longestPromise = int64(time.Minute)

// electionNanos is how long a replica that hears nothing of its leader waits at
// least, and what it asks others to promise when it leads.
func (s *standing) electionNanos() int64 { return int64(s.cfg.ElectionTicks) * s.cfg.TickNanos }

// leaseNanos is how long a leader may rely on a promise of the given length,
// measured from when it sent what the voter answered.
func (s *standing) leaseNanos(promised int64) int64 {
	return int64(float64(promised)*(1-s.cfg.MaxDrift)) - s.cfg.TickNanos
}

// lease answers a leader's stamp, or takes in the answer to this leader's.
func (s *standing) lease(from Addr, m *wire.Message) {
	if m.Flags&wire.FlagYes != 0 {
		if s.lead != nil && m.View == s.engine.term {
			s.lead.lease.echo(uint64(from), m)
			s.lead.changes.knows(uint64(from), m.Index)
		}
		return
	}
	if m.View != s.engine.term || s.engine.leader != uint64(from) {
		return
	}
	s.wake()
	s.heard()
	s.stamped(m.View, m.Time)
	answer := wire.Message{Kind: wire.Lease, Flags: wire.FlagYes, View: m.View, Time: m.Time, Count: s.life, Index: s.state.members.known}
	answer.Session, answer.Revision = uint64(max(s.now.Mono, 0)), uint64(max(s.state.time(), 0))
	if m.Revision > 0 {
		s.state.timeComes(m.View, int64(m.Revision))
	}
	if m.Count <= uint64(longestPromise) {
		answer.Stable = m.Count
	}
	answer.Seq, answer.Ack, answer.Prior = s.state.formatKnown(), s.state.applied, s.state.digest()
	answer.Request = s.state.members.digest()
	if s.promise(int64(answer.Stable)) {
		s.out.send(from, answer)
	} else {
		s.out.whenDurable(func() { s.out.send(from, answer) })
	}
	if m.Index > 0 {
		s.witness.newView(&wire.Message{View: m.View, Leader: uint64(from), Index: m.Index})
	}
}

// promise keeps this replica from voting and standing for election for so long,
// and reports that a restart would know of it. Otherwise it is known as soon as what
// is recorded is on disk.
func (s *standing) promise(length int64) bool {
	if length == 0 {
		return true
	}
	if s.mutated(PromiseOwnTimeout) {
		length = s.electionNanos()
	}
	s.promised = max(s.promised, s.now.Mono+length)
	if length >= s.longest {
		s.longestUntil = s.now.Mono + length
	}
	switch {
	case length > s.longest:
		s.longest = length
		s.out.record(RecordPromise, 0, 0, appendUvarints(nil, uint64(length)))
		s.recorded = s.out.ticket + 1
	case length < s.longest && s.now.Mono >= s.longestUntil:
		// No promise of that length is in force any more. Until this is on disk a
		// restarted replica is silent for longer than it must.
		s.longest, s.longestUntil = length, s.now.Mono+length
		s.out.note(RecordPromise, 0, 0, appendUvarints(nil, uint64(length)))
	}
	return s.recorded <= s.out.flushed
}

// echo takes in the answer to a stamp, by one life of a replica.
func (le *lease) echo(from uint64, m *wire.Message) {
	c, stamp := le.c, m.Time
	le.lives[from] = m.Count
	if asked, heir := le.heirs[from]; heir && (stamp > asked || c.mutated(LeaseBackTooEarly)) {
		delete(le.heirs, from)
	}
	if c.mutated(LeaseFromAnswer) {
		stamp = c.now.Mono
	}
	if old, ok := le.echoes[from]; !ok || stamp > old {
		le.echoes[from] = stamp
	}
	le.knownBy(from, m.Seq)
	le.compareState(from, m.Ack, m.Prior, m.Request)
	le.timeIs(from, m.Count, int64(m.Session), int64(m.Revision), m.Time)
	promised := min(int64(m.Stable), longestPromise)
	if promised > 0 {
		le.promises[from] = max(le.promises[from], stamp+c.standing.leaseNanos(promised))
	}
}

// held reports that no other leader can exist now: a majority has promised to
// vote for nobody else until later than now, except for an heir.
func (le *lease) held() bool {
	return len(le.heirs) == 0 && le.c.now.Mono < le.agreed(le.promises, never)
}

// heardBy is the moment (this leader's Clock.Mono) up to which a majority has
// confirmed that it leads: its oldest stamp among the newest answered ones of a
// majority. It measures from when stamps were sent, not answered.
func (le *lease) heardBy() int64 { return le.agreed(le.echoes, le.c.now.Mono) }

// agreed is the largest value that a majority of the voters reaches, of both
// configurations while one gives way to the other. own is this replica's, who has
// none has not answered.
func (le *lease) agreed(values map[uint64]int64, own int64) int64 {
	conf := le.c.state.members.conf
	v := le.agreedBy(conf.GetVoters(), values, own)
	if out := conf.GetVotersOutgoing(); len(out) > 0 {
		v = min(v, le.agreedBy(out, values, own))
	}
	return v
}

func (le *lease) agreedBy(voters []uint64, values map[uint64]int64, own int64) int64 {
	if len(voters) == 0 {
		return -never
	}
	var few [8]int64
	all := few[:0]
	for _, id := range voters {
		v := int64(-never)
		if id == le.c.cfg.ID {
			v = own
		} else if t, ok := values[id]; ok {
			v = t
		}
		all = append(all, v)
	}
	slices.Sort(all)
	return all[len(all)-majority(len(all))]
}

// stamp sends this leader's clock to the other members, and asks for promises.
func (le *lease) stamp() {
	c := le.c
	le.stamped = c.now.Mono
	if c.out.hangs && !c.mutated(HungLeaderStays) {
		return
	}
	m := wire.Message{Kind: wire.Lease, View: c.engine.term, Time: c.now.Mono, Count: uint64(c.standing.electionNanos())}
	if le.open {
		m.Index = c.witness.openIndex
		m.Code = c.cfg.Encode()
		m.Revision = uint64(max(le.time(), 0))
	}
	c.out.toPeers(m)
	for _, id := range c.state.members.leaves() { // a majority of those before the change counts, too
		if id != c.cfg.ID {
			c.out.send(Addr(id), m)
		}
	}
}
