package sight

import (
	"context"
	"math"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"

	"github.com/weirdb/weir/internal/measure"
)

// oneSnapshot is a source of a single snapshot.
type oneSnapshot struct{ snap Snapshot }

func (o oneSnapshot) Snapshot(context.Context) (Snapshot, error) { return o.snap, nil }

// scrape asks a collector for its metrics in a format.
func scrape(t *testing.T, snap Snapshot, accept string) (body string, families map[string]*dto.MetricFamily) {
	t.Helper()
	r := prometheus.NewRegistry()
	r.MustRegister(Collector(oneSnapshot{snap}))
	w, req := httptest.NewRecorder(), httptest.NewRequest("GET", "/metrics", nil)
	req.Header.Set("Accept", accept)
	promhttp.HandlerFor(r, promhttp.HandlerOpts{}).ServeHTTP(w, req)
	if w.Code != 200 {
		t.Fatalf("%d %s", w.Code, w.Body)
	}
	body = w.Body.String()
	families = make(map[string]*dto.MetricFamily)
	dec := expfmt.NewDecoder(strings.NewReader(body), expfmt.ResponseFormat(w.Result().Header))
	for {
		f := new(dto.MetricFamily)
		if err := dec.Decode(f); err != nil {
			return body, families
		}
		families[f.GetName()] = f
	}
}

func snapshotOf(values ...time.Duration) Snapshot {
	s := Snapshot{Engine: "postgresql", LoginTimes: map[string]*measure.Hist{"d": new(measure.Hist)}}
	p := s.PoolOf("d", "u")
	for _, v := range values {
		p.Latency.Record(int64(v))
	}
	s.LoginTimes["d"].Record(int64(time.Second))
	return s
}

// Every value is counted in the buckets from its own on, and once in all.
func TestHistogramsHaveClassicBuckets(t *testing.T) {
	t.Parallel()
	values := []time.Duration{0, 20 * time.Microsecond, 70 * time.Microsecond, 3 * time.Millisecond, 3 * time.Millisecond, 45 * time.Second, 2 * time.Hour}
	body, families := scrape(t, snapshotOf(values...), "text/plain")
	f := families["weir_proxy_latency_seconds"]
	if f.GetType() != dto.MetricType_HISTOGRAM {
		t.Fatalf("weir_proxy_latency_seconds is %v\n%s", f.GetType(), body)
	}
	h := f.Metric[0].Histogram
	if h.GetSampleCount() != uint64(len(values)) {
		t.Errorf("%d values, want %d", h.GetSampleCount(), len(values))
	}
	var sum time.Duration
	for _, v := range values {
		sum += v
	}
	if got := h.GetSampleSum(); math.Abs(got-sum.Seconds()) > 1e-6 {
		t.Errorf("sum %v, want %v", got, sum.Seconds())
	}
	for _, b := range h.Bucket {
		want := uint64(0)
		for _, v := range values {
			if v.Seconds() <= b.GetUpperBound() {
				want++
			}
		}
		if b.GetCumulativeCount() != want {
			t.Errorf("le %v: %d, want %d", b.GetUpperBound(), b.GetCumulativeCount(), want)
		}
	}
	if n := len(h.Bucket); n != len(ladder)+1 {
		t.Errorf("%d buckets, want %d and +Inf", n, len(ladder))
	}
	if got := families["weir_proxy_login_seconds"].GetMetric(); len(got) != 1 || got[0].Histogram.GetSampleCount() != 1 {
		t.Errorf("logins: %v", got)
	}
}

// A scraper that asks for protobuf gets native buckets beside the classic ones, which
// hold each value within the borders of its bucket.
func TestHistogramsAreNativeForProtobuf(t *testing.T) {
	t.Parallel()
	const accept = "application/vnd.google.protobuf;proto=io.prometheus.client.MetricFamily;encoding=delimited"
	for _, v := range []time.Duration{50 * time.Microsecond, time.Millisecond, 10 * time.Millisecond, time.Second, 8 * time.Second} {
		_, families := scrape(t, snapshotOf(0, v), accept)
		h := families["weir_proxy_latency_seconds"].Metric[0].Histogram
		if len(h.Bucket) < len(ladder) || h.GetSampleCount() != 2 || h.GetZeroCount() != 1 || h.GetSchema() != nativeSchema {
			t.Fatalf("%v: %v", v, h)
		}
		if len(h.PositiveSpan) != 1 || h.PositiveSpan[0].GetLength() != 1 {
			t.Fatalf("%v: spans %v", v, h.PositiveSpan)
		}
		i := float64(h.PositiveSpan[0].GetOffset())
		low, high := math.Exp2((i-1)/(1<<nativeSchema)), math.Exp2(i/(1<<nativeSchema))
		if s := v.Seconds(); s < low*0.99 || s > high*1.01 {
			t.Errorf("%v is in the bucket from %v to %v", v, low, high)
		}
	}
	// Without values it is a native histogram all the same.
	_, families := scrape(t, snapshotOf(), accept)
	if h := families["weir_proxy_latency_seconds"].Metric[0].Histogram; h.Schema == nil || h.GetSampleCount() != 0 {
		t.Errorf("empty: %v", h)
	}
}

// A shape's figures of several loops are one row, and the row that took most time is first.
func TestShapesOfLoopsAddUp(t *testing.T) {
	t.Parallel()
	var s Snapshot
	for range 2 {
		table := NewShapes()
		quick := table.Of(1, "select", func(int) string { return "select ?" })
		slow := table.Of(2, "select", func(int) string { return "select pg_sleep(?)" })
		for range 10 {
			quick.Ran(&Run{Took: time.Millisecond, Server: time.Millisecond, Rows: 1, Path: Shared})
		}
		slow.Ran(&Run{Took: time.Second, Server: 300 * time.Millisecond, Rows: 2, Pinned: true, Failed: false})
		slow.From("a.go", 0)
		slow.From("b.go", 7)
		slow.From("", 0)
		s.AddShapes(table)
	}
	s.Sort()
	got := s.StatementsTable()
	want := [][]string{
		{"0000000000000002", "select", "2", "0", "0", "2", "0", "4", "2000.000", "1000.000", "1000.000", "1400.000", "0.000", "0.00", "b.go:7", "select pg_sleep(?)"},
		{"0000000000000001", "select", "20", "20", "0", "0", "0", "20", "20.000", "1.000", "1.000", "0.000", "0.000", "0.00", "", "select ?"},
	}
	if len(got.Rows) != len(want) {
		t.Fatalf("%d rows: %v", len(got.Rows), got.Rows)
	}
	for i := range want {
		if strings.Join(got.Rows[i], "|") != strings.Join(want[i], "|") {
			t.Errorf("row %d\n got %v\nwant %v", i, got.Rows[i], want[i])
		}
	}
}

// The shapes that are reported are bounded, and the slow one among many quick ones is
// one of them.
func TestSlowShapeIsReported(t *testing.T) {
	t.Parallel()
	table := NewShapes()
	for i := range uint64(5 * maxReportedShapes) {
		sh := table.Of(i, "select", func(int) string { return "quick" })
		for range 3 {
			sh.Ran(&Run{Took: time.Microsecond})
		}
	}
	table.Of(1<<40, "select", func(int) string { return "slow" }).Ran(&Run{Took: time.Minute})
	var s Snapshot
	s.AddShapes(table)
	s.Sort()
	if n := len(s.Shapes); n != 2*maxReportedShapes {
		t.Errorf("%d shapes", n)
	}
	if got := s.StatementsTable().Rows[0]; got[len(got)-1] != "slow" {
		t.Errorf("first is %v", got)
	}
}
