package consensus

import (
	"container/heap"
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/weirdb/weir/internal/kvd/wire"
)

// timed is a cluster in virtual time, with given durations of turns, flushes and messages. Its
// clients have one write in flight, and pause in between.
type timed struct {
	t      *testing.T
	now    int64
	events events
	number int
	nodes  [3]*timedNode
	random *rand.Rand

	link, flush, turn time.Duration
	late              func() time.Duration // what a message between replicas takes besides
	arrived           map[[2]Addr]int64    // when the last one came: they stay in order
	writes            []timedWrites        // of the clients
	from              int64                // what was sent before is not counted
	answers           int
	waited            time.Duration
}

type timedNode struct {
	core    *Core
	came    []func(Clock)
	busy    bool
	orders  []uint64 // tickets that the disk has not begun with
	writing bool
	wake    int64
	turns   int
	rate    float64 // of its clock, from a moment on
	since   int64   // that moment
	mono    int64   // and what it showed then
	cut     bool    // it is cut off from the others
}

func (w *timed) clock(n *timedNode) Clock {
	return Clock{Mono: n.mono + int64(float64(w.now-n.since)*n.rate), Wall: w.now + 1e18}
}

// takes is how long a replica waits for so long by its clock. One that stands still does
// not wait for ever.
func (n *timedNode) takes(d time.Duration) time.Duration {
	if n.rate == 0 {
		return d
	}
	return time.Duration(float64(d) / n.rate)
}

// runsAt changes how fast a replica's clock runs.
func (w *timed) runsAt(n *timedNode, rate float64) {
	n.mono, n.since, n.rate = w.clock(n).Mono, w.now, rate
}

type timedWrites struct {
	session, seq uint64
	sent         int64
}

type event struct {
	at     int64
	number int
	do     func()
}

type events []event

func (e events) Len() int { return len(e) }
func (e events) Less(i, j int) bool {
	return e[i].at < e[j].at || e[i].at == e[j].at && e[i].number < e[j].number
}
func (e events) Swap(i, j int) { e[i], e[j] = e[j], e[i] }
func (e *events) Push(x any)   { *e = append(*e, x.(event)) }
func (e *events) Pop() any {
	last := (*e)[len(*e)-1]
	*e = (*e)[:len(*e)-1]
	return last
}

func (w *timed) after(d time.Duration, do func()) {
	w.number++
	heap.Push(&w.events, event{w.now + int64(d), w.number, do})
}

func (w *timed) run(until int64) {
	for len(w.events) > 0 && w.events[0].at <= until {
		e := heap.Pop(&w.events).(event)
		w.now = e.at
		e.do()
	}
}

func newTimed(t *testing.T, window, link time.Duration) *timed {
	t.Helper()
	w := &timed{t: t, arrived: map[[2]Addr]int64{}, random: rand.New(rand.NewPCG(1, 2)), link: link, flush: 300 * time.Microsecond, turn: 30 * time.Microsecond}
	var members []Member
	for id := uint64(1); id <= 3; id++ {
		members = append(members, Member{ID: id, Addr: fmt.Sprintf("replica-%d", id)})
	}
	for i := range w.nodes {
		cfg := Config{ID: uint64(i) + 1, Members: members, Seed: 7, Knows: 1}
		cfg.Batch.Window = window
		nothing := Recovered{Records: func(func(Record) error) error { return nil }}
		c, err := New(cfg, &words{m: map[string]string{}}, nothing)
		if err != nil {
			t.Fatal(err)
		}
		n := &timedNode{core: c, rate: 1, mono: 1e9}
		w.nodes[i] = n
		var tick func()
		tick = func() {
			w.bring(n, c.Tick)
			w.after(n.takes(10*time.Millisecond), tick)
		}
		w.after(time.Duration(i)*time.Millisecond, tick)
	}
	return w
}

// bring has a replica's next turn do something.
func (w *timed) bring(n *timedNode, do func(Clock)) {
	n.came = append(n.came, do)
	w.begin(n)
}

func (w *timed) begin(n *timedNode) {
	if n.busy || len(n.came) == 0 {
		return
	}
	n.busy = true
	n.turns++
	at := w.clock(n)
	for _, do := range n.came {
		do(at)
	}
	n.came = nil
	e := n.core.Take(at)
	if e.Fatal != nil {
		w.t.Fatal(e.Fatal)
	}
	w.after(w.turn, func() {
		n.busy = false
		w.act(n, &e)
		w.begin(n)
	})
}

func (w *timed) act(n *timedNode, e *Effects) {
	if e.Ticket != 0 {
		n.orders = append(n.orders, e.Ticket)
		w.write(n)
	}
	for _, s := range e.Sends {
		switch {
		case s.To == Clients:
		case s.To >= FirstClient:
			w.after(w.turn, func() { w.answered(int(s.To-FirstClient), &s.Message) })
		default:
			to, data, from := w.nodes[s.To-1], s.Message.Append(nil), Addr(n.core.cfg.ID)
			if n.cut || to.cut {
				continue
			}
			w.after(w.way(from, s.To), func() {
				m := &wire.Message{}
				if err := m.Decode(data); err != nil {
					w.t.Fatal(err)
				}
				w.bring(to, func(at Clock) { to.core.Deliver(at, from, m) })
			})
		}
	}
	if wake := e.Wake; wake != 0 && wake != n.wake {
		n.wake = wake
		w.after(n.takes(time.Duration(max(0, wake-w.clock(n).Mono))), func() {
			if n.wake == wake {
				n.wake = 0
				w.bring(n, func(Clock) {})
			}
		})
	}
}

// way is how long a message is on its way.
func (w *timed) way(from, to Addr) time.Duration {
	if w.late == nil {
		return w.link
	}
	pair := [2]Addr{from, to}
	w.arrived[pair] = max(w.arrived[pair], w.now+int64(w.link+w.late()))
	return time.Duration(w.arrived[pair] - w.now)
}

// write has the disk flush what it was ordered to, all at once.
func (w *timed) write(n *timedNode) {
	if n.writing || len(n.orders) == 0 {
		return
	}
	n.writing = true
	last := n.orders[len(n.orders)-1]
	n.orders = nil
	w.after(w.flush, func() {
		n.writing = false
		w.bring(n, func(at Clock) { n.core.Persisted(at, last) })
		w.write(n)
	})
}

func (w *timed) leader() *timedNode {
	for _, n := range w.nodes {
		if n.core.lead != nil && n.core.lead.open {
			return n
		}
	}
	w.t.Fatal("no leader")
	return nil
}

// issue sends a client's next write after a while.
func (w *timed) issue(client int) {
	w.after(time.Duration(w.random.ExpFloat64()*float64(200*time.Microsecond)), func() {
		c := &w.writes[client]
		c.seq, c.sent = c.seq+1, w.now
		n := w.leader()
		m := &wire.Message{Kind: wire.Strong, Session: c.session, Seq: c.seq, Ack: c.seq - 1, Data: []byte("set k 1")}
		w.bring(n, func(at Clock) { n.core.Deliver(at, FirstClient+Addr(client), m) })
	})
}

func (w *timed) answered(client int, m *wire.Message) {
	switch m.Kind {
	case wire.ReadDone:
		w.writes[client].session = m.Revision
		w.issue(client)
	case wire.Done:
		if w.writes[client].sent >= w.from {
			w.answers++
			w.waited += time.Duration(w.now - w.writes[client].sent)
		}
		w.issue(client)
	default:
		w.t.Fatalf("client %d got %v", client, m.Kind)
	}
}

// measure lets clients write for a while, and returns how long a write takes and how
// many writes share a round, both in the mean.
func (w *timed) measure(clients int) (write time.Duration, group float64) {
	w.run(int64(time.Second))
	n := w.leader()
	w.writes = make([]timedWrites, clients)
	for i := range w.writes {
		m := &wire.Message{Kind: wire.Register, Count: 1, Request: uint64(i)}
		w.bring(n, func(at Clock) { n.core.Deliver(at, FirstClient+Addr(i), m) })
	}
	w.from = w.now + int64(300*time.Millisecond)
	w.run(w.from)
	before := n.core.counters
	w.run(w.from + int64(500*time.Millisecond))
	return w.waited / time.Duration(w.answers), float64(n.core.counters.Operations-before.Operations) / float64(n.core.counters.Rounds-before.Rounds)
}

// Where replicas are far apart, a write takes no longer without a delay than with a
// fixed one: no round waits in vain.
func TestNoDelayWhereReplicasAreFar(t *testing.T) {
	const link = 5 * time.Millisecond
	fixed, inFixed := newTimed(t, 150*time.Microsecond, link).measure(30)
	auto, inAuto := newTimed(t, 0, link).measure(30)
	if auto > fixed {
		t.Errorf("%v for a write in rounds of %.1f, %v in rounds of %.1f with a fixed delay", auto, inAuto, fixed, inFixed)
	}
}

// A leader that has asked a replica to take over proposes nothing, and does not busily check
// whether it may.
func TestNoTurnsInVainDuringAHandover(t *testing.T) {
	const link = 5 * time.Millisecond
	w := newTimed(t, 150*time.Microsecond, link)
	w.measure(3)
	n := w.leader()
	w.bring(n, func(Clock) { n.core.engine.node.TransferLeader(n.core.cfg.ID%3 + 1) })
	w.run(w.now + int64(link)/2)
	before := n.turns
	w.run(w.now + int64(link)) // the replica has not taken over yet
	if n.core.lead == nil || n.core.lead.refused == nil {
		t.Fatal("nothing waits for the handover")
	}
	if turns := n.turns - before; turns > 30 {
		t.Errorf("%d turns within %v", turns, link)
	}
}
