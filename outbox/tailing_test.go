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

// While the broker is away the relay does not follow the log for ever, and follows it again afterwards.
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
				until(t, "the relay has stopped following the log", func() bool {
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

// While messages come often the log is read in groups, so that each read is shared;
// one that comes seldom is delivered at once.
func TestTheLogIsReadInGroups(t *testing.T) {
	for _, tc := range []struct {
		every time.Duration
		least int           // messages of a Publish call, on average
		late  time.Duration // the longest that one may take
	}{
		{250 * time.Microsecond, 7, 3 * time.Millisecond},
		{5 * time.Millisecond, 1, 0},
	} {
		synctest.Test(t, func(t *testing.T) {
			store, sink := newMemStore(), &memSink{}
			store.noTail = nil
			cfg := fast()
			cfg.Claim, cfg.MinPoll = Log, 2*time.Millisecond
			r, stop := running(t, store, sink, cfg)
			defer stop()
			until(t, "the log is followed", func() bool { return r.Stats().Tailing == 1 })
			n, late := 0, time.Duration(0)
			send := func(d time.Duration) {
				for began := time.Now(); time.Since(began) < d; n++ {
					store.put(Message{Topic: "t", Key: "k"})
					put := time.Now()
					time.Sleep(tc.every)
					for len(sink.topics()) <= n && tc.every >= time.Millisecond {
						time.Sleep(50 * time.Microsecond)
					}
					if tc.every >= time.Millisecond {
						late = max(late, time.Since(put)-tc.every)
					}
				}
			}
			send(300 * time.Millisecond) // to find the rhythm
			before := r.Stats()
			send(time.Second)
			until(t, "all is delivered", func() bool { return len(sink.topics()) == n })
			after := r.Stats()
			calls := after.Batches.Count() - before.Batches.Count()
			if mean := float64(after.Delivered-before.Delivered) / float64(calls); mean < float64(tc.least) || late > tc.late {
				t.Errorf("a message each %v: %.2f in each of %d Publish calls, %v late; want at least %d and at most %v", tc.every, mean, calls, late, tc.least, tc.late)
			}
		})
	}
}

func TestRhythm(t *testing.T) {
	r := tailPacer{pause: 2 * time.Millisecond}
	now := time.Now()
	read := func(rows int, after time.Duration) time.Duration {
		now = now.Add(after)
		return r.next(now, rows)
	}
	for range 500 { // 500 a second
		if got := read(1, 2*time.Millisecond); got != 0 {
			t.Fatalf("a message each 2 ms: a pause of %v", got)
		}
	}
	for range 300 { // 2000 a second
		read(1, 500*time.Microsecond)
	}
	if got := read(1, 500*time.Microsecond); got != r.pause {
		t.Errorf("a message each 0.5 ms: a pause of %v, want %v", got, r.pause)
	}
	if got := read(pacerRows, 500*time.Microsecond); got != 0 {
		t.Errorf("after a long read: a pause of %v", got)
	}
	if got := read(1, 3*pacerWindow); got != 0 {
		t.Errorf("after some quiet: a pause of %v", got)
	}
}

// A log that shows nothing of what is committed, of a server that has become a replica,
// say, hides no message.
func TestALogThatFallsSilentHidesNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store, sink := newMemStore(), &memSink{}
		store.noTail = nil
		cfg := fast()
		cfg.Claim = Log
		r, stop := running(t, store, sink, cfg)
		defer stop()
		store.put(Message{Topic: "before"})
		until(t, "the log is followed", func() bool { return r.Stats().Tailing == 1 && store.pending() == 0 })
		mute := func(v bool) {
			store.mu.Lock()
			defer store.mu.Unlock()
			store.mute = v
		}
		mute(true)
		for range 3000 {
			store.put(Message{Topic: "hidden"})
		}
		time.Sleep(40 * time.Second)
		if n := store.pending(); n > 0 {
			t.Errorf("%d messages wait that the log has not shown", n)
		}
		for range 20 { // the table is read while it shows what the log does not
			store.put(Message{Topic: "hidden"})
			time.Sleep(time.Second)
			if n := store.pending(); n > 0 {
				t.Errorf("%d messages wait", n)
			}
		}
		for i := range 20 { // as often as in polling
			time.Sleep(time.Second + time.Duration(i)*17*time.Millisecond)
			store.put(Message{Topic: "hidden"})
			time.Sleep(r.cfg.MaxPoll + 10*time.Millisecond)
			if n := store.pending(); n > 0 {
				t.Errorf("%d messages wait for longer than %v", n, r.cfg.MaxPoll)
			}
		}
		mute(false)
		time.Sleep(time.Minute)
		before := r.Stats().Rounds
		for range 600 {
			store.put(Message{Topic: "shown"})
			time.Sleep(100 * time.Millisecond)
		}
		if n := r.Stats().Rounds - before; n > 5 {
			t.Errorf("the table was read %d times in a minute of a log that shows everything", n)
		}
		until(t, "the table is empty", func() bool { return store.pending() == 0 })
		if s := r.Stats(); s.Stray > 0 || s.LogDrops > 0 {
			t.Errorf("%+v", s)
		}
	})
}
