package sim

import (
	"bytes"
	"io"
	"math"
	"time"

	"github.com/weirdb/weir/internal/kvd/consensus"
	"github.com/weirdb/weir/internal/kvd/wire"
)

// commits is the order of operations as applied by the replicas' machines: the first replica to
// apply a revision defines it, and all others must agree. Histories are checked against it.
type commits struct {
	at      []commit // by revision
	byOp    map[uint64]uint64
	moments []moment // by log index
	issued  map[entryID]issue
}

// entryID identifies an entry of a leader, which another leader's may replace.
type entryID struct{ index, term uint64 }

// issue is the store's time that a leader gave to an entry, and when.
type issue struct{ time, at int64 }

// moment is a log entry as it was applied: the revision and the log's clock after it.
type moment struct {
	known           bool
	index, revision uint64
	term            uint64
	time            int64  // 0: unknown to the first replica that applied it
	when            uint64 // the step at which it was first applied
	by              uint64
}

// commit is a write that a replica has applied.
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

// digester is a machine with a digest of its state.
type digester interface{ Digest() uint64 }

// machine is what a world needs of the replicated state.
type machine interface {
	consensus.Machine
	digester
}

// recordingMachine is a replica's machine. It records what is applied.
type recordingMachine struct {
	machine
	replica *replica
	last    uint64 // revision
	time    int64  // of the log, 0 until known
	result  []byte // of the last evaluation
}

// Evaluate implements consensus.Machine.
func (m *recordingMachine) Evaluate(now int64, writes [][]byte, command []byte) []byte {
	r := m.machine.Evaluate(now, writes, command)
	if m.result != nil && m.replica.random.chance(m.replica.w.Defects.StaleEvaluation) {
		return m.result
	}
	m.result = r
	return r
}

// Advance implements consensus.Machine.
func (m *recordingMachine) Advance(revision uint64, now int64) {
	m.time = max(m.time, now)
	m.machine.Advance(revision, now)
}

// Apply implements consensus.Machine.
func (m *recordingMachine) Apply(revision uint64, now int64, command []byte) []byte {
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

// spoil makes a state differ from those of the other replicas, as bad memory might.
func (m *recordingMachine) spoil(revision uint64, now int64) {
	if x := m.replica; x.spoilt {
		x.spoilt, x.odd = false, x.w.now
		x.w.spoilt = true
		x.w.note("the state of replica %d differs from now on", x.id)
		odd := wire.Command{Verb: wire.Set, Key: "odd", Value: []byte("one")}
		m.machine.Apply(revision, now, odd.Append(nil))
	}
}

// Restore implements consensus.Machine.
func (m *recordingMachine) Restore(r io.Reader) error {
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

// agree checks that a replica applies the same as the first one did.
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

// snapshotTaken checks that the snapshots of all replicas at an index are equal.
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

// observe processes the events of the core.
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
	r.w.nemesis.faultAfterEvent(r)
	if r.w.Hook != nil && !r.w.healing {
		r.w.Hook(r.w, r.id, e)
	}
}

// checkTimeRate checks that the store's time is no faster than the fastest monotonic clock,
// whatever the wall clocks do.
func (w *World) checkTimeRate(t int64) {
	switch {
	case t == 0:
	case w.beginning == 0:
		w.beginning, w.began = t, w.now
	case float64(t-w.beginning) > float64(w.now)*(1+w.profile.Drift)+float64(timeSlack):
		w.violate("time", "the store's time has moved by %d ms, true time by %d ms", (t-w.beginning)/1e6, w.now/1e6)
	}
}

// timeAdvances checks that the store's time has not stopped, in runs without crashes, hung disks
// and scenes, which cut off one leader after another: while a majority cannot write, it stands
// still.
func (ck *checker) timeAdvances() {
	x := ck.leader()
	if x == nil || ck.Hook != nil || ck.beginning == 0 || ck.Stats.Faults.Crashes+ck.Stats.Faults.HungDisks > 0 {
		return
	}
	if went := x.core.Brief().StoreTime - ck.beginning; float64(went) < float64(ck.now-ck.began)*(1-ck.profile.Drift)-float64(timeSlack) {
		ck.violate("time", "the store's time has moved by %d ms at replica %d, true time by %d ms", went/1e6, x.id, (ck.now-ck.began)/1e6)
	}
}

// lifetimes checks that the store's time does not advance between any two entries by more than
// the fastest monotonic clock may have between the times at which leaders wrote them, so that
// no key expires before the end of its time to live.
func (ck *checker) lifetimes() {
	rate := 1 + ck.profile.Drift
	least := math.Inf(1) // the least lead of the store's time over that clock at an entry so far
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

// clockSlack allows for rounding: clocks are read in nanoseconds, and a time is continued
// thousands of times.
const clockSlack = 50 * time.Microsecond

// timeSlack is what the store's time may lose by messages and elections, and by the delay of
// the first time.
const timeSlack = 2 * time.Second

// applied records the revision that an entry leads to, and checks that it is the same on every
// replica.
func (l *commits) applied(w *World, m moment) {
	if m.index > 1<<24 {
		w.violate("order", "replica %d applies entry %d", m.by, m.index)
		return
	}
	for uint64(len(l.moments)) <= m.index {
		l.moments = append(l.moments, moment{})
	}
	first := &l.moments[m.index]
	w.checkTimeRate(m.time)
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
