package stdout_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/weirdb/weir/outbox"
	"github.com/weirdb/weir/outbox/sink/sinktest"
	"github.com/weirdb/weir/outbox/sink/stdout"
)

// buffer is a stream that may be read while it is written.
type buffer struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (b *buffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.text.Write(p)
}

func (b *buffer) read(_ context.Context, t testing.TB, topic string, _ int) []sinktest.Received {
	t.Helper()
	b.mu.Lock()
	defer b.mu.Unlock()
	var got []sinktest.Received
	for text := range bytes.Lines(b.text.Bytes()) {
		var l struct {
			ID, Topic, Key string
			Headers        map[string]string
			Payload        json.RawMessage
			Text           *string
			Base64         []byte
		}
		if err := json.Unmarshal(text, &l); err != nil {
			t.Fatalf("line %.80q: %v", text, err)
		}
		if l.Topic != topic {
			continue
		}
		r := sinktest.Received{Identity: l.ID, Key: l.Key, Headers: l.Headers, ContentType: l.Headers["content-type"], Payload: l.Payload}
		if l.Text != nil {
			r.Payload = []byte(*l.Text)
		} else if l.Payload == nil {
			r.Payload = l.Base64
		}
		got = append(got, r)
	}
	return got
}

func TestConformance(t *testing.T) {
	var b buffer
	var topics atomic.Int64
	sinktest.Run(t, sinktest.Subject{
		Open: func(t testing.TB) outbox.Sink {
			s, err := stdout.New(t.Context(), stdout.Options{To: &b})
			if err != nil {
				t.Fatal(err)
			}
			return s
		},
		Topic: func(testing.TB) string { return fmt.Sprintf("t%d", topics.Add(1)) },
		Read:  b.read,
	})
}

func TestPayloadFormat(t *testing.T) {
	var b buffer
	s, err := stdout.New(t.Context(), stdout.Options{Format: "payload", To: &b})
	if err != nil {
		t.Fatal(err)
	}
	msgs := []outbox.Message{
		{Topic: "t", Key: "a", Payload: []byte("one")},
		{Topic: "t", Key: "a", Payload: []byte("two\nlines")},
		{Topic: "t", Key: "a", Payload: []byte("three")},
		{Topic: "t", Payload: []byte("four")},
	}
	errs := s.Publish(t.Context(), msgs)
	if len(errs) != 4 || errs[0] != nil || !outbox.IsRejected(errs[1]) || errs[2] != outbox.ErrHeldBack || errs[3] != nil {
		t.Errorf("publish: %v", errs)
	}
	if got := b.text.String(); got != "one\nfour\n" {
		t.Errorf("wrote %q", got)
	}
}

// broken is a pipe whose reader is gone.
type broken struct{ io.Writer }

func (broken) Write([]byte) (int, error) { return 0, errors.New("broken pipe") }

func TestBrokenPipeIsUnavailable(t *testing.T) {
	s, err := stdout.New(t.Context(), stdout.Options{To: broken{}})
	if err != nil {
		t.Fatal(err)
	}
	if errs := s.Publish(t.Context(), []outbox.Message{{Topic: "t"}}); len(errs) != 1 || !outbox.IsUnavailable(errs[0]) {
		t.Errorf("publish: %v, want it unavailable", errs)
	}
}

func TestParseURL(t *testing.T) {
	for _, address := range []string{"stdout:", "stdout://", "stdout:?format=json"} {
		if o, err := stdout.ParseURL(address); err != nil || o.Format != "json" {
			t.Errorf("%s: %+v, %v", address, o, err)
		}
	}
	if o, err := stdout.ParseURL("stdout:?format=payload"); err != nil || o.Format != "payload" {
		t.Errorf("%+v, %v", o, err)
	}
	for address, want := range map[string]string{"stdout:x": "want stdout:", "stdout:?a=b": `unknown parameter "a"`, "stdout:?format=x": "json or payload"} {
		if _, err := stdout.ParseURL(address); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want an error with %q", address, err, want)
		}
	}
}

func BenchmarkPublish(b *testing.B) {
	sinktest.Bench(b, sinktest.Subject{
		Open: func(t testing.TB) outbox.Sink {
			s, err := stdout.New(t.Context(), stdout.Options{To: io.Discard})
			if err != nil {
				t.Fatal(err)
			}
			return s
		},
		Topic: func(testing.TB) string { return "t" },
	})
}
