package consensus

import (
	"fmt"

	"go.etcd.io/raft/v3"
	"go.etcd.io/raft/v3/tracker"

	"github.com/weirdb/weir/internal/kvd/wire"
)

// candidate is a learner that shall vote. A cluster waits for its voters, so it
// must show that it runs and has caught up: it answers a stamp that was sent after
// it was asked for, and holds on its disk what was committed then. Counting by how
// many entries it is behind would not do: one entry may be a round of thousands of
// writes, and of a replica that never ran nothing is known.
type candidate struct {
	from    Addr
	request uint64
	change  Change
	asked   int64  // Clock.Mono of this leader
	commit  uint64 // what was committed then
	ticks   int    // that it may still take
}

// examinations is how long, in election timeouts, a learner may take to show that
// it has caught up.
const examinations = 3

// examine begins to look whether the learner of a change has caught up.
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

// admit lets the learner vote.
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

// rejects refuses the learner that shall vote, if it is this one.
func (ch *changes) rejects(id uint64, why string) {
	if d := ch.candidate; d != nil && d.change.Member.ID == id {
		ch.candidate = nil
		ch.c.refuse(d.from, &wire.Message{Request: d.request}, wire.CodeInvalid, fmt.Sprintf("replica %d: %s", id, why))
	}
}

// look is called in each tick: it admits a candidate that has shown what it must,
// and refuses one that takes too long.
func (d *candidate) look(l *leadership) {
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
		why = fmt.Sprintf("replica %d does not answer: it must run, and be reached, before it may vote (weir kv serve --id %d --join); try again then", id, id)
	}
	l.c.refuse(d.from, &wire.Message{Request: d.request}, wire.CodeInvalid, why)
}
