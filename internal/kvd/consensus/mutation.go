package consensus

import (
	"slices"

	pb "go.etcd.io/raft/v3/raftpb"
)

// Mutations is a set of deliberate bugs. The simulator switches each of them on
// and must notice; no program sets any, and no flag or file can. What each one
// breaks and which check catches it stands in docs/kv-simulation.md.
type Mutations uint64

// Mutation is one deliberate bug.
type Mutation uint8

// Mutations of the fast path.
const (
	VoteInAnyView        Mutation = iota // a witness does not look at the view (S1)
	VoteOnConflict                       // a witness votes for what does not commute with its pool (S1)
	VoteBeforeDisk                       // a vote leaves before its record is durable (S2)
	SpecBeforeDisk                       // the leader tells a result before its entry is durable (S2)
	SpecOverUncommitted                  // the leader does not look at uncommitted entries before it tells a result (S3)
	SpecWithoutBundle                    // the leader computes a result on the applied state alone (S3)
	SpecWhileChanging                    // the fast path stays open during a change of the members
	PriorIgnored                         // pools need not hold the session's earlier strong write
	LateRecordKept                       // a record of an applied write comes back into the pool (S7)
	PoolForgetsAtAppend                  // records leave the pool when the entry is appended, not when it is applied (S7)
	PoolForgetsAtElected                 // a witness drops its records when it is asked for them
	ViewNotPersisted                     // a view is on disk only when it is open: a restarted witness votes in an old one (S5)
	RecoverTooLittle                     // one pool too many must hold what is recovered (S5)
	RecoverTooMuch                       // one pool too few must hold what is recovered (S5)
	RecoverFromMinority                  // one pool too few is asked for (S5)
	RecoverWithoutBundle                 // recovery leaves out the weak writes before an operation (S9)
	RecoverInAnyOrder                    // recovery does not keep the order of a session
	OpenWithoutRecovery                  // a new leader opens without asking for pools (S5)

	// Mutations of leaders, leases and reads.

	ServeBeforeOpen       // a new leader serves before its first entry is committed (S6)
	ReadBeforeOpen        // a new leader answers reads before that (S6)
	ReadUncommitted       // a strong read does not wait for uncommitted writes that completed on votes (S12)
	ReadUnapplied         // a strong read does not wait for what is committed and not applied (S12)
	ReadWithoutLease      // a leader answers reads without knowing that it still leads (S12)
	LeaseFromAnswer       // the lease counts from the answer instead of the question (S12)
	VoteDuringLease       // a voter forgets its promise to the leader (S12)
	RestartForgetsLease   // a restarted voter does not keep silent (S12)
	TransferKeepsLease    // a leader that hands over goes on reading by its lease (S12)
	LeaseBackTooEarly     // it has its lease again with any answer of the replica that was to take over (S12)
	OldRequestTaken       // a replica takes over though it has answered a later stamp (S12)
	PromiseOwnTimeout     // a voter promises what a leader asks for, and keeps its own election timeout (S12)
	RestartForgetsPromise // a restarted voter keeps silent for its own election timeout only (S12)
	HungLeaderStays       // a leader whose disk hangs goes on sending heartbeats
	VoteNotPersisted      // the vote is not on disk (S13)
	VoteNotAwaited        // answers do not wait for the term and vote they are given in to be on disk (S13)
	SaidOnlyOnce          // what is left out of the engine's messages is left out for ever
	CommitCountsLearner   // a learner's answer counts like a voter's
	NumberUsedAgain       // the number of a member that has left is given again
	RaiseTooEarly         // a leader writes a newer format though a member has not said that it knows it
	DigestIgnored         // a leader does not look at the digests of the others' states
	DivergedGoesOn        // a replica goes on though it was told that its state differs
	WaitEnds              // a read that waited for too long is answered anyway (S14)

	// Mutations of sessions and weak operations.

	NoDedup              // a write that is sent again is executed again (S8)
	SessionsNotInSnap    // snapshots leave the sessions out (S8)
	AnswersNotInSnap     // snapshots leave the kept answers out (S8)
	SessionsByLocalClock // sessions expire by each replica's own clock (S8)
	KeysByLocalClock     // keys expire by each replica's own clock
	TimeByWallClock      // the leader's wall clock is the store's time
	TimeMadeUp           // what the store's time has lost is made up for
	GapsIgnored          // a session's writes enter the log in any order (S9)
	OverlayShared        // weak reads show other sessions' pending writes (S10)
	TokenIgnored         // a weak read does not wait for its token (S11)
	TokenWithoutView     // tokens are compared by index alone (S11)
	WeakBeforeDisk       // a weak write is acknowledged before it is on disk
	IntentForgotten      // an intent is dropped when it is passed on, not when it is applied
	IntentWithGap        // a replica acknowledges a weak write though an earlier write is missing
	TruncatedForgotten   // weak writes that a new leader's log replaces are not passed on again
	CarryForgotten       // a new segment of the log does not begin with the pool and the intents
)

// Mutate returns the set of the given mutations.
func Mutate(list ...Mutation) Mutations {
	var set Mutations
	for _, m := range list {
		set |= 1 << m
	}
	return set
}

// mutated reports that the core has the deliberate bug m.
func (c *Core) mutated(m Mutation) bool { return c.cfg.Mutations&(1<<m) != 0 }

// Below is what some of the bugs do.

// vote is the vote that goes to the disk.
func (en *engine) vote(id uint64) uint64 {
	if en.mutated(VoteNotPersisted) {
		return 0
	}
	return id
}

// forgetLeft forgets whose numbers must not be used again.
func (st *state) forgetLeft() {
	if st.mutated(NumberUsedAgain) {
		st.members.gone = nil
	}
}

// clockOfKeys is the clock by which keys expire: that of the log.
func (st *state) clockOfKeys() int64 {
	if st.mutated(KeysByLocalClock) {
		return max(st.logTime, st.now.Wall) // every machine's is off by something else
	}
	return st.logTime
}

// sessionsToSave is the table that goes into a snapshot.
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

// forgetAppended drops from the pool what has been appended to the log.
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

// proposed answers too early what should wait for the disk.
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
			m.Context = []byte("CampaignTransfer") // the engine, too, keeps promises
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
