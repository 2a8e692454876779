// Package sinktest is the conformance suite of sinks: it tests the contract of [outbox.Sink] with a
// real broker. Each sink's test provides a [Subject] and calls [Run].
package sinktest

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/weirdb/weir/outbox"
)

// Subject is a sink with its broker. Tests that need a nil or zero field are skipped.
type Subject struct {
	// Open returns a new sink, which Run closes. It has long timeouts, so that a slow
	// broker does not seem to be down.
	Open func(t testing.TB) outbox.Sink

	// OpenHasty returns a sink with short timeouts, for the test that kills the
	// broker. Default: Open.
	OpenHasty func(t testing.TB) outbox.Sink

	// Topic creates a topic that Read can read, and returns its name.
	Topic func(t testing.TB) string

	// Read waits until a topic has at least n messages or ctx ends, and returns all
	// of them. Messages of one key are in the order of their arrival.
	Read func(ctx context.Context, t testing.TB, topic string, n int) []Received

	// TooLarge is a payload size that the broker, or the sink, refuses.
	TooLarge int

	// Missing returns a topic that does not exist and that the broker does not create.
	Missing func(t testing.TB) string

	// Dedups says that the broker drops duplicates, by identity.
	Dedups bool

	// Kill kills the broker, Restart restarts it with its data; both return when that
	// is done.
	Kill, Restart func(t testing.TB)

	// Settle makes new topics survive Kill, for brokers that would lose them. May be
	// nil.
	Settle func(t testing.TB)

	// Stall makes the broker answer nothing until resume is called.
	Stall func(t testing.TB) (resume func())
}

// Received is a message as a consumer sees it.
type Received struct {
	Identity    string
	Key         string
	Payload     []byte
	ContentType string
	Headers     map[string]string
}

// patience bounds every wait, including the restart of a broker. Only a defect reaches it.
const patience = 3 * time.Minute

// Run tests the sink.
func Run(t *testing.T, s Subject) {
	tests := []struct {
		name string
		run  func(*testing.T, Subject)
		skip string
	}{
		{"Delivers", delivers, ""},
		{"Headers", headers, ""},
		{"Sizes", sizes, ""},
		{"Empty call", emptyCall, ""},
		{"Order of a key", orderOfKey, ""},
		{"Too large", tooLarge, unless(s.TooLarge > 0, "the broker has no limit to reach")},
		{"Held back", heldBack, unless(s.TooLarge > 0 || s.Missing != nil, "nothing makes a single message fail")},
		{"Missing topic", missing, unless(s.Missing != nil, "the broker makes topics, or has none")},
		{"Duplicates", duplicates, unless(s.Dedups, "the broker does not know what it has had")},
		{"Concurrent", concurrent, ""},
		{"Context ended", contextEnded, ""},
		{"Broker stalls", stalls, unless(s.Stall != nil, "there is no broker to stall")},
		{"Broker killed", killed, unless(s.Kill != nil, "there is no broker to kill")},
		{"Closed", closed, ""},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			if test.skip != "" {
				t.Skip(test.skip)
			}
			test.run(t, s)
		})
	}
}

func unless(ok bool, reason string) string {
	if ok {
		return ""
	}
	return reason
}

// open returns a sink that is closed with the test.
func (s Subject) open(t testing.TB) outbox.Sink {
	t.Helper()
	return closing(t, s.Open(t))
}

// openHasty is open with OpenHasty.
func (s Subject) openHasty(t testing.TB) outbox.Sink {
	t.Helper()
	if s.OpenHasty == nil {
		return s.open(t)
	}
	return closing(t, s.OpenHasty(t))
}

// closing closes a sink with the test.
func closing(t testing.TB, snk outbox.Sink) outbox.Sink {
	t.Cleanup(func() {
		if err := snk.Close(); err != nil {
			t.Errorf("close: %v", err)
		}
	})
	return snk
}

// read is Read, bounded.
func (s Subject) read(t testing.TB, topic string, n int) []Received {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	got := s.Read(ctx, t, topic, n)
	if len(got) < n {
		t.Fatalf("topic %s: %d messages arrived, want %d", topic, len(got), n)
	}
	return got
}

// message returns a message with an id and a payload that contains its key and number.
func message(topic, key string, n int) outbox.Message {
	return outbox.Message{
		ID: outbox.NewID(), Topic: topic, Key: key, Payload: fmt.Appendf(nil, `{"key":%q,"n":%d}`, key, n),
		Headers: map[string]string{"content-type": "application/json"},
	}
}

// publish publishes messages that must all be confirmed.
func publish(t testing.TB, snk outbox.Sink, msgs ...outbox.Message) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	errs := snk.Publish(ctx, msgs)
	if errs == nil {
		return
	}
	if len(errs) != len(msgs) {
		t.Fatalf("%d errors for %d messages: %v", len(errs), len(msgs), errs)
	}
	some := false
	for i, err := range errs {
		if err != nil {
			some = true
			t.Errorf("message %d (key %q): %v", i, msgs[i].Key, err)
		}
	}
	if !some {
		t.Error("every message is confirmed, but the result is not nil")
	}
	t.FailNow()
}

// answers publishes messages of which some must fail, and returns the error of each.
func answers(t testing.TB, snk outbox.Sink, msgs ...outbox.Message) []error {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	errs := snk.Publish(ctx, msgs)
	if len(errs) != len(msgs) {
		t.Fatalf("%d errors for %d messages: %v", len(errs), len(msgs), errs)
	}
	return errs
}

// Server is a broker of the lab.
type Server interface {
	Kill()
	Restart(ctx context.Context) error
	Pause()
	Resume()
}

// Suffer sets Kill, Restart and Stall.
func (s Subject) Suffer(server Server) Subject {
	s.Kill = func(testing.TB) { server.Kill() }
	s.Restart = func(t testing.TB) {
		t.Helper()
		ctx, cancel := context.WithTimeout(t.Context(), patience)
		defer cancel()
		if err := server.Restart(ctx); err != nil {
			t.Fatalf("restart the broker: %v", err)
		}
	}
	s.Stall = func(testing.TB) func() {
		server.Pause()
		return server.Resume
	}
	return s
}
