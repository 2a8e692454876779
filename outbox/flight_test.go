package outbox

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
)

func isGone(m *Message) bool { return strings.HasPrefix(m.Key, "gone") }

// held is a broker of which a part does not answer: a call that has a message for it
// returns when it is let go.
type held struct {
	memSink
	holds atomic.Bool
	mu    sync.Mutex
	calls int           // that hang
	free  chan struct{} // closed when they are let go
}

func newHeld() *held {
	s := &held{free: make(chan struct{})}
	s.holds.Store(true)
	s.decide = func(m *Message) error {
		if isGone(m) && s.holds.Load() {
			return Unavailable(errors.New("no leader"))
		}
		return nil
	}
	return s
}

func (s *held) Publish(ctx context.Context, msgs []Message) []error {
	for i := range msgs {
		if s.holds.Load() && isGone(&msgs[i]) {
			free := s.count(1)
			select {
			case <-free:
			case <-ctx.Done():
			}
			s.count(-1)
			break
		}
	}
	return s.memSink.Publish(ctx, msgs)
}

func (s *held) count(n int) (free <-chan struct{}) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.calls += n
	return s.free
}

func (s *held) hanging() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.calls
}

// letGo ends the calls that hang, and has later ones hang again.
func (s *held) letGo() {
	s.mu.Lock()
	defer s.mu.Unlock()
	close(s.free)
	s.free = make(chan struct{})
}

// delivered counts messages by the beginning of their key.
func delivered(s *memSink, prefix string) (n int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for i := range s.got {
		if strings.HasPrefix(s.got[i].Key, prefix) {
			n++
		}
	}
	return n
}

// A call that does not return holds up the keys that it has, and no other: neither the
// first one, which has messages for all, nor the one that asks again.
func TestACallThatHangsHoldsUpNoOtherKey(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store, sink := newMemStore(), newHeld()
		cfg := fast()
		cfg.Publishers, cfg.MaxPoll, cfg.Retry.MaxAttempts, cfg.DrainTimeout = 1, time.Second, 1, time.Second
		n := map[string]int{}
		put := func(prefix string, keys, msgs int) {
			for i := range msgs {
				key := fmt.Sprint(prefix, i%keys)
				n[key]++
				store.put(Message{Topic: "t", Key: key, Payload: fmt.Append(nil, n[key])})
			}
		}
		put("gone", 10, 30)
		put("with", 10, 30)
		r, stop := running(t, store, sink, cfg)
		defer stop()
		until(t, "a call hangs", func() bool { return sink.hanging() == 1 })
		put("free", 10, 3000)
		put("with", 10, 300)
		until(t, "the free ones are delivered beside it", func() bool { return delivered(&sink.memSink, "free") == 3000 })
		if n := len(sink.topics()); n != 3000 {
			t.Errorf("%d were delivered, with some of keys that the call has", n-3000)
		}
		sink.letGo()
		until(t, "so are those that the call had, and those behind them", func() bool { return delivered(&sink.memSink, "with") == 330 })
		until(t, "a call asks again, and hangs", func() bool { return sink.hanging() == 1 })
		put("free", 10, 3000)
		put("gone", 10, 30)
		put("with", 10, 300)
		until(t, "all others are delivered beside it", func() bool { return len(sink.topics()) == 6630 })
		if n := sink.hanging(); n != 1 {
			t.Errorf("%d calls hang, want one that asks again", n)
		}
		time.Sleep(time.Minute)
		if s := r.Stats(); s.BrokerDown || s.Blocked > 0 || s.Buried["attempts"] > 0 {
			t.Errorf("broker down %v, %d destinations blocked, buried %v", s.BrokerDown, s.Blocked, s.Buried)
		}
		sink.holds.Store(false)
		sink.letGo()
		until(t, "the table is empty", func() bool { return store.pending() == 0 })
		if n := len(sink.topics()); n != 6690 || len(store.dead) > 0 {
			t.Errorf("%d deliveries and %d dead letters, want 6690 and none", n, len(store.dead))
		}
		inOrderOfKeys(t, sink.got)
	})
}

// Half of a topic's keys go to a part of the broker that is away, which takes each call
// its time-out. The others have all that is theirs, but for the last moments.
func TestHalfOfTheKeysAwayHoldUpNoOther(t *testing.T) {
	for name, noTail := range map[string]error{"poll": &TailError{"none"}, "log": nil} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				store := newMemStore()
				store.noTail = noTail
				sink := newPartly(isGone)
				cfg := fast()
				cfg.Claim, cfg.MaxPoll, cfg.Retry.MaxAttempts = Auto, time.Second, 1
				r, stop := running(t, store, sink, cfg)
				defer stop()
				put := func(i int) {
					for _, key := range []string{"k", "gone"} {
						store.put(Message{Topic: "t", Key: fmt.Sprint(key, i%100), Payload: fmt.Append(nil, i+1)})
					}
				}
				const settled, all = 600, 2400
				for i := range all {
					put(i)
					time.Sleep(50 * time.Millisecond)
					// A minute is for finding out. From then on what came until two seconds ago is there.
					if i <= 2*settled || i%20 > 0 {
						continue
					}
					if n := delivered(&sink.memSink, "k"); n < i-40 {
						t.Fatalf("%d of %d were taken while the others were away", n, i)
					}
				}
				if s := r.Stats(); s.BrokerDown || s.Blocked > 0 {
					t.Errorf("broker down %v, %d destinations blocked", s.BrokerDown, s.Blocked)
				}
				sink.away.Store(false)
				until(t, "the table is empty", func() bool { return store.pending() == 0 })
				if n := len(sink.topics()); n != 2*all || len(store.dead)+len(store.parked) > 0 {
					t.Errorf("%d deliveries, %d dead letters, %d parked, want %d and none", n, len(store.dead), len(store.parked), 2*all)
				}
				inOrderOfKeys(t, sink.got)
			})
		})
	}
}

// parted knows the parts of its topic: those that go to the one that is away need not
// be tried, each, to find that out.
type parted struct{ *partly }

func (s parted) Part(m *Message) string {
	if isGone(m) {
		return m.Topic + "[1]"
	}
	return m.Topic + "[0]"
}

// The same where no key comes twice, and the sink knows the part of each.
func TestAPartThatIsAwayIsNotTriedWithEachKey(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := newMemStore()
		store.noTail = nil
		sink := newPartly(isGone)
		var tries atomic.Int64
		decide := sink.decide
		sink.decide = func(m *Message) error {
			if isGone(m) {
				tries.Add(1)
			}
			return decide(m)
		}
		cfg := fast()
		cfg.Claim, cfg.MaxPoll, cfg.Retry.MaxAttempts = Auto, time.Second, 1
		r, stop := running(t, store, parted{sink}, cfg)
		defer stop()
		const settled, all = 600, 2400
		for i := range all {
			for _, key := range []string{"k", "gone"} {
				store.put(Message{Topic: "t", Key: fmt.Sprint(key, i), Payload: fmt.Append(nil, i+1)})
			}
			time.Sleep(50 * time.Millisecond)
			if i <= 2*settled || i%20 > 0 {
				continue
			}
			if n := delivered(&sink.memSink, "k"); n < i-40 {
				t.Fatalf("%d of %d were taken while the others were away", n, i)
			}
		}
		if n := tries.Load(); n > all/4 {
			t.Errorf("%d tries of a part that is away", n)
		}
		if s := r.Stats(); s.BrokerDown || s.Blocked != 1 {
			t.Errorf("broker down %v, %d destinations blocked, want 1", s.BrokerDown, s.Blocked)
		}
		sink.away.Store(false)
		until(t, "the table is empty", func() bool { return store.pending() == 0 })
		if n := len(sink.topics()); n != 2*all || len(store.dead)+len(store.parked) > 0 {
			t.Errorf("%d deliveries, %d dead letters, %d parked, want %d and none", n, len(store.dead), len(store.parked), 2*all)
		}
		if n := r.Stats().Blocked; n > 0 {
			t.Errorf("%d destinations are blocked at the end", n)
		}
	})
}

// More of them than memory shall know of: the bound holds, and the others go on.
func TestKeysThatAreAwayAreBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := newMemStore()
		sink := newPartly(isGone)
		cfg := fast()
		cfg.MaxPoll, cfg.Retry.MaxAttempts, cfg.MaxInFlight, cfg.MaxWaiting = time.Second, 1, 400, 1000
		r, stop := running(t, store, sink, cfg)
		defer stop()
		for i := range 1500 {
			store.put(
				Message{Topic: "t", Key: fmt.Sprint("k", i%50), Payload: fmt.Append(nil, i+1)},
				Message{Topic: "t", Key: fmt.Sprint("gone", i%50), Payload: fmt.Append(nil, i+1)})
			time.Sleep(50 * time.Millisecond)
		}
		until(t, "the others are delivered", func() bool { return delivered(&sink.memSink, "k") == 1500 })
		// The messages of a call that come back may be above the bound.
		if s := r.Stats(); s.Parked+s.Deferred > 1400 || s.InFlight > 400 || delivered(&sink.memSink, "gone") > 0 {
			t.Errorf("while they are away: %d wait, %d in flight", s.Parked+s.Deferred, s.InFlight)
		}
		sink.away.Store(false)
		until(t, "the table is empty", func() bool { return store.pending() == 0 })
		if n := len(sink.topics()); n != 3000 || len(store.dead) > 0 {
			t.Errorf("%d deliveries and %d dead letters, want 3000 and none", n, len(store.dead))
		}
		inOrderOfKeys(t, sink.got)
	})
}

// The same where no key comes twice and the sink knows the part of each, so that later
// ones are not tried: what waits for that part leaves a quarter to others.
func TestNewKeysOfAPartThatIsAwayLeaveRoom(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := newMemStore()
		sink := newPartly(isGone)
		cfg := fast()
		cfg.MaxPoll, cfg.MaxInFlight, cfg.MaxWaiting = time.Second, 400, 1000
		r, stop := running(t, store, parted{sink}, cfg)
		defer stop()
		for i := range 1500 {
			store.put(
				Message{Topic: "t", Key: fmt.Sprint("k", i%50), Payload: fmt.Append(nil, i+1)},
				Message{Topic: "t", Key: fmt.Sprint("gone", i), Payload: fmt.Append(nil, i+1)})
			time.Sleep(50 * time.Millisecond)
		}
		until(t, "the others are delivered", func() bool { return delivered(&sink.memSink, "k") == 1500 })
		// A call of each lane may have some that come back.
		if s := r.Stats(); s.Parked < 700 || s.Parked > 750+probes*int64(r.cfg.Publishers) {
			t.Errorf("%d of 1000 wait for a part that is away, want 750", s.Parked)
		}
		sink.away.Store(false)
		until(t, "the table is empty", func() bool { return store.pending() == 0 })
		if n := len(sink.topics()); n != 3000 || len(store.dead) > 0 {
			t.Errorf("%d deliveries and %d dead letters, want 3000 and none", n, len(store.dead))
		}
		inOrderOfKeys(t, sink.got)
	})
}

// Messages for a part that is away, and that says so at once, are not tried whenever
// another is taken; nor do they hold up any.
func TestWhoIsAwayIsNotTriedWithEachMessage(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := newMemStore()
		tries := 0
		sink := &memSink{decide: func(m *Message) error {
			if isGone(m) {
				tries++
				return Unavailable(errors.New("no leader"))
			}
			return nil
		}}
		cfg := fast()
		cfg.MaxPoll = time.Second
		_, stop := running(t, store, sink, cfg)
		defer stop()
		for i := range 600 {
			store.put(Message{Topic: "t", Key: fmt.Sprint("gone", i), Payload: []byte("1")})
			time.Sleep(50 * time.Millisecond)
			store.put(Message{Topic: "t", Key: fmt.Sprint("k", i%10), Payload: fmt.Append(nil, i+1)})
			time.Sleep(50 * time.Millisecond)
		}
		until(t, "all others are taken", func() bool { return len(sink.topics()) == 600 })
		sink.mu.Lock()
		defer sink.mu.Unlock()
		if tries > 600*10 {
			t.Errorf("600 messages were tried %d times in a minute", tries)
		}
	})
}

// Where the sink's time-out is longer than the longest pause, a destination that is
// away is not tried at once again.
func TestALongTimeOutHasItsPause(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCircuits(&memSink{})
		const took = 90 * time.Second
		for i := range 6 {
			time.Sleep(took)
			rule := c.failed(failure{destination: "t", seq: 1, kind: absent, took: took}, RetryPolicy{Base: time.Millisecond, Max: time.Second}, time.Now())
			if i > 0 && rule.wait < awayLongest {
				t.Errorf("failure %d, after %v: the next try is %v later, want %v", i+1, took, rule.wait, awayLongest)
			}
			time.Sleep(rule.wait)
		}
	})
}

// A courier that waits for its next call holds none of the messages of the last one.
func TestACourierKeepsNoMessages(t *testing.T) {
	r, err := NewRelay(newMemStore(), &memSink{}, fast())
	if err != nil {
		t.Fatal(err)
	}
	c := &courier{Relay: r, log: r.cfg.Logger, broker: newBroker()}
	rows := make([]Row, 100)
	for i := range rows {
		rows[i].Message = Message{Topic: "t", Payload: make([]byte, 100)}
	}
	c.publish(t.Context(), t.Context(), rows)
	for i, m := range c.msgs[:cap(c.msgs)] {
		if m.Topic != "" || m.Payload != nil {
			t.Fatalf("message %d is kept after the call", i)
		}
	}
}
