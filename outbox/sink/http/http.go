// Package http posts messages as CloudEvents 1.0, signed by Standard Webhooks
// if there is a secret.
//
// In binary mode the attributes are headers: ce-id is the identity,
// ce-partitionkey the key, ce-type the header "type" or the topic. Headers whose
// names are valid attribute names become attributes, the others are sent unchanged,
// traceparent and tracestate as both. Every request carries the identity as Idempotency-Key,
// too. Attributes are percent-encoded according to CloudEvents.
//
// An answer of 2xx confirms. Of the others:
//
//	408, 425, 500, 502, 504, …           an attempt is spent
//	3xx, 401, 403, 407, 429, 503,        an attempt is spent while the endpoint takes
//	a connection that is cut off         other messages; otherwise all wait for it
//	404, 405, 410                        as the first if the path has the topic or the
//	                                     key in it, otherwise as the second
//	other 4xx                            rejected
//
// Retry-After is honored. An endpoint that fails for every message gets only a few until it
// accepts one, and no message spends an attempt: see [outbox.Doubtful].
//
// Requests of one key follow each other; those of different keys are in flight
// concurrently. A redirect is never followed.
package http

import (
	"bytes"
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptrace"
	"net/url"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/weirdb/weir/outbox"
	"github.com/weirdb/weir/outbox/sink"
)

// Sink posts messages.
type Sink struct {
	opts   Options
	target *url.URL
	client *http.Client
	slots  chan struct{} // one for each request under way
	late   *slowKeys     // has the slots of keys whose last request timed out
	closed atomic.Bool
	now    func() time.Time
}

// Open is New with the options of an address: see [ParseURL].
func Open(ctx context.Context, address string) (*Sink, error) {
	o, err := ParseURL(address)
	if err != nil {
		return nil, err
	}
	return New(ctx, o)
}

// New reads certificates. It does not connect.
func New(_ context.Context, o Options) (*Sink, error) {
	o, err := o.withDefaults()
	if err != nil {
		return nil, err
	}
	target, err := url.Parse(o.URL)
	if err != nil {
		return nil, errors.New("http: want a URL of http or https")
	}
	cfg, err := o.TLS.Config()
	if err != nil {
		return nil, fmt.Errorf("http: %w", err)
	}
	return &Sink{
		opts: o, target: target, slots: make(chan struct{}, o.Concurrency), late: newSlowKeys(o.Concurrency), now: time.Now,
		client: &http.Client{
			CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
			Transport: &http.Transport{
				Proxy: http.ProxyFromEnvironment, TLSClientConfig: cfg, ForceAttemptHTTP2: true,
				DialContext:         (&net.Dialer{Timeout: o.Timeout}).DialContext,
				MaxIdleConnsPerHost: o.Concurrency, IdleConnTimeout: 90 * time.Second, TLSHandshakeTimeout: o.Timeout,
			},
		},
	}, nil
}

// String returns the URL without a login and query.
func (s *Sink) String() string { return s.opts.String() }

// Close closes idle connections.
func (s *Sink) Close() error {
	s.closed.Store(true)
	s.client.CloseIdleConnections()
	return nil
}

var errClosed = outbox.Unavailable(errors.New("http: the sink is closed"))

// Publish implements [outbox.Sink].
func (s *Sink) Publish(ctx context.Context, msgs []outbox.Message) []error {
	errs := make([]error, len(msgs))
	chains := sink.Chains(msgs)
	var next atomic.Int64
	var stop atomic.Pointer[error] // the endpoint is gone: no use in trying the rest
	var score results
	var wg sync.WaitGroup
	for range min(len(chains), s.opts.Concurrency) {
		wg.Go(func() {
			for n := next.Add(1) - 1; n < int64(len(chains)); n = next.Add(1) - 1 {
				s.chain(ctx, msgs, chains[n], errs, &stop, &score)
			}
		})
	}
	wg.Wait()
	return sink.Result(errs)
}

// results counts the outcomes of one call's messages.
type results struct{ taken, doubtful atomic.Int64 }

// maxDoubtful is how many doubtful answers, without a success, end a call.
const maxDoubtful = 8

// count records an answer, and reports whether the call should stop.
func (t *results) count(err error) bool {
	switch {
	case err == nil:
		t.taken.Add(1)
	case outbox.IsDoubtful(err):
		return t.doubtful.Add(1) >= maxDoubtful && t.taken.Load() == 0
	}
	return outbox.IsUnavailable(err)
}

// Destination implements [outbox.Router]: one URL is one destination.
func (s *Sink) Destination(m *outbox.Message) string {
	if sink.Template(s.target.Path).Has("topic") {
		return m.Topic
	}
	return s.String()
}

// chain posts the messages of one key until one fails, or another chain finds the endpoint
// unavailable.
func (s *Sink) chain(ctx context.Context, msgs []outbox.Message, chain []int, errs []error, stop *atomic.Pointer[error], score *results) {
	for n, i := range chain {
		if stop.Load() == nil {
			errs[i] = s.post(ctx, &msgs[i])
			if score.count(errs[i]) {
				stop.CompareAndSwap(nil, &errs[i])
			}
		} else { // what was not sent has no part in it
			errs[i] = outbox.ErrHeldBack
		}
		if errs[i] == nil {
			continue
		}
		rest := outbox.ErrHeldBack
		if err := ctx.Err(); err != nil {
			rest = err
		}
		for _, i := range chain[n+1:] {
			errs[i] = rest
		}
		return
	}
}

// post sends one message and waits for the answer.
func (s *Sink) post(ctx context.Context, m *outbox.Message) error {
	if s.closed.Load() {
		return errClosed
	}
	slots := s.slots
	if s.late.has(m) {
		slots = s.late.slots
	}
	select {
	case slots <- struct{}{}:
		defer func() { <-slots }()
	case <-ctx.Done():
		return ctx.Err()
	}
	inner, cancel := context.WithTimeout(ctx, s.opts.Timeout)
	defer cancel()
	var connected atomic.Bool
	inner = httptrace.WithClientTrace(inner, &httptrace.ClientTrace{
		GetConn: func(string) { connected.Store(false) }, // once more, when the one before was stale
		GotConn: func(httptrace.GotConnInfo) { connected.Store(true) },
	})
	req, err := s.request(inner, m)
	if err != nil {
		return err
	}
	resp, err := s.client.Do(req)
	if err != nil {
		if errors.Is(err, context.DeadlineExceeded) && connected.Load() && ctx.Err() == nil {
			s.late.note(m, false)
		}
		return s.classifyLost(ctx, err, connected.Load())
	}
	s.late.note(m, true)
	defer resp.Body.Close()
	// The body is for the log. The connection is reused if the body is short.
	said, _ := io.ReadAll(io.LimitReader(resp.Body, 4<<10))
	return s.classify(resp, said)
}

// address returns the URL for a message.
func (s *Sink) address(m *outbox.Message) *url.URL {
	u := *s.target
	u.Path = sink.Template(s.target.Path).Expand(m)
	u.RawPath = strings.NewReplacer(
		"{topic}", url.PathEscape(m.Topic), "{key}", url.PathEscape(m.Key),
		"%7Btopic%7D", url.PathEscape(m.Topic), "%7Bkey%7D", url.PathEscape(m.Key),
	).Replace(s.target.EscapedPath())
	return &u
}

// request converts a message.
func (s *Sink) request(ctx context.Context, m *outbox.Message) (*http.Request, error) {
	event := sink.NewEvent(m, s.opts.Source)
	body, contentType := m.Payload, event.ContentType
	if s.opts.Structured {
		var err error
		if body, err = event.JSON(); err != nil {
			return nil, outbox.Invalid(err)
		}
		contentType = sink.StructuredType
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, s.address(m).String(), bytes.NewReader(body))
	if err != nil {
		return nil, outbox.Invalid(errors.New("http: the topic or key does not give a valid URL"))
	}
	for name, value := range event.Headers {
		if err := checkHeader(name, value); err != nil {
			return nil, err
		}
		req.Header.Set(name, value)
	}
	for _, a := range event.Attributes {
		if !s.opts.Structured {
			req.Header.Set("ce-"+a.Name, sink.HeaderValue(a.Value))
		}
		if a.Name == "traceparent" || a.Name == "tracestate" {
			req.Header.Set(a.Name, sink.HeaderValue(a.Value))
		}
	}
	if err := sink.CheckHeader("content-type", contentType); err != nil {
		return nil, err
	}
	req.Header.Set("Content-Type", contentType)
	req.Header.Set("User-Agent", "weir-outbox")
	id := sink.HeaderValue(m.Identity())
	req.Header.Set("Idempotency-Key", id)
	s.authorize(req)
	s.sign(req, id, body)
	return req, nil
}

// checkHeader returns an error for headers of the connection or of this package.
func checkHeader(name, value string) error {
	lower := strings.ToLower(name)
	switch lower {
	case "host", "content-length", "transfer-encoding", "connection", "upgrade", "te", "trailer", "keep-alive",
		"proxy-authorization", "proxy-connection", "expect", "content-encoding", "authorization":
		return outbox.Invalid(fmt.Errorf("http: messages must not set the header %q", name))
	}
	return sink.CheckHeader(name, value)
}

func (s *Sink) authorize(req *http.Request) {
	switch {
	case s.opts.Authorization != "":
		req.Header.Set("Authorization", s.opts.Authorization)
	case s.opts.User+s.opts.Password != "":
		req.SetBasicAuth(s.opts.User, s.opts.Password)
	}
}

// sign adds the headers of Standard Webhooks.
func (s *Sink) sign(req *http.Request, id string, body []byte) {
	if len(s.opts.Secrets) == 0 {
		return
	}
	at := strconv.FormatInt(s.now().Unix(), 10)
	var signatures []string
	for _, secret := range s.opts.Secrets {
		mac := hmac.New(sha256.New, secret)
		mac.Write([]byte(id + "." + at + "."))
		mac.Write(body)
		signatures = append(signatures, "v1,"+base64.StdEncoding.EncodeToString(mac.Sum(nil)))
	}
	req.Header.Set("webhook-id", id)
	req.Header.Set("webhook-timestamp", at)
	req.Header.Set("webhook-signature", strings.Join(signatures, " "))
}
