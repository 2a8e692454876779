package consensus

import (
	"fmt"

	"github.com/weirdb/weir/internal/kvd/wire"
)

// Replicas that have applied the same entries must have the same state. A bug, bad memory or
// two versions that disagree can make them differ, and then they give different answers. So
// each answer to a stamp has the digest of the replica's state at the last entry that it has
// applied, and the leader compares it with its own digest at that entry. A replica that differs
// from a majority stops. While there is no majority for either state, because other replicas do
// not answer, the leader serves no requests.

// digests are the digests of the state after each of the last applied entries.
type digests [digestsKept]struct{ index, digest, members uint64 }

// digestsKept is how many entries a replica may lag behind and still be compared.
const digestsKept = 4096

// digested records the digest of the state after the entry that was just applied.
func (st *state) digested() {
	if st.digests == nil {
		st.digests = new(digests)
	}
	d := &st.digests[st.applied%digestsKept]
	d.index, d.digest, d.members = st.applied, st.digest(), st.members.digest()
}

// digest returns the digest of the whole replicated state without the sessions.
func (st *state) digest() uint64 {
	d := st.machine.Digest()
	if d == 0 {
		return 0
	}
	return max(mix(mix(mix(d)+st.revision)+uint64(st.logTime))+st.format, 1)
}

// verdict is the result of comparing a replica's state with the leader's.
type verdict struct {
	index uint64
	same  bool
	what  string // what was compared
}

// compareState compares the digests of a replica's state and members at an entry with this
// leader's. A digest of 0 comes from a version that does not report one.
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

// judge stops replicas that differ from a majority at the entry at. A replica that was equal
// before that entry may differ now.
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
		c.fatal(fmt.Errorf("its %s differs from that of a majority of the replicas, at entry %d: it must not answer clients any more; replace this member (weir kv member replace)", what, at))
		return
	}
	for _, m := range c.state.members.list { // in a fixed order
		switch v, known := l.verdicts[m.ID]; {
		case !known || v.same:
		case same >= most:
			c.counters.Diverged++
			why := fmt.Sprintf("its %s at entry %d differs from that of leader %d and of a majority: it must not answer clients any more", v.what, v.index, c.cfg.ID)
			c.out.send(Addr(m.ID), wire.Message{Kind: wire.Refused, Code: wire.CodeDiverged, View: c.engine.term, Index: v.index, Data: []byte(why)})
			delete(l.verdicts, m.ID)
			l.changes.reject(m.ID, why)
		case !m.Learner:
			l.doubt = fmt.Sprintf("the %s of replica %d differs from that of replica %d at entry %d, and no majority says which is right: start the others, or replace one of them (weir kv member replace)", v.what, m.ID, c.cfg.ID, v.index)
		}
	}
}

// diverged stops this replica, because its leader reports that its state differs.
func (c *Core) diverged(from Addr, m *wire.Message) {
	if m.View == c.engine.term && uint64(from) == c.engine.leader && !c.mutated(DivergedGoesOn) {
		c.counters.Diverged++
		c.fatal(fmt.Errorf("%s; replace this member (weir kv member replace), and look for what differs: versions, memory, disks", m.Data))
	}
}
