package sim

import (
	"bytes"
	"fmt"
	"time"

	"github.com/weirdb/weir/internal/kvd/wire"
)

// checker checks the history of a world for violations.
type checker struct{ *World }

// run checks the history of a completed run.
func (ck *checker) run() {
	for _, check := range []func(){ck.outcomes, ck.sessionOrder, ck.answers, ck.sessionGuarantees, ck.realTime, ck.registers} {
		check()
		if len(ck.Violations) > 0 {
			return
		}
	}
}

// outcomes checks that acknowledged writes are in the log and refused ones are not. (Duplicates
// are found when entries are applied.)
func (ck *checker) outcomes() {
	for _, o := range ck.history {
		if !o.write {
			continue
		}
		at, logged := ck.log.byOp[o.id]
		told := o.revision
		o.revision = at
		switch {
		case o.done() && !logged && (!o.weak || !ck.mayBeLost(o)):
			ck.violate("lost", "acknowledged and in no log: %v", o)
		case o.done() && logged && told != 0 && told != at:
			ck.violate("answer", "told of revision %d: %v", told, o)
		case o.refused && logged:
			ck.violate("refused", "refused and yet executed at revision %d: %v", at, o)
		case o.returned == 0 && !ck.sessions[o.session].crashed:
			ck.violate("liveness", "never answered: %v", o)
		}
	}
}

// mayBeLost reports whether an acknowledged weak write may be missing: its client is gone, and
// so is a disk that may have had it, or nothing of its session reached a majority before the
// session expired.
func (ck *checker) mayBeLost(o *operation) bool {
	gone := false
	for _, r := range ck.replicas {
		gone = gone || r.gone
	}
	s := ck.sessions[o.session]
	return s.crashed && gone || s.lapsed || ck.Config.SessionIdle < time.Minute
}

// sessionOrder checks that the writes of each session are in the log in the order in which they
// were issued (monotonic writes; C1 and C2 rely on it).
func (ck *checker) sessionOrder() {
	last := make([]*operation, len(ck.sessions))
	for _, o := range ck.history {
		if !o.write || o.revision == 0 {
			continue
		}
		if before := last[o.session]; before != nil && before.revision > o.revision {
			ck.violate("session order", "in the log the other way round: %v; %v", before, o)
			return
		}
		last[o.session] = o
	}
}

// answers replays the log on an oracle and compares every answer: a write's with that of the
// oracle at the same revision, a read's with the state after the entry that the answer names,
// overlaid with the pending weak writes of its own session only (C3).
func (ck *checker) answers() {
	reads := map[uint64][]*operation{}
	writes := map[uint64]*operation{}
	for _, o := range ck.history {
		switch {
		case o.write && o.revision != 0:
			writes[o.revision] = o
		case !o.write && !o.wait && o.done():
			reads[o.index] = append(reads[o.index], o)
		}
	}
	truth := newOracle()
	revision := uint64(0)
	for _, m := range ck.log.moments {
		if !m.known {
			continue
		}
		m.time = max(m.time, truth.Clock)
		truth.advance(m.time)
		for revision < m.revision {
			revision++
			ck.replay(truth, revision, writes[revision])
		}
		for _, o := range reads[m.index] {
			ck.compareRead(truth, o, m)
		}
		delete(reads, m.index)
		if len(ck.Violations) > 0 {
			return
		}
	}
	for _, o := range ck.history {
		if _, left := reads[o.index]; left && !o.write && !o.wait && o.done() {
			ck.violate("answer", "answered at entry %d, which no replica applied: %v", o.index, o)
			return
		}
	}
}

// replay applies the operation of a revision and compares its answer.
func (ck *checker) replay(truth *oracle, revision uint64, o *operation) {
	if revision >= uint64(len(ck.log.at)) || !ck.log.at[revision].known {
		return // sessions were granted at this revision
	}
	c := &ck.log.at[revision]
	want := truth.Apply(revision, c.now, c.command)
	if !bytes.Equal(want, c.result) {
		ck.violate("machine", "revision %d, %s: the store answers %s, the oracle %s", revision, describeBytes(c.command), describeResult(c.result), describeResult(want))
		return
	}
	if o == nil || o.weak || !o.done() {
		return
	}
	ck.Stats.Checked++
	if !bytes.Equal(want, o.result) {
		ck.violate("answer", "the log's answer is %s: %v", describeResult(want), o)
	}
}

func describeBytes(command []byte) string {
	c, err := wire.ParseCommand(command)
	if err != nil {
		return fmt.Sprintf("%x", command)
	}
	return describeCommand(&c)
}

// compareRead compares a read's answer with the state at its position.
func (ck *checker) compareRead(truth *oracle, o *operation, m moment) {
	o.revision = m.revision
	ck.Stats.Checked++
	if m.when > o.returned {
		ck.violate("uncommitted", "answered at entry %d before it was applied anywhere: %v", m.index, o)
		return
	}
	var own [][]byte
	if o.weak {
		own = ck.pending(o, m.revision)
	}
	want := truth.Evaluate(m.time, own, o.bytes)
	if !bytes.Equal(want, o.result) {
		ck.violate("answer", "the state after entry %d gives %s (%d own pending writes): %v", m.index, describeResult(want), len(own), o)
	}
}

// pending returns the weak writes that the session of o issued before it and that are not in
// the log up to revision. Writes that failed later, with their session, are included.
func (ck *checker) pending(o *operation, revision uint64) (own [][]byte) {
	for _, x := range ck.history {
		if x.session == o.session && x.order < o.order && x.write && x.weak && (x.revision == 0 || x.revision > revision) && (x.failure == "" || x.returned > o.returned) {
			own = append(own, x.bytes)
		}
	}
	return own
}

// sessionGuarantees checks the four guarantees of a session by positions: reads do not go back,
// they see the session's own strong writes, and they precede the writes that follow them. (The
// session's weak writes are compared by answers.)
func (ck *checker) sessionGuarantees() {
	for i, o := range ck.history {
		if o.wait {
			ck.wait(o)
			continue
		}
		if !o.done() && !o.write {
			continue
		}
		for _, x := range ck.history[:i] {
			if x.session != o.session || !x.done() || x.returned > o.called || x.wait {
				continue
			}
			switch {
			case !o.write && !x.write && o.revision < x.revision:
				ck.violate("monotonic reads", "%v; then %v", x, o)
			case !o.write && x.write && !x.weak && o.revision < x.revision && o.foot.Overlaps(&x.foot):
				ck.violate("read your writes", "%v; then %v", x, o)
			case o.write && !x.write && o.revision != 0 && o.revision <= x.revision:
				ck.violate("writes follow reads", "%v; then %v", x, o)
			default:
				continue
			}
			return
		}
	}
}

// wait checks that everything before a wait was applied when it ended.
func (ck *checker) wait(o *operation) {
	if !o.done() {
		return
	}
	for _, x := range ck.history {
		if x.session != o.session || !x.write || x.order >= o.order || x.failure != "" {
			continue
		}
		if x.revision == 0 || ck.log.at[x.revision].when > o.returned {
			ck.violate("wait", "%v returned before %v was applied", o, x)
			return
		}
	}
}
