package bench

import (
	"fmt"

	"github.com/weirdb/weir/internal/measure"
)

// KV is what a round knows of operations on a key-value store. Sample.Latency
// holds those of all classes together.
type KV struct {
	// The latencies of each class; nil for one that did not occur.
	StrongRead  *measure.Hist `json:"strong_read,omitempty"`
	StrongWrite *measure.Hist `json:"strong_write,omitempty"`
	WeakRead    *measure.Hist `json:"weak_read,omitempty"`
	WeakWrite   *measure.Hist `json:"weak_write,omitempty"`
	// Fast counts the strong writes that had ended before they were committed, by
	// the votes of a fast quorum. Nil where the client is not told.
	Fast *int64 `json:"fast,omitempty"`
	// Missed counts reads of keys that were not there.
	Missed int64 `json:"missed,omitempty"`
	// Checked counts reads of keys that their session alone writes, whose answers
	// could be held against what it had written.
	Checked int64 `json:"checked"`
	// Wrong counts answers that must not be: a value of another key, or one that
	// is older than the session's own last write. Examples describe some.
	Wrong    int64    `json:"wrong,omitempty"`
	Examples []string `json:"examples,omitempty"`
	// Settings are those of the store in effect.
	Settings map[string]string `json:"settings,omitempty"`
	// Counters are what the store has counted by itself in the round, by the names
	// that it gives them, over all replicas.
	Counters map[string]float64 `json:"counters,omitempty"`
	// RSSBytes is the memory of each replica at the end of the round, in order.
	RSSBytes []int64 `json:"rss_bytes,omitempty"`
}

// Strong returns the latencies of all strong operations.
func (k *KV) Strong() *measure.Hist { return Merged(k.StrongRead, k.StrongWrite) }

// Weak returns the latencies of all weak operations.
func (k *KV) Weak() *measure.Hist { return Merged(k.WeakRead, k.WeakWrite) }

// writes is how many system calls sent messages to other replicas and to native clients.
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

// Broken says what the answers hold against the store.
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

// GCPauses is what Go's collector for Prometheus calls the pauses of garbage collection,
// before _sum and _count.
const GCPauses = "go_gc_duration_seconds"

// kvMetrics are those of samples of key-value stores.
func kvMetrics() []Metric {
	quantile := func(q float64, of func(*KV) *measure.Hist) func(*Sample) (float64, bool) {
		return func(s *Sample) (float64, bool) {
			if s.KV == nil {
				return 0, false
			}
			h := of(s.KV)
			if h == nil || h.Count() == 0 {
				return 0, false
			}
			return float64(h.Quantile(q)) / 1e6, true
		}
	}
	var all []Metric
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
			Metric{Key: c.key + "_p50", Name: c.name + " p50", Unit: "ms", Detail: c.detail, of: quantile(.50, c.of)},
			Metric{Key: c.key + "_p99", Name: c.name + " p99", Unit: "ms", Detail: c.detail, of: quantile(.99, c.of)})
	}
	all = append(all, Metric{Key: "fast_share", Name: "by the fast path", Unit: "%", Neutral: true, Detail: true, of: func(s *Sample) (float64, bool) {
		if s.KV == nil || s.KV.Fast == nil || s.KV.StrongWrite == nil {
			return 0, false
		}
		return 100 * float64(*s.KV.Fast) / float64(s.KV.StrongWrite.Count()), s.KV.StrongWrite.Count() > 0
	}})
	all = append(all, Metric{Key: "gc_pause", Name: "mean GC pause of a replica", Unit: "us", Detail: true, of: func(s *Sample) (float64, bool) {
		if s.KV == nil || s.KV.Counters[GCPauses+"_count"] <= 0 {
			return 0, false
		}
		return 1e6 * s.KV.Counters[GCPauses+"_sum"] / s.KV.Counters[GCPauses+"_count"], true
	}})
	all = append(all,
		Metric{Key: "messages_per_write", Name: "messages in a write", Unit: "messages", Neutral: true, Detail: true, of: func(s *Sample) (float64, bool) {
			if s.KV == nil || s.KV.writes() <= 0 {
				return 0, false
			}
			return (s.KV.Counters["peer_sent_messages_total"] + s.KV.Counters["client_sent_messages_total"]) / s.KV.writes(), true
		}},
		Metric{Key: "peer_messages_per_write", Name: "messages in a write to a replica", Unit: "messages", Neutral: true, Detail: true, of: func(s *Sample) (float64, bool) {
			if s.KV == nil || s.KV.Counters["peer_sent_writes_total"] <= 0 {
				return 0, false
			}
			return s.KV.Counters["peer_sent_messages_total"] / s.KV.Counters["peer_sent_writes_total"], true
		}},
		Metric{Key: "writes_rate", Name: "writes to peers and clients", Unit: "/s", Neutral: true, Detail: true, of: func(s *Sample) (float64, bool) {
			if s.KV == nil || s.KV.writes() <= 0 || s.Server == nil || s.Server.Ops == 0 || s.Seconds == 0 {
				return 0, false
			}
			return s.KV.writes() / float64(s.Server.Ops) * float64(s.Ops) / s.Seconds, true // they were counted over the warm-up, too
		}},
		Metric{Key: "calls_rate", Name: "read and write calls of all replicas", Unit: "/s", Neutral: true, Detail: true, of: func(s *Sample) (float64, bool) {
			u := s.Processes[RoleServer]
			return float64(u.ReadCalls+u.WriteCalls) / s.Seconds, s.KV != nil && u.CallsKnown && u.ReadCalls+u.WriteCalls > 0 && s.Seconds > 0
		}})
	return append(all, Metric{Key: "rss_replica", Name: "memory, largest replica", Unit: "MB", of: func(s *Sample) (float64, bool) {
		if s.KV == nil || len(s.KV.RSSBytes) == 0 {
			return 0, false
		}
		most := int64(0)
		for _, b := range s.KV.RSSBytes {
			most = max(most, b)
		}
		return float64(most) / 1e6, true
	}})
}
