package consensus

import (
	"bytes"

	pb "go.etcd.io/raft/v3/raftpb"

	"github.com/weirdb/weir/internal/kvd/wire"
)

// standing decides when this replica stands for election and when it may vote.
// The engine could do both, but its timeouts are random and its idea of a lease
// counts ticks since the last message instead of asking what was promised.
type standing struct {
	*Core
	elapsed  int // ticks since a leader, or a candidate that got the vote, was heard
	timeout  int // ticks; drawn anew for every attempt
	attempts uint64

	// promised is until when (Clock.Mono) this replica votes for nobody but the
	// leader it heard last: what that leader's lease rests on (S12).
	promised int64
	restart  bool // promises from before the restart are forgotten: keep silent for as long as one could last

	longest      int64  // ns: the longest promise that may be in force, as the disk knows it
	longestUntil int64  // when the last one of that length ends (Clock.Mono)
	recorded     uint64 // the ticket with which the disk knows it

	heardAt int64

	// life tells this run of the replica from those before, which may have
	// answered what this one knows nothing of: the moment of its first event.
	life  uint64
	stamp int64  // the newest stamp that this life has answered in the term
	term  uint64 // of stamp
}

func (s *standing) start() {
	s.restart = !s.mutated(RestartForgetsLease) && s.engine.log.hard != nil && s.engine.log.hard.GetTerm() > bootTerm
	s.draw()
}

func (s *standing) draw() {
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

func (s *standing) tick() {
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

// wake starts the silence after a restart with the first time that is told.
func (s *standing) wake() {
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

// heard notes that the present leader is alive.
func (s *standing) heard() {
	s.elapsed = 0
	s.heardAt = s.now.Mono
	s.promised = max(s.promised, s.now.Mono+s.electionNanos())
}

// stamped notes which stamp is answered.
func (s *standing) stamped(term uint64, stamp int64) {
	if term != s.term {
		s.term, s.stamp = term, stamp
	}
	s.stamp = max(s.stamp, stamp)
}

// mayTakeOver reports whether a leader's request to take over may reach the
// engine: not at a replica whose disk hangs, nor one that comes after the answer to a later stamp, nor one that a
// former life was asked. The leader may have its lease again.
func (s *standing) mayTakeOver(term uint64, w *wire.Message) bool {
	return !s.out.hangs && term == s.term && w.Count == s.life && w.Time >= s.stamp || s.mutated(OldRequestTaken)
}

// mayVote reports whether a request for a vote may reach the engine.
func (s *standing) mayVote(m *pb.Message) bool {
	s.wake()
	if bytes.Equal(m.GetContext(), []byte("CampaignTransfer")) {
		return true // the leader itself asked for it and gave up its lease
	}
	return s.now.Mono >= s.promised || s.mutated(VoteDuringLease)
}
