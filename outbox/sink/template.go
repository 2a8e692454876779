package sink

import (
	"fmt"
	"strings"

	"github.com/weirdb/weir/outbox"
)

// Template is text in which {topic} and {key} are replaced by those of a message.
type Template string

// Check returns an error for other placeholders.
func (t Template) Check() error {
	s := strings.NewReplacer("{topic}", "", "{key}", "").Replace(string(t))
	if strings.ContainsAny(s, "{}") {
		return fmt.Errorf("%q: want no placeholders but {topic} and {key}", string(t))
	}
	return nil
}

// Has reports whether the template has the placeholder, "topic" or "key".
func (t Template) Has(name string) bool { return strings.Contains(string(t), "{"+name+"}") }

// Expand replaces the placeholders.
func (t Template) Expand(m *outbox.Message) string {
	switch t { // the usual ones, without a copy
	case "{topic}":
		return m.Topic
	case "{key}":
		return m.Key
	}
	return strings.NewReplacer("{topic}", m.Topic, "{key}", m.Key).Replace(string(t))
}

// CheckHeader returns an error, marked by [outbox.Invalid], for a header that cannot be
// sent as a line of text, as in NATS and HTTP: the name must be a token of RFC 9110 and
// the value must not contain line ends.
func CheckHeader(name, value string) error {
	if !isToken(name) {
		return outbox.Invalid(fmt.Errorf("header %q: its name has characters that this broker's headers cannot carry", name))
	}
	if strings.ContainsAny(value, "\r\n\x00") {
		return outbox.Invalid(fmt.Errorf("header %q: its value has line ends", name))
	}
	return nil
}

// isToken reports whether s is a token of RFC 9110, section 5.6.2.
func isToken(s string) bool {
	if s == "" {
		return false
	}
	for i := range len(s) {
		c := s[i]
		if c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9' {
			continue
		}
		if strings.IndexByte("!#$%&'*+-.^_`|~", c) < 0 {
			return false
		}
	}
	return true
}
