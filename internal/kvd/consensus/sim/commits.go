package sim

import (
	"bytes"
	"io"
	"math"
	"time"

	"github.com/weirdb/weir/internal/kvd/consensus"
	"github.com/weirdb/weir/internal/kvd/wire"
)

// commits is the one order of operations as the replicas' machines show it: the
// first replica to apply a revision says what stands there, and every other must
// agree. It is the ground truth that the histories are checked against.
type commits struct {
	at      []commit // by revision
	byOp    map[uint64]uint64
	moments []moment // by log index
	issued  map[entryID]issue
}

// entryID is an entry of a leader, which may be replaced by that of another.
type entryID struct{ index, term uint64 }

// issue is the store's time that a leader gave to an entry, and when it did.
type issue struct{ time, at int64 }

// moment is a log entry as it was applied: how far the revisions and the log's
// clock were after it.
type moment struct {
	known           bool
	index, revision uint64
	term            uint64
	time            int64  // 0: who applied it first did not know
	when            uint64 // step at which it was first applied
	by              uint64
}

// commit is a write that was applied somewhere.
type commit struct {
	known   bool
	now     int64
	command []byte
	result  []byte
	digest  uint64
	op      uint64 // id of the operation
	by      uint64
	when    uint64 // step
}

// digester is a machine that can hash its state.
type digester interface{ Digest() uint64 }

// machine is what a world needs of the replicated state.
type machine interface {
	consensus.Machine
	digester
}

// watched is a replica's machine; it reports what is applied.
type watched struct {
	machine
	replica *replica
	last    uint64 // revision
	time    int64  // of the log, 0 until it is told
	result  []byte // of the last evaluation
}

// Evaluate implements consensus.Machine.
func (m *watched) Evaluate(now int64, writes [][]byte, command []byte) []byte {
	r := m.machine.Evaluate(now, writes, command)
	if m.result != nil && m.replica.random.chance(m.replica.w.Defects.StaleEvaluation) {
		return m.result
	}
	m.result = r
	return r
}

// Advance implements consensus.Machine.
func (m *watched) Advance(revision uint64, now int64) {
	m.time = max(m.time, now)
	m.machine.Advance(revision, now)
}

// Apply implements consensus.Machine.
func (m *watched) Apply(revision uint64, now int64, command []byte) []byte {
	w := m.replica.w
	m.spoil(revision, now)
	result := m.machine.Apply(revision, now, command)
	if m.replica.odd != 0 {
		return result
	}
	if revision <= m.last {
		w.violate("order", "replica %d applies revision %d after %d", m.replica.id, revision, m.last)
	}
	m.last = revision
	w.log.apply(w, m.replica.id, revision, commit{now: now, command: command, result: result, digest: m.Digest()})
	return result
}

// spoil makes a state differ from that of the others, as broken memory might.
func (m *watched) spoil(revision uint64, now int64) {
	if x := m.replica; x.spoilt {
		x.spoilt, x.odd = false, x.w.now
		x.w.spoilt = true
		x.w.note("the state of replica %d differs from now on", x.id)
		odd := wire.Command{Verb: wire.Set, Key: "odd", Value: []byte("one")}
		m.machine.Apply(revision, now, odd.Append(nil))
	}
}

// Restore implements consensus.Machine.
func (m *watched) Restore(r io.Reader) error {
	m.last, m.time = 0, 0
	return m.machine.Restore(r)
}

func (l *commits) apply(w *World, by, revision uint64, c commit) {
	if revision > 1<<24 {
		w.violate("order", "replica %d applies revision %d", by, revision)
		return
	}
	for uint64(len(l.at)) <= revision {
		l.at = append(l.at, commit{})
	}
	first := &l.at[revision]
	if first.known {
		l.agree(w, by, revision, first, &c)
		return
	}
	*first = c
	first.known, first.by, first.when = true, by, w.nextStep()
	first.command = append([]byte(nil), c.command...)
	command, err := wire.ParseCommand(c.command)
	if err != nil || !command.Verb.IsWrite() {
		w.violate("order", "revision %d is no write: %x", revision, c.command)
		return
	}
	first.op = command.Limit
	if earlier, twice := l.byOp[first.op]; twice {
		w.violate("exactly once", "operation #%d is executed at revision %d and again at %d", first.op, earlier, revision)
		return
	}
	l.byOp[first.op] = revision
	if w.tracing() {
		w.trace("commit %d = #%d %s -> %s, first by %d", revision, first.op, describeCommand(&command), describeResult(c.result), by)
	}
}

// agree checks that a replica applies what the first one did.
func (l *commits) agree(w *World, by, revision uint64, first, c *commit) {
	switch {
	case !bytes.Equal(first.command, c.command):
		w.violate("one order", "revision %d: replica %d applied #%d, replica %d another command", revision, first.by, first.op, by)
	case first.now != c.now:
		w.violate("one order", "revision %d: replica %d applied it at %d, replica %d at %d", revision, first.by, first.now, by, c.now)
	case !bytes.Equal(first.result, c.result):
		w.violate("determinism", "revision %d: replica %d answers %s, replica %d %s", revision, first.by, describeResult(first.result), by, describeResult(c.result))
	case first.digest != c.digest:
		w.violate("determinism", "revision %d: the states of replicas %d and %d differ", revision, first.by, by)
	}
}

// snapshotTaken checks that all replicas' snapshots at one index are the same.
func (w *World) snapshotTaken(by, index uint64, data []byte) {
	if w.replica(by).odd != 0 {
		return
	}
	h := newHash()
	h.bytes(data)
	if other, ok := w.images[index]; ok && other != h.sum {
		w.violate("snapshot", "replica %d's snapshot at entry %d differs from another replica's", by, index)
		return
	}
	w.images[index] = h.sum
}

// observe is told by the core what matters for safety.
func (r *replica) observe(e consensus.Event) {
	if e.Kind == consensus.EventApplied {
		r.w.log.applied(r.w, moment{known: true, index: e.Index, term: e.View, revision: r.core.Revision(), time: r.machine.time, by: r.id})
		return
	}
	if e.Kind == consensus.EventPlaced {
		r.w.log.issued[entryID{e.Index, e.View}] = issue{e.Time, r.w.now}
		return
	}
	r.w.traceEvent(r.id, e)
	r.w.nemesis.ambush(r)
	if r.w.Hook != nil && !r.w.healing {
		r.w.Hook(r.w, r.id, e)
	}
}

// timeGoes checks that the store's time is no faster than the fastest monotonic
// clock, whatever wall clocks do.
func (w *World) timeGoes(t int64) {
	switch {
	case t == 0:
	case w.beginning == 0:
		w.beginning, w.began = t, w.now
	case float64(t-w.beginning) > float64(w.now)*(1+w.profile.Drift)+float64(timeSlack):
		w.violate("time", "the store's time has moved by %d ms, true time by %d ms", (t-w.beginning)/1e6, w.now/1e6)
	}
}

// timeStands checks that the store's time has not stopped, where nothing crashed, and no
// disk hung, that it could have stood still for: while a majority cannot write, it does.
func (ck *checker) timeStands() {
	x := ck.leader()
	if x == nil || ck.beginning == 0 || ck.Stats.Faults.Crashes+ck.Stats.Faults.HungDisks > 0 {
		return
	}
	if went := x.core.Brief().StoreTime - ck.beginning; float64(went) < float64(ck.now-ck.began)*(1-ck.profile.Drift)-float64(timeSlack) {
		ck.violate("time", "the store's time has moved by %d ms at replica %d, true time by %d ms", went/1e6, x.id, (ck.now-ck.began)/1e6)
	}
}

// lifetimes checks that the store's time does not move by more, from any entry to any
// later one, than the fastest monotonic clock may have between the moments at which
// leaders wrote the two: so no key ends before it has lived for its time to live.
func (ck *checker) lifetimes() {
	rate := 1 + ck.profile.Drift
	least := math.Inf(1) // how far the store's time was ahead of that clock, at the entry where it was least so
	var from issue
	for _, m := range ck.log.moments {
		i, timed := ck.log.issued[entryID{m.index, m.term}]
		if !m.known || !timed {
			continue
		}
		ahead := float64(i.time) - rate*float64(i.at)
		if ahead > least+float64(clockSlack) {
			ck.violate("time", "the store's time has moved by %d us from an entry to entry %d, true time by %d us", (i.time-from.time)/1e3, m.index, (i.at-from.at)/1e3)
			return
		}
		if ahead < least {
			least, from = ahead, i
		}
	}
}

// clockSlack is what rounding may bring: clocks here are read to the nanosecond, and a
// time is carried on thousands of times.
const clockSlack = 50 * time.Microsecond

// timeSlack is what messages and elections may take from the store's time, and what
// the first time may be late.
const timeSlack = 2 * time.Second

// applied notes how far an entry leads, and checks that it leads every replica
// there.
func (l *commits) applied(w *World, m moment) {
	if m.index > 1<<24 {
		w.violate("order", "replica %d applies entry %d", m.by, m.index)
		return
	}
	for uint64(len(l.moments)) <= m.index {
		l.moments = append(l.moments, moment{})
	}
	first := &l.moments[m.index]
	w.timeGoes(m.time)
	switch {
	case !first.known:
		*first = m
		first.when = w.nextStep()
	case first.revision != m.revision:
		w.violate("one order", "entry %d leads replica %d to revision %d, replica %d to %d", m.index, first.by, first.revision, m.by, m.revision)
	case first.time == 0:
		first.time = m.time
	case m.time != 0 && first.time != m.time:
		w.violate("one order", "after entry %d the log's clock is %d at replica %d, %d at %d", m.index, first.time, first.by, m.time, m.by)
	}
}
