package sight

import (
	"bytes"
	"cmp"
	"context"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"sync/atomic"
	"time"
)

// OTLP is where spans go.
type OTLP struct {
	// Endpoint is the base URL of an OTLP/HTTP receiver, such as
	// http://collector:4318. Default: none, there are no spans.
	Endpoint string
	// Headers are sent with each request, such as an API key. Default: none.
	Headers map[string]string
}

// Validate says what is wrong with the endpoint.
func (o OTLP) Validate() error {
	if o.Endpoint == "" {
		return nil
	}
	u, err := url.Parse(o.Endpoint)
	if err != nil || u.Host == "" || u.Scheme != "http" && u.Scheme != "https" {
		return fmt.Errorf("--otlp-endpoint %q: want a URL such as http://collector:4318", o.Endpoint)
	}
	return nil
}

// url is where traces are posted: OTLP's path is appended, unless it is there.
func (o OTLP) url() string {
	const path = "/v1/traces"
	base := strings.TrimRight(o.Endpoint, "/")
	if strings.HasSuffix(base, path) {
		return base
	}
	return base + path
}

const (
	// spanQueue bounds the spans that wait to be sent: some seconds' worth of a
	// collector that hangs. What does not fit is dropped and counted.
	spanQueue = 4096
	spanBatch = 512
	// spanEvery is how long a span waits for others.
	spanEvery   = time.Second
	spanTimeout = 10 * time.Second
	// spanTries is how often a batch is sent that could not be delivered.
	spanTries = 3
	spanRetry = time.Second
	// spanFarewell bounds the sending of what is left when weir ends.
	spanFarewell = 3 * time.Second
)

// Spans sends a span for each statement that an application has traced to a collector,
// by OTLP over HTTP, in JSON. Add may be called by anyone at any time and never waits.
type Spans struct {
	otlp   OTLP
	log    *slog.Logger
	queue  chan Statement
	client http.Client

	sent, dropped, failed atomic.Uint64
	troubled              bool // the last batch could not be delivered
}

// NewSpans returns nil where spans go nowhere.
func NewSpans(o OTLP, log *slog.Logger) *Spans {
	if o.Endpoint == "" {
		return nil
	}
	return &Spans{otlp: o, log: log, queue: make(chan Statement, spanQueue), client: http.Client{Timeout: spanTimeout}}
}

// Trace reads a statement's traceparent; nil if it makes no span.
func (s *Spans) Trace(traceparent string) *Trace {
	if s == nil {
		return nil
	}
	if t, ok := ParseTraceparent(traceparent); ok {
		return &t
	}
	return nil
}

// Add queues the span of a statement.
func (s *Spans) Add(st *Statement) {
	if s == nil {
		return
	}
	select {
	case s.queue <- *st:
	default:
		s.dropped.Add(1)
	}
}

// SpanCounts are what became of spans.
type SpanCounts struct{ Sent, Dropped, Failed uint64 }

// Counts returns what became of the spans.
func (s *Spans) Counts() (c SpanCounts) {
	if s != nil {
		c = SpanCounts{s.sent.Load(), s.dropped.Load(), s.failed.Load()}
	}
	return c
}

// Run sends spans until ctx ends, and then what is left.
func (s *Spans) Run(ctx context.Context) {
	if s == nil {
		return
	}
	defer s.client.CloseIdleConnections()
	sending, stop := context.WithCancel(context.WithoutCancel(ctx))
	defer stop()
	defer context.AfterFunc(ctx, func() { // what is under way, and what is left, has a while
		select {
		case <-time.After(spanFarewell):
			stop()
		case <-sending.Done():
		}
	})()
	for ctx.Err() == nil {
		s.deliver(sending, s.gather(ctx))
	}
	for batch := s.take(nil, spanBatch); len(batch) > 0; batch = s.take(nil, spanBatch) {
		s.deliver(sending, batch)
	}
}

// gather waits for a span, and then a while for others. When ctx ends it returns what
// there is.
func (s *Spans) gather(ctx context.Context) (batch []Statement) {
	select {
	case one := <-s.queue:
		batch = append(batch, one)
	case <-ctx.Done():
		return s.take(nil, spanBatch)
	}
	wait := time.NewTimer(spanEvery)
	defer wait.Stop()
	for len(batch) < spanBatch {
		select {
		case one := <-s.queue:
			batch = append(batch, one)
		case <-wait.C:
			return batch
		case <-ctx.Done():
			return s.take(batch, spanBatch)
		}
	}
	return batch
}

// take fills a batch with what is queued.
func (s *Spans) take(batch []Statement, most int) []Statement {
	for len(batch) < most {
		select {
		case one := <-s.queue:
			batch = append(batch, one)
		default:
			return batch
		}
	}
	return batch
}

// deliver sends a batch. What cannot be delivered after some tries is given up.
func (s *Spans) deliver(ctx context.Context, batch []Statement) {
	if len(batch) == 0 {
		return
	}
	body, err := json.Marshal(otlpRequest(batch))
	for try := 1; err == nil; try++ {
		var again bool
		if again, err = s.post(ctx, body); err == nil {
			if s.troubled {
				s.log.Info("spans are delivered again", "endpoint", s.otlp.url())
			}
			s.troubled = false
			s.sent.Add(uint64(len(batch)))
			return
		}
		if !again || try == spanTries {
			break
		}
		err = nil
		select {
		case <-time.After(spanRetry * time.Duration(try)):
		case <-ctx.Done():
			err = ctx.Err()
		}
	}
	s.failed.Add(uint64(len(batch)))
	if !s.troubled {
		s.log.Warn("spans cannot be delivered", "endpoint", s.otlp.url(), "spans", len(batch), "error", err)
	}
	s.troubled = true
}

// post sends one request; again reports whether another try may help.
func (s *Spans) post(ctx context.Context, body []byte) (again bool, err error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, s.otlp.url(), bytes.NewReader(body))
	if err != nil {
		return false, fmt.Errorf("make OTLP request: %w", err)
	}
	req.Header.Set("Content-Type", "application/json")
	for k, v := range s.otlp.Headers {
		req.Header.Set(k, v)
	}
	resp, err := s.client.Do(req)
	if err != nil {
		return true, fmt.Errorf("send spans: %w", err)
	}
	defer func() { _ = resp.Body.Close() }() // read as far as it matters
	said, _ := io.ReadAll(io.LimitReader(resp.Body, 300))
	switch resp.StatusCode {
	case http.StatusOK, http.StatusAccepted:
		return false, nil
	case http.StatusTooManyRequests, http.StatusBadGateway, http.StatusServiceUnavailable, http.StatusGatewayTimeout:
		again = true
	}
	return again, fmt.Errorf("send spans: %s: %s", resp.Status, bytes.TrimSpace(said))
}

// These are the messages of OTLP in its JSON form.
type (
	otlpTraces struct {
		ResourceSpans []otlpResource `json:"resourceSpans"`
	}
	otlpResource struct {
		Resource   otlpAttributes `json:"resource"`
		ScopeSpans []otlpScope    `json:"scopeSpans"`
	}
	otlpAttributes struct {
		Attributes []otlpAttribute `json:"attributes"`
	}
	otlpScope struct {
		Scope otlpName   `json:"scope"`
		Spans []otlpSpan `json:"spans"`
	}
	otlpName struct {
		Name    string `json:"name"`
		Version string `json:"version"`
	}
	otlpSpan struct {
		TraceID    string          `json:"traceId"`
		SpanID     string          `json:"spanId"`
		Parent     string          `json:"parentSpanId"`
		Flags      int             `json:"flags"`
		Name       string          `json:"name"`
		Kind       int             `json:"kind"`
		Start      string          `json:"startTimeUnixNano"`
		End        string          `json:"endTimeUnixNano"`
		Attributes []otlpAttribute `json:"attributes"`
		Status     otlpStatus      `json:"status"`
	}
	otlpStatus struct {
		Code int `json:"code,omitempty"`
	}
	otlpAttribute struct {
		Key   string    `json:"key"`
		Value otlpValue `json:"value"`
	}
	otlpValue struct {
		String *string  `json:"stringValue,omitempty"`
		Int    *string  `json:"intValue,omitempty"` // 64 bits are text in JSON
		Double *float64 `json:"doubleValue,omitempty"`
		Bool   *bool    `json:"boolValue,omitempty"`
	}
)

const (
	otlpKindClient  = 3 // weir calls the database
	otlpStatusError = 2
	otlpFlags       = 1 | 1<<8 | 1<<9 // sampled; the parent is known to be remote
)

func attribute(key string, value any) otlpAttribute {
	a := otlpAttribute{Key: key}
	switch v := value.(type) {
	case string:
		a.Value.String = &v
	case uint64:
		text := strconv.FormatUint(v, 10)
		a.Value.Int = &text
	case float64:
		a.Value.Double = &v
	case bool:
		a.Value.Bool = &v
	}
	return a
}

// otlpRequest makes spans of statements, with the attributes that OpenTelemetry's
// conventions for databases name, and weir's own.
func otlpRequest(batch []Statement) otlpTraces {
	spans := make([]otlpSpan, 0, len(batch))
	for i := range batch {
		spans = append(spans, span(&batch[i]))
	}
	return otlpTraces{[]otlpResource{{
		Resource:   otlpAttributes{[]otlpAttribute{attribute("service.name", "weir"), attribute("service.version", Version)}},
		ScopeSpans: []otlpScope{{Scope: otlpName{"weir/proxy", Version}, Spans: spans}},
	}}}
}

func span(st *Statement) otlpSpan {
	var id [8]byte
	for id == [8]byte{} {
		n := rand.Uint64()
		for i := range id {
			id[i] = byte(n >> (8 * i))
		}
	}
	out := otlpSpan{
		TraceID: hex.EncodeToString(st.Trace.ID[:]), Parent: hex.EncodeToString(st.Trace.Parent[:]), SpanID: hex.EncodeToString(id[:]),
		Flags: otlpFlags, Name: cmp.Or(strings.TrimSpace(st.Verb+" "+st.Database), "statement"), Kind: otlpKindClient,
		Start: strconv.FormatInt(st.End.Add(-st.Run.Took).UnixNano(), 10), End: strconv.FormatInt(st.End.UnixNano(), 10),
		Attributes: []otlpAttribute{
			attribute("db.system.name", st.Engine), attribute("db.namespace", st.Database), attribute("db.query.text", cmp.Or(st.Text, st.Shape)),
			attribute("db.operation.name", st.Verb), attribute("db.response.returned_rows", st.Run.Rows),
			attribute("server.address", st.Server), attribute("client.address", st.Client), attribute("weir.user", st.User),
			attribute("weir.fingerprint", FingerprintText(st.Fingerprint)), attribute("weir.path", st.Run.Path.String()),
			attribute("weir.pinned", st.Run.Pinned), attribute("weir.wait_seconds", st.Run.Wait().Seconds()),
			attribute("weir.server_seconds", st.Run.Server.Seconds()),
		},
	}
	if st.Run.Failed {
		out.Status.Code = otlpStatusError
		out.Attributes = append(out.Attributes, attribute("db.response.status_code", st.Code), attribute("error.type", st.Code))
	}
	return out
}
