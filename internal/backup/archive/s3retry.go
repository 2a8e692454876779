package archive

import (
	"context"
	"encoding/xml"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/minio/minio-go/v7"
)

const (
	// s3Repeat is for how long, after its first attempt, a request may be repeated. The client
	// gives up after s3Retries attempts, which take about 3 s; throttling, and a server that
	// restarts behind a proxy, take minutes.
	s3Repeat = 10 * time.Minute

	// s3FirstPause and s3LastPause bound the time between two rounds of attempts, and between
	// two requests to a server that throttles.
	s3FirstPause = 500 * time.Millisecond
	s3LastPause  = 30 * time.Second

	// s3Silence is the minimum time between two messages about the same storage.
	s3Silence = time.Minute
)

type noticeKey struct{}

// WithNotice returns a context for opening storages, which pass messages about what they wait
// for to say, one line at a time. Any goroutine may call say, but only one at a time for each
// storage.
func WithNotice(ctx context.Context, say func(line string)) context.Context {
	return context.WithValue(ctx, noticeKey{}, say)
}

// A reporter reports to the operator what a storage waits for, without repeating itself.
type reporter struct {
	say func(string) // nil: messages are dropped
	mu  sync.Mutex
	at  time.Time // when the last message was sent
}

func newReporter(ctx context.Context) *reporter {
	say, _ := ctx.Value(noticeKey{}).(func(string))
	return &reporter{say: say}
}

func (h *reporter) tell(format string, args ...any) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if now := time.Now(); h.say != nil && (h.at.IsZero() || now.Sub(h.at) >= s3Silence) {
		h.at = now
		h.say(strings.ReplaceAll(fmt.Sprintf(format, args...), "\n", "; "))
	}
}

// repeat repeats a request, for s3Repeat, while the server throttles it or has an internal
// error, and, if the storage was reached before, while it cannot be reached. It also repeats a
// request whose response was interrupted, s3Retries times, which the client does not.
func (s *S3) repeat(ctx context.Context, request func() error) error {
	begun := time.Now()
	cuts, pause := 0, s3FirstPause
	for {
		err := request()
		if err == nil || ctx.Err() != nil || time.Since(begun) > s.insist {
			return err
		}
		switch {
		case cut(err):
			if cuts++; cuts == s3Retries {
				return err
			}
			continue
		case !temporary(err) && (!s.reached || !lost(err)):
			return err
		}
		s.reporter.tell("%s: %v; weir tries again for up to %s (a backup, while it can renew its lock)", s.place, err, (s.insist - time.Since(begun)).Round(time.Second))
		select {
		case <-ctx.Done():
			return err
		case <-time.After(pause):
		}
		pause = min(2*pause, s3LastPause)
	}
}

// cut reports whether err interrupted a response. The client wraps errors from before the
// response in *url.Error.
func cut(err error) bool {
	if errors.As(err, new(*url.Error)) {
		return false
	}
	return errors.Is(err, io.ErrUnexpectedEOF) || errors.Is(err, io.EOF) ||
		errors.As(err, new(*xml.SyntaxError)) || errors.As(err, new(*net.OpError))
}

// lost reports whether a request got no response.
func lost(err error) bool { return errors.As(err, new(*url.Error)) }

// temporary reports whether err is a response after which S3's documentation says to retry. The
// response to the deletion of many objects has a code for each of them, and no status.
func temporary(err error) bool {
	var answer minio.ErrorResponse
	if !errors.As(err, &answer) {
		return false
	}
	switch answer.StatusCode {
	case http.StatusTooManyRequests, http.StatusInternalServerError, http.StatusBadGateway, http.StatusServiceUnavailable, http.StatusGatewayTimeout:
		return true
	}
	return slowDown(answer.Code) || answer.Code == "InternalError" || answer.Code == "ServiceUnavailable"
}

// slowDown reports whether a code of S3, or of a compatible server, asks for fewer requests.
func slowDown(code string) bool {
	switch code {
	case "SlowDown", "SlowDownRead", "SlowDownWrite", "Throttling", "ThrottlingException", "RequestLimitExceeded", "RequestThrottled", "TooManyRequests":
		return true
	}
	return strings.HasPrefix(code, "429 ") // how the client represents a response without a body
}

// A throttle holds back all requests to a server that asks for fewer of them, because the
// limits are those of a bucket or an account. The pause begins with s3FirstPause, doubles with
// each round of refused requests, up to s3LastPause, and halves with each accepted request.
type throttle struct {
	next     http.RoundTripper
	place    string
	reporter *reporter

	mu    sync.Mutex
	pause time.Duration
	until time.Time // no request is sent before
}

func (t *throttle) RoundTrip(r *http.Request) (*http.Response, error) {
	if err := t.wait(r.Context()); err != nil {
		if r.Body != nil {
			err = errors.Join(err, r.Body.Close())
		}
		return nil, err
	}
	answer, err := t.next.RoundTrip(r)
	if err != nil {
		// The client repeats the request, each time with another timeout.
		if network := net.Error(nil); errors.As(err, &network) && network.Timeout() && r.Context().Err() == nil {
			t.reporter.tell("%s: the server does not answer: %v; the request is sent again", t.place, err)
		}
		return nil, err
	}
	if pause := t.note(answer, time.Now()); pause > s3FirstPause {
		t.reporter.tell("%s: the server asks to slow down (%s): requests are paused for %s", t.place, answer.Status, pause)
	}
	return answer, nil
}

// wait waits until the request may be sent, each at a different moment. If one pause follows
// another, it waits about a minute.
func (t *throttle) wait(ctx context.Context) error {
	for begun := time.Now(); time.Since(begun) < 2*s3LastPause; {
		t.mu.Lock()
		d := time.Until(t.until)
		if d > 0 {
			d += rand.N(t.pause/4 + 1)
		}
		t.mu.Unlock()
		if d <= 0 {
			return nil
		}
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-time.After(d): // another pause may have begun
		}
	}
	return nil
}

// note evaluates a response. It returns the pause that it has begun, or 0: responses to
// requests that were in flight when a pause began belong to the same round.
func (t *throttle) note(answer *http.Response, now time.Time) time.Duration {
	t.mu.Lock()
	defer t.mu.Unlock()
	if answer.StatusCode != http.StatusTooManyRequests && answer.StatusCode != http.StatusServiceUnavailable {
		if t.pause /= 2; t.pause < s3FirstPause {
			t.pause = 0
		}
		return 0
	}
	if now.Before(t.until) {
		return 0
	}
	t.pause = min(max(2*t.pause, s3FirstPause), s3LastPause)
	if seconds, err := strconv.Atoi(answer.Header.Get("Retry-After")); err == nil && seconds > 0 {
		t.pause = min(max(t.pause, time.Duration(seconds)*time.Second), s3LastPause)
	}
	t.until = now.Add(t.pause)
	return t.pause
}
