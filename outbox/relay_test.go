package outbox

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
)

// memSink is a broker that keeps the messages that it confirmed. decide may refuse messages.
type memSink struct {
	mu     sync.Mutex
	got    []Message
	calls  int
	tried  map[string]int // calls by topic
	decide func(m *Message) error
	delay  time.Duration
}

func (s *memSink) Publish(ctx context.Context, msgs []Message) []error {
	if s.delay > 0 {
		sleep(ctx, s.delay)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.calls++
	errs := make([]error, len(msgs))
	failed := map[string]bool{}
	bad := false
	for i := range msgs {
		m := &msgs[i]
		if m.Key != "" && failed[m.Key] {
			errs[i], bad = ErrHeldBack, true
			continue
		}
		if s.tried == nil {
			s.tried = map[string]int{}
		}
		s.tried[m.Topic]++
		if s.decide != nil {
			errs[i] = s.decide(m)
		}
		if errs[i] != nil {
			failed[m.Key], bad = true, true
			continue
		}
		s.got = append(s.got, *m)
	}
	if !bad {
		return nil
	}
	return errs
}

func (s *memSink) Close() error { return nil }

// tries returns how often the topic was attempted. It may be called by decide, and when the
// relay is idle.
func (s *memSink) tries(topic string) int { return s.tried[topic] }

func (s *memSink) topics() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	var out []string
	for _, m := range s.got {
		out = append(out, m.Topic)
	}
	return out
}

// fast is a configuration for virtual time.
func fast() Config { return Config{AckDelay: -1, Claim: Poll} }

// running starts a relay in the synctest bubble, and returns a function that ends it.
func running(t *testing.T, store Store, sink Sink, cfg Config) (*Relay, func()) {
	t.Helper()
	r, err := NewRelay(store, sink, cfg)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- r.Run(ctx) }()
	return r, func() {
		cancel()
		if err := <-done; err != nil {
			t.Errorf("Run: %v", err)
		}
	}
}

// until lets virtual time pass until the condition holds.
func until(t *testing.T, what string, cond func() bool) {
	t.Helper()
	for range 200_000 {
		if cond() {
			return
		}
		time.Sleep(10 * time.Millisecond)
	}
	t.Fatalf("never: %s", what)
}

func TestRelayDeliversAndEmptiesTheTable(t *testing.T) {
	for _, mode := range []ClaimMode{Poll, Log, Auto, SkipLocked} {
		t.Run(mode.String(), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				store, sink := newMemStore(), &memSink{}
				store.noTail = nil
				for i := range 5000 {
					store.put(Message{Topic: fmt.Sprint(i), Key: "one", Payload: []byte("x")})
				}
				cfg := fast()
				cfg.Claim = mode
				if mode == SkipLocked {
					cfg.Publishers = 1
				}
				r, stop := running(t, store, sink, cfg)
				until(t, "the table is empty", func() bool { return store.pending() == 0 })
				store.put(Message{Topic: "5000", Key: "one"}) // by the log, where it is followed
				until(t, "the table is empty again", func() bool { return store.pending() == 0 })
				stop()
				for i, topic := range sink.topics() {
					if topic != fmt.Sprint(i) {
						t.Fatalf("message %d is %q", i, topic)
					}
				}
				s := r.Stats()
				if s.Delivered != 5001 || s.Acked != 5001 || s.Bytes != 5000 || s.InFlight != 0 {
					t.Errorf("stats %+v", s)
				}
			})
		})
	}
}

func TestRelayBlocksOnlyTheKeyThatFails(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store, sink := newMemStore(), &memSink{}
		healed := false
		sink.decide = func(m *Message) error {
			if m.Topic == "poison" && !healed {
				return errors.New("no")
			}
			return nil
		}
		store.put(
			Message{Topic: "poison", Key: "a"}, Message{Topic: "a2", Key: "a"}, Message{Topic: "b1", Key: "b"},
			Message{Topic: "free"}, Message{Topic: "a3", Key: "a"},
		)
		r, stop := running(t, store, sink, fast())
		defer stop()
		until(t, "the others are through", func() bool { return len(sink.topics()) == 2 })
		store.put(Message{Topic: "a4", Key: "a"})
		until(t, "a4 is deferred", func() bool { return r.Stats().Deferred == 3 })
		if got := sink.topics(); slices.Contains(got, "a2") {
			t.Fatalf("delivered %q: a2 has overtaken", got)
		}
		sink.mu.Lock()
		healed = true
		sink.mu.Unlock()
		until(t, "all are through", func() bool { return store.pending() == 0 })
		got := sink.topics()
		got = slices.DeleteFunc(got, func(s string) bool { return s == "b1" || s == "free" })
		if want := []string{"poison", "a2", "a3", "a4"}; !slices.Equal(got, want) {
			t.Errorf("key a came as %q, want %q", got, want)
		}
		if s := r.Stats(); s.Parked != 0 || s.Deferred != 0 || s.Retries == 0 {
			t.Errorf("stats %+v", s)
		}
	})
}

func TestRelayBuriesAfterTheLastAttemptAndGoesOn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store, sink := newMemStore(), &memSink{}
		sink.decide = func(m *Message) error {
			switch m.Topic {
			case "never":
				return errors.New("no")
			case "huge":
				return Reject(errors.New("too large"))
			}
			return nil
		}
		store.put(Message{Topic: "never", Key: "a"}, Message{Topic: "after", Key: "a"}, Message{Topic: "huge", Key: "b"}, Message{Topic: "next", Key: "b"})
		cfg := fast()
		cfg.Retry.MaxAttempts = 3
		r, stop := running(t, store, sink, cfg)
		until(t, "the table is empty", func() bool { return store.pending() == 0 })
		stop()
		reasons := map[string]int{}
		for _, b := range store.dead {
			reasons[b.Reason] = b.Attempts
		}
		if len(store.dead) != 2 || reasons["attempts"] != 3 || reasons["rejected"] != 1 {
			t.Errorf("dead letters %+v", store.dead)
		}
		if got := sink.topics(); len(got) != 2 {
			t.Errorf("delivered %q, want after and next", got)
		}
		if s := r.Stats(); s.Buried["attempts"] != 1 || s.Buried["rejected"] != 1 {
			t.Errorf("stats %+v", s.Buried)
		}
	})
}

func TestAnOutageSpendsNoAttempt(t *testing.T) {
	for _, mode := range []ClaimMode{Poll, SkipLocked} {
		synctest.Test(t, func(t *testing.T) {
			store, sink := newMemStore(), &memSink{}
			up := false
			sink.decide = func(*Message) error {
				if up {
					return nil
				}
				return Unavailable(errors.New("connection refused"))
			}
			store.put(Message{Topic: "1", Key: "a"}, Message{Topic: "2", Key: "a"}, Message{Topic: "3"})
			cfg := fast()
			cfg.Claim, cfg.Retry.MaxAttempts = mode, 1
			r, stop := running(t, store, sink, cfg)
			time.Sleep(time.Hour)
			if s := r.Stats(); !s.BrokerDown || s.Outages < 100 || s.Outages > 100_000 {
				t.Errorf("after an hour: down %v, %d calls", s.BrokerDown, s.Outages)
			}
			sink.mu.Lock()
			up = true
			sink.mu.Unlock()
			until(t, "all are through", func() bool { return store.pending() == 0 })
			stop()
			if len(store.dead) > 0 || len(store.parked) > 0 || len(sink.got) != 3 || r.Stats().BrokerDown {
				t.Errorf("%v: dead %v, parked %v, delivered %d", mode, store.dead, store.parked, len(sink.got))
			}
		})
	}
}

func TestABrokerSaysHowLongToWait(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store, sink := newMemStore(), &memSink{}
		sink.decide = func(*Message) error {
			if sink.calls < 3 {
				return Unavailable(RetryAfter(errors.New("busy"), time.Minute))
			}
			return nil
		}
		store.put(Message{Topic: "1"})
		began := time.Now()
		_, stop := running(t, store, sink, fast())
		defer stop()
		until(t, "it is through", func() bool { return store.pending() == 0 })
		if d := time.Since(began); d < 2*time.Minute || d > 3*time.Minute {
			t.Errorf("two waits of a minute each took %v", d)
		}
	})
}

func TestAttemptsSurviveTheRelay(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store, sink := newMemStore(), &memSink{decide: func(*Message) error { return errors.New("no") }}
		store.put(Message{Topic: "poison", Key: "a"})
		cfg := fast()
		cfg.Retry = RetryPolicy{MaxAttempts: 4, Base: time.Second, Max: time.Second}
		for range 4 {
			r, stop := running(t, store, sink, cfg)
			until(t, "one attempt", func() bool { s := r.Stats(); return s.Retries+s.Buried["attempts"] == 1 })
			stop()
		}
		if len(store.dead) != 1 || store.dead[0].Attempts != 4 {
			t.Errorf("dead letters %+v, want one with 4 attempts", store.dead)
		}
	})
}

func TestScheduledMessagesComeInTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store, sink := newMemStore(), &memSink{}
		due := time.Now().Add(10 * time.Minute)
		store.scheduled = append(store.scheduled, memLater{Message{Topic: "later"}, due})
		_, stop := running(t, store, sink, fast())
		defer stop()
		time.Sleep(time.Until(due) - time.Millisecond)
		if got := sink.topics(); len(got) > 0 {
			t.Fatalf("delivered %q too early", got)
		}
		time.Sleep(500 * time.Millisecond)
		if got := sink.topics(); len(got) != 1 {
			t.Fatalf("delivered %q half a second late", got)
		}
	})
}

func TestRateIsKept(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store, sink := newMemStore(), &memSink{}
		for i := range 2000 {
			store.put(Message{Topic: fmt.Sprint(i)})
		}
		cfg := fast()
		cfg.Rate = 100
		_, stop := running(t, store, sink, cfg)
		time.Sleep(10 * time.Second)
		stop()
		if n := len(sink.got); n < 950 || n > 1060 {
			t.Errorf("%d messages in 10 s at 100 per second", n)
		}
	})
}

func TestPauseHoldsReadingOnly(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for _, mode := range []ClaimMode{Poll, Log, SkipLocked} {
			store, sink := newMemStore(), &memSink{}
			store.noTail = nil
			cfg := fast()
			cfg.Claim = mode
			r, stop := running(t, store, sink, cfg)
			time.Sleep(time.Second)
			r.Pause()
			time.Sleep(time.Second) // until a read in flight has ended
			store.put(Message{Topic: "x"})
			time.Sleep(time.Minute)
			if n := len(sink.topics()); n > 1 || mode == Poll && n > 0 {
				t.Errorf("%v: %d delivered while paused", mode, n)
			}
			r.Resume()
			until(t, "delivered", func() bool { return store.pending() == 0 })
			stop()
		}
	})
}

func TestStrayRowsAreFound(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store, sink := newMemStore(), &memSink{}
		store.put(Message{Topic: "1"}, Message{Topic: "2"})
		r, stop := running(t, store, sink, fast())
		defer stop()
		until(t, "empty", func() bool { return store.pending() == 0 })
		// A row with a number far below the greatest one seen, as if inserted by hand.
		store.mu.Lock()
		store.rows[1] = &memRow{Row: Row{Message: Message{Topic: "stray"}, Seq: 1}, committed: true}
		store.mu.Unlock()
		until(t, "the stray is delivered", func() bool { return store.pending() == 0 })
		if s := r.Stats(); s.Stray != 1 || len(sink.topics()) != 3 {
			t.Errorf("strays %d, delivered %q", s.Stray, sink.topics())
		}
	})
}

// However many stray rows there are, at most MaxInFlight are held.
func TestStrayRowsWaitForRoom(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := newMemStore()
		store.put(Message{Topic: "first"})
		sink := &memSink{}
		cfg := fast()
		cfg.MaxInFlight = 200
		r, stop := running(t, store, sink, cfg)
		defer stop()
		most := int64(0)
		until(t, "empty", func() bool { return store.pending() == 0 })
		store.mu.Lock()
		store.rows[5000] = &memRow{Row: Row{Message: Message{Topic: "far"}, Seq: 5000}, committed: true}
		store.mu.Unlock()
		until(t, "the gap is proven dead", func() bool { return store.pending() == 0 && r.Stats().Gaps == 0 })
		sink.mu.Lock()
		sink.delay = time.Second
		sink.decide = func(*Message) error { most = max(most, r.Stats().InFlight); return nil }
		sink.mu.Unlock()
		store.mu.Lock()
		for seq := range int64(1000) {
			store.rows[seq+2] = &memRow{Row: Row{Message: Message{Topic: "stray"}, Seq: seq + 2}, committed: true}
		}
		store.mu.Unlock()
		until(t, "the strays are delivered", func() bool { return store.pending() == 0 })
		if s := r.Stats(); s.Stray != 1000 || most > int64(cfg.MaxInFlight)+strayPage {
			t.Errorf("%d strays, %d in flight at most, want 1000 and about %d", s.Stray, most, cfg.MaxInFlight)
		}
	})
}

// With many gaps between many waiting rows, a read of the gaps must not return those rows again.
func TestGapsAmongRowsThatWaitAreReadAlone(t *testing.T) {
	for _, join := range []bool{false, true} { // by the store, which merges ranges
		t.Run(fmt.Sprint("join ", join), func(t *testing.T) { gapsAmongRowsThatWait(t, join) })
	}
}

func gapsAmongRowsThatWait(t *testing.T, join bool) {
	synctest.Test(t, func(t *testing.T) {
		store, sink := newMemStore(), &memSink{}
		store.join = join
		healed := false
		sink.decide = func(m *Message) error {
			if m.Topic == "first" && !healed {
				return errors.New("no")
			}
			return nil
		}
		open := store.begin()
		store.put(Message{Topic: "first", Key: "k"})
		const gaps, between = 200, 30
		for range gaps {
			open.insert(Message{Topic: "late"})
			for range between {
				store.put(Message{Topic: "more", Key: "k"})
			}
		}
		cfg := fast()
		cfg.Retry.MaxAttempts = 1000
		r, stop := running(t, store, sink, cfg)
		defer stop()
		until(t, "all wait", func() bool { return r.Stats().Deferred == gaps*between })
		store.put(Message{Topic: "late"}) // behind all gaps
		until(t, "what is new is through", func() bool { return len(sink.topics()) == 1 })
		open.end(true)
		until(t, "the late ones are through", func() bool { return len(sink.topics()) == gaps+1 })
		store.mu.Lock()
		longest := store.longest
		store.mu.Unlock()
		if longest > readLimit {
			t.Errorf("a page was %d rows long, want at most %d", longest, readLimit)
		}
		sink.mu.Lock()
		healed = true
		sink.mu.Unlock()
		until(t, "empty", func() bool { return store.pending() == 0 })
	})
}

func TestUnreadableRowsAreBuried(t *testing.T) {
	for _, mode := range []ClaimMode{Poll, SkipLocked} {
		synctest.Test(t, func(t *testing.T) {
			store, sink := newMemStore(), &memSink{}
			store.put(Message{Topic: "bad", Key: "k"}, Message{Topic: "good", Key: "k"})
			store.rows[1].Unreadable = errors.New("headers are no JSON")
			cfg := fast()
			cfg.Claim = mode
			_, stop := running(t, store, sink, cfg)
			until(t, "empty", func() bool { return store.pending() == 0 })
			stop()
			if len(store.dead) != 1 || store.dead[0].Reason != "unreadable" || !slices.Equal(sink.topics(), []string{"good"}) {
				t.Errorf("dead %v, delivered %q", store.dead, sink.topics())
			}
		})
	}
}

// TestRowsOutsideTheWindowHoldUpNone delivers a long backlog outside the window without delaying
// the rows inside it.
func TestRowsOutsideTheWindowHoldUpNone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store, sink := newMemStore(), &memSink{}
		for i := range 3000 {
			store.put(Message{Topic: fmt.Sprint("old", i)})
		}
		time.Sleep(2 * time.Hour)
		cfg := fast()
		cfg.Claim, cfg.Window, cfg.Batch, cfg.Publishers = SkipLocked, time.Hour, 10, 1
		r, err := NewRelay(&windowStore{store}, sink, cfg)
		if err != nil {
			t.Fatal(err)
		}
		ctx, stop := context.WithCancel(t.Context())
		done := make(chan error, 1)
		go func() { done <- r.Run(ctx) }()
		time.Sleep(time.Second)
		for i := range 100 {
			store.put(Message{Topic: fmt.Sprint("new", i)})
		}
		time.Sleep(time.Second)
		fresh := 0
		for _, topic := range sink.topics() {
			if strings.HasPrefix(topic, "new") {
				fresh++
			}
		}
		if fresh != 100 || len(sink.topics()) == 3100 {
			t.Errorf("%d of 100 new messages within a second, %d in all: want all the new and few of the old", fresh, len(sink.topics()))
		}
		until(t, "the table is empty", func() bool { return store.pending() == 0 })
		if s := r.Stats(); s.Outside != 3000 {
			t.Errorf("%d counted outside, want 3000", s.Outside)
		}
		stop()
		if err := <-done; err != nil {
			t.Fatal(err)
		}
	})
}

// windowStore reports that its table is partitioned.
type windowStore struct{ *memStore }

func (s *windowStore) Describe(ctx context.Context) (Description, error) {
	d, err := s.memStore.Describe(ctx)
	d.Layout, d.Period = History, Daily
	return d, err
}

func TestDrainFinishesWhatTheSinkHas(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store, sink := newMemStore(), &memSink{delay: time.Second}
		for i := range 100 {
			store.put(Message{Topic: fmt.Sprint(i), Key: "k"})
		}
		cfg := fast()
		cfg.Batch = 10
		_, stop := running(t, store, sink, cfg)
		time.Sleep(1500 * time.Millisecond) // in the second call
		stop()
		if len(sink.got) != 20 || store.pending() != 80 {
			t.Errorf("delivered %d, pending %d: want 20 and 80", len(sink.got), store.pending())
		}
	})
}

// ledger records what was committed, and in which order for each key, and checks what a sink
// received.
type ledger struct {
	mu   sync.Mutex
	sent map[string]int      // topic -> place in the order of its key
	keys map[string][]string // key -> topics in the order of commits
}

func (l *ledger) check(t *testing.T, got []Message, dead []Row) (duplicates int) {
	t.Helper()
	first := map[string]bool{}
	last := map[string]int{}
	gone := map[string]bool{}
	for _, r := range dead {
		gone[r.Topic] = true
	}
	for _, m := range got {
		if first[m.Topic] {
			duplicates++
			continue
		}
		first[m.Topic] = true
		place, known := l.sent[m.Topic]
		if !known {
			t.Fatalf("%s was delivered and never committed", m.Topic)
		}
		if m.Key != "" && place < last[m.Key] {
			t.Fatalf("key %s: %s came after a later one", m.Key, m.Topic)
		}
		last[m.Key] = place
	}
	for topic := range l.sent {
		if !first[topic] && !gone[topic] {
			t.Fatalf("%s was committed and never delivered", topic)
		}
	}
	return duplicates
}

// TestRelayUnderFire runs producers whose transactions overlap, commit late or roll back, and
// three relays, while sessions are killed, statements fail, the log breaks off, and the broker
// is away, refuses messages or fails. No message may be lost, no key may be out of order, and
// each seed must give the same run again.
func TestRelayUnderFire(t *testing.T) {
	seeds := 40
	if testing.Short() {
		seeds = 8
	}
	for seed := range uint64(seeds) {
		synctest.Test(t, func(t *testing.T) { underFire(t, seed) })
	}
}

func underFire(t *testing.T, seed uint64) {
	rng := rand.New(rand.NewPCG(seed, 11))
	var mu sync.Mutex // of rng
	chance := func(n int) bool { mu.Lock(); defer mu.Unlock(); return rng.IntN(n) == 0 }
	upTo := func(n int) int { mu.Lock(); defer mu.Unlock(); return rng.IntN(n) }
	store := newMemStore()
	store.shards = 1 + upTo(3)
	if chance(2) {
		store.noTail = nil
	}
	var calm atomic.Bool
	store.fail = func(op string) error {
		if !calm.Load() && op != "describe" && chance(200) {
			return errors.New("deadlock")
		}
		return nil
	}
	sink := &memSink{delay: time.Duration(upTo(3)) * time.Millisecond}
	sink.decide = func(*Message) error {
		switch {
		case calm.Load():
			return nil
		case chance(50):
			return errors.New("no")
		case chance(300):
			return Reject(errors.New("never"))
		case chance(30):
			return Unavailable(errors.New("away"))
		}
		return nil
	}
	cfg := fast()
	cfg.Claim, cfg.MaxInFlight, cfg.Batch = Auto, 50, 10
	cfg.Retry = RetryPolicy{MaxAttempts: 5, Base: 10 * time.Millisecond, Max: time.Second}
	var stops []func()
	var relays []*Relay
	for range 3 {
		r, stop := running(t, store, sink, cfg)
		relays, stops = append(relays, r), append(stops, stop)
	}
	book := &ledger{sent: map[string]int{}, keys: map[string][]string{}}
	var producers sync.WaitGroup
	for p := range 6 {
		producers.Go(func() {
			key := fmt.Sprintf("k%d", p) // commits of one key never overlap
			for i := range 60 {
				tx := store.begin()
				topic := fmt.Sprintf("%s-%d", key, i)
				k := key
				if chance(5) {
					k = ""
				}
				tx.insert(Message{Topic: topic, Key: k})
				time.Sleep(time.Duration(upTo(20)) * time.Millisecond)
				if chance(8) {
					tx.end(false)
					continue
				}
				book.mu.Lock()
				book.sent[topic] = i + 1
				book.mu.Unlock()
				tx.end(true)
			}
		})
	}
	kills := 0
	for range 40 {
		time.Sleep(time.Duration(upTo(60)) * time.Millisecond)
		store.mu.Lock()
		var victim *memLease
		for shard := range store.shards {
			if l := store.leaders[shard]; l != nil {
				victim = l
			}
		}
		for tail := range store.tails {
			if seed%2 == 0 {
				tail.once.Do(func() { close(tail.broken) })
			}
		}
		store.mu.Unlock()
		if victim != nil {
			victim.kill()
			kills++
		}
	}
	producers.Wait()
	calm.Store(true)
	until(t, fmt.Sprintf("seed %d: the table is empty", seed), func() bool { return store.pending() == 0 })
	for i, stop := range stops {
		stop()
		if s := relays[i].Stats(); s.InFlight != 0 || s.Parked != 0 || s.Deferred != 0 || s.Leading != 0 {
			t.Errorf("seed %d: relay %d ends with %d in flight, %d parked, %d deferred, %d led", seed, i, s.InFlight, s.Parked, s.Deferred, s.Leading)
		}
	}
	if dup := book.check(t, sink.got, store.deadRows); dup > (kills+200)*cfg.MaxInFlight {
		t.Errorf("seed %d: %d duplicates after %d kills", seed, dup, kills)
	}
}
