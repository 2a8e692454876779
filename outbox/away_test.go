package outbox

import (
	"context"
	"errors"
	"fmt"
	"hash/fnv"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
)

// partly is a broker of which a part is away: what goes there fails after the sink's
// time-out.
type partly struct {
	memSink
	away atomic.Bool
	part func(*Message) bool
}

func (s *partly) Publish(ctx context.Context, msgs []Message) []error {
	met := false
	for i := range msgs {
		met = met || s.away.Load() && s.part(&msgs[i])
	}
	errs := s.memSink.Publish(ctx, msgs)
	if met {
		sleep(ctx, 10*time.Second)
	}
	return errs
}

func newPartly(part func(*Message) bool) *partly {
	s := &partly{part: part}
	s.away.Store(true)
	s.decide = func(m *Message) error {
		if s.away.Load() && part(m) {
			return Unavailable(errors.New("no leader"))
		}
		return nil
	}
	return s
}

// A topic whose part of the broker is away fills the relay, and others go on.
func TestADestinationThatIsAwayStarvesNoOther(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := newMemStore()
		sink := newPartly(func(m *Message) bool { return m.Topic == "away" })
		for i := range 3000 {
			store.put(Message{Topic: "away", Key: fmt.Sprint("k", i%100), Payload: fmt.Append(nil, i+1)})
		}
		for i := range 1000 {
			store.put(Message{Topic: "free", Key: fmt.Sprint("f", i%100), Payload: fmt.Append(nil, i+1)})
		}
		cfg := fast()
		cfg.MaxInFlight, cfg.MaxPoll, cfg.Retry.MaxAttempts = 500, time.Second, 1
		r, stop := running(t, store, sink, cfg)
		defer stop()
		began := time.Now()
		until(t, "the free ones are delivered", func() bool { return len(sink.topics()) == 1000 })
		if took := time.Since(began); took > 3*time.Minute {
			t.Errorf("the free ones took %v", took)
		}
		time.Sleep(5 * time.Minute)
		if s := r.Stats(); store.pending() != 3000 || s.Blocked != 1 {
			t.Errorf("%d pending, %d destinations blocked: want 3000 and 1", store.pending(), s.Blocked)
		}
		began = time.Now() // with traffic now, as if nothing were wrong
		for i := range 60 {
			store.put(Message{Topic: "free", Payload: fmt.Append(nil, i+1)})
			time.Sleep(time.Second)
		}
		until(t, "so are those that come now", func() bool { return len(sink.topics()) == 1060 })
		if took := time.Since(began); took > 2*time.Minute || r.Stats().BrokerDown {
			t.Errorf("they took %v, broker down %v", took, r.Stats().BrokerDown)
		}
		sink.away.Store(false)
		began = time.Now()
		until(t, "the table is empty", func() bool { return store.pending() == 0 })
		if took := time.Since(began); took > 2*time.Minute {
			t.Errorf("it took %v to go on", took)
		}
		if len(store.dead)+len(store.parked) > 0 {
			t.Errorf("%d dead letters, %d parked", len(store.dead), len(store.parked))
		}
		inOrderOfKeys(t, sink.got)
	})
}

// The same with few messages of it, and with claims.
func TestFewMessagesWhoseDestinationIsAwayStarveNone(t *testing.T) {
	bothModes(t, func(t *testing.T, cfg Config) {
		store := newMemStore()
		sink := newPartly(func(m *Message) bool { return m.Topic == "away" })
		for i := range 20 {
			store.put(Message{Topic: "away", Key: fmt.Sprint("k", i%10), Payload: fmt.Append(nil, i+1)})
		}
		cfg.Retry.MaxAttempts = 1
		r, stop := running(t, store, sink, cfg)
		defer stop()
		time.Sleep(time.Minute)
		if cfg.Claim != SkipLocked && !r.Stats().BrokerDown { // there, empty claims say that it is up
			t.Error("nothing is taken, and the broker is not said to be down")
		}
		for i := range 600 {
			store.put(Message{Topic: "free", Key: fmt.Sprint("f", i%7), Payload: fmt.Append(nil, i+1)})
			time.Sleep(100 * time.Millisecond)
		}
		until(t, "the free ones are delivered", func() bool { return len(sink.topics()) == 600 })
		if s := r.Stats(); s.BrokerDown || s.Blocked != 1 {
			t.Errorf("broker down %v, %d blocked", s.BrokerDown, s.Blocked)
		}
		sink.away.Store(false)
		until(t, "the table is empty", func() bool { return store.pending() == 0 })
		if len(store.dead) > 0 {
			t.Errorf("%d dead letters", len(store.dead))
		}
		if cfg.Claim != SkipLocked {
			inOrderOfKeys(t, sink.got)
		}
	})
}

// A partition that is away holds up what goes into it, and little else: its
// destination takes others all the time.
func TestAPartitionThatIsAwayHoldsUpLittle(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := newMemStore()
		sink := newPartly(func(m *Message) bool { return strings.HasPrefix(m.Key, "gone") })
		cfg := fast()
		cfg.MaxPoll, cfg.Retry.MaxAttempts = time.Second, 1
		r, stop := running(t, store, sink, cfg)
		defer stop()
		for i := range 6000 {
			m := Message{Topic: "t", Key: fmt.Sprint("k", i%100), Payload: fmt.Append(nil, i+1)}
			if i%100 == 0 {
				m.Key = fmt.Sprint("gone", i/100)
			}
			store.put(m)
			time.Sleep(100 * time.Millisecond)
		}
		if n := len(sink.topics()); n < 5940/2 {
			t.Errorf("%d of 5940 were taken while a partition was away", n)
		}
		until(t, "the rest is taken", func() bool { return len(sink.topics()) == 5940 })
		// From here on all calls fail, so the broker may be said to be down.
		if n := r.Stats().Blocked; n != 0 {
			t.Errorf("%d blocked", n)
		}
		sink.away.Store(false)
		until(t, "the table is empty", func() bool { return store.pending() == 0 })
		if len(store.dead)+len(store.parked) > 0 {
			t.Errorf("%d dead letters, %d parked", len(store.dead), len(store.parked))
		}
		inOrderOfKeys(t, sink.got)
	})
}

// A broker that is away for everything is said to be, however much waits for it, and
// none of that is lost or spends an attempt.
func TestAFullRelayWaitsForItsBroker(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := newMemStore()
		sink := newPartly(func(*Message) bool { return true })
		for i := range 5000 {
			store.put(Message{Topic: fmt.Sprint("t", i%5), Key: fmt.Sprint("k", i%100), Payload: fmt.Append(nil, i+1)})
		}
		cfg := fast()
		cfg.MaxInFlight, cfg.MaxWaiting, cfg.Retry.MaxAttempts = 500, 3000, 1
		r, stop := running(t, store, sink, cfg)
		defer stop()
		for range 5 {
			time.Sleep(time.Minute)
			if s := r.Stats(); !s.BrokerDown || s.InFlight > 500 {
				t.Fatalf("broker down %v, %d in flight", s.BrokerDown, s.InFlight)
			}
		}
		sink.away.Store(false)
		began := time.Now()
		until(t, "the table is empty", func() bool { return store.pending() == 0 })
		if took := time.Since(began); took > 5*time.Minute {
			t.Errorf("it took %v to go on", took)
		}
		if len(store.dead)+len(store.parked) > 0 {
			t.Errorf("%d dead letters, %d parked", len(store.dead), len(store.parked))
		}
		inOrderOfKeys(t, sink.got)
	})
}

// A connection that breaks under messages of which one has a destination that is away
// from then on does not stop everything else for good.
func TestFindingWhoBreaksAConnectionEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store, inner := newMemStore(), &memSink{}
		var calls atomic.Int64
		sink := sinkFunc(func(ctx context.Context, msgs []Message) []error {
			errs := make([]error, len(msgs))
			switch {
			case calls.Add(1) == 1:
				for i := range errs {
					errs[i] = Broken(errors.New("reset by peer"))
				}
			case msgs[0].Topic == "away":
				for i := range errs {
					errs[i] = Unavailable(errors.New("no leader"))
				}
			default:
				return inner.Publish(ctx, msgs)
			}
			return errs
		})
		store.put(Message{Topic: "away", Key: "k"})
		_, stop := running(t, store, sink, fast())
		defer stop()
		time.Sleep(5 * time.Second)
		store.put(Message{Topic: "free", Key: "f"}, Message{Topic: "free", Key: "g"}, Message{Topic: "free", Key: "h"})
		time.Sleep(5 * time.Minute)
		if n := len(inner.topics()); n < 2 {
			t.Errorf("%d of 3 are delivered, of which at most one waits with the other", n)
		}
	})
}

// cautious is a sink that gives a call up at the first message whose destination it
// cannot reach, and holds back all behind it.
type cautious struct {
	*memSink
	away func(*Message) bool
}

func (s *cautious) Publish(ctx context.Context, msgs []Message) []error {
	at := slices.IndexFunc(msgs, func(m Message) bool { return s.away(&m) })
	if at < 0 {
		return s.memSink.Publish(ctx, msgs)
	}
	sleep(ctx, time.Second)
	errs := make([]error, len(msgs))
	copy(errs, s.memSink.Publish(ctx, msgs[:at]))
	errs[at] = Unavailable(errors.New("no leader"))
	for i := at + 1; i < len(msgs); i++ {
		errs[i] = ErrHeldBack
	}
	return errs
}

// The message behind one whose destination is away, in each call that a lane or a worker makes,
// is sent first the next time.
func TestWhoIsHeldBackBehindADestinationThatIsAwayIsSent(t *testing.T) {
	bothModes(t, func(t *testing.T, cfg Config) {
		store := newMemStore()
		var away atomic.Bool
		away.Store(true)
		sink := &cautious{&memSink{}, func(m *Message) bool { return away.Load() && strings.HasPrefix(m.Topic, "away") }}
		for i := range 20 {
			store.put(Message{Topic: fmt.Sprint("away", i%2), Key: fmt.Sprint("k", i), Payload: fmt.Append(nil, i+1)})
		}
		for i := range 20 {
			store.put(Message{Topic: "free", Key: fmt.Sprint("f", i%3), Payload: fmt.Append(nil, i+1)})
		}
		cfg.Publishers = 1
		_, stop := running(t, store, sink, cfg)
		defer stop()
		time.Sleep(time.Minute)
		if n := len(sink.topics()); n != 20 {
			t.Fatalf("%d of 20 are delivered behind a destination that is away", n)
		}
		away.Store(false)
		until(t, "the table is empty", func() bool { return store.pending() == 0 })
		if len(store.dead) > 0 {
			t.Errorf("%d dead letters", len(store.dead))
		}
		inOrderOfKeys(t, sink.got)
	})
}

// The same where both have waited for another attempt.
func TestWhoIsTriedAgainWithADestinationThatIsAwayIsSent(t *testing.T) {
	for range 20 { // who is due first is chance
		synctest.Test(t, func(t *testing.T) {
			store := newMemStore()
			var away atomic.Bool
			sink := &cautious{&memSink{}, func(m *Message) bool { return away.Load() && m.Topic == "away" }}
			sink.decide = func(*Message) error {
				if away.Load() {
					return nil
				}
				return Busy(errors.New("full"))
			}
			busy := sinkFunc(func(ctx context.Context, msgs []Message) []error {
				if msgs[0].Topic == "full" { // so long that the others are due together
					sleep(ctx, 2*time.Second)
					errs := make([]error, len(msgs))
					for i := range errs {
						errs[i] = ErrHeldBack
					}
					errs[0] = RetryAfter(Busy(errors.New("full")), time.Hour)
					return errs
				}
				return sink.Publish(ctx, msgs)
			})
			store.put(Message{Topic: "away", Key: "a", Payload: []byte("1")}, Message{Topic: "free", Key: "f", Payload: []byte("1")})
			cfg := fast()
			cfg.Publishers = 1
			r, stop := running(t, store, busy, cfg)
			defer stop()
			until(t, "both wait", func() bool { return r.Stats().Parked == 2 })
			away.Store(true)
			store.put(Message{Topic: "full"})
			r.Nudge()
			time.Sleep(time.Minute)
			if !slices.Contains(sink.topics(), "free") {
				t.Fatal("a message that is tried again beside one whose destination is away was not delivered")
			}
		})
	}
}

// inLane names a key of one lane of two.
func inLane(lane uint32, name string, i int) string {
	for n := i * 1000; ; n++ {
		h := fnv.New32a()
		key := fmt.Sprint(name, n)
		_, _ = h.Write([]byte(key))
		if h.Sum32()%2 == lane {
			return key
		}
	}
}

// A broker that is gone for two seconds, which takes some calls their whole time-out,
// does not leave destinations alone for much longer.
func TestADestinationThatWasGoneForAMomentGoesOn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store, inner := newMemStore(), &memSink{}
		began := time.Now()
		sink := sinkFunc(func(ctx context.Context, msgs []Message) []error {
			gone := time.Since(began) < 2*time.Second
			switch {
			case gone && slices.ContainsFunc(msgs, func(m Message) bool { return m.Topic == "slow" }):
				sleep(ctx, 10*time.Second)
				errs := make([]error, len(msgs))
				for i := range errs {
					errs[i] = Unavailable(errors.New("no answer within 10s"))
				}
				return errs
			case gone: // a client that tries again itself
				sleep(ctx, 2*time.Second)
			}
			return inner.Publish(ctx, msgs)
		})
		for i := range 8 {
			store.put(Message{Topic: "slow", Key: inLane(0, "s", i), Payload: []byte("1")})
		}
		cfg := fast()
		cfg.Publishers = 2
		_, stop := running(t, store, sink, cfg)
		defer stop()
		for i := range 100 {
			store.put(Message{Topic: "quick", Key: inLane(1, "q", i%8), Payload: fmt.Append(nil, i+1)})
			time.Sleep(100 * time.Millisecond)
		}
		until(t, "the table is empty", func() bool { return store.pending() == 0 })
		if took := time.Since(began); took > 15*time.Second {
			t.Errorf("messages waited %v for a broker that was gone for 2s", took)
		}
	})
}

// Messages tried in vain are tried at once when the broker takes other messages again after it
// took none.
func TestDestinationsAreTriedWhenTheBrokerIsBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store, inner := newMemStore(), &memSink{}
		began := time.Now()
		sink := sinkFunc(func(ctx context.Context, msgs []Message) []error {
			gone := time.Since(began)
			slow := slices.ContainsFunc(msgs, func(m Message) bool { return m.Topic == "slow" })
			if gone < 15*time.Second && (slow || gone > time.Second) {
				sleep(ctx, 10*time.Second)
				errs := make([]error, len(msgs))
				for i := range errs {
					errs[i] = Unavailable(errors.New("no answer within 10s"))
				}
				return errs
			}
			return inner.Publish(ctx, msgs)
		})
		for i := range 8 {
			store.put(Message{Topic: "slow", Key: inLane(0, "s", i), Payload: []byte("1")})
		}
		cfg := fast()
		cfg.Publishers = 2
		_, stop := running(t, store, sink, cfg)
		defer stop()
		for i := range 300 {
			store.put(Message{Topic: "quick", Key: inLane(1, "q", i%8), Payload: fmt.Append(nil, i+1)})
			time.Sleep(100 * time.Millisecond)
		}
		until(t, "the table is empty", func() bool { return store.pending() == 0 })
		if took := time.Since(began); took > 35*time.Second {
			t.Errorf("messages waited %v for a broker that was gone for 15s", took)
		}
		if len(store.dead)+len(store.parked) > 0 {
			t.Errorf("%d dead letters, %d parked", len(store.dead), len(store.parked))
		}
	})
}

// Destinations are tried for a broker that is back once a minute: perhaps only a part
// of it was away, or still is.
func TestABrokerIsBackOnceAMinute(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCircuits(&memSink{})
		for i, want := range []uint64{1, 1, 2} { // after no time, 40 s and 80 s
			c.missed()
			c.confirmed([]string{"t"})
			if n := c.lit.Load(); n != want {
				t.Errorf("the broker was back %d times after %d s, want %d", n, 40*i, want)
			}
			time.Sleep(40 * time.Second)
		}
	})
}
