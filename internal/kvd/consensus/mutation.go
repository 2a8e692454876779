package consensus

import (
	"slices"

	pb "go.etcd.io/raft/v3/raftpb"
)

// Mutations is a set of deliberate bugs. The simulator enables each of them and must find it.
// No program enables any, and no flag or file can. docs/kv-simulation.md says what each one
// breaks and which check finds it.
type Mutations uint64

// Mutation is one deliberate bug.
type Mutation uint8

// Mutations of the fast path.
const (
	VoteInAnyView        Mutation = iota // a witness ignores the view (S1)
	VoteOnConflict                       // a witness votes for what does not commute with its pool (S1)
	VoteBeforeDisk                       // a vote is sent before its record is durable (S2)
	SpecBeforeDisk                       // the leader sends a result before its entry is durable (S2)
	SpecOverUncommitted                  // the leader ignores uncommitted entries when it sends a result (S3)
	SpecWithoutBundle                    // the leader computes a result without the writes of the bundle (S3)
	SpecWhileChanging                    // the fast path stays open during a change of members
	PriorIgnored                         // pools need not hold the session's earlier strong write
	LateRecordKept                       // a record of an applied write returns to the pool (S7)
	PoolForgetsAtAppend                  // records leave the pool when the entry is appended, not applied (S7)
	PoolForgetsAtElected                 // a witness drops its records when the leader asks for them
	ViewNotPersisted                     // a view is on disk only once it is open: a restarted witness votes in an old view (S5)
	RecoverTooLittle                     // recovery demands one pool more than necessary to have an operation (S5)
	RecoverTooMuch                       // recovery demands one pool less than necessary to have an operation (S5)
	RecoverFromMinority                  // recovery asks one pool less than a majority (S5)
	RecoverWithoutBundle                 // recovery omits the weak writes before an operation (S9)
	RecoverInAnyOrder                    // recovery ignores the order of a session's writes
	OpenWithoutRecovery                  // a new leader opens its view without asking for pools (S5)

	// Mutations of leaders, leases and reads.

	ServeBeforeOpen       // a new leader serves before its first entry is committed (S6)
	ReadBeforeOpen        // a new leader answers reads before that (S6)
	ReadUncommitted       // a strong read does not wait for uncommitted writes that completed by votes (S12)
	ReadUnapplied         // a strong read does not wait for entries that are committed but not applied (S12)
	ReadWithoutLease      // a leader answers reads without confirming that it still leads (S12)
	LeaseFromAnswer       // a lease starts with the answer instead of the stamp (S12)
	VoteDuringLease       // a voter ignores its promise to the leader (S12)
	RestartForgetsLease   // a restarted voter is not silent (S12)
	TransferKeepsLease    // a leader that hands over still reads by its lease (S12)
	LeaseBackTooEarly     // a leader has its lease back with any answer of the replica that was to take over (S12)
	OldRequestTaken       // a replica takes over although it has answered a later stamp (S12)
	PromiseOwnTimeout     // a voter confirms what a leader asks for, but keeps its own election timeout (S12)
	RestartForgetsPromise // a restarted voter is silent only for its own election timeout (S12)
	HungLeaderStays       // a leader whose disk hangs still sends heartbeats
	VoteNotPersisted      // the vote is not written to the disk (S13)
	VoteNotAwaited        // answers do not wait until the term and vote are on disk (S13)
	SaidOnlyOnce          // redundant messages are never sent again
	CommitCountsLearner   // a learner's answer counts like a voter's
	NumberUsedAgain       // the id of a removed member is used again
	RaiseTooEarly         // a leader writes a newer format although a member has not reported that it knows it
	DigestIgnored         // a leader ignores the digests of other states
	DivergedGoesOn        // a replica continues although its leader reports that its state differs
	WaitEnds              // a read that has waited too long is answered anyway (S14)

	// Mutations of sessions and weak operations.

	NoDedup              // a repeated write is executed again (S8)
	SessionsNotInSnap    // snapshots do not contain the sessions (S8)
	AnswersNotInSnap     // snapshots do not contain the answers that are kept (S8)
	SessionsByLocalClock // sessions expire by each replica's own clock (S8)
	KeysByLocalClock     // keys expire by each replica's own clock
	TimeByWallClock      // the leader's wall clock is the store's time
	TimeMadeUp           // time that the store's time has missed is made up for
	GapsIgnored          // a session's writes enter the log in any order (S9)
	OverlayShared        // weak reads show other sessions' pending writes (S10)
	TokenIgnored         // a weak read does not wait for its token (S11)
	TokenWithoutView     // tokens are compared by index alone (S11)
	WeakBeforeDisk       // a weak write is acknowledged before it is on disk
	IntentForgotten      // an intent is dropped when it is forwarded, not when it is applied
	IntentWithGap        // a replica acknowledges a weak write although an earlier write is missing
	TruncatedForgotten   // weak writes that a new leader's log replaces are not forwarded again
	CarryForgotten       // a new segment of the log does not start with the pool and the intents
)

// Mutate returns the set of these mutations.
func Mutate(list ...Mutation) Mutations {
	var set Mutations
	for _, m := range list {
		set |= 1 << m
	}
	return set
}

// mutated reports whether mutation m is enabled.
func (c *Core) mutated(m Mutation) bool { return c.cfg.Mutations&(1<<m) != 0 }

// The rest of this file implements some of the mutations.

// vote returns the vote to record.
func (en *engine) vote(id uint64) uint64 {
	if en.mutated(VoteNotPersisted) {
		return 0
	}
	return id
}

// forgetLeft forgets the ids of former members.
func (st *state) forgetLeft() {
	if st.mutated(NumberUsedAgain) {
		st.members.gone = nil
	}
}

// clockOfKeys returns the time by which keys expire: that of the log.
func (st *state) clockOfKeys() int64 {
	if st.mutated(KeysByLocalClock) {
		return max(st.logTime, st.now.Wall) // the wall clocks of the machines differ
	}
	return st.logTime
}

// sessionsToSave returns the sessions for a snapshot.
func (st *state) sessionsToSave() *sessions {
	switch {
	case st.mutated(SessionsNotInSnap):
		return newSessions()
	case st.mutated(AnswersNotInSnap):
		t := newSessions()
		for s := st.sessions.first; s != nil; s = s.after {
			t.pushBack(&session{id: s.id, next: s.next, acked: s.acked, lastUsed: s.lastUsed})
			t.byID[s.id] = t.last
		}
		return t
	}
	return st.sessions
}

// forgetAppended removes appended operations from the pool.
func (en *engine) forgetAppended(entries []*pb.Entry) {
	var e entry
	for _, appended := range entries {
		if appended.GetType() != pb.EntryNormal || len(appended.GetData()) == 0 || e.decode(appended.GetData()) != nil {
			continue
		}
		for _, o := range e.ops {
			if r := en.witness.pool.get(opID{o.session, o.seq}); r != nil {
				en.witness.pool.remove(r)
			}
		}
	}
}

// proposed answers before the disk has a round.
func (l *leadership) proposed(r *round) {
	for _, o := range r.ops {
		switch {
		case o.from == 0:
		case o.weakAck && l.c.mutated(WeakBeforeDisk):
			l.c.weak.done(o.from, o.session, o.seq)
		case o.fast && l.c.mutated(SpecBeforeDisk):
			o.round = r
			l.speculated(o)
		}
	}
}

// tamper changes a message of the engine.
func (en *engine) tamper(m *pb.Message) {
	switch m.GetType() {
	case pb.MsgVote, pb.MsgPreVote:
		if en.mutated(VoteDuringLease) {
			m.Context = []byte("CampaignTransfer") // the engine keeps promises itself otherwise
		}
	case pb.MsgAppResp:
		if from := m.GetFrom(); en.mutated(CommitCountsLearner) && !m.GetReject() && slices.Contains(en.state.members.conf.GetLearners(), from) {
			for _, id := range en.state.members.voters() {
				if id != en.cfg.ID {
					m.From = &id
					return
				}
			}
		}
	}
}
