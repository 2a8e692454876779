package outbox

import (
	"fmt"
	"log/slog"
	"testing"
	"time"
)

// A sieve forgets no key, and takes few others for one that it knows.
func TestSieve(t *testing.T) {
	const keys = 100_000
	s, wrong := newSieve(), 0
	for i := range keys {
		s.add(fmt.Sprint("left", i))
	}
	for i := range keys {
		if !s.has(fmt.Sprint("left", i)) {
			t.Fatalf("key %d is not known", i)
		}
		if s.has(fmt.Sprint("other", i)) {
			wrong++
		}
	}
	if wrong > keys/20 { // 2.4 % are to be expected
		t.Errorf("%d of %d others are taken for known", wrong, keys)
	}
}

// Messages that wait for a part that is away leave room to others.
func TestWhatIsAwayLeavesRoom(t *testing.T) {
	n := &lane{lead: &lead{cfg: Config{MaxWaiting: 100}}}
	for waiting, want := range map[int64][2]bool{74: {false, false}, 75: {true, false}, 100: {true, true}} {
		n.waits.Store(waiting)
		if away, other := n.crowded(true), n.crowded(false); away != want[0] || other != want[1] {
			t.Errorf("with %d of 100: full for what is away %v, for others %v; want %v", waiting, away, other, want)
		}
	}
}

// A message that is dropped since an earlier one of its key was is no try of its
// destination: those are for messages that are sent.
func TestWhatIsDroppedSpendsNoTry(t *testing.T) {
	c := newCircuits(nil)
	for seq := range int64(crowd) {
		c.failed(failure{destination: "t", seq: seq, kind: busy}, RetryPolicy{}, time.Now())
	}
	n := newLane(&lead{Relay: &Relay{circuits: c}, cfg: Config{Batch: 100, MaxWaiting: 100}, log: slog.New(slog.DiscardHandler), room: make(chan struct{}, 1)})
	n.spilled = newSieve()
	n.spilled.add("dropped")
	for seq := range int64(probes) {
		n.queue = append(n.queue, item{Row: Row{Seq: seq, Message: Message{Topic: "t", Key: "dropped"}}})
	}
	n.queue = append(n.queue, item{Row: Row{Seq: probes, Message: Message{Topic: "t", Key: "other"}}})
	batch, err := n.next(time.Now().Add(time.Minute))
	if err != nil || len(batch) != 1 || batch[0].Seq != probes {
		t.Errorf("to be sent: %v, %v; want message %d, which the destination is to be tried with", batch, err, probes)
	}
}
