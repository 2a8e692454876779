package outbox

import (
	"context"
	"errors"
	"slices"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
)

// Messages that wait behind one that fails may have smaller numbers, when they were committed
// late. The failed one stays first and keeps its attempts.
func TestALateCommitWaitsBehindWhatFailedBefore(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store, sink := newMemStore(), &memSink{}
		sink.decide = func(m *Message) error {
			if m.Topic == "fails" {
				return errors.New("no")
			}
			return nil
		}
		late, gone := store.begin(), store.begin()
		late.insert(Message{Topic: "late", Key: "k"})
		removed := gone.insert(Message{Topic: "gone", Key: "k"})
		store.put(Message{Topic: "fails", Key: "k"}, Message{Topic: "last", Key: "k"})
		cfg := fast()
		cfg.Retry.MaxAttempts = 3
		r, stop := running(t, store, sink, cfg)
		defer stop()
		until(t, "last is deferred", func() bool { return r.Stats().Deferred == 1 })
		late.end(true)
		gone.end(true)
		until(t, "the late ones are deferred", func() bool { return r.Stats().Deferred == 3 })
		store.mu.Lock()
		delete(store.rows, removed)
		store.mu.Unlock()
		until(t, "the table is empty", func() bool { return store.pending() == 0 })
		if got := sink.topics(); !slices.Equal(got, []string{"last", "late"}) {
			t.Errorf("delivered %q, want last and late", got)
		}
		if len(store.dead) != 1 || store.dead[0].Attempts != 3 || sink.tries("fails") != 3 {
			t.Errorf("dead letters %+v after %d calls", store.dead, sink.tries("fails"))
		}
	})
}

// A relay that begins again may find a message that has failed behind one of its key that
// was committed late, which has not: the two do not go their own ways.
func TestALateCommitGoesBeforeWhatFailedInAnEarlierRelay(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := newMemStore()
		var began, mended atomic.Bool
		sink := &memSink{decide: func(m *Message) error {
			switch {
			case m.Topic == "failed" && !began.Load():
				return RetryAfter(errors.New("no"), 10*time.Second)
			case m.Topic == "late" && !mended.Load():
				return errors.New("no")
			}
			return nil
		}}
		late := store.begin()
		late.insert(Message{Topic: "late", Key: "k", Payload: []byte("1")})
		store.put(Message{Topic: "failed", Key: "k", Payload: []byte("2")})
		cfg := fast()
		cfg.Retry.MaxAttempts = 1000
		r, stop := running(t, store, sink, cfg)
		until(t, "it waits", func() bool { return r.Stats().Parked == 1 })
		stop()
		late.end(true)
		began.Store(true)
		r, stop = running(t, store, sink, cfg)
		defer stop()
		time.Sleep(time.Second)
		store.put(Message{Topic: "last", Key: "k", Payload: []byte("3")})
		time.Sleep(time.Minute)
		if s := r.Stats(); len(sink.topics()) > 0 || s.Parked != 1 || s.Deferred != 2 {
			t.Errorf("while the first fails: delivered %q, %d wait and %d behind it, want none, 1 and 2", sink.topics(), s.Parked, s.Deferred)
		}
		mended.Store(true)
		until(t, "the table is empty", func() bool { return store.pending() == 0 })
		if got := sink.topics(); !slices.Equal(got, []string{"late", "failed", "last"}) {
			t.Errorf("delivered %q, want late, failed and last", got)
		}
	})
}

// Where the table was emptied while a message waited for another attempt, the one
// that has its number now is not taken for it: it is no attempt further, and stands
// in no other's place.
func TestARowWithTheNumberOfOneThatWaitsIsAnother(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store, sink := newMemStore(), &memSink{}
		sink.decide = func(m *Message) error {
			if m.Topic == "fails" || m.Topic == "other" && sink.tries("other") < 2 {
				return errors.New("no")
			}
			return nil
		}
		store.put(Message{Topic: "fails", Key: "k"})
		cfg := fast()
		cfg.Retry.MaxAttempts = 3
		_, stop := running(t, store, sink, cfg)
		defer stop()
		until(t, "two attempts have failed", func() bool {
			store.mu.Lock()
			defer store.mu.Unlock()
			for seq, row := range store.rows {
				if store.parked[seq].attempts == 2 {
					row.Topic, row.ID = "other", NewID()
					delete(store.parked, seq)
					return true
				}
			}
			return false
		})
		until(t, "the table is empty", func() bool { return store.pending() == 0 })
		if got := sink.topics(); !slices.Equal(got, []string{"other"}) || len(store.dead) != 0 {
			t.Errorf("delivered %q, dead %+v: want the other one delivered", got, store.dead)
		}
	})
}

func TestUnreadableRowsBehindAFailedOneAreBuried(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store, sink := newMemStore(), &memSink{}
		sink.decide = func(m *Message) error {
			if m.Topic == "fails" && sink.tries("fails") < 2 {
				return errors.New("no")
			}
			return nil
		}
		store.put(Message{Topic: "fails", Key: "k"}, Message{Topic: "bad", Key: "k"}, Message{Topic: "good", Key: "k"})
		store.rows[2].Unreadable = errors.New("headers are no JSON")
		_, stop := running(t, store, sink, fast())
		until(t, "the table is empty", func() bool { return store.pending() == 0 })
		stop()
		if len(store.dead) != 1 || store.dead[0].Reason != "unreadable" || !slices.Equal(sink.topics(), []string{"fails", "good"}) {
			t.Errorf("dead %v, delivered %q", store.dead, sink.topics())
		}
	})
}

// Messages that wait behind another are read again in portions that memory has room for.
func TestWhatWaitsIsReadAgainWithinTheBytes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := newMemStore()
		var healed atomic.Bool
		most := 0
		sink := &memSink{decide: func(m *Message) error {
			if m.Topic == "first" && !healed.Load() {
				return errors.New("no")
			}
			return nil
		}}
		cfg := fast()
		cfg.MaxInFlightBytes, cfg.Publishers = 64<<10, 1
		watched := sinkFunc(func(ctx context.Context, msgs []Message) []error {
			bytes := 0
			for i := range msgs {
				bytes += len(msgs[i].Payload)
			}
			if healed.Load() {
				most = max(most, bytes)
			}
			return sink.Publish(ctx, msgs)
		})
		store.put(Message{Topic: "first", Key: "k"})
		for range 100 {
			store.put(Message{Topic: "more", Key: "k", Payload: make([]byte, 10<<10)})
		}
		r, stop := running(t, store, watched, cfg)
		defer stop()
		until(t, "all are deferred", func() bool { return r.Stats().Deferred == 100 })
		healed.Store(true)
		until(t, "the table is empty", func() bool { return store.pending() == 0 })
		if most > cfg.MaxInFlightBytes/2 || most == 0 {
			t.Errorf("a call had %d bytes, want at most %d", most, cfg.MaxInFlightBytes/2)
		}
		if s := r.Stats(); s.InFlight != 0 || s.InFlightBytes != 0 || s.Parked != 0 || s.Deferred != 0 {
			t.Errorf("stats %+v", s)
		}
	})
}

type sinkFunc func(ctx context.Context, msgs []Message) []error

func (f sinkFunc) Publish(ctx context.Context, msgs []Message) []error { return f(ctx, msgs) }
func (sinkFunc) Close() error                                          { return nil }
