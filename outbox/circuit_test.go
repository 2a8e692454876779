package outbox

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
)

// bothModes runs f with a leader and with SKIP LOCKED claims.
func bothModes(t *testing.T, f func(t *testing.T, cfg Config)) {
	for _, mode := range []ClaimMode{Poll, SkipLocked} {
		t.Run(mode.String(), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				cfg := fast()
				cfg.Claim, cfg.MaxPoll = mode, time.Second
				f(t, cfg)
			})
		})
	}
}

// inOrderOfKeys fails the test unless the payloads of each key ascend.
func inOrderOfKeys(t *testing.T, got []Message) {
	t.Helper()
	last := map[string]int{}
	for _, m := range got {
		var n int
		if _, err := fmt.Sscan(string(m.Payload), &n); err != nil {
			t.Fatal(err)
		}
		if m.Key != "" && n <= last[m.Key] {
			t.Fatalf("%s %d came after %d", m.Key, n, last[m.Key])
		}
		last[m.Key] = n
	}
}

// A destination that is full holds up only its own messages, and later ones of their keys.
func TestAFullDestinationStarvesNoOther(t *testing.T) {
	bothModes(t, func(t *testing.T, cfg Config) {
		store := newMemStore()
		var full atomic.Bool
		full.Store(true)
		sink := &memSink{decide: func(m *Message) error {
			if m.Topic == "full" && full.Load() {
				return Busy(errors.New("the queue is full"))
			}
			return nil
		}}
		for i := range 3000 {
			store.put(Message{Topic: "full", Key: fmt.Sprint("k", i%100), Payload: fmt.Append(nil, i+1)})
		}
		for i := range 1000 {
			store.put(Message{Topic: "free", Key: fmt.Sprint("f", i%100), Payload: fmt.Append(nil, i+1)})
		}
		cfg.MaxInFlight = 500
		r, stop := running(t, store, sink, cfg)
		defer stop()
		until(t, "the free ones are delivered", func() bool { return len(sink.topics()) == 1000 })
		time.Sleep(time.Minute)
		if n := store.pending(); n != 3000 || r.Stats().Blocked != 1 {
			t.Errorf("%d pending, %d destinations blocked: want 3000 and 1", n, r.Stats().Blocked)
		}
		full.Store(false)
		until(t, "the table is empty", func() bool { return store.pending() == 0 })
		if len(store.dead) > 0 {
			t.Errorf("%d dead letters", len(store.dead))
		}
		if cfg.Claim != SkipLocked {
			inOrderOfKeys(t, sink.got)
		}
	})
}

// Messages beyond those that memory holds stay in the table, others go on, and the order of keys
// holds when they are read again.
func TestWhatWaitsIsBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := newMemStore()
		var full atomic.Bool
		full.Store(true)
		sink := &memSink{decide: func(m *Message) error {
			if m.Topic == "full" && full.Load() {
				return Busy(errors.New("the queue is full"))
			}
			return nil
		}}
		cfg := fast()
		cfg.MaxWaiting, cfg.MaxInFlight, cfg.SweepEvery = 300, 200, time.Second
		put := func(from, to int) {
			for i := from; i < to; i++ {
				store.put(Message{Topic: "full", Key: fmt.Sprint("k", i%150), Payload: fmt.Append(nil, i+1)})
			}
		}
		put(0, 2000)
		for i := range 500 { // of the same keys, after those
			store.put(Message{Topic: "free", Key: fmt.Sprint("k", i%150), Payload: fmt.Append(nil, 2001+i)})
			store.put(Message{Topic: "free"}, Message{Topic: "free", Key: fmt.Sprint("other", i), Payload: []byte("1")})
		}
		for _, m := range store.rows {
			if m.Payload == nil {
				m.Payload = []byte("1")
			}
		}
		r, stop := running(t, store, sink, cfg)
		defer stop()
		until(t, "the free ones are delivered", func() bool { return len(sink.topics()) >= 900 })
		time.Sleep(time.Minute)
		if s := r.Stats(); s.Parked+s.Deferred > 310 || s.Stray > 0 || s.InFlight > 200 {
			t.Errorf("while it is full: %+v", s)
		}
		full.Store(false)
		until(t, "the table is empty", func() bool { return store.pending() == 0 })
		inOrderOfKeys(t, slices.DeleteFunc(slices.Clone(sink.got), func(m Message) bool { return m.Key == "" }))
		if n := len(sink.got); n != 3500 {
			t.Errorf("%d deliveries, want 3500", n)
		}
	})
}

// If all messages fail, the destination is to blame: none spends its attempts.
func TestAnEndpointThatFailsForAllBuriesNone(t *testing.T) {
	bothModes(t, func(t *testing.T, cfg Config) {
		store := newMemStore()
		var bad atomic.Bool
		bad.Store(true)
		var calls atomic.Int64
		sink := &memSink{decide: func(*Message) error {
			calls.Add(1)
			if bad.Load() {
				return errors.New("500 Internal Server Error")
			}
			return nil
		}}
		cfg.Retry.MaxAttempts = 3
		for i := range 2000 {
			store.put(Message{Topic: "t", Key: fmt.Sprint(i), Payload: fmt.Append(nil, i+1)})
		}
		_, stop := running(t, store, sink, cfg)
		defer stop()
		time.Sleep(time.Minute)
		if n := store.buried(); n > 0 {
			t.Errorf("%d messages were buried", n)
		}
		if n := calls.Load(); n > 5_000 {
			t.Errorf("%d messages were sent to an endpoint that fails", n)
		}
		bad.Store(false)
		began := time.Now()
		until(t, "the table is empty", func() bool { return store.pending() == 0 })
		if took := time.Since(began); took > 30*time.Second {
			t.Errorf("it took %v to go on", took)
		}
	})
}

// If a destination rejects every message, for example because of wrong settings, its backlog
// does not become dead letters. Messages that are invalid in themselves do not count as a sign
// of that.
func TestADestinationThatRejectsAllIsNotEmptied(t *testing.T) {
	bothModes(t, func(t *testing.T, cfg Config) {
		store := newMemStore()
		var slip atomic.Bool
		slip.Store(true)
		sink := &memSink{decide: func(m *Message) error {
			switch {
			case m.Topic == "huge":
				return Invalid(errors.New("too large"))
			case m.Topic == "t" && slip.Load(), string(m.Payload) == "500":
				return Reject(errors.New("400 Bad Request"))
			}
			return nil
		}}
		for i := range 2000 {
			store.put(Message{Topic: "t", Key: fmt.Sprint(i % 300), Payload: fmt.Append(nil, i+1)})
		}
		for range 20 {
			store.put(Message{Topic: "huge", Payload: []byte("1")})
		}
		r, stop := running(t, store, sink, cfg)
		defer stop()
		time.Sleep(time.Minute)
		if n := store.buried() - 20; n > 0 {
			t.Errorf("%d messages were buried", n)
		}
		if store.pending() > 2000 || r.Stats().Blocked != 1 {
			t.Errorf("%d pending, %d destinations blocked", store.pending(), r.Stats().Blocked)
		}
		slip.Store(false)
		until(t, "the table is empty", func() bool { return store.pending() == 0 })
		if n := store.buried() - 20; n != 1 {
			t.Errorf("%d messages were buried, want the one that is rejected among others", n)
		}
		if cfg.Claim != SkipLocked {
			inOrderOfKeys(t, sink.got)
		}
	})
}

// A destination does not stay blocked for ever if it permanently refuses the first message of
// each key: these are given up one by one, each after the longest time that a message's attempts
// can take, until it accepts one. A destination that refuses everything loses no more messages
// than that.
func TestWhatStandsBehindRefusalsIsSentInTheEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := newMemStore()
		sink := &memSink{decide: func(m *Message) error {
			if m.Topic == "slip" || strings.HasPrefix(m.Key, "bad") && m.Headers["ok"] == "" {
				return Reject(errors.New("400 Bad Request"))
			}
			return nil
		}}
		for i := range 6 { // three in each of two keys
			store.put(Message{Topic: "t", Key: fmt.Sprint("bad", i%2), Payload: fmt.Append(nil, i+1)})
		}
		for i := range 20 {
			store.put(Message{Topic: "t", Key: fmt.Sprint("bad", i%2), Headers: map[string]string{"ok": "1"}, Payload: fmt.Append(nil, i+7)})
		}
		for i := range 2000 {
			store.put(Message{Topic: "slip", Key: fmt.Sprint(i % 7), Payload: fmt.Append(nil, i+1)})
		}
		cfg := fast() // ten attempts, up to five minutes apart
		cfg.MaxPoll = time.Minute
		r, stop := running(t, store, sink, cfg)
		defer stop()
		time.Sleep(45 * time.Minute)
		if n := store.buried(); n != 1 {
			t.Errorf("%d were buried at once, want one where there are two to try", n)
		}
		time.Sleep(4 * time.Hour)
		if n := len(sink.topics()); n != 20 {
			t.Errorf("%d of 20 that stood behind refusals were delivered", n)
		}
		buried := map[string]int{}
		store.mu.Lock()
		for _, row := range store.deadRows {
			buried[row.Topic]++
		}
		store.mu.Unlock()
		if buried["t"] != 6 || buried["slip"] < 4 || buried["slip"] > 8 {
			t.Errorf("buried %v: want the 6 of t that are bad, and of the other one each 50 minutes", buried)
		}
		if r.Stats().Blocked != 1 {
			t.Errorf("%d destinations are blocked", r.Stats().Blocked)
		}
		inOrderOfKeys(t, sink.got)
	})
}

// Messages that are rejected while the destination accepts others all become dead letters.
func TestRejectedMessagesAmongOthersAreBuried(t *testing.T) {
	bothModes(t, func(t *testing.T, cfg Config) {
		store := newMemStore()
		sink := &memSink{decide: func(m *Message) error {
			if strings.HasPrefix(m.Key, "bad") {
				return Reject(errors.New("400 Bad Request"))
			}
			return nil
		}}
		for i := range 50 {
			store.put(Message{Topic: "t", Key: fmt.Sprint("bad", i), Payload: fmt.Append(nil, i+1)})
		}
		_, stop := running(t, store, sink, cfg)
		defer stop()
		time.Sleep(time.Minute)
		for i := range 100 {
			store.put(Message{Topic: "t", Key: "good", Payload: fmt.Append(nil, i+1)})
			time.Sleep(time.Second)
		}
		time.Sleep(5 * time.Minute)
		if store.pending() > 0 {
			t.Fatalf("%d of 50 are left", store.pending())
		}
		if n := store.buried(); n != 50 || len(sink.topics()) != 100 {
			t.Errorf("%d buried, %d delivered, want 50 and 100", n, len(sink.topics()))
		}
	})
}

// A message that gets a doubtful answer (429 or 503, say) while others are accepted spends its
// attempts, and its key goes on.
func TestADoubtfulAnswerForOneMessageSpendsItsAttempts(t *testing.T) {
	bothModes(t, func(t *testing.T, cfg Config) {
		store := newMemStore()
		sink := &memSink{decide: func(m *Message) error {
			if string(m.Payload) == "1" {
				return RetryAfter(Doubtful(errors.New("403 Forbidden")), time.Second)
			}
			return nil
		}}
		cfg.Retry.MaxAttempts = 4
		store.put(Message{Topic: "t", Key: "bad", Payload: []byte("1")}, Message{Topic: "t", Key: "bad", Payload: []byte("2")})
		_, stop := running(t, store, sink, cfg)
		defer stop()
		for i := range 60 {
			store.put(Message{Topic: "t", Key: "good", Payload: fmt.Append(nil, i+3)})
			time.Sleep(time.Second)
		}
		until(t, "the table is empty", func() bool { return store.pending() == 0 })
		if len(store.dead) != 1 || store.dead[0].Reason != "attempts" || store.dead[0].Attempts != 4 {
			t.Errorf("dead letters %+v", store.dead)
		}
	})
}

// The same answer spends no attempts if the destination accepts no other message.
func TestADoubtfulAnswerAloneProvesNothing(t *testing.T) {
	bothModes(t, func(t *testing.T, cfg Config) {
		store := newMemStore()
		var denied atomic.Bool
		denied.Store(true)
		sink := &memSink{decide: func(*Message) error {
			if denied.Load() {
				return Doubtful(errors.New("401 Unauthorized"))
			}
			return nil
		}}
		cfg.Retry.MaxAttempts = 2
		store.put(Message{Topic: "t", Key: "k", Payload: []byte("1")})
		_, stop := running(t, store, sink, cfg)
		defer stop()
		time.Sleep(time.Minute)
		denied.Store(false)
		until(t, "the table is empty", func() bool { return store.pending() == 0 })
		if len(store.dead) > 0 {
			t.Errorf("dead letters %+v", store.dead)
		}
	})
}

// frail is a broker whose connection breaks at each killer message; it accepts the messages
// before that one.
type frail struct {
	memSink
	breaks atomic.Int64
	away   atomic.Bool
}

func (s *frail) Publish(ctx context.Context, msgs []Message) []error {
	fill := func(err error) []error {
		errs := make([]error, len(msgs))
		for i := range errs {
			errs[i] = err
		}
		return errs
	}
	if s.away.Load() {
		return fill(Unavailable(errors.New("connection refused")))
	}
	if slices.ContainsFunc(msgs, func(m Message) bool { return m.Topic == "killer" }) {
		s.breaks.Add(1)
		return fill(Broken(errors.New("the connection was lost")))
	}
	return s.memSink.Publish(ctx, msgs)
}

// A message that always breaks the connection is found, spends its attempts and becomes a dead
// letter; no other does.
func TestAMessageThatBreaksConnectionsIsBuried(t *testing.T) {
	bothModes(t, func(t *testing.T, cfg Config) {
		store, sink := newMemStore(), &frail{}
		for i := range 400 {
			if i == 123 {
				store.put(Message{Topic: "killer", Key: "k3", Payload: []byte("0")})
			}
			store.put(Message{Topic: "t", Key: fmt.Sprint("k", i%20), Payload: fmt.Append(nil, i+1)})
		}
		cfg.Retry.MaxAttempts = 3
		_, stop := running(t, store, sink, cfg)
		defer stop()
		for i := range 60 {
			store.put(Message{Topic: "t", Key: "later", Payload: fmt.Append(nil, i+1)})
			time.Sleep(time.Second)
		}
		until(t, "the table is empty", func() bool { return store.pending() == 0 })
		if len(store.dead) != 1 || store.deadRows[0].Topic != "killer" {
			t.Errorf("dead letters %+v", store.dead)
		}
		if n := sink.breaks.Load(); n > 60 {
			t.Errorf("the connection broke %d times", n)
		}
		if cfg.Claim != SkipLocked {
			inOrderOfKeys(t, sink.got)
		}
	})
}

// A broker that goes away in the middle of a call breaks the connection, too.
func TestABrokerThatGoesAwayBuriesNone(t *testing.T) {
	bothModes(t, func(t *testing.T, cfg Config) {
		store := newMemStore()
		var state atomic.Int64 // 0: breaks, 1: refuses, 2: works
		inner := &memSink{}
		sink := sinkFunc(func(ctx context.Context, msgs []Message) []error {
			errs := make([]error, len(msgs))
			switch state.Load() {
			case 0:
				state.Store(1)
				for i := range errs {
					errs[i] = Broken(errors.New("reset by peer"))
				}
				return errs
			case 1:
				for i := range errs {
					errs[i] = Unavailable(errors.New("refused"))
				}
				return errs
			}
			return inner.Publish(ctx, msgs)
		})
		cfg.Retry.MaxAttempts = 1
		for i := range 100 {
			store.put(Message{Topic: "t", Key: fmt.Sprint(i % 3), Payload: fmt.Append(nil, i+1)})
		}
		r, stop := running(t, store, sink, cfg)
		defer stop()
		time.Sleep(time.Minute)
		if !r.Stats().BrokerDown {
			t.Error("the broker is not said to be away")
		}
		state.Store(2)
		until(t, "the table is empty", func() bool { return store.pending() == 0 })
		if len(store.dead) > 0 {
			t.Errorf("dead letters %+v", store.dead)
		}
		if cfg.Claim != SkipLocked {
			inOrderOfKeys(t, inner.got)
		}
	})
}

// Rows that cannot be read become dead letters at once, and do not count as attempts to reach a
// blocked destination.
func TestUnreadableRowsSpendNoTryOfTheirDestination(t *testing.T) {
	bothModes(t, func(t *testing.T, cfg Config) {
		store := newMemStore()
		var healed atomic.Bool
		sink := &memSink{decide: func(*Message) error {
			if healed.Load() {
				return nil
			}
			return RetryAfter(Busy(errors.New("the queue is full")), 10*time.Minute)
		}}
		for range crowd {
			store.put(Message{Topic: "t"})
		}
		r, stop := running(t, store, sink, cfg)
		defer stop()
		until(t, "the destination is blocked", func() bool { return r.Stats().Blocked == 1 })
		long := strings.Repeat("x", 300)
		for range probes {
			store.put(Message{Topic: "t", Key: long})
		}
		time.Sleep(5 * time.Minute)
		store.mu.Lock()
		if n := len(store.dead); n != probes {
			t.Errorf("%d dead letters while the destination takes nothing, want %d", n, probes)
		}
		store.mu.Unlock()
		healed.Store(true)
		until(t, "the table is empty", func() bool { return store.pending() == 0 })
	})
}

// If a leadership ends while it tries a blocked destination, the next one can try it at once.
func TestALeadershipThatEndsSpendsNoTries(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := newMemStore()
		var blocked, healed atomic.Bool
		sink := &memSink{decide: func(*Message) error {
			if healed.Load() {
				return nil
			}
			return Busy(errors.New("the queue is full"))
		}}
		store.fail = func(op string) error {
			if op == "fetch" && blocked.Load() && !healed.Swap(true) {
				return errors.New("the database was restarted")
			}
			return nil
		}
		for range 2 * probes {
			store.put(Message{Topic: "t"})
		}
		cfg := fast()
		cfg.Publishers = 1
		r, stop := running(t, store, sink, cfg)
		defer stop()
		until(t, "the destination is blocked", func() bool { return r.Stats().Blocked == 1 })
		blocked.Store(true)
		until(t, "a try meets no database", healed.Load)
		began := time.Now()
		until(t, "the table is empty", func() bool { return store.pending() == 0 })
		if d := time.Since(began); d > probePatience/3 {
			t.Errorf("the next leadership has tried after %v", d)
		}
	})
}

// A row that exceeds a limit of messages, which producers can write in plain SQL, becomes a dead
// letter that says so, and is never sent.
func TestRowsOverTheLimitsAreBuried(t *testing.T) {
	bothModes(t, func(t *testing.T, cfg Config) {
		store, sink := newMemStore(), &memSink{}
		long := strings.Repeat("x", 300)
		store.put(
			Message{Topic: long}, Message{Topic: "t", Key: long}, Message{Topic: "t", DedupKey: long},
			Message{Topic: "t", Headers: map[string]string{"h": strings.Repeat("y", 200_000)}}, Message{Topic: "good"})
		_, stop := running(t, store, sink, cfg)
		defer stop()
		until(t, "the table is empty", func() bool { return store.pending() == 0 })
		if got := sink.topics(); !slices.Equal(got, []string{"good"}) {
			t.Errorf("delivered %d topics", len(got))
		}
		if len(store.dead) != 4 {
			t.Fatalf("%d dead letters, want 4", len(store.dead))
		}
		for _, b := range store.dead {
			if b.Reason != "unreadable" || !strings.Contains(b.Error, "bytes, at most") {
				t.Errorf("%+v", b)
			}
		}
	})
}

// Messages for a part of the broker that is away do not use up the attempts of their
// destination, which are for messages that are sent.
func TestAPartThatIsAwaySpendsNoTryOfItsDestination(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCircuits(parted{newPartly(isGone)})
		fail := func(destination string, kind failureKind) {
			for i := range crowd {
				c.failed(failure{destination: destination, seq: int64(i), kind: kind}, RetryPolicy{}, time.Now())
			}
		}
		fail("t", busy)
		time.Sleep(time.Minute)
		fail("t[1]", absent)
		for range 2 * probes {
			if ok, _, by := c.admit(&Message{Topic: "t", Key: "gone"}, time.Now()); ok || by != "t[1]" {
				t.Fatalf("admitted %v, by %s, want the part to refuse", ok, by)
			}
		}
		for i := range probes {
			if ok, _, by := c.admit(&Message{Topic: "t", Key: "k"}, time.Now()); !ok {
				t.Fatalf("%s refused message %d, want %d tries", by, i, probes)
			}
		}
		if ok, _, _ := c.admit(&Message{Topic: "t", Key: "k"}, time.Now()); ok {
			t.Errorf("more than %d tries", probes)
		}
	})
}
