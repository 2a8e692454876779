package consensus

import (
	"bytes"

	pb "go.etcd.io/raft/v3/raftpb"

	"github.com/weirdb/weir/internal/kvd/wire"
)

// election decides when this replica starts an election and when it may vote. The engine could
// do both, but its timeouts are random, and its leases count ticks since the last message
// instead of relying on what voters have promised.
type election struct {
	*Core
	elapsed  int // ticks since it heard from a leader, or from a candidate that got its vote
	timeout  int // in ticks; drawn again for every attempt
	attempts uint64

	// promised is the time (Clock.Mono) until which this replica votes only for the
	// leader that it last heard from. The leader's lease relies on it (S12).
	promised int64
	restart  bool // promises from before the restart are unknown: be silent for as long as one could last

	longest      int64  // in ns, the longest promise that may be in force, as recorded on disk
	longestUntil int64  // when the last one of that length ends (Clock.Mono)
	recorded     uint64 // the ticket with which it was recorded

	heardAt int64

	// life identifies this run of the replica: the time of its first event. Earlier runs may
	// have answered what this one does not know of.
	life  uint64
	stamp int64  // the newest stamp that this run has answered in term
	term  uint64 // the term of stamp
}

func (s *election) start() {
	s.restart = !s.mutated(RestartForgetsLease) && s.engine.log.hard != nil && s.engine.log.hard.GetTerm() > bootTerm
	s.draw()
}

func (s *election) draw() {
	s.attempts++
	x := s.cfg.Seed ^ s.cfg.ID<<32 ^ s.attempts<<48 ^ s.engine.term
	s.timeout = s.cfg.ElectionTicks + int(mix(x)%uint64(s.cfg.ElectionTicks))
	s.elapsed = 0
}

// mix is the finalizer of SplitMix64 (Steele, Lea and Flood, OOPSLA 2014).
func mix(x uint64) uint64 {
	x += 0x9e3779b97f4a7c15
	x = (x ^ x>>30) * 0xbf58476d1ce4e5b9
	x = (x ^ x>>27) * 0x94d049bb133111eb
	return x ^ x>>31
}

func (s *election) tick() {
	s.wake()
	s.elapsed++
	if s.elapsed < s.timeout || s.now.Mono < s.promised || s.out.hangs {
		return
	}
	s.draw()
	s.counters.Elections++
	if err := s.engine.node.Campaign(); err != nil {
		s.fatal(err)
	}
}

// wake starts the silence after a restart, at the first event.
func (s *election) wake() {
	if s.life == 0 {
		s.life = max(uint64(s.now.Mono), 1)
	}
	if s.restart {
		s.restart = false
		silence := max(s.electionNanos(), s.longest)
		if s.mutated(RestartForgetsPromise) {
			silence = s.electionNanos()
		}
		s.promised = s.now.Mono + silence
		s.longestUntil = s.promised
	}
}

// heard notes that the leader is alive.
func (s *election) heard() {
	s.elapsed = 0
	s.heardAt = s.now.Mono
	s.promised = max(s.promised, s.now.Mono+s.electionNanos())
}

// stamped notes that a stamp is answered.
func (s *election) stamped(term uint64, stamp int64) {
	if term != s.term {
		s.term, s.stamp = term, stamp
	}
	s.stamp = max(s.stamp, stamp)
}

// mayTakeOver reports whether a leader's request to take over may be passed to the engine. It
// may not if the disk hangs, or if a later stamp has been answered since or the request was
// meant for an earlier run: the leader may have its lease again.
func (s *election) mayTakeOver(term uint64, w *wire.Message) bool {
	return !s.out.hangs && term == s.term && w.Count == s.life && w.Time >= s.stamp || s.mutated(OldRequestTaken)
}

// mayVote reports whether a request for a vote may be passed to the engine.
func (s *election) mayVote(m *pb.Message) bool {
	s.wake()
	if bytes.Equal(m.GetContext(), []byte("CampaignTransfer")) {
		return true // the leader itself asked for it, and has given up its lease
	}
	return s.now.Mono >= s.promised || s.mutated(VoteDuringLease)
}
