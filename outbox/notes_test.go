package outbox

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

// A table that was emptied while a row of it was with the broker gives the row's
// number to another one.
func TestARowOfTheSameNumberIsNotTakenForAnother(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store, sink := newMemStore(), &memSink{}
		sink.decide = func(m *Message) error {
			if m.Topic == "old" {
				store.mu.Lock()
				clear(store.rows)
				store.next = 0
				store.mu.Unlock()
				store.put(Message{Topic: "new"})
			}
			return nil
		}
		store.put(Message{Topic: "old"})
		_, stop := running(t, store, sink, fast())
		defer stop()
		until(t, "the new table is empty", func() bool { return store.pending() == 0 })
		if got := sink.topics(); !slices.Equal(got, []string{"old", "new"}) {
			t.Errorf("delivered %q, want the row of either table", got)
		}
	})
}

// A delivery that cannot be noted is not repeated by the next leadership, but noted before that
// goes on.
func TestDeliveriesThatCannotBeNotedAreNotRepeated(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store, sink := newMemStore(), &memSink{}
		refused := 0
		store.fail = func(op string) error {
			if op == "ack" && refused < 20 {
				refused++
				return errors.New("permission denied")
			}
			return nil
		}
		for i := range 100 {
			store.put(Message{Topic: fmt.Sprint(i), Key: "one"})
		}
		_, stop := running(t, store, sink, fast())
		defer stop()
		until(t, "the notes are taken", func() bool { return store.pending() == 0 })
		if got := sink.topics(); len(got) != 100 {
			t.Errorf("%d deliveries of 100 messages after %d refused notes", len(got), refused)
		}
	})
}

// Each failed attempt is a line of the log that names what an operator looks for;
// many are counted.
func TestFailedAttemptsAreLogged(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store, sink := newMemStore(), &memSink{}
		sink.decide = func(m *Message) error {
			if string(m.Payload) == "bad" {
				return errors.New("no such thing")
			}
			return nil
		}
		var log bytes.Buffer
		cfg := fast()
		cfg.Logger = slog.New(slog.NewJSONHandler(&log, nil))
		cfg.Retry = RetryPolicy{MaxAttempts: 3, Base: time.Second, Max: time.Second}
		id := NewID()
		store.put(Message{Topic: "orders", ID: id, Payload: []byte("bad")})
		_, stop := running(t, store, sink, cfg)
		until(t, "it is dead", func() bool { return store.pending() == 0 })
		time.Sleep(time.Minute)
		for range 500 {
			store.put(Message{Topic: "orders", Payload: []byte("bad")})
			store.put(Message{Topic: "orders"})
		}
		until(t, "all are delivered or dead", func() bool {
			store.put(Message{Topic: "orders"}) // so that the destination takes some
			time.Sleep(100 * time.Millisecond)
			store.mu.Lock()
			defer store.mu.Unlock()
			return len(store.dead) == 501
		})
		stop()

		type line struct {
			Msg, ID, Topic, Destination, Error string
			Attempts                           int
			Next                               time.Time `json:"next_attempt"`
			Time                               time.Time
			Silent                             int `json:"failures_not_shown"`
		}
		var first []line
		shown, silent := 0, 0
		for text := range strings.Lines(log.String()) {
			var l line
			if err := json.Unmarshal([]byte(text), &l); err != nil {
				t.Fatal(err)
			}
			if l.Topic == "" {
				continue
			}
			if l.ID == id.String() {
				first = append(first, l)
			}
			shown++
			silent += l.Silent
		}
		if len(first) != 3 {
			t.Fatalf("%d lines about a message that failed three times: %+v", len(first), first)
		}
		for i, l := range first {
			if l.Destination != "orders" || l.Attempts != i+1 || l.Error != "no such thing" {
				t.Errorf("line %d is %+v", i, l)
			}
			if i < 2 && !l.Next.After(l.Time) {
				t.Errorf("line %d names %v as the next attempt, at %v", i, l.Next, l.Time)
			}
		}
		if shown > 100 || shown+silent < 500 {
			t.Errorf("%d lines and %d counted of 1,500 attempts", shown, silent)
		}
	})
}

// pages is a lease that refuses more than a number of rows in one statement, and fails
// once.
type pages struct {
	Lease
	most  int
	fail  bool
	noted []Ref
}

func (p *pages) Ack(_ context.Context, rows []Ref) error {
	switch {
	case len(rows) > p.most:
		return errors.New("packet for query is too large")
	case p.fail && len(p.noted) > 0:
		p.fail = false
		return errors.New("deadlock")
	}
	p.noted = append(p.noted, rows...)
	return nil
}

// However many deliveries are owed, statements that note them stay of a size that a
// server takes, and what one has noted is owed no more.
func TestSettleNotesInPages(t *testing.T) {
	var o unrecorded
	for i := range 2*settlePage + 10 {
		o.add([]Ref{{Seq: int64(i + 1)}})
	}
	l := &pages{most: settlePage, fail: true}
	if err := o.record(t.Context(), l); err == nil || len(o.rows) != settlePage+10 {
		t.Errorf("%v, %d are owed after one page of %d", err, len(o.rows), settlePage)
	}
	if err := o.record(t.Context(), l); err != nil || len(o.rows) != 0 || len(l.noted) != 2*settlePage+10 {
		t.Errorf("%v, %d are owed, %d noted", err, len(o.rows), len(l.noted))
	}
}
