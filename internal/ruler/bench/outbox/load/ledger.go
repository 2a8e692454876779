package outboxload

import (
	"fmt"
	"sync"
	"sync/atomic"

	"github.com/weirdb/weir/internal/measure"
	"github.com/weirdb/weir/internal/ruler/bench/subject/messages"
)

// Ledger records what happens to every message of a run. Times are nanoseconds of one clock. It
// is safe for concurrent use; the messages of one key are enqueued by one goroutine at a time.
type Ledger struct {
	keys []keyLog

	committed, delivered atomic.Int64 // messages, each counted once
	strangers            atomic.Int64

	mu      sync.Mutex
	target  int64         // number of messages that reached waits for; 0: none yet
	reached chan struct{} // closed when target messages have been delivered
}

// keyLog is the messages of one key, by number.
type keyLog struct {
	mu         sync.Mutex
	entries    []entry
	last       int64 // the largest delivered number, -1 before the first
	duplicates int64
	disordered int64
}

// entry is one message. A time is 0 until the event happens; times of the clock are stored plus
// one.
type entry struct {
	start, committed, delivered int64
	unknown                     bool // its commit failed
	counted                     bool // its times belong to the window
}

// NewLedger returns the ledger of a run with keys 0 to keys-1.
func NewLedger(keys int) *Ledger {
	l := &Ledger{keys: make([]keyLog, keys), reached: make(chan struct{})}
	for i := range l.keys {
		l.keys[i].last = -1
	}
	return l
}

// Hand records that the next message of a key is being enqueued, and returns its number.
func (l *Ledger) Hand(key int) int64 {
	k := &l.keys[key]
	k.mu.Lock()
	defer k.mu.Unlock()
	k.entries = append(k.entries, entry{})
	return int64(len(k.entries) - 1)
}

// Committed records when the producer of a message learned of its commit. The message may
// already have been delivered.
func (l *Ledger) Committed(key int, n, at int64) {
	k := &l.keys[key]
	k.mu.Lock()
	k.entries[n].committed = at + 1
	k.mu.Unlock()
	l.committed.Add(1)
}

// Timed records when a message was meant to be enqueued, and that its times count.
func (l *Ledger) Timed(key int, n, start int64) {
	k := &l.keys[key]
	k.mu.Lock()
	defer k.mu.Unlock()
	k.entries[n].start, k.entries[n].counted = start+1, true
}

// Unknown records that the outcome of a message's commit is unknown.
func (l *Ledger) Unknown(key int, n int64) {
	k := &l.keys[key]
	k.mu.Lock()
	defer k.mu.Unlock()
	k.entries[n].unknown = true
}

// Deliver records a delivery, which it identifies by its payload.
func (l *Ledger) Deliver(payload []byte, at int64) {
	key, n, err := ParsePayload(payload)
	if err != nil || key >= len(l.keys) {
		l.strangers.Add(1)
		return
	}
	k := &l.keys[key]
	k.mu.Lock()
	if n >= int64(len(k.entries)) {
		k.mu.Unlock()
		l.strangers.Add(1)
		return
	}
	first := k.entries[n].delivered == 0
	switch {
	case !first:
		k.duplicates++
	case n < k.last:
		k.disordered++
	}
	if first {
		k.entries[n].delivered = at + 1
		k.last = max(k.last, n)
	}
	k.mu.Unlock()
	if first {
		l.arrived()
	}
}

func (l *Ledger) arrived() {
	n := l.delivered.Add(1)
	l.mu.Lock()
	defer l.mu.Unlock()
	l.check(n)
}

// check closes reached if the target is reached. The caller holds mu.
func (l *Ledger) check(n int64) {
	if l.target == 0 || n < l.target {
		return
	}
	select {
	case <-l.reached:
	default:
		close(l.reached)
	}
}

// Reached returns a channel that is closed once n messages have been delivered. It must be
// called only once.
func (l *Ledger) Reached(n int64) <-chan struct{} {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.target = n
	l.check(l.delivered.Load())
	return l.reached
}

// Delivered is the number of messages delivered so far.
func (l *Ledger) Delivered() int64 { return l.delivered.Load() }

// Books closes the ledger and counts what happened to all messages. left is the number of
// messages found pending in the table afterwards; if it is 0, every committed message that was
// not delivered is lost.
func (l *Ledger) Books(left int64) messages.Ledger {
	b := messages.Ledger{Strangers: l.strangers.Load(), Pending: left}
	undelivered := int64(0)
	for i := range l.keys {
		k := &l.keys[i]
		k.mu.Lock()
		b.Handed += int64(len(k.entries))
		b.Duplicates += k.duplicates
		b.Disordered += k.disordered
		for j := range k.entries {
			e := &k.entries[j]
			if e.delivered != 0 {
				b.Delivered++
			}
			switch {
			case e.committed != 0:
				b.Committed++
				if e.delivered == 0 {
					undelivered++
				}
			case e.unknown:
				b.Unknown++
			}
		}
		k.mu.Unlock()
	}
	// More can be pending than missing: messages whose delivery is not recorded yet.
	b.Lost = max(0, undelivered-left)
	return b
}

// lagSteps is the number of points of the lag over time.
const lagSteps = 100

// times are the ledger's figures about a window.
type times struct {
	fromStart, fromCommit measure.Hist
	lag                   []messages.LagPoint
	maxLag                int64
	delivered             int64 // within the window
}

// times computes the figures of a window, in nanoseconds of the ledger's clock. Latencies are
// those of messages with Timed, whenever they were delivered.
func (l *Ledger) times(from, to int64) times {
	var t times
	step := max((to-from)/lagSteps, 1)
	in, out := make([]int64, lagSteps+1), make([]int64, lagSteps+1) // by step; before the window in the first
	put := func(into []int64, at int64) {
		if at > 0 && at-1 < to {
			into[min(max(at-1-from, 0)/step, lagSteps)]++
		}
	}
	for i := range l.keys {
		k := &l.keys[i]
		k.mu.Lock()
		for j := range k.entries {
			e := &k.entries[j]
			put(in, e.committed)
			put(out, e.delivered)
			if e.delivered > from && e.delivered-1 < to {
				t.delivered++
			}
			if e.counted && e.delivered != 0 && e.committed != 0 {
				t.fromStart.Record(max(0, e.delivered-e.start))
				t.fromCommit.Record(max(0, e.delivered-e.committed))
			}
		}
		k.mu.Unlock()
	}
	var committed, delivered int64
	for i := range lagSteps {
		committed, delivered = committed+in[i], delivered+out[i]
		t.lag = append(t.lag, messages.LagPoint{AtSeconds: float64(i+1) * float64(step) / 1e9, Committed: committed, Delivered: delivered})
		t.maxLag = max(t.maxLag, committed-delivered)
	}
	return t
}

// String describes the progress.
func (l *Ledger) String() string {
	return fmt.Sprintf("%d committed, %d delivered", l.committed.Load(), l.delivered.Load())
}
