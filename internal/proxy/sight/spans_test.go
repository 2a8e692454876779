package sight

import (
	"context"
	"encoding/json"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"
)

const sampled = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"

func TestParseTraceparent(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		text string
		ok   bool
	}{
		{sampled, true},
		{"00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-03", true},
		{"01-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01-more", true}, // of a later version
		{"00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-00", false},     // not sampled
		{"00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01-more", false},
		{"ff-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01", false},
		{"00-00000000000000000000000000000000-b7ad6b7169203331-01", false},
		{"00-0af7651916cd43dd8448eb211c80319c-0000000000000000-01", false},
		{"00-0AF7651916CD43DD8448EB211C80319C-b7ad6b7169203331-01", false},
		{"00-0af7651916cd43dd8448eb211c80319c-b7ad6b716920333-01", false},
		{"00_0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01", false},
		{"", false},
		{"'; DROP TABLE t", false},
	} {
		got, ok := ParseTraceparent(tt.text)
		if ok != tt.ok {
			t.Errorf("%q: %v", tt.text, ok)
		}
		if ok && (got.ID[0] != 0x0a || got.ID[15] != 0x9c || got.Parent[0] != 0xb7 || got.Parent[7] != 0x31) {
			t.Errorf("%q: %x", tt.text, got)
		}
	}
	if (*Spans)(nil).Trace(sampled) != nil {
		t.Error("a trace without a collector")
	}
}

// receiver is an OTLP receiver that answers with a status.
type receiver struct {
	*httptest.Server
	status   atomic.Int32
	received chan map[string]any
	header   atomic.Pointer[http.Header]
}

func newReceiver(t *testing.T) *receiver {
	c := &receiver{received: make(chan map[string]any, 100)}
	c.status.Store(http.StatusOK)
	c.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		var parsed map[string]any
		if err != nil || json.Unmarshal(body, &parsed) != nil || r.URL.Path != "/v1/traces" {
			w.WriteHeader(http.StatusBadRequest)
			return
		}
		c.header.Store(&r.Header)
		w.WriteHeader(int(c.status.Load()))
		c.received <- parsed
	}))
	t.Cleanup(c.Close)
	return c
}

func traced(text string) *Statement {
	trace, _ := ParseTraceparent(sampled)
	return &Statement{
		Engine: "postgresql", Database: "shop", User: "app", Verb: "SELECT", Shape: text, Fingerprint: 7, Trace: &trace,
		Run: Run{Took: 3 * time.Millisecond, Server: 2 * time.Millisecond, Rows: 4, Path: Shared}, End: time.Unix(1000, 0),
	}
}

// A span is what the conventions say, to the nanosecond, and arrives although weir ends
// at once.
func TestSpansArrive(t *testing.T) {
	t.Parallel()
	c := newReceiver(t)
	s := NewSpans(OTLP{Endpoint: c.URL + "/", Headers: map[string]string{"X-Key": "k"}}, slog.New(slog.DiscardHandler))
	s.Add(traced("select ?"))
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	s.Run(ctx)
	got := <-c.received
	text, err := json.Marshal(got)
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{
		`"traceId":"0af7651916cd43dd8448eb211c80319c"`, `"parentSpanId":"b7ad6b7169203331"`, `"name":"SELECT shop"`, `"kind":3`,
		`"startTimeUnixNano":"999997000000"`, `"endTimeUnixNano":"1000000000000"`,
		`{"key":"db.query.text","value":{"stringValue":"select ?"}}`, `{"key":"db.response.returned_rows","value":{"intValue":"4"}}`,
		`{"key":"weir.wait_seconds","value":{"doubleValue":0.001}}`, `{"key":"service.name","value":{"stringValue":"weir"}}`,
	} {
		if !strings.Contains(string(text), want) {
			t.Errorf("no %s in %s", want, text)
		}
	}
	if n := s.Counts(); n != (SpanCounts{Sent: 1}) || c.header.Load().Get("X-Key") != "k" {
		t.Errorf("%+v, headers %v", n, c.header.Load())
	}
}

// Spans that a collector does not take are counted, tried again where that may help, and never
// waited for by those who add spans.
func TestSpansThatAreLostAreCounted(t *testing.T) {
	t.Parallel()
	c := newReceiver(t)
	c.status.Store(http.StatusBadRequest) // for good
	s := NewSpans(OTLP{Endpoint: c.URL}, slog.New(slog.DiscardHandler))
	for range spanQueue + 5 {
		s.Add(traced("select ?"))
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	s.Run(ctx)
	if n := s.Counts(); n != (SpanCounts{Dropped: 5, Failed: spanQueue}) {
		t.Errorf("%+v", n)
	}

	busy := newReceiver(t)
	busy.status.Store(http.StatusServiceUnavailable)
	s = NewSpans(OTLP{Endpoint: busy.URL}, slog.New(slog.DiscardHandler))
	s.Add(traced("select ?"))
	ctx, cancel = context.WithCancel(t.Context())
	ended := make(chan struct{})
	go func() { defer close(ended); s.Run(ctx) }()
	<-busy.received
	busy.status.Store(http.StatusOK)
	<-busy.received
	cancel()
	<-ended
	if n := s.Counts(); n != (SpanCounts{Sent: 1}) {
		t.Errorf("after a second try: %+v", n)
	}
}

func TestAuditGoesOnInANewFile(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "audit.log")
	a, err := OpenAudit(path, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	a.Login(Login{Engine: "mysql", User: "app", Database: "shop", Client: "10.0.0.1:5"})
	if err := os.Rename(path, path+".1"); err != nil {
		t.Fatal(err)
	}
	if err := a.Reopen(); err != nil {
		t.Fatal(err)
	}
	a.Command("mysql", "root", "10.0.0.2:6", "PAUSE shop", io.ErrUnexpectedEOF)
	if err := a.Close(); err != nil {
		t.Fatal(err)
	}
	for file, want := range map[string]string{
		path + ".1": `"msg":"login","outcome":"accepted","engine":"mysql","user":"app","database":"shop","client":"10.0.0.1:5"}`,
		path:        `"msg":"command","outcome":"failed","engine":"mysql","user":"root","client":"10.0.0.2:6","command":"PAUSE shop","error":"unexpected EOF"}`,
	} {
		got, err := os.ReadFile(file)
		if err != nil || strings.Count(string(got), "\n") != 1 || !strings.Contains(string(got), want) {
			t.Errorf("%s: %v\n%s\nwant %s", file, err, got, want)
		}
		if info, err := os.Stat(file); err != nil || info.Mode().Perm() != 0o600 {
			t.Errorf("%s: %v, %v", file, info.Mode(), err)
		}
	}
	var none *Audit
	none.Login(Login{})
	none.Command("", "", "", "", nil)
	if none.Reopen() != nil || none.Close() != nil {
		t.Error("an audit log that is off fails")
	}
}
