package sinktest

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/weirdb/weir/outbox"
)

func delivers(t *testing.T, s Subject) {
	topic := s.Topic(t)
	snk := s.open(t)
	msgs := []outbox.Message{message(topic, "a", 0), message(topic, "", 1), message(topic, "b", 2)}
	msgs[2].DedupKey = "order-42/paid"
	publish(t, snk, msgs...)
	got := s.read(t, topic, len(msgs))
	if len(got) != len(msgs) {
		t.Fatalf("%d messages arrived, want %d", len(got), len(msgs))
	}
	for _, m := range msgs {
		i := slices.IndexFunc(got, func(r Received) bool { return r.Identity == m.Identity() })
		if i < 0 {
			t.Errorf("no message with identity %q arrived", m.Identity())
			continue
		}
		if got[i].Key != m.Key || !bytes.Equal(got[i].Payload, m.Payload) {
			t.Errorf("message %q: key %q, payload %q, want %q, %q", m.Identity(), got[i].Key, got[i].Payload, m.Key, m.Payload)
		}
	}
}

func headers(t *testing.T, s Subject) {
	topic := s.Topic(t)
	const parent = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
	m := message(topic, "a", 0)
	m.Headers = map[string]string{
		"content-type": "application/xml", "type": "com.example.paid", "traceparent": parent,
		"X-Shop-Region": "EU west", "tenant": "zwölf",
	}
	publish(t, s.open(t), m)
	got := s.read(t, topic, 1)[0]
	if got.ContentType != "application/xml" {
		t.Errorf("content type %q, want application/xml", got.ContentType)
	}
	want := maps.Clone(m.Headers)
	delete(want, "content-type")
	for name, value := range want {
		if got.Headers[name] != value {
			t.Errorf("header %s: %q, want %q", name, got.Headers[name], value)
		}
	}
}

func sizes(t *testing.T, s Subject) {
	topic := s.Topic(t)
	// The payload of 1 MB is noise: a broker must not be able to compress it.
	large := make([]byte, 1_000_000)
	state := uint64(42)
	for i := range large {
		state = state*6364136223846793005 + 1442695040888963407
		large[i] = byte(state >> 56)
	}
	msgs := []outbox.Message{message(topic, "empty", 0), message(topic, "nil", 0), message(topic, "large", 0), message(topic, "binary", 0)}
	msgs[0].Payload, msgs[1].Payload, msgs[2].Payload, msgs[3].Payload = []byte{}, nil, large, []byte("\x00\xff\r\n\x00")
	for i := range msgs {
		msgs[i].Headers = nil
	}
	publish(t, s.open(t), msgs...)
	byKey := map[string][]byte{}
	for _, r := range s.read(t, topic, len(msgs)) {
		byKey[r.Key] = r.Payload
	}
	for _, m := range msgs {
		payload, ok := byKey[m.Key]
		if !ok || !bytes.Equal(payload, m.Payload) {
			t.Errorf("key %s: arrived: %v, %d bytes, equal: %v; want %d bytes", m.Key, ok, len(payload), bytes.Equal(payload, m.Payload), len(m.Payload))
		}
	}
}

func emptyCall(t *testing.T, s Subject) {
	if errs := s.open(t).Publish(t.Context(), nil); errs != nil {
		t.Errorf("publish nothing: %v, want nil", errs)
	}
}

func orderOfKey(t *testing.T, s Subject) {
	topic := s.Topic(t)
	var msgs []outbox.Message
	for n := range 40 {
		for _, key := range []string{"a", "b", "", "c"} {
			msgs = append(msgs, message(topic, key, n))
		}
	}
	publish(t, s.open(t), msgs...)
	got := s.read(t, topic, len(msgs))
	checkOrder(t, msgs, got)
	if len(got) != len(msgs) {
		t.Errorf("%d messages arrived, want %d", len(got), len(msgs))
	}
}

// checkOrder checks for each key that messages first arrived in the order sent.
func checkOrder(t testing.TB, sent []outbox.Message, got []Received) {
	t.Helper()
	order := func(yield func(func(key, identity string))) map[string][]string {
		byKey, had := map[string][]string{}, map[string]bool{}
		yield(func(key, identity string) {
			if key != "" && !had[identity] {
				had[identity] = true
				byKey[key] = append(byKey[key], identity)
			}
		})
		return byKey
	}
	want := order(func(add func(key, identity string)) {
		for i := range sent {
			add(sent[i].Key, sent[i].Identity())
		}
	})
	have := order(func(add func(key, identity string)) {
		for _, r := range got {
			add(r.Key, r.Identity)
		}
	})
	for key, ids := range want {
		if !slices.Equal(ids, have[key]) {
			t.Errorf("key %s: %d first arrivals are not the %d messages in the order sent", key, len(have[key]), len(ids))
		}
	}
}

// checkArrived checks that all wanted messages arrived and no others, in any order. Duplicates are
// allowed: if the broker closes the connection because of one message, the sink must send others
// again.
func checkArrived(t testing.TB, got []Received, want ...outbox.Message) {
	t.Helper()
	missing := map[string]bool{}
	for i := range want {
		missing[want[i].Identity()] = true
	}
	for _, r := range got {
		if _, ok := missing[r.Identity]; !ok {
			t.Errorf("a message of key %q arrived that must not: %.60q", r.Key, r.Payload)
		}
		missing[r.Identity] = false
	}
	for id, m := range missing {
		if m {
			t.Errorf("message %s did not arrive", id)
		}
	}
}

func tooLarge(t *testing.T, s Subject) {
	topic := s.Topic(t)
	snk := s.open(t)
	msgs := []outbox.Message{message(topic, "a", 0), message(topic, "b", 0), message(topic, "", 0), message(topic, "c", 0)}
	msgs[1].Payload = bytes.Repeat([]byte("x"), s.TooLarge)
	errs := answers(t, snk, msgs...)
	for i, err := range errs {
		if i == 1 {
			if !outbox.IsInvalid(err) {
				t.Errorf("too large a message: %v, want it Invalid", err)
			}
		} else if err != nil {
			t.Errorf("message %d: %v", i, err)
		}
	}
	checkArrived(t, s.read(t, topic, 3), msgs[0], msgs[2], msgs[3])
	publish(t, snk, message(topic, "b", 1)) // the sink works on
}

// heldBack makes the second of four messages of a key fail.
func heldBack(t *testing.T, s Subject) {
	topic := s.Topic(t)
	snk := s.open(t)
	var msgs []outbox.Message
	for n := range 4 {
		msgs = append(msgs, message(topic, "a", n), message(topic, "b", n))
	}
	if s.TooLarge > 0 {
		msgs[2].Payload = bytes.Repeat([]byte("x"), s.TooLarge)
	} else {
		msgs[2].Topic = s.Missing(t)
	}
	errs := answers(t, snk, msgs...)
	for i, err := range errs {
		switch {
		case i == 2:
			if err == nil || outbox.IsUnavailable(err) || s.TooLarge > 0 && !outbox.IsInvalid(err) {
				t.Errorf("message that cannot be taken: %v", err)
			}
		case msgs[i].Key == "a" && i > 2:
			if !errors.Is(err, outbox.ErrHeldBack) {
				t.Errorf("message %d, behind it: %v, want ErrHeldBack", i, err)
			}
		case err != nil:
			t.Errorf("message %d (key %s): %v", i, msgs[i].Key, err)
		}
	}
	publish(t, snk, msgs[4], msgs[6])
	sent := slices.Delete(slices.Clone(msgs), 2, 3)
	got := s.read(t, topic, len(sent))
	checkOrder(t, sent, got)
	checkArrived(t, got, sent...)
}

func missing(t *testing.T, s Subject) {
	topic := s.Topic(t)
	snk := s.open(t)
	msgs := []outbox.Message{message(topic, "a", 0), message(s.Missing(t), "b", 0), message(topic, "", 0)}
	errs := answers(t, snk, msgs...)
	if errs[1] == nil || outbox.IsRejected(errs[1]) || outbox.IsUnavailable(errs[1]) {
		t.Errorf("message to a topic that is missing: %v, want an error that spends an attempt: somebody may still make it", errs[1])
	}
	if errs[0] != nil || errs[2] != nil {
		t.Errorf("messages beside it: %v, %v", errs[0], errs[2])
	}
	checkArrived(t, s.read(t, topic, 2), msgs[0], msgs[2])
}

func duplicates(t *testing.T, s Subject) {
	topic := s.Topic(t)
	snk := s.open(t)
	m := message(topic, "a", 0)
	m.DedupKey = "once"
	publish(t, snk, m)
	publish(t, s.open(t), m)
	publish(t, snk, message(topic, "a", 1))
	if got := s.read(t, topic, 2); len(got) != 2 {
		t.Errorf("%d messages arrived, want 2: the second of one identity is a duplicate", len(got))
	}
}

func concurrent(t *testing.T, s Subject) {
	topic := s.Topic(t)
	snk := s.open(t)
	const callers, calls, batch = 6, 8, 10
	sent := make([][]outbox.Message, callers)
	var wg sync.WaitGroup
	for c := range callers {
		wg.Go(func() {
			for call := range calls {
				var msgs []outbox.Message
				for n := range batch {
					msgs = append(msgs, message(topic, fmt.Sprintf("k%d", c), call*batch+n))
				}
				sent[c] = append(sent[c], msgs...)
				if errs := snk.Publish(t.Context(), msgs); errs != nil {
					t.Errorf("caller %d: %v", c, errors.Join(errs...))
					return
				}
			}
		})
	}
	wg.Wait()
	all := slices.Concat(sent...)
	checkOrder(t, all, s.read(t, topic, len(all)))
}

func contextEnded(t *testing.T, s Subject) {
	topic := s.Topic(t)
	snk := s.open(t)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	errs := snk.Publish(ctx, []outbox.Message{message(topic, "a", 0), message(topic, "a", 1)})
	if len(errs) != 2 || !errors.Is(errs[0], context.Canceled) {
		t.Errorf("publish with a context that has ended: %v, want its error", errs)
	}
	publish(t, snk, message(topic, "b", 0)) // the sink works on
}

// stalls cancels a call while the broker does not answer.
func stalls(t *testing.T, s Subject) {
	topic := s.Topic(t)
	snk := s.open(t)
	publish(t, snk, message(topic, "a", 0))
	resume := s.Stall(t)
	ctx, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
	defer cancel()
	msgs := []outbox.Message{message(topic, "a", 1), message(topic, "a", 2), message(topic, "b", 1)}
	done := make(chan []error, 1)
	go func() { done <- snk.Publish(ctx, msgs) }()
	select {
	case errs := <-done:
		if len(errs) != len(msgs) || errs[0] == nil || errs[2] == nil {
			t.Errorf("publish to a broker that does not answer: %v, want errors", errs)
		}
		for _, err := range errs {
			if err == nil || !acceptable(err) {
				t.Errorf("publish to a broker that does not answer: %v, want the context's error", err)
			}
		}
	case <-time.After(patience):
		t.Error("publish did not return although its context has ended")
	}
	resume()
	republish(t, snk, msgs)
	checkOrder(t, msgs, withKeys(s.read(t, topic, 1+len(msgs)), msgs))
}

// withKeys leaves out what is not among msgs.
func withKeys(got []Received, msgs []outbox.Message) []Received {
	return slices.DeleteFunc(got, func(r Received) bool {
		return !slices.ContainsFunc(msgs, func(m outbox.Message) bool { return m.Identity() == r.Identity })
	})
}

// acceptable reports whether a message may get err because its broker is down or its context has
// ended.
func acceptable(err error) bool {
	return outbox.IsUnavailable(err) || outbox.IsDoubtful(err) || errors.Is(err, outbox.ErrHeldBack) ||
		errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded)
}

// republish publishes until all messages are confirmed, as a relay does.
func republish(t testing.TB, snk outbox.Sink, msgs []outbox.Message) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	for {
		errs := snk.Publish(ctx, msgs)
		if errs == nil {
			return
		}
		var rest []outbox.Message
		for i, err := range errs {
			if err == nil {
				continue
			}
			if !acceptable(err) {
				t.Errorf("message of key %s: %v, want it unavailable", msgs[i].Key, err)
			}
			rest = append(rest, msgs[i])
		}
		if ctx.Err() != nil {
			t.Errorf("%d of %d messages are not confirmed: %v", len(rest), len(msgs), errors.Join(slices.Compact(errs)...))
			return
		}
		msgs = rest
		select { // the relay's back-off
		case <-ctx.Done():
		case <-time.After(20 * time.Millisecond):
		}
	}
}

// killed publishes from several goroutines while it kills and restarts the broker.
func killed(t *testing.T, s Subject) {
	topic := s.Topic(t)
	if s.Settle != nil {
		s.Settle(t)
	}
	snk := s.openHasty(t)
	const callers = 4
	sent := make([][]outbox.Message, callers)
	begun := make(chan struct{}, callers) // each has had some confirmed
	stop := make(chan struct{})
	var wg sync.WaitGroup
	for c := range callers {
		wg.Go(func() {
			for n := 0; ; n += 4 {
				select {
				case <-stop:
					return
				default:
				}
				var msgs []outbox.Message
				for k := range 4 {
					msgs = append(msgs, message(topic, fmt.Sprintf("k%d-%d", c, k%2), n+k))
				}
				sent[c] = append(sent[c], msgs...)
				republish(t, snk, msgs)
				if n == 8 {
					begun <- struct{}{}
				}
				if t.Failed() {
					return
				}
			}
		})
	}
	for range callers {
		select {
		case <-begun:
		case <-time.After(patience):
			t.Error("no caller gets on")
		}
	}
	s.Kill(t)
	// A call while the broker is down fails.
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	errs := snk.Publish(ctx, []outbox.Message{message(topic, "down", 0)})
	cancel()
	if len(errs) != 1 || !outbox.IsUnavailable(errs[0]) && !outbox.IsDoubtful(errs[0]) && !errors.Is(errs[0], context.DeadlineExceeded) {
		t.Errorf("publish to a broker that is down: %v, want it unavailable", errs)
	}
	s.Restart(t)
	close(stop)
	wg.Wait()
	all := slices.Concat(sent...)
	got := s.read(t, topic, len(all))
	checkOrder(t, all, withKeys(got, all))
}

func closed(t *testing.T, s Subject) {
	topic := s.Topic(t)
	snk := s.Open(t)
	publish(t, snk, message(topic, "a", 0))
	if err := snk.Close(); err != nil {
		t.Errorf("close: %v", err)
	}
	errs := snk.Publish(t.Context(), []outbox.Message{message(topic, "a", 1)})
	if len(errs) != 1 || errs[0] == nil || outbox.IsRejected(errs[0]) {
		t.Errorf("publish after close: %v, want an error that is no rejection", errs)
	}
	for _, r := range s.read(t, topic, 1) {
		if strings.Contains(string(r.Payload), `"n":1`) {
			t.Error("a message was published after close")
		}
	}
}
