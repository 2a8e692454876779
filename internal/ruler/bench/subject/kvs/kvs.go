// Package kvs is about operations on key-value stores: what a sample of them holds, and its
// metrics.
package kvs

import (
	"fmt"
	"sync"

	"github.com/weirdb/weir/internal/measure"
	"github.com/weirdb/weir/internal/ruler/bench"
)

// Subject describes results about key-value stores.
var Subject = &bench.Subject{Key: "kv", New: func() bench.Part { return &KV{} }, Metrics: sync.OnceValue(metrics)}

// Of returns the part of a sample about a key-value store, nil if it has none.
func Of(parts []bench.Part) *KV { return bench.PartOf[*KV](parts) }

// KV is the part of a sample about operations on a key-value store. Sample.Latency holds the
// operations of all classes together.
type KV struct {
	// The latencies of each class; nil for one that did not occur.
	StrongRead  *measure.Hist `json:"strong_read,omitempty"`
	StrongWrite *measure.Hist `json:"strong_write,omitempty"`
	WeakRead    *measure.Hist `json:"weak_read,omitempty"`
	WeakWrite   *measure.Hist `json:"weak_write,omitempty"`
	// Fast counts the strong writes that were answered before they were committed, by the votes
	// of a fast quorum. Nil if the client does not learn that.
	Fast *int64 `json:"fast,omitempty"`
	// Missed counts reads of keys that did not exist.
	Missed int64 `json:"missed,omitempty"`
	// Checked counts reads of keys that only their own session writes, so that their answers
	// could be checked.
	Checked int64 `json:"checked"`
	// Wrong counts answers that must not occur: a value of another key, or one older than the
	// session's own last write. Examples describe some.
	Wrong    int64    `json:"wrong,omitempty"`
	Examples []string `json:"examples,omitempty"`
	// Settings are the settings of the store, with defaults.
	Settings map[string]string `json:"settings,omitempty"`
	// Counters are the store's own counters over the round, by the store's names, over all
	// replicas.
	Counters map[string]float64 `json:"counters,omitempty"`
	// RSSBytes is the memory of each replica at the end of the round, in order.
	RSSBytes []int64 `json:"rss_bytes,omitempty"`
}

// Subject implements bench.Part.
func (*KV) Subject() *bench.Subject { return Subject }

// Strong returns the latencies of all strong operations.
func (k *KV) Strong() *measure.Hist { return Merged(k.StrongRead, k.StrongWrite) }

// Weak returns the latencies of all weak operations.
func (k *KV) Weak() *measure.Hist { return Merged(k.WeakRead, k.WeakWrite) }

// writes is the number of system calls that sent messages to other replicas and to native
// clients.
func (k *KV) writes() float64 {
	return k.Counters["peer_sent_writes_total"] + k.Counters["client_sent_writes_total"]
}

// Merged returns a histogram of all values of others, which may be nil.
func Merged(of ...*measure.Hist) *measure.Hist {
	h := &measure.Hist{}
	for _, o := range of {
		h.Merge(o)
	}
	return h
}

// Broken lists what the answers prove wrong about the store.
func (k *KV) Broken() []string {
	if k.Wrong == 0 {
		return nil
	}
	text := fmt.Sprintf("%d answers are wrong", k.Wrong)
	if len(k.Examples) > 0 {
		text += ", such as: " + k.Examples[0]
	}
	return []string{text}
}

// GCPauses is the name, without _sum and _count, under which Go's Prometheus collector reports
// the pauses of garbage collection.
const GCPauses = "go_gc_duration_seconds"

func metrics() []bench.Metric {
	quantile := func(q float64, of func(*KV) *measure.Hist) func(*bench.Sample) (float64, bool) {
		return bench.QuantileOf(q, func(s *bench.Sample) *measure.Hist {
			if k := Of(s.Parts); k != nil {
				return of(k)
			}
			return nil
		})
	}
	var all []bench.Metric
	for _, c := range []struct {
		key, name string
		detail    bool
		of        func(*KV) *measure.Hist
	}{
		{"strong", "strong", false, (*KV).Strong},
		{"weak", "weak", false, (*KV).Weak},
		{"strong_read", "strong read", true, func(k *KV) *measure.Hist { return k.StrongRead }},
		{"strong_write", "strong write", true, func(k *KV) *measure.Hist { return k.StrongWrite }},
		{"weak_read", "weak read", true, func(k *KV) *measure.Hist { return k.WeakRead }},
		{"weak_write", "weak write", true, func(k *KV) *measure.Hist { return k.WeakWrite }},
	} {
		all = append(all,
			bench.Metric{Key: c.key + "_p50", Name: c.name + " p50", Unit: "ms", Detail: c.detail, Value: quantile(.50, c.of)},
			bench.Metric{Key: c.key + "_p99", Name: c.name + " p99", Unit: "ms", Detail: c.detail, Value: quantile(.99, c.of)})
	}
	all = append(all, bench.Metric{Key: "fast_share", Name: "by the fast path", Unit: "%", Neutral: true, Detail: true, Value: func(s *bench.Sample) (float64, bool) {
		k := Of(s.Parts)
		if k == nil || k.Fast == nil || k.StrongWrite == nil {
			return 0, false
		}
		return 100 * float64(*k.Fast) / float64(k.StrongWrite.Count()), k.StrongWrite.Count() > 0
	}})
	all = append(all, bench.Metric{Key: "gc_pause", Name: "mean GC pause of a replica", Unit: "us", Detail: true, Value: func(s *bench.Sample) (float64, bool) {
		k := Of(s.Parts)
		if k == nil || k.Counters[GCPauses+"_count"] <= 0 {
			return 0, false
		}
		return 1e6 * k.Counters[GCPauses+"_sum"] / k.Counters[GCPauses+"_count"], true
	}})
	all = append(all,
		bench.Metric{Key: "messages_per_write", Name: "messages in a write", Unit: "messages", Neutral: true, Detail: true, Value: func(s *bench.Sample) (float64, bool) {
			k := Of(s.Parts)
			if k == nil || k.writes() <= 0 {
				return 0, false
			}
			return (k.Counters["peer_sent_messages_total"] + k.Counters["client_sent_messages_total"]) / k.writes(), true
		}},
		bench.Metric{Key: "peer_messages_per_write", Name: "messages in a write to a replica", Unit: "messages", Neutral: true, Detail: true, Value: func(s *bench.Sample) (float64, bool) {
			k := Of(s.Parts)
			if k == nil || k.Counters["peer_sent_writes_total"] <= 0 {
				return 0, false
			}
			return k.Counters["peer_sent_messages_total"] / k.Counters["peer_sent_writes_total"], true
		}},
		bench.Metric{Key: "writes_rate", Name: "writes to peers and clients", Unit: "/s", Neutral: true, Detail: true, Value: func(s *bench.Sample) (float64, bool) {
			k := Of(s.Parts)
			if k == nil || k.writes() <= 0 || s.Server == nil || s.Server.Ops == 0 || s.Seconds == 0 {
				return 0, false
			}
			return k.writes() / float64(s.Server.Ops) * float64(s.Ops) / s.Seconds, true // the counts include the warm-up
		}},
		bench.Metric{Key: "calls_rate", Name: "read and write calls of all replicas", Unit: "/s", Neutral: true, Detail: true, Value: func(s *bench.Sample) (float64, bool) {
			u := s.Processes[bench.RoleServer]
			return float64(u.ReadCalls+u.WriteCalls) / s.Seconds, Of(s.Parts) != nil && u.CallsKnown && u.ReadCalls+u.WriteCalls > 0 && s.Seconds > 0
		}})
	return append(all, bench.Metric{Key: "rss_replica", Name: "memory, largest replica", Unit: "MB", Value: func(s *bench.Sample) (float64, bool) {
		k := Of(s.Parts)
		if k == nil || len(k.RSSBytes) == 0 {
			return 0, false
		}
		most := int64(0)
		for _, b := range k.RSSBytes {
			most = max(most, b)
		}
		return float64(most) / 1e6, true
	}})
}
