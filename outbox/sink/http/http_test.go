package http

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/weirdb/weir/internal/lab/labtest"
	"github.com/weirdb/weir/outbox"
	"github.com/weirdb/weir/outbox/sink/sinktest"
)

// endpoint is an HTTP server that can be killed and started again, on an address that no other
// process takes meanwhile.
type endpoint struct {
	t      testing.TB
	addr   string
	topics atomic.Int64

	mu     sync.Mutex
	server *http.Server
	stall  chan struct{} // closed: answers
	begun  int           // requests received
	got    map[string][]sinktest.Received
	seen   []*http.Request
	answer func(http.ResponseWriter) bool // answers instead, if it wants to
}

func newEndpoint(t testing.TB) *endpoint {
	e := &endpoint{t: t, addr: labtest.Addrs(t, 1)[0], got: map[string][]sinktest.Received{}, stall: make(chan struct{})}
	close(e.stall)
	if err := e.Restart(t.Context()); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(e.Kill)
	return e
}

func (e *endpoint) Kill() { e.server.Close() }

func (e *endpoint) Restart(context.Context) error {
	l, err := net.Listen("tcp", e.addr)
	if err != nil {
		return err
	}
	e.server = &http.Server{Handler: e}
	go e.server.Serve(l)
	return nil
}

func (e *endpoint) Pause() {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.stall = make(chan struct{})
}

func (e *endpoint) Resume() {
	e.mu.Lock()
	defer e.mu.Unlock()
	close(e.stall)
}

func (e *endpoint) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(r.Body)
	if err != nil {
		return
	}
	e.mu.Lock()
	stall := e.stall
	e.begun++
	e.mu.Unlock()
	select {
	case <-stall:
	case <-r.Context().Done():
		return
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	topic := strings.TrimPrefix(r.URL.Path, "/in/")
	switch {
	case e.answer != nil && e.answer(w):
		return
	case topic == "nobody-made-this":
		http.Error(w, "no such topic", http.StatusNotFound)
		return
	case len(body) > 1_500_000:
		http.Error(w, "too much", http.StatusRequestEntityTooLarge)
		return
	}
	e.seen = append(e.seen, r)
	e.got[topic] = append(e.got[topic], receive(e.t, r, body))
}

// receive reads a CloudEvent of either mode.
func receive(t testing.TB, r *http.Request, body []byte) sinktest.Received {
	attributes := map[string]string{}
	got := sinktest.Received{Payload: body, ContentType: r.Header.Get("Content-Type"), Headers: map[string]string{}}
	if strings.HasPrefix(got.ContentType, "application/cloudevents+json") {
		var members map[string]any
		if err := json.Unmarshal(body, &members); err != nil {
			t.Errorf("body: %v", err)
		}
		var embedded struct {
			Data  json.RawMessage `json:"data"`
			Bytes []byte          `json:"data_base64"`
		}
		if err := json.Unmarshal(body, &embedded); err != nil {
			t.Errorf("body: %v", err)
		}
		if got.Payload = embedded.Data; got.Payload == nil {
			got.Payload = embedded.Bytes
		}
		for name, value := range members {
			if text, ok := value.(string); ok && name != "data" {
				attributes[name] = text
			}
		}
		got.ContentType = attributes["datacontenttype"]
	}
	for name, values := range r.Header {
		got.Headers[name] = values[0]
		if a, ok := strings.CutPrefix(name, "Ce-"); ok {
			text, err := url.PathUnescape(values[0])
			if err != nil {
				t.Errorf("attribute %s: %v", name, err)
			}
			attributes[strings.ToLower(a)] = text
		}
	}
	if attributes["specversion"] != "1.0" || attributes["source"] == "" || attributes["type"] == "" {
		t.Errorf("attributes: %v", attributes)
	}
	got.Identity, got.Key = attributes["id"], attributes["partitionkey"]
	for name, value := range attributes {
		got.Headers[name] = value
	}
	return got
}

func (e *endpoint) read(ctx context.Context, _ testing.TB, topic string, n int) []sinktest.Received {
	for {
		e.mu.Lock()
		got := e.got[topic]
		e.mu.Unlock()
		if len(got) >= n || ctx.Err() != nil {
			return got
		}
	}
}

func open(address string) func(testing.TB) outbox.Sink {
	return func(t testing.TB) outbox.Sink {
		t.Helper()
		s, err := Open(t.Context(), address)
		if err != nil {
			t.Fatal(err)
		}
		return s
	}
}

func TestConformance(t *testing.T) {
	for _, mode := range []string{"binary", "structured"} {
		t.Run(mode, func(t *testing.T) {
			e := newEndpoint(t)
			sinktest.Run(t, sinktest.Subject{
				Open:     open("http://" + e.addr + "/in/{topic}?mode=" + mode),
				Topic:    func(testing.TB) string { return fmt.Sprintf("t%d", e.topics.Add(1)) },
				Read:     e.read,
				TooLarge: 1_500_001,
				Missing:  func(testing.TB) string { return "nobody-made-this" },
			}.Suffer(e))
		})
	}
}

func one(topic, key string) outbox.Message {
	return outbox.Message{ID: outbox.NewID(), Topic: topic, Key: key, Payload: []byte("{}")}
}

func TestKindsOfAnswer(t *testing.T) {
	const rejected, doubtful, plain = "rejected", "doubtful", "plain"
	e := newEndpoint(t)
	for _, c := range []struct {
		code  int
		fixed string // with one address for all topics
		topic string // with the topic in the address; "" for the same
	}{
		{400, rejected, ""},
		{401, doubtful, ""},
		{403, doubtful, ""},
		{404, doubtful, plain},
		{405, doubtful, plain},
		{408, plain, ""},
		{410, doubtful, plain},
		{413, rejected, ""},
		{422, rejected, ""},
		{425, plain, ""},
		{429, doubtful, ""},
		{307, doubtful, ""},
		{500, plain, ""},
		{502, plain, ""},
		{503, doubtful, ""},
		{504, plain, ""},
	} {
		if c.topic == "" {
			c.topic = c.fixed
		}
		e.answer = func(w http.ResponseWriter) bool {
			w.Header().Set("Location", "http://"+e.addr+"/elsewhere")
			w.Header().Set("Retry-After", "7")
			http.Error(w, "not\nnow", c.code)
			return true
		}
		for address, want := range map[string]string{"/in/x?query=token%3Dgeheim": c.fixed, "/in/{topic}": c.topic} {
			s := open("http://" + e.addr + address)(t)
			errs := s.Publish(t.Context(), []outbox.Message{one("x", "a"), one("x", "a")})
			got := plain
			switch {
			case len(errs) != 2 || errs[0] == nil:
				t.Fatalf("%d: %v, want errors", c.code, errs)
			case outbox.IsRejected(errs[0]):
				got = rejected
			case outbox.IsDoubtful(errs[0]):
				got = doubtful
			}
			if got != want || errs[1] != outbox.ErrHeldBack {
				t.Errorf("%d at %s: %v is %s, want %s", c.code, address, errs[0], got, want)
			}
			text := errs[0].Error()
			if strings.Contains(text, "geheim") || !strings.Contains(text, "not now") || !strings.Contains(text, "7s") {
				t.Errorf("%d at %s: %q", c.code, address, text)
			}
			s.Close()
		}
	}
}

// A call that is abandoned does not blame the messages that it has not sent.
func TestWhatWasNotSentIsHeldBack(t *testing.T) {
	e := newEndpoint(t)
	e.answer = func(w http.ResponseWriter) bool {
		http.Error(w, "too much", http.StatusServiceUnavailable)
		return true
	}
	s := open("http://" + e.addr + "/in/x?concurrency=4")(t)
	defer s.Close()
	var msgs []outbox.Message
	for n := range 200 {
		msgs = append(msgs, one("x", fmt.Sprint("k", n)))
	}
	doubtful := 0
	for i, err := range s.Publish(t.Context(), msgs) {
		switch {
		case outbox.IsDoubtful(err):
			doubtful++
		case err != outbox.ErrHeldBack:
			t.Errorf("message %d: %v, want it doubtful or held back", i, err)
		}
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	if doubtful != e.begun || e.begun >= len(msgs) {
		t.Errorf("%d requests of %d messages came, %d messages are in doubt; want the call given up, and as many in doubt as came", e.begun, len(msgs), doubtful)
	}
}

// TestSignature checks the example in the specification of Standard Webhooks.
func TestSignature(t *testing.T) {
	secrets, err := ParseSecrets("whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw\nold secret\n")
	if err != nil || len(secrets) != 2 {
		t.Fatalf("%d secrets, %v", len(secrets), err)
	}
	e := newEndpoint(t)
	s, err := New(t.Context(), Options{URL: "http://" + e.addr + "/in/x", Secrets: secrets})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	s.now = func() time.Time { return time.Unix(1614265330, 0) }
	m := one("x", "")
	m.DedupKey, m.Payload = "msg_p5jXN8AQM9LWM0D4loKWxJek", []byte(`{"test": 2432232314}`)
	if errs := s.Publish(t.Context(), []outbox.Message{m}); errs != nil {
		t.Fatal(errs)
	}
	h := e.seen[0].Header
	first, second, _ := strings.Cut(h.Get("webhook-signature"), " ")
	if first != "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE=" || !strings.HasPrefix(second, "v1,") || second == first {
		t.Errorf("signatures %q, %q", first, second)
	}
	if h.Get("webhook-id") != m.DedupKey || h.Get("webhook-timestamp") != "1614265330" || h.Get("Idempotency-Key") != m.DedupKey {
		t.Errorf("headers %v", h)
	}
}

func TestRequest(t *testing.T) {
	e := newEndpoint(t)
	file := filepath.Join(t.TempDir(), "authorization")
	if err := os.WriteFile(file, []byte("Bearer geheim\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	s := open("http://" + e.addr + "/in/{topic}/{key}?query=a%3D1%26b%3D2&timeout=5s&authorization-file=" + file)(t)
	defer s.Close()
	m := one("a/b?c", "k ü")
	if errs := s.Publish(t.Context(), []outbox.Message{m}); errs != nil {
		t.Fatal(errs)
	}
	r := e.seen[0]
	if r.RequestURI != "/in/a%2Fb%3Fc/k%20%C3%BC?a=1&b=2" || r.Header.Get("Authorization") != "Bearer geheim" {
		t.Errorf("request %s, authorization %q", r.RequestURI, r.Header.Get("Authorization"))
	}
	for _, name := range []string{"Host", "Authorization", "Content-Length", "a b"} {
		m := one("x", "")
		m.Headers = map[string]string{name: "x"}
		if errs := s.Publish(t.Context(), []outbox.Message{m}); len(errs) != 1 || !outbox.IsRejected(errs[0]) {
			t.Errorf("header %s: %v, want it rejected", name, errs)
		}
	}
	basic := open("http://u:p@" + e.addr + "/in/x")(t)
	defer basic.Close()
	if errs := basic.Publish(t.Context(), []outbox.Message{one("x", "")}); errs != nil {
		t.Fatal(errs)
	}
	if u, p, ok := e.seen[1].BasicAuth(); u != "u" || p != "p" || !ok {
		t.Errorf("login %q %q", u, p)
	}
}

func TestSlowEndpoint(t *testing.T) {
	e := newEndpoint(t)
	s := open("http://" + e.addr + "/in/x?timeout=100ms&query=geheim")(t)
	defer s.Close()
	e.Pause()
	defer e.Resume()
	had := func() int {
		e.mu.Lock()
		defer e.mu.Unlock()
		return e.begun
	}
	errs := s.Publish(t.Context(), []outbox.Message{one("x", "")})
	for len(errs) == 1 && outbox.IsUnavailable(errs[0]) && had() == 0 { // did not even connect in that time
		errs = s.Publish(t.Context(), []outbox.Message{one("x", "")})
	}
	if len(errs) != 1 || errs[0] == nil || outbox.IsUnavailable(errs[0]) || outbox.IsRejected(errs[0]) || strings.Contains(errs[0].Error(), "geheim") {
		t.Errorf("publish to an endpoint that does not get done: %v, want a plain error", errs)
	}
	if n := len(s.(*Sink).late.keys); n != 1 {
		t.Errorf("%d messages are known for not having been answered in time, want 1", n)
	}
}

// Keys whose requests were not answered in time take no slots from others.
func TestARouteThatHangsHoldsUpNoOther(t *testing.T) {
	came, release := make(chan struct{}), make(chan struct{})
	server := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		if strings.HasPrefix(r.URL.Path, "/in/hang") {
			came <- struct{}{}
			<-release
		}
	}))
	defer server.Close()
	s := open(server.URL + "/in/{key}?concurrency=2&timeout=1h")(t).(*Sink)
	defer s.Close()
	var hang, free []outbox.Message
	for n := range 20 {
		hang, free = append(hang, one("x", fmt.Sprint("hang", n))), append(free, one("x", fmt.Sprint("free", n)))
		s.late.note(&hang[n], false)
	}
	done := make(chan []error)
	go func() { done <- s.Publish(t.Context(), hang) }()
	for range 2 {
		<-came
	}
	if errs := s.Publish(t.Context(), free); errs != nil {
		t.Errorf("publish beside requests that hang: %v", errs)
	}
	close(release)
	for range 18 {
		<-came
	}
	if errs := <-done; errs != nil || len(s.late.keys) > 0 {
		t.Errorf("publish what had hung: %v, and %d are known for it", errs, len(s.late.keys))
	}
}

// A message that was never sent is not to blame, whatever the reason was.
func TestNoWayToTheEndpoint(t *testing.T) {
	s := open("http://127.0.0.1:1/in/x?timeout=20ms")(t).(*Sink)
	defer s.Close()
	// A network that swallows all packets: there is no connection, and no refusal.
	s.client.Transport.(*http.Transport).DialContext = func(ctx context.Context, _, _ string) (net.Conn, error) {
		<-ctx.Done()
		return nil, ctx.Err()
	}
	if errs := s.Publish(t.Context(), []outbox.Message{one("x", "")}); len(errs) != 1 || !outbox.IsUnavailable(errs[0]) {
		t.Errorf("publish without a way to the endpoint: %v, want it unavailable", errs)
	}
}

func TestParseURL(t *testing.T) {
	for address, want := range map[string]string{
		"https://h?mod=x": `unknown parameter "mod"`, "https://h?mode=x": "binary or structured", "http://h?ca-file=x": "https",
		"https://h/{x}": "placeholders", "https://h?secret-env=WEIR_NO_SUCH": "WEIR_NO_SUCH is empty", "https://h,i": "one host",
		"https://h?secret-file=/nowhere/at/all": "read secret", "ftp://h": "http://", "https://h?query={topic}": "placeholders",
	} {
		if _, err := ParseURL(address); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want an error with %q", address, err, want)
		}
	}
	o, err := ParseURL("https://u:geheim@h:8443/a%20b/{topic}?query=token%3Dt0ken&mode=structured&source=/shop&concurrency=3")
	if err != nil {
		t.Fatal(err)
	}
	if o.URL != "https://h:8443/a%20b/{topic}?token=t0ken" || !o.Structured || o.Source != "/shop" || o.Concurrency != 3 || o.Password != "geheim" {
		t.Errorf("options %+v", o)
	}
	if text := o.String(); text != "https://h:8443/a%20b/{topic}" {
		t.Errorf("printed %s", text)
	}
}

func TestParseRetryAfter(t *testing.T) {
	now := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	for value, want := range map[string]time.Duration{
		"0": 0, "7": 7 * time.Second, " 7 ": 7 * time.Second, "99999999999999999999": 24 * time.Hour, "86401": 24 * time.Hour,
		"Fri, 02 Jan 2026 03:04:35 GMT": 30 * time.Second, "Fri, 02 Jan 2020 03:04:35 GMT": 0,
	} {
		if d, ok := parseRetryAfter(value, now); d != want || !ok {
			t.Errorf("%q: %v, %v, want %v", value, d, ok, want)
		}
	}
	for _, value := range []string{"", "-1", "1.5", "soon"} {
		if d, ok := parseRetryAfter(value, now); ok {
			t.Errorf("%q: %v, want nothing", value, d)
		}
	}
}

func FuzzParseRetryAfter(f *testing.F) {
	for _, s := range []string{"7", "Fri, 02 Jan 2026 03:04:35 GMT", "99999999999999999999", "-1", ""} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, value string) {
		d, ok := parseRetryAfter(value, time.Unix(1_700_000_000, 0))
		if d < 0 || d > maxRetryAfter || !ok && d != 0 {
			t.Fatalf("%q: %v, %v", value, d, ok)
		}
	})
}

// BenchmarkPublish runs the endpoint, which discards everything, in the same process.
func BenchmarkPublish(b *testing.B) {
	e := newEndpoint(b)
	e.answer = func(http.ResponseWriter) bool { return true }
	sinktest.Bench(b, sinktest.Subject{
		Open: open("http://" + e.addr + "/in/{topic}"), Topic: func(testing.TB) string { return "x" },
	})
}
