package consensus

import (
	"slices"
	"time"

	"github.com/weirdb/weir/internal/kvd/kvwire"
)

// A lease rests on promises. With each stamp of its clock a leader asks the other
// voters to vote for nobody else, and not to stand for election, for a length of
// time that it names: its own election timeout. A voter promises exactly that, by
// its own monotonic clock from when the stamp arrived, and says so in its answer.
// What its own timeout is does not matter, so that replicas may be configured
// differently, as they are while a setting is rolled out (S12).
//
// The fields of a Lease message:
//
//	stamp   Time the leader's clock, Count the promise that is asked for, Index and
//	        Code what NewView says, Revision the store's time
//	answer  Time of the stamp, Stable the promise that was given (0: none, as by a
//	        version that knows no promises), Count which life of the replica, Index
//	        its last change of members, Revision its time, Ack how far it has
//	        applied, Prior the digest of its state there, Seq the newest form of the
//	        log that it understands

// longestPromise is the most that a voter promises: what it promised keeps it from
// voting after a restart, too.
const longestPromise = int64(time.Minute)

// electionNanos is how long a replica that hears nothing of its leader waits at
// least, and what it asks others to promise when it leads.
func (c *Core) electionNanos() int64 { return int64(c.cfg.ElectionTicks) * c.cfg.TickNanos }

// leaseNanos is how long a leader may rely on a promise of the given length,
// measured from when it sent what the voter answered.
func (c *Core) leaseNanos(promised int64) int64 {
	return int64(float64(promised)*(1-c.cfg.MaxDrift)) - c.cfg.TickNanos
}

// lease answers a leader's stamp, or takes in the answer to this leader's.
func (c *Core) lease(from Addr, m *kvwire.Message) {
	if m.Flags&kvwire.FlagYes != 0 {
		if c.lead != nil && m.View == c.term {
			c.lead.echo(uint64(from), m)
			c.lead.knows(uint64(from), m.Index)
		}
		return
	}
	if m.View != c.term || c.leader != uint64(from) {
		return
	}
	s := &c.standing
	s.wake(c)
	s.heard(c)
	s.stamped(m.View, m.Time)
	answer := kvwire.Message{Kind: kvwire.Lease, Flags: kvwire.FlagYes, View: m.View, Time: m.Time, Count: s.life, Index: c.members.known}
	answer.Revision = uint64(max(c.storeTime(), 0))
	if m.Revision > 0 {
		c.timeOfMajority(int64(m.Revision))
	}
	if m.Count <= uint64(longestPromise) {
		answer.Stable = m.Count
	}
	answer.Seq, answer.Ack, answer.Prior = c.formatKnown(), c.applied, c.digest()
	if s.promise(c, int64(answer.Stable)) {
		c.send(from, answer)
	} else {
		c.whenDurable(func() { c.send(from, answer) })
	}
	if m.Index > 0 {
		c.newView(&kvwire.Message{View: m.View, Leader: uint64(from), Index: m.Index})
	}
}

// promise keeps this replica from voting and standing for election for so long,
// and reports that a restart would know of it. Otherwise it is known as soon as what
// is recorded is on disk.
func (s *standing) promise(c *Core, length int64) bool {
	if length == 0 {
		return true
	}
	if c.mutated(PromiseOwnTimeout) {
		length = c.electionNanos()
	}
	s.promised = max(s.promised, c.now.Mono+length)
	if length >= s.longest {
		s.longestUntil = c.now.Mono + length
	}
	switch {
	case length > s.longest:
		s.longest = length
		c.record(RecordPromise, 0, 0, appendUvarints(nil, uint64(length)))
		s.recorded = c.ticket + 1
	case length < s.longest && c.now.Mono >= s.longestUntil:
		// No promise of that length is in force any more. Until this is on disk a
		// restarted replica is silent for longer than it must.
		s.longest, s.longestUntil = length, c.now.Mono+length
		c.note(RecordPromise, 0, 0, appendUvarints(nil, uint64(length)))
	}
	return s.recorded <= c.flushed
}

// echo takes in the answer to a stamp, by one life of a replica.
func (l *leadership) echo(from uint64, m *kvwire.Message) {
	c, stamp := l.c, m.Time
	l.lives[from] = m.Count
	if asked, heir := l.heirs[from]; heir && (stamp > asked || c.mutated(LeaseBackTooEarly)) {
		delete(l.heirs, from)
	}
	if c.mutated(LeaseFromAnswer) {
		stamp = c.now.Mono
	}
	if old, ok := l.echoes[from]; !ok || stamp > old {
		l.echoes[from] = stamp
	}
	l.knownBy(from, m.Seq)
	l.compareState(from, m.Ack, m.Prior)
	l.timeIs(from, m.Revision, m.Time)
	promised := min(int64(m.Stable), longestPromise)
	if promised > 0 {
		l.promises[from] = max(l.promises[from], stamp+c.leaseNanos(promised))
	}
}

// leased reports that no other leader can exist now: a majority has promised to
// vote for nobody else until later than now, except for an heir.
func (l *leadership) leased() bool {
	return len(l.heirs) == 0 && l.c.now.Mono < l.agreed(l.promises, never)
}

// heardBy is the moment (this leader's Clock.Mono) up to which a majority has
// confirmed that it leads: its oldest stamp among the newest answered ones of a
// majority. It measures from when stamps were sent, not answered.
func (l *leadership) heardBy() int64 { return l.agreed(l.echoes, l.c.now.Mono) }

// agreed is the largest value that a majority of the voters reaches, of both
// configurations while one gives way to the other. own is this replica's, who has
// none has not answered.
func (l *leadership) agreed(values map[uint64]int64, own int64) int64 {
	conf := l.c.members.conf
	v := l.agreedBy(conf.GetVoters(), values, own)
	if out := conf.GetVotersOutgoing(); len(out) > 0 {
		v = min(v, l.agreedBy(out, values, own))
	}
	return v
}

func (l *leadership) agreedBy(voters []uint64, values map[uint64]int64, own int64) int64 {
	if len(voters) == 0 {
		return -never
	}
	var few [8]int64
	all := few[:0]
	for _, id := range voters {
		v := int64(-never)
		if id == l.c.cfg.ID {
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
func (l *leadership) stamp() {
	c := l.c
	l.stamped = c.now.Mono
	if c.hangs && !c.mutated(HungLeaderStays) {
		return
	}
	m := kvwire.Message{Kind: kvwire.Lease, View: c.term, Time: c.now.Mono, Count: uint64(c.electionNanos())}
	if l.open {
		m.Index = c.openIndex
		m.Code = c.cfg.Encode()
		t := l.storeTime()
		c.timeOfMajority(t)
		m.Revision = uint64(max(t, 0))
	}
	c.toPeers(m)
	for _, id := range c.members.leaves() { // a majority of those before the change counts, too
		if id != c.cfg.ID {
			c.send(Addr(id), m)
		}
	}
}
