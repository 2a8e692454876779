package outbox

import (
	"encoding/json"
	"errors"
	"fmt"
	"hash/fnv"
	"strings"
	"time"
	"unicode/utf8"
)

// Limits of a message. Enqueue refuses larger messages before it writes
// anything.
const (
	MaxTopic   = 255      // bytes
	MaxKey     = 255      // bytes
	MaxHeaders = 64 << 10 // bytes of the headers as JSON
	MaxPayload = 64 << 20 // bytes; brokers allow far less, see the sinks
)

// Message is what is delivered.
type Message struct {
	// ID identifies the message permanently. Zero: Enqueue makes one.
	ID ID

	// Topic is where it goes: the topic, subject, exchange or stream of the
	// broker. Required, UTF-8, at most MaxTopic bytes.
	Topic string

	// Key orders messages: those of one key are delivered in the order of their
	// commits. Empty: the message has no order. UTF-8, at most MaxKey bytes.
	Key string

	// Payload is carried as it is.
	Payload []byte

	// Headers are carried beside the payload, by each sink in its broker's
	// way. Some names mean something to all sinks: "content-type", "type" (the
	// CloudEvents type), "traceparent" and "tracestate" (W3C Trace Context).
	Headers map[string]string

	// AvailableAt is when it may be delivered, by the database's clock. Zero: at
	// once. A scheduled message takes its place in the order of its key at that
	// time.
	AvailableAt time.Time

	// DedupKey replaces ID as the identity by which a broker or an inbox recognizes
	// duplicates. Empty: the id. At most MaxKey bytes.
	DedupKey string
}

// Identity is how brokers and inboxes recognize the message: DedupKey if it is
// set, otherwise the id.
func (m *Message) Identity() string {
	if m.DedupKey != "" {
		return m.DedupKey
	}
	return m.ID.String()
}

// ErrInvalid is wrapped by the errors with which Enqueue refuses a message.
var ErrInvalid = errors.New("outbox: invalid message")

func (m *Message) validate() error {
	if m.Topic == "" {
		return fmt.Errorf("%w: it has no topic", ErrInvalid)
	}
	if err := m.limits(); err != nil {
		return err
	}
	for _, f := range [...]struct{ name, value string }{{"topic", m.Topic}, {"key", m.Key}, {"dedup key", m.DedupKey}} {
		if !utf8.ValidString(f.value) || strings.ContainsRune(f.value, 0) {
			return fmt.Errorf("%w: its %s %q is not UTF-8 without NUL", ErrInvalid, f.name, f.value)
		}
	}
	for name, value := range m.Headers {
		if name == "" || !utf8.ValidString(name) || !utf8.ValidString(value) || strings.ContainsRune(name+value, 0) {
			return fmt.Errorf("%w: its header %q is empty or not UTF-8 without NUL", ErrInvalid, name)
		}
	}
	return nil
}

// limits returns an error for the first part of the message that is too long.
func (m *Message) limits() error {
	for _, f := range [...]struct {
		name string
		size int
		most int
	}{{"topic", len(m.Topic), MaxTopic}, {"key", len(m.Key), MaxKey}, {"dedup key", len(m.DedupKey), MaxKey}, {"payload", len(m.Payload), MaxPayload}} {
		if f.size > f.most {
			return fmt.Errorf("%w: its %s has %d bytes, at most %d are allowed", ErrInvalid, f.name, f.size, f.most)
		}
	}
	return m.validateHeaderSize()
}

// validateHeaderSize encodes the headers only if they may be too large: JSON
// encodes one byte as six at most, and adds six to each header.
func (m *Message) validateHeaderSize() error {
	most := 2
	for name, value := range m.Headers {
		most += 6 * (len(name) + len(value) + 1)
	}
	if most <= MaxHeaders {
		return nil
	}
	_, err := EncodeHeaders(m.Headers)
	return err
}

// EncodeHeaders writes headers as the table stores them: a JSON object of
// strings, empty for none.
func EncodeHeaders(h map[string]string) (string, error) {
	if len(h) == 0 {
		return "", nil
	}
	text, err := json.Marshal(h)
	if err != nil {
		return "", fmt.Errorf("%w: encode headers: %w", ErrInvalid, err)
	}
	if len(text) > MaxHeaders {
		return "", fmt.Errorf("%w: its headers have %d bytes, at most %d are allowed", ErrInvalid, len(text), MaxHeaders)
	}
	return string(text), nil
}

// DecodeHeaders reads what EncodeHeaders wrote, or what a producer in plain
// SQL wrote: a JSON object; values that are no strings are kept as their JSON.
func DecodeHeaders(text []byte) (map[string]string, error) {
	if len(text) == 0 {
		return nil, nil
	}
	var raw map[string]json.RawMessage
	if err := json.Unmarshal(text, &raw); err != nil {
		return nil, fmt.Errorf("outbox: decode headers: %w", err)
	}
	if len(raw) == 0 {
		return nil, nil
	}
	h := make(map[string]string, len(raw))
	for name, value := range raw {
		var s string
		if err := json.Unmarshal(value, &s); err != nil {
			s = string(value)
		}
		h[name] = s
	}
	return h, nil
}

// Buckets is the number of buckets that keys fall into; each shard leads a
// range of them.
const Buckets = 1 << 15

// Bucket is the bucket, from 0 to Buckets-1, of a message: FNV-1a of its key,
// or of its id when it has none. It is what Enqueue writes; stores compute it for
// rows of producers in plain SQL, which do not.
func Bucket(key string, id ID) int {
	h := fnv.New32a()
	if key != "" {
		_, _ = h.Write([]byte(key))
	} else {
		_, _ = h.Write(id[:])
	}
	return int(h.Sum32() % Buckets)
}
