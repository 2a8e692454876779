// Package messages is about messages on their way from a transaction to a broker: what a sample
// of them holds, its metrics and its rules.
package messages

import (
	"fmt"
	"sync"

	"github.com/weirdb/weir/internal/measure"
	"github.com/weirdb/weir/internal/ruler/bench"
)

// Subject describes results about messages.
var Subject = &bench.Subject{
	Key:         "outbox",
	New:         func() bench.Part { return &Outbox{} },
	Metrics:     sync.OnceValue(metrics),
	Compared:    []string{"acked_rate", "deliver_p95"},
	ClientWorks: true, // it includes the relay
	Rules: func(_ *bench.Result, rules *bench.Rules) {
		rules.Figures = append(rules.Figures, hiddenRows)
		rules.Promises = append(rules.Promises, disorder, duplicates)
	},
}

// Of returns the part of a sample about messages, nil if it has none.
func Of(parts []bench.Part) *Outbox { return bench.PartOf[*Outbox](parts) }

// Outbox is the part of a sample about messages. Sample.Ops counts those delivered, or, with
// producers alone, those committed.
type Outbox struct {
	PayloadBytes int `json:"payload_bytes"`
	// AckedSeconds is the time from the beginning of the window until every delivery was
	// recorded in the database; 0 if that was not measured.
	AckedSeconds float64 `json:"acked_s,omitempty"`
	// FromStart counts from the intended start of the enqueue until delivery, FromCommit from
	// the time at which the producer learned of its commit. A relay that follows the log may
	// deliver before that; such a delivery counts as 0.
	FromStart  *measure.Hist `json:"from_start,omitempty"`
	FromCommit *measure.Hist `json:"from_commit,omitempty"`
	// MaxLag is the largest number of messages that were committed and not yet delivered, Lag
	// that number over time.
	MaxLag int64      `json:"max_lag,omitempty"`
	Lag    []LagPoint `json:"lag,omitempty"`
	// ClaimPages is how many pages of the server's cache the first claim of a batch looks at
	// for each row that it takes; 0 if that was not counted.
	ClaimPages float64 `json:"claim_pages,omitempty"`
	Ledger     Ledger  `json:"ledger"`
	// Settings are the settings in effect, with defaults.
	Settings map[string]string `json:"settings,omitempty"`
}

// Subject implements bench.Part.
func (*Outbox) Subject() *bench.Subject { return Subject }

// LagPoint is the progress of producers and relay, in seconds since the window opened.
type LagPoint struct {
	AtSeconds float64 `json:"at_s"`
	Committed int64   `json:"committed"`
	Delivered int64   `json:"delivered"`
}

// Ledger counts what happened to every message of a round.
type Ledger struct {
	Handed    int64 `json:"handed"`            // given to the database
	Committed int64 `json:"committed"`         // certainly
	Unknown   int64 `json:"unknown,omitempty"` // their commits failed: they may exist or not
	Delivered int64 `json:"delivered"`         // at least once
	Lost      int64 `json:"lost"`              // committed and never delivered
	// Duplicates counts deliveries after the first, Disordered first deliveries that came after
	// that of a later message of the same key.
	Duplicates int64 `json:"duplicates"`
	Disordered int64 `json:"disordered"`
	Strangers  int64 `json:"strangers,omitempty"` // delivered, and never given to the database
	// Pending counts messages that the round was not meant to deliver and that were found in
	// the table afterwards. They are not lost.
	Pending int64 `json:"pending,omitempty"`
}

// Broken lists the promises that the ledger shows broken. Every relay promises that no message
// is lost or invented, and most promise to keep the order of each key.
func (l *Ledger) Broken(ordered bool) []string {
	var out []string
	if l.Lost > 0 {
		out = append(out, fmt.Sprintf("%d of %d committed messages were lost", l.Lost, l.Committed))
	}
	if l.Strangers > 0 {
		out = append(out, fmt.Sprintf("%d messages were delivered that had never been enqueued", l.Strangers))
	}
	if l.Disordered > 0 && ordered {
		out = append(out, fmt.Sprintf("%d of %d messages were delivered after a later one of their key", l.Disordered, l.Delivered))
	}
	return out
}

func metrics() []bench.Metric {
	delivery := func(s *bench.Sample) *measure.Hist {
		if o := Of(s.Parts); o != nil {
			return o.FromCommit
		}
		return nil
	}
	fromStart := func(s *bench.Sample) *measure.Hist {
		if o := Of(s.Parts); o != nil {
			return o.FromStart
		}
		return nil
	}
	return []bench.Metric{
		{Key: "claim_pages", Name: "pages of a claim", Unit: "/row", Detail: true, After: "page_reads", Value: func(s *bench.Sample) (float64, bool) {
			o := Of(s.Parts)
			if o == nil {
				return 0, false
			}
			return o.ClaimPages, o.ClaimPages > 0
		}},
		{Key: "acked_rate", Name: "acknowledged", Unit: "ops/s", After: "errors", Higher: true, Value: func(s *bench.Sample) (float64, bool) {
			o := Of(s.Parts)
			if o == nil || o.AckedSeconds == 0 {
				return 0, false
			}
			return float64(s.Ops) / o.AckedSeconds, true
		}},
		{Key: "payload_rate", Name: "payload", Unit: "MB/s", After: "errors", Higher: true, Detail: true, Value: func(s *bench.Sample) (float64, bool) {
			o := Of(s.Parts)
			if o == nil || s.Seconds == 0 {
				return 0, false
			}
			return float64(s.Ops) * float64(o.PayloadBytes) / s.Seconds / 1e6, true
		}},
		{Key: "deliver_p50", Name: "commit to delivery p50", Unit: "ms", After: "errors", Value: bench.QuantileOf(.50, delivery)},
		{Key: "deliver_p95", Name: "commit to delivery p95", Unit: "ms", After: "errors", Value: bench.QuantileOf(.95, delivery)},
		{Key: "deliver_p99", Name: "commit to delivery p99", Unit: "ms", After: "errors", Value: bench.QuantileOf(.99, delivery)},
		{Key: "total_p50", Name: "enqueue to delivery p50", Unit: "ms", After: "errors", Detail: true, Value: bench.QuantileOf(.50, fromStart)},
		{Key: "total_p95", Name: "enqueue to delivery p95", Unit: "ms", After: "errors", Detail: true, Value: bench.QuantileOf(.95, fromStart)},
		{Key: "total_p99", Name: "enqueue to delivery p99", Unit: "ms", After: "errors", Detail: true, Value: bench.QuantileOf(.99, fromStart)},
		{Key: "max_lag", Name: "largest lag", Unit: "messages", After: "errors", Value: func(s *bench.Sample) (float64, bool) {
			o := Of(s.Parts)
			if o == nil || o.FromCommit == nil {
				return 0, false
			}
			return float64(o.MaxLag), true
		}},
	}
}
