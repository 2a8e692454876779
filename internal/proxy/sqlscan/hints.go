package sqlscan

import (
	"fmt"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/weirdb/weir/internal/proxy/sqlscan/lexicon"
)

// This is the grammar of hints.
//
// A hint is a word "batch" or "key:value", where key is batch, file, line, tag,
// traceparent or ttl in lower case; a value ends at white space or a comma. Hints stand in comments
// in front of the first token of the text, of either form, in any order. A
// comment is read for hints if every word of it is a hint, or if it starts with
// one of the keys and a colon; in the latter case the words that are no hints
// are reported in Bad. Any other comment is prose:
// "/* batch job nightly */" is no hint.
//
// A comment may also have the form of SQLCommenter, key='value',key2='v2', with
// URL-encoded values; such a block comment counts at the end of the text
// too. Keys that are not weir's (application, route, ...) are passed over.
//
// Of several values for a key, the first valid one counts.
//
// A traceparent that is malformed, or unused because no collector is configured, is not
// reported: the libraries that write it do not do so for weir.

// maxWindow bounds batch:N. A client that asks for more than a second has probably
// mistaken the unit.
const maxWindow = time.Second

// maxTTL bounds ttl:N at one year.
const maxTTL = 365 * 24 * time.Hour

// maxTag bounds tag:NAME.
const maxTag = 64

// leadingHints reads the comments in trivia, which holds nothing but comments
// and white space.
func leadingHints(h *Hints, trivia string) {
	forComments(trivia, func(body string, _ bool) { h.ReadLeading(body) })
}

// trailingHints reads the block comments at the end of a text, where only the
// form of SQLCommenter counts.
func trailingHints(h *Hints, trivia string) {
	forComments(trivia, func(body string, block bool) {
		if block {
			h.ReadTrailing(body)
		}
	})
}

// ReadLeading reads a comment that stands in front of a text's first token; body
// is what the comment's marks enclose.
func (h *Hints) ReadLeading(body string) {
	if !commenter(h, body) {
		wordHints(h, body)
	}
}

// ReadTrailing reads a block comment at the end of a text, where only the form
// of SQLCommenter counts.
func (h *Hints) ReadTrailing(body string) { commenter(h, body) }

func forComments(trivia string, f func(body string, block bool)) {
	for i := 0; i+1 < len(trivia); {
		switch {
		case trivia[i] == '-' && trivia[i+1] == '-':
			end := lineEnd(trivia, i)
			f(trivia[i+2:end], false)
			i = end
		case trivia[i] == '/' && trivia[i+1] == '*':
			end, ok := blockEnd(trivia, i)
			if ok {
				f(trivia[i+2:end-2], true)
			}
			i = end
		default:
			i++
		}
	}
}

// nextWord cuts the first word off a comment.
func nextWord(body string) (word, rest string) {
	separator := func(c byte) bool { return lexicon.IsSpace(c) || c == ',' }
	i := 0
	for i < len(body) && separator(body[i]) {
		i++
	}
	start := i
	for i < len(body) && !separator(body[i]) {
		i++
	}
	return body[start:i], body[i:]
}

// cutHint splits a word that is a hint.
func cutHint(word string) (key, value string, ok bool) {
	if word == "batch" {
		return "batch", "auto", true
	}
	key, value, ok = strings.Cut(word, ":")
	switch key {
	case "batch", "file", "line", "tag", "traceparent", "ttl":
		return key, value, ok
	}
	return "", "", false
}

// wordHints reads a comment as words.
func wordHints(h *Hints, body string) {
	first, rest := nextWord(body)
	if first == "" {
		return
	}
	startsWithKey := strings.Contains(first, ":")
	for word := first; word != ""; word, rest = nextWord(rest) {
		if _, _, ok := cutHint(word); !ok && (word == first || !startsWithKey) {
			return
		}
	}
	for word, rest := nextWord(body); word != ""; word, rest = nextWord(rest) {
		key, value, ok := cutHint(word)
		if !ok {
			h.bad("%s is no hint: known are batch, batch:, file:, line:, tag:, traceparent: and ttl:", clip(word))
			continue
		}
		h.apply(key, value)
	}
}

// commenter reads a comment in the form of SQLCommenter. It reports false, and
// changes nothing, if the comment has another form.
func commenter(h *Hints, body string) bool {
	body = strings.TrimSpace(body)
	if !forPairs(body, func(string, string) {}) {
		return false
	}
	return forPairs(body, func(key, value string) {
		switch key {
		case "batch", "file", "line", "tag", "ttl", "traceparent":
		default:
			return
		}
		if strings.Contains(value, `\'`) {
			value = strings.ReplaceAll(value, `\'`, `'`)
		}
		if strings.Contains(value, "%") {
			decoded, err := url.PathUnescape(value)
			if err != nil {
				h.bad("%s='%s' is not URL-encoded", key, clip(value))
				return
			}
			value = decoded
		}
		h.apply(key, value)
	})
}

// forPairs calls f for each key='value' of a list and reports whether all of
// body is such a list.
func forPairs(body string, f func(key, value string)) bool {
	for {
		key, rest, ok := strings.Cut(body, "='")
		if !ok || key == "" || strings.ContainsAny(key, "', \t\n\r") {
			return false
		}
		end := 0
		for end < len(rest) && rest[end] != '\'' {
			if rest[end] == '\\' {
				end++
			}
			end++
		}
		if end >= len(rest) {
			return false
		}
		f(key, rest[:end])
		body = strings.TrimSpace(rest[end+1:])
		if body == "" {
			return true
		}
		if body[0] != ',' {
			return false
		}
		body = strings.TrimSpace(body[1:])
	}
}

// apply takes one hint.
func (h *Hints) apply(key, value string) {
	switch key {
	case "batch":
		h.applyBatch(value)
	case "file":
		if value == "" {
			h.bad("file: has no value")
		} else if h.File == "" {
			h.File = value
		}
	case "line":
		n, err := strconv.Atoi(value)
		if err != nil || n < 1 {
			h.bad("line:%s is not a line number", clip(value))
		} else if h.Line == 0 {
			h.Line = n
		}
	case "ttl":
		d, ok := decimal(value, time.Second, maxTTL)
		if !ok {
			h.bad("ttl:%s is not a number of seconds from 0 to %d", clip(value), maxTTL/time.Second)
		} else if h.TTL == 0 && !h.NoCache {
			h.TTL, h.NoCache = d, d == 0
		}
	case "tag":
		if value == "" || len(value) > maxTag {
			h.bad("tag:%s is not a name of 1 to %d bytes", clip(value), maxTag)
		} else if h.Tag == "" {
			h.Tag = value
		}
	case "traceparent":
		if h.Trace == "" {
			h.Trace = value
		}
	}
}

func (h *Hints) applyBatch(value string) {
	var b BatchHint
	switch value {
	case "auto":
		b.Kind = BatchAuto
	case "off":
		b.Kind = BatchOff
	default:
		d, ok := decimal(value, time.Millisecond, maxWindow)
		if !ok {
			h.bad("batch:%s is not auto, off or a number of milliseconds from 0 to %d",
				clip(value), maxWindow/time.Millisecond)
			return
		}
		b = BatchHint{Kind: BatchWindow, Window: d}
		if d == 0 {
			b.Kind = BatchOff
		}
	}
	if h.Batch.Kind == BatchNone {
		h.Batch = b
	}
}

// decimal reads digits with at most one point among them as a multiple of unit.
// Signs, exponents and values above most are refused. Parts of a nanosecond are
// dropped, but what is not zero stays above zero.
func decimal(text string, unit, most time.Duration) (time.Duration, bool) {
	if text == "" || strings.Trim(text, "0123456789.") != "" {
		return 0, false
	}
	f, err := strconv.ParseFloat(text, 64)
	if err != nil || f > float64(most)/float64(unit) {
		return 0, false
	}
	d := time.Duration(f * float64(unit))
	if d == 0 && f > 0 {
		d = 1
	}
	return d, true
}

func (h *Hints) bad(format string, args ...any) {
	const most = 8 // a text of nothing but bad hints must not fill the log
	if len(h.Bad) < most {
		h.Bad = append(h.Bad, fmt.Sprintf(format, args...))
	}
}

// clip quotes at most 40 bytes of a client's text for a message.
func clip(text string) string {
	const most = 40
	if len(text) > most {
		text = text[:most] + "..."
	}
	return strings.Trim(strconv.QuoteToASCII(text), `"`)
}
