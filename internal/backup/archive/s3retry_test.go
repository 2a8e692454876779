package archive

import (
	"encoding/xml"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"os"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/minio/minio-go/v7"
	"github.com/minio/minio-go/v7/pkg/credentials"
)

// Answers that are cut are asked for again, a bounded number of times and for a bounded time.
func TestS3RepeatsWhatIsCut(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		err   error
		takes time.Duration
		want  int
	}{
		{io.ErrUnexpectedEOF, 0, s3Retries},
		{fmt.Errorf("read: %w", &xml.SyntaxError{Msg: "unexpected EOF"}), 0, s3Retries},
		{&net.OpError{Op: "read", Err: syscall.ECONNRESET}, 0, s3Retries},
		{io.ErrUnexpectedEOF, s3Repeat * 2 / 3, 2},
		{&url.Error{Op: "Post", Err: io.ErrUnexpectedEOF}, 0, 1},
		{&url.Error{Op: "Post", Err: &net.OpError{Op: "read", Err: syscall.ECONNRESET}}, 0, 1},
		{minio.ErrorResponse{Code: "NoSuchKey"}, 0, 1},
		{nil, 0, 1},
	} {
		synctest.Test(t, func(t *testing.T) {
			tries := 0
			err := (&S3{insist: s3Repeat, reporter: newReporter(t.Context())}).repeat(t.Context(), func() error {
				tries++
				time.Sleep(c.takes)
				return c.err
			})
			if tries != c.want || (err == nil) != (c.err == nil) {
				t.Errorf("%v: %d requests of %v, want %d; the error is %v", c.err, tries, c.takes, c.want, err)
			}
		})
	}
}

type roundTripper func(*http.Request) (*http.Response, error)

func (f roundTripper) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }

// A storage bears minutes of throttling, of faults and of no server, asks ever more slowly, says
// so, and does not wait for ever.
func TestS3IsPatient(t *testing.T) {
	t.Parallel()
	refuses := func(status int, code string) roundTripper {
		return func(r *http.Request) (*http.Response, error) {
			body := "<Error><Code>" + code + "</Code><Message>as the test wants</Message></Error>"
			return &http.Response{StatusCode: status, Status: fmt.Sprint(status), Request: r, Header: http.Header{}, Body: io.NopCloser(strings.NewReader(body))}, nil
		}
	}
	gone := roundTripper(func(*http.Request) (*http.Response, error) {
		return nil, &net.OpError{Op: "dial", Net: "tcp", Err: syscall.ECONNREFUSED}
	})
	silent := roundTripper(func(*http.Request) (*http.Response, error) {
		time.Sleep(time.Minute)
		return nil, os.ErrDeadlineExceeded
	})
	const ever = time.Hour
	for _, c := range []struct {
		name        string
		fault       roundTripper
		lasts       time.Duration
		new         bool // the storage has not answered yet
		least, most time.Duration
		requests    int // at most
		says        string
		fails       string
	}{
		{"slow down", refuses(503, "SlowDown"), 5 * time.Minute, false, 5 * time.Minute, 6 * time.Minute, 24, "slow down", ""},
		{"slow down at first", refuses(429, "TooManyRequests"), 5 * time.Minute, true, 5 * time.Minute, 6 * time.Minute, 24, "slow down", ""},
		{"slow down for ever", refuses(503, "SlowDown"), ever, false, s3Repeat, s3Repeat + 5*time.Minute, 48, "slow down", "--rate-limit"},
		{"fault", refuses(500, "InternalError"), 5 * time.Minute, false, 5 * time.Minute, 6 * time.Minute, 200, "as the test wants", ""},
		{"no server", gone, 5 * time.Minute, false, 5 * time.Minute, 6 * time.Minute, 200, "connection refused", ""},
		{"no server for ever", gone, ever, false, s3Repeat, s3Repeat + time.Minute, 400, "connection refused", "connection refused"},
		{"wrong address", gone, ever, true, 0, 10 * time.Second, s3Retries, "", "connection refused"},
		{"silent server", silent, ever, true, (s3Retries - 1) * time.Minute, (s3Retries + 1) * time.Minute, s3Retries, "does not answer", "timeout"},
		{"no right", refuses(403, "AccessDenied"), ever, false, 0, time.Second, 1, "", "credentials are missing or lack"},
	} {
		synctest.Test(t, func(t *testing.T) {
			begun, requests, said := time.Now(), 0, ""
			h := &reporter{say: func(line string) { said += line + "\n" }}
			answer := roundTripper(func(r *http.Request) (*http.Response, error) {
				if requests++; time.Since(begun) < c.lasts {
					return c.fault(r)
				}
				return &http.Response{StatusCode: http.StatusNoContent, Request: r, Header: http.Header{}, Body: http.NoBody}, nil
			})
			core, err := minio.NewCore("s3.test", &minio.Options{
				Creds: credentials.NewStaticV4("a", "b", ""), Region: "r", BucketLookup: minio.BucketLookupPath, MaxRetries: s3Retries,
				Transport: &throttle{next: answer, place: "s3://bucket", reporter: h},
			})
			if err != nil {
				t.Fatal(err)
			}
			s := &S3{core: *core, bucket: "bucket", place: "s3://bucket", insist: s3Repeat, reporter: h, reached: !c.new}
			err = s.Delete(t.Context(), "x")
			took := time.Since(begun)
			if took < c.least || took > c.most || requests > c.requests || !strings.Contains(said, c.says) || strings.Count(said, "\n") > int(took/s3Silence)+1 {
				t.Errorf("%s: %d requests in %v; said:\n%s", c.name, requests, took, said)
			}
			if (err == nil) != (c.fails == "") || err != nil && !strings.Contains(err.Error(), c.fails) {
				t.Errorf("%s: the error is %v", c.name, err)
			}
		})
	}
}

// A request that has waited looks again: a pause that has begun meanwhile is its own, too. It does not
// wait for ever.
func TestS3ThrottleWaits(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		pauses      int // one after the other, of s3LastPause each
		least, most time.Duration
	}{
		{0, 0, 0},
		{1, s3LastPause, s3LastPause * 5 / 4},
		{2, 2 * s3LastPause, 2 * s3LastPause * 5 / 4},
		{9, 2 * s3LastPause, 3 * s3LastPause * 5 / 4},
	} {
		synctest.Test(t, func(t *testing.T) {
			th := throttle{pause: s3LastPause}
			begun := time.Now()
			for i := range c.pauses {
				time.AfterFunc(time.Duration(i)*s3LastPause, func() {
					th.mu.Lock()
					defer th.mu.Unlock()
					th.until = time.Now().Add(s3LastPause)
				})
			}
			synctest.Wait()
			if err := th.wait(t.Context()); err != nil {
				t.Fatal(err)
			}
			if took := time.Since(begun); took < c.least || took > c.most {
				t.Errorf("%d pauses: it waited %v, want %v to %v", c.pauses, took, c.least, c.most)
			}
		})
	}
}

// The pause after refusals doubles with each round of them, whatever was under way, does what the server
// asks for, and vanishes when there are none.
func TestS3ThrottlePauses(t *testing.T) {
	t.Parallel()
	var th throttle
	now := time.Now()
	for i, c := range []struct {
		after  time.Duration // since the step before
		status int
		header string
		want   time.Duration // the pause then
	}{
		{0, 200, "", 0},
		{0, 503, "", s3FirstPause},
		{0, 503, "", s3FirstPause}, // of the same round
		{time.Second, 429, "", 2 * s3FirstPause},
		{time.Minute, 429, "20", 20 * time.Second},
		{time.Minute, 503, "86400", s3LastPause},
		{time.Minute, 503, "", s3LastPause},
		{0, 200, "", s3LastPause / 2},
		{0, 404, "", s3LastPause / 4},
	} {
		now = now.Add(c.after)
		th.note(&http.Response{StatusCode: c.status, Header: http.Header{"Retry-After": {c.header}}}, now)
		if th.pause != c.want {
			t.Errorf("step %d: the pause is %v, want %v", i, th.pause, c.want)
		}
	}
	for range 10 {
		th.note(&http.Response{StatusCode: 200}, now)
	}
	if th.pause != 0 {
		t.Errorf("in the end, the pause is %v", th.pause)
	}
	if !temporary(errors.Join(minio.ErrorResponse{Code: "SlowDown"})) {
		t.Error("a code without a status is not known")
	}
}

// A message about several errors is one line.
func TestMessagesAreLines(t *testing.T) {
	t.Parallel()
	got := ""
	h := reporter{say: func(line string) { got = line }}
	h.tell("s3://b: %v", errors.Join(errors.New("delete a: x"), errors.New("delete b: x")))
	if want := "s3://b: delete a: x; delete b: x"; got != want {
		t.Errorf("the message is %q, want %q", got, want)
	}
}
