package consensus

import (
	"fmt"

	"go.etcd.io/raft/v3"
	"go.etcd.io/raft/v3/tracker"

	"github.com/weirdb/weir/internal/kvd/wire"
)

// candidate is a learner that was asked to become a voter. A cluster waits for its voters, so
// the learner must first show that it runs and has caught up: it must answer a stamp that was
// sent after the request, and have on its disk what was committed at that time. The number of
// entries that it lacks would be no measure: one entry may hold thousands of writes, and
// nothing is known of a replica that never ran.
type candidate struct {
	from    Addr
	request uint64
	change  Change
	asked   int64  // when the request came, in the leader's Clock.Mono
	commit  uint64 // the commit index at that time
	ticks   int    // that are left
}

// examinations is how long, in election timeouts, a learner has to show that it has caught up.
const examinations = 3

// examine starts to check whether the learner of a change has caught up.
func (ch *changes) examine(from Addr, m *wire.Message, g Change) {
	c := ch.c
	if d := ch.candidate; d != nil && d.change != g {
		c.refuse(from, m, wire.CodeInvalid, "another change is in flight; try again when it is done")
		return
	}
	ch.candidate = &candidate{
		from: from, request: m.Request, change: g, asked: c.now.Mono,
		commit: c.engine.node.BasicStatus().GetCommit(), ticks: examinations * c.cfg.ElectionTicks,
	}
	ch.lease.stamp()
}

// admit makes the learner a voter.
func (ch *changes) admit() {
	d := ch.candidate
	ch.candidate = nil
	if ch.underWay || ch.ask != nil || ch.c.state.members.joint() {
		ch.c.refuse(d.from, &wire.Message{Request: d.request}, wire.CodeInvalid, "another change is in flight; try again when it is done")
		return
	}
	if err := ch.c.state.members.check(d.change); err != nil {
		ch.c.refuse(d.from, &wire.Message{Request: d.request}, wire.CodeInvalid, err.Error())
		return
	}
	ch.propose(d.from, d.request, d.change)
}

// reject refuses to promote replica id, if it is the candidate.
func (ch *changes) reject(id uint64, why string) {
	if d := ch.candidate; d != nil && d.change.Member.ID == id {
		ch.candidate = nil
		ch.c.refuse(d.from, &wire.Message{Request: d.request}, wire.CodeInvalid, fmt.Sprintf("replica %d: %s", id, why))
	}
}

// check runs in each tick. It admits a candidate that has caught up and refuses one that takes
// too long.
func (d *candidate) check(l *leadership) {
	id := d.change.Member.ID
	holds, followed := uint64(0), false
	l.c.engine.node.WithProgress(func(peer uint64, _ raft.ProgressType, p tracker.Progress) {
		if peer == id {
			holds, followed = p.Match, true
		}
	})
	answered, known := l.lease.echoes[id]
	answers := known && answered >= d.asked
	if answers && followed && holds >= d.commit {
		l.changes.admit()
		return
	}
	if d.ticks--; d.ticks > 0 {
		return
	}
	l.changes.candidate = nil
	why := fmt.Sprintf("replica %d has the log up to entry %d of %d; try again when it has caught up", id, holds, d.commit)
	if !answers {
		why = fmt.Sprintf("replica %d does not answer: it must run and be reachable before it may vote (weir kv serve --id %d --join); try again then", id, id)
	}
	l.c.refuse(d.from, &wire.Message{Request: d.request}, wire.CodeInvalid, why)
}
