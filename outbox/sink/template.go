package sink

import (
	"fmt"
	"strings"

	"github.com/weirdb/weir/outbox"
)

// Template says where a message goes: text in which {topic} and {key} stand for
// those of the message.
type Template string

// Check refuses placeholders other than the two.
func (t Template) Check() error {
	s := strings.NewReplacer("{topic}", "", "{key}", "").Replace(string(t))
	if strings.ContainsAny(s, "{}") {
		return fmt.Errorf("%q: want no placeholders but {topic} and {key}", string(t))
	}
	return nil
}

// Has reports whether the template has the placeholder, "topic" or "key".
func (t Template) Has(name string) bool { return strings.Contains(string(t), "{"+name+"}") }

// Expand fills the template in.
func (t Template) Expand(m *outbox.Message) string {
	switch t { // the usual ones, without a copy
	case "{topic}":
		return m.Topic
	case "{key}":
		return m.Key
	}
	return strings.NewReplacer("{topic}", m.Topic, "{key}", m.Key).Replace(string(t))
}

// CheckHeader refuses a header that cannot travel as a line of text, as NATS
// and HTTP send them: the name must be a token of RFC 9110, the value must have
// no line ends. The error is marked by [outbox.Invalid].
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
