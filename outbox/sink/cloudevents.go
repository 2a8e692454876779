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
	// Attributes are those of the specification and extensions, in this order:
	// specversion, id, source, type, time (if the message's id contains it),
	// subject and dataschema (from headers), topic, partitionkey (the key), then
	// headers whose names are valid attribute names, sorted.
	Attributes []Attribute

	// Headers are those whose names are not valid attribute names.
	Headers map[string]string

	// ContentType of the payload: the message's header, or guessed.
	ContentType string

	payload []byte
}

// overridable attributes are set by headers of their name.
var overridable = []string{"source", HeaderType, "subject", "time", "dataschema"}

// reserved attributes are never taken from headers.
var reserved = []string{"specversion", "id", "data", "datacontenttype", "topic", "partitionkey"}

// NewEvent converts m. source is the attribute source of a message without that header.
// The payload is not copied.
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

// isAttribute reports whether a header's name is a valid attribute name: at most 20
// lower-case letters and digits.
func isAttribute(name string) bool {
	return name != "" && len(name) <= 20 && strings.IndexFunc(name, func(r rune) bool {
		return !(r >= 'a' && r <= 'z' || r >= '0' && r <= '9')
	}) < 0
}

// contentType returns the header, or a guess from the payload.
func contentType(m *outbox.Message) string {
	switch t := m.Headers[HeaderContentType]; {
	case t != "":
		return t
	case len(m.Payload) > 0 && json.Valid(m.Payload):
		return "application/json"
	}
	return "application/octet-stream"
}

// StructuredType is the content type of [Event.JSON].
const StructuredType = "application/cloudevents+json; charset=utf-8"

// JSON returns the event in structured mode: attributes and payload as one JSON object.
// It embeds a payload of a JSON type, writes text as a string, and everything else,
// including invalid JSON, in base64.
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

// data returns the member for the payload.
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

// HeaderValue encodes an attribute's value according to the HTTP binding of CloudEvents:
// bytes other than printable ASCII, and space, quote and percent sign, are
// percent-encoded.
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
