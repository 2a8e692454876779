package outbox

import (
	"errors"
	"fmt"
	"sync/atomic"
	"testing"
	"time"
)

// Relays that begin while a destination refuses all make no dead letters of it; with
// claims at most one each, as those that wait are not claimed beside it.
func TestRelaysThatBeginWhileAllIsRefusedBuryNone(t *testing.T) {
	bothModes(t, func(t *testing.T, cfg Config) {
		store := newMemStore()
		var slip atomic.Bool
		slip.Store(true)
		sink := &memSink{decide: func(*Message) error {
			if slip.Load() {
				return Reject(errors.New("400 Bad Request"))
			}
			return nil
		}}
		for i := range 100 {
			store.put(Message{Topic: "t", Key: fmt.Sprint(i % 10), Payload: fmt.Append(nil, i+1)})
		}
		for range 10 {
			_, stop := running(t, store, sink, cfg)
			time.Sleep(time.Minute)
			stop()
		}
		buried := store.buried()
		if buried > 10 || buried > 0 && cfg.Claim != SkipLocked {
			t.Errorf("%d messages were buried in ten beginnings", buried)
		}
		slip.Store(false)
		_, stop := running(t, store, sink, cfg)
		defer stop()
		until(t, "the table is empty", func() bool { return store.pending() == 0 })
		if n := len(sink.topics()); n != 100-buried {
			t.Errorf("%d of %d were delivered", n, 100-buried)
		}
	})
}

// One that is refused while there is no other is given up after a moment, and one only
// where there are two.
func TestAMessageThatIsRefusedAloneIsBuried(t *testing.T) {
	bothModes(t, func(t *testing.T, cfg Config) {
		store := newMemStore()
		sink := &memSink{decide: func(m *Message) error {
			if m.Topic == "t" && len(m.Headers) == 0 {
				return Reject(errors.New("400 Bad Request"))
			}
			return nil
		}}
		store.put(Message{Topic: "t", Key: "a", Payload: []byte("1")})
		_, stop := running(t, store, sink, cfg)
		defer stop()
		time.Sleep(10 * time.Second)
		if n := store.buried(); n != 1 {
			t.Errorf("%d were buried, want the one that there is", n)
		}
		store.put(Message{Topic: "t", Key: "b", Payload: []byte("1")})
		time.Sleep(time.Minute)
		if n := store.buried(); n != 1 {
			t.Errorf("%d were buried: the second is nobody's for certain", n)
		}
		store.put(Message{Topic: "t", Key: "c", Payload: []byte("1"), Headers: map[string]string{"ok": "1"}})
		until(t, "the table is empty", func() bool { return store.pending() == 0 })
		if n := store.buried(); n != 2 || len(sink.topics()) != 1 {
			t.Errorf("%d were buried and %d delivered, want 2 and 1", n, len(sink.topics()))
		}
	})
}
