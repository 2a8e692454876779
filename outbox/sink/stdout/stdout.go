// Package stdout writes messages to a stream, one per line, for experiments and pipes. With the
// format "json" a line is an object:
//
//	{"id":"018f…","topic":"orders","key":"42","headers":{…},"payload":{"n":1}}
//
// A payload that is JSON is embedded, otherwise it is in "text", or in "base64" if it is not UTF-8.
// With the format "payload" a line is only the payload, and a message whose payload contains a line
// end is rejected.
package stdout

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"sync"
	"unicode/utf8"

	"github.com/weirdb/weir/outbox"
	"github.com/weirdb/weir/outbox/sink"
)

// Options of a sink.
type Options struct {
	// Format is "json" or "payload". Default: "json".
	Format string

	// To receives the lines, each in one Write. Default: os.Stdout.
	To io.Writer
}

// ParseURL reads "stdout:" with the parameter format.
func ParseURL(raw string) (Options, error) {
	rest, ok := strings.CutPrefix(raw, "stdout:")
	path, query, _ := strings.Cut(rest, "?")
	if !ok || path != "" && path != "//" {
		return Options{}, errors.New("stdout: address: want stdout: or stdout:?format=payload")
	}
	p, err := sink.ParseParams(query)
	if err != nil {
		return Options{}, fmt.Errorf("stdout: %w", err)
	}
	o := Options{Format: p.Choice("format", "json", "payload")}
	if err := p.Err(); err != nil {
		return Options{}, fmt.Errorf("stdout: %w", err)
	}
	return o, nil
}

// Sink writes lines.
type Sink struct {
	payload bool

	mu     sync.Mutex
	to     io.Writer
	closed bool
}

// Open is New with the options of an address: see [ParseURL].
func Open(ctx context.Context, address string) (*Sink, error) {
	o, err := ParseURL(address)
	if err != nil {
		return nil, err
	}
	return New(ctx, o)
}

// New checks the options.
func New(_ context.Context, o Options) (*Sink, error) {
	if o.Format != "" && o.Format != "json" && o.Format != "payload" {
		return nil, fmt.Errorf("stdout: unknown format %q: want json or payload", o.Format)
	}
	s := &Sink{payload: o.Format == "payload", to: o.To}
	if s.to == nil {
		s.to = os.Stdout
	}
	return s, nil
}

// String returns "stdout:".
func (s *Sink) String() string { return "stdout:" }

// Close does not close the stream.
func (s *Sink) Close() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.closed = true
	return nil
}

// Publish implements [outbox.Sink]. A message is confirmed when its line was written, whether or not
// anyone reads it.
func (s *Sink) Publish(ctx context.Context, msgs []outbox.Message) []error {
	s.mu.Lock()
	defer s.mu.Unlock()
	errs := make([]error, len(msgs))
	failed := map[string]bool{}
	for i := range msgs {
		m := &msgs[i]
		switch {
		case ctx.Err() != nil:
			errs[i] = ctx.Err()
		case m.Key != "" && failed[m.Key]:
			errs[i] = outbox.ErrHeldBack
		default:
			errs[i] = s.write(m)
		}
		failed[m.Key] = failed[m.Key] || errs[i] != nil
	}
	return sink.Result(errs)
}

func (s *Sink) write(m *outbox.Message) error {
	if s.closed {
		return outbox.Unavailable(errors.New("stdout: the sink is closed"))
	}
	text, err := s.line(m)
	if err != nil {
		return err
	}
	if _, err := s.to.Write(text); err != nil {
		return outbox.Unavailable(fmt.Errorf("stdout: write: %w", err))
	}
	return nil
}

// line is a message as JSON.
type line struct {
	ID      string            `json:"id"` // the identity
	Topic   string            `json:"topic"`
	Key     string            `json:"key,omitempty"`
	Headers map[string]string `json:"headers,omitempty"`
	Payload json.RawMessage   `json:"payload,omitempty"`
	Text    *string           `json:"text,omitempty"`
	Base64  []byte            `json:"base64,omitempty"`
}

func (s *Sink) line(m *outbox.Message) ([]byte, error) {
	if s.payload {
		if bytes.ContainsAny(m.Payload, "\r\n") {
			return nil, outbox.Invalid(errors.New("stdout: the payload has line ends: want format=json"))
		}
		return append(bytes.Clone(m.Payload), '\n'), nil
	}
	l := line{ID: m.Identity(), Topic: m.Topic, Key: m.Key, Headers: m.Headers}
	switch {
	case json.Valid(m.Payload):
		l.Payload = m.Payload
	case utf8.Valid(m.Payload):
		text := string(m.Payload)
		l.Text = &text
	default:
		l.Base64 = m.Payload
	}
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	if err := e.Encode(l); err != nil {
		return nil, outbox.Invalid(fmt.Errorf("stdout: encode: %w", err))
	}
	return b.Bytes(), nil
}
