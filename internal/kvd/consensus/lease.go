package consensus

import (
	"slices"
	"time"

	"github.com/weirdb/weir/internal/kvd/wire"
)

// A lease rests on promises. With each stamp of its clock a leader asks the other voters
// neither to vote for another replica nor to start an election, for a period that the request
// names: the leader's own election timeout. A voter promises exactly that, measured by its own
// monotonic clock from when the stamp arrived, and says so in its answer. The voter's own
// timeout does not matter, so that replicas may be configured differently, as they are while a
// setting is rolled out (S12).
//
// The fields of a Lease message:
//
//	stamp   Time the leader's clock, Count the promise that is asked for, Index and
//	        Code as in NewView, Revision the store's time
//	answer  Time of the stamp, Session the voter's own clock (0: a version that does
//	        not say), Stable the promise that was given (0: none, as by a version
//	        that knows no promises), Count the life of the replica, Index
//	        its last change of members, Revision its time, Ack the last entry that it
//	        has applied, Prior the digest of its state there, Request that of the members,
//	        Seq the newest format of the log that it knows

// lease tells a leader that no other leader can exist.
type lease struct {
	*leadership
	stamped int64            // when the last stamp was sent
	echoes  map[uint64]int64 // by voter: the newest stamp that it has answered
	// promises has, by voter, the time (Clock.Mono) until which it votes for no other replica.
	promises   map[uint64]int64
	clocks     map[uint64]voterClock
	lives      map[uint64]uint64 // by replica: the life that answered
	successors map[uint64]int64  // replicas that were asked to lead, and when; there is no lease while there are any
}

// longestPromise is the longest promise that a voter gives. A promise also keeps it from voting
// after a restart.
const longestPromise = int64(time.Minute)

// electionNanos returns the least time that a replica waits when it hears nothing from its
// leader. It is also what a leader asks others to promise.
func (s *election) electionNanos() int64 { return int64(s.cfg.ElectionTicks) * s.cfg.TickNanos }

// leaseNanos returns how long a leader may rely on a promise of this length, from when it sent
// the stamp.
func (s *election) leaseNanos(promised int64) int64 {
	return int64(float64(promised)*(1-s.cfg.MaxDrift)) - s.cfg.TickNanos
}

// lease answers a leader's stamp, or processes the answer to a stamp of this leader.
func (s *election) lease(from Addr, m *wire.Message) {
	if m.Flags&wire.FlagYes != 0 {
		if s.lead != nil && m.View == s.engine.term {
			s.lead.lease.echo(uint64(from), m)
			s.lead.changes.noteKnown(uint64(from), m.Index)
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
		s.state.noteIssued(m.View, int64(m.Revision))
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

// promise keeps this replica from voting and from starting an election for this length of time.
// It reports whether the promise would survive a restart already; otherwise it does when what
// was recorded is on disk.
func (s *election) promise(length int64) bool {
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
		// No longer promise is in force. Until this is on disk, a restarted replica is silent
		// for longer than necessary.
		s.longest, s.longestUntil = length, s.now.Mono+length
		s.out.note(RecordPromise, 0, 0, appendUvarints(nil, uint64(length)))
	}
	return s.recorded <= s.out.flushed
}

// echo processes the answer of one life of a replica to a stamp.
func (le *lease) echo(from uint64, m *wire.Message) {
	c, stamp := le.c, m.Time
	le.lives[from] = m.Count
	if asked, heir := le.successors[from]; heir && (stamp > asked || c.mutated(LeaseBackTooEarly)) {
		delete(le.successors, from)
	}
	if c.mutated(LeaseFromAnswer) {
		stamp = c.now.Mono
	}
	if old, ok := le.echoes[from]; !ok || stamp > old {
		le.echoes[from] = stamp
	}
	le.knownBy(from, m.Seq)
	le.compareState(from, m.Ack, m.Prior, m.Request)
	le.noteTime(from, m.Count, int64(m.Session), int64(m.Revision), m.Time)
	promised := min(int64(m.Stable), longestPromise)
	if promised > 0 {
		le.promises[from] = max(le.promises[from], stamp+c.election.leaseNanos(promised))
	}
}

// held reports whether no other leader can exist now: a majority has promised to vote for
// no other replica until later than now, and no replica was asked to take over.
func (le *lease) held() bool {
	return len(le.successors) == 0 && le.c.now.Mono < le.agreed(le.promises, never)
}

// heardBy returns the time (this leader's Clock.Mono) up to which a majority has confirmed that
// it leads. It is the oldest of the newest stamps that a majority has answered: when it was
// sent, not answered.
func (le *lease) heardBy() int64 { return le.agreed(le.echoes, le.c.now.Mono) }

// agreed returns the largest value that a majority of the voters reaches, in a joint
// configuration a majority of both. own is the value of this replica. Replicas without a value
// have not answered.
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

// stamp sends this leader's clock to the other members and asks for promises.
func (le *lease) stamp() {
	c := le.c
	le.stamped = c.now.Mono
	if c.out.hangs && !c.mutated(HungLeaderStays) {
		return
	}
	m := wire.Message{Kind: wire.Lease, View: c.engine.term, Time: c.now.Mono, Count: uint64(c.election.electionNanos())}
	if le.open {
		m.Index = c.witness.openIndex
		m.Code = c.cfg.Encode()
		m.Revision = uint64(max(le.time(), 0))
	}
	c.out.toPeers(m)
	for _, id := range c.state.members.leaving() { // a majority of the voters before the change is needed as well
		if id != c.cfg.ID {
			c.out.send(Addr(id), m)
		}
	}
}
