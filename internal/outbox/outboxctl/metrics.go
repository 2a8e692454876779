package outboxctl

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/weirdb/weir/batch"
	"github.com/weirdb/weir/outbox"
)

// Upper bounds of histogram buckets, in seconds and in messages.
var (
	secondsBounds = []float64{.0005, .001, .002, .005, .01, .02, .05, .1, .2, .5, 1, 2, 5, 10, 30, 60, 300, 1800}
	sizeBounds    = []float64{1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000}
)

// metric is one gauge or counter and the source of its value.
type metric struct {
	desc  *prometheus.Desc
	kind  prometheus.ValueType
	value func(s *Snapshot) float64
	// known reports whether there is a value; nil means always.
	known func(s *Snapshot) bool
}

// destinationMetric is one gauge or counter of each destination.
type destinationMetric struct {
	desc  *prometheus.Desc
	kind  prometheus.ValueType
	value func(d *outbox.DestinationStats, at time.Time) float64
}

type histogram struct {
	desc   *prometheus.Desc
	bounds []float64
	unit   float64 // of what is recorded, in what is shown
	of     func(s *outbox.Stats) *batch.Histogram
}

// collector renders a snapshot at each scrape, so that relaying does not update metric objects.
type collector struct {
	service    *Service
	metrics    []metric
	histograms []histogram
	byName     []destinationMetric
	buried     *prometheus.Desc
	info       *prometheus.Desc
}

// Collector returns the service's metrics. Their names begin with weir_outbox_;
// the label table is the outbox table.
func (s *Service) Collector() prometheus.Collector {
	c := &collector{service: s}
	labels := prometheus.Labels{"table": s.Table()}
	desc := func(name, help string, variable ...string) *prometheus.Desc {
		return prometheus.NewDesc("weir_outbox_"+name, help, variable, labels)
	}
	add := func(kind prometheus.ValueType, known func(*Snapshot) bool) func(name, help string, value func(*Snapshot) float64) {
		return func(name, help string, value func(*Snapshot) float64) {
			c.metrics = append(c.metrics, metric{desc(name, help), kind, value, known})
		}
	}
	addCounts(add(prometheus.GaugeValue, func(s *Snapshot) bool { return !s.CountedAt.IsZero() }))
	partitioned := func(s *Snapshot) bool {
		return !s.CountedAt.IsZero() && s.Description.Period != outbox.Unpartitioned
	}
	addPartitions(add(prometheus.GaugeValue, partitioned))
	addLevels(add(prometheus.GaugeValue, nil))
	addTotals(add(prometheus.CounterValue, nil))
	histograms := func(name, help string, bounds []float64, unit float64, of func(*outbox.Stats) *batch.Histogram) {
		c.histograms = append(c.histograms, histogram{desc(name, help), bounds, unit, of})
	}
	histograms("delivery_seconds", "From the insert of a message, by the database's clock, to the broker's confirmation.", secondsBounds, 1e-9,
		func(s *outbox.Stats) *batch.Histogram { return &s.Delivery })
	histograms("publish_seconds", "How long the broker took for a batch.", secondsBounds, 1e-9,
		func(s *outbox.Stats) *batch.Histogram { return &s.Publish })
	histograms("publish_batch_messages", "Messages of a batch given to the broker.", sizeBounds, 1,
		func(s *outbox.Stats) *batch.Histogram { return &s.Batches })
	histograms("ack_batch_rows", "Deliveries recorded in the database with one statement.", sizeBounds, 1,
		func(s *outbox.Stats) *batch.Histogram { return &s.Acks })
	addDestinations(func(kind prometheus.ValueType, name, help string, value func(*outbox.DestinationStats, time.Time) float64) {
		c.byName = append(c.byName, destinationMetric{desc("destination_"+name, help, "destination"), kind, value})
	})
	c.buried = desc("buried_total", "Messages moved to the dead letters, by reason: rejected, attempts or unreadable.", "reason")
	c.info = desc("info", "Always 1; the labels say what the tables are and how they are read.", "server", "layout", "claim")
	return c
}

type adder = func(name, help string, value func(*Snapshot) float64)

// addCounts adds the metrics of the last count of the tables.
func addCounts(gauge adder) {
	gauge("pending_messages", "Messages that wait for their delivery, by the last count.", func(s *Snapshot) float64 { return float64(s.Status.Pending) })
	gauge("oldest_age_seconds", "Age of the oldest pending message at the last count; 0 if there is none.", func(s *Snapshot) float64 { return s.Status.Oldest.Seconds() })
	gauge("scheduled_messages", "Messages whose moment has not come, by the last count.", func(s *Snapshot) float64 { return float64(s.Status.Scheduled) })
	gauge("parked_messages", "Pending messages that have failed and wait for another attempt, by the last count.", func(s *Snapshot) float64 { return float64(s.Status.Parked) })
	gauge("dead_messages", "Dead letters, by the last count.", func(s *Snapshot) float64 { return float64(s.Status.Dead) })
	gauge("history_messages", "Delivered messages that layout history keeps, by the last count.", func(s *Snapshot) float64 { return float64(s.Status.Delivered) })
	gauge("status_age_seconds", "Time since the last count of the tables.", func(s *Snapshot) float64 { return s.At.Sub(s.CountedAt).Seconds() })
	gauge("shards", "Shards that the tables have.", func(s *Snapshot) float64 { return float64(s.Description.Shards) })
	gauge("held_shards", "Shards that some relay leads, by the last count.", func(s *Snapshot) float64 { return float64(heldShards(&s.Status)) })
}

// addPartitions adds the metrics of a partitioned table.
func addPartitions(gauge adder) {
	gauge("catch_all_rows", "Rows in the catch-all partition, counted up to 1000: there was no partition for their time.", func(s *Snapshot) float64 { return float64(s.CatchAllRows) })
	gauge("partition_horizon_seconds", "Time until the end of the last partition.", func(s *Snapshot) float64 { return s.Horizon.Sub(s.At).Seconds() })
}

// addLevels adds the relay's gauges.
func addLevels(gauge adder) {
	gauge("in_flight_messages", "Messages read and not yet recorded as delivered: what a crash would repeat.", func(s *Snapshot) float64 { return float64(s.Stats.InFlight) })
	gauge("in_flight_bytes", "Payloads of the messages in flight.", func(s *Snapshot) float64 { return float64(s.Stats.InFlightBytes) })
	gauge("waiting_keys", "Keys, and messages without one, that wait for another attempt of this relay.", func(s *Snapshot) float64 { return float64(s.Stats.Parked) })
	gauge("deferred_messages", "Messages that wait behind an earlier one of their key.", func(s *Snapshot) float64 { return float64(s.Stats.Deferred) })
	gauge("blocked_destinations", "Destinations that take no messages now, while the broker can be reached.", func(s *Snapshot) float64 { return float64(s.Stats.Blocked) })
	gauge("log_kept_bytes", "What the server keeps of its log for this relay.", func(s *Snapshot) float64 { return float64(s.Stats.LogKept) })
	gauge("gaps", "Ranges of missing numbers for which rows may still be committed.", func(s *Snapshot) float64 { return float64(s.Stats.Gaps) })
	gauge("leading_shards", "Shards that this relay leads.", func(s *Snapshot) float64 { return float64(s.Stats.Leading) })
	gauge("tailing_shards", "Shards that this relay leads and reads from the database's log.", func(s *Snapshot) float64 { return float64(s.Stats.Tailing) })
	gauge("broker_up", "0 while the broker takes no messages.", func(s *Snapshot) float64 {
		if s.Stats.BrokerDown {
			return 0
		}
		return 1
	})
}

// addTotals adds the relay's counters.
func addTotals(count adder) {
	count("read_messages_total", "Rows taken from the table or the log.", func(s *Snapshot) float64 { return float64(s.Stats.Read) })
	count("delivered_messages_total", "Messages that the broker confirmed.", func(s *Snapshot) float64 { return float64(s.Stats.Delivered) })
	count("repeated_messages_total", "Delivered messages that the broker already had, and dropped.", func(s *Snapshot) float64 { return float64(s.Stats.Repeated) })
	count("delivered_bytes_total", "Payloads of the messages that the broker confirmed.", func(s *Snapshot) float64 { return float64(s.Stats.Bytes) })
	count("acked_messages_total", "Deliveries recorded in the database.", func(s *Snapshot) float64 { return float64(s.Stats.Acked) })
	count("retries_total", "Attempts that failed and are repeated.", func(s *Snapshot) float64 { return float64(s.Stats.Retries) })
	count("log_drops_total", "Times that the relay stopped following the log so that the server could remove it.", func(s *Snapshot) float64 { return float64(s.Stats.LogDrops) })
	count("outages_total", "Batches for which there was no broker.", func(s *Snapshot) float64 { return float64(s.Stats.Outages) })
	count("stray_messages_total", "Rows that only the sweep of the whole table has found.", func(s *Snapshot) float64 { return float64(s.Stats.Stray) })
	count("outside_window_messages_total", "Rows that were older than the window.", func(s *Snapshot) float64 { return float64(s.Stats.Outside) })
	count("take_overs_total", "Leaderships taken.", func(s *Snapshot) float64 { return float64(s.Stats.TakeOvers) })
	count("table_reads_total", "Reads of the table.", func(s *Snapshot) float64 { return float64(s.Stats.Rounds) })
	count("status_errors_total", "Counts of the tables that failed.", func(s *Snapshot) float64 { return float64(s.StatusErrors) })
}

// addDestinations adds the metrics of each destination. Those after the first 64 are counted as
// one, so that a topic per customer does not create a series per customer.
func addDestinations(add func(kind prometheus.ValueType, name, help string, value func(*outbox.DestinationStats, time.Time) float64)) {
	type d = outbox.DestinationStats
	add(prometheus.CounterValue, "delivered_messages_total", "Messages that the destination took.", func(d *d, _ time.Time) float64 { return float64(d.Delivered) })
	add(prometheus.CounterValue, "delivered_bytes_total", "Payloads of the messages that the destination took.", func(d *d, _ time.Time) float64 { return float64(d.Bytes) })
	add(prometheus.CounterValue, "failed_attempts_total", "Attempts that failed while the broker was there, whether they were spent or not.", func(d *d, _ time.Time) float64 { return float64(d.Failed) })
	add(prometheus.CounterValue, "buried_messages_total", "Messages for the destination that became dead letters.", func(d *d, _ time.Time) float64 { return float64(d.Buried) })
	add(prometheus.GaugeValue, "failing_messages", "Messages that have failed and wait for another attempt, counted up to 256.", func(d *d, _ time.Time) float64 { return float64(d.Failing) })
	add(prometheus.GaugeValue, "lag_seconds", "Age of the oldest failing message; where none fails, from insert to confirmation of the message taken last.", func(d *d, at time.Time) float64 { return d.Lag(at).Seconds() })
	add(prometheus.GaugeValue, "blocked", "1 while the destination takes no messages.", func(d *d, _ time.Time) float64 {
		if d.Blocked {
			return 1
		}
		return 0
	})
}

// Describe implements prometheus.Collector.
func (c *collector) Describe(ch chan<- *prometheus.Desc) {
	for _, m := range c.byName {
		ch <- m.desc
	}
	for _, m := range c.metrics {
		ch <- m.desc
	}
	for _, h := range c.histograms {
		ch <- h.desc
	}
	ch <- c.buried
	ch <- c.info
}

// reasons are all reasons for burying a message, so that each counter starts at zero.
var reasons = []string{"attempts", "rejected", "unreadable"}

// Collect implements prometheus.Collector.
func (c *collector) Collect(ch chan<- prometheus.Metric) {
	s := c.service.Snapshot()
	for _, m := range c.metrics {
		if m.known == nil || m.known(&s) {
			ch <- prometheus.MustNewConstMetric(m.desc, m.kind, m.value(&s))
		}
	}
	for _, h := range c.histograms {
		from := h.of(&s.Stats)
		ch <- prometheus.MustNewConstHistogram(h.desc, from.Count(), float64(from.Sum())*h.unit, cumulate(from, h.bounds, h.unit))
	}
	for i := range s.Stats.Destinations {
		d := &s.Stats.Destinations[i]
		for _, m := range c.byName {
			ch <- prometheus.MustNewConstMetric(m.desc, m.kind, m.value(d, s.At), destinationName(d))
		}
	}
	for _, reason := range reasons {
		ch <- prometheus.MustNewConstMetric(c.buried, prometheus.CounterValue, float64(s.Stats.Buried[reason]), reason)
	}
	if !s.CountedAt.IsZero() {
		ch <- prometheus.MustNewConstMetric(c.info, prometheus.GaugeValue, 1,
			s.Description.Server, s.Description.Layout.String(), c.service.Claim())
	}
}

// cumulate counts values up to each bound. A value counts as the lower end of its bucket in the
// histogram, which is at most 12.5 % below it.
func cumulate(h *batch.Histogram, bounds []float64, unit float64) map[float64]uint64 {
	out := make(map[float64]uint64, len(bounds))
	var sum uint64
	next := 0
	h.Buckets(func(low int64, count uint64) bool {
		for next < len(bounds) && float64(low)*unit > bounds[next] {
			out[bounds[next]] = sum
			next++
		}
		sum += count
		return true
	})
	for ; next < len(bounds); next++ {
		out[bounds[next]] = sum
	}
	return out
}

// Claim returns how rows are fetched now: "log", "poll", "skip-locked", or "standby" while this
// relay leads no shard.
func (s *Service) Claim() string {
	st := s.relay.Stats()
	switch {
	case s.cfg.Relay.Claim == outbox.SkipLocked:
		return outbox.SkipLocked.String()
	case st.Leading == 0:
		return "standby"
	case st.Tailing == st.Leading:
		return outbox.Log.String()
	}
	return outbox.Poll.String()
}

// heldShards counts the shards that have a leader.
func heldShards(s *outbox.Status) (n int) {
	for _, l := range s.Leases {
		if l.Held {
			n++
		}
	}
	return n
}
