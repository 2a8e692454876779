package consensus

import (
	"testing"
	"time"

	pb "go.etcd.io/raft/v3/raftpb"
	"google.golang.org/protobuf/proto"

	"github.com/weirdb/weir/internal/kvd/wire"
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

// Nothing expires before the end of its time to live, and not much later, whichever replica
// leads, whatever the delay of messages, and with one wrong clock of three.
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

// A follower takes the newest time of what its leader appends, though the last entries
// have none, and though they cannot be read, which is known only when they are applied.
func TestStoreTimeOfAnAppend(t *testing.T) {
	const later = int64(time.Minute)
	timed := func(at int64) []byte { return appendEntryHead(nil, 1, 2, at, int64(time.Hour), 0) }
	empty, change := &pb.Entry{}, &pb.Entry{Type: pb.EntryConfChangeV2.Enum()}
	for _, c := range []struct {
		name  string
		by    int64 // how far the time comes
		terms uint64
		last  []*pb.Entry // behind an entry that has a time, if one comes
	}{
		{"a round", later, 0, nil},
		{"an empty entry is the last", later, 0, []*pb.Entry{empty}},
		{"a change of members is the last", later, 0, []*pb.Entry{change}},
		{"several have none", later, 0, []*pb.Entry{empty, change, empty}},
		{"an unreadable entry is the last", later, 0, []*pb.Entry{{Data: []byte{0xff}}}},
		{"an unreadable entry of a new leader", 0, 1, []*pb.Entry{{Data: []byte{0xff}}}},
		{"a change and an empty entry of a new leader", 0, 1, []*pb.Entry{empty, change}},
	} {
		t.Run(c.name, func(t *testing.T) {
			r := newRig(t, 3, "raft")
			lead := r.leader()
			r.session(lead)
			f := r.nodes[r.others(lead)[0]].core
			was, index, term := f.state.time(), f.engine.log.lastIndex(), f.engine.term
			if was <= 0 {
				t.Fatalf("the follower's time is %d", was)
			}
			entries := c.last
			if c.by > 0 {
				entries = append([]*pb.Entry{{Data: timed(was + c.by)}}, entries...)
			}
			m := &pb.Message{Type: pb.MsgApp.Enum(), From: &lead, To: &f.cfg.ID, Term: proto.Uint64(term + c.terms), Index: &index, LogTerm: &term}
			for i, e := range entries {
				m.Entries = append(m.Entries, &pb.Entry{Type: e.Type, Data: e.Data, Term: m.Term, Index: proto.Uint64(index + uint64(i) + 1)})
			}
			data, err := proto.Marshal(m)
			if err != nil {
				t.Fatal(err)
			}
			f.Deliver(r.now, Addr(lead), &wire.Message{Kind: wire.Raft, Data: data})
			if last := f.engine.log.lastIndex(); last != index+uint64(len(entries)) {
				t.Fatalf("the log ends at %d, want %d entries behind %d", last, len(entries), index)
			}
			if now := f.state.time(); now != was+c.by {
				t.Errorf("the store's time comes by %v, want %v", time.Duration(now-was), time.Duration(c.by))
			}
		})
	}
}

// dying is words of which something expires.
type dying struct {
	*words
	due int64
}

func (d dying) Due() int64 { return d.due }

// A read at any replica shows how time goes by, and nothing as gone before the entry
// that says so.
func TestNothingIsReadAsGoneTooEarly(t *testing.T) {
	r := newRig(t, 3, "raft-ht")
	lead := r.leader()
	r.session(lead)
	was := r.nodes[lead].core.state.time()
	r.now.Mono += int64(time.Hour)
	for id, n := range r.nodes {
		n.core.Take(r.now)
		for due, want := range map[int64]int64{0: was + int64(time.Hour), was + 5: was + 4, was + int64(2*time.Hour): was + int64(time.Hour)} {
			n.core.state.machine = dying{n.words, due}
			if at := n.core.state.readTime(); at != want {
				t.Errorf("replica %d reads at %d, want %d, where something is due at %d", id, at-was, want-was, due-was)
			}
		}
	}
}
