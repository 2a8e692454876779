package consensus

import (
	"testing"
	"time"
)

// timeline is what the log's entries say of the store's time, and when leaders wrote
// them: of those that were committed, in their order.
type timeline struct {
	w       *timed
	written map[entryAt]moment
	entries []moment
	last    uint64
}

type entryAt struct{ index, term uint64 }

// moment is an entry's time, and the true time when it was written.
type moment struct{ time, at int64 }

func newTimeline(t *testing.T) *timeline {
	t.Helper()
	w := newTimed(t, 150*time.Microsecond, 200*time.Microsecond)
	l := &timeline{w: w, written: map[entryAt]moment{}}
	w.late = func() time.Duration { return time.Duration(w.random.ExpFloat64() * float64(4*time.Millisecond)) }
	for _, n := range w.nodes {
		n.core.cfg.Trace = func(e Event) {
			switch at := (entryAt{e.Index, e.View}); e.Kind {
			case EventPlaced:
				l.written[at] = moment{e.Time, w.now}
			case EventApplied:
				if m, ok := l.written[at]; ok && e.Index > l.last {
					l.last, l.entries = e.Index, append(l.entries, m)
				}
			}
		}
		// Each writes, as leader, something every few milliseconds.
		var write func()
		write = func() {
			w.bring(n, func(at Clock) {
				n.core.now = at
				if l := n.core.lead; l != nil && l.open && l.refused == nil {
					l.propose(nil)
				}
			})
			w.after(time.Duration(w.random.Int64N(int64(20*time.Millisecond))), write)
		}
		w.after(0, write)
	}
	return l
}

// early is by how much something that was written at an entry would end too early at a
// later one, at most.
func (l *timeline) early() (most time.Duration) {
	least := l.entries[0].time - l.entries[0].at
	for _, m := range l.entries {
		most = max(most, time.Duration(m.time-m.at-least))
		least = min(least, m.time-m.at)
	}
	return most
}

// late is by how much the store's time fell back behind true time.
func (l *timeline) late() time.Duration {
	first, last := l.entries[0], l.entries[len(l.entries)-1]
	return time.Duration(last.at - first.at - (last.time - first.time))
}

// handOver has the leader of the moment hand over to the next replica.
func (l *timeline) handOver() {
	n := l.w.leader()
	l.w.bring(n, func(Clock) { n.core.engine.node.TransferLeader(n.core.cfg.ID%3 + 1) })
}

// Nothing ends before its time to live is over, and not much later: under any leader, however
// late messages are, and where one clock of three is wrong.
func TestStoreTimeKeepsTimesToLive(t *testing.T) {
	const ms = time.Millisecond
	ends := func(*timeline, int) {}
	for _, c := range []struct {
		name    string
		leader  float64                  // rate of the first leader's clock
		other   float64                  // rate of that of the next one
		step    func(l *timeline, i int) // between phases of 250 ms
		early   time.Duration
		late    time.Duration // of 5 s
		leaders int           // at least
	}{
		{"one leader", 1, 1, ends, 0, 60 * ms, 1},
		{"leaders hand over", 1, 1, func(l *timeline, i int) {
			if i%2 == 0 {
				l.handOver()
			}
		}, 0, 300 * ms, 5},
		{"leaders are cut off", 1, 1, func(l *timeline, i int) {
			if i%8 == 0 {
				l.w.leader().cut = true
			} else if i%8 == 6 {
				for _, n := range l.w.nodes {
					n.cut = false
				}
			}
		}, 0, 500 * ms, 3},
		{"the leader's clock is fast", 2, 1, ends, 100 * ms, 0, 1},
		{"the leader's clock is a little fast", 1.001, 1, ends, 6 * ms, 60 * ms, 1},
		{"another clock is fast", 1, 2, ends, 0, 60 * ms, 1},
		{"one with a fast clock comes to lead", 1, 2, func(l *timeline, i int) {
			if i == 5 {
				l.handOver()
			}
		}, 100 * ms, 60 * ms, 2},
		{"the leader's clock is slow", 0.95, 1, ends, 0, 320 * ms, 1},
		{"the leader's clock is too slow", 0.5, 1, ends, 100 * ms, time.Second, 1},
		{"the leader's clock stands", 0, 1, ends, 100 * ms, time.Second, 1},
		{"another clock stands", 1, 0, ends, 0, 60 * ms, 1},
	} {
		t.Run(c.name, func(t *testing.T) {
			l := newTimeline(t)
			w := l.w
			w.run(int64(1500 * ms))
			first := w.leader()
			w.runsAt(first, c.leader)
			w.runsAt(w.nodes[first.core.cfg.ID%3], c.other)
			begin := w.now
			terms := map[uint64]bool{}
			for i := range 20 {
				w.run(begin + int64(i+1)*int64(250*ms))
				c.step(l, i)
				for _, n := range w.nodes {
					if n.core.lead != nil && n.core.lead.open {
						terms[n.core.engine.term] = true
					}
				}
			}
			if len(l.entries) < 300 || len(terms) < c.leaders {
				t.Fatalf("%d entries under %d leaders", len(l.entries), len(terms))
			}
			t.Logf("early %v, late %v, %d leaders", l.early(), l.late(), len(terms))
			if early := l.early(); early > c.early {
				t.Errorf("something ends %v too early, want %v at most", early, c.early)
			}
			if late := l.late(); late > c.late {
				t.Errorf("the store's time loses %v, want %v at most", late, c.late)
			}
		})
	}
}
