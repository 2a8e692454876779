package outbox

import (
	"errors"
	"fmt"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
)

// A transaction of the log that is larger than what may be in flight is handed on
// in parts: what a crash repeats is bounded, however rows are fetched.
func TestTheLogKeepsToWhatMayBeInFlight(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store, sink := newMemStore(), &memSink{}
		store.noTail = nil
		held := make(chan struct{})
		store.held = map[string]chan struct{}{"ack": held}
		cfg := fast()
		cfg.Claim, cfg.MaxInFlight = Log, 100
		r, stop := running(t, store, sink, cfg)
		defer stop()
		until(t, "the log is followed", func() bool { return r.Stats().Tailing == 1 })
		var msgs []Message
		for i := range 5000 {
			msgs = append(msgs, Message{Topic: "t", Key: fmt.Sprint(i % 50)})
		}
		store.put(msgs...)
		time.Sleep(10 * time.Second)
		if n, s := len(sink.topics()), r.Stats(); n > cfg.MaxInFlight || s.InFlight > int64(cfg.MaxInFlight) || n == 0 {
			t.Errorf("%d delivered and %d in flight while nothing is noted, want at most %d", n, s.InFlight, cfg.MaxInFlight)
		}
		close(held)
		until(t, "the table is empty", func() bool { return store.pending() == 0 })
		if n := len(sink.topics()); n != 5000 {
			t.Errorf("%d deliveries, want 5000", n)
		}
	})
}

// While the broker is away the log is let go, and followed again afterwards.
func TestTheLogIsLetGoWhileNothingIsDelivered(t *testing.T) {
	for _, kept := range []int64{0, 1 << 20} { // by time, by size
		t.Run(fmt.Sprint(kept), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				store := newMemStore()
				store.noTail = nil
				var away atomic.Bool
				away.Store(true)
				sink := &memSink{decide: func(*Message) error {
					if away.Load() {
						return Unavailable(errors.New("nobody there"))
					}
					return nil
				}}
				cfg := fast()
				cfg.Claim, cfg.MaxInFlight, cfg.LogWait, cfg.LogKeep = Log, 10, 5*time.Second, 1<<19
				if kept > 0 {
					cfg.LogWait = time.Hour
				}
				r, stop := running(t, store, sink, cfg)
				defer stop()
				until(t, "the log is followed", func() bool { return r.Stats().Tailing == 1 })
				for i := range 100 {
					store.put(Message{Topic: fmt.Sprint(i), Key: "k"})
					time.Sleep(10 * time.Millisecond)
				}
				store.mu.Lock()
				store.kept = kept
				store.mu.Unlock()
				until(t, "the log is let go", func() bool {
					store.mu.Lock()
					defer store.mu.Unlock()
					return len(store.tails) == 0
				})
				time.Sleep(time.Minute)
				if s := r.Stats(); s.LogDrops != 1 || s.Tailing != 0 || s.TailReason == "" || s.LogKept != 0 {
					t.Errorf("while the broker is away: %+v", s)
				}
				store.mu.Lock()
				store.kept = 0
				store.mu.Unlock()
				away.Store(false)
				until(t, "the log is followed again", func() bool { return r.Stats().Tailing == 1 && store.pending() == 0 })
				for i, topic := range sink.topics() {
					if topic != fmt.Sprint(i) {
						t.Fatalf("message %d is %s", i, topic)
					}
				}
			})
		})
	}
}

// Numbers that begin again below those seen are found at once, not by the sweep.
func TestATableThatWasEmptiedIsReadFromItsBeginning(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store, sink := newMemStore(), &memSink{}
		store.noTail = nil
		cfg := fast()
		cfg.Claim, cfg.SweepEvery = Log, 24*time.Hour
		r, stop := running(t, store, sink, cfg)
		defer stop()
		until(t, "the log is followed", func() bool { return r.Stats().Tailing == 1 })
		for range 10 {
			store.put(Message{Topic: "before"})
		}
		until(t, "the table is empty", func() bool { return store.pending() == 0 })
		store.mu.Lock()
		store.next = 0
		for tail := range store.tails {
			tail.err = fmt.Errorf("TRUNCATE: %w", ErrRecreated)
			ring(tail.bell)
		}
		store.mu.Unlock()
		store.put(Message{Topic: "after"})
		until(t, "the new message is delivered", func() bool { return store.pending() == 0 })
		if got := sink.topics(); len(got) != 11 || got[10] != "after" || r.Stats().Stray != 0 {
			t.Errorf("delivered %v, %d by the sweep", got, r.Stats().Stray)
		}
	})
}

// A server may take its time to let the log be followed. The table is read
// meanwhile, and a relay that is told to stop does not wait for it.
func TestTheTableIsReadWhileTheLogIsOpened(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store, sink := newMemStore(), &memSink{}
		store.noTail = nil
		slow := make(chan struct{})
		store.held = map[string]chan struct{}{"tail": slow}
		cfg := fast()
		cfg.Claim = Log
		for round := range 2 {
			r, stop := running(t, store, sink, cfg)
			for i := range 20 {
				store.put(Message{Topic: fmt.Sprint(i), Key: "k"})
				time.Sleep(time.Second)
			}
			if n := len(sink.topics()); n != 20*(round+1) || r.Stats().Tailing != 0 {
				t.Errorf("round %d: %d messages delivered while the log is being opened, %+v", round, n, r.Stats())
			}
			if round == 1 {
				close(slow)
				until(t, "the log is followed", func() bool { return r.Stats().Tailing == 1 })
				store.put(Message{Topic: "from the log", Key: "k"})
				until(t, "the message of the log is delivered", func() bool { return store.pending() == 0 })
			}
			stop()
		}
		if topics := sink.topics(); len(topics) != 41 || len(store.tails) != 0 {
			t.Errorf("%d deliveries, want 41; %d tails are open", len(topics), len(store.tails))
		}
	})
}
