package consensus

import (
	"fmt"

	"github.com/weirdb/weir/internal/kvd/wire"
)

// Replicas that apply the same entries hold the same state, unless a mistake, a
// broken memory or two versions that disagree make them differ; and then each
// answers something else. So with each answer to a stamp a replica tells the digest
// of its state at the entry that it has applied last, and the leader compares it with
// its own at that entry. Who differs from a majority stops. Where no majority says who
// is right, because the others do not answer, the leader serves nobody until one does.

// digests is the state at the last entries that were applied.
type digests [digestsKept]struct{ index, digest, members uint64 }

// digestsKept is by how many entries a replica may lag behind to be compared.
const digestsKept = 4096

// digested remembers the state after the entry that was just applied.
func (st *state) digested() {
	if st.digests == nil {
		st.digests = new(digests)
	}
	d := &st.digests[st.applied%digestsKept]
	d.index, d.digest, d.members = st.applied, st.digest(), st.members.digest()
}

// digest is that of the whole replicated state but for the sessions.
func (st *state) digest() uint64 {
	d := st.machine.Digest()
	if d == 0 {
		return 0
	}
	return max(mix(mix(mix(d)+st.revision)+uint64(st.logTime))+st.format, 1)
}

// verdict is how a replica's state compared with the leader's.
type verdict struct {
	index uint64
	same  bool
	what  string // that was compared
}

// compareState looks at the digests of the state and of the members that a replica says it
// has at an entry, 0 if it is of a version that tells none.
func (l *leadership) compareState(from, index, digest, members uint64) {
	c := l.c
	if c.state.digests == nil || c.mutated(DigestIgnored) {
		return
	}
	own := c.state.digests[index%digestsKept]
	if own.index != index {
		return // it is ahead, or far behind
	}
	v := verdict{index, true, "state"}
	if members != 0 && own.members != 0 && own.members != members {
		v.same, v.what = false, "list of members"
	} else if digest == 0 || own.digest == 0 {
		return
	} else {
		v.same = own.digest == digest
	}
	l.verdicts[from] = v
	at := uint64(0)
	for _, v := range l.verdicts {
		if !v.same {
			at = max(at, v.index)
		}
	}
	l.doubt = ""
	if at > 0 {
		l.judge(at)
	}
}

// judge stops who differs from a majority, as of the entry at: who was the same
// before it may not be any more.
func (l *leadership) judge(at uint64) {
	c := l.c
	same, other, what := 0, 0, ""
	for _, id := range c.state.members.voters() {
		v, known := l.verdicts[id]
		switch {
		case id == c.cfg.ID || known && v.same && v.index >= at:
			same++
		case known && !v.same:
			other, what = other+1, v.what
		}
	}
	most := majority(len(c.state.members.voters()))
	if other >= most {
		c.counters.Diverged++
		c.fatal(fmt.Errorf("its %s differs from that of a majority of the replicas, at entry %d: it answers no more; replace this member (weir kv member replace)", what, at))
		return
	}
	for _, m := range c.state.members.list { // a fixed order
		switch v, known := l.verdicts[m.ID]; {
		case !known || v.same:
		case same >= most:
			c.counters.Diverged++
			why := fmt.Sprintf("its %s at entry %d differs from that of leader %d and of a majority: it must not answer any more", v.what, v.index, c.cfg.ID)
			c.out.send(Addr(m.ID), wire.Message{Kind: wire.Refused, Code: wire.CodeDiverged, View: c.engine.term, Index: v.index, Data: []byte(why)})
			delete(l.verdicts, m.ID)
			l.changes.rejects(m.ID, why)
		case !m.Learner:
			l.doubt = fmt.Sprintf("the %s of replica %d differs from that of replica %d at entry %d, and no majority says which is right: start the others, or replace one of them (weir kv member replace)", v.what, m.ID, c.cfg.ID, v.index)
		}
	}
}

// diverged hears from the leader that this replica's state is not that of the others.
func (c *Core) diverged(from Addr, m *wire.Message) {
	if m.View == c.engine.term && uint64(from) == c.engine.leader && !c.mutated(DivergedGoesOn) {
		c.counters.Diverged++
		c.fatal(fmt.Errorf("%s; replace this member (weir kv member replace), and look for what differs: versions, memory, disks", m.Data))
	}
}
