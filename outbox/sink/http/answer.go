package http

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"
	"unicode"

	"github.com/weirdb/weir/outbox"
	"github.com/weirdb/weir/outbox/sink"
)

// classifyLost returns the error for a request without an answer. connected says whether
// there was a connection to the endpoint.
func (s *Sink) classifyLost(ctx context.Context, err error, connected bool) error {
	if ctx.Err() != nil {
		return ctx.Err()
	}
	var outer *url.Error
	if errors.As(err, &outer) {
		err = outer.Err // without the URL, whose query may hold a secret
	}
	wrapped := fmt.Errorf("http: post to %v: %w", s, err)
	if errors.Is(err, context.DeadlineExceeded) && connected {
		// The endpoint accepted the message and did not finish: the message may be
		// the reason.
		return fmt.Errorf("http: post to %v: no answer within %v", s, s.opts.Timeout)
	}
	if connected {
		return outbox.Doubtful(wrapped) // closed because of this message, or for all
	}
	return outbox.Unavailable(wrapped)
}

// classify converts an answer to the error of its message.
func (s *Sink) classify(resp *http.Response, said []byte) error {
	if resp.StatusCode >= 200 && resp.StatusCode < 300 {
		return nil
	}
	err := fmt.Errorf("http: %v answered %d %s%s", s, resp.StatusCode, http.StatusText(resp.StatusCode), excerpt(said))
	if d, ok := parseRetryAfter(resp.Header.Get("Retry-After"), s.now()); ok {
		err = outbox.RetryAfter(err, d)
	}
	path := sink.Template(s.target.Path)
	switch code := resp.StatusCode; {
	case code == http.StatusTooManyRequests, code == http.StatusServiceUnavailable,
		code == http.StatusUnauthorized, code == http.StatusForbidden, code == http.StatusProxyAuthRequired,
		code < 400:
		return outbox.Doubtful(err)
	case code == http.StatusNotFound, code == http.StatusMethodNotAllowed, code == http.StatusGone:
		if path.Has("topic") || path.Has("key") {
			return err // it may be created later
		}
		return outbox.Doubtful(err)
	case code == http.StatusRequestTimeout, code == http.StatusTooEarly, code >= 500:
		return err
	case code == http.StatusRequestEntityTooLarge, code == http.StatusRequestHeaderFieldsTooLarge:
		return outbox.Invalid(err)
	}
	return outbox.Reject(err)
}

// excerpt returns the beginning of a response body, on one line.
func excerpt(said []byte) string {
	text := strings.Map(func(r rune) rune {
		if unicode.IsPrint(r) && r != unicode.ReplacementChar {
			return r
		}
		return ' '
	}, string(said[:min(len(said), 200)]))
	if text = strings.TrimSpace(text); text == "" {
		return ""
	}
	return ": " + text
}

// maxRetryAfter bounds Retry-After.
const maxRetryAfter = 24 * time.Hour

// parseRetryAfter parses the header Retry-After: seconds, or a date. The result is from zero to
// maxRetryAfter.
func parseRetryAfter(value string, now time.Time) (time.Duration, bool) {
	value = strings.TrimSpace(value)
	if value == "" {
		return 0, false
	}
	if strings.Trim(value, "0123456789") == "" {
		seconds, err := strconv.ParseInt(value, 10, 64)
		if err != nil || seconds > int64(maxRetryAfter/time.Second) {
			return maxRetryAfter, true // all digits: only its size can be wrong
		}
		return time.Duration(seconds) * time.Second, true
	}
	at, err := http.ParseTime(value)
	if err != nil {
		return 0, false
	}
	return min(max(at.Sub(now), 0), maxRetryAfter), true
}
