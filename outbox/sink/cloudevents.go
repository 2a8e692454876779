package sink

import (
	"bytes"
	"encoding/json"
	"fmt"
	"mime"
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/weirdb/weir/outbox"
)

// Attribute is one name and value of a CloudEvent.
type Attribute struct{ Name, Value string }

// Event is a message as CloudEvents 1.0 describes it.
type Event struct {
	// Attributes are those of the specification and extensions, in a fixed
	// order: specversion, id, source, type, time (when the message's id says
	// it), subject and dataschema (from headers), topic, partitionkey (the key),
	// then headers whose names can be attributes, sorted.
	Attributes []Attribute

	// Headers are those that cannot be attributes.
	Headers map[string]string

	// ContentType is that of the payload, by the message's header or guessed.
	ContentType string

	payload []byte
}

// overridable attributes are set by headers of their name.
var overridable = []string{"source", HeaderType, "subject", "time", "dataschema"}

// reserved attributes are never taken from headers.
var reserved = []string{"specversion", "id", "data", "datacontenttype", "topic", "partitionkey"}

// NewEvent describes m. source is the attribute for a message without a header
// of that name. The payload stays the message's.
func NewEvent(m *outbox.Message, source string) *Event {
	set := map[string]string{"source": source, HeaderType: m.Topic}
	if at := m.ID.Time(); !at.IsZero() {
		set["time"] = at.UTC().Format(time.RFC3339Nano)
	}
	e := &Event{payload: m.Payload, ContentType: contentType(m), Headers: map[string]string{}}
	var extensions []Attribute
	for name, value := range m.Headers {
		switch {
		case name == HeaderContentType:
		case slices.Contains(overridable, name):
			if value != "" {
				set[name] = value
			}
		case isAttribute(name) && !slices.Contains(reserved, name):
			extensions = append(extensions, Attribute{name, value})
		default:
			e.Headers[name] = value
		}
	}
	slices.SortFunc(extensions, func(a, b Attribute) int { return strings.Compare(a.Name, b.Name) })
	e.Attributes = []Attribute{{"specversion", "1.0"}, {"id", m.Identity()}}
	for _, name := range overridable {
		if set[name] != "" {
			e.Attributes = append(e.Attributes, Attribute{name, set[name]})
		}
	}
	e.Attributes = append(e.Attributes, Attribute{"topic", m.Topic})
	if m.Key != "" {
		e.Attributes = append(e.Attributes, Attribute{"partitionkey", m.Key})
	}
	e.Attributes = append(e.Attributes, extensions...)
	return e
}

// isAttribute reports whether a header's name can be an attribute's: lower-case
// letters and digits, at most 20.
func isAttribute(name string) bool {
	return name != "" && len(name) <= 20 && strings.IndexFunc(name, func(r rune) bool {
		return !(r >= 'a' && r <= 'z' || r >= '0' && r <= '9')
	}) < 0
}

// contentType is the header's, or what the payload looks like.
func contentType(m *outbox.Message) string {
	switch t := m.Headers[HeaderContentType]; {
	case t != "":
		return t
	case len(m.Payload) > 0 && json.Valid(m.Payload):
		return "application/json"
	}
	return "application/octet-stream"
}

// StructuredType is the content type of what JSON writes.
const StructuredType = "application/cloudevents+json; charset=utf-8"

// JSON is the event in structured mode: attributes and payload as one JSON
// object. A payload of a JSON type is embedded as it is, text as a string,
// everything else, JSON that is none included, in base64.
func (e *Event) JSON() ([]byte, error) {
	var b bytes.Buffer
	b.WriteByte('{')
	member := func(name string, value any) error {
		text, err := json.Marshal(value)
		if err != nil {
			return fmt.Errorf("encode CloudEvent: %w", err)
		}
		if b.Len() > 1 {
			b.WriteByte(',')
		}
		fmt.Fprintf(&b, "%q:", name)
		b.Write(text)
		return nil
	}
	for _, a := range e.Attributes {
		if err := member(a.Name, a.Value); err != nil {
			return nil, err
		}
	}
	if err := member("datacontenttype", e.ContentType); err != nil {
		return nil, err
	}
	if len(e.payload) > 0 {
		name, value := e.data()
		if err := member(name, value); err != nil {
			return nil, err
		}
	}
	b.WriteByte('}')
	return b.Bytes(), nil
}

// data is the member that holds the payload.
func (e *Event) data() (name string, value any) {
	t, _, err := mime.ParseMediaType(e.ContentType)
	switch {
	case err != nil:
	case (strings.HasSuffix(t, "/json") || strings.HasSuffix(t, "+json")) && json.Valid(e.payload):
		return "data", json.RawMessage(e.payload)
	case strings.HasPrefix(t, "text/") && utf8.Valid(e.payload):
		return "data", string(e.payload)
	}
	return "data_base64", e.payload
}

// HeaderValue writes an attribute's value as the HTTP binding of CloudEvents
// wants it: what is not printable ASCII, and space, quote and percent sign, are
// percent-encoded byte by byte.
func HeaderValue(s string) string {
	plain := func(c byte) bool { return c > 0x20 && c < 0x7f && c != '"' && c != '%' }
	clean := true
	for i := range len(s) {
		clean = clean && plain(s[i])
	}
	if clean {
		return s
	}
	const hex = "0123456789ABCDEF"
	b := make([]byte, 0, 3*len(s))
	for i := range len(s) {
		if c := s[i]; plain(c) {
			b = append(b, c)
		} else {
			b = append(b, '%', hex[c>>4], hex[c&15])
		}
	}
	return string(b)
}
