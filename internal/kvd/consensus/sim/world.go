package sim

import (
	"fmt"
	"io"

	"github.com/weirdb/weir/internal/kvd/consensus"
)

// World is a cluster with its disks, networks, clocks and clients, in one thread and in virtual
// time. The same seed gives the same run, byte for byte.
type World struct {
	Options
	Config     Config
	Stats      Stats
	Violations []Violation

	random   *random
	queue    eventQueue
	now      int64 // nanoseconds since the start
	steps    uint64
	net      *network
	nemesis  nemesis
	checker  checker
	replicas []*replica // by ascending id, former members included
	clients  []*client
	admin    *admin
	load     *workload
	lastAddr consensus.Addr
	over     bool // the clients are served; they issue nothing new
	healing  bool // no more faults
	spoilt   bool // the state of a replica has differed, and it may have answered from it
	profile  Profile

	history  []*operation
	sessions []*sessionRun
	log      commits
	leaders  map[uint64]uint64 // by term: the leader
	openers  map[uint64]uint64 // by view: its leader
	images   map[uint64]uint64 // by log index: hash of the snapshot
	// beginning is the store's time at the first entry that has one.
	beginning, began int64 // when that was
	sum              hash
}

// Violation is a violated guarantee.
type Violation struct {
	Check string // the check that found it
	At    int64  // virtual nanoseconds
	Text  string // what is wrong
}

func (v Violation) String() string { return fmt.Sprintf("%s: %s", v.Check, v.Text) }

// maxViolations is how many violations are kept.
const maxViolations = 8

// maxEvents limits a run in which messages cause ever more messages.
const maxEvents = 2_000_000

func (w *World) violate(check, format string, args ...any) {
	v := Violation{Check: check, At: w.now, Text: fmt.Sprintf(format, args...)}
	if len(w.Violations) < maxViolations {
		w.Violations = append(w.Violations, v)
	}
	w.trace("!! %v", v)
}

func (w *World) after(delay int64, do func()) { w.queue.push(w.now+max(delay, 1), do) }

// elections returns a multiple of the election timeout.
func (w *World) elections(n float64) int64 {
	return int64(n * float64(w.Config.Tick*int64(w.Config.Election)))
}

// nextStep numbers the events that clients see, all differently.
func (w *World) nextStep() uint64 {
	w.steps++
	return w.steps
}

// until runs events up to the time end, until goal, if any, is true. It reports whether goal
// was reached.
func (w *World) until(end int64, goal func() bool) bool {
	for !w.queue.empty() && w.queue.events[0].at <= end {
		if len(w.Violations) > 0 {
			return false
		}
		e := w.queue.pop()
		w.now = e.at
		w.Stats.Events++
		if w.Stats.Events > maxEvents {
			w.violate("runaway", "%d events", w.Stats.Events)
			return false
		}
		e.do()
		if goal != nil && goal() {
			return true
		}
	}
	w.now = max(w.now, end)
	return false
}

func (w *World) replica(id uint64) *replica {
	for _, r := range w.replicas {
		if r.id == id {
			return r
		}
	}
	return nil
}

func (w *World) tracing() bool { return w.Trace != nil }

// trace writes a line to the trace, if there is one.
func (w *World) trace(format string, args ...any) {
	if w.Trace == nil {
		return
	}
	if _, err := fmt.Fprintf(w.Trace, "%12.6f ms  %s\n", float64(w.now)/1e6, fmt.Sprintf(format, args...)); err != nil {
		w.Trace = nil // the reader has gone
	}
}

// note traces a rare event, such as a fault.
func (w *World) note(format string, args ...any) {
	if w.Trace != nil {
		w.trace("-- %s", fmt.Sprintf(format, args...))
	}
}

func (w *World) traceEvent(id uint64, e consensus.Event) {
	if w.Trace != nil {
		name := map[consensus.EventKind]string{
			consensus.EventElected: "is elected", consensus.EventOpened: "opens", consensus.EventVoted: "votes for", consensus.EventSpec: "speculates on",
			consensus.EventRecovered: "recovers", consensus.EventWeakDone: "acknowledges the weak",
			consensus.EventPooled: "sends its pool,", consensus.EventChanging: "changes members,",
		}[e.Kind]
		w.trace("   %d %s %d.%d in view %d, entry %d, yes %v", id, name, e.Session, e.Seq, e.View, e.Index, e.Yes)
	}
}

func (w *World) hashMessage(from, to uint64, b []byte) {
	w.sum.number(uint64(w.now))
	w.sum.number(from)
	w.sum.number(to)
	w.sum.bytes(b)
}

func (w *World) hashRecords(id uint64, records []consensus.Record) {
	w.sum.number(id)
	for _, r := range records {
		w.sum.number(uint64(r.Kind))
		w.sum.number(r.Term)
		w.sum.number(r.Index)
		w.sum.bytes(r.Data)
	}
}

func (w *World) hashOutcome(o *operation) {
	w.sum.number(o.id)
	w.sum.number(o.returned)
	w.sum.string(o.failure)
	w.sum.bytes(o.result)
}

// places returns the places of replicas and clients.
func (w *World) places() []place {
	var all []place
	for _, r := range w.replicas {
		all = append(all, r.place())
	}
	for _, c := range w.clients {
		all = append(all, c.place)
	}
	if w.admin != nil {
		all = append(all, w.admin.place)
	}
	return all
}

// Tail keeps the last lines of a trace.
type Tail struct {
	Lines int
	kept  []string
}

// Write implements io.Writer.
func (t *Tail) Write(b []byte) (int, error) {
	t.kept = append(t.kept, string(b))
	if len(t.kept) >= 2*t.Lines {
		t.kept = append(t.kept[:0], t.kept[len(t.kept)-t.Lines:]...)
	}
	return len(b), nil
}

// WriteTo implements io.WriterTo.
func (t *Tail) WriteTo(w io.Writer) (n int64, err error) {
	kept := t.kept
	if len(kept) > t.Lines {
		kept = kept[len(kept)-t.Lines:]
	}
	for _, line := range kept {
		m, err := io.WriteString(w, line)
		n += int64(m)
		if err != nil {
			return n, fmt.Errorf("write the trace: %w", err)
		}
	}
	return n, nil
}
